"""Items: random histories of Responses with items of every type, as their provider says them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from random import Random
from typing import Any

from lab.simulator.refusals import refused_by
from lab.simulator.responses.items import OUTPUTS, PREFIXES, SAID, item_id, seal
from lab.simulator.responses.judge import check
from tests.histories.talks import MOST_REQUESTS
from tests.histories.wires import Asked, Json, Said
from tests.unit.conversations import words

END: Json = {}
PICTURE = {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0KGgo="}
PAIRS_BY_ID = ("local_shell_call", "mcp_approval_request")
"""Calls that are answered by their id."""
PAIRS = {call: output for output, calls in OUTPUTS.items() for call in calls[:1]}
"""By call what answers it."""


@dataclass
class Writer:
    """Writes items as a model, its tools and a client do."""

    random: Random
    ids: Any = field(default_factory=count)

    def id(self, kind: str) -> str:
        return f"{kind}_{next(self.ids)}"

    def text(self, most: int = 400) -> str:
        return words(self.random.randint(1, most), f"w{next(self.ids)}")

    def chance(self, one_in: int) -> bool:
        return self.random.randint(1, one_in) == 1

    def user(self) -> Json:
        content = self.text(900) if self.chance(2) else [{"type": "input_text", "text": self.text(900)}]
        return {"role": "user", "content": content}

    def answer(self) -> Json:
        said = {"type": "output_text", "text": self.text(), "annotations": [], "logprobs": []}
        return {"type": "message", "id": self.id("msg"), "role": "assistant", "status": "completed", "content": [said]}

    def thinking(self, items: list[Json]) -> list[Json]:
        """Reasoning, to which the item behind it is bound by its id where it has one."""
        if self.chance(2) or items[0]["type"] not in PREFIXES:
            return items
        sequence, first, sealed = next(self.ids), items[0], seal("reasoning", self.text(5))
        own = item_id("reasoning", sequence, 0, bound=False)
        thought = {"type": "reasoning", "id": own, "summary": [], "encrypted_content": sealed}
        if "id" in first and first["type"] not in PAIRS_BY_ID:
            first = {**first, "id": item_id(first["type"], sequence, 1, bound=True)}
        return [thought, first, *items[1:]]

    def placed(self) -> Json:
        return self.random.choice(
            [
                {"type": "message", "role": "developer", "content": self.text(5)},
                {"role": "system", "content": self.text(5)},
                {"type": "additional_tools", "role": "developer", "tools": [{"type": "local_shell"}]},
                {"type": "configuration_update", "reasoning": {"effort": "low"}},
            ]
        )

    def pair(self, family: str) -> tuple[Json, Json]:
        """A call and its result."""
        id_, text = self.id("call"), self.text()
        held: dict[str, tuple[Json, Json]] = {
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

    def hosted(self) -> list[Json]:
        text = self.text()
        search = {"execution": "server", "call_id": None}
        done = {"status": "completed"}
        items: list[Json] = self.random.choice(
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

    def step(self) -> list[Json]:
        """Calls in parallel, their results in any order, each behind its call; or what the provider did by itself."""
        if self.chance(4):
            return self.thinking(self.hosted())
        families = self.random.choices([*PAIRS], k=self.random.randint(1, 3))
        pairs = [self.pair(family) for family in families]
        made: list[Json] = []
        waiting: list[Json] = []
        for call, result in pairs:
            made += self.thinking([call])
            waiting.append(result)
            while waiting and self.chance(3):
                made.append(waiting.pop(self.random.randrange(len(waiting))))
        return [*made, *self.random.sample(waiting, len(waiting))]

    def turn(self) -> list[Json]:
        items = [self.user(), *([self.placed()] if self.chance(6) else [])]
        for _ in range(self.random.randint(0, 4)):
            items += self.step()
            if self.chance(4):
                items += self.thinking([{**self.answer(), "phase": "commentary"}])
        return [*items, *self.thinking([self.answer()])]


def written(seed: int) -> list[list[Json]]:
    """Leading items, then turns; sometimes the provider has compacted what was before one of them."""
    writer = Writer(Random(seed))
    turns = [writer.turn() for _ in range(writer.random.randint(4, 16))]
    if writer.chance(4):
        compacted = {"type": "compaction", "id": "cmp_1", "encrypted_content": seal("compaction", "All.")}
        turns[writer.random.randint(0, 3)].insert(0, compacted)
    rules = {"type": "message", "role": "developer", "content": "the rules"}
    return [[rules] * writer.random.randint(0, 2), *turns]


def requests_of_items(seed: int) -> Iterator[Asked]:
    """What a client sends: the history up to each question, and up to where everything that was called is answered."""
    items = list(chain(*_said(written(seed), seed)))
    is_asking = [item.get("role") == "user" or str(item.get("type")).endswith("_output") for item in items]
    ends = (end for end in range(1, len(items) + 1) if is_asking[end - 1])
    legal = [items[:end] for end in ends if not refused_by(check, {"model": "gpt-x", "input": items[:end]})]
    for sent in legal[-MOST_REQUESTS:]:
        questions = [text for item in sent if item.get("role") == "user" for text in _texts(item)]
        latest = questions[-1] if questions else ""
        yield Asked(tuple(Said(item, _marks(item)) for item in sent), latest, latest, (), 0)


def _texts(item: Json) -> list[str]:
    content = item["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _marks(item: Json) -> tuple[tuple[str, str], ...]:
    """A message is known again by the word of which it is made."""
    return ((_texts(item)[0].split(" ", 1)[0], ""),) if item.get("role") in ("user", "assistant") else ()


def _said(turns: Iterable[Iterable[Json]], seed: int) -> list[list[Json]]:
    """The same items as this provider says them: it seals with a key of its own, and ids tell what they are bound to.

    Some of what is said after reasoning has no id, as some clients send it back. Every other history is an agent's one
    long turn, which has to be cut in its midst.
    """
    random, numbers = Random(seed), count(1)
    renamed: dict[str, str] = {}
    history: list[list[Json]] = []
    for turn in turns:
        asked_before = any(item.get("role") == "user" for item in chain(*history))
        goes_on = bool(seed % 2) and asked_before
        thought, items = 0, [item for item in turn if not (goes_on and item.get("role") == "user")]
        history.append([])
        for item, behind in zip(items, [*items[1:], END], strict=False):
            kind, own = item.get("type", "message"), dict(item)
            if kind == "reasoning" and behind.get("type", "message") not in (*SAID, "message"):
                continue
            if kind in ("reasoning", "compaction"):
                own["encrypted_content"] = seal(kind, f"thought {seed}")
            number = thought or next(numbers)
            if kind in PREFIXES and "id" in own:
                renamed[own["id"]] = item_id(kind, number, 1 if thought else 0, bool(thought))
                own["id"] = renamed[own["id"]]
                if kind in ("message", "function_call") and random.random() < 0.2:
                    del own["id"]
            if "approval_request_id" in own:
                own["approval_request_id"] = renamed[own["approval_request_id"]]
            thought = number if kind == "reasoning" else 0
            history[-1].append(own)
    return history
