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

LIBRECHAT_PROMPT = """\
Write, as the user would tell the assistant, what the assistant must know to go on with this conversation. Use these \
headings, and leave out those that have nothing under them:
Goal: what I asked for, in my words where they matter.
Constraints: what you must or must not do, and what I prefer.
Progress: what is done, with its outcome, and what is in progress.
Decisions: what was decided, and why.
Next steps: what is open, in order.
Exact identifiers: names, numbers, dates, amounts, ids, file paths, addresses and codes, copied as they stand.
Write in the first person, as the user. Add nothing, answer nothing.\
"""
LIBRECHAT_UPDATE_PROMPT = f"""\
{LIBRECHAT_PROMPT}
There is a summary so far. Write one in its place that has both what it says and what came after it.\
"""

_NO_MASKS = {"enabled": False}
_NO_FILL = {"fill_ratio": 0.0}
_NOTHING_MECHANICAL = {"fit": False, "emergency": False, "prune": {"enabled": False}}
_SESSION_PRUNING = {
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
            "strategy": "full",
            "trigger": {"overflow": True},
            "floor_tokens": 0,
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
            "strategy": "none",
            "trigger": {"overflow": True},
            "floor_tokens": 0,
            "target_ratio": 0.80,
            "mask": {"pressure": 0.80},
            "fade": True,
            "fit": False,
            "prune": {"stub": False},
        }
    },
    "librechat-checkpoint": {
        "compaction": {
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
            "strategy": "window",
            "trigger": {"overflow": True},
            "floor_tokens": 0,
            "window": {"turns": 20},
            "mask": _NO_MASKS,
            "prune": {"stub": False},
        }
    },
    "rolling": {"compaction": {"strategy": "rolling", "mask": _NO_MASKS}},
    "off": {"compaction": {"enabled": False}},
}
