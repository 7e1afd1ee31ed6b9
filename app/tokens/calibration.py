"""Calibration: learn the provider's token count as a line over the estimate: reported = offset + ratio x estimate.

The best line has a small relative error for the latest samples, and is near the line assumed for the model's family.
Method and sources: docs/estimates.md#calibration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import exp, inf, log, log1p

from msgspec import Struct
from msgspec.structs import replace

from app.tokens.costs import MOST_TOKENS
from app.tokens.counting_rules import LONGEST_MODEL, WHOLE

FEWEST_NOTED = 3
"""Minimum number of samples for `Calibration.note`, because one or two samples may be arbitrary."""
TOLERANCE = 0.01
SIZES = (1_000, 10_000, 100_000)
"""A new line replaces the old line only if they differ by more than `TOLERANCE` at one of these estimates."""

KEPT = 8
"""Maximum number of samples, for large and for small prompts separately. A small prompt never displaces a large one."""
NOISE = 0.001
"""A line's cost grows with `log1p(error / NOISE)`. `error`: sum of the line's relative errors (see `_best`)."""
OFFSET_SCALE = 2_000
"""A line's cost grows by 1 for each `OFFSET_SCALE` tokens between its offset and the prior's offset (see `_best`)."""
EXP_ENDS = 700.0
"""Largest argument of `exp`, which overflows above 709."""

CAUTION = 1.5
"""Weight of the error of a sample above the line. A line that is too low may let a request exceed the window. A line
that is too high only starts compaction a little early."""
CONFIRMED = 3
"""Number of samples that must agree with a line before Steno accepts a ratio below the prior's ratio."""
CONFIRMING = 1.0
"""Minimum total weight of the agreeing samples, so that a few very small prompts never lower the ratio."""
AGREEING = 0.1
"""Largest relative error of a sample that agrees with a line."""

EXACT = 0.01
EXACT_TOKENS = 5
EXACT_SAMPLES = 3
"""Number of latest samples that an exact line predicts to within `EXACT` (a share of the count) or `EXACT_TOKENS`."""
CLEAR = 0.1
"""Maximum uncertainty of the text's count, as a share of the pictures' estimated tokens (see `tolerance_of`). If the
uncertainty is larger, Steno does not learn the cost of pictures from the request."""
SCALE_STEP = 0.05
"""Step between picture scales, as a natural logarithm. It is coarse, because Steno recounts prompts at a new scale."""


class LineBounds(Struct, frozen=True):
    ratios: tuple[float, float]
    offsets: tuple[float, float]
    measured: tuple[float, float]
    """Range of usual ratios. `Calibration.note` reports any other ratio."""
    large: int
    """Smallest estimate of a sample with full weight."""
    least: float
    """Steno rejects a sample whose reported count is below this share of the expected count."""
    confirmed_above: bool = False
    """Whether samples must also confirm a ratio above the prior's ratio, not only a ratio below it."""


PROMPTS = LineBounds((0.5, 5.0), (0.0, 1_500.0), (0.7, 1.8), large=2_000, least=0.5)
PICTURES = LineBounds((1 / 16, 16.0), (0.0, 0.0), (1 / 16, 16.0), large=100, least=0.0, confirmed_above=True)
"""Bounds of the learnt factor for the picture tokens of a family."""


class Line(Struct, frozen=True):
    """Line that maps an estimate to the provider's count."""

    offset: float = 0.0
    ratio: float = 1.0

    def to_provider_tokens(self, estimate: float) -> int:
        return round(self.offset + self.ratio * estimate)

    def to_estimate(self, reported: float) -> int:
        """Return the largest estimate that the provider counts as at most `reported` tokens."""
        return max(0, int((reported - self.offset) / self.ratio))


ONE_TO_ONE = Line()


