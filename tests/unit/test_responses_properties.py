"""Random histories of Responses, with items of every type, grown turn by turn and compacted by the real core: what
would be sent is never what the simulator refuses, and holds every byte of what it keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count as numbers
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.compaction.trim import fit, prune, truncations
from app.compaction.verify import problems, repair
from app.compaction.view import Conversation, View, whole
from app.conversation.messages import Message
from app.formats.reader import MessageReader
from app.formats.responses.format import RESPONSES
from app.tokens.estimate import Costs
from lab.simulator.refusals import refused_by
from lab.simulator.responses.items import OUTPUTS, PREFIXES, item_id, seal
from lab.simulator.responses.judge import check
from tests.unit.conversations import IDENTITY, count, words
from tests.unit.test_view_properties import BUDGET, Shelf

Item = dict[str, Any]
PICTURE = {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0KGgo="}
PAIRS_BY_ID = ("local_shell_call", "mcp_approval_request")
"""Calls that are answered by their id."""
PAIRS = {call: output for output, calls in OUTPUTS.items() for call in calls[:1]}
"""By call what answers it."""


@dataclass
class Writer:
    """Writes items as a model, its tools and a client do."""

    random: Random
    ids: Any = field(default_factory=numbers)

    def id(self, kind: str) -> str:
        return f"{kind}_{next(self.ids)}"

    def text(self, most: int = 400) -> str:
        return words(self.random.randint(1, most), f"w{next(self.ids)}")

    def chance(self, one_in: int) -> bool:
        return self.random.randint(1, one_in) == 1

    def user(self) -> Item:
        content = self.text(900) if self.chance(2) else [{"type": "input_text", "text": self.text(900)}]
        return {"role": "user", "content": content}

    def answer(self) -> Item:
        said = {"type": "output_text", "text": self.text(), "annotations": [], "logprobs": []}
        return {"type": "message", "id": self.id("msg"), "role": "assistant", "status": "completed", "content": [said]}

    def thinking(self, items: list[Item]) -> list[Item]:
        """Reasoning, to which the item behind it is bound by its id where it has one."""
        if self.chance(2) or items[0]["type"] not in PREFIXES:
            return items
        sequence, first, sealed = next(self.ids), items[0], seal("reasoning", self.text(5))
        own = item_id("reasoning", sequence, 0, bound=False)
        thought = {"type": "reasoning", "id": own, "summary": [], "encrypted_content": sealed}
        if "id" in first and first["type"] not in PAIRS_BY_ID:
            first = {**first, "id": item_id(first["type"], sequence, 1, bound=True)}
        return [thought, first, *items[1:]]

    def placed(self) -> Item:
        return self.random.choice(
            [
                {"type": "message", "role": "developer", "content": self.text(5)},
                {"role": "system", "content": self.text(5)},
                {"type": "additional_tools", "role": "developer", "tools": [{"type": "local_shell"}]},
                {"type": "configuration_update", "reasoning": {"effort": "low"}},
            ]
        )

    def pair(self, family: str) -> tuple[Item, Item]:
        """A call and its result."""
        id_, text = self.id("call"), self.text()
        held: dict[str, tuple[Item, Item]] = {
            "function_call": ({"name": "find", "arguments": '{"a": 1}'}, {"output": text}),
            "custom_tool_call": (
                {"name": "patch", "input": self.text(40)},
                {"output": [{"type": "input_text", "text": text}]},
            ),
            "computer_call": (
                {"action": {"type": "wait"}, "pending_safety_checks": [], "status": "completed"},
                {"output": PICTURE},
            ),
            "local_shell_call": (
                {"action": {"type": "exec", "command": ["ls"], "env": {}}, "status": "completed"},
                {"output": text},
            ),
            "shell_call": (
                {"action": {"commands": ["ls", self.text(90)]}},
                {"output": [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
            ),
            "apply_patch_call": (
                {"operation": {"type": "create_file", "path": "a", "diff": self.text(90)}, "status": "completed"},
                {"status": "completed", "output": text},
            ),
            "program": (
                {"id": self.id("prog"), "code": "run()", "fingerprint": "f" * 40},
                {"id": self.id("po"), "result": text, "status": "completed"},
            ),
            "tool_search_call": ({"arguments": {"q": "x"}}, {"tools": [{"type": "function", "name": "f"}]}),
            "mcp_approval_request": (
                {"name": "drop", "arguments": "{}", "server_label": "s"},
                {"approve": self.chance(2), "reason": self.text(3)},
            ),
        }
        call, result = (
            {"type": type_} | rest for type_, rest in zip((family, PAIRS[family]), held[family], strict=True)
        )
        if family in PREFIXES:
            call["id"] = self.id(PREFIXES[family])
        call["id" if family == "mcp_approval_request" else "call_id"] = id_
        named = {"mcp_approval_request": "approval_request_id", "local_shell_call": "id"}
        result[named.get(family, "call_id")] = id_
        return call, result

    def hosted(self) -> list[Item]:
        text = self.text()
        search = {"execution": "server", "call_id": None}
        done = {"status": "completed"}
        items: list[Item] = self.random.choice(
            [
                [{"type": "web_search_call", "action": {"type": "search", "query": text}, **done}],
                [{"type": "file_search_call", "queries": ["q"], "results": [{"text": text}], **done}],
                [{"type": "code_interpreter_call", "code": text, "container_id": "c", "outputs": [], **done}],
                [{"type": "image_generation_call", "result": "iVBORw0KGgo=", **done}],
                [{"type": "mcp_list_tools", "server_label": "s", "tools": []}],
                [{"type": "mcp_call", "name": "m", "arguments": "{}", "server_label": "s", "output": text, **done}],
                [
                    {"type": "tool_search_call", "arguments": {}, **search},
                    {"type": "tool_search_output", "tools": [], **search},
                ],
                [{"type": "function_call_output", "name": "clock", "output": text}],
            ]
        )
        return [each | {"id": self.id(PREFIXES[each["type"]])} if each["type"] in PREFIXES else each for each in items]

    def step(self) -> list[Item]:
        """Calls in parallel, their results in any order, each behind its call; or what the provider did by itself."""
        if self.chance(4):
            return self.thinking(self.hosted())
        families = self.random.choices([*PAIRS], k=self.random.randint(1, 3))
        pairs = [self.pair(family) for family in families]
        made: list[Item] = []
        waiting: list[Item] = []
        for call, result in pairs:
            made += self.thinking([call])
            waiting.append(result)
            while waiting and self.chance(3):
                made.append(waiting.pop(self.random.randrange(len(waiting))))
        return [*made, *self.random.sample(waiting, len(waiting))]

    def turn(self) -> list[Item]:
        items = [self.user(), *([self.placed()] if self.chance(6) else [])]
        for _ in range(self.random.randint(0, 4)):
            items += self.step()
            if self.chance(4):
                items += self.thinking([{**self.answer(), "phase": "commentary"}])
        return [*items, *self.thinking([self.answer()])]


def written(seed: int) -> list[list[Item]]:
    """Leading items, then turns; sometimes the provider has compacted what was before one of them."""
    writer = Writer(Random(seed))
    turns = [writer.turn() for _ in range(writer.random.randint(4, 16))]
    if writer.chance(4):
        compacted = {"type": "compaction", "id": "cmp_1", "encrypted_content": seal("compaction", "All.")}
        turns[writer.random.randint(0, 3)].insert(0, compacted)
    rules = {"type": "message", "role": "developer", "content": "the rules"}
    return [[rules] * writer.random.randint(0, 2), *turns]


LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
SEEDS = st.integers(0, 1 << 40)
"""Of histories: drawing each word would take longer than all that is tried with it."""


def body_of(items: Sequence[Item]) -> bytes:
    return json.dumps({"instructions": "Be kind.", "model": "m", "input": list(items), "x": 1.50}).encode()


def tokens(message: Message) -> int:
    return sum(map(count, (*message.texts, *(call.arguments for call in (*message.calls, *message.settled))))) + 1


def requests(history: Sequence[Sequence[Item]]) -> list[list[Item]]:
    """What a client sends: the history up to each question, and in the middle of a turn, up to each step's end."""
    past, sent = list(history[0]), list[list[Item]]()
    for turn in history[1:]:
        for place, item in enumerate(turn):
            past.append(item)
            if item.get("role") == "user" or (place == len(turn) - 2 and item.get("type", "").endswith("_output")):
                sent.append([*past])
    return sent


