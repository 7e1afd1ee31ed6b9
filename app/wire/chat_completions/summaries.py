"""Summary calls on the wire: what is sent, and the answer out of a stream or out of one piece of JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from app.core.summary.gate import Ending, SummaryAnswer
from app.core.summary.prompts import SummaryRequest
from app.wire.chat_completions.request import NAME, PATH
from app.wire.format import Headers, Manners
from app.wire.summary_reader import STRING_BYTES, WORD, SummaryReader, member_named
from app.wire.usage import bill_of, read_usage, says_window_full, text_in

Json = Mapping[str, Any]

STREAMED: Json = {"stream": True, "stream_options": {"include_usage": True}}
MEMBERS = frozenset(
    {"model", "messages", "max_tokens", "max_completion_tokens", "n", *STREAMED}
    | {"tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"}
)
"""What a summary call says by itself, or leaves out on purpose; an operator may add others."""
CAPS = ("max_tokens", "max_completion_tokens")
"""What bounds the answer: for most models, and for those that reason."""
OPTIONAL = ("reasoning_effort", "stream_options", "stream")
"""Members that the call can do without, beside those that the operator adds."""
REASONING_MODELS = re.compile(r"(^|/)(o\d|gpt-5)")
_TOO_LARGE = re.compile(rb"too (?:large|high|big)|at most|exceed|less than")
ENDINGS = {
    **dict.fromkeys(("", "stop", "end_turn", "eos"), Ending.FINISHED),
    "length": Ending.CUT_OFF,
    **dict.fromkeys(("refusal", "content_filter"), Ending.REFUSED),
}
"""What reasons to finish mean; one that is absent where the answer is over is the usual one."""


class ChatSummaries:
    """The dialect: asked with `messages`, answered with the first of `choices`."""

    name = NAME
    target = PATH
    headers: Headers = ()
    own_members = MEMBERS
    optional = OPTIONAL

    def cap(self, model: str) -> str:
        return CAPS[_reasons(model)]

    def options(
        self, manners: Manners, model: str, most: int, allowance: int, parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        reasons = _reasons(model)
        effort = {"reasoning_effort": "low"} if reasons else {}
        wanted = {manners.cap: most + (allowance if reasons else 0), **effort, **parameters, **STREAMED}
        # Without a stream there is nothing for its options to say.
        without = manners.without | {"stream_options"} if "stream" in manners.without else manners.without
        return {name: value for name, value in wanted.items() if name not in without}

    def taught(self, manners: Manners, refusal: bytes, sent: Mapping[str, Any]) -> Manners | None:
        known, added = (name for name in OPTIONAL if name in sent), (name for name in sent if name not in MEMBERS)
        other = _other_cap(refusal)
        refused = member_named(known, refusal)
        if refused is None and other not in (None, manners.cap):
            return replace(manners, cap=other)
        refused = refused or member_named(added, refusal)
        return replace(manners, without=manners.without | {refused}) if refused else None

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

    def reader(self) -> CompletionReader:
        return CompletionReader()


def _reasons(model: str) -> bool:
    return REASONING_MODELS.search(model) is not None


def _other_cap(refusal: bytes) -> str | None:
    """The cap to use instead, where the provider refused the one that was sent."""
    # One that is too large would be so under the other name, too.
    if b"max_completion_tokens" not in refusal or _TOO_LARGE.search(refusal):
        return None
    return CAPS[1] if b"'max_tokens'" in refusal else CAPS[0]


class CompletionReader(SummaryReader):
    """Chunks in, the answer out."""

    def __init__(self) -> None:
        super().__init__(_Message())


class _Message:
    """The first choice's message, as far as it has come."""

    def __init__(self) -> None:
        self.begun = False
        self.finish = ""
        self.size = 0
        """Bytes that the texts take, roughly."""
        self.length = 0
        self._texts: list[str] = []
        self._calls = False
        self._refused = False
        self._closed = False
        self._usage: Json | None = None
        self._named: tuple[str, str] = ("", "")

    @property
    def ended(self) -> bool:
        """A reason to finish came, or `[DONE]`."""
        return bool(self.finish) or self._closed

    def close(self) -> None:
        self._closed = True

    def take_whole(self, said: Json) -> bool:
        self._closed = self._take(said)
        return self._closed

    def take(self, said: Json) -> None:
        self._take(said)

    def _take(self, chunk: Json) -> bool:
        """Adds what a chunk, or a whole completion, says. Whether it says anything about the first choice."""
        self.begun = True
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
            self._named = text_in(chunk, "model"), text_in(chunk, "service_tier")
        choices = chunk.get("choices")
        first = next((choice for choice in choices if _is_first(choice)), None) if isinstance(choices, list) else None
        said = (first.get("delta") or first.get("message")) if first else None
        if first and (finish := first.get("finish_reason")):
            self.finish = finish if isinstance(finish, str) and WORD.fullmatch(finish) else "other"
        if not isinstance(said, dict):
            return False
        texts = _texts(said.get("content"))
        self._texts += texts
        self.length += sum(map(len, texts))
        self.size += sum(STRING_BYTES + len(text) for text in texts)
        self._calls = self._calls or bool(said.get("tool_calls") or said.get("function_call"))
        self._refused = self._refused or bool(said.get("refusal"))
        return True

    def answer(self) -> SummaryAnswer:
        word = "refusal" if self._refused else self.finish
        word = "length" if says_window_full(word) else word
        ending = Ending.CALLED if self._calls else ENDINGS.get(word, Ending.OTHER)
        word = "" if ending is Ending.FINISHED else word
        usage, named = self._usage, self._named
        return SummaryAnswer("".join(self._texts), ending, word, read_usage(usage, named[0]), bill_of(usage, *named))


def _is_first(choice: object) -> bool:
    return isinstance(choice, dict) and choice.get("index", 0) in (0, None)


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if _is_text(part) and part["text"]]


def _is_text(part: object) -> bool:
    """Not reasoning, which some providers send as parts of another type."""
    return isinstance(part, dict) and part.get("type") in ("text", None) and isinstance(part.get("text"), str)