class Prior(Struct, frozen=True):
    """Line assumed for a model before the first sample."""

    ratio: float
    offset: float
    weight: float
    """Factor of `abs(log(r / ratio))` in the cost of a line with ratio `r`."""
    bounds: LineBounds = PROMPTS


class Sample(Struct, frozen=True):
    """Token counts of one answered request's prompt."""

    estimate: int
    reported: int


class Calibration(Struct, frozen=True, dict=True):
    """Line of one tenant, upstream, model and formula. Requests with tools have a line of their own."""

    prior: Prior
    recent: tuple[Sample, ...] = ()
    """Latest samples of large and of small prompts, oldest first: see `KEPT`."""
    samples: int = 0
    """Number of all accepted samples."""
    adopted: Line | None = None

    @property
    def line(self) -> Line:
        return self.adopted or Line(self.prior.offset, self.prior.ratio)

    @property
    def exact(self) -> bool:
        """Whether the line predicts the latest samples to within about 1 %."""
        latest = self.recent[-EXACT_SAMPLES:]
        return len(latest) == EXACT_SAMPLES and all(
            abs(self.line.to_provider_tokens(sample.estimate) - sample.reported) <= tolerance_of(sample.reported)
            for sample in latest
        )

    @property
    def note(self) -> str | None:
        if self.samples < FEWEST_NOTED:
            return None
        bounds = self.prior.bounds
        (least, most), highest = bounds.ratios, bounds.offsets[1]
        if self.line.ratio in bounds.ratios or self.line.offset == highest > 0:
            explained = f"no offset up to {highest:,.0f} and ratio from {least:g} to {most:g}"
            return f"clamped: the provider counts what {explained} explains"
        if not bounds.measured[0] <= self.line.ratio <= bounds.measured[1]:
            return f"unusual: the ratio is outside {bounds.measured[0]:g} to {bounds.measured[1]:g}"
        return None


def observe(calibration: Calibration, sample: Sample) -> Calibration:
    """Return the calibration with one more sample; unchanged if the sample is rejected."""
    if rejection_reason(calibration, sample):
        return calibration
    recent, large = calibration.recent, calibration.prior.bounds.large
    same_size = [kept for kept in recent if (kept.estimate < large) == (sample.estimate < large)]
    oldest = recent.index(same_size[0]) if len(same_size) >= KEPT else len(recent)
    recent = (*recent[:oldest], *recent[oldest + 1 :], sample)
    best = _best(calibration.prior, recent)
    # Small changes are ignored, because every change of the line may change the payload.
    pairs = [(best.to_provider_tokens(size), calibration.line.to_provider_tokens(size)) for size in SIZES]
    differs = any(abs(new - old) > TOLERANCE * old for new, old in pairs)
    return Calibration(calibration.prior, recent, calibration.samples + 1, best if differs else calibration.adopted)


def rejection_reason(calibration: Calibration, sample: Sample) -> str | None:
    """Return the reason to reject a sample, or None.

    Steno accepts usage far above the expected count: it may be real, and one sample does not move the line much. Usage
    below half of the expected count probably lacks the cached tokens. The expected count is the smaller of the line's
    and the prior's counts, so that a line that is too high does not reject the samples that would correct it.
    """
    if not (0 < sample.estimate <= MOST_TOKENS and 0 < sample.reported <= MOST_TOKENS):
        return "no usage"
    prior = calibration.prior.offset + calibration.prior.ratio * sample.estimate
    if sample.reported < calibration.prior.bounds.least * min(
        prior, calibration.line.to_provider_tokens(sample.estimate)
    ):
        return "below half of what was expected: cached or partial usage"
    return None


def picture_sample(calibration: Calibration, text: int, pictures: int, reported: int) -> Sample | None:
    """Return a sample of the pictures' cost; None if the text's cost is uncertain, or not below `reported`.

    `calibration` is the calibration of texts. `text` and `pictures` are estimates without the learnt scale.
    """
    expected = calibration.line.to_provider_tokens(text)
    if not calibration.exact or tolerance_of(expected) > CLEAR * pictures:
        return None
    rest = round((reported - expected) / calibration.line.ratio)
    return Sample(pictures, rest) if rest > 0 else None


