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

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from app.compaction.view import Conversation, View
from app.formats.answers import Answers
from app.formats.raw_json import RawObject, Unreadable, decoded
from app.formats.reader import Beginnings, Draft
from app.formats.rendering import Breakpoints
from app.formats.requests import (
    BOUNDS,
    Body,
    BodyBounds,
    Headers,
    WireRequest,
    check_number,
    model_of,
    read_options,
    request_of,
    source_of,
)
from app.formats.summaries import SummaryDialect
from app.tokens.rules import LONGEST_MODEL, CountingRules, rules_for


class _Named(Struct):
    """A body's model, which stands at the same place in every format; other members are skipped, whatever they hold."""

    model: str = ""


_decode_named = msgspec.json.Decoder(_Named).decode


class WireFormat:
    """One API for conversations. What is usual stands here; a format says what is different."""

    name: str
    path: bytes
    """Path at which a client posts its requests, and where they are compacted."""
    other_paths: tuple[bytes, ...] = ()
    """Beginnings of other paths of its API. What is sent there goes to the same upstreams, as it comes."""
    counting_path: bytes | None = None
    """Path at which a request is posted to be counted and not to be answered."""
    largest_body = 50_000_000
    """Bytes of a request that the vendor of its API takes."""
    request: type[WireRequest]
    """Requests of the format: which members are read, and what they mean."""
    answers: Answers
    """Answers of the format, their streams and its errors."""
    summaries: SummaryDialect
    """How a summary is asked for in it."""
    breakpoints = Breakpoints()
    """How a client says where the provider's cache is to keep a prompt."""

    def read(self, body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> WireRequest:
        """Raises `Unreadable` for anything a provider should judge instead, and `InvalidRequest` for what is ours.

        With `beginnings` a body that begins like one that was read is read from there on. What may be large is looked
        at here, so that it is done beside the event loop where the body is.
        """
        source, known = source_of(body, bounds, beginnings)
        history = self.request.HISTORY
        if history not in source:
            raise Unreadable(f"The request has no {history}.")
        model, options, beside = model_of(source), read_options(source), self.beside(source)
        elements = tuple(source.elements(history))
        check_number(len(beside) + len(elements), bounds)
        if beginnings is not None:
            beginnings.keep(source, history, elements, known)
        return self.requested(Body(source, model, options, beside, elements))

    def beside(self, source: RawObject) -> tuple[bytes, ...]:  # noqa: ARG002 - in many formats there are none
        """The raw messages that stand beside a body's history and lead it."""
        return ()

    def requested(self, body: Body) -> WireRequest:
        """The request in a body."""
        return request_of(self.request, body)

    def window_asked(self, headers: Headers) -> int | None:  # noqa: ARG002 - in most formats none is about it
        """The window in tokens that a request's headers ask for, where they do."""
        return None

    def model_in(self, body: bytes) -> str:
        """The model that a body names which is not read any further; empty if that cannot be known."""
        try:
            model = decoded(body, _decode_named).model
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        return model if len(model) <= LONGEST_MODEL else ""

    def token_rules(self, model: str, host: str = "") -> CountingRules:
        """Rules by which a model counts a prompt of this format. `host`: where it is asked, as far as that matters."""
        return rules_for(model, host)

    def message(self, raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
        """Read one of a request's raw messages: see `Decode`."""
        raise NotImplementedError

    def alone(self, raw: bytes) -> bytes:
        """A raw message as JSON that stands for itself: some are only a part of their body."""
        return raw

    def raw_of(self, alone: bytes) -> bytes:
        """The raw message that `alone` was made of."""
        return alone

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:  # noqa: ARG002 - few do
        """The body of a request with these messages, each as `alone` has it, what leads as instructions first.

        `output`: how many tokens the answer may have, for formats that want to know.
        """
        named = msgspec.json.encode(model), self.request.HISTORY.encode(), b",".join(messages)
        return b'{"model":%b,"%b":[%b]}' % named

    def render(self, conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
        """The payload's raw messages in order; what is verbatim keeps its bytes.

        `alternate`: for a provider that refuses two user messages in a row.
        """
        raise NotImplementedError

    def refuses_thinking(self, refusal: bytes, request: WireRequest, *, changed: bool) -> bool:  # noqa: ARG002 - most formats sign none
        """Whether a refusal is about signed thinking in a payload. `changed`: it is not the history as it came."""
        return False

    def messages_in(self, payload: bytes) -> bytes:
        """The history in a payload, as JSON and as it stands there."""
        return RawObject(payload).raw(self.request.HISTORY) or b"[]"
