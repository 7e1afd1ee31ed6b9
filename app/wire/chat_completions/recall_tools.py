"""Asking in Chat Completions: our functions, and one completion out of several.

A stream's chunks keep the id, time and model of the first round. Calls are told apart by their index; the client's get
the numbers they would have without ours. What ends a choice, the usage and `[DONE]` wait until the round is known to be
the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.core.reasons import Code
from app.core.tokens.declarations import Tool
from app.wire.members import RawObject
from app.wire.objects import spliced
from app.wire.recall_tools import Aside, Called, Json, RecallTools, Rounds, object_in, summed
from app.wire.requests import is_given
from app.wire.sse import event
from app.wire.types import WireRequest

HEAD = ("id", "created", "model")
GROWN = ("reasoning_content", "reasoning")
"""Texts of a delta beside its content that go back to the provider."""
CUT_SHORT = frozenset({"length", "content_filter"})
"""Ends that the model did not choose: it gets no further round, and its latest call may be a part of one."""
PARAGRAPH = "\n\n"
"""Stands between the texts of two rounds."""


@dataclass(slots=True)
class _Call:
    """A call of the round, as far as it has come."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    held: list[Json] = field(default_factory=list)
    """Pieces of the call, until its name says whose it is."""

    def takes(self, piece: Json) -> None:
        function = _function(piece)
        self.id = self.id or str(piece.get("id") or "")
        name = str(function.get("name") or "")
        if not self.name or (not self.arguments and name != self.name):
            self.name += name
        if arguments := function.get("arguments"):
            self.arguments.append(str(arguments))

    def sent(self) -> Json:
        """The call as the provider takes it back."""
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class CompletionRounds(Rounds):
    _head: dict[str, bytes] = field(default_factory=dict)
    """Members that all chunks have, as JSON."""
    _text_before: bool = False
    """Whether an earlier round said anything to the client."""
    _content: list[str] = field(default_factory=list)
    _beside: dict[str, list[Any]] = field(default_factory=dict)
    """Further members of the assistant's message, in pieces."""
    _slots: list[_Call] = field(default_factory=list)
    """Calls of the round in order."""
    _places: dict[int, int] = field(default_factory=dict)
    """Places of the latest calls in that order, by the provider's index."""
    _shown: dict[int, int] = field(default_factory=dict)
    """Indexes of the client's calls, as they are shown, by their places."""
    _finish: str | None = None
    _texts: list[str] = field(default_factory=list)
    """Texts of the rounds before, of answers in one piece."""

    @property
    def _is_over(self) -> bool:
        ended = self._finish is not None or bool(self._done)
        return ended and self._finish not in CUT_SHORT and not self.failed

    @property
    def _others(self) -> Sequence[str]:
        return [slot.id for place, slot in enumerate(self._slots) if not self._is_ours(place)]

    def _is_ours(self, place: int) -> bool:
        return place not in self._shown and self._slots[place].name in self.names

    @property
    def calls(self) -> list[Called]:
        ours = [slot for place, slot in enumerate(self._slots) if self._is_ours(place)]
        return [Called(slot.id, slot.name, "".join(slot.arguments)) for slot in ours]

    def _reset(self) -> None:
        self._text_before = self._text_before or bool(self._content)
        self._content, self._beside, self._slots, self._places, self._shown = [], {}, [], {}, {}
        self._finish = None

    def _passed(self, text: bytes, said: Json) -> bytes | None:
        if said.get("error"):
            self.failed = True
            return text
        self.usage_said = said.get("usage") or self.usage_said
        if not self._head:
            self._head = {name: msgspec.json.encode(said[name]) for name in HEAD if name in said}
        choices = said.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            if said.get("usage"):
                self._held.append(text)
                return None
            return self._headed(text, said)
        choice = choices[0]
        delta = choice.get("delta")
        delta = dict(delta) if isinstance(delta, dict) else {}
        left = self._left(delta)
        if choice.get("finish_reason"):
            if unnamed := self._unnamed():
                left["tool_calls"] = [*left.get("tool_calls", ()), *unnamed]
            self._finish = str(choice["finish_reason"])
            closing = {**said, "choices": [{**choice, "delta": {}}]}
            self._held.append(msgspec.json.encode(closing))
            if not left:
                return None
            opened = {**said, "choices": [{**choice, "delta": left, "finish_reason": None}]}
            opened.pop("usage", None)
            return self._headed(msgspec.json.encode(opened), said)
        if left == delta:
            return self._headed(text, said)
        if not left or (left == {"content": None} and delta.get("tool_calls")):
            return None
        return self._headed(msgspec.json.encode({**said, "choices": [{**choice, "delta": left}]}), said)

    def _headed(self, text: bytes, said: Json) -> bytes:
        """A chunk with the head of the first one."""
        if not self.number:
            return text
        head = {name: raw for name, raw in self._head.items() if name in said}
        if said.get("usage") and said.get("choices"):
            head["usage"] = msgspec.json.encode(summed(self._spent, said["usage"]))
        return spliced(text, head)

    def _left(self, delta: Json) -> Json:
        """Members of a delta that the client sees; the rest is noted."""
        left = dict(delta)
        if self.number:
            left.pop("role", None)
        if isinstance(content := delta.get("content"), str) and content:
            if self._text_before and not self._content:
                left["content"] = PARAGRAPH + content
            self._content.append(content)
        for name in GROWN:
            if isinstance(grown := delta.get(name), str):
                self._beside.setdefault(name, []).append(grown)
        if isinstance(details := delta.get("reasoning_details"), list):
            self._beside.setdefault("reasoning_details", []).extend(details)
        if isinstance(calls := delta.get("tool_calls"), list):
            shown = [piece for call in calls if isinstance(call, dict) for piece in self._call(call)]
            if shown:
                left["tool_calls"] = shown
            else:
                del left["tool_calls"]
        return left

    def _call(self, piece: Json) -> list[Json]:
        """Pieces that the client sees now; none of ours, nor of a call whose name is not known yet."""
        place = self._place(piece)
        call = self._slots[place]
        call.takes(piece)
        if place in self._shown:
            return [self._shown_as(place, piece)]
        if call.name in self.names and call.arguments:
            call.held = []
        else:
            call.held.append(piece)
        return [] if any(name.startswith(call.name) for name in self.names) else self._show(place)

    def _place(self, piece: Json) -> int:
        """Place of the call that a piece belongs to. Some providers number none of them, or all alike, and some give
        a call another id with each piece."""
        index, call_id, named = piece.get("index"), piece.get("id"), bool(_function(piece).get("name"))
        latest = self._places.get(index) if isinstance(index, int) else len(self._slots) - 1
        if latest is not None and latest >= 0:
            held = self._slots[latest]
            is_other = bool(held.id and call_id and held.id != call_id)
            if not isinstance(index, int) and not call_id:
                is_other = named and bool(held.name)
            if not (is_other and (named or not isinstance(index, int))):
                return latest
        self._slots.append(_Call())
        if isinstance(index, int):
            self._places[index] = len(self._slots) - 1
        return len(self._slots) - 1

    def _show(self, place: int) -> list[Json]:
        """The pieces of a client's call that waited for its name."""
        self._shown[place] = len(self._shown)
        held, self._slots[place].held = self._slots[place].held, []
        return [self._shown_as(place, piece) for piece in held]

    def _shown_as(self, place: int, piece: Json) -> Json:
        """A piece as the provider numbers it, unless there is a call of ours before it."""
        shown = self._shown[place]
        return piece if place == shown or piece.get("index") == shown else {**piece, "index": shown}

    def _unnamed(self) -> list[Json]:
        """Pieces of calls that got no name, or the beginning of one of ours: they are the client's."""
        places = [place for place in range(len(self._slots)) if place not in self._shown and not self._is_ours(place)]
        return [piece for place in places for piece in self._show(place)]

    def whole(self, body: bytes) -> bool:
        said = object_in(body)
        self._body, self.usage_said = body, said.get("usage")
        choices = said.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return False
        message = choices[0].get("message")
        if not isinstance(message, dict):
            return False
        calls = message.get("tool_calls")
        self._left({**{name: message[name] for name in ("content", *GROWN, "reasoning_details") if name in message}})
        for number, call in enumerate(calls if isinstance(calls, list) else ()):
            self._call({**call, "index": number} if isinstance(call, dict) else {"index": number})
        self._unnamed()
        self._finish = str(choices[0].get("finish_reason") or "stop")
        return True

    def said(self) -> list[bytes]:
        beside = {name: "".join(pieces) if name in GROWN else pieces for name, pieces in self._beside.items()}
        content = "".join(self._content) or None
        message = {"role": "assistant", "content": content, **beside, "tool_calls": [c.sent() for c in self._slots]}
        return [msgspec.json.encode(message)]

    def _result(self, call: Called, text: str) -> Json:
        return {"role": "tool", "tool_call_id": call.id, "content": text}

    def _parts(self) -> Iterable[bytes | None]:
        for place, slot in enumerate(self._slots):
            yield msgspec.json.encode(slot.sent()) if self._is_ours(place) else None

    def end(self) -> bytes:
        return b"".join(map(self._ended, self._held)) + self._done

    def _ended(self, text: bytes) -> bytes:
        if not self.number and not self.calls:
            return event(text)
        said = object_in(text)
        if said.get("usage") and not said.get("choices"):
            said["usage"] = summed(self._spent, said["usage"])
        for choice in said.get("choices") or ():
            if isinstance(choice, dict) and choice.get("finish_reason") == "tool_calls" and not self._shown:
                choice["finish_reason"] = "stop"
        return event(self._headed(msgspec.json.encode(said), said))

    def ended_whole(self) -> bytes:
        if not self.number and not self.calls:
            return self._body
        said = object_in(self._body)
        choice = said["choices"][0]
        message = choice["message"]
        if not isinstance(message.get("content"), list):  # Parts stay as they are.
            texts = [*self._texts, "".join(self._content)]
            message["content"] = PARAGRAPH.join(filter(None, texts)) or None
        if isinstance(calls := message.get("tool_calls"), list):
            message["tool_calls"] = [call for number, call in enumerate(calls) if number in self._shown]
            if not message["tool_calls"]:
                del message["tool_calls"]
                if choice.get("finish_reason") == "tool_calls":
                    choice["finish_reason"] = "stop"
        if "usage" in said:
            said["usage"] = summed(self._spent, self.usage_said)
        return msgspec.json.encode(said)

    def _begin(self) -> list[bytes]:
        if self._body:
            self._texts.append("".join(self._content))
        return super(CompletionRounds, self)._begin()


