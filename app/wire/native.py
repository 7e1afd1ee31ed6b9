"""Native compaction: what clients ask of a provider's own, and how it looks in answers and in histories.

Where a provider does not have it Steno makes it, in the provider's shapes. What the client is given to send back is a
reference to stored summaries (`app.compaction.references`): a text in the place of the provider's sealed one. A format
knows the shapes and nothing else: where something is asked, where the reference stands, and what stands there for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from app.wire.types import Headers, WireRequest

MARK = "stn1."
"""Beginning of a reference; no provider's own sealed text does."""
_UNKNOWN = re.compile(
    r"unknown|unrecogni[sz]ed|unsupported|not supported|not permitted|unexpected|no such|not allowed"
    r"|invalid value|invalid type|does not match|supported values|extra (inputs|fields)|not a valid",
    re.IGNORECASE,
)
"""How servers say that they do not know something."""
_COMPACTION = re.compile(r"compact|context_management", re.IGNORECASE)
LONGEST_REFUSAL = 20_000
"""Bytes of a refusal that are looked into."""
_REFUSED = frozenset({400, 422, 501})


class MadeCompaction(NamedTuple):
    """A compaction of ours, as it is reported."""

    reference: str
    text: str
    """Text that a model reads in its place."""
    before: int
    """Tokens of the prompt that it stands for."""
    after: int
    """Tokens of the text."""


class AnswerExtension:
    """Puts a compaction of ours into the answer to one request, on its last step to the client. Frames and bodies that
    it has nothing to do with pass as they are."""

    def frame_closes(self, frame: bytes) -> WireRequest | None:  # noqa: ARG002 - nothing stands behind most answers
        """The history with the answer in it, where this frame ends that and a compaction is to stand behind it."""
        return None

    def body_closes(self, body: bytes) -> WireRequest | None:  # noqa: ARG002 - see there
        """The same for an answer in one piece."""
        return None

    def frame(self, frame: bytes, made: MadeCompaction | None) -> bytes:
        """`made`: what `frame_closes` asked for."""
        raise NotImplementedError

    def body(self, body: bytes, made: MadeCompaction | None) -> bytes:
        raise NotImplementedError


class NativeCompaction:
    """A format's own words for it. What is usual stands here."""

    path: bytes | None = None
    """Path at which nothing but a compaction is asked for."""
    closing: bytes
    """The turn that would begin next: a user's message without a text."""

    def refused_in(self, status: int, refusal: bytes, path: bytes) -> bool:  # noqa: ARG002 - most have one path
        """Whether a provider says that it does not know what was asked at that path."""
        return says_unknown(status, refusal)

    def headers(self, headers: Headers) -> Headers:
        """A client's headers, less what asks for it."""
        return headers

    def unasked(self, request: WireRequest) -> bytes:
        """The body, less what asks for it."""
        raise NotImplementedError

    def closed(self, request: WireRequest, answer: Sequence[bytes] = ()) -> WireRequest:
        """The request as if it was answered and its next turn began: so nothing of its history is the latest. It is
        never sent."""
        raw_messages = (*request.raw_messages, *answer, self.closing)
        return replace(request, raw_messages=raw_messages, hands_off=None, asks=None)

    def resolved(self, request: WireRequest, text: str) -> bytes:
        """The body with the text in place of its reference. What stands before that is left out, as a provider does not
        read it, but for instructions and for what only the provider can read."""
        raise NotImplementedError

    def compacted(self, request: WireRequest, text: str) -> bytes:
        """The body with the text in place of its whole history, less what asks for a compaction."""
        raise NotImplementedError

    def alone(self, request: WireRequest, made: MadeCompaction, path: bytes) -> bytes:
        """The answer in one piece that is a compaction and nothing else, to a request as it was sent to that path."""
        raise NotImplementedError

    def extension(self, request: WireRequest, made: MadeCompaction | None) -> AnswerExtension:
        """Extension of the answer to a request that asks no more. `made`: what stands first; None where it is to stand
        last."""
        raise NotImplementedError


def says_unknown(status: int, refusal: bytes, about: re.Pattern[str] = _COMPACTION) -> bool:
    """Whether a refusal says that nothing is known of compaction, or of something else: no such member, value, item or
    beta."""
    text = refusal[:LONGEST_REFUSAL].decode("utf-8", "replace")
    return status in _REFUSED and about.search(text) is not None and _UNKNOWN.search(text) is not None
