"""Paths: which API an address belongs to, and which addresses have a conversation in them that is not compacted.

Each format says which paths are its API's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from app.conversation.reasons import Code
from app.formats.registry import FORMATS

FORMAT_NAMES = tuple(each.name for each in FORMATS)
if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[FORMAT_NAMES]  # Which names there are is known when Steno runs.
_APIS = tuple((beginning, each.name) for each in FORMATS for beginning in (each.path, *each.spec.other_paths))
_TELLS_MESSAGES = b"anthropic-version"
"""Header whose sender means that API, also on a path that others have too, such as `/v1/models`."""

COUNTS = {each.spec.counting_path: each.name for each in FORMATS if each.spec.counting_path is not None}
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
        ("/v1/responses/compact", rb"/v1/responses/compact", Code.NATIVE_COMPACTION),
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
