"""Visits: whose data a request may see, and how what goes wrong is shown: as a page."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from math import ceil
from typing import Annotated, Any, Concatenate
from urllib.parse import parse_qsl

import structlog
from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from msgspec import Struct, field
from msgspec.structs import replace

from app.api.dependencies import base_of, is_https
from app.errors import InvalidRequest, MissingCredentials, StenoError
from app.http import credentials
from app.http.asgi import peer_of, read_body
from app.http.headers import value_of
from app.inspector.formats import minutes
from app.inspector.live import Live
from app.inspector.pages import HEADERS, Pages
from app.inspector.session import COOKIE, LASTS_SECONDS, OPERATORS_COOKIE, OVER_TLS, Guesses, Session, Sessions
from app.proxy.caller import ANONYMOUS
from app.proxy.exchange import REQUEST
from app.proxy.router import LISTENER
from app.proxy.services import Services
from app.settings.checks import Finding
from app.store import StoreUnavailable
from app.store.conversations import latest_tenant
from app.store.store import P, Query, T
from app.telemetry.metrics import Metrics

FORM_FIELD = "form_token"
"""Name of the field that every form carries."""
FORM_BYTES = 1_000_000
FORM_SECONDS = 20.0

log = structlog.get_logger("steno.inspector")


class Inspector(Struct, frozen=True):
    """Parts that the pages work with, put together once by `main`."""

    services: Services
    sessions: Sessions
    pages: Pages
    findings: tuple[Finding, ...]
    """Problems of the settings that were seen at the start."""
    metrics: Metrics
    """Metrics of all workers."""
    port: int
    """Port of the callers' listener, as it is set."""
    live: Live = field(default_factory=Live)
    guesses: Guesses = field(default_factory=Guesses)


class Instead(Exception):
    """Raised where something else is answered than the page that was asked for."""

    async def answer(self, request: Request) -> Response:
        raise NotImplementedError


class SignInNeeded(Instead):
    """Raised where nobody in particular looks at a page that is somebody's."""

    async def answer(self, request: Request) -> Response:  # noqa: ARG002 - the same for every page
        return redirected("/ui/sign-in")


class FromElsewhere(Instead):
    """Raised where a link on another site led here: its browser kept the cookie back, and sends it with the next
    request."""

    async def answer(self, request: Request) -> Response:
        return _inspector(request).pages.page("onward.html", {})


