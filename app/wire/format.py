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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self

from msgspec import Struct

from app.core.history.messages import Message
from app.core.reasons import Code, Reason
from app.core.summary.gate import SummaryAnswer
from app.core.summary.prompts import SummaryRequest
from app.core.tokens.declarations import Declarations
from app.core.tokens.rules import CountingRules
from app.core.view.view import Conversation, View
from app.errors import StenoError
from app.wire.beginnings import Beginnings
from app.wire.members import Unreadable
from app.wire.native import CompactionAsk, NativeCompaction, Referred
from app.wire.usage import Usage

EventShape = Literal["chunk", "start", "named", "comment", "off"]
EVENT_SHAPES: tuple[EventShape, ...] = ("chunk", "start", "named", "comment", "off")
"""How a stream announces a compaction before the provider's first frame: in the format's own safest frame, in one that
begins the answer, where more clients see it, as an event with a name, as a comment, or not at all: then nothing is sent
before the provider's status is known."""

LARGEST_WHOLE = 16 << 20
"""Bytes of an answer in one piece that are held, to tell something in it or to make it a stream.

The longest texts of today's models take 1 MB, an answer with a picture a few.
"""

Headers = Sequence[tuple[bytes, bytes]]
Named = tuple[str, bytes]
"""A member's name, as errors tell it, and its JSON as received."""


class TooManyMessages(Unreadable):
    """Planning what becomes of each of them would take time that others have to wait for."""

    reason = Code.TOO_MANY_MESSAGES


class BodyBounds(Struct, frozen=True):
    """How large a body may be that is read: one that passes them goes to the provider as it is."""

    values: int = 200_000
    messages: int = 10_000


BOUNDS = BodyBounds()


class WireRequest(Protocol):
    """A request as far as Steno reads it; the bytes stay the client's. What may be slow is done where it is read."""

    @property
    def body(self) -> bytes:
        """As received."""

    @property
    def untouched(self) -> bytes:
        """The client's bytes, less Steno's own members."""

    @property
    def model(self) -> str: ...

    @property
    def stream(self) -> bool: ...

    @property
    def hands_off(self) -> Reason | None:
        """Why it passes as it came although it could be read: somebody else keeps its history, or compacts it."""

    @property
    def asks(self) -> CompactionAsk | None:
        """What it asks of its provider's own compaction; then it is handed off."""

    @property
    def referred(self) -> Referred | None:
        """Where its history begins with a compaction of ours: the reference."""

    @property
    def choices(self) -> int:
        """Answers asked for; with more than one, nothing may be sent before the provider's begins."""

    @property
    def output(self) -> int | None:
        """Tokens asked for, None if the request does not say."""

    @property
    def raw_messages(self) -> tuple[bytes, ...]:
        """The history as slices, the instructions first: where they stand beside the messages, as slices of that
        member. `WireFormat.message` reads each, `with_messages` takes them back."""

    @property
    def declared(self) -> bytes:
        """What beside the messages costs prompt tokens, as received: counts are cached by it."""

    def declarations(self) -> Declarations:
        """The same, read."""

    @property
    def cached(self) -> Mapping[str, bytes]:
        """The members before the messages in a prompt, on which the provider's cache depends."""

    @property
    def has_tools(self) -> bool: ...

    @property
    def forbids_tools(self) -> bool:
        """Whether the model may not call what is declared."""

    @property
    def ties(self) -> bool:
        """Whether the answer may hold thoughts that its provider takes back only behind this very prompt."""

    @property
    def is_typical(self) -> bool:
        """Whether what the prompt costs is known: not with what the provider adds to it or takes away."""

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for the tokens a stream cost."""

    @property
    def says_whether_usage(self) -> bool:
        """Whether the client says anything about it: what comes then is not what comes unasked."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The body's `context` object."""

    @property
    def threshold(self) -> int | None:
        """Prompt tokens from which on this request wants to be compacted."""

    @property
    def focus(self) -> str:
        """What the summariser is to look after in this conversation."""

    @property
    def pins(self) -> tuple[int, ...]:
        """Indexes into `raw_messages` of what stays verbatim for this request."""

    @property
    def names(self) -> tuple[Named, ...]:
        """The members that may name the conversation to Steno, the first choice first."""

    @property
    def cache_key(self) -> Named | None:
        """What shows the provider's cache which requests are alike: some clients send their conversation's id."""

    @property
    def end_user(self) -> Named | None:
        """Who the client says it asks for."""

    @property
    def alike(self) -> object:
        """The same object for requests that say the same beside their messages; None where that is not known."""

    def echoed_in(self, error: str, number: int) -> bool:
        """Whether a number that an error gives may be the client's own. Also if that cannot be known."""

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:
        """The body with other messages; every other member keeps its bytes and its place, Steno's own are left out.

        `ask_usage`: a stream is asked to tell what it cost, where it would not unasked.
        """

    def asking(self, *, threshold: int | None = None, focus: str | None = None) -> Self:
        """The request as if it had asked for that, too."""


