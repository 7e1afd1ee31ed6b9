"""Names of conversations: the places of a request where one may stand, in order, and how it is written there: as it is
in JSON, percent-encoded UTF-8 in headers and paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import quote, unquote_to_bytes

import msgspec
import structlog

from app.conversation.recognition import LONGEST_NAME, read_name
from app.errors import InvalidRequest
from app.formats.raw_json import decoded
from app.formats.requests import WireRequest
from app.http.own_headers import CONVERSATION_ID
from app.proxy.caller import Caller
from app.runtime.bounded import Repeats

log = structlog.get_logger("steno.intake")

RULE = (
    f"A conversation id is UTF-8 text of at most {LONGEST_NAME} characters without control characters;"
    " in headers and paths it is percent-encoded."
)
PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""Characters that a header holds as they are: visible ASCII and spaces."""
_decode_name = msgspec.json.Decoder(str | None).decode
IN_PATH = "/c/{id}/v1"
HEADERS = (
    CONVERSATION_ID,
    b"x-conversation-id",
    b"x-session-id",
    b"x-session-affinity",
    b"x-openwebui-chat-id",
    b"x-litellm-session-id",
    b"helicone-session-id",
    b"x-opencode-session",
    b"x-claude-code-session-id",
    b"session-id",
    b"session_id",
)
"""Headers that name the conversation, the first choice first: Steno's own, and the session headers of known tools."""
_HEADER_SET = frozenset(HEADERS)


def name_of(repeats: Repeats, wire: WireRequest, caller: Caller) -> str | None:
    """Return the conversation's name, from the first place that has a usable one.

    Raises `InvalidRequest` for an unusable one in `x-context-conversation-id`. Clients fill the other places for other
    purposes, too: an unusable name is ignored there, and logged once for each place.
    """
    for read in _places(wire, caller):
        try:
            if (name := read()) is not None:
                return name
        except InvalidRequest as error:
            if error.param == CONVERSATION_ID.decode():
                raise
            if repeats.again(f"name in {error.param}") == 1:
                log.warning("a conversation's id was ignored", reason=error.message)
    return None


def _places(wire: WireRequest, caller: Caller) -> Iterator[Callable[[], str | None]]:
    """Readers of the places for a name, the first choice first."""
    if caller.sent_any(_HEADER_SET):
        for header in HEADERS:
            if (value := caller.header(header)) is not None:
                yield partial(name_in_header, header.decode(), value)
    for member, given in wire.names:
        yield partial(name_in_json, member, given)
    if caller.conversation is not None:
        yield lambda: caller.conversation


def name_in_header(header: str, value: str) -> str | None:
    """Read the name in a header, None if it is empty. Raises `InvalidRequest`, which names the header."""
    return _decoded(header, unquote_to_bytes(value.encode("latin-1")))


def name_in_path(place: str, segment: bytes) -> str:
    """Read the name in a path's segment. Raises `InvalidRequest`, also for an empty one."""
    name = _decoded(place, unquote_to_bytes(segment))
    if name is None:
        raise _refusal(place, "it is empty")
    return name


def name_in_json(member: str, raw: bytes) -> str | None:
    """Read the name in a member of the body, None if it is null or empty. Raises `InvalidRequest`, which names it."""
    try:
        value = decoded(raw, _decode_name)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refusal(member, "it is no text, or no UTF-8") from error
    return None if value is None else _checked(member, value)


def is_plain(name: str) -> bool:
    """True if a name can stand anywhere as it is, as nearly all can: to quote it, or to escape it, takes longer."""
    return name.isascii() and name.replace("_", "").isalnum()


def encoded_name(name: str) -> bytes:
    """Encode the name for a header; `name_in_header` gives it back."""
    if is_plain(name):
        return name.encode()
    return quote(name, safe=PLAIN).encode()


def _decoded(place: str, value: bytes) -> str | None:
    try:
        return _checked(place, value.decode())
    except UnicodeDecodeError as error:
        raise _refusal(place, "it is no UTF-8") from error


def _checked(place: str, given: str) -> str | None:
    try:
        return read_name(given) or None
    except ValueError as error:
        raise _refusal(place, str(error)) from error


def _refusal(place: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{place} names no conversation: {why}. {RULE}", place)
