"""Families: every metric with all values of its labels. So each number has its place before anything is counted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from math import inf, prod
from typing import Literal, get_args

from msgspec import Struct, field

from app.core.reasons import Code
from app.core.summary.flow import Outcome
from app.core.tokens.usage import Purpose
from app.errors import UpstreamDisconnected, UpstreamTimedOut, UpstreamUnreachable, UpstreamUnreadable

ESTIMATED, FORWARDED, SAVED = "estimated", "forwarded", "saved"
"""Kinds of tokens beside those that a provider reports: Steno's own estimates of what came, of what was sent
instead, and of the difference."""
OTHER_4XX, OTHER_5XX = "4xx", "5xx"
ANSWERED = "answered"
"""Results of a summary call that brought an answer."""
RECORDED = ("requests", "usage", "messages")
CACHES = ("histories", "bodies", "recall", "tokens", "heads", "summaries", "prints", "archive")
ENDS = (Outcome.MADE, Outcome.FAILED, Outcome.LEASE_LOST, Outcome.DELETED, Outcome.STORE_AWAY)
"""Ends of a compaction that was begun. The other outcomes are those of requests."""
_ROUTES = ("chat", "passthrough", "own", "refused")
_STATUSES = ("400", "401", "403", "404", "408", "409", "413", "422", "429", "500", "502", "503", "504", "529")
_ERRORS = tuple(each.code for each in (UpstreamUnreachable, UpstreamTimedOut, UpstreamDisconnected, UpstreamUnreadable))
_REASONS = tuple(map(str, Code))
_OF_SUMMARISERS = tuple(reason for reason in _REASONS if reason.startswith("summariser_"))
_SUMMARISING: tuple[Purpose, ...] = ("summary", "background")

_QUEUEING = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, inf)
_ANSWERING = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, inf)
_SUMMARY = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, inf)


class Family(Struct, frozen=True, eq=False):
    kind: Literal["counter", "gauge", "histogram"]
    name: str
    """Name of the family. A counter is exposed with `_total` after it."""
    meaning: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels, each with the values that it may have."""
    bounds: tuple[float, ...] = ()
    """Upper ends of a histogram's buckets."""
    is_each: bool = False
    """True if each worker has a gauge of its own, labelled `worker`; otherwise all are added up."""

    @property
    def numbers(self) -> int:
        """Numbers that one series needs: one, or for a histogram one for each bucket, and the sum."""
        return len(self.bounds) + 1 if self.bounds else 1

    @property
    def width(self) -> int:
        """Count of numbers that all series need."""
        return self.numbers * prod(map(len, self.labels.values()))

    @property
    def series(self) -> tuple[tuple[str, ...], ...]:
        """Values of the labels of each series, in the order of the numbers."""
        return tuple(product(*self.labels.values()))


_counter, _histogram, _gauge = (partial(Family, kind) for kind in ("counter", "histogram", "gauge"))

# Requests

REQUESTS = _counter(
    "steno_requests",
    "Requests that were answered, by what became of them and the status' class.",
    {"route": _ROUTES, "status": ("1xx", "2xx", "3xx", "4xx", "5xx")},
)
REQUEST_SECONDS = _histogram(
    "steno_request_duration_seconds",
    "Seconds from a request's head to the end of its answer.",
    {"route": _ROUTES},
    _ANSWERING,
)
FIRST_BYTE = _histogram(
    "steno_request_first_byte_seconds",
    "Seconds from a request's head to the first byte of its answer, the provider's time included.",
    {"route": _ROUTES},
    _ANSWERING,
)
UPSTREAM_FIRST_BYTE = _histogram(
    "steno_upstream_first_byte_seconds",
    "Seconds from sending a client's request to the provider to the first byte of its answer.",
    bounds=_ANSWERING,
)
UPSTREAM_ERRORS = _counter(
    "steno_upstream_errors",
    "Client requests that a provider refused, did not answer, or answered in part.",
    {"code": (*_STATUSES, OTHER_4XX, OTHER_5XX, *_ERRORS)},
)

# What is done to the context

