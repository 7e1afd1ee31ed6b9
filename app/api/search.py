"""REST over the texts of summaries."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.rest import Limit, Listing, SummaryOut, Tenant, TheServices, listing, summary_out
from app.errors import InvalidRequest
from app.store import UnknownCursor

LONGEST_QUERY = 200

router = APIRouter(prefix="/context", tags=["context"])


@router.get("/search")
async def search_summaries(
    services: TheServices, tenant: Tenant, q: str = "", limit: Limit = 20, after: str | None = None
) -> Listing[SummaryOut]:
    """The caller's summaries whose text holds every word of `q`, in any case; newest first."""
    words = list(dict.fromkeys(q.split()))
    if not words or len(q) > LONGEST_QUERY:
        raise InvalidRequest(
            f"q must hold the words to look for, at most {LONGEST_QUERY} characters; it has {len(q)}.", "q"
        )
    try:
        page = await services.store.search_summaries(tenant, words, limit=limit, after=after, order="desc")
    except UnknownCursor as error:
        raise InvalidRequest(str(error), "after") from error
    return listing(page, summary_out)
