"""Asking in Responses: our functions, and one response out of several.

A stream has one beginning, one id, and numbers without gaps; its items are numbered on through all rounds, ours left
out. Reasoning waits until it is known what it led to: what led to a call of ours goes back to the provider with that
call, and is no part of the client's history, where it would stand without what has to follow it. A response that the
provider keeps would hold our calls where the client goes on from it by its id: nothing is offered there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from app.core.reasons import Code
from app.core.tokens.declarations import Tool
from app.wire.members import RawObject
from app.wire.objects import object_of
from app.wire.recall_tools import Aside, Called, Json, RecallTools, Rounds, object_in, summed
from app.wire.responses.answers import BEGINNINGS, ENDS
from app.wire.responses.items import NAMED_BY_ID, REASONING
from app.wire.responses.request import ResponsesRequest
from app.wire.sse import event
from app.wire.types import WireRequest

CALL = "function_call"
CALLING = ("_call", "_approval_request")
"""Ends of the types of items that the client has to answer."""


@dataclass(slots=True)
class ResponseRounds(Rounds):
    _items: dict[int, Json] = field(default_factory=dict)
    """Items of the round by index, as far as they are known."""
    _own: set[int] = field(default_factory=set)
    """Indexes of our calls, and of reasoning that led to nothing else."""
    _waiting: dict[int, list[bytes]] = field(default_factory=dict)
    """Frames of reasoning, by the index of its item, until it is known what it led to."""
    _shown: dict[int, int] = field(default_factory=dict)
    """Indexes of the items that the client sees, as it sees them."""
    _content: list[Json] = field(default_factory=list)
    """Items that the client has of the rounds before."""
    _head: Json = field(default_factory=dict)
    """Members that the response has from its beginning on."""
    _next: int | None = None
    """Number of the next frame."""
    _status: str | None = None

    @property
    def _is_over(self) -> bool:
        return self._status == "completed" and not self.failed

    @property
    def _others(self) -> Sequence[str]:
        return [str(item.get("call_id") or item.get("id")) for item in self._seen if _is_call(item)]

    @property
    def calls(self) -> list[Called]:
        ours = [item for at, item in sorted(self._items.items()) if at in self._own and item.get("type") == CALL]
        return [
            Called(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments") or "{}")) for item in ours
        ]

    @property
    def _seen(self) -> list[Json]:
        """Items of the round that the client sees."""
        return [item for at, item in sorted(self._items.items()) if at not in self._own]

    def _reset(self) -> None:
        self._items, self._own, self._waiting, self._shown = {}, set(), {}, {}
        self._status = None

    def _begin(self) -> list[bytes]:
        self._own.update(self._waiting)  # It led to nothing but our calls.
        self._content += self._seen
        return super(ResponseRounds, self)._begin()

    def _passed(self, text: bytes, said: Json) -> bytes | None:
        kind = said.get("type")
        response = said.get("response")
        if kind in BEGINNINGS:
            if self.number:
                return None
            if isinstance(response, dict):
                self._head = {name: response[name] for name in ("id", "created_at") if name in response}
                said = {**said, "response": self._clients(response)}
            return self._numbered(text, said, changed=True)
        if kind in ENDS and isinstance(response, dict):
            self._end(response)
            self.failed = self.failed or kind == "response.failed"
            self._held.append(text)
            return None
        if kind == "error":
            self.failed = True
            return None if self.falls_back else self._numbered(text, said)
        index = said.get("output_index")
        if not isinstance(index, int):
            return self._numbered(text, said)
        item = said.get("item")
        if isinstance(item, dict) and kind in ("response.output_item.added", "response.output_item.done"):
            released = self._take(index, item)
            return self._joined(released, index, text, said)
        return self._joined([], index, text, said)

    def _joined(self, released: list[bytes], index: int, text: bytes, said: Json) -> bytes | None:
        """A frame's data, behind those that waited for it; None for one of ours, or one that waits itself."""
        frames = [self._shown_as(index_, waited) for index_, waited in self._sorted(released)]
        if index in self._waiting:
            self._waiting[index].append(text)
        elif index not in self._own:
            frames.append(self._placed(index, text, said))
        if not frames:
            return None
        # Several frames where one was: all but the last are written whole.
        before = b"".join(event(data, str(object_in(data).get("type"))) for data in frames[:-1])
        self._early += before
        return frames[-1]

    def _sorted(self, released: list[bytes]) -> list[tuple[int, bytes]]:
        return [(int(object_in(data).get("output_index", 0)), data) for data in released]

    def _shown_as(self, index: int, data: bytes) -> bytes:
        return self._placed(index, data, object_in(data))

    def _take(self, index: int, item: Json) -> list[bytes]:
        """Note an item; returns frames that waited to know it."""
        is_new = index not in self._items
        self._items[index] = item
        kind = item.get("type")
        if kind == CALL and item.get("name") in self.names:
            self._own.add(index)
            return []
        if kind == REASONING:
            if is_new:
                self._waiting[index] = []
            return []
        return self._let_go() if is_new else []

    def _let_go(self) -> list[bytes]:
        released = [data for _, waited in sorted(self._waiting.items()) for data in waited]
        for index in sorted(self._waiting):
            self._show(index)
        self._waiting = {}
        return released

    def _show(self, index: int) -> int:
        return self._shown.setdefault(index, len(self._content) + len(self._shown))

    def _placed(self, index: int, text: bytes, said: Json) -> bytes:
        """A frame about an item, with the index and the number that the client knows."""
        shown = self._show(index)
        return self._numbered(text, said if shown == index else {**said, "output_index": shown}, shown != index)

    def _numbered(self, text: bytes, said: Json, changed: bool = False) -> bytes:
        number = said.get("sequence_number")
        if not isinstance(number, int):
            return msgspec.json.encode(said) if changed else text
        if self._next is None:
            self._next = number
        sent = self._next
        self._next += 1
        if sent == number and not changed:
            return text
        return msgspec.json.encode({**said, "sequence_number": sent})

    def _end(self, response: Json) -> None:
        self.usage_said = response.get("usage")
        self._status = str(response.get("status") or "completed")
        for index, item in enumerate(output if isinstance(output := response.get("output"), list) else ()):
            if isinstance(item, dict) and index not in self._items:
                self._take(index, item)

    def whole(self, body: bytes) -> bool:
        self._body, response = body, object_in(body)
        if not isinstance(response.get("output"), list):
            return False
        if not self.number:
            self._head = {name: response[name] for name in ("id", "created_at") if name in response}
        self._end(response)
        return True

    def said(self) -> list[bytes]:
        return [msgspec.json.encode(_sent(item)) for _, item in sorted(self._items.items()) if not _is_nothing(item)]

    def _result(self, call: Called, text: str) -> Json:
        return {"type": "function_call_output", "call_id": call.id, "output": text}

    def _parts(self) -> Iterable[bytes | None]:
        for at, item in sorted(self._items.items()):
            yield msgspec.json.encode(_sent(item)) if at in self._own else None

    def _kept(self, seen: int) -> tuple[int, int]:  # noqa: ARG002 - what leads ends at the first call
        return next((place for place, item in enumerate(self._seen) if _is_call(item)), 0), len(self._content)

    def end(self) -> bytes:
        """The frames that wait, and the end of the response."""
        rest = [self._shown_as(index, data) for index, data in self._sorted(self._let_go())]
        frames = [event(data, str(object_in(data).get("type"))) for data in rest]
        for text in self._held:
            said = object_in(text)
            said["response"] = self._composed(said.get("response") or {})
            frames.append(event(self._numbered(b"", said, changed=True), str(said["type"])))
        return b"".join(frames) + self._done

    def _composed(self, response: Json) -> Json:
        if not self.number and not self.calls:
            return self._clients(response)
        composed = {**self._clients(response), **self._head, "output": [*self._content, *self._seen]}
        if self.usage_said is not None:
            composed["usage"] = summed(self._spent, self.usage_said)
        return composed

    def _clients(self, response: Json) -> Json:
        """A response, which repeats the tools that it was asked with, with the client's alone."""
        tools = response.get("tools")
        if not isinstance(tools, list):
            return response
        clients = [tool for tool in tools if not isinstance(tool, dict) or tool.get("name") not in self.names]
        return {**response, "tools": clients}

    def ended_whole(self) -> bytes:
        response = object_in(self._body)
        return msgspec.json.encode(self._composed(response)) if response else self._body


