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
from app.wire.responses.items import INSTRUCTIONS
from app.wire.responses.request import NAME, PATH, as_item
from app.wire.summary_reader import STRING_BYTES, WORD, SummaryReader, member_named
from app.wire.usage import bill_of, read_usage, says_window_full, text_in

Json = Mapping[str, Any]

CAP = "max_output_tokens"
LEAST_OUTPUT = 16
"""Less than that is refused."""
SAID: Json = {"stream": True, "store": False}
MEMBERS = frozenset(
    {"model", "input", "instructions", CAP, "tools", "tool_choice", "parallel_tool_calls", "background", *SAID}
)
"""What a summary call says by itself, or leaves out on purpose; an operator may add others."""
OPTIONAL = ("reasoning", "store", "stream")
"""Members that the call can do without, beside those that the operator adds."""
REASONING_MODELS = re.compile(r"(^|/)(o\d|gpt-5)")
ENDINGS = {
    "completed": Ending.FINISHED,
    "max_output_tokens": Ending.CUT_OFF,
    "content_filter": Ending.REFUSED,
    "refusal": Ending.REFUSED,
}
"""What a response's status means, or the reason that it gives for another one."""
ENDS = ("response.completed", "response.incomplete")
CALL = re.compile(r"_call$")


class ResponsesSummaries:
    """The dialect: asked with `input`, answered with the messages of `output`."""

    name = NAME
    target = PATH
    own_members = MEMBERS
    optional = OPTIONAL
    headers: Headers = ()

    def cap(self, model: str) -> str:  # noqa: ARG002 - there is one for all
        return CAP

    def options(
        self, manners: Manners, model: str, most: int, allowance: int, parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        reasons = REASONING_MODELS.search(model) is not None
        effort = {"reasoning": {"effort": "low"}} if reasons else {}
        bound = max(LEAST_OUTPUT, most + (allowance if reasons else 0))
        wanted = {manners.cap: bound, **effort, **parameters, **SAID}
        return {name: value for name, value in wanted.items() if name not in manners.without}

    def taught(self, manners: Manners, refusal: bytes, sent: Mapping[str, Any]) -> Manners | None:
        known, added = (name for name in OPTIONAL if name in sent), (name for name in sent if name not in MEMBERS)
        refused = member_named(known, refusal) or member_named(added, refusal)
        return replace(manners, without=manners.without | {refused}) if refused else None

    def quoting(self, request: SummaryRequest, model: str, options: Json) -> bytes:
        said = {"model": model, "instructions": request.instructions, "input": request.transcript}
        return msgspec.json.encode({**said, **options})

    def continuing(
        self, messages: Sequence[bytes], cached: Mapping[str, bytes], instructions: str, model: str, options: Json
    ) -> bytes:
        members: dict[str, Any] = {"model": model}
        # Tools have to stay, they are a part of the cached prompt; without any, providers refuse a choice among them.
        members |= {name: msgspec.Raw(raw) for name, raw in cached.items()}
        if cached.get("tools", b"null") not in (b"null", b"[]"):
            members["tool_choice"] = "none"
        content = [{"type": "input_text", "text": instructions}]
        last = msgspec.json.encode({"type": "message", "role": "user", "content": content})
        items = (as_item(raw) for raw in (*messages, last) if not INSTRUCTIONS.match(raw))
        members["input"] = msgspec.Raw(b"[" + b",".join(items) + b"]")
        beside = b"".join(raw + b"," for raw in messages if INSTRUCTIONS.match(raw))
        return b"{" + beside + msgspec.json.encode({**members, **options})[1:]

    def reader(self) -> SummaryReader:
        return SummaryReader(_Answer())


class _Answer:
    """The answer's messages, as far as they have come."""

    def __init__(self) -> None:
        self.begun = False
        self.ended = False
        self.size = 0
        self.length = 0
        self._texts: list[str] = []
        self._word = ""
        self._calls = False
        self._refused = False
        self._usage: object = None
        self._named: tuple[str, str] = ("", "")

    def take(self, said: Json) -> None:
        type_ = said.get("type")
        match said:
            case {"type": "response.output_text.delta", "delta": str(text)}:
                self._add(text)
            case {"type": "response.refusal.delta" | "response.refusal.done"}:
                self.begun = self._refused = True
            case {"type": "response.output_item.added", "item": {"type": str(item)}}:
                self.begun = True
                self._calls = self._calls or CALL.search(item) is not None
            case {"response": dict(response)} if type_ in ENDS:
                # Some servers say all of it at the end only.
                if self._texts or not self.take_whole(response):
                    self._read_end(response)

    def take_whole(self, said: Json) -> bool:
        output = said.get("output")
        if not isinstance(output, list):
            return False
        for item in output:
            if not isinstance(item, dict):
                continue
            self._calls = self._calls or CALL.search(str(item.get("type"))) is not None
            content = item.get("content")
            for part in content if item.get("type") == "message" and isinstance(content, list) else ():
                if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                    self._add(text)
                self._refused = self._refused or (isinstance(part, dict) and part.get("type") == "refusal")
        self._read_end(said)
        return True

    def close(self) -> None:
        """The end of a stream says nothing here that its last event does not."""

    def _add(self, text: str) -> None:
        self.begun = True
        if text:
            self._texts.append(text)
            self.length += len(text)
            self.size += STRING_BYTES + len(text)

    def _read_end(self, response: Json) -> None:
        details, status = response.get("incomplete_details"), response.get("status", "completed")
        word = details.get("reason") if isinstance(details, dict) and status != "completed" else status
        self._word = word if isinstance(word, str) and WORD.fullmatch(word) else "other"
        self._usage = response.get("usage")
        self._named = text_in(response, "model"), text_in(response, "service_tier")
        self.begun = self.ended = True

    def answer(self) -> SummaryAnswer:
        word = "refusal" if self._refused else self._word
        word = "max_output_tokens" if says_window_full(word) else word
        ending = Ending.CALLED if self._calls else ENDINGS.get(word, Ending.OTHER)
        word = "" if ending is Ending.FINISHED else word
        usage, named = self._usage, self._named
        return SummaryAnswer("".join(self._texts), ending, word, read_usage(usage, named[0]), bill_of(usage, *named))