class Draft(Struct, frozen=True):
    """A message as a format reads it, without its digest."""

    message: Message
    canonical: bytes
    """What its digest is made of: equal for all spellings of the same meaning, without what moves between turns."""


Decode = Callable[[bytes, Sequence[re.Pattern[str]]], Draft]
"""Reads a raw message, and leaves volatile text that the patterns find out of what it means.

Raises `Unreadable` where it is none.
"""


class ContextMembers(Struct, frozen=True):
    """What an answer gets about its context: JSON members without their braces, the same in every format."""

    status: bytes = b""
    """Soon: `context_status`."""
    report: bytes = b""
    """Where the answer ends, or in one that is whole: that and the `context` object."""


UNTOLD = ContextMembers()


class AnswerEditor(Protocol):
    """One answer on its way to the client: bytes in, bytes out, streamed or whole, and what it says on the way.

    What cannot be read passes as it is. A stream goes through frame by frame, in order, each with the blank line that
    ends it; what is left of an incomplete one at the end, too.
    """

    @property
    def usage(self) -> Usage | None:
        """What the answer said it cost."""

    @property
    def window_full(self) -> bool:
        """It ended because the model's window was full."""

    @property
    def complete(self) -> bool:
        """Whether it had an end of its own, be it an error. A stream without one was cut; a whole answer without one
        could not be read."""

    @property
    def failed(self) -> bool:
        """The provider ended the stream with an error frame."""

    @property
    def refusal(self) -> bytes:
        """That error, where nothing else had come: in truth the request was refused."""

    @property
    def begun(self) -> bool:
        """Whether the stream said anything that counts, and no error."""

    @property
    def text_bytes(self) -> int:
        """Of what the model wrote, about."""

    def quiet(self, frames: bytes, start: int) -> int:
        """Where the frames end that pass as they are, of these from `start` on: nobody need look into them."""

    def edit(self, frame: bytes) -> bytes:
        """A frame of a stream, as the client gets it."""

    def whole(self, body: bytes) -> bytes:
        """An answer in one piece, as the client gets it."""


class EarlyFrames(Protocol):
    """What Steno says on a stream before the provider does: of one compaction, started once and closed once.

    The editor of the same stream is given them: where a frame of ours has begun the answer, it takes out of the
    provider's what would begin it a second time.
    """

    def started(self, details: Mapping[str, Any]) -> bytes: ...

    def keep_alive(self) -> bytes:
        """Nothing new, so that no client takes the silence for the end."""

    def completed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        """`members` as in `ContextMembers.status`."""

    def failed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes: ...


class Manners(Struct, frozen=True):
    """How a model behind an upstream wants to be asked for a summary, as far as its refusals taught."""

    cap: str
    """The member that bounds the answer."""
    without: frozenset[str] = frozenset()
    """Members that it does not take."""


class AnswerReader(Protocol):
    """A summary call's answer: chunks in, the answer out, be it a stream or, from some gateways, one piece of JSON."""

    @property
    def answer(self) -> SummaryAnswer | None:
        """The answer, once it has come to an end of its own."""

    @property
    def error(self) -> object:
        """What went wrong, as parsed JSON, where the provider sent an error with status 200."""

    @property
    def error_is_first(self) -> bool:
        """Nothing came before the error: in truth the request was refused."""

    @property
    def unreadable(self) -> bool:
        """What came is no answer."""

    @property
    def done(self) -> bool:
        """There is nothing more to come."""

    @property
    def held(self) -> int:
        """What is kept, in bytes, roughly."""

    @property
    def length(self) -> int:
        """Characters of the answer's text."""

    def feed(self, chunk: bytes) -> None: ...

    def end(self) -> None:
        """The answer's bytes are complete."""


