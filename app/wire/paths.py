"""Paths: which API an address belongs to, and which addresses have a conversation in them that is not compacted.

A format's own path is where its requests are compacted (`WireFormat.path`). The others of its API go to the same
upstreams, as they come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from app.core.reasons import Code

FormatName = Literal["chat_completions", "messages", "responses"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)

LARGEST_BODIES: Mapping[str, int] = {
    "chat_completions": 50 << 20,
    "messages": 32 << 20,
    "responses": 50 << 20,
}
"""Bytes of a request that the vendor of each format's API takes."""

_APIS: tuple[tuple[bytes, FormatName], ...] = (
    (b"/v1/chat/completions", "chat_completions"),
    (b"/v1/messages", "messages"),
    (b"/v1/complete", "messages"),
    (b"/v1/responses", "responses"),
    (b"/v1/conversations", "responses"),
)
"""Beginnings of the paths of each API."""
_TELLS_MESSAGES = b"anthropic-version"
"""Header whose sender means that API, also on a path that others have too, such as `/v1/models`."""

COUNTS: dict[bytes, FormatName] = {b"/v1/messages/count_tokens": "messages", b"/v1/responses/input_tokens": "responses"}
"""Paths at which a request is posted to be counted and not to be answered."""


class Uncompacted(NamedTuple):
    """Addresses that a conversation is posted to, and that pass."""

    name: str
    """Name in the log."""
    pattern: re.Pattern[bytes]
    reason: Code


UNCOMPACTED = tuple(
    Uncompacted(name, re.compile(pattern + rb"/*"), reason)
    for name, pattern, reason in (
        ("/v1/responses/input_tokens", rb"/v1/responses/input_tokens", Code.PATH_NOT_COMPACTED),
        ("/v1/conversations", rb"/v1/conversations(/[^/]+/items)?", Code.SERVER_STATE),
        ("/v1/messages/count_tokens", rb"/v1/messages/count_tokens", Code.PATH_NOT_COMPACTED),
        ("/v1/messages/batches", rb"/v1/messages/batches", Code.PATH_NOT_COMPACTED),
        ("/v1/completions", rb"/v1/(completions|complete)", Code.PATH_NOT_COMPACTED),
        ("/v1/threads", rb"/v1/threads(/runs|/[^/]+/(messages|runs))?", Code.SERVER_STATE),
        ("/openai/responses", rb"/openai(/v1)?/responses(/compact)?", Code.PATH_NOT_COMPACTED),
        ("/openai/chat/completions", rb"/openai/(v1|deployments/[^/]+)/chat/completions", Code.PATH_NOT_COMPACTED),
    )
)
"""The one list. The last two are Azure's own paths. A batch of OpenAI's is in an uploaded file, not in its request; a
WebSocket is not relayed at all."""


def path_of(target: bytes) -> bytes:
    """The path without the query and the slashes at the end."""
    return target.partition(b"?")[0].rstrip(b"/")


def format_at(target: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> FormatName | None:
    """The API that a request means; None for what several have, such as embeddings and files."""
    path = path_of(target)
    for beginning, name in _APIS:
        if path == beginning or path.startswith(beginning + b"/"):
            return name
    return "messages" if any(name == _TELLS_MESSAGES for name, _ in headers) else None


def uncompacted(method: str, target: bytes) -> Uncompacted | None:
    """The entry of a path to which a conversation is posted, if that passes."""
    if method != "POST":
        return None
    path = target.partition(b"?")[0]
    return next((entry for entry in UNCOMPACTED if entry.pattern.fullmatch(path)), None)


GOOGLE_PATH = b"/v1beta/models"
"""Path at which Google lists its models."""


def key_headers(key: bytes, speaks: frozenset[FormatName], target: bytes) -> list[tuple[bytes, bytes]]:
    """An upstream's key as it wants it: Messages in a header of its own, everything else as a bearer.

    Whoever speaks Messages beside another format is a gateway, and those differ: there it stands in both. Google's own
    API, which Steno asks for windows, has a header of its own, too.
    """
    if target.startswith(GOOGLE_PATH):
        return [(b"x-goog-api-key", key)]
    own, bearer = (b"x-api-key", key), (b"authorization", b"Bearer " + key)
    if speaks == {"messages"}:
        return [own]
    return [own, bearer] if format_at(target) == "messages" else [bearer]
