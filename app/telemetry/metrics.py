"""Metrics: numbers that one process counts. Each call is an addition or two; none of them ever fails."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import NoReturn

from app.core.reasons import Reasons
from app.core.summary.flow import Outcome
from app.core.tokens.usage import Purpose, Tokens
from app.telemetry.families import (
    ANSWERED,
    CHUNKS,
    COMPACTION_FAILURES,
    COMPACTION_SECONDS,
    COMPACTIONS,
    COST,
    ENDS,
    ESTIMATE_RATIO,
    ESTIMATED,
    FIRST_BYTE,
    FORWARDED,
    OTHER_4XX,
    OTHER_5XX,
    PAYLOAD_REASONS,
    PAYLOADS,
    RECALLED,
    REQUEST_SECONDS,
    REQUESTS,
    RESTARTS,
    SAVED,
    SUMMARY_CALLS,
    TOKENS,
    UPSTREAM_ERRORS,
    UPSTREAM_FIRST_BYTE,
    WORKERS,
    Family,
)
from app.telemetry.table import PROCESS, Table, place_of


def _places(family: Family) -> Mapping[tuple[str, ...], int]:
    """Positions in a row at which the numbers of each series begin."""
    return {labels: place_of(family) + number * family.numbers for number, labels in enumerate(family.series)}


def _single(family: Family) -> Mapping[str, int]:
    """Positions of a family with one label, by its value."""
    return {label: place for (label,), place in _places(family).items()}


_REQUESTS = {
    route: [_places(REQUESTS)[route, f"{min(max(hundreds, 1), 5)}xx"] for hundreds in range(10)]
    for route in REQUESTS.labels["route"]
}
"""Positions of requests by route and by a status' hundreds: a provider may answer with 999."""
_TOKENS = {
    purpose: {kind: place for (of, kind), place in _places(TOKENS).items() if of == purpose}
    for purpose in TOKENS.labels["purpose"]
}
_FIRST_BYTE, _REQUEST_SECONDS = _single(FIRST_BYTE), _single(REQUEST_SECONDS)
_ANSWERING, _LAST = FIRST_BYTE.bounds, len(FIRST_BYTE.bounds)
_PAYLOADS, _REASONS, _CHUNKS = _single(PAYLOADS), _single(PAYLOAD_REASONS), _single(CHUNKS)
_COMPACTIONS, _FAILURES = _places(COMPACTIONS), _single(COMPACTION_FAILURES)
_COMPACTION_SECONDS, _SUMMARY_CALLS = _single(COMPACTION_SECONDS), _single(SUMMARY_CALLS)
_ESTIMATE_RATIO = place_of(ESTIMATE_RATIO)
_ERRORS, _COST = _single(UPSTREAM_ERRORS), _single(COST)
_UPSTREAM_FIRST_BYTE, _RECALLED = place_of(UPSTREAM_FIRST_BYTE), place_of(RECALLED)
_WORKERS, _RESTARTS = place_of(WORKERS), place_of(RESTARTS)


