"""Asking in Messages: our functions, and one message out of several.

A stream has one `message_start`; its blocks are numbered on through all rounds, ours left out. The `message_delta` and
`message_stop` wait until the round is known to be the last. Thinking waits until it is known what it led to: where that
is nothing but calls of ours, it goes back to the provider with them, and the client has none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.core.tokens.declarations import Tool
from app.wire.members import RawObject
from app.wire.messages.answers import typed_event
from app.wire.messages.content import SEALED, is_raw_result, raw_blocks, with_content
from app.wire.objects import object_of
from app.wire.recall_tools import Aside, Called, Json, RecallTools, Rounds, object_in, summed

GROWS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
}
"""Deltas whose text goes on with a member of the block: the member here and there."""
CALL = "tool_use"
CUT_SHORT = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})
"""Ends that the model did not choose: it gets no further round, and its latest call may be a part of one."""


@dataclass(slots=True)
class MessageRounds(Rounds):
    _blocks: dict[int, Json] = field(default_factory=dict)
    """Blocks of the round, by index."""
    _inputs: dict[int, list[str]] = field(default_factory=dict)
    """Pieces of the inputs of calls, the provider's own among them."""
    _texts: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    """Pieces of the texts of blocks, by index and member."""
    _shown: dict[int, int] = field(default_factory=dict)
    """Indexes of the blocks that the client sees, as it sees them."""
    _waiting: dict[int, list[bytes]] = field(default_factory=dict)
    """Data of frames of thinking, by the index of its block, until it is known what it led to."""
    _usage_begun: dict[str, Any] = field(default_factory=dict)
    """Usage of the prompt, from the beginning of the round's stream: what it says of the answer is not known yet."""
    _next: int = 0
    _reason: str | None = None
    _content: list[Json] = field(default_factory=list)
    """Blocks that the client sees of an answer in one piece."""

    @property
    def _is_over(self) -> bool:
        return self._reason is not None and self._reason not in CUT_SHORT and not self.failed

    @property
    def _others(self) -> Sequence[str]:
        blocks = sorted(self._blocks.items())
        return [str(block.get("id")) for at, block in blocks if at in self._shown and block.get("type") == CALL]

    def _reset(self) -> None:
        self._blocks, self._inputs, self._texts, self._shown, self._waiting = {}, {}, {}, {}, {}
        self._reason = None

    def _passed(self, text: bytes, said: Json) -> bytes | None:
        match said.get("type"):
            case "message_start":
                message = said.get("message")
                usage = message.get("usage") if isinstance(message, dict) else None
                self._usage_begun = usage if isinstance(usage, dict) else {}
                return None if self.number else text
            case "content_block_start":
                return self._started(text, said)
            case "content_block_delta":
                self._grown(said)
                return self._placed(text, said)
            case "content_block_stop":
                return self._placed(text, said)
            case "message_delta":
                delta, usage = said.get("delta"), said.get("usage")
                told = {name: u for name, u in usage.items() if u is not None} if isinstance(usage, dict) else {}
                self.usage_said = {**self._usage_begun, **told}
                if isinstance(delta, dict) and delta.get("stop_reason"):
                    self._reason = str(delta["stop_reason"])
                self._held.append(text)
                return None
            case "message_stop":
                self._held.append(text)
                return None
            case "error":
                self.failed = True
                return text
            case _:
                return text

    def _started(self, text: bytes, said: Json) -> bytes | None:
        index, block = said.get("index"), said.get("content_block")
        if not isinstance(index, int) or not isinstance(block, dict):
            self.whole_calls = False
            return text
        self._take(index, block)
        return self._placed(text, said)

    def _take(self, index: int, block: Json) -> None:
        self._blocks[index] = dict(block)
        if block.get("type") in SEALED:
            self._waiting[index] = []
        elif block.get("type") != CALL or block.get("name") not in self.names:
            self._early += self._let_go()
            self._show(index)
        if str(block.get("type")).endswith(CALL):
            self._inputs[index] = []

    def _show(self, index: int) -> None:
        self._shown[index] = self._next
        self._next += 1

    def _let_go(self) -> bytes:
        """Frames of thinking that waited, as the client gets them."""
        frames = []
        for index, pieces in sorted(self._waiting.items()):
            self._show(index)
            for data in pieces:
                said = object_in(data)
                frames.append(typed_event(str(said.pop("type")), **{**said, "index": self._shown[index]}))
        self._waiting = {}
        return b"".join(frames)

    def _grown(self, said: Json) -> None:
        index, delta = said.get("index"), said.get("delta")
        block = self._blocks.get(index) if isinstance(index, int) else None
        if block is None or not isinstance(index, int) or not isinstance(delta, dict):
            self.whole_calls = False
            return
        kind = delta.get("type")
        if kind in GROWS:
            member, name = GROWS[kind]
            self._texts.setdefault((index, name), []).append(str(delta.get(member) or ""))
        elif kind == "input_json_delta" and index in self._inputs:
            self._inputs[index].append(str(delta.get("partial_json") or ""))
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        else:
            self.whole_calls = False

    @property
    def calls(self) -> list[Called]:
        ours = [(at, block) for at, block in sorted(self._blocks.items()) if self._is_ours(at)]
        return [Called(str(block.get("id")), str(block.get("name")), self._input(at)) for at, block in ours]

    def _is_ours(self, index: int) -> bool:
        return index in self._inputs and index not in self._shown

    def _input(self, index: int) -> str:
        return "".join(self._inputs[index]) or msgspec.json.encode(self._blocks[index].get("input") or {}).decode()

    def _placed(self, text: bytes, said: Json) -> bytes | None:
        """A block's frame with the index that the client knows; None for one of ours."""
        index = said.get("index")
        if not isinstance(index, int) or index not in self._blocks:
            return text
        if index in self._waiting:
            self._waiting[index].append(text)
        if index not in self._shown:
            return None
        shown = self._shown[index]
        return text if shown == index else msgspec.json.encode({**said, "index": shown})

    def whole(self, body: bytes) -> bool:
        self._body, said = body, object_in(body)
        self.usage_said, content = said.get("usage"), said.get("content")
        if not isinstance(content, list):
            return False
        for index, block in enumerate(content):
            if isinstance(block, dict):
                self._take(index, block)
        if self._others or not self.calls:
            self._let_go()
        self._reason = str(said.get("stop_reason") or "end_turn")
        return True

    def said(self) -> list[bytes]:
        content = [block for block in map(self._block, sorted(self._blocks)) if not _is_empty(block)]
        return [msgspec.json.encode({"role": "assistant", "content": content})]

    def _block(self, index: int) -> Json:
        block = dict(self._blocks[index])
        for (at, name), pieces in self._texts.items():
            if at == index:
                block[name] = f"{block.get(name) or ''}{''.join(pieces)}"
        return {**block, "input": object_in(self._input(index).encode())} if index in self._inputs else block

    def results(self, answers: Sequence[str]) -> list[bytes]:
        return [msgspec.json.encode({"role": "user", "content": list(map(msgspec.Raw, self._results(answers)))})]

    def _result(self, call: Called, text: str) -> Json:
        return {"type": "tool_result", "tool_use_id": call.id, "content": text}

    def _begin(self) -> list[bytes]:
        if self._body:
            self._content += [block for at, block in sorted(self._blocks.items()) if at in self._shown]
        return super(MessageRounds, self)._begin()

    def _parts(self) -> Iterable[bytes | None]:
        for at in sorted(self._blocks):
            yield msgspec.json.encode(self._block(at)) if self._is_ours(at) else None

    def _kept(self, seen: int) -> tuple[int, int]:
        return seen, self._next - len(self._shown)

    def end(self) -> bytes:
        return self._let_go() + b"".join(map(self._ended, self._held)) + self._done

    def _ended(self, text: bytes) -> bytes:
        said = object_in(text)
        if said.get("type") == "message_delta" and (self.number or self.calls):
            if said.get("usage"):
                said["usage"] = summed(self._spent, self.usage_said)
            said["delta"] = self._reasoned(said.get("delta") or {})
        return typed_event(str(said.pop("type")), **said)

    def _reasoned(self, held: Json) -> Json:
        """Members about the end, without the reason that only our calls were."""
        return {**held, "stop_reason": "end_turn"} if held.get("stop_reason") == CALL and not self._others else held

    def ended_whole(self) -> bytes:
        if not self.number and not self.calls:
            return self._body
        self._let_go()
        content = [block for at, block in sorted(self._blocks.items()) if at in self._shown]
        said = self._reasoned({**object_in(self._body), "content": [*self._content, *content]})
        if "usage" in said:
            said["usage"] = summed(self._spent, self.usage_said)
        return msgspec.json.encode(said)


