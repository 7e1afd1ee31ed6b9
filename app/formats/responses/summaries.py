"""Summary calls on the wire: what is sent, and the answer out of a stream or out of one piece of JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from app.compaction.chunks import Ending
from app.compaction.prompts import SummaryRequest
from app.formats.responses.items import INSTRUCTIONS
from app.formats.responses.request import NAME, PATH, as_item
from app.formats.summaries import Collected, Json, SummaryDialect

CAP = "max_output_tokens"
SAID: Json = {"stream": True, "store": False}
ENDS = ("response.completed", "response.incomplete")
CALL = re.compile(r"_call$")


class _Answer(Collected):
    """The answer's messages, as far as they have come. Its reason to finish is a response's status, or the reason that
    it gives for another one."""

    endings: ClassVar[Mapping[str, Ending]] = {
        "completed": Ending.FINISHED,
        CAP: Ending.CUT_OFF,
        **dict.fromkeys(("content_filter", "refusal"), Ending.REFUSED),
    }
    cut_off = CAP

    def take(self, said: Json) -> None:
        type_ = said.get("type")
        match said:
            case {"type": "response.output_text.delta", "delta": str(text)}:
                self._begin(text)
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
                    self._begin(text)
                self._refused = self._refused or (isinstance(part, dict) and part.get("type") == "refusal")
        self._read_end(said)
        return True

    def _begin(self, text: str) -> None:
        self.begun = True
        self._add(text)

    def _read_end(self, response: Json) -> None:
        details, status = response.get("incomplete_details"), response.get("status", "completed")
        word = details.get("reason") if isinstance(details, dict) and status != "completed" else status
        self._take_reason(word)
        self._usage = response.get("usage")
        self._take_names(response)
        self.begun = True


class ResponsesSummaries(SummaryDialect):
    """The dialect: asked with `input`, answered with the messages of `output`."""

    name = NAME
    target = PATH
    own_members = frozenset(
        {"model", "input", "instructions", CAP, "tools", "tool_choice", "parallel_tool_calls", "background", *SAID}
    )
    optional = ("reasoning", "store", "stream")
    caps = (CAP, CAP)
    least_output = 16
    restrained: ClassVar[Json] = {"reasoning": {"effort": "low"}}
    said = SAID
    collected = _Answer

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