class Trouble(Instead):
    """Raised where there is no page; a page says why."""

    def __init__(self, status: int, title: str, why: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.why = why

    async def answer(self, request: Request) -> Response:
        inspector, shown = _inspector(request), {"title": self.title, "why": self.why}
        try:
            found = session_of(request, inspector)
        except StenoError:
            found = None
        if found is None:
            return inspector.pages.page("trouble_outside.html", shown, self.status)
        return Visit(inspector, request, *found).page("trouble.html", status=self.status, **shown)


class FormRefused(Trouble):
    """Raised for a form that was not sent by a page of this session."""

    def __init__(self) -> None:
        why = "This form is not of your session: it may have ended. Go back, reload the page, and try again."
        super().__init__(403, "That form has expired", why)


class NoSuchPage(Trouble):
    """Raised where there is no such page, also for what is there but another tenant's."""

    def __init__(self) -> None:
        super().__init__(404, "Not found", "There is no such page, or it is not yours.")


class Visit(Struct, frozen=True):
    """Request by somebody who may look."""

    inspector: Inspector
    request: Request
    session: Session
    is_new: bool
    """True where the session's cookie has to be set."""

    @property
    def services(self) -> Services:
        return self.inspector.services

    @property
    def tenant(self) -> str:
        return self.session.tenant

    @property
    def sees_server(self) -> bool:
        """True where the visitor may see what is the operator's: addresses, errors, sums over all tenants. Steno does
        not verify keys, so whoever signed in with one may be anybody."""
        scope = self.request.scope
        if scope.get(LISTENER) == "callers":
            return False
        return self.session.operator or self.services.authenticator.is_local(scope["headers"], peer_of(scope))

    async def find(self, query: Query[Concatenate[str, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        """Result of a query about the tenant's rows."""
        return await self.services.store.rest(query, self.tenant, *arguments, **options)

    def page(self, template: str, *, status: int = 200, **shown: Any) -> Response:
        """Page made of a template. `shown`: what it names, beside what all templates may: see `layout`."""
        answer = self.inspector.pages.page(template, self.layout() | shown, status)
        return self.remembered(answer)

    def layout(self) -> dict[str, Any]:
        """Values that `base.html` names."""
        return {
            "path": self.request.scope["path"],
            "session": self.session,
            "sees_server": self.sees_server,
            "is_anonymous": self.session.tenant == ANONYMOUS,
            "form_token": self.inspector.sessions.form_token(self.session),
        }

    def remembered(self, answer: Response) -> Response:
        """Answer with the session's cookie where that is new."""
        if self.is_new:
            remember(self.request, answer, self.inspector.sessions.seal(self.session))
        return answer


def _inspector(request: Request) -> Inspector:
    inspector: Inspector = request.app.state.inspector
    return inspector


TheInspector = Annotated[Inspector, Depends(_inspector)]


def session_of(request: Request, inspector: Inspector) -> tuple[Session, bool] | None:
    """Session of a request, and whether its cookie has to be set; None where the visitor has to sign in. A key in a
    header opens no session: guesses are counted at the form. Raises `InvalidCredentials`."""
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
        # A session may spend the operator's key on summaries, so it needs what every request needs.
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
    """Visit of a request. Raises `Instead`."""
    found = session_of(request, inspector)
    if found is None:
        if value_of(request.scope["headers"], b"sec-fetch-site") == "cross-site":
            raise FromElsewhere
        raise SignInNeeded
    session, is_new = found
    if session.operator and not session.tenant:
        latest = await inspector.services.store.rest(latest_tenant)
        if latest is not None:
            session, is_new = replace(session, tenant=latest), True
    return Visit(inspector, request, session, is_new)


TheVisit = Annotated[Visit, Depends(visit_of)]


async def _form(request: Request, visit: TheVisit) -> Mapping[str, str]:
    form = await read_form(request)
    if not visit.inspector.sessions.sent_from_form(visit.session, form.get(FORM_FIELD, "")):
        raise FormRefused
    return form


TheForm = Annotated[Mapping[str, str], Depends(_form)]
"""Fields of a form that a page of this session held."""


async def read_form(request: Request) -> dict[str, str]:
    """Fields of a form. Raises `InvalidRequest`."""
    body = await read_body(request.receive, request.scope["headers"], FORM_BYTES, FORM_SECONDS)
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="strict"))
    except ValueError as error:
        raise InvalidRequest("The body is no form.") from error


def client_of(request: Request) -> str:
    """Network address that a request came from, be it reported by a trusted proxy; empty if it is unknown."""
    scope = request.scope
    trusted = _inspector(request).services.authenticator.trusted_proxies
    return credentials.client_of(scope["headers"], peer_of(scope), trusted)


def too_many_guesses(inspector: Inspector, seconds: float) -> Response:
    """Page that refuses another guess for so many `seconds`."""
    problem = f"Too many keys and passwords from your address were wrong. Wait {minutes(seconds)}."
    answer = inspector.pages.page("sign_in.html", {"problem": problem}, 429)
    answer.headers["retry-after"] = str(ceil(seconds))
    return answer


def _cookie_of(request: Request) -> str:
    """Name of the session's cookie."""
    name = OPERATORS_COOKIE if request.scope.get(LISTENER) == "operator" else COOKIE
    return OVER_TLS + name if is_https(request) else name


def remember(request: Request, answer: Response, cookie: str) -> None:
    name, secure = _cookie_of(request), is_https(request)
    answer.set_cookie(name, cookie, max_age=LASTS_SECONDS, path="/", secure=secure, httponly=True, samesite="strict")


def forget(request: Request, answer: Response) -> None:
    name, secure = _cookie_of(request), is_https(request)
    answer.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="strict")


def base_for_clients(request: Request) -> str:
    """Scheme, host and port that clients reach Steno at: on the operator's listener as far as the settings say."""
    base = base_of(request)
    if request.scope.get(LISTENER) != "operator":
        return base
    return f"{request.url.scheme}://{request.url.hostname}:{_inspector(request).port}"


def redirected(to: str) -> Response:
    return RedirectResponse(to, 303, HEADERS)


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """Route whose errors are pages, where the REST interface has an error of OpenAI's."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handle(request)
            except Instead as instead:
                return await _answered(instead, request)
            except (StenoError, StoreUnavailable, RequestValidationError) as error:
                return await _trouble_of(error, request).answer(request)

        return shown


async def _answered(instead: Instead, request: Request) -> Response:
    try:
        return await instead.answer(request)
    except StoreUnavailable as error:
        return await _trouble_of(error, request).answer(request)


def _trouble_of(error: Exception, request: Request) -> Trouble:
    if isinstance(error, StoreUnavailable):
        why = f"{error.reason}. Requests are still served; what is stored can be shown again once it is back."
        return Trouble(503, "The database cannot be used", why[:1].upper() + why[1:])
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return Trouble(400, "That did not work", f"{first['loc'][-1]}: {first['msg']}.")
    if isinstance(error, StenoError):
        request.scope[REQUEST].failed(error)
        return Trouble(error.status, "That did not work", error.message)
    raise error
