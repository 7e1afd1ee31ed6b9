"""Charts of one conversation: tokens by request, and a bar of the contents of the context window.

The first chart shows the tokens of the client's history and of the forwarded payload, by the requests in the ledger.
Each compaction reduces the payload. Coordinates are in percent of the drawing.

In the bar, each token of the latest payload belongs to one share. The rest of the window is reserved for the answer, or
free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import starmap
from math import ceil, floor, log10
from typing import Any, NamedTuple

from msgspec import Struct

from app.inspector.pages import DOLLARS, counted, money, short
from app.store import StoredUsage, UsageRecord
from app.tokens.costs import DecisionRecord

FLOOR = 0.3
"""If a request reaches this share of the trigger, the axis goes up to the window, else to the largest request."""
LABELS_APART = 13.0
"""Minimum distance between two labelled compactions, in percent of the chart's width."""
LONGEST_LINE = 34
"""Maximum characters of a line in the details of a request."""
_STEPS = (1, 2, 2.5, 5, 10)
_Y_TICKS, _X_TICKS = 4, 8
"""Approximate number of ticks on each axis."""
UNDECIDED = DecisionRecord(window=0, limit=0, trigger=0)
"""Placeholder for a decision that is not stored."""


class Compaction(Struct, frozen=True):
    """Summaries made for one request, or after its answer. Sizes are in the provider's tokens."""

    before: int
    """Tokens that the payload would have without the summaries."""
    replaced: int
    """Tokens of the summarised messages."""
    summaries: int
    made: int
    calls: int
    """Calls to the summariser, including failed calls."""
    seconds: float | None
    cost: str
    ahead: bool
    """True if the summaries were made after the answer, for later requests."""

    @property
    def words(self) -> str:
        if not self.made:
            return f"{counted(self.calls, 'call')} failed"
        parts = [f"{short(self.replaced)} → {short(self.summaries)}"]
        parts += [f"{self.seconds:.1f} s"] if self.seconds is not None else []
        parts += [self.cost] if self.cost else []
        return f"{counted(self.made, 'summary', 'summaries')}{' ahead' if self.ahead else ''}: {', '.join(parts)}"


