"""Result of a run: medians over its rounds, each as a multiple of nginx's, or of LiteLLM's where nginx is missing.

Absolute times differ between machines, and on one machine from run to run; only ratios from one run can be quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from lab.benchmarks.relay.measuring import Run
from lab.benchmarks.relay.scenarios import HOLD, MEMORY
from lab.benchmarks.relay.subjects import DIRECT, TITLES


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a subject."""

    title: str
    scenario: str
    value: Callable[[Run], float]
    added: bool = False
    """True if only the part beyond the direct measurement counts."""
    is_ratio: bool = False
    """True if the number stands for itself, and is not compared."""


def _rate(key: str) -> Callable[[Run], float]:
    return lambda run: float(run[key] / run["seconds"])


def _processor(key: str) -> Callable[[Run], float]:
    return lambda run: float(run["processor_us"] / run[key])


def added(title: str, scenario: str, times: str = "latency", rank: str = "p50") -> Measure:
    return Measure(title, scenario, lambda run: float(run[times][rank]), added=True)


MEASURES = (
    Measure("requests a second, 4 KB, 32 connections", "sat", _rate("answered")),
    Measure("p99 / p50 there", "sat", lambda run: float(run["latency"]["p99"] / run["latency"]["p50"]), is_ratio=True),
    Measure("CPU per request there", "sat", _processor("asked")),
    added("added p50, 4 KB, 1 connection", "c1"),
    added("added p50, 4 KB, 16 connections, paced", "c16"),
    added("added p99 there", "c16", rank="p99"),
    added("added time to first token", "ttft", "first"),
    Measure("CPU per stream chunk, 16 paced streams", "streams", _processor("chunks")),
    Measure("chunks a second, 16 streams", "fast", _rate("chunks")),
    added("added p50, 300 B", "300b"),
    added("added p50, 40 KB", "40k"),
    added("added p50, 400 KB, history seen before", "400k"),
    added("added p50, 4 MB, history seen before", "4m"),
    Measure("CPU per request, 4 MB", "4m", _processor("asked")),
    Measure("memory after start", MEMORY, lambda run: float(run["memory_at_start"])),
    Measure("memory after fifty 4 MB bodies", MEMORY, lambda run: float(run["memory_after"])),
    Measure("memory per open stream", HOLD, lambda run: (run["memory_peak"] - run["memory_before"]) / run["asked"]),
)  # fmt: skip
Figures = Mapping[str, Mapping[str, float]]
"""Figures by a measure's title, then by subject. Those not measured, or less than direct, are absent."""


def figures(results: Mapping[str, Any]) -> Figures:
    started = {name: {"memory_at_start": each["memory_at_start"]} for name, each in results["subjects"].items()}
    runs = [run | started[run["subject"]] for run in results["runs"] if run.get("answered")]
    return {measure.title: dict(_medians(measure, runs)) for measure in MEASURES}


def _medians(measure: Measure, runs: Sequence[Run]) -> Iterator[tuple[str, float]]:
    values: dict[str, list[float]] = {}
    for run in runs:
        if run["scenario"] == measure.scenario:
            values.setdefault(run["subject"], []).append(measure.value(run))
    direct = median(values.get(DIRECT, [0.0])) if measure.added else 0.0
    for subject, found in values.items():
        if (value := median(found) - direct) > 0:
            yield subject, value


def ratio(value: float, base: float) -> str:
    """Write a multiple; less than a tenth is written as a part."""
    times = value / base
    if times < 0.1:
        return f"1/{1 / times:,.0f}"
    return f"{times:,.0f}" if times >= 10 else f"{times:.2f}" if times < 1 else f"{times:.1f}"


def table(found: Figures, base: str, subjects: Sequence[str]) -> list[str]:
    """Markdown: every measure of every subject as a multiple of one's."""
    lines = [
        f"| multiple of {TITLES.get(base, base)}'s | " + " | ".join(TITLES.get(name, name) for name in subjects) + " |",
        "| --- |" + " ---: |" * len(subjects),
    ]
    for measure in MEASURES:
        values = found[measure.title]
        if not values.keys() & set(subjects) or (base not in values and not measure.is_ratio):
            continue
        if measure.is_ratio:
            cells = [f"{values[name]:.1f}" if name in values else "-" for name in subjects]
        else:
            cells = [ratio(values[name], values[base]) if name in values else "-" for name in subjects]
        lines.append(f"| {measure.title} | " + " | ".join(cells) + " |")
    return lines


def noise(results: Mapping[str, Any]) -> float:
    """Share of the time in which the subjects were ready to run and others had their core: median over the runs."""
    shares = [run["waiting_us"] / (1e6 * run["seconds"]) for run in results["runs"] if run.get("seconds")]
    return median(shares) if shares else 0.0


def markdown(results: Mapping[str, Any]) -> str:
    found, subjects = figures(results), [name for name in results["subjects"] if name != DIRECT]
    machine = results["machine"]
    versions = (f"{TITLES.get(name, name)} {results['subjects'][name]['version']}" for name in subjects)
    asked = sum(run["asked"] for run in results["runs"])
    wrong = sum(run["errors"] for run in results["runs"])
    lines = [
        f"{machine['cores']} cores ({machine['processor']}), Python {results['python']}; {', '.join(versions)}.",
        f"Medians of {results['rounds']} rounds, {asked:,} requests, {wrong:,} errors.",
        f"Noise: for {noise(results):.0%} of the time a subject was ready to run while others had its core.",
        *(f"Left out: {TITLES.get(name, name)}, {why.rstrip('.')}." for name, why in results["missing"].items()),
    ]
    if base := next((name for name in ("nginx", "litellm") if name in subjects), None):
        lines += ["", *table(found, base, subjects)]
    return "\n".join(lines)
