"""Wire formats: the interface between Steno and the APIs of clients and providers.

A format is one conversation API: its paths, and its JSON for history, answers, streams and errors. It provides
1. `WireRequest`: the client's bytes and the parsed members;
2. `Message`: kind, texts, calls and results of a message, and its slice of the client's bytes;
3. `AnswerEditor`: edits an answer's bytes and reports usage, end and errors;
4. `render`: turns a view into raw messages. Verbatim messages keep the client's bytes, so that provider caches match
   and unknown members survive.

A format has no state, does no I/O, and imports no other format. `paths` lists all formats. The proxy finds a
request's format by its path. A summary call uses a format that the upstream for summaries supports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct

from app.formats.answers import AnswerEditor
from app.formats.raw_json import RawObject, TooManyValues, Unreadable, decoded, holds_more_values
from app.formats.reader import Beginnings, Draft
from app.formats.rendering import Breakpoints
from app.formats.requests import (
    BOUNDS,
    AnswerAsked,
    BodyBounds,
    Headers,
    TooManyMessages,
    WireRequest,
    Wishes,
    read_focus,
    read_options,
    read_pins,
)
from app.formats.spec import FormatSpec
from app.formats.summaries import SummaryDialect
from app.tokens.counting_rules import LONGEST_MODEL, CountingRules, rules_for


class _Named(Struct):
    """The `model` of a body. The decoder skips all other members."""

    model: str = ""


_decode_named = msgspec.json.Decoder(_Named).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(eq=False)
class WireFormat:
    """One conversation API: its table (`spec`), and functions for properties that need code."""

    spec: FormatSpec
    request: type[WireRequest]
    editor: type[AnswerEditor]
    """Editor of answers, which also writes Steno's own frames and errors."""
    message: Callable[..., Draft]
    """Function that parses a raw message: see `Decode`."""
    render: Callable[..., list[bytes]]
    """Function that turns a conversation and a view into the payload's raw messages in order. With `alternate` it joins
    user messages that are adjacent only in the payload, for providers that refuse two in a row."""
    breakpoints: Breakpoints = field(default_factory=Breakpoints)
    token_rules: Callable[..., CountingRules] = rules_for
    """Function that returns the counting rules for a model and its provider's host."""
    window_asked: Callable[[Headers], int | None] = lambda _: None
    """Function that returns the context window, in tokens, that the headers of a request ask for."""
    refuses_thinking: Callable[..., bool] = lambda *_, **__: False
    """Function that returns whether a refusal is about signed thinking. `changed`: Steno changed the history."""

    def __post_init__(self) -> None:
        self.name, self.path = self.spec.name, self.spec.path
        self.summaries = SummaryDialect(self.spec, self.request)

    def is_at(self, path: bytes) -> bool:
        if self.spec.address is None:
            return path == self.path
        return (found := self.spec.address.fullmatch(path)) is not None and found["method"] in self.spec.methods

    def read(
        self, body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None, target: bytes = b""
    ) -> WireRequest:
        """Parse a body. Raises `Unreadable` for a body to forward unchanged, and `InvalidRequest` for a bad `context`.

        With `beginnings`, `read` parses only the bytes after a cached prefix. `read` does all slow parsing, so the
        caller can run it in a worker thread. `target` is the request's path with its query.
        """
        spec, kind = self.spec, self.request
        known = beginnings.find(body) if beginnings is not None else None
        start, marks = (known.stop, known.marks) if known is not None else (0, 0)
        # This check comes before decoding, because decoded values take many times the memory of their bytes.
        if holds_more_values(body, bounds.values, start, marks):
            raise TooManyValues(f"It holds more than {bounds.values} values.")
        source = RawObject(body) if known is None else known.read_rest(body)
        elements = kind.elements_in(source)
        leading, history = kind.split(source, elements)
        if (messages := len(leading) + len(history)) > bounds.messages:
            raise TooManyMessages(messages, bounds.messages)
        members = kind.members_in(source, elements)
        (model, streams), hands_off = kind.asked_at(source, target), members.get("hands_off")
        if model is None and hands_off:  # A template at the provider may name the model.
            model = ""
        if not isinstance(model, str) or len(model) > LONGEST_MODEL:
            raise Unreadable("The request names no model.")
        start_of_history = bytes(memoryview(source.raws.get(spec.history, b"null"))[:4])  # The rest may be long.
        if start_of_history == b"null" and not hands_off:
            raise Unreadable(f"The request has no {spec.history}.")
        options, wishes = read_options(source), Wishes()
        if beginnings is not None and start_of_history.startswith(b"["):
            beginnings.keep(source, spec.history, elements, known)
        if options:
            # Pins are indexes into the client's history. Separate instructions and joined elements shift the messages.
            moved = messages - len(elements)
            pins = {max(len(leading), pin + moved) for pin in read_pins(options.get("pin"), len(elements))}
            wishes = Wishes(options, read_focus(options.get("instructions")), tuple(sorted(pins)))
        declared, has_tools = b"", False
        for name in spec.declaring_members:
            if name in source.raws:
                raw = bytes(source.raws[name])
                declared += b"%b:%b," % (name.encode(), raw)
                has_tools = has_tools or (name in spec.tool_members and raw not in (b"null", b"[]"))
        return kind(
            source=source,
            raw_messages=(*leading, *history),
            model=model,
            declared=declared,
            names=tuple(kind.names_in(source)),
            has_tools=has_tools,
            answer=AnswerAsked(streams, kind.output_in(source), **members.pop("answer", {})),
            wishes=wishes,
            **members,
        )

    def model_in(self, body: bytes, target: bytes = b"") -> str:
        """Return the model that a request names in its path (`target`) or its unparsed body; empty if unknown."""
        if self.spec.address is not None and (found := self.spec.address.match(target)):
            return unquote_to_bytes(found["model"][: 3 * LONGEST_MODEL]).decode("utf-8", "replace")[:LONGEST_MODEL]
        try:
            model = decoded(body, _decode_named).model
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        return model if len(model) <= LONGEST_MODEL else ""

    def alone(self, raw: bytes) -> bytes:
        """Return a raw message as a JSON value. If the message is a member with its key, add braces."""
        return b"{%b}" % raw if self.spec.beside is not None and self.spec.beside.match(raw) else raw

    def raw_of(self, alone: bytes) -> bytes:
        if self.spec.beside is None or not self.spec.beside.match(alone, 1):
            return alone
        try:
            return alone[1:-1] if len(decoded(alone, _decode_members)) == 1 else alone
        except (msgspec.DecodeError, UnicodeDecodeError):
            return alone

    def assembled(self, model: str, messages: Sequence[bytes]) -> bytes:
        """Return a request body with these messages, instructions first. Each message is a result of `alone`."""
        history = self.request.history_of([*map(self.raw_of, messages)])
        return b'{"model":%b,%b}' % (msgspec.json.encode(model), history)

    def messages_in(self, payload: bytes) -> bytes:
        """Return the JSON of the history in a payload."""
        return RawObject(payload).raw(self.spec.history) or b"[]"
