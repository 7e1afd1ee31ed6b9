"""REST over what was said: a search in the texts of summaries, and in messages where they are kept."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.core.view.chunks import SummaryChunk
from app.errors import InvalidRequest
from app.rest.dependencies import After, Limit, Listing, Tenant, TheServices, listing
from app.rest.messages import MessageOut, message_out, refuse_unless_kept, rendered
from app.rest.summaries import SummaryOut, summary_out
from app.store import Searched, StoredMessage, words_in
from app.store.pages import Paging
from app.store.search import search_texts

LONGEST_QUERY = 200
MOST_WORDS = 16

router = APIRouter(prefix="/context", tags=["summaries"])


@router.get("/search", response_model=Listing[SummaryOut | MessageOut])
async def search(
    services: TheServices,
    tenant: Tenant,
    q: str = "",
    among: Annotated[Searched, Query(alias="in")] = "summaries",
    limit: Limit = 20,
    after: After = None,
) -> Response:
    """The caller's summaries, or messages, or both, that hold every word of `q`, or one that begins with it; newest
    first. Messages are found where they are kept: storage.messages."""
    if among != "summaries":
        refuse_unless_kept(services)
    if len(q) > LONGEST_QUERY:
        raise InvalidRequest(f"q has {len(q)} characters; at most {LONGEST_QUERY} are looked for.", "q")
    words = words_in(q)
    if not words:
        raise InvalidRequest("q must hold the words to look for, of letters and digits; it holds none.", "q")
    if len(words) > MOST_WORDS:
        raise InvalidRequest(f"q holds {len(words)} different words; at most {MOST_WORDS} are looked for.", "q")
    found = await services.store.rest(search_texts, tenant, words, among, Paging(limit, after, "desc"))
    return rendered(listing(found, _found))


def _found(found: SummaryChunk | StoredMessage) -> SummaryOut | MessageOut:
    return message_out(found) if isinstance(found, StoredMessage) else summary_out(found)
