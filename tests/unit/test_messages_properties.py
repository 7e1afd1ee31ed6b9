"""What holds for every history of Messages, under every preset: no payload is one that the API would refuse.

The judge is the simulator's, which knows nothing of Steno. Histories are legal ones, turn by turn, of all that a
Messages client sends; those of other formats, and odd ones, are tried in `test_policies_properties`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.compaction.view import Conversation
from app.formats.messages.format import MESSAGES
from app.formats.messages.messages import read_message, render
from app.formats.reader import MessageReader
from app.settings.presets import PRESET_NAMES, PresetName
from app.tokens.declarations import Declarations
from lab.simulator.messages.binding import prefix_of, seal
from lab.simulator.messages.judge import check
from lab.simulator.refusals import refused_by
from tests.unit.test_policies_properties import ESTIMATOR, IDENTITY, Asked, Steno, words

EXAMPLES = (100_000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 50) // len(PRESET_NAMES)
CASES = settings(max_examples=EXAMPLES, deadline=None)
MOST_REQUESTS = 8
"""Of a history that are played: what the others would show, other histories do."""
PRESETS = pytest.mark.parametrize("preset", PRESET_NAMES)
SEEDS = st.integers(0, 2**32)
READER = MessageReader(IDENTITY, read_message)
PREFIX = prefix_of({})
"""Behind which the model thought: another one than it stands behind, which older models do not mind."""
TOOLS = [{"name": "tool", "input_schema": {"type": "object"}}]

Block = dict[str, Any]
Said = dict[str, Any]


class Talk:
    """A client's history, and the places in it where a request was sent."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._calls = 0
        self.messages: list[Said] = []
        self.requests: list[int] = []
        for _ in range(random.randint(1, 12)):
            self._turn()

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _text(self, most: int = 200) -> Block:
        return {"type": "text", "text": self._words(most)}

    def _words(self, most: int) -> str:
        """With an exact value here and there, or many."""
        numbers = range(self._random.choice([0, 0, 1, 40]))
        return " ".join([words(self._random, most), *(f"ORD-{self._random.randrange(10**6):06}" for _ in numbers)])

    def _turn(self) -> None:
        self._ask([self._text(self._random.choice([30, 200, 2_500])), *self._others()])
        for _ in range(self._random.choice([0, 0, 1, 2, 6])):
            self._step()
        if self._chance(0.15):
            self._pause()
        self._say([*self._thoughts(), *self._searched(), self._text()])

    def _ask(self, content: list[Block]) -> None:
        is_text = len(content) == 1 and content[0].keys() == {"type", "text"} and self._chance(0.5)
        self.messages.append({"role": "user", "content": content[0]["text"] if is_text else content})
        if self._chance(0.2):
            self.messages += [{"role": "system", "content": words(self._random, 20)}] * self._random.randint(1, 2)
        self.requests.append(len(self.messages))

    def _say(self, content: list[Block]) -> None:
        is_text = [block["type"] for block in content] == ["text"] and self._chance(0.5)
        self.messages.append({"role": "assistant", "content": content[0]["text"] if is_text else content})

    def _others(self) -> list[Block]:
        held: list[Block] = [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": self._text()["text"]}},
            {"type": "search_result", "source": "s", "title": "t", "content": [self._text()]},
        ]
        return self._random.sample(held, self._random.choice([0, 0, 0, 1, 2]))

    def _thoughts(self) -> list[Block]:
        text = f"{words(self._random, 50)} {self._random.random()}"
        thought = {"type": "thinking", "thinking": text, "signature": seal(PREFIX, text)}
        return self._random.choice([[], [thought], [thought, {"type": "redacted_thinking", "data": seal(PREFIX, "")}]])

    def _id(self) -> str:
        self._calls += 1
        return f"c{self._calls}"

    def _searched(self) -> list[Block]:
        return self._search(self._id()) if self._chance(0.2) else []

    def _search(self, id_: str) -> list[Block]:
        found = {"type": "web_search_result", "title": "t", "url": "u", "encrypted_content": "e"}
        return [
            {"type": "server_tool_use", "id": id_, "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": id_, "content": [found] * self._random.randint(0, 9)},
        ]

    def _step(self) -> None:
        calls = [self._id() for _ in range(self._random.randint(1, 3))]
        told = [self._text(80)] if self._chance(0.4) else []
        uses = [
            {"type": "tool_use", "id": id_, "name": "tool", "input": {"a": words(self._random, 900)}} for id_ in calls
        ]
        self._say([*self._thoughts(), *told, *self._searched(), *uses])
        results = [self._result(id_) for id_ in self._random.sample(calls, len(calls))]
        self._ask([*results, *([self._text()] if self._chance(0.25) else [])])

    def _result(self, id_: str) -> Block:
        text = self._words(self._random.choice([50, 500, 500, 4_000]))
        content: Any = text if self._chance(0.6) else [{"type": "text", "text": text}, *self._others()[:1]]
        return {"type": "tool_result", "tool_use_id": id_, "content": content}

    def _pause(self) -> None:
        use, result = self._search(self._id())
        self._say([*self._thoughts(), use])
        self.requests.append(len(self.messages))
        self._say([result, self._text()])


