"""Interface of spans. The code that records and exports them is imported only if traces are switched on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.tokens.usage import Tokens

Headers = list[tuple[bytes, bytes]]
Value = str | int | float | bool | Sequence[str]


class Span(Protocol):
    """One call to a model. No method raises."""

    def parent_of(self, headers: Sequence[tuple[bytes, bytes]]) -> Headers:
        """Return the headers with this span as the parent, so that the provider can continue the trace."""
        ...

    def names(self, model: str, address: str) -> None:
        """Set the model and the provider's host."""
        ...

    def says(self, attribute: str, value: Value | None) -> None:
        """Set an attribute; None sets nothing."""
        ...

    def used(self, tokens: Tokens) -> None: ...

    def failed(self, kind: str | None) -> None:
        """Set the failure: a status or an error code of Steno; None if the call did not fail."""
        ...

    def ends(self) -> None: ...


class Tracer(Protocol):
    def begins(self, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Span:
        """Start a span for a call to the provider's path `target`, in the trace of the headers or in a new one."""
        ...

    def close(self) -> None:
        """Export waiting spans. Blocks for some seconds if the collector does not answer."""
        ...
