"""Families: every metric, with all that its labels may say. So each number has its place before anything is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from math import inf, prod
from typing import Literal, get_args

from app.core.summary.flow import Outcome
from app.core.tokens.usage import Purpose, Tokens
from app.errors import UpstreamDisconnected, UpstreamTimedOut, UpstreamUnreachable, UpstreamUnreadable

SAVED = "saved"
"""A kind of tokens beside those that a provider reports: what was not sent, by Steno's estimate."""
OTHER_4XX, OTHER_5XX = "4xx", "5xx"
_STATUSES = ("400", "401", "403", "404", "408", "409", "413", "422", "429", "500", "502", "503", "504", "529")
_ERRORS = tuple(each.code for each in (UpstreamUnreachable, UpstreamTimedOut, UpstreamDisconnected, UpstreamUnreadable))


@dataclass(frozen=True)
class Family:
    kind: Literal["counter", "gauge", "histogram"]
    name: str
    """A counter's is told with `_total` behind it."""
    meaning: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What each may say."""
    bounds: tuple[float, ...] = ()
    """Of a histogram: the upper ends of its buckets. It has no labels."""

    @property
    def width(self) -> int:
        """Numbers it needs: of a histogram one for each bucket, and the sum."""
        return len(self.bounds) + 1 if self.bounds else prod(map(len, self.labels.values()))

    @property
    def series(self) -> tuple[tuple[str, ...], ...]:
        """The labels' values, in the order of the numbers."""
        return tuple(product(*self.labels.values()))


REQUESTS = Family(
    "counter",
    "steno_requests",
    "Requests that were answered, by what became of them and the status' class.",
    {"route": ("chat", "passthrough", "own", "refused"), "status": ("1xx", "2xx", "3xx", "4xx", "5xx")},
)
PAYLOADS = Family(
    "counter",
    "steno_payloads",
    "Chat payloads that were made for a provider, by what was done to the context.",
    {"context_status": ("full", "summarized", "trimmed", "bypassed")},
)
TOKENS = Family(
    "counter",
    "steno_tokens",
    "Tokens of answered calls, as providers reported them, and what was saved.",
    {"purpose": get_args(Purpose), "kind": (*(each.name for each in fields(Tokens)), SAVED)},
)
COMPACTIONS = Family(
    "counter",
    "steno_compactions",
    "Compactions that ended, by what came of them.",
    {"outcome": tuple(outcome.name.lower() for outcome in Outcome)},
)
WAITS = Family(
    "histogram",
    "steno_summary_wait_seconds",
    "Seconds that chat requests waited because a summary was being made.",
    bounds=(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, inf),
)
VALUES_KEPT = Family(
    "histogram",
    "steno_summary_values_kept",
    "Share of the exact values of its messages that a summary's own text holds.",
    bounds=(0.25, 0.5, 0.75, 0.9, 1.0, inf),
)
UPSTREAM_ERRORS = Family(
    "counter",
    "steno_upstream_errors",
    "Client requests that a provider refused, did not answer, or answered in part.",
    {"code": (*_STATUSES, OTHER_4XX, OTHER_5XX, *_ERRORS)},
)
WORKERS = Family("gauge", "steno_workers", "Workers that are alive.")
RESTARTS = Family("counter", "steno_worker_restarts", "Workers that were started in place of one that ended.")

FAMILIES = (REQUESTS, PAYLOADS, TOKENS, COMPACTIONS, WAITS, VALUES_KEPT, UPSTREAM_ERRORS, WORKERS, RESTARTS)
