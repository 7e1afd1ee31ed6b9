"""Router: checks headers, host, origin and loops of every request, and chooses its endpoint.

It is plain ASGI: with Starlette's function middleware, a client could not tell a broken answer from a complete one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Literal
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import BadTarget, MethodNotAllowed, StenoError, UnknownPath, WebSocketNotSpoken
from app.formats.format import WireFormat
from app.formats.paths import format_counted, format_posted
from app.http.admission import (
    HostPolicy,
    check_headers,
    check_hops,
    check_type,
    is_preflight,
    leaves_its_place,
    preflight_headers,
    shared_with,
)
from app.http.asgi import AUTHORITY, HANDSHAKE, KNOWN, SIGNATURE, ClientAnswer, Signature
from app.http.credentials import sends_key
from app.http.headers import Headers
from app.proxy.conversation_ids import IN_PATH, name_in_path
from app.proxy.request_log import LONGEST_PATH, REQUEST, RequestRecord
from app.runtime.caches import LogThrottle
from app.telemetry.metrics import Metrics

ROUTE = "steno.route"
"""Key of the request's `Route` in the ASGI scope. The value is None for a path of Steno's own."""
LISTENER = "steno.listener"
"""Key of the request's `Listener` in the ASGI scope. Without `server.admin`, the scope does not have this key."""
Listener = Literal["callers", "operator"]
OPERATORS = frozenset({b"/metrics", b"/docs", b"/openapi.json"})
"""If `server.admin` is set, only the operator's listener serves these paths."""
CALLERS = (b"/context", b"/mcp")
"""Prefixes of Steno's paths that the operator's listener does not serve. It serves no provider paths, either."""
PROVIDER_PATHS = re.compile(rb"/(?:upload/)?v1(?:alpha|beta\d*)?/|/openai/")
"""Prefixes of provider paths: OpenAI's, Google's and Azure's. Requests at Azure's own paths are not compacted."""
NOT_RELAYED = ("TRACE", "TRACK", "CONNECT")
"""Methods that are not relayed. The answer to TRACE or TRACK would show the caller the operator's key."""
USUAL_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
FORMS = b"/ui/"
"""Prefix of the paths that accept HTML forms. Each form contains a secret token, so other sites cannot forge it."""
_SLASHES = re.compile(rb"//+")
_LEADING = re.compile(rb"\A//+")
_DOUBLED = re.compile(rb"\A(/v1)+(?=/v1/)")


class Route(Struct, frozen=True):
    """Provider path, with the conversation and upstream that the base URL names."""

    target: bytes
    """Raw path for the provider, with the query."""
    format: WireFormat | None
    """Wire format of a chat request or a request to count tokens; None for other requests."""
    conversation: str | None
    """Conversation id in the base URL `/c/{id}/v1`."""
    upstream: str | None
    """Name of the upstream in the base URL `/u/{name}/v1`."""


class Admitted(Struct, frozen=True):
    """Request whose head passed all checks, with the application that serves it."""

    app: ASGIApp
    route: Route | None
    """None for a path of Steno's own."""
    page: bytes | None
    """Origin of the web page that sent the request; None without an origin."""
    shared: Headers
    """CORS headers that let the page read the answer."""


