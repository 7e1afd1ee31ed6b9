"""Conversations in the other formats: grown until they are compacted, by some presets, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lab.benchmarks.corpus.case import MODEL, Case, Group, case
from lab.benchmarks.corpus.cases.histories import Turn, conversation, plain_turn, tool_turn
from lab.benchmarks.corpus.framing import request
from lab.formats.format import ReplayFormat
from lab.formats.known import MESSAGES, RESPONSES
from lab.replay.converting import converted
from lab.replay.recordings import Recording

PRESETS = ("default", "librechat", "librechat-fading", "sliding-window", "rolling", "off")
TURNS: dict[str, tuple[Turn, int, int]] = {"plain": (plain_turn, 12, 24), "tools": (tool_turn, 8, 17)}


def _said(written: ReplayFormat, turn: Turn, turns: int, preset: str, name: str, *, stream: bool) -> bytes:
    said = converted(Recording(name, tuple(conversation(turns, turn))), written)
    cap = {"max_tokens": 500} if written is MESSAGES else {"store": False}
    members = {"model": f"{MODEL}-{name}", **said.beside, written.history: said.messages, **cap, "stream": stream}
    return request(written.path, json.dumps(members).encode(), f"x-context-preset: {preset}")


def _cases(written: ReplayFormat) -> Iterator[Case]:
    for preset in PRESETS:
        for shape, (turn, fewest, most) in TURNS.items():
            for stream in (False, True):
                name = f"{written.name}-{preset}-{shape}{'-streamed' if stream else ''}"
                steps = (
                    _said(written, turn, turns, preset, name, stream=stream) for turns in range(fewest, most + 1, 3)
                )
                yield case(name, *steps)


# Whether a summary is made beside its request depends on how fast the machine is.
IN_THE_REQUEST = {"compaction": {"background": {"enabled": False}}}
GROUPS = tuple(Group(f"in-{written.name}", tuple(_cases(written)), IN_THE_REQUEST) for written in (MESSAGES, RESPONSES))