def tolerance_of(reported: int) -> float:
    return max(EXACT_TOKENS, EXACT * reported)


def picture_scale(ratio: float) -> float:
    """Round a ratio to the nearest step of `SCALE_STEP`."""
    return exp(round(log(ratio) / SCALE_STEP) * SCALE_STEP)


def _best(prior: Prior, samples: Sequence[Sample]) -> Line:
    """Return the line with the lowest cost: the samples' total weight times `log1p(error / NOISE)`, plus the distance
    from the prior. Due to the logarithm, samples that agree outweigh the prior, and contradictory samples do not."""
    weighed = [(s.estimate, s.reported, min(1.0, s.estimate / prior.bounds.large)) for s in samples]
    weight = sum(own for _, _, own in weighed)
    best, least = (prior.offset, prior.ratio), inf
    for offset, ratio in _candidates(prior, samples):
        away = prior.weight * abs(log(ratio / prior.ratio)) + abs(offset - prior.offset) / OFFSET_SCALE
        if away >= least:
            continue
        # A line with a larger error costs more than the best line so far. The bound is NOISE too high, for rounding.
        most = NOISE * exp(min(EXP_ENDS, (least - away) / weight))
        misfit = 0.0
        for estimate, reported, own in weighed:
            expected = offset + ratio * estimate
            if expected < reported:
                misfit += own * CAUTION * (reported - expected) / reported
            else:
                misfit += own * (expected - reported) / expected
            if misfit > most:
                break
        else:
            cost = weight * log1p(misfit / NOISE) + away
            doubtful = ratio < prior.ratio or (prior.bounds.confirmed_above and ratio > prior.ratio)
            if cost < least and (not doubtful or _confirmed(offset, ratio, weighed)):
                best, least = (offset, ratio), cost
    return Line(*best)


def _confirmed(offset: float, ratio: float, weighed: Sequence[tuple[int, int, float]]) -> bool:
    expected = [(offset + ratio * estimate, reported, own) for estimate, reported, own in weighed]
    agreeing = [own for mine, theirs, own in expected if abs(mine - theirs) <= AGREEING * max(mine, theirs)]
    return len(agreeing) >= CONFIRMED and sum(agreeing) >= CONFIRMING


def _candidates(prior: Prior, samples: Sequence[Sample]) -> Iterator[tuple[float, float]]:
    """Yield offset and ratio of every line that may be the best line, the prior first.

    Some offsets and ratios are given: the prior's, the lowest and the highest. Each line goes through two samples, or
    goes through one sample and has a given offset or ratio, or has a given offset and a given ratio. At and above the
    prior's ratio, one of these lines is the best, because between the lines the cost is concave. Below the prior's
    ratio, other lines may cost a little less, but Steno ignores them.
    """
    (least, most), (lowest, highest) = prior.bounds.ratios, prior.bounds.offsets
    ratios, offsets = (prior.ratio, least, most), (prior.offset, lowest, highest)
    yield from ((offset, ratio) for ratio in ratios for offset in offsets)
    for s in samples:
        for offset in offsets:
            if least <= (ratio := (s.reported - offset) / s.estimate) <= most:
                yield offset, ratio
        for ratio in ratios:
            if lowest <= (offset := s.reported - ratio * s.estimate) <= highest:
                yield offset, ratio
    for a, b in combinations(samples, 2):
        if a.estimate != b.estimate:
            ratio = (b.reported - a.reported) / (b.estimate - a.estimate)
            if least <= ratio <= most and lowest <= (offset := a.reported - ratio * a.estimate) <= highest:
                yield offset, ratio


