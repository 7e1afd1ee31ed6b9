"""Responses through Steno, before a provider that refuses what OpenAI does: what is compacted, what passes, and why."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from lab.simulator import Fault, Simulator
from tests.e2e.compactions import NOTES
from tests.e2e.histories import turns
from tests.e2e.raw import Answer, post
from tests.e2e.running import WINDOW, StartSteno, Steno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, chunked, stream_head

PATH = "/v1/responses"
MODEL = "gpt-x"
LONG: Any = turns(15)
"""About 6,300 tokens, over the trigger of an 8,000 token window, and within it. Its messages are items as they are."""
TOO_LONG: Any = turns(22)
"""About 9,000."""
SHAPES = ("chunk", "start", "named", "comment", "off")
CODEX = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary."
TRIGGER: Any = {"type": "compaction_trigger"}


def body(items: Any = LONG, **members: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": items, **members}


def ask(steno: Steno, items: Any = LONG, *headers: bytes, **members: Any) -> Answer:
    return post(steno.url, body(items, **members), *headers, target=PATH, timeout=30.0)


def events(stream: bytes) -> list[Any]:
    """The data of every frame that has some."""
    frames = (frame.partition(b"data: ")[2] for frame in stream.split(b"\n\n"))
    return [json.loads(data) for data in frames if data]


def told(answered: Answer) -> tuple[str | None, str | None]:
    return answered.header("x-context-status"), answered.header("x-context-reason")


# The official client


def test_plain_answers_carry_the_status_and_are_else_as_sent(simulator: Simulator, steno: StartSteno) -> None:
    client = steno().sdk()
    for items, status in (("What is in my cart?", "full"), (LONG, "summarized")):
        raw = client.responses.with_raw_response.create(model=MODEL, input=items, instructions="Be brief.")
        answered: Any = raw.parse()
        sent = simulator.chats[-1]
        assert (answered.context_status, answered.context["status"], raw.headers["x-context-status"]) == (status,) * 3
        assert answered.output_text == sent.text
        assert answered.usage.model_dump(exclude_unset=True) == sent.usage
        assert sent.payload["instructions"] == "Be brief."
        assert bool(NOTES.search(sent.body)) == (status == "summarized")
    assert isinstance(simulator.chats[0].payload["input"], str), "a text stays one"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("store", [True, False])
def test_the_stream_helper_takes_every_shape_but_the_named_one(
    simulator: Simulator, steno: StartSteno, shape: str, store: bool
) -> None:
    """It throws on any event before `response.created`: `named` is for readers of raw frames, which get it whole."""
    simulator.next_summary(delay=0.1)
    served = steno()
    members: Any = {"extra_headers": {"x-context-events": shape}, "store": store}
    if shape == "named":
        frames = events(ask(served, LONG, b"x-context-events: named", stream=True, store=store).body)
        assert [frame["type"] for frame in frames[:3]] == [
            "context.compaction_started",
            "context.compaction_completed",
            "response.created",
        ]
        numbered = frames[2:]
        assert [frame["sequence_number"] for frame in numbered] == list(range(len(numbered)))
        return
    with served.sdk().responses.stream(model=MODEL, input=LONG, **members) as stream:
        came = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in came] == list(range(len(came)))
    assert final.output_text == simulator.chats[-1].text
    assert final.usage is not None
    assert final.usage.model_dump(exclude_unset=True) == simulator.chats[-1].usage
    ids = {response.id for event in came if (response := getattr(event, "response", None))}
    assert ids == {final.id}
    invented = final.id != f"resp_{simulator.chats[-1].sequence:024x}"
    assert invented == (shape == "start" and not store), "an id of ours would come back as previous_response_id"
    extra = [event.model_extra or {} for event in came]
    compaction = [each["compaction"]["type"] for each in extra if "compaction" in each]
    begun, done = "compaction_started", "compaction_completed"
    assert compaction == ([] if shape == "off" else [begun, done] if invented else [done])
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


def test_a_short_read_timeout_survives_a_slow_summary(simulator: Simulator, steno: StartSteno) -> None:
    """In the shapes that an SDK reads."""
    simulator.summary_default = Fault(delay=4.5)
    client = steno().sdk(timeout=3.0)

    def read(shape: str, store: bool) -> list[Any]:
        items = [{"role": "user", "content": f"In the shape {shape}."}, *LONG]
        asked: Any = {"model": MODEL, "input": items, "store": store, "extra_headers": {"x-context-events": shape}}
        with client.responses.stream(**asked) as stream:
            return list(stream)

    with ThreadPoolExecutor() as readers:
        for came in readers.map(read, ("chunk", "start", "comment"), (True, False, False)):
            assert came[-1].type == "response.completed"
            assert [event.sequence_number for event in came] == list(range(len(came)))
    assert len(simulator.summaries) == 3


# What passes, and says why


def test_what_would_be_compacted_elsewhere_is_made_to_fit_where_no_model_could_read_it(
    simulator: Simulator, steno: StartSteno
) -> None:
    """Behind Steno a client that compacts by reported usage does so late: its history has outgrown the window."""
    running = steno()
    for last in ({"role": "user", "content": CODEX}, TRIGGER):
        answered = ask(running, [*TOO_LONG, last])
        assert (answered.status, *told(answered)) == (200, "summarized", None)
        sent = simulator.chats[-1].payload["input"]
        assert sent[-1] == last
        assert NOTES.search(simulator.chats[-1].body)
    switched_off = ask(running, [*TOO_LONG, TRIGGER], b"x-context-compaction: off")
    assert (switched_off.status, *told(switched_off)) == (400, "full", "compaction_off")


def test_tokens_are_counted_of_what_would_be_forwarded(simulator: Simulator, steno: StartSteno) -> None:
    running = steno()
    counted = running.sdk().responses.input_tokens.with_raw_response.count(model=MODEL, input=LONG)
    assert counted.headers["x-context-status"] == "bypassed"
    assert simulator.others[-1].payload["input"] == LONG
    ask(running, LONG)
    forwarded = simulator.chats[-1].prompt_tokens
    asked = json.dumps(body()).encode()
    would_be = post(running.url, asked, b"x-context-count: forwarded", target=f"{PATH}/input_tokens")
    assert would_be.json["input_tokens"] == forwarded


# Overflow

TWICE: Any = [{"match": "*", "context_window": 2 * WINDOW}]
"""What the operator believes."""


def test_a_stream_that_was_opened_and_then_says_nothing_for_long_passes_as_it_came(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """It is held back for a second at most, in case a refusal follows."""
    names = ("response.created", "response.in_progress", "response.output_text.delta", "response.completed")
    members: Any = (
        {"response": {"id": "r1"}},
        {"response": {"id": "r1"}},
        {"delta": "Yes."},
        {"response": {"id": "r1"}},
    )
    frames = [
        b"event: %b\ndata: %b\n\n"
        % (name.encode(), json.dumps({"type": name, "sequence_number": number, **more}).encode())
        for number, (name, more) in enumerate(zip(names, members, strict=True))
    ]
    opened, rest = b"".join(frames[:2]), b"".join(frames[2:])
    scripted.then(stream_head() + chunked(opened), 1.4, chunked(rest) + LAST_CHUNK)
    answered = ask(before_scripted(models=TWICE), turns(8), stream=True)
    assert [event["type"] for event in events(answered.body)] == list(names)
    assert frames[1] + frames[2] in answered.body


@pytest.mark.parametrize("cut", ["reset", "close", "end"])
@pytest.mark.parametrize("items", ["Hello", LONG], ids=["untouched", "compacted"])
def test_a_stream_that_breaks_off_is_an_error_of_the_client(
    simulator: Simulator, steno: StartSteno, cut: Any, items: Any
) -> None:
    simulator.next_chat(cut=cut, after=4)
    with pytest.raises(openai.APIError, match=r"ended in the middle|closed the connection"):
        list(steno().sdk().responses.create(model=MODEL, input=items, stream=True))
