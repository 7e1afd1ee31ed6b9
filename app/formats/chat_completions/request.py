"""Requests: a Chat Completions body as far as Steno reads it, and the body that goes on in its place."""

from __future__ import annotations

from collections.abc import Iterable

from app.errors import InvalidRequest
from app.formats.members import RawObject, Unreadable
from app.formats.objects import object_of, text_at
from app.formats.requests import (
    Body,
    elements_of,
    has_known_tools,
    is_function,
    request_of,
    response_format_of,
    tool_of,
    unread,
)
from app.formats.types import WireRequest
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
