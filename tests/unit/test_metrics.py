"""Metrics: documented to the last one, added up over all processes, and never in a request's way."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import get_args

import pytest

from app.core.reasons import Code, because
from app.core.summary.flow import Outcome
from app.core.tokens.usage import Purpose, Tokens
from app.proxy.record import RequestRecord
from app.runtime.repeats import Repeats
from app.telemetry.exposition import exposed
from app.telemetry.families import ANSWERED, CACHES, ENDS, FAMILIES, PAUSED, REPORTED, REQUEST_SECONDS, TOKENS, WAITS
from app.telemetry.metrics import Metrics, Sampler, SupervisorMetrics
from app.telemetry.table import Table

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def told(table: Table) -> dict[str, float]:
    return {
        f"{name}{{{labels}}}" if labels else name: float(n)
        for name, labels, n in SAMPLE.findall(exposed(table).decode())
    }


def test_a_request_that_nobody_answered_has_no_end() -> None:
    metrics = Metrics.of_one()
    record = RequestRecord("req", "GET", "/", Repeats(), metrics)
    for answers in (False, True):
        if answers:
            record.begins(200)
        before = _of_requests(metrics)
        record.ends()
        assert (_of_requests(metrics) != before) == answers


def _of_requests(metrics: Metrics) -> list[bytes]:
    """Lines about requests: those about the process change by themselves."""
    return [line for line in exposed(metrics.table).splitlines() if line.startswith(b"steno_request")]


def test_each_metric_is_documented_with_its_labels_and_no_other_is() -> None:
    described = {
        name: frozenset(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(\w+)` \|(.*?)\|", PAGE, re.MULTILINE)
    }
    found: dict[str, frozenset[str]] = {}
    for name, labels, _ in SAMPLE.findall(exposed(Metrics.of_one().table).decode()):
        found[re.sub("_(bucket|count|sum)$", "", name)] = frozenset(re.findall(r"(\w+)=", labels)) - {"le"}
    assert described == found


def test_what_a_label_may_say_is_known_before_anything_is_counted() -> None:
    """So rates are right from the first event on, and no client can make up series."""
    before = told(Metrics.of_one().table)
    metrics = Metrics.of_one()
    for status in range(100, 1_000):
        metrics.begun("chat", status, 0.01)
        metrics.upstream_error(status)
    metrics.upstream_error("upstream_timeout")
    after = told(metrics.table)
    assert after.keys() == before.keys()
    assert after['steno_upstream_errors_total{code="429"}'] == 1
    assert after['steno_upstream_errors_total{code="4xx"}'] == 100 - 9
    assert after['steno_upstream_errors_total{code="upstream_timeout"}'] == 1
    assert after['steno_requests_total{route="chat",status="2xx"}'] == 100
    assert after['steno_requests_total{route="chat",status="5xx"}'] == 500


def test_numbers_of_all_rows_are_added_up_and_a_row_that_is_taken_over_goes_on() -> None:
    table = Table.of_many(3)
    for row in (0, 2, 2):
        Metrics(table, row).called("message", Tokens(prompt=100, completion=7, cached=None), saved=11)
    sums = told(table)
    assert sums['steno_tokens_total{kind="prompt",purpose="message"}'] == 300
    assert sums['steno_tokens_total{kind="completion",purpose="message"}'] == 21
    assert sums['steno_tokens_total{kind="saved",purpose="message"}'] == 33
    assert sums['steno_tokens_total{kind="cached",purpose="message"}'] == 0
    assert sums['steno_tokens_total{kind="prompt",purpose="summary"}'] == 0


def test_every_kind_of_tokens_and_every_purpose_is_counted() -> None:
    metrics, kinds = Metrics.of_one(), REPORTED
    for purpose in get_args(Purpose):
        metrics.called(purpose, Tokens(**dict.fromkeys(kinds, 5)), 5, estimated=5, forwarded=5)
    counted = {series: n for series, n in told(metrics.table).items() if series.startswith(f"{TOKENS.name}_total")}
    assert set(counted.values()) == {5}
    assert len(counted) == len(get_args(Purpose)) * (len(kinds) + 3)


def test_every_outcome_of_a_compaction_and_every_status_of_a_payload_is_counted() -> None:
    metrics = Metrics.of_one()
    for outcome in ENDS:
        metrics.compacted("summary", outcome, (), 0, 1.0)
        metrics.compacted("background", outcome, (), 0, 1.0)
    for status in ("full", "summarized", "trimmed", "bypassed"):
        metrics.payload(status)
    numbers = {
        series: n for series, n in told(metrics.table).items() if re.match("steno_(compactions|payloads)", series)
    }
    assert set(numbers.values()) == {1}


def test_a_compaction_that_failed_is_counted_by_its_first_reason_and_its_chunks_as_new() -> None:
    metrics = Metrics.of_one()
    why = (*because(Code.SUMMARISER_STATUS, "500"), *because(Code.SUMMARISER_PAUSED))
    metrics.compacted("background", Outcome.FAILED, why, 2, 12.5)
    metrics.compacted("summary", Outcome.MADE, (), 1, 0.5)
    metrics.reused(4)
    numbers = told(metrics.table)
    assert numbers['steno_compaction_failures_total{reason="summariser_status"}'] == 1
    assert numbers['steno_compaction_failures_total{reason="summariser_paused"}'] == 0
    assert numbers['steno_compaction_duration_seconds_sum{purpose="background"}'] == 12.5
    assert numbers['steno_compaction_duration_seconds_count{purpose="summary"}'] == 1
    assert (numbers['steno_chunks_total{result="new"}'], numbers['steno_chunks_total{result="reused"}']) == (3, 4)


def test_an_outcome_that_no_compaction_ends_with_counts_as_a_failure_and_fails_nothing() -> None:
    metrics = Metrics.of_one()
    metrics.compacted("message", Outcome.AWAITED, (), 0, 1.0)
    assert told(metrics.table)['steno_compactions_total{outcome="failed",purpose="summary"}'] == 1


def test_a_summary_call_is_counted_as_answered_or_by_why_it_was_not() -> None:
    metrics = Metrics.of_one()
    metrics.summary_called()
    metrics.summary_called(because(Code.SUMMARISER_UPSTREAM_TIMEOUT))
    metrics.summary_called(because(Code.SUMMARY_EMPTY))  # Not the call's failure.
    numbers = {series: n for series, n in told(metrics.table).items() if series.startswith("steno_summary_calls") and n}
    assert numbers == {
        f'steno_summary_calls_total{{result="{ANSWERED}"}}': 1,
        'steno_summary_calls_total{result="summariser_upstream_timeout"}': 1,
    }


def test_an_estimate_is_compared_with_what_the_provider_reported() -> None:
    metrics = Metrics.of_one()
    metrics.called("message", Tokens(prompt=110), 0, estimated=100, forwarded=100, cost=0.25)
    metrics.called("message", Tokens(), 0, estimated=100, forwarded=100)  # Nothing was reported.
    numbers = told(metrics.table)
    assert numbers['steno_estimate_ratio_bucket{le="1.1"}'] == 1
    assert numbers['steno_estimate_ratio_bucket{le="1.05"}'] == 0
    assert numbers["steno_estimate_ratio_count"] == 1
    assert numbers['steno_cost_total{purpose="message"}'] == 0.25


def test_durations_are_told_apart_by_route() -> None:
    metrics = Metrics.of_one()
    metrics.ended("chat", 0.02)
    metrics.ended("own", 3.0)
    numbers = told(metrics.table)
    assert numbers[f'{REQUEST_SECONDS.name}_bucket{{le="0.025",route="chat"}}'] == 1
    assert numbers[f'{REQUEST_SECONDS.name}_bucket{{le="2.5",route="own"}}'] == 0
    assert numbers[f'{REQUEST_SECONDS.name}_sum{{route="own"}}'] == 3.0
    assert numbers[f'{REQUEST_SECONDS.name}_count{{route="passthrough"}}'] == 0


def test_the_state_of_each_worker_is_its_own_series_and_goes_with_its_process() -> None:
    table = Table.of_many(2)
    for row, models in enumerate(("a", "bc")):
        Sampler(Metrics(table, row), {(PAUSED, ()): models.__len__}).sample()
    assert told(table)['steno_summarisers_paused{worker="1"}'] == 2
    SupervisorMetrics(table, 2).ended(1)
    numbers = told(table)
    assert numbers['steno_summarisers_paused{worker="0"}'] == 1
    assert 'steno_summarisers_paused{worker="1"}' not in numbers
    assert {series for series in numbers if series.startswith("steno_cache_bytes")} == {
        f'steno_cache_bytes{{cache="{cache}",worker="0"}}' for cache in CACHES
    }


@pytest.mark.parametrize(("seconds", "bound"), [(0.2, "1"), (1.0, "1"), (1.1, "2.5"), (160.0, "160"), (161.0, "+Inf")])
def test_a_wait_counts_in_its_bucket_and_in_all_above(seconds: float, bound: str) -> None:
    metrics = Metrics.of_one()
    metrics.observe(WAITS, seconds)
    numbers = told(metrics.table)
    buckets = {series: n for series, n in numbers.items() if series.startswith(f"{WAITS.name}_bucket")}
    first = list(buckets).index(f'{WAITS.name}_bucket{{le="{bound}"}}')
    assert list(buckets.values()) == [0] * first + [1] * (len(WAITS.bounds) - first)
    assert (numbers[f"{WAITS.name}_sum"], numbers[f"{WAITS.name}_count"]) == (seconds, 1)


def test_the_supervisor_tells_how_many_workers_there_are_and_which_processes_are_gone() -> None:
    table = Table.of_many(2)
    supervisor = SupervisorMetrics(table, 2)
    for row in (0, 1):
        Metrics(table, row)
    supervisor.alive(2)
    supervisor.restarted()
    assert list(table.processes()) == [(0, os.getpid()), (1, os.getpid())]
    supervisor.ended(0)
    assert list(table.processes()) == [(1, os.getpid())]
    numbers = told(table)
    assert (numbers["steno_workers"], numbers["steno_worker_restarts_total"]) == (2, 1)


def test_a_process_that_serves_alone_is_one_worker() -> None:
    assert told(Metrics.of_one().table)["steno_workers"] == 1


def test_names_follow_the_conventions_of_prometheus() -> None:
    for family in FAMILIES:
        assert re.fullmatch("steno_[a-z_]+", family.name)
        assert not family.name.endswith(("_total", "_count", "_sum"))
        assert family.meaning.endswith(".")
