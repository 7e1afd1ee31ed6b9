"""Wire formats: the one interface between what clients and providers say and what Steno decides.

A format is one API for conversations: where requests are posted, how history, answers, streams and errors are written.
Everything inside knows three things of it only. A request is a `WireRequest`: the client's bytes, and what Steno read
of them. A message is core's: of a kind, with texts, calls and results, and with the slice of the client's bytes that it
was read from. An answer passes through an `AnswerEditor`: bytes in, bytes out, and it reports what core wants
to know. Rendering goes the other way: what a view leaves as it was goes out as the very slices that came in, so that
providers find it in their caches and nothing that Steno does not know is lost; only what it says itself is new.

A format has no state, does no input or output, and none knows another. `formats` lists them; the proxy finds the one of
a request by its path; summaries are asked for in the dialect of the upstream that writes them.
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
    is_given,
    read_focus,
    read_options,
    read_pins,
)
from app.formats.spec import FormatSpec
from app.formats.summaries import SummaryDialect
from app.tokens.rules import LONGEST_MODEL, CountingRules, rules_for


class _Named(Struct):
    """A body's model, which stands at the same place in every format; other members are skipped, whatever they hold."""

    model: str = ""


_decode_named = msgspec.json.Decoder(_Named).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(eq=False)
class WireFormat:
    """One API for conversations: its table, and what that cannot say."""

    spec: FormatSpec
    request: type[WireRequest]
    editor: type[AnswerEditor]
    """Editor of its answers, which also writes what Steno says itself."""
    message: Callable[..., Draft]
    """Function that reads one of a request's raw messages: see `Decode`."""
    render: Callable[..., list[bytes]]
    """Function of a conversation and a view to the payload's raw messages in order; what is verbatim keeps its bytes.
    `alternate`: for a provider that refuses two user messages in a row."""
    breakpoints: Breakpoints = field(default_factory=Breakpoints)
    token_rules: Callable[..., CountingRules] = rules_for
    """Function of a model, and of the host where it is asked, to the rules by which it counts a prompt."""
    window_asked: Callable[[Headers], int | None] = lambda _: None
    """Function of a request's headers to the window in tokens that they ask for."""
    refuses_thinking: Callable[..., bool] = lambda *_, **__: False
    """Whether a refusal is about signed thinking in a payload. `changed`: it is not the history as it came."""

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
        """Raises `Unreadable` for anything a provider should judge instead, and `InvalidRequest` for what is ours.

        With `beginnings` a body that begins like one that was read is read from there on. What may be large is looked
        at here, so that it is done beside the event loop where the body is. `target`: the path it was posted to, with
        its query.
        """
        spec, kind = self.spec, self.request
        known = beginnings.find(body) if beginnings is not None else None
        start, marks = (known.stop, known.marks) if known is not None else (0, 0)
        # Before anything is decoded: each value takes many times its bytes.
        if holds_more_values(body, bounds.values, start, marks):
            raise TooManyValues(f"It holds more than {bounds.values} values.")
        source = RawObject(body) if known is None else known.read_rest(body)
        elements = kind.elements_in(source)
        leading, history = kind.split(source, elements)
        if (messages := len(leading) + len(history)) > bounds.messages:
            raise TooManyMessages(messages, bounds.messages)
        members = kind.members_in(source, elements)
        (model, streams), hands_off = kind.asked_at(source, target), members.get("hands_off")
        if model is None and hands_off:  # A template of the provider's may name the model, and hold the history.
            model = ""
        if not isinstance(model, str) or len(model) > LONGEST_MODEL:
            raise Unreadable("The request names no model.")
        if source.raw(spec.history) in (None, b"null") and not hands_off:
            raise Unreadable(f"The request has no {spec.history}.")
        options = read_options(source)
        if beginnings is not None and (source.raw(spec.history) or b"").startswith(b"["):
            beginnings.keep(source, spec.history, elements, known)
        # Clients count what stands in their history; several of those may be one raw message.
        moved = messages - len(elements)
        pins = {max(len(leading), pin + moved) for pin in read_pins(options.get("pin"), len(elements))}
        output = kind.output_in(source)
        declared = ((name.encode(), source.raw(name)) for name in spec.declaring_members)
        return kind(
            source=source,
            raw_messages=(*leading, *history),
            model=model,
            declared=b"".join([b"%b:%b," % (name, raw) for name, raw in declared if raw]),
            names=tuple(kind.names_in(source)),
            has_tools=any(is_given(source, name) for name in spec.tool_members),
            forbids_tools=members.pop("forbids_tools", source.value("tool_choice") == "none"),
            answer=AnswerAsked(
                streams,
                output if isinstance(output, int) and output > 0 else None,
                **members.pop("answer", {}),
            ),
            wishes=Wishes(
                options, read_focus(options.get("instructions")), tuple(sorted(pins)), members.pop("threshold", None)
            ),
            **members,
        )

    def model_in(self, body: bytes, target: bytes = b"") -> str:
        """The model of a body which is not read any further; empty if that cannot be known."""
        if self.spec.address is not None and (found := self.spec.address.match(target)):
            return unquote_to_bytes(found["model"][: 3 * LONGEST_MODEL]).decode("utf-8", "replace")[:LONGEST_MODEL]
        try:
            model = decoded(body, _decode_named).model
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        return model if len(model) <= LONGEST_MODEL else ""

    def alone(self, raw: bytes) -> bytes:
        """A raw message as JSON that stands for itself: the instructions beside a history are a whole member, with its
        key."""
        return b"{%b}" % raw if self.spec.beside is not None and self.spec.beside.match(raw) else raw

    def raw_of(self, alone: bytes) -> bytes:
        if self.spec.beside is None or not self.spec.beside.match(alone, 1):
            return alone
        try:
            return alone[1:-1] if len(decoded(alone, _decode_members)) == 1 else alone
        except (msgspec.DecodeError, UnicodeDecodeError):
            return alone

    def assembled(self, model: str, messages: Sequence[bytes]) -> bytes:
        """The body of a request with these messages, each as `alone` has it, what leads as instructions first."""
        history = self.request.history_of([*map(self.raw_of, messages)])
        return b'{"model":%b,%b}' % (msgspec.json.encode(model), history)

    def messages_in(self, payload: bytes) -> bytes:
        """The history in a payload, as JSON and as it stands there."""
        return RawObject(payload).raw(self.spec.history) or b"[]"
