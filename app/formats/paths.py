"""Paths: all wire formats, the format that serves a path, and the paths whose conversations Steno does not compact.

A new format needs a module with a table of its API, which lists the paths, an entry in `FORMATS`, and samples in
`tests/conformance`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from app.conversation.reasons import Code
from app.formats.chat_completions import CHAT_COMPLETIONS
from app.formats.format import WireFormat
from app.formats.gemini import GEMINI
from app.formats.messages.format import MESSAGES
from app.formats.responses.format import RESPONSES

FORMATS: tuple[WireFormat, ...] = (CHAT_COMPLETIONS, MESSAGES, RESPONSES, GEMINI)
"""All formats. Chat Completions is the default and comes first."""


def mark_of(format_: WireFormat) -> str:
    """Return a format's mark, which makes its digests and learnt values differ from those of other formats. The first
    format has no mark, because Steno stored its digests before there were marks."""
    return "" if format_ is FORMATS[0] else format_.name


BY_NAME = {each.name: each for each in FORMATS}
FORMAT_NAMES = tuple(BY_NAME)
if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[FORMAT_NAMES]  # The names are known at run time only.
_APIS = tuple((beginning, each.name) for each in FORMATS for beginning in (each.path, *each.spec.other_paths))
_TELLS = {b"anthropic-version": "messages", b"x-goog-api-key": "gemini"}
"""Headers that identify the API on a path that several APIs share, such as `/v1/models`."""

_COUNTED = re.compile(rb"/v1(?:alpha|beta\d*)?/(?:projects/.+/)?models/[^/:]+:countTokens")
COUNTS = {each.spec.counting_path: each.name for each in FORMATS if each.spec.counting_path is not None}
"""Formats by the path at which their API counts tokens."""


class Uncompacted(NamedTuple):
    """Paths of conversation requests that Steno forwards without compaction."""

    name: str
    pattern: re.Pattern[bytes]
    reason: Code


PASSES = Code.PATH_NOT_COMPACTED
_GOOGLE = rb"/v1(?:alpha|beta\d*)?/(?:projects/.+/)?"
UNCOMPACTED = tuple(
    Uncompacted(name, re.compile(pattern + rb"/*"), reason)
    for name, pattern, reason in (
        ("/v1/responses/compact", rb"/v1/responses/compact", Code.NATIVE_COMPACTION),
        ("/v1/responses/input_tokens", rb"/v1/responses/input_tokens", PASSES),
        ("/v1/conversations", rb"/v1/conversations(/[^/]+/items)?", Code.SERVER_STATE),
        ("/v1/messages/count_tokens", rb"/v1/messages/count_tokens", PASSES),
        ("/v1/messages/batches", rb"/v1/messages/batches", PASSES),
        ("/v1/completions", rb"/v1/(completions|complete)", PASSES),
        ("/v1/threads", rb"/v1/threads(/runs|/[^/]+/(messages|runs))?", Code.SERVER_STATE),
        ("/v1beta/models:batchGenerateContent", _GOOGLE + rb"models/[^/]+:(batchGenerateContent|countTokens)", PASSES),
        ("/v1beta/interactions", _GOOGLE + rb"interactions", Code.SERVER_STATE),
        ("/v1beta/openai/chat/completions", rb"/v1beta/openai/chat/completions", PASSES),
        ("/openai/responses", rb"/openai(/v1)?/responses(/compact)?", PASSES),
        ("/openai/chat/completions", rb"/openai/(v1|deployments/[^/]+)/chat/completions", PASSES),
    )
)
"""All paths of conversations that Steno does not compact. The last two are Azure's. Steno does not compact OpenAI's
batches either, because a batch is an uploaded file. Steno does not relay WebSockets."""


def path_of(target: bytes) -> bytes:
    return target.partition(b"?")[0].rstrip(b"/")


def format_at(target: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> FormatName | None:
    """Return the API of a request. None if several APIs share the path and no header identifies the API."""
    path = path_of(target)
    for beginning, name in _APIS:
        if path == beginning or path.startswith(beginning + b"/"):
            return name
    if any(each.spec.address is not None and each.spec.address.fullmatch(path) for each in FORMATS):
        return "gemini"
    return next((_TELLS[name] for name, _ in headers if name in _TELLS), None)


def format_posted(path: bytes) -> str | None:
    return next((each.name for each in FORMATS if each.is_at(path)), None)


def format_counted(path: bytes) -> str | None:
    """Return the format of a token-counting path; None for another path."""
    return "gemini" if _COUNTED.fullmatch(path) else COUNTS.get(path)


def keeps_version(speaks: frozenset[FormatName], target: bytes) -> bool:
    """Return whether Steno keeps the version in the path: only for Google, because its base URL has no version."""
    return speaks == {"gemini"} or format_at(target) == "gemini"


def uncompacted(method: str, target: bytes) -> Uncompacted | None:
    """Return the entry of `UNCOMPACTED` for a request; None if there is none."""
    if method != "POST":
        return None
    path = target.partition(b"?")[0]
    return next((entry for entry in UNCOMPACTED if entry.pattern.fullmatch(path)), None)


def key_headers(key: bytes, speaks: frozenset[FormatName], target: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers with an upstream's API key: `x-goog-api-key` for Google, `x-api-key` for an upstream that has
    Messages only, otherwise a bearer token.

    At a Messages path, a gateway with several formats gets both `x-api-key` and the token, because it may read either.
    """
    if keeps_version(speaks, target):
        return [(b"x-goog-api-key", key)]
    own, bearer = (b"x-api-key", key), (b"authorization", b"Bearer " + key)
    if speaks == {"messages"}:
        return [own]
    return [own, bearer] if format_at(target) == "messages" else [bearer]
