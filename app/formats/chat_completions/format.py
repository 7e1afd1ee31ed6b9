"""The format: its requests, its summary calls, and the list of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from app.compaction.prompts import SummaryRequest
from app.errors import InvalidRequest
from app.formats.chat_completions.answers import ChatAnswers
from app.formats.chat_completions.messages import BREAKPOINTS, read_message, render
from app.formats.chat_completions.spec import SPEC
from app.formats.format import WireFormat
from app.formats.raw_json import RawObject, Unreadable, object_of, objects_in, text_at
from app.formats.requests import WireRequest, elements_of, response_format_of, tool_of, unread
from app.formats.summaries import Json, SummaryDialect, SummaryReader
from app.tokens.declarations import Declarations
from app.tokens.usage import MOST_TOKENS

LEAST_THRESHOLD = 1


class ChatRequest(WireRequest, frozen=True):
    """A chat request as far as Steno reads it. The whole history comes with each, and nobody else compacts it."""

    SPEC = SPEC

    @classmethod
    def members_in(cls, source: RawObject, elements: Sequence[bytes]) -> dict[str, Any]:  # noqa: ARG003
        choices, stream_options = source.value("n"), source.value("stream_options")
        return {
            "answer": {
                "choices": choices if isinstance(choices, int) else 1,
                "wants_usage": object_of(stream_options).get("include_usage") is True,
                "says_whether_usage": source.raw("stream_options") not in (None, b"null", b"{}"),
            },
            "threshold": _threshold(source),
            "forbids_tools": "none" in (source.value("tool_choice"), source.value("function_call")),
        }

    @property
    def is_typical(self) -> bool:
        return "search" not in self.model and super().is_typical

    def declarations(self) -> Declarations:
        source = self.source
        tools, functions = elements_of(source, "tools"), elements_of(source, "functions")
        choice, answer = source.value("tool_choice") or source.value("function_call"), source.value("response_format")
        named = object_of(choice)  # The function's name, in `function_call` without its wrapping.
        schema = object_of(answer).get("json_schema") if object_of(answer).get("type") == "json_schema" else None
        wrapped = [tool["function"] for tool, _ in tools if "function" in tool]
        return Declarations(
            tools=tuple(tool_of(object_of(each)) for each in (*wrapped, *(function for function, _ in functions))),
            legacy=bool(functions),
            choice=choice if isinstance(choice, str) else "",
            forced=text_at(object_of(named.get("function", named)), "name"),
            response_format=response_format_of(schema) if isinstance(schema, dict) else None,
            others=(*(text for tool, text in tools if "function" not in tool), *unread(source, SPEC.declaring_members)),
        )

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:
        if not ask_usage:
            return super().with_messages(raw_messages)
        replaced = {"messages": b"[%b]" % b",".join(raw_messages)}
        options = self.source.raw("stream_options") or b"null"
        try:
            given = RawObject(options if options.startswith(b"{") else b"{}")
        except Unreadable:  # Such as a key that stands twice: the provider judges it.
            return self.source.spliced(replaced, SPEC.own_members)
        asking = given.spliced(remove=("include_usage",), add=b'"include_usage":true')
        if "stream_options" in self.source:
            return self.source.spliced({**replaced, "stream_options": asking}, SPEC.own_members)
        return self.source.spliced(replaced, SPEC.own_members, b'"stream_options":' + asking)


def _threshold(source: RawObject) -> int | None:
    for entry in objects_in(source.value("context_management")):
        if entry.get("type") == "compaction" and "compact_threshold" in entry:
            value = entry["compact_threshold"]
            if not isinstance(value, int) or isinstance(value, bool) or value < LEAST_THRESHOLD:
                expected = f"a whole number of tokens, at least {LEAST_THRESHOLD}; it is {value!r:.100}"
                raise InvalidRequest(f"compact_threshold must be {expected}.", "context_management")
            return min(value, MOST_TOKENS)  # However large, it is over every window.
    return None


STREAMED: Json = {"stream": True, "stream_options": {"include_usage": True}}


class _Answer(SummaryReader):
    """The first choice's message."""

    SPEC = SPEC
    DONE_ENDS = True

    def _take_whole(self, said: Json) -> bool:
        self._ended = self._take(said)
        return self._ended

    def _take(self, said: Json) -> bool:
        """Take a chunk, or a whole completion. False if it says nothing about the first choice."""
        self._begun = True
        if isinstance(usage := said.get("usage"), dict):
            self._usage = usage
            self._take_names(said)
        first = next((choice for choice in objects_in(said.get("choices")) if not choice.get("index")), None)
        message = (first.get("delta") or first.get("message")) if first else None
        if first and (finish := first.get("finish_reason")):
            self._finish(finish)
        if not isinstance(message, dict):
            return False
        content = message.get("content")
        for part in [{"text": content}] if isinstance(content, str) else objects_in(content):
            # Some providers send reasoning as parts of another type.
            if part.get("type") in ("text", None):
                self._add(text_at(part, "text"))
        self._calls = self._calls or bool(message.get("tool_calls") or message.get("function_call"))
        self._refused = self._refused or bool(message.get("refusal"))
        return True


class ChatSummaries(SummaryDialect):
    """The dialect: asked with `messages`, answered with the first of `choices`."""

    spec = SPEC
    own_members = frozenset(
        {"model", "messages", "max_tokens", "max_completion_tokens", "n", *STREAMED}
        | {"tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"}
    )
    optional = ("reasoning_effort", "stream_options", "stream")
    caps = ("max_tokens", "max_completion_tokens")
    restrained: ClassVar[Json] = {"reasoning_effort": "low"}
    said = STREAMED
    reader = _Answer

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


class ChatCompletions(WireFormat):
    spec = SPEC
    request = ChatRequest
    summaries = ChatSummaries()
    answers = ChatAnswers()
    breakpoints = BREAKPOINTS
    message = staticmethod(read_message)
    render = staticmethod(render)


CHAT_COMPLETIONS: WireFormat = ChatCompletions()