KNOWN = 6.0
UNKNOWN = 0.5
SCALED = 2.0
"""`KNOWN`, `UNKNOWN`, `SCALED`: `Prior.weight` of known families, unknown families, and pictures. A first sample of at
most about 12,000 tokens (unknown families: 1,000) moves the offset, not the ratio. One picture sample moves no line."""

_PICTURES = "/pictures"


def pictures_of(formula: str) -> str:
    """Return the formula under which the scale of pictures is stored."""
    return formula + _PICTURES


def prior_for(model: str, formula: str, tools: bool) -> Prior:
    if formula.endswith(_PICTURES):
        return Prior(1.0, 0.0, SCALED, PICTURES)
    prior = prior_of(model, tools)
    return replace(prior, ratio=whole_ratio(model), offset=0.0) if f"/{WHOLE}" in formula else prior


# (pattern, ratio, offset without tools, offset with tools) for estimates with o200k_base; the first match wins.
_FAMILIES = tuple(
    (re.compile(pattern), ratio, text, tools)
    for pattern, ratio, text, tools in (
        (r"gpt-oss", 1.00, 60, 76),
        (r"(^|[.:])(chatgpt|gpt|codex|o\d)", 1.00, 0, 0),
        (r"gemini", 1.03, 0, 0),
        (r"deepseek-?v([4-9]|\d\d)", 1.10, 0, 265),
        (r"deepseek", 1.02, 0, 280),  # before llama: deepseek-r1-distill-llama-70b
        (r"llama-?guard", 0.99, 190, 190),
        (r"llama-?4", 1.05, 0, 660),
        (r"llama-?3", 1.08, 20, 110),
        (r"qwen|qwq", 1.01, 0, 130),
        (r"(mi|mini|magi|code|dev)stral|pixtral", 1.10, 0, 31),
        (r"grok-[1-3](?!\d)", 1.00, 0, 145),
        (r"grok", 1.00, 185, 235),
        (r"glm", 1.10, 0, 120),
        (r"kimi", 1.10, 0, 10),
        (r"palmyra", 1.00, 25, 130),
    )
)
# (first version, ratio, offset without tools, offset with tools) for Claude, the newest version first.
_CLAUDES = (
    ((4, 7), 1.20, 5, 450),
    ((4, 5), 1.08, 0, 570),
    ((4, 0), 1.08, 0, 410),
    ((0, 0), 1.08, 0, 350),
)
OLDER_CLAUDES, NEWER_CLAUDES = 1.12, 1.40
"""Claude's tokens for each token of o200k_base: up to version 4.6, and from version 4.7 on."""
_CLAUDE_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?:[.-](\d{1,2}))?(?!\d)")


def prior_of(model: str, tools: bool) -> Prior:
    name = model[-LONGEST_MODEL:].rsplit("/", 1)[-1].lower()
    if (version := claude_version(model)) is not None:
        _, ratio, text, with_tools = next(known for known in _CLAUDES if version >= known[0])
        return Prior(ratio, with_tools if tools else text, KNOWN)
    for pattern, ratio, text, with_tools in _FAMILIES:
        if pattern.search(name):
            return Prior(ratio, with_tools if tools else text, KNOWN)
    return Prior(1.15, 100 if tools else 0, UNKNOWN)


def whole_ratio(model: str) -> float:
    """Return the expected ratio for a formula that includes the fixed tokens of each request: see `WHOLE`."""
    version = claude_version(model)
    if version is None:
        return prior_of(model, tools=False).ratio
    return NEWER_CLAUDES if version >= (4, 7) else OLDER_CLAUDES


def claude_version(model: str) -> tuple[int, int] | None:
    """Return the version in names such as `claude-sonnet-4.5` or `claude-3-5-sonnet-20241022-v2:0`. A name without a
    version has (99, 0), the newest. Return None for another family."""
    name = model[-LONGEST_MODEL:].rsplit("/", 1)[-1].lower()
    if "claude" not in name:
        return None
    found = _CLAUDE_VERSION.search(name)
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)
