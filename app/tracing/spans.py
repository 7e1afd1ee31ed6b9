"""Spans as the rest of Steno sees them. What records and exports them is loaded only where traces are switched on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.core.tokens.usage import Tokens

Headers = list[tuple[bytes, bytes]]
Value = str | int | float | bool | Sequence[str]


class Span(Protocol):
    """One call to a model, from its beginning to its end. None of its methods raises."""

    def parent_of(self, headers: Sequence[tuple[bytes, bytes]]) -> Headers:
        """The headers of a request that is made for it: whoever gets them continues its trace."""
        ...

    def names(self, model: str, address: str) -> None:
        """Which model is asked, and where: the host of its provider."""
        ...

    def says(self, attribute: str, value: Value | None) -> None:
        """None: nothing is said."""
        ...

    def used(self, tokens: Tokens) -> None:
        """What the provider reported."""
        ...

    def failed(self, kind: str | None) -> None:
        """By what is known so far: a status, or one of our own codes; None: it did not."""
        ...

    def ends(self) -> None: ...


class Tracer(Protocol):
    def begins(self, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Span:
        """A call at the provider's path `target`, in the trace that the headers belong to, or in a new one."""
        ...

    def close(self) -> None:
        """Exports what waits. Blocks for some seconds where nobody takes it."""
        ...
