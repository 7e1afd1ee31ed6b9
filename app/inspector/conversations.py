"""`/ui/conversations`: the list, and each conversation's pages with messages, latest payload and summaries.

Forms start the actions, which call the functions of the REST interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from msgspec import Struct
from msgspec.structs import replace

from app.api import compactions, conversations
from app.api.dependencies import ConversationId
from app.compaction.decision import Status
from app.conversation.reasons import Code
from app.errors import StenoError, SummaryNotFound
from app.formats.paths import BY_NAME, key_headers
from app.inspector.charts import ChartedRequest, chart_of, requests_of, window_shares
from app.inspector.pages import HEADERS, address, currency_of, segment
from app.inspector.payload import (
    Said,
    entry_of,
    explained,
    folded,
    meanings,
    message_count,
    places_of,
    said_in,
    stretches_of,
)
from app.inspector.sessions import PageRoute, TheForm, TheVisit, Visit, no_such_page, redirected
from app.store import StoredConversation, StoredHistory, UsagePage, Wanted
from app.store.calibrations import read_models_used
from app.store.chunks import chunks_named, find_summary, read_summaries
from app.store.conversations import find_conversation, find_pins, search_conversations
from app.store.histories import find_titles
from app.store.tables import Paging
from app.store.usage import read_records

CHARTED = 200
"""Maximum number of requests in the chart."""
CALLS = 3 * CHARTED
"""Maximum number of ledger records that are read for the chart."""
SUMMARIES = 20
LISTED = 50
"""Conversations on a page of the list."""
STATUSES = get_args(Status)
HERE = "/ui/conversations"
PER_PAGE = 50
"""Messages on a page of the timeline, and entries on a page of the payload."""
DONE: Mapping[str, str] = {
    "pinned": "The message is pinned: each later payload has it word for word, even if a summary replaces its turn.",
    "compacted": "The summaries are stored. Steno uses them as soon as a request needs them.",
    "edited": "The text is saved. Steno uses it from the next request on.",
    "deleted": "The summary is deleted. Later requests contain its messages again, or a new summary.",
    "unpinned": "The message is not pinned any more. If a summary replaces it, later payloads omit its copy.",
}
"""Messages about a successful action, by the action's name. The page shows one after the redirect."""

Text = Annotated[str, Query(max_length=200)]

router = APIRouter(route_class=PageRoute, include_in_schema=False, prefix=HERE)


@router.get("")
async def list_conversations(
    visit: TheVisit,
    q: Text = "",
    status: Text = "",
    model: Text = "",
    after: Annotated[str | None, Query(max_length=1_000)] = None,
) -> Response:
    wanted = Wanted(text=q.strip(), status=status or None, model=model or None)
    asked = {"q": wanted.text, "status": status, "model": model}  # Values of the form, for the link to the next page.
    found = await visit.find(search_conversations, wanted, Paging(LISTED, after, "desc"))
    return visit.page(
        "conversations.html",
        found=found,
        titles=await visit.find(find_titles, [each.id for each in found.data]),
        wanted=wanted,
        asked=asked,
        is_filtered=wanted != Wanted(),
        first_page=after is None,
        statuses=STATUSES,
        models=await visit.find(read_models_used, 100),
        here=HERE,
        others_exist=await visit.others_exist(),
    )


async def _conversation(visit: TheVisit, conversation_id: ConversationId) -> StoredConversation:
    conversation = await visit.find(find_conversation, conversation_id)
    if conversation is None:
        raise no_such_page()
    return conversation


TheConversation = Annotated[StoredConversation, Depends(_conversation)]
"""Conversation of the shown tenant. A conversation of another tenant is answered with 404."""
Number = Annotated[int | None, Query(ge=1)]


class Screenful(Struct, frozen=True):
    """Range of messages or entries on one page."""

    first: int
    last: int
    count: int


def page_at(number: int | None, count: int) -> Screenful:
    """Return the range of the page with the entry `number`, counted from 1; the last page if `number` is None."""
    at = count if number is None else min(number, count)
    first = max(0, at - 1) // PER_PAGE * PER_PAGE
    return Screenful(first, min(first + PER_PAGE, count) - 1, count)


@router.get("/{conversation_id}")
async def show_conversation(
    visit: TheVisit, conversation: TheConversation, at: Number = None, done: str = ""
) -> Response:
    """Show the conversation, with the page of the message `at`, counted from 1."""
    return await _page(visit, conversation, at=at, done=DONE.get(done))


