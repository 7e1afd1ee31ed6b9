"""Presets: each system Steno was modelled on, as settings a user could write.

A preset lies between the defaults and what the operator sets. `docs/policies.md` says what each does and when to choose
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

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
"""Speaks as the user to the model, as LibreChat's own does, so that the model stops and writes instead of going on."""
LIBRECHAT_UPDATE_PROMPT = f"""\
Wait once more, I need your checkpoint brought up to date. Work what has happened since into the one you have, and \
give me a single checkpoint that takes its place. Keep it about as long as the last one: tell the newest in more \
detail, put what is older and finished into one line each, and move to Done what is done by now.
{_CHECKPOINT_RULES}\
"""

_NO_MASKS = {"enabled": False}
_AS_ITS_MODEL = {"cost_gate": {"enabled": False}, "background": {"enabled": False}, "recall": {"enabled": False}}
"""What the system it is modelled on does, it does when its trigger says so and in the request, whatever that costs; and
it brings back nothing."""
_NO_FILL = {"fill_ratio": 0.0}
_NOTHING_MECHANICAL = {"fit": False, "emergency": False, "prune": {"enabled": False}}
_SESSION_PRUNING = {
    **_AS_ITS_MODEL,
    "strategy": "none",
    "trigger": {"overflow": True},
    "mask": _NO_MASKS,
    "default_window": 200_000,
    **_NOTHING_MECHANICAL,
}

PRESETS: Mapping[PresetName, Mapping[str, Any]] = {
    "default": {},
    "lightspeed": {
        "compaction": {
            **_AS_ITS_MODEL,
            "trigger": {"token_ratio": 0.70, "of": "window", "tokens": 4_096},
            "floor_tokens": 0,
            # 0.30 of the window, which is more than the limit.
            "tail": {"turns": 4, "max_ratio": 0.32, **_NO_FILL},
            "mask": _NO_MASKS,
        },
        "summary": {"source_tokens": None},
    },
    "librechat": {
        "compaction": {
            **_AS_ITS_MODEL,
            "strategy": "full",
            "trigger": {"overflow": True},
            "floor_tokens": 0,
            "reserve_ratio": 0.05,
            "tail": {"turns": 0, "max_ratio": 0.5, **_NO_FILL},
            "mask": {"pressure": 0.80},
        },
        "summary": {
            "style": "prefix",
            "prompt": LIBRECHAT_PROMPT,
            "update_prompt": LIBRECHAT_UPDATE_PROMPT,
            "failed_results": 8,
        },
    },
    "librechat-fading": {
        "compaction": {
            **_AS_ITS_MODEL,
            "strategy": "none",
            "trigger": {"overflow": True},
            "floor_tokens": 0,
            "reserve_ratio": 0.05,
            "target_ratio": 0.80,
            "mask": {"pressure": 0.80},
            "fade": True,
            "fit": False,
            "prune": {"stub": False},
        }
    },
    "librechat-checkpoint": {
        "compaction": {
            **_AS_ITS_MODEL,
            "strategy": "checkpoint",
            "trigger": {"any": [{"since_checkpoint_ratio": 0.10, "of": "window"}, {"overflow": True}]},
            "floor_tokens": 0,
            "tail": {"turns": 0, "max_ratio": 0.5, **_NO_FILL},
            "mask": _NO_MASKS,
        },
        "summary": {"max_tokens": 1_024},
    },
    "openclaw-adaptive": {"compaction": {**_SESSION_PRUNING, "session_pruning": {"mode": "adaptive"}}},
    "openclaw-aggressive": {"compaction": {**_SESSION_PRUNING, "session_pruning": {"mode": "aggressive"}}},
    "sliding-window": {
        "compaction": {
            **_AS_ITS_MODEL,
            "strategy": "window",
            "trigger": {"overflow": True},
            "floor_tokens": 0,
            "window": {"turns": 20},
            "mask": _NO_MASKS,
            "prune": {"stub": False},
        }
    },
    "rolling": {"compaction": {**_AS_ITS_MODEL, "strategy": "rolling", "mask": _NO_MASKS}},
    "off": {"compaction": {"enabled": False}},
}
