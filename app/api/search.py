"""Search in the texts of a tenant's summaries."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from app.api.dependencies import After, Limit, Listing, Tenant, TheServices, listing
from app.api.summaries import SummaryOut, summary_out
from app.errors import InvalidRequest
from app.store.chunks import search_summaries
from app.store.tables import Paging

LONGEST_QUERY = 200

router = APIRouter(prefix="/context", tags=["summaries"])
Text = Annotated[str, Query(description="Part of a text, in upper or lower case.")]


@router.get("/search")
async def search(
    services: TheServices, tenant: Tenant, q: Text = "", limit: Limit = 20, after: After = None
) -> Listing[SummaryOut]:
    """The caller's summaries that hold `q` in their text, values or user's words, newest first."""
    if not q.strip():
        raise InvalidRequest("q must hold the text to look for; it is empty.", "q")
    if len(q) > LONGEST_QUERY:
        raise InvalidRequest(f"q has {len(q)} characters; at most {LONGEST_QUERY} are looked for.", "q")
    found = await services.store.rest(search_summaries, tenant, q.strip(), Paging(limit, after, "desc"))
    return listing(found, summary_out)