def judged(talk: Conversation, view: View, body: bytes, history: Sequence[Item]) -> list[Item]:
    """The items that go, where nothing is wrong with them."""
    payload = RESPONSES.read(body).with_messages(RESPONSES.render(talk, view))
    sent: list[Item] = json.loads(payload)["input"]
    assert refused_by(check, {"model": "m", "input": sent}) is None
    assert json.loads(payload)["instructions"] == "Be kind."
    instructions = [item for item in history if is_placed(item)]
    assert [item for item in sent if is_placed(item)] == instructions
    assert [item for item in history if item.get("role") == "user"][-1] in sent
    return sent


def is_placed(item: Item) -> bool:
    return item.get("role") in ("developer", "system") or item.get("type") == "configuration_update"


def talk_of(body: bytes) -> Conversation:
    read = MessageReader(IDENTITY, RESPONSES.message).read(RESPONSES.read(body).raw_messages)
    return Conversation(read, IDENTITY, "t", lambda: Costs([tokens(message) for message in read], 0), None)


@settings(max_examples=2_000 if LONG else 25, deadline=None)
@given(SEEDS)
def test_no_compaction_makes_a_request_that_a_strict_provider_refuses(seed: int) -> None:
    shelf, history = Shelf(), written(seed)
    for items in requests(history):
        body = body_of(items)
        assert refused_by(check, {"model": "m", "input": items}) is None, "the client's own request has to be legal"
        talk = talk_of(body)
        view = shelf.view(talk)
        assert [fault for fault in problems(talk, view, BUDGET.limit) if fault != "over_the_limit"] == []
        sent = judged(talk, view, body, items)
        own = [item for item in sent if item not in items]
        assert all(set(item) == {"type", "role", "content"} and item["role"] == "user" for item in own)
        assert len(own) == len(view.chunks)
        assert all(json.dumps(item).encode() in body for item in sent if item not in own)


@settings(max_examples=2_000 if LONG else 50, deadline=None)
@given(SEEDS, st.integers(100, 4_000))
def test_nothing_that_stages_cut_or_leave_out_is_refused(seed: int, at_most: int) -> None:
    history = written(seed)
    items = requests(history)[-1]
    body = body_of(items)
    talk = talk_of(body)
    cut = fit(talk, whole(talk), at_most, tokens)
    for view in (cut, *truncations(talk, cut, at_most, tokens)):
        judged(talk, repair(talk, view, tokens), body, items)
    pruned = repair(talk, prune(talk, whole(talk), at_most, at_most // 2, tokens, stub=True), tokens)
    assert not {"tool_pair_split", "bound_message_parted"} & set(problems(talk, pruned, BUDGET.limit))
    judged(talk, pruned, body, items)
