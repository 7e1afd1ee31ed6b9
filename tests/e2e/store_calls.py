"""A hand between a Steno and one call of its store, which counts it, is late with it, or lets it fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.store import Store

WAYS = ("request", "request_change")

Call = Callable[..., Any]


def intercept(patch: pytest.MonkeyPatch, store: Store, name: str, wrap: Callable[[Call], Call]) -> None:
    """Put what `wrap` makes of a call in its place. `name`: of a query, or of a method of the store."""
    if hasattr(store, name):
        patch.setattr(store, name, wrap(getattr(store, name)))
        return
    for way in WAYS:
        patch.setattr(store, way, _for_query(name, getattr(store, way), wrap))


def _for_query(name: str, real: Call, wrap: Callable[[Call], Call]) -> Call:
    wrapped = wrap(real)

    def call(query: Any, *given: Any, **named: Any) -> Any:
        return (wrapped if query.__name__ == name else real)(query, *given, **named)

    return call
