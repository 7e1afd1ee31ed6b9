"""Bypasses: requests with a conversation that pass un-compacted. The answer says so, and the log once a minute."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from app.core.reasons import Code, Reason
from app.headers.relayed import Headers, value_of
from app.memory.repeats import Repeats
from app.wire.format import WireFormat
from app.wire.paths import Uncompacted

log = structlog.get_logger("steno.bypass")


def passing(entry: Uncompacted, formats: Iterable[WireFormat]) -> Reason:
    """Return the reason why a post to this path passes."""
    if entry.reason is not Code.PATH_NOT_COMPACTED:
        return Reason(entry.reason)
    paths = ", ".join(format_.path.decode() for format_ in formats)
    return Reason(Code.PATH_NOT_COMPACTED, f"only POST {paths} is compacted")


def log_bypass(repeats: Repeats, path: str, reason: Reason) -> None:
    if (count := repeats.again(path)) is not None:
        log.info("conversations passed un-compacted", path=path, reason=reason.text, times=count)


def bypassed(reason: Reason) -> Headers:
    """Return the headers that say so."""
    return [(b"x-context-status", b"bypassed"), (b"x-context-reason", reason.text.encode())]


def unless_told(own: Headers, answered: Headers) -> Headers:
    """Return no headers if another Steno behind this one said what it did: that may be more."""
    return [] if value_of(answered, b"x-context-status") else own
