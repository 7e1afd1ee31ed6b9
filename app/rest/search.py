"""REST over the texts of summaries."""

from __future__ import annotations

from fastapi import APIRouter

from app.errors import InvalidRequest
from app.rest.dependencies import Limit, Listing, Tenant, TheServices, known_cursor, listing
from app.rest.summaries import SummaryOut, summary_out
from app.store import words_in

LONGEST_QUERY = 200
MOST_WORDS = 16

router = APIRouter(prefix="/context", tags=["context"])


@router.get("/search")
async def search_summaries(
    services: TheServices, tenant: Tenant, q: str = "", limit: Limit = 20, after: str | None = None
) -> Listing[SummaryOut]:
    """The caller's summaries that hold every word of `q`, or one that begins with it; newest first."""
    if len(q) > LONGEST_QUERY:
        raise InvalidRequest(f"q has {len(q)} characters; at most {LONGEST_QUERY} are looked for.", "q")
    words = words_in(q)
    if not words:
        raise InvalidRequest("q must hold the words to look for, of letters and digits; it holds none.", "q")
    if len(words) > MOST_WORDS:
        raise InvalidRequest(f"q holds {len(words)} different words; at most {MOST_WORDS} are looked for.", "q")
    with known_cursor():
        page = await services.store.search_summaries(tenant, words, limit=limit, after=after, order="desc")
    return listing(page, summary_out)
