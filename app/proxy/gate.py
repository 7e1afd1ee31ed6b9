"""The gate: what every request passes first. Headers, who asks, `/v1` and its prefixes, `date` and `server`. Pure ASGI.

Starlette's own function middleware would turn a broken answer into a clean end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import BadTarget, InvalidRequest, MethodNotAllowed, StenoError, UnknownPath, WebSocketNotSpoken
from app.formats.format import WireFormat
from app.formats.paths import COUNTS
from app.http.admission import check_headers, leaves_its_place
from app.http.asgi import HANDSHAKE, SIGNATURE, ClientAnswer, Signature
from app.http.credentials import sends_key
from app.http.hops import check_hops
from app.http.origins import AUTHORITY, Door, check_type, is_preflight, preflight_headers, shared_with
from app.http.own_headers import COUNT
from app.http.relayed import Headers, value_of
from app.providers.ledger import new_request_id
from app.proxy.conversation_ids import IN_PATH, name_in_path
from app.proxy.exchange import LONGEST_PATH, REQUEST, RequestRecord
from app.runtime.bounded import LogThrottle
from app.telemetry.metrics import Metrics

TARGET = "steno.target"
"""Scope key: the provider's raw path, with the query."""
CONVERSATION = "steno.conversation"
"""Scope key: the conversation id of a base URL `/c/{id}/v1`, or None."""
UPSTREAM = "steno.upstream"
"""Scope key: the upstream's name in a base URL `/u/{name}/v1`, or None."""

LISTENER = "steno.listener"
"""Scope key: what came in by its own listener, where callers and the operator have one each. See `Listener`."""
Listener = Literal["callers", "operator"]
OPERATORS = frozenset({b"/metrics", b"/docs", b"/openapi.json"})
"""Paths that callers do not find where the operator has a listener."""
CALLERS = (b"/context", b"/mcp")
"""Beginnings of the paths that the operator's listener does not have, as it has no provider's."""

FORMAT = "steno.format"
"""Scope key: the wire format of a request whose history is compacted."""
PROVIDER_PATHS = (b"/v1/", b"/openai/")
"""Beginnings of the provider's paths: OpenAI's, and Azure's own, which pass un-compacted."""
FORWARDED = "forwarded"
"""Value of `x-context-count` for the prompt that would be sent to the provider. Without it: the one that came."""
NOT_RELAYED = ("TRACE", "TRACK", "CONNECT")
"""Methods that are not relayed. The first two are answered with the request as it arrived: with the operator's key."""
USUAL_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
FORMS = b"/ui/"
"""Paths whose body may be a form's: the inspector's forms carry a token that no other page can read."""
PREFIXES = {b"/c/": CONVERSATION, b"/u/": UPSTREAM}
"""Prefixes of a base URL before a provider's path, each once, in any order."""
_SLASHES = re.compile(rb"//+")
_LEADING = re.compile(rb"\A//+")
_DOUBLED = re.compile(rb"\A(/v1)+(?=/v1/)")


