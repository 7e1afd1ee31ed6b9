"""Summary calls on the wire: what is sent, and the answer out of a stream or out of one piece of JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from app.core.summary.gate import Ending, SummaryAnswer
from app.core.summary.prompts import SummaryRequest
from app.wire.format import Headers, Manners
from app.wire.messages.content import blocks_of
from app.wire.messages.messages import SYSTEM, is_beside
from app.wire.messages.request import NAME, PATH
from app.wire.summary_reader import STRING_BYTES, WORD, SummaryReader, member_named
from app.wire.usage import bill_of, read_usage, says_window_full, text_in

Json = Mapping[str, Any]

CAP = "max_tokens"
MEMBERS = frozenset({"model", "messages", SYSTEM, CAP, "stream", "tools", "tool_choice", "thinking"})
"""What a summary call says by itself, or leaves out on purpose; an operator may add others."""
OPTIONAL = ("thinking", "stream")
"""Members that the call can do without, beside those that the operator adds."""
THINKING_MODELS = re.compile(r"(^|[/.])(o\d|gpt-5)|claude-[a-z]+-([5-9]|\d\d)(?!\d)")
"""Those that think unasked."""
_OF_A_BLOCK = re.compile(rb"thinking\W{0,3}blocks?")
"""A complaint about the history, and not about the member."""
ENDINGS = {
    **dict.fromkeys(("end_turn", "stop_sequence"), Ending.FINISHED),
    "max_tokens": Ending.CUT_OFF,
    "refusal": Ending.REFUSED,
}


class MessagesSummaries:
    """The dialect: asked with `messages`, answered with the texts of one message."""

    name = NAME
    target = PATH
    own_members = MEMBERS
    optional = OPTIONAL
    headers: Headers = ((b"anthropic-version", b"2023-06-01"),)

    def cap(self, model: str) -> str:  # noqa: ARG002 - all models of this format have the same
        return CAP

    def options(
        self, manners: Manners, model: str, most: int, allowance: int, parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        thinks = THINKING_MODELS.search(model) is not None
        unasked = {"thinking": {"type": "disabled"}} if thinks else {}
        wanted = {manners.cap: most + (allowance if thinks else 0), **unasked, **parameters, "stream": True}
        return {name: value for name, value in wanted.items() if name not in manners.without}

    def taught(self, manners: Manners, refusal: bytes, sent: Mapping[str, Any]) -> Manners | None:
        known = (name for name in OPTIONAL if name in sent and not (name == "thinking" and _OF_A_BLOCK.search(refusal)))
        refused = member_named((*known, *(name for name in sent if name not in MEMBERS)), refusal)
        return replace(manners, without=manners.without | {refused}) if refused else None

    def quoting(self, request: SummaryRequest, model: str, options: Json) -> bytes:
        messages = [{"role": "user", "content": request.transcript}]
        return msgspec.json.encode({"model": model, SYSTEM: request.instructions, "messages": messages, **options})

    def continuing(
        self, messages: Sequence[bytes], cached: Mapping[str, bytes], instructions: str, model: str, options: Json
    ) -> bytes:
        # Without a choice among the tools: to forbid them would cost the cache, which is what this call is for.
        last = msgspec.json.encode({"role": "user", "content": instructions})
        among = [raw for raw in messages if not is_beside(raw)]
        before = {name: msgspec.Raw(raw) for name, raw in cached.items()}
        if messages and is_beside(messages[0]):
            before[SYSTEM] = msgspec.Raw(messages[0])
        history = msgspec.Raw(b"[%b]" % b",".join((*among, last)))
        return msgspec.json.encode({"model": model, **before, "messages": history, **options})

    def reader(self) -> SummaryReader:
        return SummaryReader(_Answer())


class _Answer:
    """A message, as far as it has come."""

    def __init__(self) -> None:
        self.begun = False
        self.size = 0
        self.length = 0
        self._texts: list[str] = []
        self._calls = False
        self._reason = ""
        self._usage: dict[str, Any] = {}
        self._model = ""

    @property
    def ended(self) -> bool:
        """A reason to stop came."""
        return bool(self._reason)

    def close(self) -> None:
        """It means nothing in this format."""

    def take(self, said: Json) -> None:
        match said:
            case {"type": "message_start", "message": dict(message)}:
                self.begun = True
                self._take_usage(message)
            case {"type": "content_block_start", "content_block": dict(block)}:
                self._take_block(block)
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
                self._take_text(text)
            case {"type": "message_delta"}:
                self._take_usage(said)
                delta = said.get("delta")
                self._take_reason(delta.get("stop_reason") if isinstance(delta, dict) else None)
        self.begun = self.begun or said.get("type") in ("content_block_start", "content_block_delta", "message_delta")

    def take_whole(self, said: Json) -> bool:
        if not isinstance(said.get("content"), list):
            return False
        self.begun = True
        for block in blocks_of(said["content"]):
            self._take_block(block)
        self._take_usage(said)
        self._take_reason(said.get("stop_reason") or "end_turn")
        return True

    def _take_block(self, block: Json) -> None:
        self._calls = self._calls or block.get("type") == "tool_use"
        if block.get("type") == "text" and isinstance(text := block.get("text"), str):
            self._take_text(text)

    def _take_text(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self.length += len(text)
            self.size += STRING_BYTES + len(text)

    def _take_reason(self, reason: object) -> None:
        if reason:
            self._reason = reason if isinstance(reason, str) and WORD.fullmatch(reason) else "other"

    def _take_usage(self, said: Json) -> None:
        self._model = text_in(said, "model") or self._model
        if isinstance(usage := said.get("usage"), dict):
            self._usage.update((name, value) for name, value in usage.items() if value is not None)

    def answer(self) -> SummaryAnswer:
        word = "max_tokens" if says_window_full(self._reason) else self._reason
        ending = Ending.CALLED if self._calls else ENDINGS.get(word, Ending.OTHER)
        word = "" if ending is Ending.FINISHED else word
        usage, model = self._usage, self._model
        return SummaryAnswer("".join(self._texts), ending, word, read_usage(usage, model), bill_of(usage, model))
