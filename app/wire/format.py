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
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from app.core.tokens.rules import LONGEST_MODEL, CountingRules, rules_for
from app.core.view.view import Conversation, View
from app.errors import StenoError
from app.wire.answers import AnswerEditor
from app.wire.beginnings import Beginnings
from app.wire.dialect import SummaryDialect
from app.wire.early import EarlyFrames, EventShape
from app.wire.members import RawObject
from app.wire.native import NativeCompaction
from app.wire.provider_errors import error_body
from app.wire.sse import event
from app.wire.streamed import streamed
from app.wire.surrogates import decoded
from app.wire.types import BOUNDS, UNTOLD, BodyBounds, ContextMembers, Draft, Headers, WireRequest


class _Named(Struct):
    """A body's model, which stands at the same place in every format; other members are skipped, whatever they hold."""

    model: str = ""


_decode_named = msgspec.json.Decoder(_Named).decode


class WireFormat:
    """One API for conversations. What is usual stands here; a format says what is different."""

    name: str
    path: bytes
    """Path at which a client posts its requests."""
    summaries: SummaryDialect
    opens_early = False
    """Whether a provider opens its stream before it has looked at the prompt."""
    native: NativeCompaction | None = None
    """The provider's own compaction, where the format has words for it."""
    history = "messages"
    """Name of the member that holds the history."""
    answer = "message"
    """Noun for an answer in one piece, in errors."""

    def read(self, body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> WireRequest:
        """Raises `Unreadable` for anything a provider should judge instead, and `InvalidRequest` for what is ours.

        With `beginnings` a body that begins like one that was read is read from there on.
        """
        raise NotImplementedError

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

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:
        """The body of a request with these messages, each as `alone` has it, what leads as instructions first.

        `output`: how many tokens the answer may have, for formats that want to know.
        """
        raise NotImplementedError

    def render(self, conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
        """The payload's raw messages in order; what is verbatim keeps its bytes.

        `alternate`: for a provider that refuses two user messages in a row.
        """
        raise NotImplementedError

    def dropping(self, payload: bytes, headers: Headers) -> tuple[bytes, Headers]:
        """The same request, of which its provider leaves out by itself what thoughts are tied to something else. In
        most formats none are."""
        return payload, headers

    def messages_in(self, payload: bytes) -> bytes:
        """The history in a payload, as JSON and as it stands there."""
        return RawObject(payload).raw(self.history) or b"[]"

    def editor(
        self,
        context: ContextMembers = UNTOLD,
        request: WireRequest | None = None,
        early: EarlyFrames | None = None,
        *,
        hides_usage: bool = False,
    ) -> AnswerEditor:
        """The editor of one answer. `request`: what it answers, None for one that was not read; `early`: what was sent
        before it; `hides_usage`: the client did not ask what the stream cost, we did."""
        raise NotImplementedError

    def early(self, request: WireRequest, shape: EventShape, compaction_id: str) -> EarlyFrames:
        """Frames for one stream that begins before the provider's. `shape` is not `off`."""
        raise NotImplementedError

    def as_stream(
        self, request: WireRequest, chunks: AsyncIterator[bytes], *, is_stream: bool, headers: Headers
    ) -> AsyncIterator[bytes]:
        """The stream that was asked for, out of whatever came with status 200: a stream, or an answer in one piece.

        `is_stream`: its content type says so. Raises `UpstreamUnreadable` for an answer that is neither.
        """
        frames_of = partial(self.frames_of, request, headers)
        return streamed(chunks, frames_of, self.answer, is_stream=is_stream)

    def frames_of(self, request: WireRequest, headers: Headers, body: bytes) -> Iterable[bytes]:
        """The frames of a stream that says what an answer in one piece does. Raises `UpstreamUnreadable`."""
        raise NotImplementedError

    def error(self, error: StenoError) -> bytes:
        """The body of a refusal of our own."""
        return error.envelope

    def error_frame(self, error: StenoError) -> bytes:
        """A refusal of our own in a stream that has begun."""
        return self.failed(self.error(error))

    def refusal_frame(self, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        """The provider's refusal in a stream that has begun and can show no status any more. `now` in Unix seconds."""
        return self.failed(error_body(status, headers, body, now))

    def failed(self, envelope: bytes) -> bytes:
        """The frames that end a stream with an error body."""
        return event(envelope)

    def refuses_ties(self, refusal: bytes, request: WireRequest) -> bool:  # noqa: ARG002 - most formats know none
        """Whether a refusal is about thoughts that are tied to something else, and `dropping` would go round it."""
        return False

    def refuses_to_tell_usage(self, refusal: bytes) -> bool:  # noqa: ARG002 - most streams tell it unasked
        """Whether a refusal is about our asking a stream what it cost."""
        return False