def body_of(random: Random, messages: Sequence[Said]) -> dict[str, Any]:
    """With up to four marks of the cache, those of an hour first."""
    body: dict[str, Any] = {"model": "claude-sonnet-4-5", "max_tokens": 200, "tools": TOOLS}
    body |= random.choice([{}, {"system": "be brief"}, {"system": [{"type": "text", "text": "be brief"}]}])
    body = json.loads(json.dumps({**body, "messages": list(messages)}))
    places = list(_markable(body))
    marked = sorted(random.sample(range(len(places)), min(len(places), random.randint(0, 4))))
    hours = random.randint(0, 2)
    for number, place in enumerate(marked):
        places[place]["cache_control"] = {"type": "ephemeral", **({"ttl": "1h"} if number < hours else {})}
    return body


def _markable(body: dict[str, Any]) -> Iterator[Block]:
    yield from body["tools"]
    if isinstance(body.get("system"), list):
        yield from body["system"]
    for message in body["messages"]:
        if isinstance(message["content"], list):
            for block in message["content"]:
                if isinstance(block.get("content"), list) and block["type"] == "tool_result":
                    yield from (inner for inner in block["content"] if inner["type"] == "text")
                if block["type"] in ("text", "image", "document", "tool_use", "tool_result"):
                    yield block


def asked(raw: bytes, pins: Sequence[int] = ()) -> Asked:
    slices = MESSAGES.read(raw).raw_messages
    read = READER.read(slices)
    prompt = ESTIMATOR.prompt("gpt-4o", read, b"", Declarations)
    talk = Conversation(read, IDENTITY, "t", prompt.costs, None)
    pinned = tuple(sorted({pin for pin in pins if pin < len(talk.transcript)}))
    return Asked(list(slices), talk, prompt, pinned)


def sent(request: Asked, steno: Steno, raw: bytes, *, alternate: bool) -> dict[str, Any] | None:
    decision = steno.decided(request)
    if decision.view is None:
        return None
    payload = MESSAGES.read(raw).with_messages(render(request.talk, decision.view, alternate))
    told: dict[str, Any] = json.loads(payload)
    return told


@PRESETS
@CASES
@given(SEEDS)
def test_no_payload_is_one_that_the_api_refuses(preset: PresetName, seed: int) -> None:
    random = Random(seed)
    talk, alternate = Talk(random), random.random() < 0.5
    steno = Steno(preset, alternates=alternate, recalls=True)
    pins = [random.randint(0, 30)] if random.random() < 0.2 else []
    for stop in sorted(random.sample(talk.requests, min(len(talk.requests), MOST_REQUESTS))):
        body = body_of(random, talk.messages[:stop])
        assert refused_by(check, body) is None, "the client's own request has to be legal"
        raw = json.dumps(body).encode()
        payload = sent(asked(raw, pins), steno, raw, alternate=alternate)
        if payload is None:
            continue
        assert refused_by(check, payload) is None
        assert {**payload, "messages": []} == {**body, "messages": []}
        check_contents(body, payload)
        if alternate:
            roles = [message["role"] for message in payload["messages"]]
            assert ("user", "user") not in set(pairwise(roles))
            assert rows_of_the_assistant(payload) <= rows_of_the_assistant(body), "those of a paused turn stay"


