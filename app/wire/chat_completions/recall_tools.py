"""Asking in Chat Completions: our functions, and one completion out of several.

A stream's chunks keep the id, time and model of the first round. Calls are told apart by their index; the client's get
the numbers they would have without ours. What ends a choice, the usage and `[DONE]` wait until the round is known to be
the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.core.reasons import Code
from app.core.tokens.declarations import Tool
from app.wire.members import RawObject
from app.wire.objects import spliced
from app.wire.recall_tools import Aside, Called, Json, RecallTools, Rounds, object_in, place_of, summed
from app.wire.requests import is_given
from app.wire.sse import event
from app.wire.types import WireRequest

HEAD = ("id", "created", "model")
GROWN = ("reasoning_content", "reasoning")
"""Texts of a delta beside its content that go back to the provider."""
PARAGRAPH = "\n\n"
"""Stands between the texts of two rounds."""


@dataclass(slots=True)
class CompletionRounds(Rounds):
    _head: dict[str, bytes] = field(default_factory=dict)
    """Members that all chunks have, as JSON."""
    _text_before: bool = False
    """Whether an earlier round said anything to the client."""
    _content: str = ""
    _beside: dict[str, Any] = field(default_factory=dict)
    """Further members of the assistant's message."""
    _slots: dict[int, Json] = field(default_factory=dict)
    """Calls of the round by index: id, name, arguments."""
    _shown: dict[int, int] = field(default_factory=dict)
    """Indexes of the client's calls, as they are shown."""
    _finish: str | None = None
    _failed: bool = False
    _body: bytes = b""
    """The round as it came, where it came in one piece."""
    _texts: list[str] = field(default_factory=list)
    """Texts of the rounds before, of answers in one piece."""

    @property
    def _is_over(self) -> bool:
        return self._finish is not None and not self._failed

    @property
    def _others(self) -> Sequence[str]:
        return [slot["id"] for index, slot in sorted(self._slots.items()) if index in self._shown]

    def _reset(self) -> None:
        self._text_before = self._text_before or bool(self._content)
        self._content, self._beside, self._slots, self._shown = "", {}, {}, {}
        self._finish, self._failed, self._body = None, False, b""

    def _passed(self, text: bytes, said: Json) -> bytes | None:
        if said.get("error"):
            self._failed = True
            return text
        self.usage_said = said.get("usage") or self.usage_said
        if not self._head:
            self._head = {name: msgspec.json.encode(said[name]) for name in HEAD if name in said}
        choices = said.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            if said.get("usage"):
                self._held.append(event(text))
                return None
            return self._headed(text, said)
        choice = choices[0]
        delta = choice.get("delta")
        delta = dict(delta) if isinstance(delta, dict) else {}
        left = self._left(delta)
        if choice.get("finish_reason"):
            self._finish = str(choice["finish_reason"])
            closing = {**said, "choices": [{**choice, "delta": {}}]}
            self._held.append(event(msgspec.json.encode(closing)))
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
        return spliced(text, {name: raw for name, raw in self._head.items() if name in said})

    def _left(self, delta: Json) -> Json:
        """Members of a delta that the client sees; the rest is noted."""
        left = dict(delta)
        if self.number:
            left.pop("role", None)
        if isinstance(content := delta.get("content"), str) and content:
            if self._text_before and not self._content:
                left["content"] = PARAGRAPH + content
            self._content += content
        for name in GROWN:
            if isinstance(grown := delta.get(name), str):
                self._beside[name] = self._beside.get(name, "") + grown
        if isinstance(details := delta.get("reasoning_details"), list):
            self._beside.setdefault("reasoning_details", []).extend(details)
        if isinstance(calls := delta.get("tool_calls"), list):
            shown = [left_ for call in calls if isinstance(call, dict) and (left_ := self._call(call)) is not None]
            if shown:
                left["tool_calls"] = shown
            else:
                del left["tool_calls"]
        return left

    def _call(self, piece: Json) -> Json | None:
        """A piece of a call as the client sees it; None for one of ours."""
        index = piece.get("index")
        index = index if isinstance(index, int) else max(self._slots, default=-1) + bool(piece.get("id"))
        function = piece.get("function")
        if not isinstance(function, dict):
            function = {}
        if (slot := self._slots.get(index)) is None:
            slot = self._slots[index] = {"id": "", "name": "", "arguments": ""}
            if function.get("name") not in self.names:
                self._shown[index] = len(self._shown)
        slot["id"] = piece.get("id") or slot["id"]
        slot["name"] = slot["name"] or function.get("name") or ""
        slot["arguments"] += function.get("arguments") or ""
        if index in self._shown:
            return piece if self._shown[index] == index else {**piece, "index": self._shown[index]}
        self.calls = [
            Called(held["id"], held["name"], held["arguments"])
            for at, held in sorted(self._slots.items())
            if at not in self._shown
        ]
        return None

    def whole(self, body: bytes) -> None:
        said = object_in(body)
        self._body, self.usage_said = body, said.get("usage")
        choices = said.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        message = choices[0].get("message")
        message = message if isinstance(message, dict) else {}
        calls = message.get("tool_calls")
        numbered = [{"index": number, **call} for number, call in enumerate(calls)] if isinstance(calls, list) else []
        self._left({**{name: message[name] for name in ("content", *GROWN, "reasoning_details") if name in message}})
        for call in numbered:
            self._call(call)
        self._finish = str(choices[0].get("finish_reason") or "stop")

    def said(self) -> list[bytes]:
        calls = [_call(slot) for _, slot in sorted(self._slots.items())]
        message = {"role": "assistant", "content": self._content or None, **self._beside, "tool_calls": calls}
        return [msgspec.json.encode(message)]

    def results(self, answers: Sequence[str]) -> list[bytes]:
        pairs = zip(self.calls, answers, strict=True)
        return [msgspec.json.encode({"role": "tool", "tool_call_id": call.id, "content": text}) for call, text in pairs]

    def aside(self, answers: Sequence[str]) -> Aside | None:
        others = self._others
        if not others:
            return None
        within = []
        before = 0
        for index, slot in sorted(self._slots.items()):
            if index in self._shown:
                before += 1
            else:
                within.append((before, msgspec.json.encode(_call(slot))))
        return Aside(others[0], tuple(self._past), tuple(within), tuple(self.results(answers)))

    def end(self) -> bytes:
        return b"".join(map(self._ended, self._held))

    def _ended(self, frame: bytes) -> bytes:
        if not self.number and not self.calls:
            return frame
        text = frame.removeprefix(b"data: ").rstrip()
        if text.startswith(b"[DONE]"):
            return frame
        said = object_in(text)
        if said.get("usage"):
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
        texts = [*self._texts, self._content]
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
            self._texts.append(self._content)
        return super(CompletionRounds, self)._begin()