def _without(aside: Aside, content: Any) -> Any:
    """The content of a client's message without the texts of the rounds before, which an aside says."""
    before = [message for message in map(object_in, aside.before) if message.get("role") == "assistant"]
    said = PARAGRAPH.join(text for message in before if (text := message.get("content")))
    if not said or not isinstance(content, str):
        return content
    return None if content == said else content.removeprefix(said + PARAGRAPH)


def _function(piece: Json) -> Json:
    function = piece.get("function")
    return function if isinstance(function, dict) else {}


class ChatRecallTools(RecallTools):
    rounds = CompletionRounds

    def _shape(self, source: RawObject) -> object:
        return source.value("response_format")

    def _unsafe(self, request: WireRequest) -> Code | None:
        return Code.ASK_TOOL_CHOICE if is_given(request.source, "functions") else None

    def tool(self, tool: Tool) -> Json:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": function}

    def _called(self, message: Json) -> Sequence[object]:
        calls = message.get("tool_calls")
        return [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []

    def _restored(self, raw_messages: list[bytes], aside: Aside, place: int) -> list[bytes] | None:
        raw = raw_messages[place]
        said = object_in(raw).get("content")
        if (content := _without(aside, said)) != said:
            raw = spliced(raw, {"content": msgspec.json.encode(content)})
        if aside.within:
            among = list(RawObject(raw).elements("tool_calls"))
            for number, (before, own) in enumerate(aside.within):
                among.insert(before + number, bytes(own))
            raw = spliced(raw, {"tool_calls": b"[%b]" % b",".join(among)})
        return [
            *raw_messages[:place],
            *map(bytes, aside.before),
            raw,
            *map(bytes, aside.results),
            *raw_messages[place + 1 :],
        ]