PAYLOADS = _counter(
    "steno_payloads",
    "Chat payloads that were made for a provider, by what was done to the context.",
    {"context_status": ("full", "summarized", "trimmed", "bypassed")},
)
PAYLOAD_REASONS = _counter(
    "steno_payload_reasons",
    "Chat payloads for which something due was not done, by the first reason.",
    {"reason": _REASONS},
)
REPORTED = ("prompt", "completion", "cached", "reasoning", "written")
"""Kinds of tokens that providers report."""
TOKENS = _counter(
    "steno_tokens",
    "Tokens of answered calls, as providers reported them, and by Steno's estimate.",
    {"purpose": get_args(Purpose), "kind": (*REPORTED, ESTIMATED, FORWARDED, SAVED)},
)
RECALLED = _counter("steno_recalled_tokens", "Tokens of messages that were quoted back into payloads.")
COST = _counter("steno_cost", "Cost of answered calls in the currency of the prices.", {"purpose": get_args(Purpose)})
ESTIMATE_RATIO = _histogram(
    "steno_estimate_ratio",
    "Prompt tokens that the provider reported, divided by Steno's estimate of them.",
    bounds=(0.5, 0.75, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, inf),
)

# Compactions

COMPACTIONS = _counter(
    "steno_compactions",
    "Compactions that ended, by what came of them and whether a request needed them.",
    {"outcome": tuple(outcome.name.lower() for outcome in ENDS), "purpose": _SUMMARISING},
)
COMPACTION_FAILURES = _counter(
    "steno_compaction_failures",
    "Compactions that ended without all that was planned, by the first reason.",
    {"reason": _REASONS},
)
COMPACTION_SECONDS = _histogram(
    "steno_compaction_duration_seconds",
    "Seconds that compactions took, whatever came of them.",
    {"purpose": _SUMMARISING},
    _SUMMARY,
)
CHUNKS = _counter(
    "steno_chunks",
    "Summaries that were made, and those made earlier that a payload used again.",
    {"result": ("new", "reused")},
)
SUMMARY_CALLS = _counter(
    "steno_summary_calls",
    "Summaries that summarisers were asked for, by what came of it.",
    {"result": (ANSWERED, *_OF_SUMMARISERS)},
)
VALUES_KEPT = _histogram(
    "steno_summary_values_kept",
    "Share of the exact values of its messages that a summary's own text holds.",
    bounds=(0.25, 0.5, 0.75, 0.9, 1.0, inf),
)

# Waits

WAITS = _histogram(
    "steno_summary_wait_seconds",
    "Seconds that chat requests waited because a summary was being made.",
    bounds=_SUMMARY,
)
LEASE_WAITS = _histogram(
    "steno_lease_wait_seconds",
    "Seconds that requests waited for a compaction that another request, or another replica, was making.",
    bounds=_SUMMARY,
)
THREAD_WAITS = _histogram(
    "steno_thread_wait_seconds",
    "Seconds that long bodies and histories waited for a thread.",
    bounds=_QUEUEING,
)
DATABASE_SECONDS = _histogram(
    "steno_database_call_seconds",
    "Seconds that requests' calls to the database took, with the wait for their turn.",
    bounds=_QUEUEING,
)

# State

DATABASE_UP = _gauge("steno_database_up", "Whether a worker reads the database: 1, or 0.", is_each=True)
DATABASE_WRITABLE = _gauge(
    "steno_database_writable", "Whether a worker can store anything in the database: 1, or 0.", is_each=True
)
RECORDS_WAITING = _gauge(
    "steno_records_waiting",
    "What a worker recorded and could not store yet.",
    {"kind": RECORDED},
    is_each=True,
)
RECORDS_DROPPED = _counter("steno_records_dropped", "What was recorded and never stored.", {"kind": RECORDED})
PAUSED = _gauge("steno_summarisers_paused", "Models that a worker asks for no summaries now.", is_each=True)
IN_FLIGHT = _gauge("steno_in_flight_bytes", "Bytes of the chat requests that are being served.", is_each=True)
CACHE_BYTES = _gauge("steno_cache_bytes", "Bytes that a worker's caches hold.", {"cache": CACHES}, is_each=True)
WORKERS = _gauge("steno_workers", "Workers that are alive.")
RESTARTS = _counter("steno_worker_restarts", "Workers that were started in place of one that ended.")

FAMILIES = (
    *(REQUESTS, REQUEST_SECONDS, FIRST_BYTE, UPSTREAM_FIRST_BYTE, UPSTREAM_ERRORS),
    *(PAYLOADS, PAYLOAD_REASONS, TOKENS, RECALLED, COST, ESTIMATE_RATIO),
    *(COMPACTIONS, COMPACTION_FAILURES, COMPACTION_SECONDS, CHUNKS, SUMMARY_CALLS, VALUES_KEPT),
    *(WAITS, LEASE_WAITS, THREAD_WAITS, DATABASE_SECONDS),
    *(DATABASE_UP, DATABASE_WRITABLE, RECORDS_WAITING, RECORDS_DROPPED),
    *(PAUSED, IN_FLIGHT, CACHE_BYTES, WORKERS, RESTARTS),
)
