"""The format: its requests, its summary calls, and the list of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from app.compaction.chunks import Ending
from app.compaction.prompts import SummaryRequest
from app.errors import InvalidRequest
from app.formats.chat_completions.answers import ChatAnswers
from app.formats.chat_completions.messages import BREAKPOINTS, read_message, render
from app.formats.format import WireFormat
from app.formats.raw_json import RawObject, Unreadable, object_of, objects_in, text_at
from app.formats.requests import (
    Body,
    WireRequest,
    elements_of,
    has_known_tools,
    is_function,
    request_of,
    response_format_of,
    tool_of,
    unread,
)
from app.formats.summaries import Json, SummaryDialect, SummaryReader
from app.tokens.declarations import Declarations, ResponseFormat
from app.tokens.usage import MOST_TOKENS

NAME = "chat_completions"
PATH = b"/v1/chat/completions"
EXTENSIONS = ("web_search_options", "plugins", "documents", "transforms", "truncate_prompt_tokens")
"""Members by which a provider puts text of its own into the prompt, or leaves some out."""
LEAST_THRESHOLD = 1


class ChatRequest(WireRequest, frozen=True):
    """A chat request as far as Steno reads it. The whole history comes with each, and nobody else compacts it."""

    OWN_MEMBERS = ("context", "context_management", "conversation_id")
    OUTPUT_MEMBERS = ("max_completion_tokens", "max_tokens")
    DECLARING_MEMBERS = ("tools", "functions", "tool_choice", "function_call", "response_format")
    TOOL_MEMBERS = ("tools", "functions")
    CACHED_MEMBERS = ("tools", "functions", "parallel_tool_calls")

    @property
    def is_typical(self) -> bool:
        """Whether the costs of the prompt are known: not with text that the provider adds or takes away.

        A schema is text to some providers and costs nothing at others; what cannot be read is only guessed.
        """
        schema = b"json_schema" in (self.source.raw("response_format") or b"")
        extended = any(name in self.source for name in EXTENSIONS) or "search" in self.model
        return has_known_tools(self.source, is_function) and not (schema or extended)

    def declarations(self) -> Declarations:
        return read_declarations(self.source)

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:
        if not ask_usage:
            return super().with_messages(raw_messages)
        replaced = {"messages": b"[%b]" % b",".join(raw_messages)}
        options = self.source.raw("stream_options") or b"null"
        try:
            given = RawObject(options if options.startswith(b"{") else b"{}")
        except Unreadable:  # Such as a key that stands twice: the provider judges it.
            return self.source.spliced(replaced, self.OWN_MEMBERS)
        asking = given.spliced(remove=("include_usage",), add=b'"include_usage":true')
        if "stream_options" in self.source:
            return self.source.spliced({**replaced, "stream_options": asking}, self.OWN_MEMBERS)
        return self.source.spliced(replaced, self.OWN_MEMBERS, b'"stream_options":' + asking)


def chat_request(body: Body) -> ChatRequest:
    """The request in a body."""
    source = body.source
    choices, stream_options = source.value("n"), source.value("stream_options")
    return request_of(
        ChatRequest,
        body,
        answer={
            "choices": choices if isinstance(choices, int) else 1,
            "wants_usage": isinstance(stream_options, dict) and stream_options.get("include_usage") is True,
            "says_whether_usage": source.raw("stream_options") not in (None, b"null", b"{}"),
        },
        threshold=_threshold(source.value("context_management")),
        forbids_tools="none" in (source.value("tool_choice"), source.value("function_call")),
    )


def _threshold(management: object) -> int | None:
    for entry in management if isinstance(management, list) else ():
        if isinstance(entry, dict) and entry.get("type") == "compaction" and "compact_threshold" in entry:
            value = entry["compact_threshold"]
            if not isinstance(value, int) or isinstance(value, bool) or value < LEAST_THRESHOLD:
                expected = f"a whole number of tokens, at least {LEAST_THRESHOLD}; it is {value!r:.100}"
                raise InvalidRequest(f"compact_threshold must be {expected}.", "context_management")
            return min(value, MOST_TOKENS)  # However large, it is over every window.
    return None


def read_declarations(source: RawObject) -> Declarations:
    """The declarations, without whatever is of the wrong type."""
    tools = elements_of(source, "tools")
    functions = elements_of(source, "functions")
    choice = source.value("tool_choice") or source.value("function_call")
    wrapped = [tool["function"] for tool, _ in tools if "function" in tool]
    return Declarations(
        tools=tuple(tool_of(object_of(function)) for function in (*wrapped, *(function for function, _ in functions))),
        legacy=bool(functions),
        choice=choice if isinstance(choice, str) else "",
        forced=_forced(choice),
        response_format=_response_format(source.value("response_format")),
        others=(
            *(text for tool, text in tools if "function" not in tool),
            *unread(source, ChatRequest.DECLARING_MEMBERS),
        ),
    )


def _forced(choice: object) -> str:
    """The function's name from `tool_choice` or, without its wrapping, from `function_call`."""
    named = object_of(choice)
    return text_at(object_of(named.get("function", named)), "name")


def _response_format(value: object) -> ResponseFormat | None:
    match value:
        case {"type": "json_schema", "json_schema": dict(held)}:
            return response_format_of(held)
        case _:
            return None


STREAMED: Json = {"stream": True, "stream_options": {"include_usage": True}}
ENDINGS = {
    **dict.fromkeys(("", "stop", "end_turn", "eos"), Ending.FINISHED),
    "length": Ending.CUT_OFF,
    **dict.fromkeys(("refusal", "content_filter"), Ending.REFUSED),
}
"""Endings by reasons to finish; one that is absent where the answer is over is the usual one."""


class _Answer(SummaryReader):
    """The first choice's message."""

    ENDINGS = ENDINGS
    CUT_OFF = "length"
    DONE_ENDS = True

    def _take(self, said: Json) -> None:
        self._take_choice(said)

    def _take_whole(self, said: Json) -> bool:
        self._ended = self._take_choice(said)
        return self._ended

    def _take_choice(self, chunk: Json) -> bool:
        """Add what a chunk, or a whole completion, says. False if it says nothing about the first choice."""
        self._begun = True
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
            self._take_names(chunk)
        first = next((choice for choice in objects_in(chunk.get("choices")) if not choice.get("index")), None)
        said = (first.get("delta") or first.get("message")) if first else None
        if first and (finish := first.get("finish_reason")):
            self._finish(finish)
        if not isinstance(said, dict):
            return False
        content = said.get("content")
        for part in [{"text": content}] if isinstance(content, str) else objects_in(content):
            # Some providers send reasoning as parts of another type.
            if part.get("type") in ("text", None):
                self._add(text_at(part, "text"))
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
    name = NAME
    request = ChatRequest
    requested = staticmethod(chat_request)
    path = PATH
    summaries = ChatSummaries()
    answers = ChatAnswers()
    breakpoints = BREAKPOINTS
    message = staticmethod(read_message)
    render = staticmethod(render)


CHAT_COMPLETIONS: WireFormat = ChatCompletions()
