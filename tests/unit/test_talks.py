"""The benchmarks' own conversations: valid, as long as asked for, the same each time, and made of real files."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lab.benchmarks import talks
from lab.replay.evidence import SentMessages, split_pairs
from lab.replay.recordings import Recording


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A checkout whose files do not change with ours."""
    (tmp_path / "app").mkdir()
    for number in range(40):
        lines = (f"value_{number}_{line} = compute({line}, {number})" for line in range(30 + number))
        (tmp_path / "app" / f"module_{number}.py").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("kind", ["chat", "agent"])
def test_conversation_is_the_same_for_a_seed_and_as_long_as_asked_for(kind: str, sources: Path) -> None:
    make: Callable[..., Recording] = talks.chat if kind == "chat" else partial(talks.agent, root=sources)
    one = make(6_000, words)
    assert one == make(6_000, words) != make(6_000, words, seed=2)
    assert 6_000 < size(one) < 6_000 * 2
    assert len(make(60_000, words).messages) > 5 * len(one.messages)


def size(recording: Recording) -> int:
    return sum(words(json.dumps(message)) + talks.MESSAGE_TOKENS for message in recording.messages)


def test_agent_calls_and_results_are_paired_with_an_id_for_each(sources: Path) -> None:
    reader = SentMessages()
    messages = [
        reader.read(json.dumps(message).encode()) for message in talks.agent(30_000, words, root=sources).messages
    ]
    assert not split_pairs(messages)
    called = [call for message in messages for call in message.calls]
    assert len(called) == len(set(called)) > 50
    assert [message.role for message in messages].count("user") > 2


def test_agent_reads_the_files_as_they_are() -> None:
    messages = talks.agent(8_000, words).messages
    read = {
        call["id"]: json.loads(call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls", ())
        if call["function"]["name"] == "read_file"
    }
    results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    assert read
    for call_id, asked in read.items():
        lines = (talks.ROOT / asked["path"]).read_text().splitlines()[asked["first_line"] - 1 :]
        assert results[call_id] == "\n".join(lines[: talks.LONGEST_READ])


def test_agent_reads_on_where_the_files_are_few(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "one.py").write_text("print(1)\n")
    assert size(talks.agent(2_000, words, root=tmp_path)) > 2_000
