"""Summary calls on the wire: what is sent, and the answer out of a stream or out of one piece of JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from app.compaction.chunks import Ending
from app.compaction.prompts import SummaryRequest
from app.formats.chat_completions.request import NAME, PATH
from app.formats.summaries import Collected, Json, Manners, SummaryDialect, member_named

STREAMED: Json = {"stream": True, "stream_options": {"include_usage": True}}
_TOO_LARGE = re.compile(rb"too (?:large|high|big)|at most|exceed|less than")
ENDINGS = {
    **dict.fromkeys(("", "stop", "end_turn", "eos"), Ending.FINISHED),
    "length": Ending.CUT_OFF,
    **dict.fromkeys(("refusal", "content_filter"), Ending.REFUSED),
}
"""Endings by reasons to finish; one that is absent where the answer is over is the usual one."""


class _Message(Collected):
    """The first choice's message, as far as it has come."""

    endings = ENDINGS
    cut_off = "length"

    def __init__(self) -> None:
        super().__init__()
        self._closed = False

    @property
    def ended(self) -> bool:
        """Whether a reason to finish came, or `[DONE]`."""
        return bool(self._word) or self._closed

    def close(self) -> None:
        self._closed = True

    def take_whole(self, said: Json) -> bool:
        self._closed = self._take(said)
        return self._closed

    def take(self, said: Json) -> None:
        self._take(said)

    def _take(self, chunk: Json) -> bool:
        """Add what a chunk, or a whole completion, says. False if it says nothing about the first choice."""
        self.begun = True
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
            self._take_names(chunk)
        choices = chunk.get("choices")
        first = next((choice for choice in choices if _is_first(choice)), None) if isinstance(choices, list) else None
        said = (first.get("delta") or first.get("message")) if first else None
        if first and (finish := first.get("finish_reason")):
            self._take_reason(finish)
        if not isinstance(said, dict):
            return False
        for text in _texts(said.get("content")):
            self._add(text)
        self._calls = self._calls or bool(said.get("tool_calls") or said.get("function_call"))
        self._refused = self._refused or bool(said.get("refusal"))
        return True


class ChatSummaries(SummaryDialect):
    """The dialect: asked with `messages`, answered with the first of `choices`."""

    name = NAME
    target = PATH
    own_members = frozenset(
        {"model", "messages", "max_tokens", "max_completion_tokens", "n", *STREAMED}
        | {"tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"}
    )
    optional = ("reasoning_effort", "stream_options", "stream")
    caps = ("max_tokens", "max_completion_tokens")
    restrained: ClassVar[Json] = {"reasoning_effort": "low"}
    said = STREAMED
    collected = _Message

    def taught(self, manners: Manners, refusal: bytes, sent: Mapping[str, Any]) -> Manners | None:
        other = self._other_cap(refusal)
        if other in (None, manners.cap) or member_named(self._known(refusal, sent), refusal):
            return super().taught(manners, refusal, sent)
        return replace(manners, cap=other)

    def quoting(self, request: SummaryRequest, model: str, options: Json) -> bytes:
        messages = [
            {"role": "system", "content": request.instructions},
            {"role": "user", "content": request.transcript},
        ]
        return msgspec.json.encode({"model": model, "messages": messages, **options})

    def continuing(
        self, messages: Sequence[bytes], cached: Mapping[str, bytes], instructions: str, model: str, options: Json
    ) -> bytes:
        last = msgspec.json.encode({"role": "user", "content": instructions})
        members: dict[str, Any] = {"model": model, "messages": msgspec.Raw(b"[" + b",".join((*messages, last)) + b"]")}
        members |= {name: msgspec.Raw(raw) for name, raw in cached.items()}
        # Tools have to stay, they are a part of the cached prompt; without any, providers refuse a choice among them.
        for declaring, choice in (("tools", "tool_choice"), ("functions", "function_call")):
            if cached.get(declaring, b"null") != b"null":
                members[choice] = "none"
        return msgspec.json.encode({**members, **options})

    def _left_out(self, manners: Manners) -> frozenset[str]:
        # Without a stream there is nothing for its options to say.
        return manners.without | {"stream_options"} if "stream" in manners.without else manners.without

    def _other_cap(self, refusal: bytes) -> str | None:
        """The cap to use instead, where the provider refused the one that was sent."""
        # One that is too large would be so under the other name, too.
        if b"max_completion_tokens" not in refusal or _TOO_LARGE.search(refusal):
            return None
        return self.caps[1] if b"'max_tokens'" in refusal else self.caps[0]


def _is_first(choice: object) -> bool:
    return isinstance(choice, dict) and choice.get("index", 0) in (0, None)


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if _is_text(part) and part["text"]]


def _is_text(part: object) -> bool:
    """Whether a part is text, and no reasoning, which some providers send as parts of another type."""
    return isinstance(part, dict) and part.get("type") in ("text", None) and isinstance(part.get("text"), str)
