"""What Steno counted, for Prometheus: numbers of all workers, and nothing of a tenant or a conversation."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from app.metrics.exposition import CONTENT_TYPE_LATEST, exposed
from app.metrics.table import Table


def metrics_router(table: Table, *bring_up_to_date: Callable[[], None]) -> APIRouter:
    """`bring_up_to_date`: count what is over and was not counted yet, and look at the state as it is now."""
    router = APIRouter(tags=["health"])

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """In Prometheus' text format, added up over all workers."""
        for bring in bring_up_to_date:
            bring()
        return Response(exposed(table), media_type=CONTENT_TYPE_LATEST)

    return router
