"""Calibration: the provider's count, learnt as a line over the estimate: reported = offset + ratio x estimate.

The line misses the latest samples least, relative to their size, and lies closest to the prior of the model's family.
docs/estimates.md#calibration gives the method and the source of the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import exp, inf, log, log1p
from statistics import median_high, median_low

from msgspec import Struct
from msgspec.structs import replace

from app.tokens.rules import LONGEST_MODEL, WHOLE
from app.tokens.usage import MOST_TOKENS

FEWEST_NOTED = 3
"""Samples before a note is written: one or two may lie anywhere."""
TOLERANCE = 0.01
ENOUGH_OF_ONE = 5
"""Samples after which a tenant has a line of its own: they bring an estimate within a hundredth."""
COMPARED_AT = (1_000, 100_000)
"""Estimates at which the lines of several tenants are compared."""
SIZES = (1_000, 10_000, 100_000)
"""Estimates: a new line is adopted if it differs at any of them by more than the tolerance."""

KEPT = 8
"""Samples kept of each size, large and small: short prompts do not push out long ones."""
NOISE = 0.001
"""The relative misfit of all samples together that does not count against a line."""
OFFSET_SCALE = 2_000
"""An offset so many tokens from the prior's costs as much as a ratio e times the prior's where the weight is 1."""
EXP_ENDS = 700.0
"""exp of little more is no float."""

CAUTION = 1.5
"""Weight of a sample above the line. Too low a line lets a request grow until it does not fit; one too high compacts a
little early."""
CONFIRMED = 3
"""Samples that have to agree with a ratio below the prior's."""
CONFIRMING = 1.0
"""Their least weight together: short prompts alone never lower the ratio."""
AGREEING = 0.1
"""The misfit up to which a sample agrees with a line."""

EXACT = 0.01
EXACT_TOKENS = 5
EXACT_SAMPLES = 3
"""Latest samples that a line has to predict within the two bounds above for texts to be counted exactly."""
CLEAR = 0.1
"""A text beside pictures may be uncertain by this share of the pictures' estimate."""
SCALE_STEP = 0.05
"""The scale of pictures moves by such steps of its logarithm, as counts are cached for each scale."""


class LineBounds(Struct, frozen=True):
    ratios: tuple[float, float]
    offsets: tuple[float, float]
    measured: tuple[float, float]
    """A ratio outside is unusual."""
    large: int
    """Estimate from which on a sample has its full weight."""
    least: float
    """A sample below this share of what was expected is rejected."""
    confirmed_above: bool = False
    """Whether a ratio above the prior's has to be confirmed, as one below has."""


PROMPTS = LineBounds((0.5, 5.0), (0.0, 1_500.0), (0.7, 1.8), large=2_000, least=0.5)
PICTURES = LineBounds((1 / 16, 16.0), (0.0, 0.0), (1 / 16, 16.0), large=100, least=0.0, confirmed_above=True)
"""The factor of a picture's tokens by its family's rule."""


class Line(Struct, frozen=True):
    """Line from the estimate to the provider's count."""

    offset: float = 0.0
    ratio: float = 1.0

    def to_provider_tokens(self, estimate: float) -> int:
        return round(self.offset + self.ratio * estimate)

    def to_estimate(self, reported: float) -> int:
        """The largest estimate that the provider counts as so many tokens."""
        return max(0, int((reported - self.offset) / self.ratio))


ONE_TO_ONE = Line()


class Prior(Struct, frozen=True):
    """Line that is expected of a model before anything was reported."""

    ratio: float
    offset: float
    weight: float
    """Weight of the distance from its ratio."""
    bounds: LineBounds = PROMPTS


class Sample(Struct, frozen=True):
    """The prompt of one answered request, in tokens."""

    estimate: int
    reported: int


class Calibration(Struct, frozen=True, dict=True):
    """The line of one upstream, model and formula, with or without tools."""

    prior: Prior
    recent: tuple[Sample, ...] = ()
    """The latest samples of each size, oldest first."""
    samples: int = 0
    """Number of all samples so far."""
    adopted: Line | None = None

    @property
    def line(self) -> Line:
        return self.adopted or Line(self.prior.offset, self.prior.ratio)

    @property
    def exact(self) -> bool:
        """Whether the line predicted the latest samples to about a hundredth."""
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


def agreed_line(prior: Prior, lines: Sequence[Line]) -> Line | None:
    """Line of several tenants, one each; None where there is only one.

    At either end it is their median, of two medians the one nearer to the prior: one tenant moves it neither beyond
    what another one reports, nor beyond `LineBounds.measured`.
    """
    if len(lines) < 2:
        return None
    small, large = (
        _median([line.offset + line.ratio * size for line in lines], prior.offset + prior.ratio * size)
        for size in COMPARED_AT
    )
    (least, most), (lowest, highest) = prior.bounds.measured, prior.bounds.offsets
    ratio = min(most, max(least, (large - small) / (COMPARED_AT[1] - COMPARED_AT[0])))
    offset = small - ratio * COMPARED_AT[0]
    if lowest <= offset <= highest:
        return Line(offset, ratio)
    # With an offset at its bound the line turns around the large end, so that it stays at the median there.
    offset = min(highest, max(lowest, offset))
    return Line(offset, min(most, max(least, (large - offset) / COMPARED_AT[1])))


