"""Sums that a run spent and saved, from the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.inspector.formats import DOLLARS, counted, gain, money
from app.store import UsageRecord

COMPACTED = ("summarized", "trimmed")
OK = 200


@dataclass(slots=True)
class Spent:
    """Sums over the calls of one run."""

    requests: int = 0
    """Calls of the command that the provider answered with success."""
    refused: int = 0
    """Calls that the provider answered with an error."""
    compacted: int = 0
    summaries: int = 0
    estimated: int = 0
    """Tokens that came, of the calls whose tokens were counted."""
    forwarded: int = 0
    saved: int = 0
    cost: float = 0.0
    summary_cost: float = 0.0
    saved_cost: float = 0.0
    """Cost that the command's own requests would have had beyond this; negative if they would have cost less."""
    too_large: int = 0
    """Requests that came larger than the model's window leaves room for."""
    too_large_saved_cost: float = 0.0
    """Cost saved on the requests that came too large."""
    unpriced: int = 0
    """Calls whose cost is not known."""
    in_dollars: bool = True
    """True if no price was the operator's own, which is in a currency that nobody names."""

    def add(self, record: UsageRecord) -> None:
        if record.status != OK:
            self.refused += record.purpose == "message"
            return
        if record.purpose == "message":
            self.requests += 1
            self.compacted += record.context_status in COMPACTED
            self.saved += record.saved
            if record.estimated is not None and record.forwarded is not None:
                self.estimated += record.estimated
                self.forwarded += record.forwarded
        else:
            self.summaries += 1
        if record.cost is None:
            self.unpriced += 1
            return
        self.cost += record.cost
        if record.purpose != "message":
            self.summary_cost += record.cost
        self.in_dollars &= record.price_source != "settings"
        self.saved_cost += record.saved_cost or 0.0
        if record.is_too_large:
            self.too_large += 1
            self.too_large_saved_cost += record.saved_cost or 0.0

    def lines(self) -> Iterator[str]:
        """Sums in words; each line fits a terminal."""
        yield (
            f"{counted(self.requests, 'request')}, {self.compacted} of them compacted;"
            f" {counted(self.summaries, 'summary', 'summaries')} made"
        )
        if self.refused:
            yield f"{counted(self.refused, 'request')} more refused by the provider"
        if self.estimated:
            share = self.saved / self.estimated
            yield f"{self.estimated:,} tokens sent, {self.forwarded:,} forwarded: {self.saved:,} saved ({share:.0%})"
        if self.cost:
            unit = " US dollars at list prices" if self.in_dollars else ""
            summaries = f", {self.summary_cost:.4f} of it for summaries" if self.summaries else ""
            yield f"cost {self.cost:.4f}{unit}{summaries}"
            currency = DOLLARS if self.in_dollars else ""
            yield gain(self.saved_cost, currency)
            if self.too_large:
                part = money(self.too_large_saved_cost, currency)
                yield f"{part} of this comes from {counted(self.too_large, 'request')} that would have been refused"
            if self.unpriced:
                yield f"without {counted(self.unpriced, 'call')} whose cost is not known"
