"""Conversations with thinking that its provider takes back only behind the very prompt it was made behind.

Each is a client's own loop over Messages: turns with tool calls in a row and side by side, moving marks of the cache,
instructions in mid-history, and answers taken back as they came. What a turn calls for stands in its text, and the
simulator's script relies on that: so several conversations can go on beside each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice, pairwise
from random import Random
from typing import Any

import httpx2

from lab.simulator import ScriptedCall, Simulator
from lab.simulator.log import Record

MODEL = "claude-bind"
MARK = {"type": "ephemeral"}
TOOLS = [{"name": "look_up", "description": "Finds an order.", "input_schema": {"type": "object"}}]
MOST_CALLS = 3
TURN_WORDS, RESULT_WORDS = (40, 180), (30, 280)
_CALLING = re.compile(rb"CALL(\d)")
_FILLER = (
    "the parcel of the customer was sent to the old address and the clerk wrote down what was agreed so that nobody has"
    " to ask again before it returns to the warehouse where another colleague takes it over"
)

Json = dict[str, Any]


def script_calls(simulator: Simulator) -> None:
    """The model calls as many tools as the last message asks for with `CALL1` to `CALL3`."""
    for number in range(1, MOST_CALLS + 1):
        calls = [ScriptedCall(name="look_up", arguments=json.dumps({"order": n})) for n in range(number)]
        simulator.when(partial(_asks_for, number), tool_calls=calls)


def _asks_for(number: int, record: Record) -> bool:
    return _calls_in(record) == number


def _calls_in(record: Record) -> int:
    if record.kind != "chat" or not record.messages:
        return 0
    said = [message for message in record.messages if message["role"] != "system"]
    found = _CALLING.findall(json.dumps(said[-1]["content"]).encode())
    return int(found[-1]) if found else 0


@dataclass(slots=True)
class Thinker:
    """One conversation, and what became of it."""

    number: int
    random: Random
    streams: bool = False
    history: list[Json] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    made: list[frozenset[str]] = field(default_factory=list)
    """The summaries in each answer's payload, one after the other."""
    acts: list[tuple[str, ...]] = field(default_factory=list)
    adaptive: bool = False
    capricious: bool = False
    """Now and then it goes back, has a turn without thinking or one without compaction."""
    busy: bool = False
    """Its turns go on for many calls, so that most compactions come in the middle of one."""
    model: str = MODEL
    thoughtless: bool = False
    uncompacted: bool = False

    @property
    def name(self) -> str:
        return f"thinker {self.number}."

    @property
    def compactions(self) -> int:
        """How often summaries came that had not been there before."""
        return sum(bool(later - earlier) for earlier, later in pairwise([frozenset(), *self.made]))

    def ask(self) -> None:
        """The next turn's beginning."""
        if self.capricious and self.random.random() < 0.1:
            self._go_back()
        self.thoughtless, self.uncompacted = (self.capricious and self.random.random() < 0.1 for _ in range(2))
        told = f"Question {len(self.history)} about order ORD-{self.random.randint(0, 9999):04d}."
        self._say(f"{self._words(TURN_WORDS)} {told} {self._wish()}")
        if self.random.random() < 0.1:
            self.history.append({"role": "system", "content": f"It is minute {len(self.history)}."})

    def take(self, answer: Json) -> bool:
        """Takes an answer into the history. Whether the turn goes on, as there were calls."""
        self.history.append({"role": "assistant", "content": answer["content"]})
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        if calls:
            results = [self._result(call["id"]) for call in calls]
            results[-1]["content"] += f" {self._wish()}"
            self.history.append({"role": "user", "content": results})
        return bool(calls)

    def body(self) -> Json:
        """The request, with a mark on the system prompt and on the last thing that the user said."""
        messages: list[Json] = json.loads(json.dumps(self.history))
        for message in reversed(messages):
            if message["role"] == "user":
                if isinstance(message["content"], str):
                    message["content"] = [{"type": "text", "text": message["content"]}]
                message["content"][-1]["cache_control"] = MARK
                break
        thinking: Json = {"type": "adaptive"} if self.adaptive else {"type": "enabled", "budget_tokens": 1_024}
        if self.thoughtless:
            thinking = {"type": "disabled"}
        return {
            "model": self.model,
            "max_tokens": 1_200,
            "system": [{"type": "text", "text": f"You are {self.name}", "cache_control": MARK}],
            "tools": TOOLS,
            "thinking": thinking,
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "messages": messages,
            **({"stream": True} if self.streams else {}),
        }

    def headers(self) -> dict[str, str]:
        named = {"x-api-key": f"sk-{self.number % 3}", "anthropic-version": "2023-06-01", "anthropic-beta": BETAS}
        return named | ({"x-context-compaction": "off"} if self.uncompacted else {})

    def _go_back(self) -> None:
        """To an earlier turn's beginning, which is then another one."""
        begun = [
            index
            for index, said in enumerate(self.history)
            if said["role"] == "user" and "tool_result" not in str(said["content"])[:40]
        ]
        if begun:
            del self.history[self.random.choice(begun[-3:]) :]

    def _wish(self) -> str:
        calls = ["CALL1", "CALL2", "CALL3"]
        return self.random.choice(["Thanks.", *calls * 4] if self.busy else ["Thanks."] * 5 + calls)

    def _say(self, text: str) -> None:
        is_text = self.random.random() < 0.5
        self.history.append({"role": "user", "content": text if is_text else [{"type": "text", "text": text}]})

    def _result(self, id_: str) -> Json:
        return {"type": "tool_result", "tool_use_id": id_, "content": self._words(RESULT_WORDS)}

    def _words(self, bounds: tuple[int, int]) -> str:
        start = self.random.randrange(len(_FILLER))
        return " ".join(islice(cycle((_FILLER[start:] + _FILLER[:start]).split()), self.random.randint(*bounds)))


