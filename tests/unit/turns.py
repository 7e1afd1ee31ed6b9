"""Turns as each wire format holds them, read by the format itself: for properties of what core makes of them.

Small ones, drawn so that what fails can be made smaller; of a turn's kinds the ones that are peculiar to a format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from app.conversation.messages import Message
from app.formats.format import WireFormat
from app.formats.messages.format import MESSAGES
from app.formats.reader import MessageReader
from app.formats.responses.format import RESPONSES
from tests.unit.conversations import IDENTITY, message, words

Said = dict[str, Any]
Turn = Callable[[int], st.SearchStrategy[list[Message]]]
"""The turn of that number."""


def read(format_: WireFormat, said: Sequence[Said]) -> list[Message]:
    reader = MessageReader(IDENTITY, format_.message)
    return list(reader.read([json.dumps(each).encode() for each in said]))


@st.composite
def chat_turn(draw: st.DrawFn, number: int) -> list[Message]:
    """A user message, tool steps with parallel calls, an answer; sometimes instructions in the middle."""
    size = draw(st.integers(1, 900))
    steps: list[Message] = [message("user", f"u{number} {words(size)}")]
    if draw(st.integers(0, 9)) == 0:
        steps.append(message("developer", f"d{number} {words(3)}"))
    for step in range(draw(st.integers(0, 3))):
        calls = [f"t{number}.{step}.{call}" for call in range(draw(st.integers(1, 3)))]
        steps.append(message("assistant", calls=calls, tokens=10))
        steps += [message("tool", words(draw(st.integers(1, 400)), f"r{call}"), answers=call) for call in calls]
    return [*steps, message("assistant", f"a{number} {words(draw(st.integers(1, 300)))}")]


@st.composite
def messages_turn(draw: st.DrawFn, number: int) -> list[Message]:
    """Thinking that is tied to its prompt, all results of a step in one message of the user's, who may say more in it,
    and a pause of the provider's between its own call and the result of that."""

    def thoughts() -> list[Said]:
        thought = {"type": "thinking", "thinking": words(20, f"th{number}"), "signature": "s"}
        return [thought] if draw(st.booleans()) else []

    def text(most: int, word: str) -> Said:
        return {"type": "text", "text": f"{word}{number} {words(draw(st.integers(1, most)))}"}

    said: list[Said] = [{"role": "user", "content": [text(900, "u")]}]
    if draw(st.integers(0, 9)) == 0:
        said.append({"role": "system", "content": f"d{number} {words(3)}"})
    for step in range(draw(st.integers(0, 3))):
        calls = [f"t{number}_{step}_{call}" for call in range(draw(st.integers(1, 3)))]
        uses = [{"type": "tool_use", "id": call, "name": "find", "input": {"a": words(9)}} for call in calls]
        said.append({"role": "assistant", "content": [*thoughts(), *uses]})
        results = [{"type": "tool_result", "tool_use_id": call, "content": [text(400, "r")]} for call in calls]
        more = [text(50, "m")] if draw(st.integers(0, 3)) == 0 else []
        said.append({"role": "user", "content": [*results, *more]})
    begun: list[Said] = []
    if draw(st.integers(0, 5)) == 0:
        use = {"type": "server_tool_use", "id": f"s{number}", "name": "web_search", "input": {"query": "q"}}
        said.append({"role": "assistant", "content": [*thoughts(), use]})
        begun = [{"type": "web_search_tool_result", "tool_use_id": f"s{number}", "content": []}]
    return read(MESSAGES, [*said, {"role": "assistant", "content": [*begun, *thoughts(), text(300, "a")]}])


@st.composite
def responses_turn(draw: st.DrawFn, number: int) -> list[Message]:
    """Reasoning that is bound to the item behind it, each call an item, and results in any order behind them."""
    ids = iter(range(100))

    def thinking(item: Said) -> list[Said]:
        id_ = f"rs_{number}_{next(ids)}"
        thought = {"type": "reasoning", "id": id_, "summary": [], "encrypted_content": "gAAA" * 9}
        return [thought, item] if draw(st.booleans()) else [item]

    def size(most: int) -> int:
        return draw(st.integers(1, most))

    said: list[Said] = [{"role": "user", "content": f"u{number} {words(size(900))}"}]
    if draw(st.integers(0, 9)) == 0:
        said.append({"role": "developer", "content": f"d{number} {words(3)}"})
    for step in range(draw(st.integers(0, 3))):
        calls = [f"call_{number}_{step}_{call}" for call in range(size(3))]
        for call in calls:
            said += thinking({"type": "function_call", "call_id": call, "name": "find", "arguments": '{"a": 1}'})
        said += [
            {"type": "function_call_output", "call_id": call, "output": words(size(400), f"r{call}")}
            for call in draw(st.permutations(calls))
        ]
        if draw(st.integers(0, 3)) == 0:
            said += thinking({"type": "web_search_call", "id": f"ws_{number}_{step}", "status": "completed"})
    answer = [{"type": "output_text", "text": f"a{number} {words(size(300))}", "annotations": []}]
    return read(RESPONSES, [*said, *thinking({"type": "message", "role": "assistant", "content": answer})])


TURNS: dict[str, Turn] = {"chat_completions": chat_turn, "messages": messages_turn, "responses": responses_turn}
