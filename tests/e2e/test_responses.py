"""Responses through Steno, before a provider that refuses what OpenAI does: what is compacted, what passes, and why."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from lab.simulator import Simulator
from tests.e2e.histories import turns
from tests.e2e.raw import Answer, post
from tests.e2e.running import StartSteno, Steno

PATH = "/v1/responses"
MODEL = "gpt-x"
LONG: Any = turns(15)
"""About 6,300 tokens, over the trigger of an 8,000 token window, and within it. Its messages are items as they are."""
SHAPES = ("chunk", "comment", "off")


def body(items: Any = LONG, **members: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": items, **members}


def ask(steno: Steno, items: Any = LONG, *headers: bytes, **members: Any) -> Answer:
    return post(steno.url, body(items, **members), *headers, target=PATH, timeout=30.0)


def events(stream: bytes) -> list[Any]:
    """The data of every frame that has some."""
    frames = (frame.partition(b"data: ")[2] for frame in stream.split(b"\n\n"))
    return [json.loads(data) for data in frames if data]


# The official client


@pytest.mark.parametrize("shape", SHAPES)
def test_the_stream_helper_takes_every_shape(simulator: Simulator, steno: StartSteno, shape: str) -> None:
    """It throws on any event before `response.created`."""
    simulator.next_summary(delay=0.1)
    served = steno()
    members: Any = {"extra_headers": {"x-context-events": shape}}
    with served.sdk().responses.stream(model=MODEL, input=LONG, **members) as stream:
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


def test_what_is_parsed_is_parsed_through_a_compaction(simulator: Simulator, steno: StartSteno) -> None:
    class Order(BaseModel):
        number: str

    for _ in range(2):
        simulator.next_chat(text='{"number": "ORD-0007"}')
    client = steno().sdk()
    parsed = client.responses.parse(model=MODEL, input=LONG, text_format=Order)
    assert parsed.output_parsed == Order(number="ORD-0007")
    with client.responses.stream(model=MODEL, input=LONG, text_format=Order) as stream:
        assert stream.get_final_response().output_parsed == Order(number="ORD-0007")
    sent = simulator.chats[-1].payload
    assert sent["text"]["format"]["name"] == "Order"
    assert len(simulator.summaries) == 1


# Overflow


def test_a_stream_that_breaks_off_is_an_error_of_the_client(simulator: Simulator, steno: StartSteno) -> None:
    simulator.next_chat(cut="reset", after=4)
    with pytest.raises(openai.APIError, match=r"ended in the middle|closed the connection"):
        list(steno().sdk().responses.create(model=MODEL, input=LONG, stream=True))
