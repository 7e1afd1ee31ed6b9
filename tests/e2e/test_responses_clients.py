"""Clients of Responses through Steno, before a provider that refuses what the real one does: calls without outputs,
reasoning apart from what follows it."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import openai
import pytest

from app.formats.compaction_events import EVENT_SHAPES
from lab.simulator import ScriptedCall, Simulator
from tests.e2e.compactions import compactions, statuses
from tests.e2e.histories import turns
from tests.e2e.running import StartSteno

MODEL = "gpt-think"
COMPACTIONS = 5
FILLER = "the clerk reads aloud what stands in the order and the customer explains why it came too late to the door "


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


@pytest.mark.parametrize("shape", EVENT_SHAPES)
def test_the_stream_helper_takes_every_shape(simulator: Simulator, steno: StartSteno, shape: str) -> None:
    """It throws on any event before `response.created`."""
    simulator.next_summary(delay=0.1)
    served = steno()
    members: Any = {"extra_headers": {"x-context-events": shape}}
    with served.sdk().responses.stream(model="gpt-x", input=turns(15), **members) as stream:
        came = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in came] == list(range(len(came)))
    assert final.output_text == simulator.chats[-1].text
    assert final.usage is not None
    assert final.usage.model_dump(exclude_unset=True) == simulator.chats[-1].usage
    ids = {response.id for event in came if (response := getattr(event, "response", None))}
    assert ids == {final.id}
    assert final.id == f"resp_{simulator.chats[-1].sequence:024x}", "it may come back as previous_response_id"
    extra = [event.model_extra or {} for event in came]
    compaction = [each["compaction"]["type"] for each in extra if "compaction" in each]
    assert compaction == ([] if shape == "off" else ["compaction_completed"])
    assert "summarized" in [each.get("context_status") for each in extra[:3]]
    assert len(simulator.summaries) == 1
