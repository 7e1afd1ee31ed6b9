"""Real clients of Responses through Steno: long conversations with tools and reasoning, plain and streamed.

The provider behind it refuses what the real one does: calls without outputs, reasoning apart from what follows it.
"""

from __future__ import annotations

import json
from itertools import count, cycle
from typing import Any

import openai
import pytest

from lab.simulator import ScriptedCall, Simulator
from tests.e2e.compactions import NOTES, compactions, statuses
from tests.e2e.running import StartSteno

MODEL = "gpt-think"
COMPACTIONS = 5
TOOLS: Any = [
    {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "custom", "name": "note"},
]
SEALED: Any = {"store": False, "include": ["reasoning.encrypted_content"]}
"""What a client asks for that keeps the reasoning itself."""
FILLER = "the clerk reads aloud what stands in the order and the customer explains why it came too late to the door "


def test_a_client_that_keeps_its_reasoning_goes_through_five_compactions(
    simulator: Simulator, steno: StartSteno
) -> None:
    """Two conversations side by side, one plain and one streamed, with calls of two families and instructions."""
    client = steno().sdk()
    talks = [Talk(client, simulator, "Answer as the clerk.", stream) for stream in (False, True)]
    for talk in cycle(talks):
        talk.turn()
        if all(talk.compactions >= COMPACTIONS for talk in talks):
            break
    assert statuses(simulator) == {200}


class Talk:
    """One conversation of a client that sends back all that it got."""

    def __init__(self, client: openai.OpenAI, simulator: Simulator, instructions: str, stream: bool) -> None:
        self.items: list[Any] = []
        self._client = client
        self._simulator = simulator
        self._instructions = instructions
        self._stream = stream
        self._numbers = count(1)
        self._mark = f"conversation {id(self)}"

    @property
    def compactions(self) -> int:
        return compactions(self._simulator.chats, self._mark)

    def turn(self) -> None:
        number = next(self._numbers)
        question = f"Question {number} of {self._mark}: where is order ORD-{number:04d}? {FILLER * 50}"
        self.items.append({"role": "user", "content": question})
        look_up, note = ScriptedCall(name="look_up", arguments='{"a": 1}'), ScriptedCall(name="note", arguments="so")
        for calls in ([look_up, note, look_up], [note], []):
            if calls:
                self._simulator.next_chat(tool_calls=calls, thinking="Hm.")
            response = self._ask()
            self.items += response.output
            asked = [item for item in response.output if item.type in ("function_call", "custom_tool_call")]
            assert len(asked) == len(calls)
            for call in reversed(asked):
                found = f"{call.call_id}: ORD-{number:04d} {FILLER * 8}"
                self.items.append({"type": f"{call.type}_output", "call_id": call.call_id, "output": found})
        assert self.items[-1].content[0].text == self._simulator.chats[-1].text

    def _ask(self) -> Any:
        asked: Any = {"model": MODEL, "input": self.items, "tools": TOOLS, "instructions": self._instructions, **SEALED}
        if self._stream:
            with self._client.responses.stream(**asked) as stream:
                events = list(stream)
                response: Any = stream.get_final_response()
            assert [event.sequence_number for event in events] == list(range(len(events)))
            told = (events[0].model_extra or {})["context_status"]
        else:
            response = self._client.responses.create(**asked)
            told = response.context_status
            assert told == response.context["status"]
        sent = self._simulator.chats[-1]
        assert response.usage.input_tokens == (sent.usage or {})["input_tokens"]
        assert (told == "summarized") == bool(NOTES.search(sent.body))
        user = [item for item in sent.payload["input"] if item.get("role") == "user"][-1]
        assert user == [item for item in self.items if isinstance(item, dict) and item.get("role") == "user"][-1]
        assert sent.payload["instructions"] == self._instructions
        return response


async def test_an_agent_goes_through_five_compactions(simulator: Simulator, steno: StartSteno) -> None:
    """Its runs go on with all items of those before; what it looks up comes in parallel. The provider keeps the
    answers, as it does unasked, so that reasoning comes without its content."""
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    def look_up(name: str) -> str:
        return f"{name}: {FILLER * 4}"

    look_up_twice = [ScriptedCall(name="look_up", arguments=json.dumps({"name": name})) for name in ("cart", "order")]
    items: list[Any] = []
    async with openai.AsyncOpenAI(base_url=steno().base_url, api_key="sk-test", max_retries=0) as client:
        model = agents.OpenAIResponsesModel(MODEL, client)
        tools = [agents.function_tool(look_up)]
        agent = agents.Agent(name="clerk", instructions="Be brief.", tools=tools, model=model)
        for number in count(1):
            items.append({"role": "user", "content": f"Question {number}: ORD-{number:04d}? {FILLER * 80}"})
            simulator.next_chat(tool_calls=look_up_twice)
            result = agents.Runner.run_streamed(agent, items)
            kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
            assert kinds.count("response.created") == kinds.count("response.completed") == 2
            assert result.final_output == simulator.chats[-1].text
            items = result.to_input_list()
            if compactions(simulator.chats) >= COMPACTIONS:
                break
    assert statuses(simulator) == {200}
    assert not any(b'"encrypted_content"' in record.body for record in simulator.chats)
    assert {record.payload["instructions"] for record in simulator.chats} == {"Be brief."}