def _call(slot: Json) -> Json:
    """A call as the provider takes it back."""
    return {
        "id": slot["id"],
        "type": "function",
        "function": {"name": slot["name"], "arguments": slot["arguments"]},
    }


class ChatRecallTools(RecallTools):
    rounds = CompletionRounds

    def _unsafe(self, request: WireRequest) -> Code | None:
        return Code.ASK_TOOL_CHOICE if is_given(request.source, "functions") else None

    def tool(self, tool: Tool) -> Json:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": function}

    def restored(self, raw_messages: list[bytes], aside: Aside) -> list[bytes] | None:
        for place in place_of(raw_messages, aside.call_id):
            message = object_in(raw_messages[place])
            calls = message.get("tool_calls")
            if not isinstance(calls, list) or aside.call_id not in [
                call.get("id") for call in calls if isinstance(call, dict)
            ]:
                continue
            raw = raw_messages[place]
            if aside.within:
                among = list(RawObject(raw).elements("tool_calls"))
                for number, (before, own) in enumerate(aside.within):
                    among.insert(before + number, own)
                raw = spliced(raw, {"tool_calls": b"[%b]" % b",".join(among)})
            return [*raw_messages[:place], *aside.before, raw, *aside.results, *raw_messages[place + 1 :]]
        return None
