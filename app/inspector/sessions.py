"""Sessions: the session and tenant of a request to the inspector, the pages to sign in and out, and error pages.

Steno stores no sessions: a session is a signed cookie with the shown tenant. A visitor signs in with an API key or the
operator's password, or gets a session without sign-in if the server accepts clients without credentials. The cookie
contains the tenant of the API key, but not the key.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from hashlib import blake2b
from hmac import compare_digest
from math import ceil
from time import monotonic, time
from typing import Annotated, Any, Concatenate
from urllib.parse import parse_qsl

import msgspec
import structlog
from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from msgspec import Struct, field
from msgspec.structs import astuple, replace

from app.api.dependencies import base_of, is_https, steno_error
from app.checks import Finding
from app.errors import InvalidCredentials, InvalidRequest, MissingCredentials, OriginNotAllowed, StenoError, UnknownPath
from app.http.asgi import peer_of, read_body
from app.http.headers import client_of, value_of
from app.inspector.pages import FILES, HEADERS, counted, render
from app.providers.model_listings import ModelListing
from app.providers.providers import Provider
from app.proxy.caller import ANONYMOUS
from app.proxy.exchange import Services
from app.proxy.request_log import REQUEST
from app.proxy.router import LISTENER
from app.runtime.caches import MOST_REMEMBERED, BoundedMap, LogThrottle
from app.store import StoreUnavailable, UnknownCursor
from app.store.conversations import has_other_tenants, is_tenant, read_tenants
from app.store.store import P, Query, T

COOKIE = "steno_inspector"
OPERATORS_COOKIE = "steno_operator"
"""Cookie of the operator's listener. It has its own name, because browsers send a host's cookies to all its ports."""
OVER_TLS = "__Host-"
"""Prefix of cookie names over TLS. Browsers accept such a cookie only over TLS, and for this host and all its paths."""
LASTS_SECONDS = 12 * 3600
SEALED_AS = b"session 3"
"""Version of the cookie's content. It is a part of the signed data. Change it if the members of `Session` change."""
_MAC_BYTES = 32
_LONGEST_COOKIE = 2_000
FORM_BYTES = 1_000_000
FORM_SECONDS = 20.0
MOST_GUESSES = 10
PERIOD_SECONDS = 600.0

log = structlog.get_logger("steno.inspector")


class Session(Struct, frozen=True):
    tenant: str
    """Shown tenant; empty if an operator has chosen none yet."""
    operator: bool
    """True for the operator, who may choose any tenant."""
    expires: int
    """Milliseconds since 1970."""
    id: str
    """Random id, from which the token of the session's forms is derived."""

    @property
    def is_signed_in(self) -> bool:
        """True if the session began with a key or the operator's password."""
        return self.operator or self.tenant != ANONYMOUS


