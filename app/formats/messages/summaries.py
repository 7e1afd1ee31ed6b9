"""Summary calls on the wire: what is sent, and the answer out of a stream or out of one piece of JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from app.compaction.chunks import Ending
from app.compaction.prompts import SummaryRequest
from app.formats.messages.content import blocks_of
from app.formats.messages.messages import SYSTEM, is_beside
from app.formats.messages.request import NAME, PATH
from app.formats.objects import text_at
from app.formats.summaries import Collected, Json, SummaryDialect

CAP = "max_tokens"
_OF_A_BLOCK = re.compile(rb"thinking\W{0,3}blocks?")
"""A complaint about the history, and not about the member."""


class _Answer(Collected):
    """A message, as far as it has come."""

    endings: ClassVar[Mapping[str, Ending]] = {
        **dict.fromkeys(("end_turn", "stop_sequence"), Ending.FINISHED),
        "max_tokens": Ending.CUT_OFF,
        "refusal": Ending.REFUSED,
    }
    cut_off = "max_tokens"

    def __init__(self) -> None:
        super().__init__()
        self._usage: dict[str, Any] = {}

    def take(self, said: Json) -> None:
        match said:
            case {"type": "message_start", "message": dict(message)}:
                self.begun = True
                self._take_usage(message)
            case {"type": "content_block_start", "content_block": dict(block)}:
                self._take_block(block)
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
                self._add(text)
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
            self._add(text)

    def _take_reason(self, reason: object) -> None:
        if reason:
            super()._take_reason(reason)

    def _take_usage(self, said: Json) -> None:
        self._named = text_at(said, "model") or self._named[0], ""
        if isinstance(usage := said.get("usage"), dict):
            self._usage.update((name, value) for name, value in usage.items() if value is not None)


class MessagesSummaries(SummaryDialect):
    """The dialect: asked with `messages`, answered with the texts of one message."""

    name = NAME
    target = PATH
    headers = ((b"anthropic-version", b"2023-06-01"),)
    own_members = frozenset({"model", "messages", SYSTEM, CAP, "stream", "tools", "tool_choice", "thinking"})
    optional = ("thinking", "stream")
    caps = (CAP, CAP)
    reasoning = re.compile(r"(^|[/.])(o\d|gpt-5)|claude-[a-z]+-([5-9]|\d\d)(?!\d)")
    restrained: ClassVar[Json] = {"thinking": {"type": "disabled"}}
    collected = _Answer

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

    def _known(self, refusal: bytes, sent: Mapping[str, Any]) -> Iterable[str]:
        known = super()._known(refusal, sent)
        return (name for name in known if not (name == "thinking" and _OF_A_BLOCK.search(refusal)))