class ChartedRequest(Struct, frozen=True):
    """Answered request in the ledger. Sizes are in the provider's tokens."""

    number: int
    """Number among the conversation's requests, from 1."""
    at: datetime
    record: UsageRecord
    """Record of the last call that forwarded the request. The provider refused earlier calls, if there are any."""
    sent: int
    forwarded: int
    cost: str
    """Sum of the known costs of the request's calls, summary calls included; empty if no cost is known."""
    compactions: tuple[Compaction, ...] = ()

    @property
    def decided(self) -> DecisionRecord:
        return self.record.decided or UNDECIDED

    @property
    def lines(self) -> list[str]:
        """Details of the request, in lines of at most `LONGEST_LINE` characters."""
        status, reported, decided = self.record.status, self.record.tokens.prompt, self.decided
        said = [f"Request {self.number}" + (f", status {status}" if status != 200 else "")]
        said.append(f"sent {self.sent:,}, forwarded {self.forwarded:,}")
        said += [f"the provider counted {reported:,}"] if reported is not None else []
        said += [f"trigger {decided.trigger:,}"] if decided.trigger else []
        said += [", ".join(decided.actions)] if decided.actions else []
        said += [each.words for each in self.compactions]
        said += [f"waited {decided.waited_seconds:.1f} s"] if decided.waited_seconds is not None else []
        return [line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…" for line in said]


def requests_of(records: Sequence[StoredUsage], count: int, most: int) -> list[ChartedRequest]:
    """Return the latest `most` answered requests, oldest first. `records`: the conversation's latest ledger records, in
    any order; `count`: number of the conversation's requests."""
    calls: dict[str, list[StoredUsage]] = {}
    for stored in sorted(records, key=lambda each: (each.created_at, each.record.id)):
        calls.setdefault(stored.record.request_id, []).append(stored)
    answered = [
        of_request for of_request in calls.values() if any(each.record.purpose == "message" for each in of_request)
    ]
    return list(starmap(_request, enumerate(answered, max(1, count - len(answered) + 1))))[-most:]


def _request(number: int, calls: Sequence[StoredUsage]) -> ChartedRequest:
    latest = next(each for each in reversed(calls) if each.record.purpose == "message")
    record = latest.record
    forwarded = record.forwarded or record.tokens.prompt or 0
    sent = record.estimated or forwarded
    waited = (record.decided or UNDECIDED).waited_seconds
    by_purpose = ([each.record for each in calls if each.record.purpose == name] for name in ("summary", "background"))
    return ChartedRequest(
        number=number,
        at=latest.created_at,
        record=record,
        sent=sent,
        forwarded=forwarded,
        cost=_cost([each.record for each in calls]),
        compactions=tuple(_compaction(made, sent, forwarded, waited) for made in by_purpose if made),
    )


def _compaction(calls: Sequence[UsageRecord], sent: int, forwarded: int, waited: float | None) -> Compaction:
    """Return the compaction that the calls made. For background summaries, `before` is `forwarded`, because the payload
    does not change yet."""
    ahead = calls[0].purpose == "background"
    made = [record.made for record in calls if record.made is not None]
    kept = [each for each in made if each.summary is not None]
    replaced, summaries = sum(each.replaced for each in kept), sum(each.summary or 0 for each in kept)
    seconds = max((each.seconds for each in made), default=None)
    return Compaction(
        before=forwarded if ahead else max(forwarded, min(sent, forwarded + replaced - summaries)),
        replaced=replaced,
        summaries=summaries,
        made=len(kept),
        calls=len(calls),
        seconds=seconds if ahead or waited is None else waited,
        cost=_cost(calls),
        ahead=ahead,
    )


def _cost(calls: Sequence[UsageRecord]) -> str:
    costs = [record.cost for record in calls if record.cost is not None]
    in_dollars = all(record.price_source != "settings" for record in calls)
    return money(sum(costs), DOLLARS if in_dollars else "") if costs else ""


class Column(NamedTuple):
    """Column of one request, which reacts to the mouse pointer. Positions and heights are in percent of the chart."""

    x: float
    left: float
    width: float
    sent_at: float
    forwarded_at: float
    request: ChartedRequest


def chart_of(requests: Sequence[ChartedRequest]) -> dict[str, Any] | None:
    """Return the variables of the chart's template; None without requests. `sent`, `forwarded`, `area`: SVG points;
    `lines`: height, name and tokens of trigger and window; `above`: trigger or window if above the chart, as text."""
    if not requests:
        return None
    most = max(max(each.sent, each.forwarded, *(made.before for made in each.compactions)) for each in requests)
    window = max(each.decided.window for each in requests)
    trigger = max(each.decided.trigger or each.decided.window for each in requests)
    needed = max(window, most) * 1.04 if window and most >= FLOOR * trigger else max(1, most) * 1.15
    step = _round_up(needed / _Y_TICKS)
    top, width = step * ceil(needed / step), 100 / len(requests)

    def y(tokens: float) -> float:
        return round(100 - 100 * tokens / top, 2)

    lefts = [round(width * place, 2) for place in range(len(requests))]
    columns = tuple(
        Column(round(left + width / 2, 2), left, round(width, 2), y(each.sent), y(each.forwarded), each)
        for left, each in zip(lefts, requests, strict=True)
    )
    sent, forwarded = (
        [(column.x, getattr(column, name)) for column in columns] for name in ("sent_at", "forwarded_at")
    )
    latest = next((each.decided for each in reversed(requests) if each.decided.window), UNDECIDED)
    known = {"trigger": latest.trigger, "window": latest.window}
    return {
        "sent": _points(sent),
        "forwarded": _points(forwarded),
        "area": _points([(forwarded[0][0], 100), *forwarded, (forwarded[-1][0], 100)]),
        "lines": [(y(at), name, short(at)) for name, at in known.items() if at and at <= top],
        "above": ", ".join(f"{name} {short(at)}" for name, at in known.items() if at and at > top),
        "marks": list(_marks(columns, y)),
        "columns": columns,
        "y_ticks": [(y(step * number), short(step * number)) for number in range(round(top / step) + 1)],
        "x_ticks": list(_x_ticks(columns)),
    }


def _round_up(least: float) -> float:
    """Return the smallest round number that is at least `least`."""
    power = 10.0 ** floor(log10(max(least, 1)))
    return next(power * step for step in _STEPS if power * step >= least)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _marks(columns: Sequence[Column], y: Callable[[float], float]) -> Iterator[dict[str, Any]]:
    """Yield a vertical line for each compaction, at `x` from `upper` to `lower`. The label has the compaction's tokens;
    it is empty if the preceding label is too near."""
    free = 0.0
    for column in columns:
        for made in column.request.compactions:
            before, after = made.replaced, made.summaries
            if not made.ahead:
                before, after = made.before, column.request.forwarded
            label = f"{short(before)} → {short(after)}" if column.x >= free and before > after else ""
            free = column.x + LABELS_APART if label else free
            upper, lower = y(made.before), column.forwarded_at
            yield {"x": column.x, "upper": upper, "lower": lower, "label": label, "ahead": made.ahead}


def _x_ticks(columns: Sequence[Column]) -> Iterator[tuple[float, str]]:
    """Yield ticks at the first and the last request, and at round numbers that are not too near to these two."""
    apart = max(1, round(_round_up(len(columns) / _X_TICKS)))
    first, last = columns[0].request.number, columns[-1].request.number
    for number, column in enumerate(columns, first):
        is_round = number % apart == 0 and min(number - first, last - number) >= 0.6 * apart
        if number in (first, last) or is_round:
            yield column.x, str(number)


LABELS: Mapping[str, str] = {
    "instructions": "Instructions",
    "tools": "Tools and format",
    "summaries": "Summaries",
    "pinned": "Pinned copies",
    "recalled": "Recalled",
    "masked": "Masked or cut",
    "verbatim": "Verbatim",
    "over": "Over the window",
    "reserve": "Kept for the answer",
    "free": "Free",
}
"""Names of the bar's shares: the payload's contents in order, tokens over the window, and the rest of the window."""
_OF_PART: Mapping[str, str] = {
    "instructions": "instructions",
    "summarized": "summaries",
    "stub": "summaries",
    "user_words": "summaries",
    "pinned": "pinned",
    "client_instructions": "instructions",
    "recalled": "recalled",
    "exact_values": "recalled",
    "state": "recalled",
    "verbatim": "verbatim",
    "carried": "verbatim",
}
"""Share of the bar (key of `LABELS`) by the kind of a part in the coverage. Other kinds are masked or cut messages."""


class Share(NamedTuple):
    """Tokens of one kind of content, and their share of the window."""

    filling: str
    label: str
    tokens: int
    of_window: float


def window_shares(parts: Sequence[Mapping[str, Any]], window: int, limit: int | None) -> list[Share]:
    """Return the shares that are not empty. All of them except `over` (tokens above the window) add up to the window.

    `parts`: the coverage, in the provider's tokens; `limit`: the prompt's limit in tokens, if known.
    """
    used = payload_shares(parts)
    total = sum(used.values())
    room, inside = window, dict[str, int]()
    for filling in LABELS:  # In the order of the payload: its last tokens are over the window.
        inside[filling] = min(room, used.get(filling, 0))
        room -= inside[filling]
    inside["reserve"] = min(room, max(0, window - limit)) if limit is not None else 0
    inside["free"] = room - inside["reserve"]
    shown = inside | {"over": max(0, total - window)}
    return [Share(each, LABELS[each], shown[each], shown[each] / (window or 1)) for each in LABELS if shown[each]]


def payload_shares(parts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the payload's tokens by share (key of `LABELS`). Their sum is the size of the payload."""
    found: dict[str, int] = {}
    for part in parts:
        filling, tokens = _OF_PART.get(part["kind"], "masked"), part["tokens"]
        if filling == "instructions":
            tools = max(0, min(part.get("tools_tokens", 0), tokens))
            found["tools"] = found.get("tools", 0) + tools
            tokens -= tools
        found[filling] = found.get(filling, 0) + tokens
    # The instructions include the calibration's correction, which may be negative.
    if (missing := min(0, found.get("instructions", 0))) and len(found) > 1:
        largest = max(found, key=lambda filling: found[filling])
        found["instructions"] = 0
        found[largest] += missing
    return {filling: max(0, tokens) for filling, tokens in found.items()}
