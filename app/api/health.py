"""Health checks and metrics. They contain no data of tenants, and call no provider."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from app.proxy.exchange import Services
from app.proxy.router import LISTENER
from app.telemetry.metrics import Metrics


def health_router(services: Services, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/livez")
    async def livez() -> dict[str, str]:
        """The event loop runs."""
        return {"status": "ok"}

    async def ready(request: Request, response: Response) -> dict[str, Any]:
        """503 only while stopping: without its database Steno still serves, and says that it is degraded.

        `db` is `degraded` while nothing can be read or written, and `not_written` while it can only be read. If the
        operator has a listener (`server.admin`), the callers' listener shows only `status`.
        """
        if services.tasks.draining:
            response.status_code = 503
            return {"status": "draining"}
        store = services.store
        status = "ok" if store.remedy is None else "degraded"
        if request.scope.get(LISTENER) == "callers":
            return {"status": status}
        shown: dict[str, Any] = {"status": status, "db": "ok"}
        if store.remedy is not None:
            db = "not_written" if store.reason is None else "degraded"
            shown |= {"db": db, "reason": store.reason or store.writes.reason, "remedy": store.remedy}
        return shown | {"tokenizer": "heuristic" if services.estimator.heuristics else "tiktoken"}

    stopping = {"description": "It is stopping.", "content": {"application/json": {"schema": {"type": "object"}}}}
    for name in ("readyz", "healthz"):
        router.add_api_route(f"/{name}", ready, methods=["GET"], name=name, responses={503: stopping})

    @router.get("/metrics", name="metrics", response_class=PlainTextResponse)
    async def read_metrics() -> Response:
        """Metrics in Prometheus' text format, added up over all workers."""
        services.store.writes.catch_up()
        services.sampler.sample()
        return Response(metrics.exposed(), media_type=CONTENT_TYPE_LATEST)

    return router
