"""Seeded mutants: for each preset one wrong line, and the scenario of its checklist that must notice it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from app.core.limits.trigger import Size
from app.core.stages.fade import BANDS
from app.core.view.mask import is_allowed
from app.settings.presets import PRESETS, PresetName
from lab.simulator import Simulator
from tests.e2e.presets import test_checkpoint_and_openclaw as checkpoint_and_openclaw
from tests.e2e.presets import test_librechat as librechat
from tests.e2e.presets import test_lightspeed_and_others as others
from tests.e2e.running import StartSteno

LIGHTSPEED = PRESETS["lightspeed"]
Check = Callable[[Simulator, StartSteno], None]
"""A scenario: raises AssertionError where the preset does not behave."""


@dataclass(frozen=True, slots=True)
class Mutant:
    preset: PresetName
    target: str
    """What is replaced, as `monkeypatch.setattr` takes it: where it is used, which may not be where it is defined."""
    replacement: Any
    check: Check


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "librechat",
        "app.core.view.mask.Masks._answered",
        lambda _, boundary: boundary,  # whatever stands before it
        librechat.test_results_that_wait_for_an_answer_and_the_assistants_texts_are_whole_while_the_prompt_fits,
    ),
    Mutant(
        "librechat-fading",
        "app.core.stages.fade.BANDS",
        tuple(reversed(BANDS)),  # the first band that is reached, not the last
        partial(librechat.test_a_faded_result_has_the_size_of_the_formula, 0.99, 0.05),
    ),
    Mutant(
        "librechat-checkpoint",
        "app.core.view.reading._size",
        lambda *given: Size(given[2], since=given[2]),  # the tokens of the whole, not of what follows the summary
        checkpoint_and_openclaw.test_a_checkpoint_is_made_past_a_tenth_of_the_window,
    ),
    Mutant(
        "openclaw-adaptive",
        "app.core.stages.session_pruning.CHARACTERS_PER_TOKEN",
        3,
        checkpoint_and_openclaw.test_large_results_are_trimmed_from_a_fill_of_0_30_on,
    ),
    Mutant(
        "openclaw-aggressive",
        "app.core.stages.session_pruning.is_allowed",
        lambda tool, allow, deny: is_allowed(tool, deny, allow),
        checkpoint_and_openclaw.test_only_the_results_of_allowed_tools_are_pruned,
    ),
    Mutant(
        "default",
        "app.core.history.messages.Transcript.carried",
        lambda *_: (),  # the question of a turn that the cut splits is summarised away
        others.check_split_turn,
    ),
    Mutant(
        "lightspeed",
        "app.settings.sources.PRESETS",
        {
            **PRESETS,
            "lightspeed": replace(LIGHTSPEED, compaction={**LIGHTSPEED.compaction, "tail": {"max_ratio": 0.30}}),
        },  # a share of the limit, which is less than the window
        others.check_lightspeed_tail,
    ),
    Mutant("sliding-window", "app.core.stages.prune._before_turns", lambda *_: 0, others.check_sliding_window),
    Mutant(
        "rolling",
        "app.core.summary.brief.CUMULATIVE",
        frozenset({"full", "checkpoint"}),  # each summary stands for its own range only
        others.check_rolling,
    ),
    Mutant("off", "app.settings.sources.PRESETS", {**PRESETS, "off": PRESETS["default"]}, others.check_off),
)
