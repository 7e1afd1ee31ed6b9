"""Metrics in Prometheus' format, of one process or summed over all workers.

Every series exists from the start, so that rates are right from the first event on and no client can add series. If
`PROMETHEUS_MULTIPROC_DIR` is set before this module is imported (always for workers), each process writes its metrics
to files in that folder. The worker that answers a scrape adds up all files, including files of dead workers.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NoReturn, TypeVar, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from app import __version__
from app.compaction.chunks import Outcome
from app.conversation.reasons import Code, Reasons
from app.errors import UpstreamDisconnected, UpstreamTimedOut, UpstreamUnreachable, UpstreamUnreadable
from app.tokens.costs import Purpose, Tokens

disable_created_metrics()  # type: ignore[no-untyped-call]

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder in which the workers write their metrics."""
ESTIMATED, FORWARDED, SAVED = "estimated", "forwarded", "saved"
"""Kinds of tokens that Steno estimates: of the client's request, of the payload sent to the provider, and the
difference."""
REPORTED = ("prompt", "completion", "cached", "reasoning", "written")
"""Kinds of tokens that providers report."""
TOKENS = (*REPORTED, ESTIMATED, FORWARDED, SAVED)
OTHER_4XX, OTHER_5XX = "4xx", "5xx"
ANSWERED = "answered"
RECORDED = ("requests", "usage", "histories")
CACHES = ("histories", "bodies", "recall", "tokens", "heads", "summaries")
ENDS = (Outcome.MADE, Outcome.FAILED, Outcome.LEASE_LOST, Outcome.DELETED, Outcome.STORE_AWAY)
"""Outcomes of a started compaction. The other outcomes describe requests."""
_ROUTES = ("chat", "passthrough", "own", "refused")
_CONTEXT_STATUSES = ("full", "summarized", "trimmed", "bypassed")
_STATUSES = ("400", "401", "403", "404", "408", "409", "413", "422", "429", "500", "502", "503", "504", "529")
_ERRORS = tuple(each.code for each in (UpstreamUnreachable, UpstreamTimedOut, UpstreamDisconnected, UpstreamUnreadable))
_REASONS = tuple(map(str, Code))
_OF_SUMMARISERS = tuple(reason for reason in _REASONS if reason.startswith("summariser_"))
_PURPOSES = get_args(Purpose)
_SUMMARISING: tuple[Purpose, ...] = ("summary", "background")

_QUEUEING = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_ANSWERING = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_SUMMARY = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_RATIOS = (0.5, 0.75, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0)

M = TypeVar("M", Counter, Gauge, Histogram)


def _series(metric: M, *values: Iterable[str]) -> Mapping[Any, M]:
    """Make all series of a metric. Return them by label value, or by tuple of values if there are several labels."""
    made = {labels: metric.labels(*labels) for labels in product(*values)}
    return made if len(values) > 1 else {label: series for (label,), series in made.items()}


