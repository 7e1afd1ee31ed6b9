"""Edits: what clients ask their provider to take out of the history, and how an answer tells of it.

Where a provider does not know them Steno makes them: a format says how they are asked for, and what an answer says.
"""

from __future__ import annotations

import re
from typing import ClassVar

from app.core.stages.edits import Edits, Made
from app.wire.native import says_unknown
from app.wire.types import Headers, WireRequest


class ServerEdits:
    """A format's own words for edits. What is usual stands here."""

    REFUSED: ClassVar[re.Pattern[str]]
    """Names of them in a refusal."""

    def are_asked(self, request: WireRequest) -> bool:
        """Whether a request asks its provider for any."""
        raise NotImplementedError

    def asked(self, request: WireRequest) -> Edits:
        """Edits that it asks for. Raises `InvalidRequest`."""
        raise NotImplementedError

    def unasked(self, request: WireRequest) -> WireRequest:
        """The request, less what asks for them."""
        raise NotImplementedError

    def headers(self, headers: Headers) -> Headers:
        """A client's headers, less what asks for them."""
        return headers

    def refused_in(self, status: int, refusal: bytes) -> bool:
        """Whether a provider says that it does not know them."""
        return says_unknown(status, refusal, self.REFUSED)

    def told(self, edits: Edits, made: Made) -> bytes:
        """Value of the member by which an answer tells of them. Tokens in `made` are the provider's."""
        raise NotImplementedError
