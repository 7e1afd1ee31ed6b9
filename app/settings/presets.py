"""Presets: bundles of settings and constants. Most of them imitate another system.

A preset overrides the defaults, and the operator's settings override the preset. `docs/policies.md` describes the
presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import Struct

from app.compaction.trim import SessionPruning
from app.errors import InvalidRequest

PresetName = Literal[
    "default",
    "lightspeed",
    "librechat",
    "librechat-fading",
    "librechat-checkpoint",
    "openclaw-adaptive",
    "openclaw-aggressive",
    "sliding-window",
    "rolling",
    "off",
]
PRESET_NAMES: tuple[PresetName, ...] = get_args(PresetName)

_CHECKPOINT_RULES = """\
Take what you did and saw as it was: do not check it again and do not judge it. Where the result of a tool looks cut, \
it was only shortened for display; the tool ran to its end. Write nothing but the checkpoint: do not answer me and do \
not go on with the task.
Use these headings, and leave out those that have nothing under them:
Goal: what I asked you for, and the smaller goals you made of it.
Constraints: the rules I set you, and what I prefer.
Done: what you finished, and with what outcome.
In progress: what you are in the middle of.
Decisions: what you decided, and why.
Next steps: what you still have to do, the most urgent first.
Exact identifiers: names, numbers, dates, amounts, ids, file paths, addresses, codes and errors, copied as they stand.
Of each tool call give the tool, its main inputs and what came of it. Write short, plain sentences.\
"""
LIBRECHAT_PROMPT = f"""\
Wait, before you go on I need a checkpoint of our conversation from you. Your context window is nearly full, and the \
checkpoint will stand in place of the messages so far: put in it whatever you need to take up your work again.
{_CHECKPOINT_RULES}\
"""
"""Summary prompt in the words of a user, as in LibreChat, so that the model pauses its task and writes the summary."""
LIBRECHAT_UPDATE_PROMPT = f"""\
Wait once more, I need your checkpoint brought up to date. Work what has happened since into the one you have, and \
give me a single checkpoint that takes its place. Keep it about as long as the last one: tell the newest in more \
detail, put what is older and finished into one line each, and move to Done what is done by now.
{_CHECKPOINT_RULES}\
"""


class Preset(Struct, frozen=True):
    compaction: Mapping[str, Any] = {}
    """Settings of the section `compaction`."""
    summary: Mapping[str, Any] = {}
    """Settings of the section `summary`."""
    style: Literal["auto", "transcript", "prefix"] = "auto"
    """Input of the summariser. `transcript`: the messages as quoted text; `prefix`: the conversation itself, with the
    instructions as its last user message; `auto`: `prefix` if the provider has the conversation in its cache."""
    update_prompt: str = ""
    """Instructions to update an earlier summary, used unless the operator sets `summary.prompt`; empty: the
    instructions for a new summary."""
    policy: Mapping[str, Any] = {}
    """Members of `Policy` that are not settings."""
    mask: Mapping[str, Any] = {}
    """Members of `MaskPolicy` that are not settings."""
    shares: Mapping[str, Any] = {}
    """Members of `Shares` that are not settings."""
    source_tokens: int | None = 16_384
    """Maximum tokens of the messages of one summary; a larger range gets several summaries, made in parallel. None: no
    maximum. The more tokens a summary covers, the less detail it contains."""

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """The preset's settings, by section."""
        return {"compaction": self.compaction, "summary": self.summary}


_NO_MASKS = {"enabled": False}
_AT_THE_LIMIT = {"token_ratio": None, "tokens": 0}
_AS_ITS_MODEL = {"background": {"enabled": False}, "recall": {"max_ratio": 0.0}}
"""Settings of presets that imitate another system: no background summaries, and no recall."""
_UNGATED = {"cost_gate": False, "user_words": False}
_NO_FLOOR = {"floor_tokens": 0}
_SESSION_PRUNING = {**_AS_ITS_MODEL, "trigger": _AT_THE_LIMIT, "mask": _NO_MASKS}
_NOTHING_MECHANICAL = {**_UNGATED, "strategy": "none", "fit": False, "emergency": False, "prune": False}
_LIBRECHAT_RESERVE = 0.05
_LIBRECHAT_MASK = {"pressure": 0.80, "later": None, "shapes": False}

PRESETS: Mapping[PresetName, Preset] = {
    "default": Preset(),
    "lightspeed": Preset(
        compaction={**_AS_ITS_MODEL, "trigger": {"tokens": 0}, "tail": {"turns": 4}, "mask": _NO_MASKS},
        style="transcript",
        policy={**_UNGATED, "folds_in": False},
        # 0.32 of the limit is 0.30 of the window, as in lightspeed-stack.
        shares={"of_window": True, "floor": 1.0, "tail": 0.32, "tail_fill": 0.0},
        source_tokens=None,
    ),
    "librechat": Preset(
        compaction={**_AS_ITS_MODEL, "trigger": _AT_THE_LIMIT, "tail": {"turns": 0}},
        summary={"prompt": LIBRECHAT_PROMPT},
        style="prefix",
        update_prompt=LIBRECHAT_UPDATE_PROMPT,
        policy={**_UNGATED, "strategy": "full", "failed_results": 8},
        mask=_LIBRECHAT_MASK,
        shares={**_NO_FLOOR, "tail": 0.5, "tail_fill": 0.0, "reserve": _LIBRECHAT_RESERVE},
    ),
    "librechat-fading": Preset(
        compaction={**_AS_ITS_MODEL, "trigger": _AT_THE_LIMIT},
        policy={**_UNGATED, "strategy": "none", "fade": True, "fit": False, "stub": False},
        mask=_LIBRECHAT_MASK,
        shares={**_NO_FLOOR, "target": 0.80, "reserve": _LIBRECHAT_RESERVE},
    ),
    "librechat-checkpoint": Preset(
        compaction={**_AS_ITS_MODEL, "trigger": _AT_THE_LIMIT, "tail": {"turns": 0}, "mask": _NO_MASKS},
        summary={"max_tokens": 1_024},
        style="transcript",
        policy={**_UNGATED, "strategy": "checkpoint"},
        shares={**_NO_FLOOR, "since_checkpoint": 0.10, "tail": 0.5, "tail_fill": 0.0},
    ),
    "openclaw-adaptive": Preset(
        compaction=_SESSION_PRUNING,
        policy={**_NOTHING_MECHANICAL, "session_pruning": SessionPruning("adaptive")},
    ),
    "openclaw-aggressive": Preset(
        compaction=_SESSION_PRUNING,
        policy={**_NOTHING_MECHANICAL, "session_pruning": SessionPruning("aggressive")},
    ),
    "sliding-window": Preset(
        compaction={**_AS_ITS_MODEL, "trigger": _AT_THE_LIMIT, "tail": {"turns": 20}, "mask": _NO_MASKS},
        policy={**_UNGATED, "strategy": "window", "stub": False},
        shares={**_NO_FLOOR, "tail_turns": 3},
    ),
    "rolling": Preset(
        compaction={**_AS_ITS_MODEL, "mask": _NO_MASKS},
        style="transcript",
        policy={**_UNGATED, "strategy": "rolling"},
    ),
    "off": Preset(),
}


def read_preset(name: object, param: str = "context.preset") -> PresetName | None:
    """Return `name` if it is a preset; None for None. Otherwise raise `InvalidRequest`, which names `param`."""
    if name is None:
        return None
    for known in PRESET_NAMES:
        if name == known:
            return known
    raise InvalidRequest(f"There is no preset {name!r:.100}. Known: {', '.join(PRESET_NAMES)}.", param)
