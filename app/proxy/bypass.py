"""What passes un-compacted although it carries a conversation: the answer says so, and the log once a minute."""

from __future__ import annotations

import re
from collections.abc import Iterable

import structlog

from app.core.reasons import Code, Reason
from app.headers.relayed import Headers, value_of
from app.memory.repeats import Repeats
from app.wire.format import WireFormat

log = structlog.get_logger("steno.bypass")

PATHS = {
    "/v1/responses": rb"/v1/responses",
    "/v1/responses/compact": rb"/v1/responses/compact",
    "/v1/messages": rb"/v1/messages",
    "/openai/responses": rb"/openai(/v1)?/responses(/compact)?",
    "/openai/chat/completions": rb"/openai/(v1|deployments/[^/]+)/chat/completions",
}
"""As the log names them: a conversation is posted to these. The last two are Azure's own."""
_PATTERNS = {name: re.compile(pattern + rb"/*") for name, pattern in PATHS.items()}


def bypassed_path(method: str, target: bytes) -> str | None:
    """The path's name, if a request there carries a conversation."""
    if method != "POST":
        return None
    path = target.partition(b"?")[0]
    return next((name for name, pattern in _PATTERNS.items() if pattern.fullmatch(path)), None)


def not_compacted(formats: Iterable[WireFormat]) -> Reason:
    paths = ", ".join(format_.path.decode() for format_ in formats)
    return Reason(Code.PATH_NOT_COMPACTED, f"only POST {paths} is compacted")


def log_bypass(repeats: Repeats, path: str, reason: Reason) -> None:
    if (count := repeats.again(path)) is not None:
        log.info("conversations passed un-compacted", path=path, reason=reason.text, times=count)


def bypassed(reason: Reason) -> Headers:
    """What the answer says."""
    return [(b"x-context-status", b"bypassed"), (b"x-context-reason", reason.text.encode())]


def unless_told(own: Headers, answered: Headers) -> Headers:
    """Nothing where another Steno behind this one said what it did: that may be more."""
    return [] if value_of(answered, b"x-context-status") else own
