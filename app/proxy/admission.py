"""Admissions: what came of a request's head. A client sends the same one with each request of a connection, but for the
length of the body; what was let in once is let in again, and not looked at anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Scope

from app.headers.relayed import Headers
from app.proxy.caller import Caller
from app.proxy.origins import AUTHORITY

ADMISSION = "steno.admission"
"""Scope key: the request's admission, where the next one may be let in by it; else None. Likewise in the connection's
memory: the latest."""
MOST_DIGITS = 19


@dataclass(slots=True)
class Head:
    """A request's line and headers, as far as anything is decided by them."""

    line: tuple[object, ...]
    headers: Headers
    """Without the length."""


@dataclass(slots=True)
class Admission:
    head: Head
    app: ASGIApp
    route: str
    found: Mapping[str, Any]
    """What was found out, by scope key."""
    shared: Headers
    """What lets a page read the answers."""
    caller: Caller | None = None
    """Who sends it, once that is known."""


def head_of(scope: Scope) -> Head | None:
    """None where it does not announce a body of some length, or in an odd way."""
    headers, lengths = Headers(), list[bytes]()
    for header in scope["headers"]:
        if header[0] == b"content-length":
            lengths.append(header[1])
        else:
            headers.append(header)
    if len(lengths) != 1 or len(lengths[0]) > MOST_DIGITS or lengths[0].startswith(b"0"):
        return None
    target = scope["raw_path"], scope["query_string"], scope.get(AUTHORITY)
    # The digits, because all headers together are bounded.
    return Head((scope["method"], *target, scope["http_version"], len(lengths[0])), headers)
