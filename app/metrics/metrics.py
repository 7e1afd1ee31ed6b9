"""Metrics: what one process counts. Each call is an addition or two; none of them ever fails."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping

from app.core.summary.flow import Outcome
from app.core.tokens.usage import Purpose, Tokens
from app.metrics.families import (
    COMPACTIONS,
    OTHER_4XX,
    OTHER_5XX,
    PAYLOADS,
    REQUESTS,
    RESTARTS,
    SAVED,
    TOKENS,
    UPSTREAM_ERRORS,
    VALUES_KEPT,
    WAITS,
    WORKERS,
    Family,
)
from app.metrics.table import PROCESS, Table, place_of


def _places(family: Family) -> Mapping[tuple[str, ...], int]:
    """Where each series has its number in a row."""
    return {labels: place_of(family) + number for number, labels in enumerate(family.series)}


_REQUESTS = {
    route: [_places(REQUESTS)[route, f"{min(max(hundreds, 1), 5)}xx"] for hundreds in range(10)]
    for route in REQUESTS.labels["route"]
}
"""By route, and by a status' hundreds: a provider may answer with 999."""
_PAYLOADS = {status: place for (status,), place in _places(PAYLOADS).items()}
_TOKENS = {
    purpose: [(kind, place) for (of, kind), place in _places(TOKENS).items() if of == purpose]
    for purpose in TOKENS.labels["purpose"]
}
_COMPACTIONS, _ERRORS = _places(COMPACTIONS), _places(UPSTREAM_ERRORS)
_WAITS, _WAITED = place_of(WAITS), place_of(WAITS) + len(WAITS.bounds)
_KEPT, _KEPT_SUM = place_of(VALUES_KEPT), place_of(VALUES_KEPT) + len(VALUES_KEPT.bounds)
_WORKERS, _RESTARTS = place_of(WORKERS), place_of(RESTARTS)


class Metrics:
    """The row of a worker, which it counts in as long as it lives."""

    def __init__(self, table: Table, row: int) -> None:
        self.table = table
        self._row = table.row(row)
        self._row[PROCESS] = os.getpid()

    @classmethod
    def of_one(cls) -> Metrics:
        """Of a process that serves alone."""
        table = Table.of_one()
        SupervisorMetrics(table, 0).alive(1)
        return cls(table, 0)

    def answered(self, route: str, status: int) -> None:
        """A request, as soon as its status is known."""
        self._row[_REQUESTS[route][status // 100]] += 1

    def payload(self, context_status: str) -> None:
        self._row[_PAYLOADS[context_status]] += 1

    def called(self, purpose: Purpose, tokens: Tokens, saved: int) -> None:
        """A call that a provider answered."""
        row = self._row
        for kind, place in _TOKENS[purpose]:
            if number := saved if kind == SAVED else getattr(tokens, kind):
                row[place] += number

    def compacted(self, outcome: Outcome) -> None:
        self._row[_COMPACTIONS[outcome.name.lower(),]] += 1

    def waited(self, seconds: float) -> None:
        """A chat request, because a summary was being made."""
        self._row[_WAITS + bisect_left(WAITS.bounds, seconds)] += 1
        self._row[_WAITED] += seconds

    def summarised(self, values_kept: float) -> None:
        """A summary with exact values beside it; the share of them that it holds itself."""
        self._row[_KEPT + bisect_left(VALUES_KEPT.bounds, values_kept)] += 1
        self._row[_KEPT_SUM] += values_kept

    def upstream_error(self, code: str | int) -> None:
        """A status from 400 on, or one of our own codes for a provider that is away."""
        place = _ERRORS.get((str(code),))
        if place is None:
            place = _ERRORS[OTHER_4XX if str(code).startswith("4") else OTHER_5XX,]
        self._row[place] += 1


class SupervisorMetrics:
    """What is counted where workers are started."""

    def __init__(self, table: Table, row: int) -> None:
        self._table = table
        self._row = table.row(row)

    def alive(self, workers: int) -> None:
        self._row[_WORKERS] = workers

    def restarted(self) -> None:
        self._row[_RESTARTS] += 1

    def ended(self, worker: int) -> None:
        """Its process is gone, and the id may soon be another one's."""
        self._table.row(worker)[PROCESS] = 0