class Gate:
    def __init__(
        self,
        app: ASGIApp,
        chat: ASGIApp,
        counting: ASGIApp,
        passthrough: ASGIApp,
        formats: Sequence[WireFormat],
        instance: bytes,
        door: Door,
        metrics: Metrics,
        verbose: bool,
        listener: Listener | None = None,
    ) -> None:
        """Guard the application. `verbose`: the log has a line for each chat request. `listener`: who comes this way;
        None where all do."""
        self._own = _with_head(app)
        self._chat = chat
        self._counting = counting
        self._routes = {self._own: "own", chat: "chat"}
        """Routes as the metrics have them."""
        self._passthrough = passthrough
        self._formats = {format_.path: format_ for format_ in formats}
        by_name = {format_.name: format_ for format_ in formats}
        self._counted = {path: by_name[name] for path, name in COUNTS.items() if name in by_name}
        self._read = self._formats.keys() | self._counted.keys()
        self._instance = instance
        self._door = door
        self._metrics = metrics
        self._verbose = verbose
        self._listener = listener
        self._throttle = LogThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = scope[REQUEST] = _record_of(scope, self._throttle, self._metrics, self._verbose)
        try:
            await self._serve(record, scope, receive, send)
        finally:
            record.ends()

    async def _serve(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        page, shared = None, []
        try:
            check_headers(headers)
            host = self._door.check_host(headers, scope.get(AUTHORITY), scope["http_version"])
            stored = self._proxied(scope["raw_path"])[1] is None
            if (page := self._door.check_origin(headers, host, stored=stored)) is not None:
                shared = shared_with(page)
            check_hops(headers, self._instance)
            app = self._route(scope)
            record.route = self._routes.get(app, "passthrough")
        except StenoError as error:
            record.failed(error)
            await ClientAnswer(send, Signature(record.request_id, shared, record.begins)).error(error)
            return
        signature = scope[SIGNATURE] = Signature(record.request_id, shared, record.begins)
        if page is not None and is_preflight(scope["method"], headers):
            answer = ClientAnswer(send, signature)
            await answer.start(204, preflight_headers(headers))
            await answer.end()
            return
        await app(scope, receive, signature.on(send) if app is self._own else send)

    def _route(self, scope: Scope) -> ASGIApp:
        path: bytes = scope["raw_path"]
        named, theirs = self._proxied(path)
        if self._listener is not None:
            scope[LISTENER] = self._listener
            _check_listener(self._listener, path, is_own=theirs is None)
        format_ = self._formats.get(theirs.rstrip(b"/")) if theirs is not None and scope["method"] == "POST" else None
        if not sends_key(scope["headers"]) and not path.startswith(FORMS):
            check_type(scope["headers"], json_only=theirs is None or format_ is not None)
        if theirs is None:
            # Not decoded: a conversation's id may hold a slash. Routes decode what they take from it.
            scope["path"] = path.decode("latin-1")
            return self._own
        if scope["method"] in NOT_RELAYED:
            raise MethodNotAllowed(f"{scope['method']} is not relayed to a provider.", USUAL_METHODS)
        if leaves_its_place(theirs):
            raise BadTarget("The path has a '.' or '..' segment, which no provider path needs.")
        query: bytes = scope["query_string"]
        scope[TARGET] = theirs + b"?" + query if query else theirs
        scope.update(named)
        if scope.get(HANDSHAKE):
            raise WebSocketNotSpoken("Steno speaks HTTP here, and no WebSocket. Send the request as a POST.")
        scope[FORMAT] = format_
        if format_ is not None:
            return self._chat
        if scope["method"] == "POST" and (counted := self._counted.get(theirs.rstrip(b"/"))) is not None:
            scope[FORMAT] = counted
            counts_forwarded(scope["headers"])
            return self._counting
        return self._passthrough

    def _proxied(self, path: bytes) -> tuple[Mapping[str, str | None], bytes | None]:
        """Return what the base URL names, by scope key, and the provider's path; None for a path of Steno's own.

        A base URL may bring a slash or a `/v1` too many, and a caller may escape letters: what is read here is found
        nevertheless. Raises `InvalidRequest` for a conversation's id that is none.
        """
        found, theirs = _split(path)
        if b"//" in theirs or b"%" in theirs or theirs.startswith(b"/v1/v1/"):
            meant = _DOUBLED.sub(b"", _SLASHES.sub(b"/", unquote_to_bytes(theirs))).rstrip(b"/")
            if meant in self._read:
                theirs = meant
        if theirs != b"/v1" and not theirs.startswith(PROVIDER_PATHS):
            return {}, None
        conversation, upstream = found[CONVERSATION], found[UPSTREAM]
        return {
            CONVERSATION: None if conversation is None else name_in_path(IN_PATH, conversation),
            UPSTREAM: None if upstream is None else unquote_to_bytes(upstream).decode("utf-8", "replace"),
        }, theirs


def _split(path: bytes) -> tuple[Mapping[str, bytes | None], bytes]:
    """Split a path into what a base URL names, by scope key and as it stands there, and the path behind it."""
    found: dict[str, bytes | None] = dict.fromkeys(PREFIXES.values())
    while (key := PREFIXES.get((begun := _LEADING.sub(b"/", path))[:3])) and found[key] is None:
        name, slash, rest = begun[3:].partition(b"/")
        if not name:
            break
        found[key], path = name, slash + rest
    return found, path


def _check_listener(listener: Listener, path: bytes, *, is_own: bool) -> None:
    """Raises `UnknownPath` for what the other listener has."""
    if path in OPERATORS if listener == "callers" else not is_own or path.startswith(CALLERS):
        raise UnknownPath(f"Steno has no {path[:LONGEST_PATH].decode('latin-1')} here.")


def _with_head(app: ASGIApp) -> ASGIApp:
    """Answer HEAD as GET: the server leaves out the body."""

    async def get_for_head(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive, send)

    return get_for_head


def counts_forwarded(headers: Headers) -> bool:
    """True if the forwarded prompt is to be counted. Raises `InvalidRequest` for any other value of the header."""
    asked = value_of(headers, COUNT)
    if asked not in (None, FORWARDED):
        name = COUNT.decode()
        raise InvalidRequest(f"{name} can be {FORWARDED!r} only; it is {asked!r:.100}.", name)
    return asked is not None


def _record_of(scope: Scope, throttle: LogThrottle, metrics: Metrics, verbose: bool) -> RequestRecord:
    path = scope["raw_path"][:LONGEST_PATH].decode("latin-1")
    return RequestRecord(new_request_id(), scope["method"], path, throttle, metrics, verbose)