BETAS = "context-management-2025-06-27,interleaved-thinking-2025-05-14"


async def turn(client: httpx2.AsyncClient, thinker: Thinker, urls: Iterator[str], **headers: str) -> None:
    """One turn to its end, each request to the next of the addresses."""
    thinker.ask()
    while True:
        sent = {**thinker.headers(), **headers}
        answered = await client.post(f"{next(urls)}/v1/messages", json=thinker.body(), headers=sent)
        if answered.status_code != 200:
            thinker.refusals.append(answered.text)
            return
        answer = message_of(events_in(answered.text)) if thinker.streams else answered.json()
        context = answer.get("context") or {}
        thinker.made.append(frozenset(context.get("chunks", ())))
        thinker.acts.append(tuple(context.get("actions", ())))
        if not thinker.take(answer):
            return


def events_in(text: str) -> list[Json]:
    """The data of a stream's frames."""
    found = (frame.partition("data: ")[2] for frame in text.split("\n\n"))
    return [json.loads(data) for data in found if data]


def message_of(events: Iterable[Json]) -> Json:
    """The message that a stream tells, with what its last event says of the context. Raises what an event of an error
    says."""
    message: Json = {}
    blocks: list[Json] = []
    for event in events:
        match event:
            case {"type": "message_start", "message": begun}:
                assert not message, "it began twice"
                message = {**begun, "context_status": event.get("context_status")}
            case {"type": "content_block_start", "content_block": block}:
                blocks.append({**block, "written": ""})
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": piece}}:
                blocks[-1]["written"] += piece
            case {"type": "content_block_delta", "delta": grown}:
                [key] = set(grown) - {"type"}
                blocks[-1][key] += grown[key]
            case {"type": "message_delta", "delta": ended, **members}:
                usage = {**message["usage"], **members.pop("usage", {})}
                message |= {**ended, **members, "usage": usage}
            case {"type": "error", "error": error}:
                raise AssertionError(error)
    for block in blocks:
        written = block.pop("written")
        if block["type"] == "tool_use":
            block["input"] = json.loads(written)
    return {**message, "content": blocks}
