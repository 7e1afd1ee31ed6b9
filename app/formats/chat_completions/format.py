"""Requests of Chat Completions, and its `WireFormat`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from app.errors import InvalidRequest
from app.formats.chat_completions.answers import CompletionEditor
from app.formats.chat_completions.messages import BREAKPOINTS, read_message, render
from app.formats.chat_completions.spec import SPEC
from app.formats.format import WireFormat
from app.formats.raw_json import RawObject, Unreadable, object_of, objects_in, text_at
from app.formats.requests import WireRequest, elements_of, response_format_of, tool_of, unread
from app.tokens.declarations import Declarations
from app.tokens.usage import MOST_TOKENS

LEAST_THRESHOLD = 1


class ChatRequest(WireRequest, frozen=True):
    """A chat request, which always contains the whole history."""

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
        named = object_of(choice)  # In `tool_choice` the name is inside `function`.
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
        except Unreadable:  # Such as a repeated key: the provider judges it.
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
            return min(value, MOST_TOKENS)  # More than any window anyway.
    return None


CHAT_COMPLETIONS = WireFormat(SPEC, ChatRequest, CompletionEditor, read_message, render, BREAKPOINTS)
