"""Requests: a Chat Completions body as far as Steno reads it, and the body that goes on in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from app.core.limits.budget import MOST_TOKENS
from app.core.tokens.declarations import Declarations
from app.errors import InvalidRequest
from app.wire.beginnings import Beginnings
from app.wire.bodies import (
    check_number,
    declared_in,
    has_known_tools,
    is_function,
    is_given,
    model_of,
    output_in,
    source_of,
)
from app.wire.chat_completions.declarations import MEMBERS, read_declarations
from app.wire.members import RawObject, Unreadable
from app.wire.options import read_focus, read_names, read_options, read_pins
from app.wire.types import BOUNDS, BodyBounds, WireRequest

Json = Mapping[str, Any]

NAME = "chat_completions"
PATH = b"/v1/chat/completions"
EXTENSIONS = ("web_search_options", "plugins", "documents", "transforms", "truncate_prompt_tokens")
"""Members by which a provider puts text of its own into the prompt, or leaves some out."""
LEAST_THRESHOLD = 1


class ChatRequest(WireRequest, frozen=True):
    """A chat request as far as Steno reads it. The whole history comes with each, and nobody else compacts it."""

    OWN_MEMBERS = ("context", "context_management", "conversation_id")
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
        replaced = {"messages": b"[" + b",".join(raw_messages) + b"]"}
        if not ask_usage:
            return self.source.spliced(replaced, self.OWN_MEMBERS)
        options = self.source.raw("stream_options") or b"null"
        try:
            given = RawObject(options if options.startswith(b"{") else b"{}")
        except Unreadable:  # Such as a key that stands twice: the provider judges it.
            return self.source.spliced(replaced, self.OWN_MEMBERS)
        asking = given.spliced(remove=("include_usage",), add=b'"include_usage":true')
        if "stream_options" in self.source:
            return self.source.spliced({**replaced, "stream_options": asking}, self.OWN_MEMBERS)
        return self.source.spliced(replaced, self.OWN_MEMBERS, b'"stream_options":' + asking)


_beside = attrgetter(*ChatRequest.__struct_fields__[2:])
"""A function to all members of a request beside its messages. `replace` takes ten times as long."""


def read_request(body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> ChatRequest:
    """Raises `Unreadable` for anything a provider should judge instead, and `InvalidRequest` for what is ours.

    What may be large is looked at here, so that it is done beside the event loop where the body is.
    """
    if beginnings is not None and (found := beginnings.envelopes.find(body, "messages", bounds.values)) is not None:
        like, source, elements = found
        return ChatRequest(source, _bounded(elements, bounds), *_beside(like))
    source, known = source_of(body, bounds, beginnings)
    if "messages" not in source:
        raise Unreadable("The request has no messages.")
    model = model_of(source)
    options = read_options(source)
    raw_messages = _bounded(source.elements("messages"), bounds)
    if beginnings is not None:
        beginnings.keep(source, "messages", raw_messages, known)
    output = source.value("max_completion_tokens") or source.value("max_tokens")
    choices = source.value("n")
    stream_options = source.value("stream_options")
    request = ChatRequest(
        source=source,
        model=model,
        stream=source.value("stream") is True,
        choices=choices if isinstance(choices, int) else 1,
        output=output_in(output),
        raw_messages=raw_messages,
        declared=declared_in(source, MEMBERS),
        options=options,
        threshold=_threshold(source.value("context_management")),
        focus=read_focus(options.get("instructions")),
        pins=read_pins(options.get("pin"), len(raw_messages)),
        names=tuple(read_names(source)),
        wants_usage=isinstance(stream_options, dict) and stream_options.get("include_usage") is True,
        says_whether_usage=source.raw("stream_options") not in (None, b"null", b"{}"),
        has_tools=any(is_given(source, name) for name in ("tools", "functions")),
        forbids_tools="none" in (source.value("tool_choice"), source.value("function_call")),
        alike=object(),
    )
    if beginnings is not None and not request.pins:  # Those count the messages.
        beginnings.envelopes.keep(source, "messages", lambda rest: ChatRequest(rest, (), *_beside(request)))
    return request


def _bounded(elements: Sequence[bytes], bounds: BodyBounds) -> tuple[bytes, ...]:
    check_number(len(elements), bounds)
    return tuple(elements)


def _threshold(management: object) -> int | None:
    for entry in management if isinstance(management, list) else ():
        if isinstance(entry, dict) and entry.get("type") == "compaction" and "compact_threshold" in entry:
            value = entry["compact_threshold"]
            if not isinstance(value, int) or isinstance(value, bool) or value < LEAST_THRESHOLD:
                expected = f"a whole number of tokens, at least {LEAST_THRESHOLD}; it is {value!r:.100}"
                raise InvalidRequest(f"compact_threshold must be {expected}.", "context_management")
            return min(value, MOST_TOKENS)  # However large, it is over every window.
    return None