class Metrics:
    """Row of a worker in the table of counts, for as long as the worker lives."""

    def __init__(self, table: Table, row: int) -> None:
        self.table = table
        self._row = table.row(row)
        self._row[PROCESS] = os.getpid()

    @classmethod
    def of_one(cls) -> Metrics:
        """Make the metrics of a process that serves alone."""
        table = Table.of_one()
        SupervisorMetrics(table, 0).alive(1)
        return cls(table, 0)

    # On every request's path: written out, because a call more is felt there.

    def begun(self, route: str, status: int, seconds: float) -> None:
        """Count the status of an answer, `seconds` after its request's head came."""
        row, place = self._row, _FIRST_BYTE[route]
        row[_REQUESTS[route][status // 100]] += 1
        row[place + bisect_left(_ANSWERING, seconds)] += 1
        row[place + _LAST] += seconds

    def ended(self, route: str, seconds: float) -> None:
        """Count the end of an answer, `seconds` after its request's head came."""
        row, place = self._row, _REQUEST_SECONDS[route]
        row[place + bisect_left(_ANSWERING, seconds)] += 1
        row[place + _LAST] += seconds

    def upstream_began(self, seconds: float) -> None:
        """Count the beginning of a provider's answer, `seconds` after it was sent the request."""
        row = self._row
        row[_UPSTREAM_FIRST_BYTE + bisect_left(_ANSWERING, seconds)] += 1
        row[_UPSTREAM_FIRST_BYTE + _LAST] += seconds

    def payload(self, context_status: str) -> None:
        self._row[_PAYLOADS[context_status]] += 1

    # Beside it, or where something is done.

    def not_done(self, why: Reasons) -> None:
        """Count a payload for which something was due that was not done."""
        self._row[_REASONS[why[0].code]] += 1

    def recalled(self, tokens: int) -> None:
        """Count recalled tokens, as the provider counts them."""
        self._row[_RECALLED] += tokens

    def called(
        self,
        purpose: Purpose,
        tokens: Tokens,
        saved: int,
        estimated: int | None = None,
        forwarded: int | None = None,
        cost: float | None = None,
    ) -> None:
        """Count a call that a provider answered."""
        row, places = self._row, _TOKENS[purpose]
        row[places["prompt"]] += tokens.prompt or 0
        row[places["completion"]] += tokens.completion or 0
        row[places[ESTIMATED]] += estimated or 0
        row[places[FORWARDED]] += forwarded or 0
        # Of most calls nothing is known of these, and an addition to the row is not free.
        if tokens.cached:
            row[places["cached"]] += tokens.cached
        if tokens.reasoning:
            row[places["reasoning"]] += tokens.reasoning
        if tokens.written:
            row[places["written"]] += tokens.written
        if saved:
            row[places[SAVED]] += saved
        if cost:
            row[_COST[purpose]] += cost
        if tokens.prompt and forwarded:
            self.observe(ESTIMATE_RATIO, tokens.prompt / forwarded, _ESTIMATE_RATIO)

    def compacted(self, purpose: Purpose, outcome: Outcome, why: Reasons, chunks: int, seconds: float) -> None:
        """Count a compaction that ended, and its new chunks."""
        of_work: Purpose = "background" if purpose == "background" else "summary"
        end = outcome if outcome in ENDS else Outcome.FAILED
        self._row[_COMPACTIONS[end.name.lower(), of_work]] += 1
        self._row[_CHUNKS["new"]] += chunks
        if outcome is not Outcome.MADE and why:
            self._row[_FAILURES[why[0].code]] += 1
        self.observe(COMPACTION_SECONDS, seconds, _COMPACTION_SECONDS[of_work])

    def reused(self, chunks: int) -> None:
        """Count chunks of earlier compactions that were used in one payload."""
        self._row[_CHUNKS["reused"]] += chunks

    def summary_called(self, why: Reasons = ()) -> None:
        """Count a call of a summariser; `why` it gave no answer."""
        result = str(why[0].code) if why else ANSWERED
        if (place := _SUMMARY_CALLS.get(result)) is not None:
            self._row[place] += 1

    def upstream_error(self, code: str | int) -> None:
        """Count a status from 400 on, or one of our own codes for a provider that is away."""
        place = _ERRORS.get(str(code))
        if place is None:
            place = _ERRORS[OTHER_4XX if str(code).startswith("4") else OTHER_5XX]
        self._row[place] += 1

    def grown(self, counter: Family, number: float, *labels: str) -> None:
        """Add the growth of a counter since it was looked at last."""
        self._row[_places(counter)[labels]] += number

    def measured(self, gauge: Family, number: float, *labels: str) -> None:
        """Set the value that a gauge of this worker shows from now on."""
        self._row[_places(gauge)[labels]] = number

    def observe(self, histogram: Family, number: float, place: int | None = None) -> None:
        """Count a number in a histogram, which may begin at a place that is looked up already."""
        place = place_of(histogram) if place is None else place
        self._row[place + bisect_left(histogram.bounds, number)] += 1
        self._row[place + len(histogram.bounds)] += number


class SupervisorMetrics:
    """Metrics that are counted where workers are started."""

    def __init__(self, table: Table, row: int) -> None:
        self._table = table
        self._row = table.row(row)

    def alive(self, workers: int) -> None:
        self._row[_WORKERS] = workers

    def restarted(self) -> None:
        self._row[_RESTARTS] += 1

    def ended(self, worker: int) -> None:
        """Clear the id of a process that is gone: it may soon be another one's."""
        self._table.row(worker)[PROCESS] = 0


SAMPLE_SECONDS = 5.0
"""Seconds between two samples of the gauges, which all workers report."""

Gauges = Mapping[tuple[Family, tuple[str, ...]], Callable[[], float]]
"""Source of each number, by its family and labels. A counter's number is the worker's own, which begins at 0."""


class Sampler:
    def __init__(self, metrics: Metrics, gauges: Gauges) -> None:
        self._metrics = metrics
        self._gauges = gauges
        self._counted: dict[tuple[Family, tuple[str, ...]], float] = {}
        """Counters' values when they were last looked at."""

    def sample(self) -> None:
        for (family, labels), look_up in self._gauges.items():
            number = look_up()
            if family.kind == "counter":
                before = self._counted.get((family, labels), 0)
                self._counted[family, labels] = number
                self._metrics.grown(family, number - before, *labels)
            else:
                self._metrics.measured(family, number, *labels)

    async def run(self) -> NoReturn:
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_SECONDS)
