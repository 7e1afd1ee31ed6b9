"""The gate: what every request passes first. Headers, `/v1` and its prefixes, `date` and `server`. Pure ASGI.

Starlette's own function middleware would turn a broken answer into a clean end.
"""

from __future__ import annotations

from email.utils import formatdate
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.asgi import Answer
from app.api.headers import shadowed_by, shown
from app.api.naming import IN_PATH, name_in_path
from app.api.record import LONGEST_NAME, REQUEST, Record
from app.errors import BadTarget, HeadersTooLarge, InvalidRequest, StenoError
from app.hops import check_hops
from app.ledger import new_request_id
from app.repeats import Repeats

TARGET = "steno.target"
"""Scope key: the provider's raw path, with the query."""
CONVERSATION = "steno.conversation"
"""Scope key: the conversation id of a base URL `/c/{id}/v1`, or None."""
UPSTREAM = "steno.upstream"
"""Scope key: the upstream's name in a base URL `/u/{name}/v1`, or None."""

CHAT_PATH = b"/v1/chat/completions"
PROVIDER_PATHS = (b"/v1/", b"/openai/")
"""Where the provider's paths begin: OpenAI's, and Azure's own, which pass un-compacted."""
PREFIXES = {b"/c/": CONVERSATION, b"/u/": UPSTREAM}
"""What a base URL may name before them, each once, in any order."""


class Gate:
    def __init__(
        self,
        app: ASGIApp,
        chat: ASGIApp,
        passthrough: ASGIApp,
        instance: bytes,
        header_count: int,
        header_bytes: int,
    ) -> None:
        self._app = app
        self._chat = chat
        self._passthrough = passthrough
        self._instance = instance
        self._header_count = header_count
        self._header_bytes = header_bytes
        self._repeats = Repeats()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope[REQUEST] = _record_of(scope, self._repeats)
        send = _signed(send, record.request_id.encode())
        try:
            self._check_headers(scope["headers"])
            check_hops(scope["headers"], self._instance)
            app = self._route(scope)
        except StenoError as error:
            record.failed(error)
            await Answer(send).error(error)
            return
        await app(scope, receive, send)

    def _route(self, scope: Scope) -> ASGIApp:
        path: bytes = scope["raw_path"]
        named, theirs = _proxied(path)
        if theirs is None:
            # Not decoded: a conversation's id may hold a slash. Routes decode what they take from it.
            scope["path"] = path.decode("latin-1")
            return self._app
        if not {b".", b".."}.isdisjoint(unquote_to_bytes(theirs).split(b"/")):
            raise BadTarget("The path has a '.' or '..' segment, which no provider path needs.")
        query: bytes = scope["query_string"]
        scope[TARGET] = theirs + b"?" + query if query else theirs
        scope.update(named)
        is_chat = scope["method"] == "POST" and theirs.rstrip(b"/") == CHAT_PATH
        return self._chat if is_chat else self._passthrough

    def _check_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        if len(headers) > self._header_count:
            over = shown(headers[self._header_count][0])
            raise HeadersTooLarge(
                f"{len(headers)} headers were sent; at most {self._header_count} are accepted."
                f" The first one too many is {over!r}.",
                over,
            )
        size = sum(len(name) + len(value) for name, value in headers)
        if size > self._header_bytes:
            largest = shown(max(headers, key=lambda header: len(header[0]) + len(header[1]))[0])
            raise HeadersTooLarge(
                f"The headers take {size} bytes; at most {self._header_bytes} are accepted."
                f" The largest is {largest!r}.",
                largest,
            )
        for name, _ in headers:
            if b"_" in name and (known := shadowed_by(name)) is not None:
                raise InvalidRequest(
                    f"The header {shown(name)!r} is refused, because some servers read {shown(known)!r} in it."
                    " Send it with hyphens, or leave it out.",
                    shown(name),
                )


def _proxied(path: bytes) -> tuple[dict[str, str | None], bytes | None]:
    """What the base URL names, by scope key, and the provider's path; None for Steno's own.

    Raises `InvalidRequest` for a conversation's id that is none.
    """
    found: dict[str, bytes | None] = dict.fromkeys(PREFIXES.values())
    while (key := PREFIXES.get(path[:3])) and found[key] is None:
        name, slash, rest = path[3:].partition(b"/")
        if not name:
            break
        found[key], path = name, slash + rest
    if path != b"/v1" and not path.startswith(PROVIDER_PATHS):
        return {}, None
    conversation, upstream = found[CONVERSATION], found[UPSTREAM]
    return {
        CONVERSATION: None if conversation is None else name_in_path(IN_PATH, conversation),
        UPSTREAM: None if upstream is None else unquote_to_bytes(upstream).decode("utf-8", "replace"),
    }, path


def _record_of(scope: Scope, repeats: Repeats) -> Record:
    return Record(new_request_id(), scope["method"], scope["raw_path"][:LONGEST_NAME].decode("latin-1"), repeats)


def _signed(send: Send, request_id: bytes) -> Send:
    """Adds the request's id, and `date`, `server` and `x-request-id` where an answer has none: the provider's pass."""

    async def signed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name, value) for name, value in message["headers"] if name != b"x-context-request-id"]
            headers.append((b"x-context-request-id", request_id))
            names = {name.lower() for name, _ in headers}
            if b"date" not in names:
                headers.append((b"date", formatdate(usegmt=True).encode()))
            if b"server" not in names:
                headers.append((b"server", b"steno"))
            if b"x-request-id" not in names:
                headers.append((b"x-request-id", request_id))
            message = {**message, "headers": headers}
        await send(message)

    return signed
