"""What a client puts into user messages for good, and what the user asked, beside large results and at length."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.compactions import statuses
from tests.e2e.conftest import TABLES
from tests.e2e.running import WINDOW, StartSteno, Steno
from tests.e2e.test_three_formats import CHAT, MESSAGES, RESPONSES, Written, call

RULES = (
    "<system-reminder>\nAs you answer the user's questions, you can use the following context:\n# claudeMd\nContents of"
    " /srv/shop/CLAUDE.md (project instructions):\n\nNever touch the folder `ledger`. Tests run with `just check`.\n"
    "      \n      IMPORTANT: this context may or may not be relevant to your tasks.\n</system-reminder>\n"
)
REMINDER = "<system-reminder>\nThe task list is empty. Do not mention it.\n</system-reminder>"
TASK = "Find out why invoice INV-7731 was sent twice, and fix it."
TOOLS = [{"name": "read", "description": "Reads a page.", "input_schema": {"type": "object"}}]


def environment(folder: str) -> str:
    return f"<environment_context>\n  <cwd>{folder}</cwd>\n  <shell>zsh</shell>\n</environment_context>"


def filler(number: int, size: int = 150) -> str:
    return " ".join(f"row {number}-{place} is in order;" for place in range(size // 6))


def text(said: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": said}


def step_of_messages(number: int, size: int = 150) -> list[Any]:
    """A call and its result, with a reminder beside it as Claude Code sends it."""
    use = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"page": number}}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": filler(number, size)}
    return [
        {"role": "assistant", "content": [text(f"Page {number}."), use]},
        {"role": "user", "content": [result, text(REMINDER)]},
    ]


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(models="any", window=WINDOW, tables=TABLES, summary_words=60)


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    return steno(
        upstream={"formats": [each.name for each in (CHAT, MESSAGES, RESPONSES)]},
        compaction={"background": {"enabled": False}, "mask": {"enabled": False}},
    )


def said(sent: bytes) -> list[str]:
    """All texts that a payload holds, each once for each time that it stands there."""

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            yield from chain.from_iterable(map(texts, value.values() if isinstance(value, dict) else value))

    return list(texts(json.loads(sent)))


def holds(sent: bytes, part: str) -> bool:
    return any(part in each for each in said(sent))


def play(running: Steno, written: Written, history: list[Any], name: str) -> Any:
    tools = {"tools": TOOLS} if written is MESSAGES else {}
    named = f"x-context-conversation-id: {name}".encode()
    answered = call(running, written.path, written.body(history, **tools), named)
    assert answered.status == 200, answered.body
    return answered


def test_a_large_result_beside_the_users_words_is_shortened_and_they_are_not(
    simulator: Simulator, running: Steno
) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": filler(1, 12_000)}
    history = [
        {"role": "user", "content": [text(RULES), text("Look.")]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, text(TASK)]},
    ]
    answered = play(running, MESSAGES, history, "large")
    assert answered.header("x-context-status") == "trimmed"
    [sent] = simulator.chats
    [shortened, own] = json.loads(sent.body)["messages"][-1]["content"]
    assert own == text(TASK)
    assert "characters in all, shortened" in shortened["content"]
    assert shortened["tool_use_id"] == "toolu_1"
    assert holds(sent.body, RULES)


def test_instructions_over_a_tenth_of_the_limit_are_named(simulator: Simulator, running: Steno) -> None:
    rules = RULES.replace("\n      \n", filler(0, 1_500))
    history: list[Any] = [{"role": "user", "content": [text(rules), text(environment("/srv")), text(TASK)]}]
    reason = None
    for number in range(60):
        history += [
            *step_of_messages(number),
            {"role": "assistant", "content": f"Done with {number}."},
            {"role": "user", "content": f"Go on with part {number}."},
        ]
        answered = play(running, MESSAGES, history, "long")
        if reason := answered.header("x-context-reason"):
            break
    assert reason is not None
    assert reason.startswith("client_instructions_too_long: <system-reminder> As you answer the user's questions")
    assert " tokens)" in reason
    assert "environment" not in reason
    assert holds(simulator.chats[-1].body, environment("/srv"))
    assert not holds(simulator.chats[-1].body, rules)
    assert statuses(simulator) == {200}
