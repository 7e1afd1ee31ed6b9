"""Exposition: the table in Prometheus' text format, and what the system knows of each worker's process."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app import __version__
from app.telemetry.families import FAMILIES, Family
from app.telemetry.table import Table


def exposed(table: Table) -> bytes:
    """Return all metrics, to be sent as Prometheus' `CONTENT_TYPE_LATEST`."""
    return generate_latest(_Tables(table))


class _Tables(Collector):
    def __init__(self, table: Table) -> None:
        self._table = table

    def collect(self) -> Iterator[Metric]:
        yield _build_info()
        for family in FAMILIES:
            yield _of_workers(family, self._table) if family.is_each else _metric(family, self._table.sums(family))
        yield from _of_processes(self._table.processes())


def _build_info() -> Metric:
    metric = GaugeMetricFamily("steno_build_info", "Which Steno this is; always 1.", labels=("version", "python"))
    metric.add_metric((__version__, platform.python_version()), 1)
    return metric


def _metric(family: Family, numbers: list[float]) -> Metric:
    if family.kind == "histogram":
        return _histogram(family, numbers)
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.meaning, labels=tuple(family.labels))
    for labels, number in zip(family.series, numbers, strict=True):
        metric.add_metric(labels, number)
    return metric


def _histogram(family: Family, numbers: list[float]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.meaning, labels=tuple(family.labels))
    bounds = [f"{bound:g}" for bound in family.bounds[:-1]] + ["+Inf"]
    for place, labels in enumerate(family.series):
        *counts, total = numbers[place * family.numbers : (place + 1) * family.numbers]
        metric.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
    return metric


def _of_workers(family: Family, table: Table) -> Metric:
    metric = GaugeMetricFamily(family.name, family.meaning, labels=(*family.labels, "worker"))
    for worker, _ in table.processes():
        for labels, number in zip(family.series, table.numbers(family, worker), strict=True):
            metric.add_metric((*labels, str(worker)), number)
    return metric


def _of_processes(processes: Iterable[tuple[int, int]]) -> Iterable[Metric]:
    """Yield the library's own metrics of a process, for each worker. Only Linux has them."""
    metrics: dict[str, Metric] = {}
    for worker, process in processes:
        for found in ProcessCollector(pid=lambda: process, registry=None).collect():  # noqa: B023 - called here
            metric = metrics.setdefault(found.name, Metric(found.name, found.documentation, found.type))
            for sample in found.samples:
                metric.add_sample(sample.name, {**sample.labels, "worker": str(worker)}, sample.value)
    return metrics.values()
