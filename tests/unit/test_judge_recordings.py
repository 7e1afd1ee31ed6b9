"""Recordings for replays: the shapes of files, and conversations chained into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.replay.recordings import Recording, chain, read_recordings

CALL: Any = {"id": "call_a", "type": "function", "function": {"name": "find", "arguments": "{}"}}
AGENT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_a", "content": "Turku"},
    {"role": "assistant", "content": "In Turku."},
]
DIALOGUE: dict[str, Any] = {
    "id": "talk",
    "speakers": ["Ada", "Ben"],
    "sessions": [
        {"date_time": "1 May", "turns": [{"speaker": "Ben", "text": "Hi!"}, {"speaker": "Ada", "text": "Hello."}]},
        {"date_time": "2 May", "turns": [{"speaker": "Ada", "text": "Back."}, {"speaker": "Ben", "text": "Good."}]},
    ],
}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "talks.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_dialogue_has_roles_for_speakers_and_dates_for_sessions(tmp_path: Path) -> None:
    [talk] = read_recordings(written(tmp_path, DIALOGUE))
    assert talk.messages == (
        {"role": "assistant", "content": "[1 May] Hi!"},
        {"role": "user", "content": "Hello.\n[2 May] Back."},
        {"role": "assistant", "content": "Good."},
    )
    assert talk.requests == (2,)  # Nobody asked for the first one.


def test_chain_drops_later_instructions_and_renames_tool_calls() -> None:
    [both, rest] = chain([Recording(name, tuple(AGENT)) for name in "abc"], 2)
    assert [message["role"] for message in both.messages].count("system") == 1
    ids = [call["id"] for message in both.messages for call in message.get("tool_calls", ())]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in both.messages if message["role"] == "tool"] == ids
    assert (both.name, rest.name) == ("a+1", "c+0")
    assert AGENT[2]["tool_calls"] == [CALL]
