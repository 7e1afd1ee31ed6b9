"""Calibration: five requests are enough, one mistake is not, and nothing in it can fail."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tokens.calibration import (
    KEPT,
    PICTURES,
    PROMPTS,
    SCALED,
    Calibration,
    Prior,
    Sample,
    claude_version,
    observe,
    picture_sample,
    picture_scale,
    pictures_of,
    prior_for,
    prior_of,
    rejection_reason,
)

SIZES = {
    "all about 80,000": [80_400, 79_100, 80_900, 79_700, 80_050],
    "growing from 2,000 to 80,000": [2_000, 5_000, 12_600, 32_000, 80_000],
    "growing evenly": [2_000, 21_500, 41_000, 60_500, 80_000],
    "small steps": [3_000, 3_250, 3_500, 3_750, 4_000],
    "under 2,000": [100, 550, 1_000, 1_450, 1_900],
}
MODELS = ["gpt-4o", "claude-sonnet-4-5", "house-model"]
COUNTS = st.integers(0, 10**30)
SAMPLES = st.lists(st.tuples(COUNTS | st.integers(0, 200_000), COUNTS | st.integers(0, 200_000)), max_size=40)


def fresh(model: str = "house-model", *, tools: bool = False) -> Calibration:
    return Calibration(prior_of(model, tools))


def learnt(calibration: Calibration, samples: Sequence[tuple[int, int]]) -> Calibration:
    for estimate, reported in samples:
        calibration = observe(calibration, Sample(estimate, reported))
    return calibration


def provider(ratio: float, overhead: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    return [(size, round(ratio * size + overhead)) for size in sizes]


# Five requests


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_after_five_requests_80_000_tokens_are_right_within_one_percent(
    model: str, tools: bool, sizes: list[int]
) -> None:
    for ratio, overhead in product((0.9, 1.0, 1.25, 1.6, 3.0), (0, 50, 400, 1_000, 1_500)):
        calibration = learnt(fresh(model, tools=tools), provider(ratio, overhead, sizes))
        assert calibration.line.to_provider_tokens(80_000) == pytest.approx(ratio * 80_000 + overhead, rel=0.01), (
            ratio,
            overhead,
        )


@pytest.mark.parametrize("model", MODELS)
def test_the_fixed_part_of_short_prompts_does_not_become_a_ratio(model: str) -> None:
    calibration = learnt(fresh(model), [(60, 420), (75, 433), (90, 455), (64, 421)])
    assert calibration.line.offset == pytest.approx(360, abs=20)
    assert calibration.line.to_provider_tokens(80_000) == pytest.approx(
        fresh(model).line.to_provider_tokens(80_000), rel=0.05
    )


def test_a_change_of_the_provider_is_followed() -> None:
    sizes = range(10_000, 30_000, 1_000)
    calibration = learnt(fresh("gpt-4o"), [*provider(1.0, 0, sizes), *provider(1.3, 0, sizes)])
    assert calibration.line.to_provider_tokens(80_000) == pytest.approx(104_000, rel=0.01)


# Mistakes


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("outlier", [(27, 8_174), (1_000, 6_400), (300, 2_900), (5_000, 20_000)])
def test_one_outlier_moves_nothing_that_others_agree_on(model: str, outlier: tuple[int, int]) -> None:
    """Whether it comes last or first."""
    for samples in (
        [*provider(1.1, 100, [500, 3_000, 4_500, 6_000]), outlier],
        [outlier, *provider(1.1, 100, [500, 3_000, 4_500, 6_000, 9_000])],
    ):
        assert learnt(fresh(model), samples).line.to_provider_tokens(80_000) == pytest.approx(88_100, rel=0.01)


EIGHT = [5_000, 9_000, 14_000, 20_000, 30_000, 42_000, 60_000, 80_000]
LONG = ["gpt-4o", "claude-opus-4-7", "house-model"]


def mixed(truth: float, wrong: float, places: Sequence[int]) -> list[tuple[int, int]]:
    return [(size, round(truth * size * (wrong if n in places else 1))) for n, size in enumerate(EIGHT)]


@pytest.mark.parametrize("wrong", [0.51, 0.55, 0.75])
@pytest.mark.parametrize("truth", [1.0, 1.6])
@pytest.mark.parametrize("model", LONG)
def test_three_of_eight_that_report_too_little_lower_nothing(model: str, truth: float, wrong: float) -> None:
    """Wherever they lie, before the others or after them."""
    for places in combinations(range(8), 3):
        calibration = learnt(fresh(model), mixed(truth, wrong, places))
        assert calibration.line.to_provider_tokens(80_000) >= 0.98 * truth * 80_000, places


@pytest.mark.parametrize("wrong", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("model", LONG)
def test_two_of_eight_that_report_too_much_raise_little(model: str, wrong: float) -> None:
    truth = prior_of(model, tools=False).ratio
    for places in combinations(range(8), 2):
        calibration = learnt(fresh(model), mixed(truth, wrong, places))
        assert calibration.line.to_provider_tokens(80_000) == pytest.approx(truth * 80_000, rel=0.02), places


@pytest.mark.parametrize("wrong", [0.51, 0.6, 0.75, 0.9])
@pytest.mark.parametrize("size", [500, 5_000, 20_000, 80_000])
@pytest.mark.parametrize("model", LONG)
def test_a_ratio_falls_below_the_priors_when_three_samples_agree(model: str, size: int, wrong: float) -> None:
    prior = prior_of(model, tools=False)
    samples = provider(wrong * prior.ratio, 50, [size, size + 100, size + 200])
    assert learnt(fresh(model), samples[:1]).line.ratio >= prior.ratio
    assert learnt(fresh(model), samples[:2]).line.ratio >= prior.ratio
    if size >= 5_000:
        assert learnt(fresh(model), samples).line.ratio == pytest.approx(wrong * prior.ratio, rel=0.02)


@pytest.mark.parametrize("model", LONG)
def test_short_prompts_alone_lower_no_ratio(model: str) -> None:
    prior = prior_of(model, tools=False)
    calibration = learnt(fresh(model), provider(0.6 * prior.ratio, 0, range(60, 120, 3)))
    assert calibration.line.ratio == prior.ratio


@pytest.mark.parametrize("sample", [Sample(0, 10), Sample(10, 0), Sample(10, -3), Sample(10, 10**12)])
def test_what_is_no_usage_is_rejected(sample: Sample) -> None:
    calibration = fresh()
    assert rejection_reason(calibration, sample) == "no usage"
    assert observe(calibration, sample) is calibration


def test_less_than_half_of_what_was_expected_is_rejected_and_half_is_not() -> None:
    calibration = learnt(fresh("gpt-4o"), provider(1.0, 0, [3_000, 4_000, 5_000]))
    assert "cached" in str(rejection_reason(calibration, Sample(10_000, 4_999)))
    assert rejection_reason(calibration, Sample(10_000, 5_000)) is None


def test_a_calibration_that_is_far_too_high_accepts_what_corrects_it() -> None:
    """Measured against the calibration alone, every right usage would be below half and refused for ever."""
    calibration = learnt(fresh(), provider(4.0, 0, [30_000, 30_000]))
    assert rejection_reason(calibration, Sample(30_000, 30_000)) is None
    assert learnt(calibration, provider(1.0, 0, [31_000, 35_000, 40_000, 45_000])).line.ratio == pytest.approx(
        1, abs=0.05
    )


# Memory


def test_short_prompts_do_not_push_out_what_long_ones_told() -> None:
    """A client that asks for a title after every answer."""
    calibration = learnt(fresh("gpt-4o"), [(20_000, 26_000), (30_000, 39_000), (40_000, 52_000)])
    calibration = learnt(calibration, [(200 + n % 7, 260 + n % 5) for n in range(100)])
    assert calibration.line.to_provider_tokens(80_000) == pytest.approx(104_000, rel=0.02)
    assert (len(calibration.recent), calibration.samples) == (3 + KEPT, 103)


# Bounds and notes


@pytest.mark.parametrize(
    ("ratio", "overhead", "note"),
    [
        (1.0, 0, None),
        (1.8, 0, None),
        (3.0, 0, "unusual"),
        (0.6, 0, "unusual"),
        (7.0, 0, "clamped"),
        (1.0, 4_000, "clamped"),
    ],
)
def test_what_lies_outside_what_was_ever_measured_is_told(ratio: float, overhead: int, note: str | None) -> None:
    samples = provider(ratio, overhead, [1_000, 3_000, 9_000, 20_000, 40_000])
    assert str(learnt(fresh(), samples).note).startswith(str(note))
    assert learnt(fresh(), samples[-2:]).note is None, "two samples are too few"


@given(SAMPLES, COUNTS, st.booleans(), st.sampled_from(MODELS))
def test_properties_a_line_is_finite_and_within_its_bounds_whatever_is_reported(
    samples: list[tuple[int, int]], tokens: int, tools: bool, model: str
) -> None:
    calibration = learnt(fresh(model, tools=tools), samples)
    assert isfinite(calibration.line.ratio)
    assert PROMPTS.ratios[0] <= calibration.line.ratio <= PROMPTS.ratios[1]
    assert PROMPTS.offsets[0] <= calibration.line.offset <= PROMPTS.offsets[1]
    assert calibration.line.to_provider_tokens(tokens) >= 0
    assert calibration.line.to_estimate(tokens) >= 0
    assert len(calibration.recent) <= 2 * KEPT


@given(SAMPLES, st.integers(0, 2_000_000))
def test_properties_what_is_inverted_fits(samples: list[tuple[int, int]], tokens: int) -> None:
    """The largest estimate that fits, and none fits where the offset alone is more."""
    calibration = learnt(fresh(), samples)
    estimate = calibration.line.to_estimate(tokens)
    assert calibration.line.to_provider_tokens(estimate) <= max(tokens, round(calibration.line.offset))
    assert calibration.line.to_provider_tokens(estimate + 2) > tokens


# Priors


@pytest.mark.parametrize(
    ("model", "ratio", "offset", "with_tools"),
    [
        ("gpt-4o", 1.0, 0, 0),
        ("ft:gpt-4o-mini:acme::8x", 1.0, 0, 0),
        ("gpt-oss:20b", 1.0, 60, 76),
        ("anthropic/claude-sonnet-4.5", 1.08, 0, 570),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", 1.08, 0, 350),
        ("claude-opus-4-7", 1.20, 5, 450),
        ("gemini-2.5-pro", 1.03, 0, 0),
        ("meta-llama/Llama-3.3-70B-Instruct", 1.08, 20, 110),
        ("meta-llama/llama-4-scout", 1.05, 0, 660),
        ("qwen2.5:7b", 1.01, 0, 130),
        ("deepseek-chat", 1.02, 0, 280),
        ("mistralai/magistral-medium", 1.10, 0, 31),
        ("deepseek/deepseek-v4-flash", 1.10, 0, 265),
        ("x-ai/grok-4.1-fast", 1.0, 185, 235),
        ("z-ai/glm-4.6", 1.10, 0, 120),
        ("house-model", 1.15, 0, 100),
        ("", 1.15, 0, 100),
    ],
)
def test_the_prior_is_that_of_the_models_family(model: str, ratio: float, offset: int, with_tools: int) -> None:
    assert prior_of(model, tools=False) == Prior(ratio, offset, prior_of(model, tools=True).weight)
    assert (prior_of(model, tools=True).ratio, prior_of(model, tools=True).offset) == (ratio, with_tools)


def test_a_version_is_read_wherever_a_name_has_it() -> None:
    versions = {"claude-sonnet-4.5": (4, 5), "claude-4.6-sonnet": (4, 6), "claude-opus-4": (4, 0), "gpt-5": None}
    assert {name: claude_version(name) for name in versions} == versions
    assert claude_version("claude-3-5-sonnet-20241022-v2:0") == (3, 5)
    assert claude_version("claude-latest") == (99, 0)


def test_only_the_end_of_a_name_of_megabytes_is_read() -> None:
    for model in ("9" * 4_000_000, "claude-" + "4-" * 2_000_000, "/" * 4_000_000):
        assert prior_of(model, tools=False).ratio > 0
    assert prior_of("x" * 4_000_000 + "/gpt-4o", tools=False) == prior_of("gpt-4o", tools=False)


# Pictures


def pictures() -> Calibration:
    return Calibration(prior_for("house-model", pictures_of("3/o200k_base"), tools=False))


def test_a_line_is_exact_once_three_samples_in_a_row_lie_on_it() -> None:
    def exact(*samples: tuple[int, int]) -> bool:
        return Calibration(prior_of("gpt-4o", tools=False), tuple(Sample(*sample) for sample in samples)).exact

    assert not exact()
    assert not exact((100, 100), (3_000, 3_000))
    assert exact((100, 105), (3_000, 3_030), (50, 50))
    assert not exact((100, 106), (3_000, 3_000), (50, 50))
    assert not exact((100, 100), (3_000, 3_031), (50, 50))
    assert exact((100, 300), (100, 100), (3_000, 3_000), (50, 50))


def test_pictures_teach_nothing_beside_a_text_that_is_not_known_well_enough() -> None:
    exact = learnt(fresh("gpt-4o"), provider(1.0, 0, [500, 1_000, 2_000]))
    assert picture_sample(exact, 400, 765, 1_200) == Sample(765, 800)
    assert picture_sample(fresh("gpt-4o"), 400, 765, 1_200) is None
    assert picture_sample(exact, 7_700, 765, 8_500) is None, "a hundredth of the text is over a tenth of the pictures"
    assert picture_sample(exact, 400, 765, 400) is None, "they cost nothing, or less"
    assert picture_sample(exact, 400, 40, 450) is None


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 2.1, 8.0])
def test_three_requests_with_pictures_tell_what_they_cost(factor: float) -> None:
    shown = [(765, round(765 * factor)), (1_105, round(1_105 * factor)), (255, round(255 * factor))]
    scale = learnt(pictures(), shown)
    assert scale.line.ratio == pytest.approx(factor, rel=0.03)
    assert scale.line.offset == 0
    assert scale.note is None


@given(SAMPLES)
def test_properties_a_scale_of_pictures_has_bounds_and_no_offset(samples: list[tuple[int, int]]) -> None:
    calibration = learnt(pictures(), samples)
    assert PICTURES.ratios[0] <= calibration.line.ratio <= PICTURES.ratios[1]
    assert calibration.line.offset == 0
    assert picture_scale(calibration.line.ratio) == pytest.approx(calibration.line.ratio, rel=0.026)


def test_only_pictures_have_a_scale_for_a_prior() -> None:
    assert prior_for("claude-sonnet-4", "3/o200k_base", tools=True) == prior_of("claude-sonnet-4", tools=True)
    assert prior_for("claude-sonnet-4", pictures_of("3/o200k_base"), tools=False) == Prior(1.0, 0.0, SCALED, PICTURES)
    assert picture_scale(1.0) == 1.0
