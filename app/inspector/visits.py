"""Visits: the session and tenant of a request to the inspector, and its error pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Annotated, Any, Concatenate
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from msgspec import Struct, field
from msgspec.structs import replace

from app.api.dependencies import base_of, is_https
from app.errors import InvalidRequest, MissingCredentials, StenoError
from app.http.asgi import peer_of, read_body
from app.http.headers import value_of
from app.inspector.pages import HEADERS, Pages
from app.inspector.session import COOKIE, LASTS_SECONDS, OPERATORS_COOKIE, OVER_TLS, Guesses, Session, Sessions
from app.providers.model_listings import ModelListing
from app.providers.providers import Provider
from app.proxy.caller import ANONYMOUS
from app.proxy.exchange import REQUEST, Services
from app.proxy.router import LISTENER
from app.settings.checks import Finding
from app.store import StoreUnavailable
from app.store.conversations import has_other_tenants, latest_tenant
from app.store.store import P, Query, T
from app.telemetry.metrics import Metrics

FORM_BYTES = 1_000_000
FORM_SECONDS = 20.0


class Inspector(Struct, frozen=True):
    """Shared objects of the pages; `main` creates them once."""

    services: Services
    sessions: Sessions
    pages: Pages
    findings: tuple[Finding, ...]
    """Problems of the settings, found at the start."""
    metrics: Metrics
    """Metrics of all workers."""
    port: int
    """Port of the callers' listener in the settings."""
    guesses: Guesses = field(default_factory=Guesses)


class SignInNeeded(Exception):
    """Raised if a visitor without a session opens a tenant's page."""


class Trouble(Exception):
    """Raised to show an error page."""

    def __init__(self, status: int, title: str, why: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.why = why


def no_such_page() -> Trouble:
    """Return the error for an unknown page. Another tenant's page gets the same, so that its existence stays secret."""
    return Trouble(404, "Not found", "There is no such page, or it is not yours.")


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
        """True if the visitor may see the operator's data: addresses, errors, sums over all tenants. Sign-in with a key
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
        """Render a template. `shown`: its variables, except those of `base.html`."""
        layout = {
            "path": self.request.scope["path"],
            "session": self.session,
            "sees_server": self.sees_server,
            "is_anonymous": self.tenant == ANONYMOUS,
            "form_token": self.inspector.sessions.form_token(self.session),
        }
        answer = self.inspector.pages.page(template, layout | shown, status)
        if self.is_new:
            remember(self.request, answer, self.inspector.sessions.seal(self.session))
        return answer


def _inspector(request: Request) -> Inspector:
    inspector: Inspector = request.app.state.inspector
    return inspector


TheInspector = Annotated[Inspector, Depends(_inspector)]


def session_of(request: Request, inspector: Inspector) -> tuple[Session, bool] | None:
    """Return the session of a request, and True if its cookie must be set; None if the visitor must sign in. A key in a
    header opens no session, because only the form counts guesses. Raises `InvalidCredentials`."""
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
        # With an operator's key, the session could spend it on summaries: it needs the header of every other request.
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
        latest = await inspector.services.store.rest(latest_tenant)
        if latest is not None:
            session, is_new = replace(session, tenant=latest), True
    return Visit(inspector, request, session, is_new)


TheVisit = Annotated[Visit, Depends(visit_of)]


async def _form(request: Request, visit: TheVisit) -> Mapping[str, str]:
    form = await read_form(request)
    if not visit.inspector.sessions.sent_from_form(visit.session, form.get("form_token", "")):
        why = "This form is not of your session: it may have ended. Go back, reload the page, and try again."
        raise Trouble(403, "That form has expired", why)
    return form


TheForm = Annotated[Mapping[str, str], Depends(_form)]
"""Fields of a form with this session's valid token."""


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
    """Return scheme, host and port for clients. On the operator's listener, the port comes from the settings."""
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
                    # For a link from another site, the browser sends the cookie only with the next request.
                    return _inspector(request).pages.page("onward.html", {})
                return redirected("/ui/sign-in")
            except (Trouble, StenoError, StoreUnavailable, RequestValidationError) as error:
                return _shown_trouble(error, request)

        return shown


def _shown_trouble(error: Exception, request: Request) -> Response:
    """Return the page about an error, with the session's layout if there is a session."""
    match error:
        case Trouble():
            trouble = error
        case StoreUnavailable():
            why = f"{error.reason}. Requests are still served; what is stored can be shown again once it is back."
            trouble = Trouble(503, "The database cannot be used", why[:1].upper() + why[1:])
        case RequestValidationError():
            first = error.errors()[0]
            trouble = Trouble(400, "That did not work", f"{first['loc'][-1]}: {first['msg']}.")
        case StenoError():
            request.scope[REQUEST].failed(error)
            trouble = Trouble(error.status, "That did not work", error.message)
        case _:
            raise error
    inspector, shown = _inspector(request), {"title": trouble.title, "why": trouble.why}
    try:
        found = session_of(request, inspector)
    except StenoError:
        found = None
    if found is None:
        return inspector.pages.page("trouble_outside.html", shown, trouble.status)
    return Visit(inspector, request, *found).page("trouble.html", status=trouble.status, **shown)
