"""Spans as the rest of Steno sees them. Code that records and exports them is loaded only if traces are switched on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.tokens.usage import Tokens

Headers = list[tuple[bytes, bytes]]
Value = str | int | float | bool | Sequence[str]


class Span(Protocol):
    """One call to a model, from its beginning to its end. None of its methods raises."""

    def parent_of(self, headers: Sequence[tuple[bytes, bytes]]) -> Headers:
        """Return the headers of a request made within this span: the server that gets them continues its trace."""
        ...

    def names(self, model: str, address: str) -> None:
        """`address`: the host of the provider."""
        ...

    def says(self, attribute: str, value: Value | None) -> None:
        """Set an attribute; None sets nothing."""
        ...

    def used(self, tokens: Tokens) -> None: ...

    def failed(self, kind: str | None) -> None:
        """Record the end by a status, or one of our own codes; None: it did not fail."""
        ...

    def ends(self) -> None: ...


class Tracer(Protocol):
    def begins(self, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Span:
        """Begin a span for a call at the provider's path `target`, in the trace of these headers or in a new one."""
        ...

    def close(self) -> None:
        """Export waiting spans. Blocks for some seconds if no collector takes them."""
        ...
