"""Metrics: documented to the last one, and never in a request's way."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from app.compaction.chunks import Outcome
from app.telemetry.metrics import CACHES, ENDS, REPORTED, Metrics, Sampler
from app.tokens.costs import Purpose, Tokens

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def told(metrics: Metrics) -> dict[str, float]:
    return {
        f"{name}{{{labels}}}" if labels else name: float(n)
        for name, labels, n in SAMPLE.findall(metrics.exposed().decode())
    }


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


# The dashboard and the alerts

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "config" / "grafana" / "steno.json").read_text())
ALERTS = ROOT / "config" / "prometheus" / "alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
OF_TARGETS = {"job", "instance"}
"""Labels that Prometheus gives every series."""


def exposed_labels() -> dict[str, dict[str, set[str]]]:
    """Each series' name with the values of its labels."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, labels, _ in SAMPLE.findall(Metrics().exposed().decode()):
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            found[name][label].add(value)
        found[name].update({})
    return {name: dict(labels) for name, labels in found.items()} | {"up": {}}


KNOWN = exposed_labels()
OPEN = {"version", "python"}
"""Labels whose values are the installation's."""


def plain(expression: str) -> str:
    """Without Grafana's variables."""
    return expression.replace("$__rate_interval", "5m").replace("$instance", ".*")


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


TARGETS = [(panel["title"], target) for panel in panels() for target in panel["targets"]]
EXPRESSIONS = [(title, plain(target["expr"])) for title, target in TARGETS] + [
    (rule["alert"], rule["expr"]) for rule in RULES
]


def alternatives(pattern: str) -> set[str]:
    """What it matches: `a|b`, or `a_(b|c)`."""
    before, opened, rest = pattern.partition("(")
    if not opened:
        return set(pattern.split("|"))
    inner, _, after = rest.partition(")")
    return {f"{before}{each}{after}" for each in inner.split("|")}


SELECTOR = re.compile(r"\b((?:steno|process|python)_\w+|up)\b(?:\{([^}]*)\})?(\[)?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_every_expression_asks_for_metrics_labels_and_values_that_there_are(title: str, expression: str) -> None:
    selectors = SELECTOR.findall(expression)
    assert selectors, title
    labels = set(OF_TARGETS)
    for metric, matchers, in_range in selectors:
        assert metric in KNOWN, metric
        assert bool(in_range) == metric.endswith(("_total", "_bucket", "_sum", "_count")), "counters by their growth"
        own = KNOWN[metric]
        labels |= own.keys()
        for label, operator, value in MATCHER.findall(matchers):
            assert label in own.keys() | OF_TARGETS, f"{metric} has no label {label}"
            if label in OF_TARGETS | OPEN:
                continue
            wanted = alternatives(value) if operator in ("=~", "!~") else {value}
            assert wanted <= own[label], f"{metric} is never {label}={value}"
    assert {label for listed in GROUPED.findall(expression) for label in listed.split(", ")} <= labels


def test_every_metric_of_ours_is_on_the_dashboard_or_in_an_alert() -> None:
    shown = {metric for _, expression in EXPRESSIONS for metric, *_ in SELECTOR.findall(expression)}
    shown |= {name for name in KNOWN if name in str(DASHBOARD["templating"])}
    bare = {re.sub("_(bucket|count|sum)$", "", name) for name in KNOWN if name.startswith("steno_")}
    assert bare == {re.sub("_(bucket|count|sum)$", "", name) for name in shown if name.startswith("steno_")}


def headings(page: Path) -> set[str]:
    """As GitHub and the site link to them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_who_how_bad_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"].endswith(".")
    path, _, section = rule["annotations"]["runbook"].partition("#")
    assert section in headings(ROOT / path)
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= OF_TARGETS


def test_there_is_a_section_for_each_alert_and_no_other() -> None:
    alerts = (ROOT / "docs" / "metrics.md").read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (\w+)$", alerts, re.MULTILINE) == [rule["alert"] for rule in RULES]
