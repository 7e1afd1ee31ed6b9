"""`/`: settings for clients, and Steno's state. A visitor without a session sees no more of it than in `/readyz`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.compaction.budget import Window
from app.inspector.visits import PageRoute, SignInNeeded, TheInspector, Visit, base_for_clients, visit_of
from app.providers.model_listings import ListingRefused, ModelListing
from app.providers.providers import Provider
from app.proxy.router import LISTENER
from app.settings import DEFAULT_UPSTREAM
from app.settings.checks import Finding
from app.store import StoreUnavailable
from app.store.calibrations import read_models_used

MOST_MODELS = 12

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
async def show_setup(request: Request, inspector: TheInspector) -> Response:
    base, services = base_for_clients(request), inspector.services
    shown: dict[str, Any] = {
        "ways": [
            ("openai", "OpenAI: chat completions and responses", "OPENAI_BASE_URL", f"{base}/v1"),
            ("anthropic", "Anthropic: messages, Claude Code", "ANTHROPIC_BASE_URL", base),
            ("named", "With the conversation's id in the path", "", f"{base}/c/MY-CONVERSATION/v1"),
        ],
        "database": services.store.state,
        "tokenizer": "estimated by bytes" if services.estimator.heuristics else "exact",
    }
    try:
        visit = await visit_of(request, inspector)
    except (SignInNeeded, StoreUnavailable):
        return inspector.pages.page("setup_outside.html", shown)
    return visit.page(
        "setup.html",
        **shown,
        has_all=request.scope.get(LISTENER) != "callers",
        findings=_findings(visit) if visit.sees_server else [],
        upstreams=[_upstream(provider) for provider in services.providers.all],
        windows=await _windows(visit),
    )


def _findings(visit: Visit) -> list[Finding]:
    """Return the problems of the settings and the database, in the words of `steno doctor`."""
    store, found = visit.services.store, list(visit.inspector.findings)
    if store.reason is not None:
        text = f"The database {store.place} cannot be used: {store.reason}"
        found.insert(0, Finding("problem", "database", text, "Requests are served un-compacted; it is tried again."))
    elif store.not_written is not None:
        text = f"The database {store.place} can be read and not written: {store.not_written}"
        found.insert(0, Finding("problem", "database", text, store.remedy or ""))
    return found


def _upstream(provider: Provider) -> dict[str, str]:
    state, text = _state(provider)
    return {
        "name": provider.name,
        "base_url": provider.settings.base_url,
        "formats": ", ".join(each.name.replace("_", " ") for each in provider.formats),
        # Path of a client's base URL for this upstream.
        "path": "/v1" if provider.name == DEFAULT_UPSTREAM else f"/u/{provider.name}/v1",
        "state": state,
        "text": text,
    }


def _state(provider: Provider) -> tuple[str, str]:
    """Return an upstream's state and its description, by its latest answer to a request for its models."""
    match provider.windows.listings.latest_outcome:
        case None:
            return "unknown", "not asked for its models"
        case ModelListing(models=models):
            return "ok", f"lists {len(models)} models" if models else "answers, lists no models"
        case ListingRefused(wants_key=True):
            return "ok", "answers; lists its models to keys only"
        case ListingRefused(status=status):
            return "warning", f"answers with status {status} to the question for its models"
        case error:
            return "problem", error.message


async def _windows(visit: Visit) -> list[tuple[str, str, Window]]:
    """Return model, upstream and window of the tenant's latest models; of models that providers list if there are none
    or the database is unavailable."""
    used: list[str] = []
    with suppress(StoreUnavailable):
        used = await visit.find(read_models_used)
    known = visit.services.providers.known(visit.tenant, used)
    return [
        (name, provider.name, provider.windows.window_of(name, visit.tenant))
        for name in (used or [*known])[:MOST_MODELS]
        for provider in known.get(name, ())
    ]
