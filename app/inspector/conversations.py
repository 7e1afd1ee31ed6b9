"""`/ui/conversations`: the list, searched, filtered and sorted."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import APIRouter, Query
from fastapi.responses import Response

from app.compaction.fallback import Status
from app.inspector.pages import address
from app.inspector.visits import PageRoute, TheVisit, redirected
from app.store import Sorting, UnknownCursor, Wanted
from app.store.calibrations import read_models_used
from app.store.conversations import search_conversations
from app.store.histories import find_titles

PER_PAGE = 50
LONGEST_SEARCH = 200
STATUSES = get_args(Status)
SORTED_BY = {
    "updated": "last request",
    "created": "first request",
    "saved": "tokens saved",
    "size": "size",
    "requests": "requests",
}
HERE = "/ui/conversations"
Text = Annotated[str, Query(max_length=LONGEST_SEARCH)]

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(HERE)
async def list_conversations(
    visit: TheVisit,
    q: Text = "",
    status: Text = "",
    model: Text = "",
    saved: bool = False,
    failed: bool = False,
    sort: Sorting = "updated",
    after: Annotated[str | None, Query(max_length=1_000)] = None,
) -> Response:
    wanted = Wanted(text=q.strip(), status=status or None, model=model or None, saved=saved, failed=failed)
    # As they stand in the form, so that a link to the next page asks for the same.
    asked = {"q": q.strip(), "status": status, "model": model, "saved": saved or None, "failed": failed or None}
    asked["sort"] = None if sort == "updated" else sort
    try:
        found = await visit.find(search_conversations, wanted, sort, limit=PER_PAGE, after=after)
    except UnknownCursor:
        return redirected(address(HERE, **asked))
    return visit.page(
        "conversations.html",
        found=found,
        titles=await visit.find(find_titles, [each.id for each in found.data]),
        wanted=wanted,
        sort=sort,
        asked=asked,
        is_filtered=wanted != Wanted(),
        first_page=after is None,
        statuses=STATUSES,
        models=await visit.find(read_models_used, 100),
        sorted_by=SORTED_BY,
        here=HERE,
    )
