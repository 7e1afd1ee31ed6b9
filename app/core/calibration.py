"""Calibration: what a provider counts, learnt as a line over our estimate: reported = offset + ratio x estimate.

The line is the one that misses the latest samples least, relative to their size, and strays least from what is known
of the model's family. docs/calibration.md tells the method and where the numbers come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log, log1p

from app.core.budget import Line

RATIOS = (0.5, 5.0)
OFFSETS = (0.0, 1_500.0)
"""No line leaves these bounds, whatever is reported."""
MEASURED_RATIOS = (0.7, 1.8)
"""All that was ever measured lies between; a ratio outside is told."""
FEWEST_NOTED = 3
"""Samples before anything is told: one or two may lie anywhere."""
MOST_TOKENS = 100_000_000
"""No prompt has more: a larger count is a mistake."""

TOLERANCE = 0.01
SIZES = (1_000, 10_000, 100_000)
"""Estimates at which a line has to differ by more than the tolerance from the one in force to take its place."""

LARGE = 2_000
"""From this estimate on a sample tells of the ratio; a smaller one weighs as much less as it is smaller."""
KEPT = 8
"""Samples kept of each size, large and small: short prompts do not push out what long ones told."""

NOISE = 0.001
"""The relative misfit that all samples together may have without telling against a line."""
OFFSET_SCALE = 2_000
"""An offset so many tokens from the prior's costs as much as a ratio e times the prior's where the weight is 1."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is expected of a model before anything was reported."""

    ratio: float
    offset: float
    """In tokens."""
    weight: float
    """How much has to speak against the ratio before it is left."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request, in tokens: our estimate of its prompt, and what the provider reported."""

    estimate: int
    reported: int


@dataclass(frozen=True)
class Calibration:
    """What is known of one upstream, model and formula, with or without tools."""

    prior: Prior
    recent: tuple[Sample, ...] = ()
    """The latest samples of each size, oldest first."""
    samples: int = 0
    """All there ever were."""
    held: Line | None = None
    """The line that was last adopted."""

    @property
    def line(self) -> Line:
        """The line in force."""
        return self.held or Line(self.prior.offset, self.prior.ratio)

    @property
    def ratio(self) -> float:
        return self.line.ratio

    @property
    def offset(self) -> float:
        return self.line.offset

    def apply(self, tokens: int) -> int:
        """What the provider will count for an estimate of so many tokens."""
        return self.line.reported(tokens)

    def invert(self, tokens: int) -> int:
        """The largest estimate for which the provider will count no more than so many tokens."""
        return self.line.estimate(tokens)

    @property
    def note(self) -> str | None:
        """Why somebody should look at it; None if there is no reason, or too few samples to say."""
        if self.samples < FEWEST_NOTED:
            return None
        if self.ratio in RATIOS or self.offset == OFFSETS[1]:
            return "clamped: the provider counts what no offset up to 1,500 and ratio from 0.5 to 5 explains"
        if not MEASURED_RATIOS[0] <= self.ratio <= MEASURED_RATIOS[1]:
            return "unusual: the ratio is outside 0.7 to 1.8"
        return None


def observe(calibration: Calibration, sample: Sample) -> Calibration:
    """The calibration after one more sample; the same one if the sample is rejected."""
    if rejected(calibration, sample):
        return calibration
    recent = _latest(calibration.recent, sample)
    best = min(_candidates(calibration.prior, recent), key=lambda line: _cost(line, calibration.prior, recent))
    held = best if _matters(best, calibration.line) else calibration.held
    return Calibration(calibration.prior, recent, calibration.samples + 1, held)


def rejected(calibration: Calibration, sample: Sample) -> str | None:
    """Why nothing can be learnt from the sample; None if something can.

    Usage above all expectation is a real measurement, and if it is none, one sample does not move a line that others
    agree on. Less than half is usage without its cached part. Half of the prior, if that is less: a calibration that
    began with a mistake must not refuse what corrects it.
    """
    if not (0 < sample.estimate <= MOST_TOKENS and 0 < sample.reported <= MOST_TOKENS):
        return "no usage"
    prior = calibration.prior.offset + calibration.prior.ratio * sample.estimate
    if sample.reported < 0.5 * min(prior, calibration.apply(sample.estimate)):
        return "below half of what was expected: cached or partial usage"
    return None


def _matters(best: Line, held: Line) -> bool:
    """Whether the line is to move. With every small change of it the same history would be sent otherwise."""
    return any(abs(best.reported(size) - held.reported(size)) > TOLERANCE * held.reported(size) for size in SIZES)