@PRESETS
@CASES
@given(SEEDS)
def test_odd_histories_are_compacted_or_passed_and_never_fail(preset: PresetName, seed: int) -> None:
    """Blocks and messages are missing, doubled, in another order: a provider would refuse them, and is to do so."""
    random = Random(seed)
    messages = [json.loads(json.dumps(message)) for message in Talk(random).messages]
    for _ in range(random.randint(1, 8)):
        place = random.randrange(len(messages))
        odd = random.choice([None, [], "", [{"type": "text"}], [7], {}, random.choice(messages)["content"]])
        match random.randrange(4):
            case 0:
                messages.insert(place, random.choice(messages))
            case 1 if len(messages) > 1:
                del messages[place]
            case 2:
                messages[place] = {**messages[place], "content": odd}
            case _:
                messages[place] = {**messages[place], "role": random.choice(["user", "assistant", "system", "tool"])}
    raw = json.dumps({"model": "m", "messages": messages}).encode()
    payload = sent(asked(raw), Steno(preset), raw, alternate=random.random() < 0.5)
    assert payload is None or payload["messages"]


def rows_of_the_assistant(body: dict[str, Any]) -> int:
    roles = [message["role"] for message in body["messages"] if message["role"] != "system"]
    return sum(pair == ("assistant", "assistant") for pair in pairwise(roles))


def check_contents(body: dict[str, Any], payload: dict[str, Any]) -> None:
    """What is left is the client's own, and the thoughts of an open turn are all there."""
    given_marks, left_marks = marks_of(body), marks_of(payload)
    assert all(left_marks.count(mark) <= given_marks.count(mark) for mark in left_marks), "a mark was invented"
    theirs = [json.dumps(thought) for thought in thoughts(body["messages"])]
    left = [json.dumps(thought) for thought in thoughts(payload["messages"])]
    assert all(thought in theirs for thought in left)
    called = {block["id"] for block in blocks_of(payload["messages"]) if block["type"] == "tool_use"}
    for message in open_turn(body):
        if any(block.get("id") in called for block in blocks_of([message])):
            assert all(json.dumps(thought) in left for thought in thoughts([message]))
    instructions = [message for message in body["messages"] if message["role"] == "system"]
    assert [message for message in payload["messages"] if message["role"] == "system"] == instructions
    last = body["messages"][-1]
    if last["role"] == "user" and not any(block["type"] == "tool_result" for block in blocks_of([last])):
        asked_last = blocks_of([message for message in payload["messages"] if message["role"] == "user"][-1:])
        assert all(block in asked_last for block in blocks_of([last]))


def marks_of(body: dict[str, Any]) -> list[str]:
    """All marks of the cache, in JSON."""
    return [json.dumps(block["cache_control"]) for block in _markable(body) if block.get("cache_control")]


def blocks_of(messages: Sequence[Said]) -> list[Block]:
    said = (message["content"] for message in messages)
    return [
        block
        for content in said
        for block in (content if isinstance(content, list) else [{"type": "text", "text": content}])
    ]


def thoughts(messages: Sequence[Said]) -> list[Block]:
    return [block for block in blocks_of(messages) if block["type"] in ("thinking", "redacted_thinking")]


def open_turn(body: dict[str, Any]) -> list[Said]:
    """What follows the last message in which the user asked, and did not only answer calls."""
    messages = body["messages"]
    begun = max(
        i
        for i, message in enumerate(messages)
        if message["role"] == "user" and blocks_of([message])[0]["type"] != "tool_result"
    )
    return list(messages[begun:])
