"""Exposition: the table in Prometheus' text format, and what the system says of each worker's process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.metrics.families import FAMILIES, Family
from app.metrics.table import Table

__all__ = ["CONTENT_TYPE_LATEST", "exposed"]


def exposed(table: Table) -> bytes:
    """All metrics, to be sent as `CONTENT_TYPE_LATEST`."""
    return generate_latest(_Tables(table))


class _Tables(Collector):
    def __init__(self, table: Table) -> None:
        self._table = table

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            yield _metric(family, self._table.sums(family))
        yield from _of_processes(self._table.processes())


def _metric(family: Family, numbers: list[float]) -> Metric:
    if family.kind == "histogram":
        *counts, total = numbers
        bounds = [f"{bound:g}" for bound in family.bounds[:-1]] + ["+Inf"]
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        return HistogramMetricFamily(family.name, family.meaning, buckets=buckets, sum_value=total)
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.meaning, labels=tuple(family.labels))
    for labels, number in zip(family.series, numbers, strict=True):
        metric.add_metric(labels, number)
    return metric


def _of_processes(processes: Iterable[tuple[int, int]]) -> Iterable[Metric]:
    """The library's own metrics of a process, for each worker. Only Linux tells them."""
    metrics: dict[str, Metric] = {}
    for worker, process in processes:
        for found in ProcessCollector(pid=lambda: process, registry=None).collect():  # noqa: B023 - called here
            metric = metrics.setdefault(found.name, Metric(found.name, found.documentation, found.type))
            for sample in found.samples:
                metric.add_sample(sample.name, {**sample.labels, "worker": str(worker)}, sample.value)
    return metrics.values()
