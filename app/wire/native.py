"""Native compaction: what clients ask of a provider's own, and how it looks in answers and in histories.

Where a provider does not have it Steno makes it, in the provider's shapes. What the client is given to send back is a
reference to stored summaries (`app.compaction.references`): a text in the place of the provider's sealed one. A format
knows the shapes and nothing else: where something is asked, where the reference stands, and what stands there for it.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

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


class AnswerExtension(Protocol):
    """Puts a compaction of ours into the answer to one request, on its last step to the client. Frames and bodies that
    it has nothing to do with pass as they are."""

    def frame_closes(self, frame: bytes) -> WireRequest | None:
        """The history with the answer in it, where this frame ends that and a compaction is to stand behind it."""

    def body_closes(self, body: bytes) -> WireRequest | None:
        """The same for an answer in one piece."""

    def frame(self, frame: bytes, made: MadeCompaction | None) -> bytes:
        """`made`: what `frame_closes` asked for."""

    def body(self, body: bytes, made: MadeCompaction | None) -> bytes: ...


class NativeCompaction(Protocol):
    """A format's own words for it."""

    @property
    def path(self) -> bytes | None:
        """Path at which nothing but a compaction is asked for."""

    def refused_in(self, status: int, refusal: bytes, path: bytes) -> bool:
        """Whether a provider says that it does not know what was asked at that path."""

    def headers(self, headers: Headers) -> Headers:
        """A client's headers, less what asks for it."""

    def unasked(self, request: WireRequest) -> bytes:
        """The body, less what asks for it."""

    def closed(self, request: WireRequest) -> WireRequest:
        """The request as if its next turn began: so nothing of its history is the latest. It is never sent."""

    def resolved(self, request: WireRequest, text: str) -> bytes:
        """The body with the text in place of its reference. What stands before that is left out, as a provider does not
        read it, but for instructions and for what only the provider can read."""

    def compacted(self, request: WireRequest, text: str) -> bytes:
        """The body with the text in place of its whole history, less what asks for a compaction."""

    def alone(self, request: WireRequest, made: MadeCompaction, path: bytes) -> bytes:
        """The answer in one piece that is a compaction and nothing else, to a request as it was sent to that path."""

    def extension(self, request: WireRequest, made: MadeCompaction | None) -> AnswerExtension:
        """Extension of the answer to a request that asks no more. `made`: what stands first; None where it is to stand
        last."""


def says_unknown(status: int, refusal: bytes) -> bool:
    """Whether a refusal says that nothing is known of compaction: no such member, value, item or beta."""
    text = refusal[:LONGEST_REFUSAL].decode("utf-8", "replace")
    return status in _REFUSED and _COMPACTION.search(text) is not None and _UNKNOWN.search(text) is not None