def _median(values: Sequence[float], expected: float) -> float:
    return min(median_low(values), median_high(values), key=lambda value: abs(log(value / expected)))


def observe(calibration: Calibration, sample: Sample) -> Calibration:
    """The calibration after one more sample; the same one if the sample is rejected."""
    if rejection_reason(calibration, sample):
        return calibration
    recent, large = calibration.recent, calibration.prior.bounds.large
    same_size = [kept for kept in recent if (kept.estimate < large) == (sample.estimate < large)]
    oldest = recent.index(same_size[0]) if len(same_size) >= KEPT else len(recent)
    recent = (*recent[:oldest], *recent[oldest + 1 :], sample)
    best = _best(calibration.prior, recent)
    # With every small change of the line the same history would be sent otherwise.
    pairs = [(best.to_provider_tokens(size), calibration.line.to_provider_tokens(size)) for size in SIZES]
    differs = any(abs(new - old) > TOLERANCE * old for new, old in pairs)
    return Calibration(calibration.prior, recent, calibration.samples + 1, best if differs else calibration.adopted)


def rejection_reason(calibration: Calibration, sample: Sample) -> str | None:
    """Why nothing can be learnt from the sample.

    Usage far above what was expected may be real, and one sample does not move a line that others agree on. Less than
    half is usage without its cached part: half of the prior, if that is less, so that a calibration that began with a
    mistake accepts what corrects it.
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
    """Sample of the cost of a request's pictures; None where the cost of the text beside them is uncertain.

    `calibration` is that of texts alone. `text` and `pictures` are estimates, the latter by the family's rule.
    """
    expected = calibration.line.to_provider_tokens(text)
    if not calibration.exact or tolerance_of(expected) > CLEAR * pictures:
        return None
    rest = round((reported - expected) / calibration.line.ratio)
    return Sample(pictures, rest) if rest > 0 else None


def tolerance_of(reported: int) -> float:
    return max(EXACT_TOKENS, EXACT * reported)


def picture_scale(ratio: float) -> float:
    """The ratio, rounded to one of about a hundred steps."""
    return exp(round(log(ratio) / SCALE_STEP) * SCALE_STEP)


def _best(prior: Prior, samples: Sequence[Sample]) -> Line:
    """The line of least cost: the logarithm of the samples' misfit, and the distance from the prior.

    In the logarithm, samples that agree with each other outvote the prior, and samples that contradict each other do
    not.
    """
    weighed = [(s.estimate, s.reported, min(1.0, s.estimate / prior.bounds.large)) for s in samples]
    weight = sum(own for _, _, own in weighed)
    best, least = (prior.offset, prior.ratio), inf
    for offset, ratio in _candidates(prior, samples):
        away = prior.weight * abs(log(ratio / prior.ratio)) + abs(offset - prior.offset) / OFFSET_SCALE
        if away >= least:
            continue
        # With more misfit than this it costs more than the best so far; NOISE more, against rounding.
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
    """Offset and ratio of every line that may be the best one, the prior first.

    From the prior's ratio on the cost is concave between the points where a sample is hit exactly, or ratio or offset
    is the prior's or a bound, so the best line has two of these properties. Below, a line between the confirmed ones
    might cost a little less.
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
"""Weights of priors: a first sample of a known family moves the offset, not the ratio, up to about 12,000 tokens; of an
unknown one up to 1,000. The last is for pictures, which no single sample moves."""

_PICTURES = "/pictures"


def pictures_of(formula: str) -> str:
    """Key of the pictures' scale beside the line of the texts."""
    return formula + _PICTURES


def prior_for(model: str, formula: str, tools: bool) -> Prior:
    if formula.endswith(_PICTURES):
        return Prior(1.0, 0.0, SCALED, PICTURES)
    prior = prior_of(model, tools)
    return replace(prior, ratio=whole_ratio(model), offset=0.0) if f"/{WHOLE}" in formula else prior


# (pattern, ratio, offset without tools, offset with tools) on estimates with o200k_base; the first match wins.
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
# The same for Claude, from each version on, the newest first.
_CLAUDES = (
    ((4, 7), 1.20, 5, 450),
    ((4, 5), 1.08, 0, 570),
    ((4, 0), 1.08, 0, 410),
    ((0, 0), 1.08, 0, 350),
)
OLDER_CLAUDES, NEWER_CLAUDES = 1.12, 1.40
"""Tokens of Claude's own for one of o200k_base, up to 4.6 and from 4.7 on."""
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
    """Ratio that is expected where the estimate includes all that the family adds: see `WHOLE`."""
    version = claude_version(model)
    if version is None:
        return prior_of(model, tools=False).ratio
    return NEWER_CLAUDES if version >= (4, 7) else OLDER_CLAUDES


def claude_version(model: str) -> tuple[int, int] | None:
    """The version in `claude-sonnet-4.5`, `claude-4.6-sonnet` or `claude-3-5-sonnet-20241022-v2:0`; a name without one
    means the newest. None for another family."""
    name = model[-LONGEST_MODEL:].rsplit("/", 1)[-1].lower()
    if "claude" not in name:
        return None
    found = _CLAUDE_VERSION.search(name)
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)