class Metrics:
    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._all = registry
        if FOLDER in os.environ:
            self._all = CollectorRegistry()
            MultiProcessCollector(self._all)  # type: ignore[no-untyped-call]
        else:
            ProcessCollector(registry=registry)

        def counters(name: str, meaning: str, **labels: Iterable[str]) -> Mapping[Any, Counter]:
            return _series(Counter(name, meaning, [*labels], registry=registry), *labels.values())

        def histogram(name: str, meaning: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(name, meaning, buckets=bounds, registry=registry)

        def histograms(
            name: str, meaning: str, bounds: Sequence[float], **labels: Iterable[str]
        ) -> Mapping[Any, Histogram]:
            return _series(Histogram(name, meaning, [*labels], buckets=bounds, registry=registry), *labels.values())

        def gauge(name: str, meaning: str, of_workers: Literal["livesum", "livemin", "livemax"], *labels: str) -> Gauge:
            return Gauge(name, meaning, labels, registry=registry, multiprocess_mode=of_workers)

        build = gauge("steno_build_info", "Which Steno this is; always 1.", "livemax", "version", "python")
        build.labels(__version__, platform.python_version()).set(1)

        # Requests

        self._requests = counters(
            "steno_requests",
            "Requests that were answered, by what became of them and the status' class.",
            route=_ROUTES,
            status=("1xx", "2xx", "3xx", "4xx", "5xx"),
        )
        self.request_seconds = histograms(
            "steno_request_duration_seconds",
            "Seconds from a request's head to the end of its answer.",
            _ANSWERING,
            route=_ROUTES,
        )
        self._first_byte = histograms(
            "steno_request_first_byte_seconds",
            "Seconds from a request's head to the first byte of its answer, the provider's time included.",
            _ANSWERING,
            route=_ROUTES,
        )
        self.upstream_first_byte = histogram(
            "steno_upstream_first_byte_seconds",
            "Seconds from sending a client's request to the provider to the first byte of its answer.",
            _ANSWERING,
        )
        self._upstream_errors = counters(
            "steno_upstream_errors",
            "Client requests that a provider refused, did not answer, or answered in part.",
            code=(*_STATUSES, OTHER_4XX, OTHER_5XX, *_ERRORS),
        )

        # Changes of the context

        self.payloads = counters(
            "steno_payloads",
            "Chat payloads that were made for a provider, by what was done to the context.",
            context_status=_CONTEXT_STATUSES,
        )
        self._payload_reasons = counters(
            "steno_payload_reasons",
            "Chat payloads for which something due was not done, by the first reason.",
            reason=_REASONS,
        )
        self._tokens = counters(
            "steno_tokens",
            "Tokens of answered calls, as providers reported them, and by Steno's estimate.",
            purpose=_PURPOSES,
            kind=TOKENS,
        )
        self.recalled_tokens = Counter(
            "steno_recalled_tokens", "Tokens of messages that were quoted back into payloads.", registry=registry
        )
        self._cost = counters("steno_cost", "Cost of answered calls in the currency of the prices.", purpose=_PURPOSES)
        self._estimate_ratio = histogram(
            "steno_estimate_ratio",
            "Prompt tokens that the provider reported, divided by Steno's estimate of them.",
            _RATIOS,
        )

        # Compactions

        self._compactions = counters(
            "steno_compactions",
            "Compactions that ended, by what came of them and whether a request needed them.",
            outcome=[outcome.name.lower() for outcome in ENDS],
            purpose=_SUMMARISING,
        )
        self._compaction_failures = counters(
            "steno_compaction_failures",
            "Compactions that ended without all that was planned, by the first reason.",
            reason=_REASONS,
        )
        self._compaction_seconds = histograms(
            "steno_compaction_duration_seconds",
            "Seconds that compactions took, whatever came of them.",
            _SUMMARY,
            purpose=_SUMMARISING,
        )
        self.chunks = counters(
            "steno_chunks",
            "Summaries that were made, and those made earlier that a payload used again.",
            result=("new", "reused"),
        )
        self._summary_calls = counters(
            "steno_summary_calls",
            "Summaries that summarisers were asked for, by what came of it.",
            result=(ANSWERED, *_OF_SUMMARISERS),
        )
        self.values_kept = histogram(
            "steno_summary_values_kept",
            "Share of the exact values of its messages that a summary's own text holds.",
            (0.25, 0.5, 0.75, 0.9, 1.0),
        )

        # Waits

        self.waits = histogram(
            "steno_summary_wait_seconds",
            "Seconds that chat requests waited because a summary was being made.",
            _SUMMARY,
        )
        self.lease_waits = histogram(
            "steno_lease_wait_seconds",
            "Seconds that requests waited for a compaction that another request, or another replica, was making.",
            _SUMMARY,
        )
        self.thread_waits = histogram(
            "steno_thread_wait_seconds",
            "Seconds that long bodies and histories waited for a thread.",
            _QUEUEING,
        )
        self.database_seconds = histogram(
            "steno_database_call_seconds",
            "Seconds that requests' calls to the database took, with the wait for their turn.",
            _QUEUEING,
        )

        # State

        self.database_up = gauge("steno_database_up", "Whether every worker reads the database: 1, or 0.", "livemin")
        self.database_writable = gauge(
            "steno_database_writable", "Whether every worker can store something in the database: 1, or 0.", "livemin"
        )
        waiting = gauge("steno_records_waiting", "What was recorded and could not be stored yet.", "livesum", "kind")
        self.records_waiting = _series(waiting, RECORDED)
        self.records_dropped = counters("steno_records_dropped", "What was recorded and never stored.", kind=RECORDED)
        self.paused = gauge(
            "steno_summarisers_paused", "Models that a worker asks for no summaries now, at most.", "livemax"
        )
        self.in_flight = gauge("steno_in_flight_bytes", "Bytes of the chat requests that are being served.", "livesum")
        cache_bytes = gauge("steno_cache_bytes", "Bytes that caches hold.", "livesum", "cache")
        self.cache_bytes = _series(cache_bytes, CACHES)

    def exposed(self) -> bytes:
        """Return all metrics in the format of `CONTENT_TYPE_LATEST`."""
        return generate_latest(self._all)

    def begun(self, route: str, status: int, seconds: float) -> None:
        # A provider may answer with 999.
        self._requests[route, f"{min(max(status // 100, 1), 5)}xx"].inc()
        self._first_byte[route].observe(seconds)

    def not_done(self, why: Reasons) -> None:
        self._payload_reasons[str(why[0].code)].inc()

    def called(
        self,
        purpose: Purpose,
        tokens: Tokens,
        saved: int,
        estimated: int | None = None,
        forwarded: int | None = None,
        cost: float | None = None,
    ) -> None:
        reported = tokens.prompt, tokens.completion, tokens.cached, tokens.reasoning, tokens.written
        for kind, number in zip(TOKENS, (*reported, estimated, forwarded, saved), strict=True):
            if number and number > 0:  # A counter cannot go down.
                self._tokens[purpose, kind].inc(number)
        if cost:
            self._cost[purpose].inc(cost)
        if tokens.prompt and forwarded:
            self._estimate_ratio.observe(tokens.prompt / forwarded)

    def compacted(self, purpose: Purpose, outcome: Outcome, why: Reasons, chunks: int, seconds: float) -> None:
        of_work: Purpose = "background" if purpose == "background" else "summary"
        end = outcome if outcome in ENDS else Outcome.FAILED
        self._compactions[end.name.lower(), of_work].inc()
        self.chunks["new"].inc(chunks)
        if outcome is not Outcome.MADE and why:
            self._compaction_failures[str(why[0].code)].inc()
        self._compaction_seconds[of_work].observe(seconds)

    def summary_called(self, why: Reasons = ()) -> None:
        """Count a call of a summariser. `why`: reasons for a missing answer."""
        result = str(why[0].code) if why else ANSWERED
        if (counted := self._summary_calls.get(result)) is not None:
            counted.inc()

    def upstream_error(self, code: str | int) -> None:
        """Count a status of 400 or more, or an error code of Steno for an unreachable provider."""
        counted = self._upstream_errors.get(str(code))
        if counted is None:
            counted = self._upstream_errors[OTHER_4XX if str(code).startswith("4") else OTHER_5XX]
        counted.inc()


SAMPLE_SECONDS = 5.0


class Sampler:
    """Reads values from functions every five seconds. Sets gauges, and increases counters by the values' growth."""

    def __init__(
        self, gauges: Mapping[Gauge, Callable[[], float]], counters: Mapping[Counter, Callable[[], float]]
    ) -> None:
        self._gauges = gauges
        self._counters = counters
        self._counted = dict.fromkeys(counters, 0.0)

    def sample(self) -> None:
        for gauge, value in self._gauges.items():
            gauge.set(value())
        for counter, value in self._counters.items():
            number = value()
            counter.inc(number - self._counted[counter])
            self._counted[counter] = number

    async def run(self) -> NoReturn:
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_SECONDS)