class Sessions:
    """Reads and writes session cookies. All replicas with the same secret and password accept them. If the secret or
    the password changes, all sessions end."""

    def __init__(self, secret: bytes, password: str | None = None, clock: Callable[[], float] = time) -> None:
        """`clock`: returns seconds since 1970."""
        self._password = None if password is None else password.encode()
        key = blake2b(secret, digest_size=32, person=b"steno-inspector").digest()
        self._key = blake2b(self._password or b"", key=key, digest_size=32).digest()
        self._clock = clock

    def accepts(self, password: str) -> bool:
        return self._password is not None and compare_digest(password.encode(), self._password)

    def opened(self, tenant: str, *, operator: bool = False) -> Session:
        expires = int(1_000 * (self._clock() + LASTS_SECONDS))
        return Session(tenant, operator, expires, secrets.token_urlsafe(12))

    def seal(self, session: Session) -> str:
        content = msgspec.json.encode(astuple(session))
        return urlsafe_b64encode(self._mac(SEALED_AS, content) + content).rstrip(b"=").decode()

    def unseal(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if the cookie is not valid or the session has expired."""
        try:
            sealed = urlsafe_b64decode(cookie[:_LONGEST_COOKIE].encode() + b"==")
        except ValueError:
            return None
        mac, content = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not compare_digest(mac, self._mac(SEALED_AS, content)):
            return None
        session = Session(*msgspec.json.decode(content, type=tuple[str, bool, int, str]))
        return session if session.expires > 1_000 * self._clock() else None

    def form_token(self, session: Session) -> str:
        """Return the CSRF token of the session's forms. Other sites cannot read it."""
        return self._mac(b"form", session.id.encode()).hex()

    def _mac(self, purpose: bytes, content: bytes) -> bytes:
        return blake2b(content, key=self._key, digest_size=_MAC_BYTES, person=purpose.ljust(16, b"\0")).digest()


class Guesses:
    """Wrong sign-ins by client address. Each process counts for itself, so several processes allow more guesses."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._made: BoundedMap[str, deque[float]] = BoundedMap(MOST_REMEMBERED)
        """Times of the latest guesses of each address, the oldest first."""
        self._throttle = LogThrottle(clock)

    def wait(self, address: str) -> float:
        """Return the seconds until the address may guess again; 0 if it may guess now."""
        made = self._made.get(address)
        if made is None or len(made) < MOST_GUESSES:
            return 0.0
        return max(0.0, made[0] + PERIOD_SECONDS - self._clock())

    def count(self, address: str) -> None:
        """Count and log a wrong guess. While the address must wait, Steno does not check its guesses, but logs them."""
        if not (refused := self.wait(address) > 0):
            made = self._made.get(address) or deque(maxlen=MOST_GUESSES)
            made.append(self._clock())
            self._made.keep(address, made)
        if (times := self._throttle.count(address)) is not None:
            log.warning("sign-in guessed", address=address, refused=refused, times=times)


class Inspector(Struct, frozen=True):
    """Shared objects of the pages; `main` creates them once."""

    services: Services
    sessions: Sessions
    findings: tuple[Finding, ...]
    """Problems of the settings, found at the start."""
    port: int
    """Port of the callers' listener in the settings."""
    guesses: Guesses = field(default_factory=Guesses)


class SignInNeeded(Exception):
    """Raised if a visitor without a session opens a tenant's page."""


TITLES = {403: "Not allowed", 404: "Not found", 503: "The database cannot be used"}
"""Titles of error pages by status. Other statuses have the title "That did not work"."""


def no_such_page() -> UnknownPath:
    """Return the error for an unknown page. Another tenant's page gets the same error, to keep its existence secret."""
    return UnknownPath("There is no such page, or it is not yours.")


class Visit(Struct, frozen=True):
    """Request to the inspector with a valid session."""

    inspector: Inspector
    request: Request
    session: Session
    is_new: bool
    """True if the session's cookie must be set."""

    @property
    def services(self) -> Services:
        return self.inspector.services

    @property
    def tenant(self) -> str:
        return self.session.tenant

    @property
    def sees_server(self) -> bool:
        """True if the visitor may see the operator's data: addresses and errors of upstreams. Sign-in with a key
        is not enough, because Steno does not verify keys."""
        scope = self.request.scope
        if scope.get(LISTENER) == "callers":
            return False
        return self.session.operator or self.services.authenticator.is_local(scope["headers"], peer_of(scope))

    def is_simulated(self, providers: Iterable[Provider]) -> bool:
        """True if all providers say that they are simulators, so that no call costs anything."""
        listed = [each.windows.listings.latest_outcome for each in providers]
        return all(isinstance(each, ModelListing) and each.simulated for each in listed)

    async def find(self, query: Query[Concatenate[str, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run a query for the shown tenant."""
        return await self.services.store.rest(query, self.tenant, *arguments, **options)

    async def others_exist(self) -> bool:
        """True if other tenants have conversations, and this visitor may know that."""
        may_know = self.session.operator or self.tenant == ANONYMOUS
        return may_know and await self.find(has_other_tenants)

    def page(self, template: str, *, status: int = 200, **shown: Any) -> Response:
        """Render a template. `shown`: the template's variables, except those of `base.html`."""
        layout = {
            "path": self.request.scope["path"],
            "session": self.session,
            "sees_server": self.sees_server,
            "is_anonymous": self.tenant == ANONYMOUS,
            "form_token": self.inspector.sessions.form_token(self.session),
        }
        answer = render(template, layout | shown, status)
        if self.is_new:
            remember(self.request, answer, self.inspector.sessions.seal(self.session))
        return answer


def _inspector(request: Request) -> Inspector:
    inspector: Inspector = request.app.state.inspector
    return inspector


TheInspector = Annotated[Inspector, Depends(_inspector)]


def session_of(request: Request, inspector: Inspector) -> tuple[Session, bool] | None:
    """Return the session of a request, and True if its cookie must be set; None if the visitor must sign in. A key in a
    header opens no session, because Steno limits wrong guesses only in the form. Raises `InvalidCredentials`."""
    scope = request.scope
    session = inspector.sessions.unseal(request.cookies.get(_cookie_of(request), ""))
    if session is not None and session.operator:
        if scope.get(LISTENER) != "callers":
            return session, False
        session = None
    authenticator = inspector.services.authenticator
    try:
        identity = authenticator.identify(scope["headers"], peer_of(scope))
    except MissingCredentials:
        # If the operator's key pays for summaries, each request needs credentials, even with a session.
        is_enough = session is not None and session.is_signed_in and not authenticator.operator_pays
        return (session, False) if session is not None and is_enough else None
    if identity.method != "header":
        if session is not None and session.is_signed_in:
            return session, False
        if identity.method == "key":
            return None
    if session is not None and session.tenant == identity.tenant:
        return session, False
    return inspector.sessions.opened(identity.tenant), True


async def visit_of(request: Request, inspector: TheInspector) -> Visit:
    """Return the visit of a request. Raises `SignInNeeded`."""
    found = session_of(request, inspector)
    if found is None:
        raise SignInNeeded
    session, is_new = found
    if session.operator and not session.tenant:
        tenants = await inspector.services.store.rest(read_tenants)
        if tenants:
            session, is_new = replace(session, tenant=tenants[0].id), True
    return Visit(inspector, request, session, is_new)


TheVisit = Annotated[Visit, Depends(visit_of)]


async def _form(request: Request, visit: TheVisit) -> Mapping[str, str]:
    form = await read_form(request)
    token = visit.inspector.sessions.form_token(visit.session)
    if not compare_digest(token.encode(), form.get("form_token", "").encode(errors="replace")):
        why = "This form belongs to another session, or your session has ended. Reload the page and try again."
        raise OriginNotAllowed(why)
    return form


TheForm = Annotated[Mapping[str, str], Depends(_form)]
"""Fields of a form with the token of the session."""


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises `InvalidRequest`."""
    body = await read_body(request.receive, request.scope["headers"], FORM_BYTES, FORM_SECONDS)
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="strict"))
    except ValueError as error:
        raise InvalidRequest("The body is no form.") from error


def _cookie_of(request: Request) -> str:
    name = OPERATORS_COOKIE if request.scope.get(LISTENER) == "operator" else COOKIE
    return OVER_TLS + name if is_https(request) else name


def remember(request: Request, answer: Response, cookie: str | None) -> None:
    """Set the session's cookie; None deletes it."""
    age = LASTS_SECONDS if cookie else 0
    answer.set_cookie(
        _cookie_of(request), cookie or "", age, path="/", secure=is_https(request), httponly=True, samesite="strict"
    )


def base_for_clients(request: Request) -> str:
    """Return the base URL for clients. On the operator's listener, the port is that of the callers' listener."""
    if request.scope.get(LISTENER) != "operator":
        return base_of(request)
    return f"{request.url.scheme}://{request.url.hostname}:{_inspector(request).port}"


def redirected(to: str) -> Response:
    return RedirectResponse(to, 303, HEADERS)


class PageRoute(APIRoute):
    """Route that shows errors as pages. The REST interface returns them in OpenAI's format instead."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handle(request)
            except SignInNeeded:
                if value_of(request.scope["headers"], b"sec-fetch-site") == "cross-site":
                    # After a link from another site, the browser sends the cookie only with the next request.
                    return render("onward.html", {})
                return redirected("/ui/sign-in")
            except (StenoError, StoreUnavailable, UnknownCursor, RequestValidationError) as error:
                return _error_page(steno_error(error), request)

        return shown


def _error_page(error: StenoError, request: Request) -> Response:
    """Return the page about an error, with the session's layout if there is a session."""
    request.scope[REQUEST].failed(error)
    inspector, title = _inspector(request), TITLES.get(error.status, "That did not work")
    shown = {"title": title, "why": error.message}
    try:
        found = session_of(request, inspector)
    except StenoError:
        found = None
    if found is None:
        return render("trouble_outside.html", shown, error.status)
    return Visit(inspector, request, *found).page("trouble.html", status=error.status, **shown)


router = APIRouter(route_class=PageRoute, include_in_schema=False)
"""Routes for sign-in, sign-out, tenants and static files. Include this router last: it also answers unknown paths."""


@router.get("/ui/sign-in")
async def show_sign_in() -> Response:
    return render("sign_in.html", {"problem": None})


@router.post("/ui/sign-in")
async def sign_in(request: Request, inspector: TheInspector) -> Response:
    """Sign in with an API key or the operator's password. The session keeps only the tenant of the key."""
    scope, guesses, authenticator = request.scope, inspector.guesses, inspector.services.authenticator
    origin, host = value_of(scope["headers"], b"origin"), value_of(scope["headers"], b"host")
    # Before sign-in there is no form token. The origin check stops other sites from signing a visitor in.
    if origin is not None and origin.partition("://")[2] != host:
        raise OriginNotAllowed("Sign in on Steno's own page.", "origin")
    address = client_of(scope["headers"], peer_of(scope), authenticator.trusted_proxies)
    if seconds := guesses.wait(address):
        guesses.count(address)
        wait = counted(ceil(seconds / 60), "minute")
        problem = f"Too many keys and passwords from your address were wrong. Wait {wait}."
        answer = render("sign_in.html", {"problem": problem}, 429)
        answer.headers["retry-after"] = str(ceil(seconds))
        return answer
    given = (await read_form(request)).get("key", "").strip()
    if scope.get(LISTENER) != "callers" and inspector.sessions.accepts(given):
        log.info("operator signed in", address=address)
        return _signed_in(request, inspector, inspector.sessions.opened("", operator=True))
    if not given:
        return render("sign_in.html", {"problem": "Paste a key or the operator's password first."}, 400)
    header = (b"authorization", b"Bearer " + given.encode())
    try:
        identity = authenticator.identify([*scope["headers"], header], peer_of(scope))
    except (MissingCredentials, InvalidCredentials) as error:
        return render("sign_in.html", {"problem": error.message}, error.status)
    if not await inspector.services.store.rest(is_tenant, identity.tenant):
        guesses.count(address)
        problem = "No conversation was sent with this key, and it is not the operator's password."
        return render("sign_in.html", {"problem": problem}, 401)
    return _signed_in(request, inspector, inspector.sessions.opened(identity.tenant))


def _signed_in(request: Request, inspector: Inspector, session: Session) -> Response:
    answer = redirected("/ui")
    remember(request, answer, inspector.sessions.seal(session))
    return answer


@router.post("/ui/sign-out")
async def sign_out(request: Request, _: TheForm) -> Response:
    answer = redirected("/ui/sign-in")
    remember(request, answer, None)
    return answer


@router.get("/ui/tenants")
async def list_tenants(visit: TheVisit) -> Response:
    """Show all tenants to the operator."""
    if not visit.session.operator:
        raise no_such_page()
    return visit.page("tenants.html", tenants=await visit.services.store.rest(read_tenants))


@router.post("/ui/tenants")
async def choose_tenant(request: Request, visit: TheVisit, form: TheForm) -> Response:
    chosen = form.get("tenant", "")
    if not visit.session.operator or not await visit.services.store.rest(is_tenant, chosen):
        raise no_such_page()
    return _signed_in(request, visit.inspector, replace(visit.session, tenant=chosen))


@router.get("/ui/static/{name}")
async def read_file(request: Request, name: str) -> Response:
    answer = await FILES.get_response(name, request.scope)
    # The browser asks each time whether the file has changed, because its name stays the same.
    answer.headers.update({"cache-control": "no-cache", "x-content-type-options": "nosniff"})
    return answer


@router.get("/ui/{rest:path}")
async def refuse_unknown(rest: str) -> Response:  # noqa: ARG001 - FastAPI's way to name any path
    raise no_such_page()
