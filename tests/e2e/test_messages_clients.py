"""Messages through Steno, as Anthropic's client speaks it: through five compactions and more, with tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import anthropic
import pytest

from app.formats.compaction_events import EVENT_SHAPES, EventShape
from lab.simulator import ScriptedCall, Simulator
from tests.e2e.compactions import statuses
from tests.e2e.conftest import TABLES
from tests.e2e.histories import long_history
from tests.e2e.running import WINDOW, StartSteno, Steno

MODEL = "claude-bind"
COMPACTIONS, MOST_TURNS = 5, 60
TOOL: Any = {
    "name": "look_up",
    "description": "Finds an order.",
    "input_schema": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
}
CALL = ScriptedCall(name="look_up", arguments='{"order": "ORD-0007"}')
THINKING: Any = {"type": "enabled", "budget_tokens": 1_024}
CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")
_FILLER = "the clerk wrote down what was agreed about the parcel so that nobody has to ask the customer again"
FOUND = " ".join(islice(cycle(_FILLER.split()), 150))

Json = dict[str, Any]


@pytest.fixture
def simulator() -> Simulator:
    simulator = Simulator(window=WINDOW, models="any", tables=TABLES)
    call_where_asked(simulator)
    return simulator


def call_where_asked(simulator: Simulator) -> None:
    """The model calls a tool where the last message has a text that ends with "Find it?", a tool's own included."""
    asks = lambda text: text.endswith("Find it?")  # noqa: E731
    simulator.when(
        lambda record: record.kind == "chat" and any(map(asks, texts_of((record.messages or [{}])[-1].get("content")))),
        tool_calls=[CALL],
    )


def texts_of(content: Any) -> Iterator[str]:
    """All of a message's, those in results too."""
    if isinstance(content, str):
        yield content
    for block in content if isinstance(content, list) else ():
        yield from texts_of(block.get("text") or block.get("content"))


@dataclass
class Talk:
    """One conversation of one client."""

    client: anthropic.Anthropic
    history: list[Any] = field(default_factory=list)
    chunks: set[str] = field(default_factory=set)
    compactions: int = 0
    usage: Any = None

    @property
    def request(self) -> Json:
        return {
            "model": MODEL,
            "max_tokens": 1_200,
            "system": "You are the shop's clerk.",
            "tools": [TOOL],
            "thinking": THINKING,
            "messages": self.history,
        }

    def turn(self, number: int) -> None:
        ends = "Find it?" if number % 3 == 1 else "Thank you."
        self.history.append(
            {"role": "user", "content": f"{number}. {' '.join(islice(cycle(_FILLER.split()), 400))} {ends}"}
        )
        answer = self.ask()
        if answer.stop_reason == "tool_use":
            [call] = [block for block in answer.content if block.type == "tool_use"]
            self.history.append({"role": "user", "content": [result(call.id)]})
            answer = self.ask()
        assert answer.stop_reason == "end_turn"

    def ask(self) -> Any:
        """The answer, once it was noted."""
        status, context, texts = "", Json(), list[str]()
        with self.client.messages.stream(**self.request) as stream:
            for event in stream:
                status = getattr(event, "context_status", status)
                context = getattr(event, "context", context)
                if event.type == "text":
                    texts.append(event.text)
            message = stream.get_final_message()
        assert "".join(texts) == "".join(block.text for block in message.content if block.type == "text")
        assert status == context["status"]
        self.compactions += bool(set(context["chunks"]) - self.chunks)
        self.chunks |= set(context["chunks"])
        self.history.append({"role": "assistant", "content": message.content})
        self.usage = message.usage.to_dict()
        return message


def usage_of(told: Any) -> dict[str, int]:
    return {name: told[name] for name in ("input_tokens", "output_tokens", *CACHED)}


def result(id_: str) -> Json:
    return {"type": "tool_result", "tool_use_id": id_, "content": FOUND}


def client_of(steno: Steno, key: str = "sk-test", **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=steno.url, api_key=key, max_retries=0, **{"timeout": 30.0, **options})


def test_anthropics_client_goes_through_five_compactions_with_tools(simulator: Simulator, steno: StartSteno) -> None:
    """Two tenants with the same words, in turns. Usage, reasons and texts are the provider's own."""
    running = steno()
    with client_of(running, "sk-one") as one, client_of(running, "sk-two") as two:
        talks = [Talk(client) for client in (one, two)]
        for number in range(MOST_TURNS):
            for talk in talks:
                talk.turn(number)
                told, answer = simulator.chats[-1], talk.history[-1]["content"]
                assert [block.text for block in answer if block.type == "text"] == [told.text]
                assert usage_of(talk.usage) == usage_of(told.usage)
            if min(talk.compactions for talk in talks) >= COMPACTIONS:
                break
        assert [talk.compactions >= COMPACTIONS for talk in talks] == [True, True]
        assert not talks[0].chunks & talks[1].chunks
    assert statuses(simulator) <= {200, 400}, "thinking that is refused after a compaction in mid-turn is tried without"


# Streams that begin early


@dataclass(frozen=True)
class Heard:
    """A stream as the helper of the client tells it."""

    events: list[Any]
    message: Any


def hear(client: anthropic.Anthropic, **changes: Any) -> Heard:
    asked: Any = {"model": "claude-plain", "max_tokens": 500, "messages": long_history(), **changes}
    with client.messages.stream(**asked) as stream:
        return Heard(list(stream), stream.get_final_message())


@pytest.mark.parametrize("shape", EVENT_SHAPES)
def test_the_helper_reads_a_stream_that_began_early_in_every_shape(
    simulator: Simulator, steno: StartSteno, shape: EventShape
) -> None:
    with client_of(steno(), default_headers={"x-context-events": shape}) as client:
        heard = hear(client)
    told = simulator.chats[-1]
    assert [event.type for event in heard.events].count("message_start") == 1
    assert heard.message.content[0].text == told.text
    assert heard.message.stop_reason == "end_turn"
    assert usage_of(heard.message.usage.to_dict()) == usage_of(told.usage)
    [ended] = [event for event in heard.events if event.type == "message_delta"]
    if shape != "off":
        assert ended.context["actions"] == ["summarized", "user_words"]
    assert {summary.status for summary in simulator.summaries} == {200}