def _is_call(item: Json) -> bool:
    return str(item.get("type")).endswith(CALLING)


def _sent(item: Json) -> Json:
    """An item as the provider takes it back: it keeps none of it, so names of items mean nothing."""
    return {name: value for name, value in item.items() if name != "id" or item.get("type") in NAMED_BY_ID}


def _is_nothing(item: Json) -> bool:
    """Whether an item says nothing without the provider's memory: reasoning that did not come with it."""
    return item.get("type") == REASONING and not item.get("encrypted_content")


class ResponsesRecallTools(RecallTools):
    rounds = ResponseRounds

    def _shape(self, source: RawObject) -> object:
        return object_of(source.value("text")).get("format")

    def _unsafe(self, request: WireRequest) -> Code | None:
        """A provider that keeps answers keeps each round by itself: by the first one's id, which a stream tells before
        anybody knows that there is a second, a later request would go on from a call without its result."""
        stores = not isinstance(request, ResponsesRequest) or request.stores
        return Code.ASK_STORED if stores else None

    def tool(self, tool: Tool) -> Json:
        declared = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", **declared, "strict": False}

    def _called(self, message: Json) -> Sequence[object]:
        return [message.get("call_id") or message.get("id")] if _is_call(message) else []

    def _restored(self, raw_messages: list[bytes], aside: Aside, place: int) -> list[bytes] | None:
        start = max(0, place - aside.lead)
        stop = place
        while stop < len(raw_messages) and _is_call(object_in(raw_messages[stop])):
            stop += 1
        items = raw_messages[start:stop]
        for number, (before, own) in enumerate(aside.within):
            items.insert(before + number, bytes(own))
        begun = start - aside.had
        if begun < 0 or not all(_is_said(object_in(raw)) for raw in raw_messages[begun:start]):
            begun = start  # A client that keeps only a part of the answer.
        return [
            *raw_messages[:begun],
            *map(bytes, aside.before),
            *items,
            *map(bytes, aside.results),
            *raw_messages[stop:],
        ]


def _is_said(item: Json) -> bool:
    """Whether an item is text or reasoning of the model."""
    return item.get("type") == REASONING or item.get("role") == "assistant"