def _is_empty(block: Json) -> bool:
    return block.get("type") == "text" and not block.get("text")


class MessagesRecallTools(RecallTools):
    rounds = MessageRounds

    def _shape(self, source: RawObject) -> object:
        return object_of(source.value("output_config")).get("format") or source.value("output_format")

    def tool(self, tool: Tool) -> Json:
        return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}

    def _called(self, message: Json) -> Sequence[object]:
        content = message.get("content")
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        return [block.get("id") for block in blocks if block.get("type") == CALL]

    def _restored(self, raw_messages: list[bytes], aside: Aside, place: int) -> list[bytes] | None:
        if place + 1 == len(raw_messages):
            return None
        blocks = raw_blocks(raw_messages[place])
        is_whole = len(blocks) == aside.had + aside.lead
        among = blocks[aside.had :] if is_whole else list(blocks)
        call = next(at for at, raw in enumerate(among) if object_in(raw).get("type") == CALL)
        for number, (before, own) in enumerate(aside.within):
            # A client that keeps only a part of the answer gets them before its calls.
            among.insert((before if is_whole else call) + number, bytes(own))
        answered = raw_blocks(raw_messages[place + 1])
        behind = sum(map(is_raw_result, answered))
        results = [*answered[:behind], *map(bytes, aside.results), *answered[behind:]]
        return [
            *raw_messages[:place],
            *map(bytes, aside.before),
            with_content(raw_messages[place], b"[%b]" % b",".join(among)),
            with_content(raw_messages[place + 1], b"[%b]" % b",".join(results)),
            *raw_messages[place + 2 :],
        ]
