"""Conversation ids: the client's name for a conversation, or the id of the conversation that the history continues.

A name is plain text in JSON, and percent-encoded UTF-8 in headers and paths.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import quote, unquote_to_bytes

import msgspec
import structlog

from app.compaction.view import Conversation
from app.conversation.identity import (
    LONGEST_NAME,
    Head,
    Heads,
    Identity,
    Recognition,
    possible_heads,
    read_name,
    recognise,
)
from app.errors import InvalidRequest
from app.formats.raw_json import decoded
from app.formats.requests import WireRequest
from app.http.headers import CONVERSATION_ID
from app.proxy.caller import Caller
from app.runtime.caches import Cache, Caches, Erased, LogThrottle
from app.store import Store, StoreUnavailable

log = structlog.get_logger("steno.intake")

RULE = (
    f"A conversation id is UTF-8 text of at most {LONGEST_NAME} characters without control characters;"
    " in headers and paths it is percent-encoded."
)
PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""Characters that need no encoding in a header: visible ASCII and spaces, except the percent sign."""
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
"""Headers that name the conversation, by precedence: Steno's own, then the session headers of known tools."""
HEAD_BYTES = 200
"""Estimated bytes of a cache entry for a head. A head is a digest by which Steno recognises a history."""
TIP_BYTES = 250
"""Estimated bytes of a cache entry for the highest turn number of a conversation."""
_HEADER_SET = frozenset(HEADERS)
_decode_name = msgspec.json.Decoder(str | None).decode


def find_name(throttle: LogThrottle, wire: WireRequest, caller: Caller) -> str | None:
    """Return the first valid conversation name in the headers, body or path.

    Raises `InvalidRequest` for an invalid name in `x-context-conversation-id`. Clients use the other headers and
    members for other purposes, too: Steno ignores invalid names there, and logs a warning once per header or member.
    """
    if not wire.names and caller.conversation is None and not caller.sent_any(_HEADER_SET):
        return None
    for read in _name_readers(wire, caller):
        try:
            if (name := read()) is not None:
                return name
        except InvalidRequest as error:
            if error.param == CONVERSATION_ID.decode():
                raise
            if throttle.count(f"name in {error.param}") == 1:
                log.warning("a conversation's id was ignored", reason=error.message)
    return None


def _name_readers(wire: WireRequest, caller: Caller) -> Iterator[Callable[[], str | None]]:
    for header in HEADERS:
        if (value := caller.header(header)) is not None:
            yield partial(name_in_header, header.decode(), value)
    for member, given in wire.names:
        yield partial(name_in_json, member, given)
    yield lambda: caller.conversation


def name_in_header(header: str, value: str) -> str | None:
    """Read a name from a header; None if the header is empty. Raises `InvalidRequest`, which names the header."""
    return _checked(header, unquote_to_bytes(value.encode("latin-1")))


def name_in_path(place: str, segment: bytes) -> str:
    """Read a name from a path segment. Raises `InvalidRequest`, also for an empty segment."""
    name = _checked(place, unquote_to_bytes(segment))
    if name is None:
        raise _refusal(place, "it is empty")
    return name


def name_in_json(member: str, raw: bytes) -> str | None:
    """Read a name from a member's JSON; None if null or empty. Raises `InvalidRequest`, which names the member."""
    try:
        value = decoded(raw, _decode_name)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refusal(member, "it is no text, or no UTF-8") from error
    return None if value is None else _checked(member, value)


def encoded_name(name: str) -> bytes:
    """Encode a name for a header. `name_in_header` is the inverse."""
    # Nearly all names need no quoting, and this check is faster than `quote`.
    is_plain = name.isascii() and name.replace("_", "").isalnum()
    return name.encode() if is_plain else quote(name, safe=PLAIN).encode()


def _checked(place: str, given: str | bytes) -> str | None:
    try:
        return read_name(given if isinstance(given, str) else given.decode()) or None
    except UnicodeDecodeError as error:
        raise _refusal(place, "it is no UTF-8") from error
    except ValueError as error:
        raise _refusal(place, str(error)) from error


def _refusal(place: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{place} names no conversation: {why}. {RULE}", place)


class Conversations:
    """Recognition of conversations, with caches that avoid most database queries."""

    def __init__(self, store: Store, identity: Identity, caches: Caches) -> None:
        self._store = store
        self._identity = identity
        self._heads: Cache[bytes, tuple[str, str, int]] = Cache(caches, "heads", lambda *_: HEAD_BYTES)
        """Tenant, conversation and turn number of each head, by digest. Digests of different tenants differ."""
        self._tips: Cache[tuple[str, str], int] = Cache(caches, "heads", lambda *_: TIP_BYTES)
        """Highest turn number of each conversation's heads, by tenant and conversation."""

    async def identify(
        self, tenant: str, name: str | None, conversation: Conversation, heads: Heads | None
    ) -> Recognition:
        """Return the conversation of a request. `name`: the client's name for the conversation. `heads`: heads by which
        later requests find the conversation; None for a dry run."""
        if name is not None:
            found = Recognition(name, by_name=True)
        else:
            found = await self._recognise(tenant, conversation)
        for digest, turn in heads or ():
            self._heads.keep(digest, (tenant, found.conversation_id, turn))
            if turn > (self._tips.use((tenant, found.conversation_id)) or 0):
                self._tips.keep((tenant, found.conversation_id), turn)
        return found

    def forget(self, erased: Erased) -> None:
        """Forget erased conversations. The next request with an erased history starts a new conversation."""
        self._heads.drop(lambda _, head: erased.covers(*head[:2]))
        self._tips.drop(lambda key, _: erased.covers(*key))

    async def _recognise(self, tenant: str, conversation: Conversation) -> Recognition:
        """Return a new conversation, or the one with the history's longest known prefix, or a fork of the latter."""
        transcript, chain = conversation.transcript, conversation.chain
        known: Sequence[Head] = ()
        for digest in possible_heads(transcript, chain):
            if (head := self._heads.get(digest)) is not None:
                _, conversation_id, turn = head
                tip = self._tips.get((tenant, conversation_id)) or turn
                known = (Head(digest, conversation_id, turn, tip),)
                break
        else:
            if len(transcript) > 1:
                with suppress(StoreUnavailable):
                    known = await self._store.heads(tenant, tuple(possible_heads(transcript, chain)))
        return recognise(chain, known, self._identity, secrets.token_bytes)
