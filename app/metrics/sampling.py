"""Sampling: what a worker is like at a moment, looked up now and then and not on any request's path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

from app.metrics.families import Family
from app.metrics.metrics import Metrics

SAMPLE_SECONDS = 5.0
"""Whichever worker Prometheus asks, the others' numbers are no older than that."""

Gauges = Mapping[tuple[Family, tuple[str, ...]], Callable[[], float]]
"""Where each number is found, by its family and labels. That of a counter is the worker's own, which begins at 0."""


class Sampler:
    def __init__(self, metrics: Metrics, gauges: Gauges) -> None:
        self._metrics = metrics
        self._gauges = gauges
        self._counted: dict[tuple[Family, tuple[str, ...]], float] = {}
        """What counters had come to when they were last looked at."""

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