class Router:
    def __init__(
        self,
        app: ASGIApp,
        chat: ASGIApp,
        counting: ASGIApp,
        passthrough: ASGIApp,
        formats: Sequence[WireFormat],
        instance: bytes,
        hosts: HostPolicy,
        metrics: Metrics,
        verbose: bool,
        listener: Listener | None = None,
    ) -> None:
        """`verbose`: log chat requests even if unchanged. `listener`: the listener that this router serves; None if
        there is only one listener."""
        self._own = app
        self._chat = chat
        self._counting = counting
        self._passthrough = passthrough
        self._names = {self._own: "own", chat: "chat"}
        """Names of the routes in the metrics."""
        self._formats = {format_.name: format_ for format_ in formats}
        self._instance = instance
        self._hosts = hosts
        self._metrics = metrics
        self._verbose = verbose
        self._listener = listener
        self._throttle = LogThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["raw_path"][:LONGEST_PATH].decode("latin-1"), scope["method"]
        id_ = f"req_{token_hex(12)}"  # The usage records of all calls for this request have this id, too.
        record = scope[REQUEST] = RequestRecord(id_, method, path, self._throttle, self._metrics, self._verbose)
        known: dict[str, Any] = scope.get(KNOWN, {})
        shared: Headers = []
        try:
            try:
                admitted: Admitted | None = known.get("admitted")
                if admitted is None:
                    known["admitted"] = admitted = self._admit(scope, shared)
            except StenoError as error:
                record.failed(error)
                await ClientAnswer(send, Signature(id_, shared, record.begins)).error(error)
                return
            record.route = self._names.get(admitted.app, "passthrough")
            signature = scope[SIGNATURE] = Signature(id_, admitted.shared, record.begins)
            scope[ROUTE] = admitted.route
            if self._listener is not None:
                scope[LISTENER] = self._listener
            if admitted.page is not None and is_preflight(method, scope["headers"]):
                answer = ClientAnswer(send, signature)
                await answer.start(204, preflight_headers(scope["headers"]))
                await answer.end()
                return
            if admitted.route is None:
                # Not decoded, because a conversation id may contain a slash. The routes decode their parameters.
                scope["path"] = scope["raw_path"].decode("latin-1")
                if method == "HEAD":  # The server leaves out the body.
                    scope = {**scope, "method": "GET"}
                send = signature.on(send)
            await admitted.app(scope, receive, send)
        finally:
            record.ends()

    def _admit(self, scope: Scope, shared: Headers) -> Admitted:
        """Check a request's head. Add the CORS headers to `shared`, so that a web page can read the refusal if a later
        check fails. Raises the errors of the checks."""
        headers: Headers = scope["headers"]
        check_headers(headers)
        host = self._hosts.check_host(headers, scope.get(AUTHORITY), scope["http_version"])
        path, conversation, upstream = self._split(scope["raw_path"])
        if (page := self._hosts.check_origin(headers, host, stored=path is None)) is not None:
            shared += shared_with(page)
        check_hops(headers, self._instance)
        return Admitted(*self._route(scope, path, conversation, upstream), page, shared)

    def _route(
        self, scope: Scope, path: bytes | None, conversation: str | None, upstream: str | None
    ) -> tuple[ASGIApp, Route | None]:
        """Choose the application for a request. `path`: the provider path; None for a path of Steno's own."""
        method, raw_path, headers = scope["method"], scope["raw_path"], scope["headers"]
        if self._listener is not None:
            is_callers = path is not None or raw_path.startswith(CALLERS)
            if raw_path in OPERATORS if self._listener == "callers" else is_callers:
                raise UnknownPath(f"Steno has no {raw_path[:LONGEST_PATH].decode('latin-1')} here.")
        known = path.rstrip(b"/") if path is not None and method == "POST" else b""
        format_, counted = (self._formats.get(find(known) or "") for find in (format_posted, format_counted))
        if not sends_key(headers) and not raw_path.startswith(FORMS):
            check_type(headers, json_only=path is None or format_ is not None)
        if path is None:
            return self._own, None
        if method in NOT_RELAYED:
            raise MethodNotAllowed(f"{method} is not relayed to a provider.", USUAL_METHODS)
        if leaves_its_place(path):
            raise BadTarget
        if scope.get(HANDSHAKE):
            raise WebSocketNotSpoken("Steno speaks HTTP here, and no WebSocket. Send the request as a POST.")
        query: bytes = scope["query_string"]
        target = path + b"?" + query if query else path
        route = Route(target, format_ or counted, conversation, upstream)
        if format_ is not None:
            return self._chat, route
        return self._passthrough if counted is None else self._counting, route

    def _split(self, path: bytes) -> tuple[bytes | None, str | None, str | None]:
        """Split a path into the provider path (None for a path of Steno's own), the conversation id and the upstream.
        The prefixes `/c/{id}` and `/u/{name}` may each occur once, in any order.

        Correct repeated slashes, a repeated `/v1` and escaped letters in paths of chat requests and requests to count
        tokens. Raises `InvalidRequest` for an invalid conversation id.
        """
        names: dict[bytes, bytes] = {}
        while (prefix := (begun := _LEADING.sub(b"/", path))[:3]) in (b"/c/", b"/u/") and prefix not in names:
            name, slash, rest = begun[3:].partition(b"/")
            if not name:
                break
            names[prefix], path = name, slash + rest
        if b"//" in path or b"%" in path or path.startswith(b"/v1/v1/"):
            meant = _DOUBLED.sub(b"", _SLASHES.sub(b"/", unquote_to_bytes(path))).rstrip(b"/")
            if format_posted(meant) or format_counted(meant):
                path = quote(meant, safe="/:@~!$'()*+,;=").encode()  # A model name may hold spaces or line ends.
        if path != b"/v1" and not PROVIDER_PATHS.match(path):
            return None, None, None
        conversation, upstream = names.get(b"/c/"), names.get(b"/u/")
        return (
            path,
            None if conversation is None else name_in_path(IN_PATH, conversation),
            None if upstream is None else unquote_to_bytes(upstream).decode("utf-8", "replace"),
        )