class SummaryDialect(Protocol):
    """How a summary is asked for in a format, and what a refusal teaches about how to ask."""

    @property
    def name(self) -> str:
        """The format's."""

    @property
    def target(self) -> bytes:
        """Where the call is posted; `/v1` stands for the path of the upstream's base URL."""

    @property
    def headers(self) -> Headers:
        """What a request of the format has to say in its headers beside what a body needs, where the caller does not.
        Names in lower case."""

    @property
    def own_members(self) -> frozenset[str]:
        """What a call says by itself, or leaves out on purpose: an operator may add others."""

    @property
    def optional(self) -> tuple[str, ...]:
        """Those it can do without."""

    def cap(self, model: str) -> str:
        """The member that bounds this model's answers, as far as nothing was learnt."""

    def options(
        self, manners: Manners, model: str, most: int, allowance: int, parameters: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The members that a call depends on manners for: the cap of `most` tokens, with an `allowance` for a model
        that reasons first, the operator's parameters, and that the answer is to be streamed."""

    def taught(self, manners: Manners, refusal: bytes, sent: Mapping[str, Any]) -> Manners | None:
        """The manners to ask again with, or None if nothing is learnt from this refusal. `sent`: the options."""

    def quoting(self, request: SummaryRequest, model: str, options: Mapping[str, Any]) -> bytes:
        """The body that quotes a transcript."""

    def continuing(
        self,
        messages: Sequence[bytes],
        cached: Mapping[str, bytes],
        instructions: str,
        model: str,
        options: Mapping[str, Any],
    ) -> bytes:
        """The body that continues the conversation itself, so that the provider finds the prompt in its cache: its raw
        messages and `WireRequest.cached`, which have to be of this format."""

    def reader(self) -> AnswerReader: ...


class WireFormat(Protocol):
    """One API for conversations."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> bytes:
        """Where a client posts its requests."""

    @property
    def opens_early(self) -> bool:
        """Whether a provider opens its stream before it has looked at the prompt."""

    @property
    def summaries(self) -> SummaryDialect: ...

    @property
    def native(self) -> NativeCompaction | None:
        """The provider's own compaction, where the format has words for it."""

    def read(self, body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> WireRequest:
        """Raises `Unreadable` for anything a provider should judge instead, and `InvalidRequest` for what is ours.

        With `beginnings` a body that begins like one that was read is read from there on.
        """

    def window_asked(self, headers: Headers) -> int | None:
        """The window in tokens that a request's headers ask for, where they do."""

    def model_in(self, body: bytes) -> str:
        """The model that a body names which is not read any further; empty if that cannot be known."""

    def token_rules(self, model: str, host: str = "") -> CountingRules:
        """By what a model counts a prompt of this format. `host`: where it is asked, as far as that matters."""

    def message(self, raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
        """Reads one of a request's raw messages: see `Decode`."""

    def alone(self, raw: bytes) -> bytes:
        """A raw message as JSON that stands for itself: some are only a part of their body."""

    def raw_of(self, alone: bytes) -> bytes:
        """The raw message that `alone` was made of."""

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:
        """The body of a request with these messages, each as `alone` has it, what leads as instructions first.

        `output`: how many tokens the answer may have, for formats that want to know.
        """

    def render(self, conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
        """The payload's raw messages in order; what is verbatim keeps its bytes.

        `alternate`: for a provider that refuses two user messages in a row.
        """

    def dropping(self, payload: bytes, headers: Headers) -> tuple[bytes, Headers]:
        """The same request, of which its provider leaves out by itself what thoughts are tied to something else."""

    def messages_in(self, payload: bytes) -> bytes:
        """The history in a payload, as JSON and as it stands there."""

    def editor(
        self,
        context: ContextMembers = UNTOLD,
        request: WireRequest | None = None,
        early: EarlyFrames | None = None,
        *,
        hides_usage: bool = False,
    ) -> AnswerEditor:
        """For one answer. `request`: what it answers, None for one that was not read; `early`: what was sent before it;
        `hides_usage`: the client did not ask what the stream cost, we did."""

    def early(self, request: WireRequest, shape: EventShape, compaction_id: str) -> EarlyFrames:
        """For one stream that begins before the provider's. `shape` is not `off`."""

    def as_stream(
        self, request: WireRequest, chunks: AsyncIterator[bytes], *, is_stream: bool, headers: Headers
    ) -> AsyncIterator[bytes]:
        """The stream that was asked for, out of whatever came with status 200: a stream, or an answer in one piece.

        `is_stream`: its content type says so. Raises `UpstreamUnreadable` for an answer that is neither.
        """

    def error(self, error: StenoError) -> bytes:
        """The body of a refusal of our own."""

    def error_frame(self, error: StenoError) -> bytes:
        """The same in a stream that has begun."""

    def refusal_frame(self, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        """The provider's refusal in a stream that has begun and can show no status any more. `now` in Unix seconds."""

    def refuses_ties(self, refusal: bytes, request: WireRequest) -> bool:
        """Whether a refusal is about thoughts that are tied to something else, and `dropping` would go round it."""

    def refuses_to_tell_usage(self, refusal: bytes) -> bool:
        """Whether a refusal is about our asking a stream what it cost."""


def read_answer(dialect: SummaryDialect, body: bytes) -> SummaryAnswer | None:
    """What a summary call was answered, out of all of its bytes; None if they are no answer, or a part of one."""
    reader = dialect.reader()
    reader.feed(body)
    reader.end()
    return reader.answer