async def _page(
    visit: Visit,
    conversation: StoredConversation,
    *,
    at: int | None = None,
    done: str | None = None,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    """Return the page of a conversation. `done`, `problem`: result of an action."""
    parts, id_ = conversation.parts, conversation.id
    ledger = await visit.find(read_records, id_, Paging(CALLS, order="desc"))
    summaries = await visit.find(read_summaries, id_, Paging(SUMMARIES, order="desc"))
    requests = requests_of(ledger.page.data, ledger.sums.messages.requests, CHARTED)
    latest = requests[-1] if requests else None
    provider = visit.services.providers.of(conversation.model, None, visit.tenant)
    paging, stretches = page_at(at, message_count(parts)), stretches_of(parts)
    return visit.page(
        "conversation.html",
        status=status,
        conversation=conversation,
        title=(await visit.find(find_titles, [id_])).get(id_),
        done=done,
        problem=problem,
        usage=ledger.sums,
        currency=currency_of(ledger.sums.messages, ledger.sums.summaries),
        is_simulated=visit.is_simulated([provider]),
        requests=requests,
        chart=chart_of(requests),
        shares=window_shares(parts, conversation.window, latest.decided.limit or None if latest else None),
        **_why(conversation, latest),
        trigger=latest.decided.trigger if latest else None,
        # Sort by messages, because the summaries of one compaction are stored in any order.
        summaries=replace(summaries, data=sorted(summaries.data, key=lambda each: (-each.last_index, -each.level))),
        costs=_by_summary(ledger),
        keeps_messages=visit.services.keeps_messages,
        # True if a compaction from this page needs a key from the visitor.
        needs_key=provider.settings.api_key is None,
        at=at,
        paging=paging,
        stretches=stretches,
        shown=folded([each for each in stretches if paging.first <= each.last and each.first <= paging.last]),
        rows=await _rows(visit, conversation, paging),
        pinned={pin.position for pin in await visit.find(find_pins, id_)},
    )


def _why(conversation: StoredConversation, latest: ChartedRequest | None) -> dict[str, Any]:
    """Return the template's variables about the latest stored plan. `is_latest` is False if the plan is of an earlier
    request, because later requests needed no plan."""
    plan = msgspec.json.decode(conversation.plan, type=dict[str, Any]) if conversation.plan else None
    is_latest = plan is not None and latest is not None and plan["request_id"] == latest.record.request_id
    reasons = (step["reason"] for step in (plan or {"steps": ()})["steps"])
    return {
        "steps": explained(plan, conversation.tokens_before),
        "plan": plan,
        "is_latest": is_latest,
        "meanings": meanings(conversation.reason, *reasons),
    }


async def _rows(visit: Visit, conversation: StoredConversation, paging: Screenful) -> dict[int, tuple[Said, int]]:
    """Return the stored messages of one page and their tokens, by index. Leading instructions have negative indexes."""
    history = await _latest_history(visit, conversation)
    first = paging.first or min((message.index for message in history.messages), default=0) if history else 0
    found = history.messages if history else ()
    return {each.index: (said_in(each), each.tokens) for each in found if first <= each.index <= paging.last}


def _by_summary(ledger: UsagePage) -> dict[str, Any]:
    """Return the record of each summary's call, by summary id, from the latest ledger records."""
    made = ((stored.record.made, stored.record) for stored in ledger.page.data)
    return {by.summary_id: record for by, record in made if by is not None and by.summary_id is not None}


@router.get("/{conversation_id}/payload")
async def show_payload(visit: TheVisit, conversation: TheConversation, at: Annotated[int, Query(ge=1)] = 1) -> Response:
    """Show the page of the latest payload with the entry `at`, counted from 1."""
    history = await _latest_history(visit, conversation)
    stored = {message.index: message for message in history.messages} if history else {}
    places = list(places_of(conversation.parts, stored))
    paging = page_at(at, len(places))
    shown = places[paging.first : paging.last + 1]
    named = [part["summary_id"] for part, _ in shown if "summary_id" in part]
    chunks = {chunk.id: chunk for chunk in await visit.services.store.request(chunks_named, visit.tenant, named)}
    return visit.page(
        "payload.html",
        conversation=conversation,
        entries=[entry_of(place, chunks) for place in shown],
        paging=paging,
        keeps_messages=visit.services.keeps_messages,
    )


async def _latest_history(visit: Visit, conversation: StoredConversation) -> StoredHistory | None:
    """Return the stored messages of the conversation's latest request; None if they are not stored."""
    if not visit.services.keeps_messages:
        return None
    history = await visit.services.store.history(visit.tenant, conversation.id)
    return history if history and history.is_latest else None


@router.get("/{conversation_id}/handoff.md")
async def read_handoff(visit: TheVisit, conversation: TheConversation) -> Response:
    answer = await conversations.read_handoff(visit.services, visit.tenant, conversation.id)
    answer.headers.update({**HEADERS, "content-disposition": 'attachment; filename="handoff.md"'})
    return answer


@router.get("/{conversation_id}/status")
async def show_status(visit: TheVisit, conversation_id: ConversationId) -> Response:
    """Return the time of the latest request. An open page polls this route."""
    found = await visit.find(find_conversation, conversation_id)
    if found is None:
        raise no_such_page()
    return Response(msgspec.json.encode({"updated": found.updated_at}), headers=HEADERS, media_type="application/json")


@router.get("/{conversation_id}/summaries/{summary_id}")
async def show_summary(visit: TheVisit, conversation: TheConversation, summary_id: str, done: str = "") -> Response:
    return await _summary_page(visit, conversation, summary_id, done=DONE.get(done))


async def _summary_page(
    visit: Visit,
    conversation: StoredConversation,
    summary_id: str,
    *,
    done: str | None = None,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    chunk = await visit.find(find_summary, conversation.id, summary_id)
    if chunk is None:
        raise no_such_page()
    history = await visit.services.store.history(visit.tenant, conversation.id) if not chunk.level else None
    is_source = history is not None and chunk.through_digest in history.digests
    kept = history.messages if history and is_source else ()
    kept = [message for message in kept if chunk.first_index <= message.index <= chunk.last_index]
    ledger = await visit.find(read_records, conversation.id, Paging(CALLS, order="desc"))
    return visit.page(
        "summary.html",
        status=status,
        conversation=conversation,
        chunk=chunk,
        carried=[chunk.first_index + offset for offset in chunk.carried],
        children=await visit.services.store.request(chunks_named, visit.tenant, chunk.children),
        sources=[(message.index, said_in(message)) for message in kept],
        call=_by_summary(ledger).get(chunk.id),
        currency=currency_of(ledger.sums.messages, ledger.sums.summaries),
        keeps_messages=visit.services.keeps_messages,
        done=done,
        problem=problem,
    )


@router.post("/{conversation_id}/pins/{number}")
async def pin_message(
    visit: TheVisit, conversation: TheConversation, form: TheForm, number: Annotated[int, Path(ge=1, le=10**9)]
) -> Response:
    """Pin or unpin the message `number`, counted from 1."""
    services, tenant, id_ = visit.services, visit.tenant, conversation.id
    index, wanted = number - 1, form.get("pinned") != "no"
    held = {pin.position for pin in await visit.find(find_pins, id_)}
    asked = held | {index} if wanted else held - {index}
    try:
        await conversations.replace_pins(services, tenant, id_, msgspec.json.encode({"indexes": sorted(asked)}))
    except StenoError as error:
        return await _page(visit, conversation, at=number, problem=error.message, status=error.status)
    return _back(conversation, "pinned" if wanted else "unpinned", f"m{number}", at=number)


@router.post("/{conversation_id}/compact")
async def compact_now(request: Request, visit: TheVisit, conversation: TheConversation, form: TheForm) -> Response:
    """Compact the stored messages, as `POST /context/conversations/{id}/compact` without messages does. The form's key
    is used for this request only."""
    services, id_ = visit.services, conversation.id
    asked: dict[str, Any] = {}
    if focus := form.get("focus", "").strip():
        asked["context"] = {"instructions": focus}
    headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
    if key := form.get("key", "").strip():
        history = await services.store.history(visit.tenant, id_)
        format_ = BY_NAME[history.format] if history and history.format in BY_NAME else services.format
        headers += key_headers(key.encode(), frozenset({format_.name}), format_.path)
    asking = Request({**request.scope, "headers": headers}, request.receive)
    try:
        answer = await compactions.compact_conversation(asking, services, visit.tenant, id_, msgspec.json.encode(asked))
    except StenoError as error:
        return await _page(visit, conversation, problem=error.message, status=error.status)
    result: dict[str, Any] = msgspec.json.decode(bytes(answer.body))
    if result["summaries"]:
        return _back(conversation, "compacted", "summaries")
    reason = result["context"]["reason"] or str(Code.NOTHING_TO_SUMMARISE)
    why = "; ".join(meaning for _, meaning in meanings(reason)) or reason
    return await _page(visit, conversation, problem=f"No summary was made: {why}.", status=409)


@router.post("/{conversation_id}/summaries/{summary_id}")
async def edit_summary(visit: TheVisit, conversation: TheConversation, summary_id: str, form: TheForm) -> Response:
    """Replace a summary's text, or delete the summary if the form has the field `delete`."""
    services, tenant, id_ = visit.services, visit.tenant, conversation.id
    try:
        if "delete" in form:
            await conversations.delete_summary(services, tenant, id_, summary_id)
            return _back(conversation, "deleted", "summaries")
        # Browsers send line ends of forms as CR LF.
        body = msgspec.json.encode({"text": form.get("text", "").replace("\r\n", "\n")})
        edited = await conversations.edit_summary(services, tenant, id_, summary_id, body)
    except SummaryNotFound as error:
        raise no_such_page() from error
    except StenoError as error:
        return await _summary_page(visit, conversation, summary_id, problem=error.message, status=error.status)
    return redirected(f"/ui/conversations/{segment(id_)}/summaries/{edited.id}?done=edited")


@router.get("/{conversation_id}/delete")
async def ask_about_deletion(visit: TheVisit, conversation: TheConversation) -> Response:
    return visit.page("delete.html", conversation=conversation, keeps_messages=visit.services.keeps_messages)


@router.post("/{conversation_id}/delete")
async def delete_conversation(visit: TheVisit, conversation: TheConversation, _: TheForm) -> Response:
    await conversations.delete_conversation(visit.services, visit.tenant, conversation.id)
    return redirected("/ui/conversations")


def _back(conversation: StoredConversation, done: str, place: str, **parameters: object) -> Response:
    path = f"/ui/conversations/{segment(conversation.id)}"
    return redirected(f"{address(path, done=done, **parameters)}#{place}")