def _latest(recent: Sequence[Sample], sample: Sample) -> tuple[Sample, ...]:
    of_its_size = [kept for kept in recent if (kept.estimate < LARGE) == (sample.estimate < LARGE)]
    if len(of_its_size) < KEPT:
        return (*recent, sample)
    oldest = recent.index(of_its_size[0])
    return (*recent[:oldest], *recent[oldest + 1 :], sample)


def _candidates(prior: Prior, samples: Sequence[Sample]) -> Iterator[Line]:
    """Every line that may be the best one, the prior first.

    The cost is concave between the places where a sample is hit exactly, or ratio or offset is the prior's or a bound,
    so the best line has two of these properties.
    """
    ratios, offsets = (prior.ratio, *RATIOS), (prior.offset, *OFFSETS)
    yield from (Line(offset, ratio) for ratio in ratios for offset in offsets)
    lines = [Line(offset, (s.reported - offset) / s.estimate) for s in samples for offset in offsets]
    lines += [Line(s.reported - ratio * s.estimate, ratio) for s in samples for ratio in ratios]
    lines += [_through(a, b) for a, b in combinations(samples, 2) if a.estimate != b.estimate]
    yield from (line for line in lines if _within(line.ratio, RATIOS) and _within(line.offset, OFFSETS))


def _through(a: Sample, b: Sample) -> Line:
    ratio = (b.reported - a.reported) / (b.estimate - a.estimate)
    return Line(a.reported - ratio * a.estimate, ratio)


def _within(number: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= number <= bounds[1]


def _cost(line: Line, prior: Prior, samples: Sequence[Sample]) -> float:
    """What speaks against a line: the misfit of samples whose noise is not known, and its distance from the prior.

    In the logarithm, samples that agree with each other outvote the prior and samples that contradict each other do
    not.
    """
    weight = misfit = 0.0
    for s in samples:
        own = min(1.0, s.estimate / LARGE)
        weight += own
        misfit += own * min(1.0, abs(s.reported - line.offset - line.ratio * s.estimate) / s.reported)
    away = prior.weight * abs(log(line.ratio / prior.ratio)) + abs(line.offset - prior.offset) / OFFSET_SCALE
    return weight * log1p(misfit / NOISE) + away


KNOWN = 6.0
UNKNOWN = 0.5
"""Weights of priors: a first sample of a known family moves the offset rather than the ratio, up to 12,000 tokens;
of an unknown one up to 1,000."""

# (pattern, ratio, offset without tools, offset with tools) on estimates with o200k_base; the first match wins.
_FAMILIES = tuple(
    (re.compile(pattern), ratio, text, tools)
    for pattern, ratio, text, tools in (
        (r"gpt-oss", 1.00, 60, 76),
        (r"(^|[.:])(chatgpt|gpt|codex|o\d)", 1.00, 0, 0),
        (r"gemini", 1.00, 0, 0),
        (r"deepseek", 1.02, 0, 330),  # before llama: deepseek-r1-distill-llama-70b
        (r"llama-?guard", 0.99, 190, 190),
        (r"llama-?4", 1.05, 0, 660),
        (r"llama-?3", 1.08, 20, 110),
        (r"qwen|qwq", 1.01, 0, 120),
        (r"(mi|mini|magi|code|dev)stral|pixtral", 1.17, 0, 20),
        (r"glm", 1.10, 0, 120),
        (r"kimi", 1.10, 0, 10),
        (r"palmyra", 1.00, 25, 130),
    )
)
_CLAUDE_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?:[.-](\d{1,2}))?(?!\d)")


def prior_of(model: str, tools: bool) -> Prior:
    """What was measured of the model's family, by the name after the last slash; else a guess."""
    name = model.rsplit("/", 1)[-1].lower()
    if "claude" in name:
        if _claude_version(name) < (4, 7):
            return Prior(1.12, 490 if tools else 0, KNOWN)
        return Prior(1.40, 450 if tools else 5, KNOWN)
    for pattern, ratio, text, with_tools in _FAMILIES:
        if pattern.search(name):
            return Prior(ratio, with_tools if tools else text, KNOWN)
    return Prior(1.15, 100 if tools else 0, UNKNOWN)


def _claude_version(name: str) -> tuple[int, int]:
    """`claude-sonnet-4.5`, `claude-4.6-sonnet` and `claude-3-5-sonnet-20241022-v2:0` alike; without one the newest."""
    found = _CLAUDE_VERSION.search(name)
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)
