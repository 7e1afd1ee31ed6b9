"""Sampling: the state of a worker, looked up now and then and not on any request's path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

from app.metrics.families import Family
from app.metrics.metrics import Metrics

SAMPLE_SECONDS = 5.0
"""Seconds between two samples: whichever worker Prometheus asks, the others' numbers are no older."""

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
