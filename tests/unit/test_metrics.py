"""Metrics: documented to the last one, and never in a request's way."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from app.compaction.chunks import Outcome
from app.proxy.exchange import RequestRecord
from app.runtime.bounded import LogThrottle
from app.telemetry.metrics import CACHES, ENDS, REPORTED, Metrics, Sampler
from app.tokens.usage import Purpose, Tokens

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def told(metrics: Metrics) -> dict[str, float]:
    return {
        f"{name}{{{labels}}}" if labels else name: float(n)
        for name, labels, n in SAMPLE.findall(metrics.exposed().decode())
    }


def test_a_request_that_nobody_answered_has_no_end() -> None:
    metrics = Metrics()
    record = RequestRecord("req", "GET", "/", LogThrottle(), metrics)
    for answers in (False, True):
        if answers:
            record.begins(200)
        before = _of_requests(metrics)
        record.ends()
        assert (_of_requests(metrics) != before) == answers


def _of_requests(metrics: Metrics) -> list[bytes]:
    """Lines about requests: those about the process change by themselves."""
    return [line for line in metrics.exposed().splitlines() if line.startswith(b"steno_request")]


def test_each_metric_is_documented_with_its_labels_and_no_other_is() -> None:
    described = {
        name: frozenset(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(\w+)` \|(.*?)\|", PAGE, re.MULTILINE)
    }
    found: dict[str, frozenset[str]] = {}
    for name, labels, _ in SAMPLE.findall(Metrics().exposed().decode()):
        found[re.sub("_(bucket|count|sum)$", "", name)] = frozenset(re.findall(r"(\w+)=", labels)) - {"le"}
    assert described == found


def test_what_a_label_may_say_is_known_before_anything_is_counted() -> None:
    """So rates are right from the first event on, and no client can make up series."""
    before = told(Metrics())
    metrics = Metrics()
    for status in range(100, 1_000):
        metrics.begun("chat", status, 0.01)
        metrics.upstream_error(status)
    metrics.upstream_error("upstream_timeout")
    after = told(metrics)
    assert after.keys() == before.keys()
    assert after['steno_upstream_errors_total{code="429"}'] == 1
    assert after['steno_upstream_errors_total{code="4xx"}'] == 100 - 9
    assert after['steno_upstream_errors_total{code="upstream_timeout"}'] == 1
    assert after['steno_requests_total{route="chat",status="2xx"}'] == 100
    assert after['steno_requests_total{route="chat",status="5xx"}'] == 500


def test_every_kind_of_tokens_and_every_purpose_is_counted() -> None:
    metrics, kinds = Metrics(), REPORTED
    for purpose in get_args(Purpose):
        metrics.called(purpose, Tokens(**dict.fromkeys(kinds, 5)), 5, estimated=5, forwarded=5)
    counted = {series: n for series, n in told(metrics).items() if series.startswith("steno_tokens_total")}
    assert set(counted.values()) == {5}
    assert len(counted) == len(get_args(Purpose)) * (len(kinds) + 3)


def test_every_outcome_of_a_compaction_and_every_status_of_a_payload_is_counted() -> None:
    metrics = Metrics()
    for outcome in ENDS:
        metrics.compacted("summary", outcome, (), 0, 1.0)
        metrics.compacted("background", outcome, (), 0, 1.0)
    for status in ("full", "summarized", "trimmed", "bypassed"):
        metrics.payloads[status].inc()
    numbers = {series: n for series, n in told(metrics).items() if re.match("steno_(compactions|payloads)", series)}
    assert set(numbers.values()) == {1}


def test_an_outcome_that_no_compaction_ends_with_counts_as_a_failure_and_fails_nothing() -> None:
    metrics = Metrics()
    metrics.compacted("message", Outcome.AWAITED, (), 0, 1.0)
    assert told(metrics)['steno_compactions_total{outcome="failed",purpose="summary"}'] == 1


def test_gauges_have_the_latest_value_and_counters_the_growth_since_the_last_look() -> None:
    metrics, paused, dropped = Metrics(), ["a", "b"], [3]
    sampler = Sampler({metrics.paused: paused.__len__}, {metrics.records_dropped["usage"]: lambda: dropped[0]})
    sampler.sample()
    paused.pop()
    dropped[0] = 5
    sampler.sample()
    numbers = told(metrics)
    assert numbers["steno_summarisers_paused"] == 1
    assert numbers['steno_records_dropped_total{kind="usage"}'] == 5
    assert {series for series in numbers if series.startswith("steno_cache_bytes")} == {
        f'steno_cache_bytes{{cache="{cache}"}}' for cache in CACHES
    }


def test_names_follow_the_conventions_of_prometheus() -> None:
    meanings = re.findall(r"^# HELP (steno_\w+) (.*)$", Metrics().exposed().decode(), re.MULTILINE)
    for name, meaning in meanings:
        assert re.fullmatch("steno_[a-z_]+", name)
        assert not name.endswith(("_count", "_sum"))
        assert meaning.endswith(".")
    assert len(meanings) > 25
