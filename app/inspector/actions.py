"""Actions on a page of a conversation: pin, compact, edit, delete. Each is a form, and what REST does too."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.api import compact, conversations, summaries
from app.conversation.reasons import Code
from app.errors import StenoError, SummaryNotFound
from app.inspector.conversation import TheConversation, formats_of, page_of, summary_page
from app.inspector.pages import address, segment
from app.inspector.payload import key_header
from app.inspector.visits import PageRoute, TheForm, TheVisit, no_such_page, redirected
from app.inspector.why import meanings
from app.store import StoredConversation
from app.store.conversations import find_pins

LONGEST_FOCUS = 2_000
"""Characters of what a compaction is asked to look after."""

router = APIRouter(route_class=PageRoute, include_in_schema=False, prefix="/ui/conversations/{conversation_id}")


@router.post("/pins")
async def pin_message(visit: TheVisit, conversation: TheConversation, form: TheForm) -> Response:
    """Pin one message, beside those that are pinned already."""
    services, tenant, id_ = visit.services, visit.tenant, conversation.id
    index, wanted = _index(form.get("message", "")), form.get("pinned") != "no"
    held = {pin.position for pin in await visit.find(find_pins, id_)}
    asked = held | {index} if wanted else held - {index}
    try:
        await conversations.replace_pins(services, tenant, id_, msgspec.json.encode({"indexes": sorted(asked)}))
    except StenoError as error:
        return await page_of(visit, conversation, at=index, problem=error.message, status=error.status)
    return _back(conversation, "pinned" if wanted else "unpinned", f"m{index + 1}", at=index + 1)


@router.post("/compact")
async def compact_now(request: Request, visit: TheVisit, conversation: TheConversation, form: TheForm) -> Response:
    """Compact as `POST /context/conversations/{id}/compact` without messages does, which takes those that are stored.
    The key is for this one request."""
    services, id_ = visit.services, conversation.id
    asked: dict[str, Any] = {}
    if focus := form.get("focus", "").strip()[:LONGEST_FOCUS]:
        asked["context"] = {"instructions": focus}
    if through := form.get("through", ""):
        asked["through"] = _index(through)
    headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
    if key := form.get("key", "").strip():
        history = await services.store.history(visit.tenant, id_)
        name, before, _ = key_header(formats_of(visit).get(history.format if history else "", services.format))
        headers.append((name, before + key.encode()))
    asking = Request({**request.scope, "headers": headers}, request.receive)
    try:
        answer = await compact.compact_conversation(asking, services, visit.tenant, id_, msgspec.json.encode(asked))
    except StenoError as error:
        return await page_of(visit, conversation, problem=error.message, status=error.status)
    result: dict[str, Any] = msgspec.json.decode(bytes(answer.body))
    if result["summaries"]:
        return _back(conversation, "compacted", "summaries")
    reason = result["context"]["reason"] or str(Code.NOTHING_TO_SUMMARISE)
    why = "; ".join(meaning for _, meaning in meanings(reason)) or reason
    return await page_of(visit, conversation, problem=f"No summary was made: {why}.", status=409)


@router.post("/summaries/{summary_id}")
async def edit_summary(visit: TheVisit, conversation: TheConversation, summary_id: str, form: TheForm) -> Response:
    """Replace a summary's text, or delete the summary where the form says so."""
    services, tenant, id_ = visit.services, visit.tenant, conversation.id
    try:
        if "delete" in form:
            await summaries.delete_summary(services, tenant, id_, summary_id)
            return _back(conversation, "deleted", "summaries")
        # A form sends lines with a carriage return.
        text = form.get("text", "").replace("\r\n", "\n")
        edited = await summaries.edit_summary(services, tenant, id_, summary_id, msgspec.json.encode({"text": text}))
    except SummaryNotFound as error:
        raise no_such_page() from error
    except StenoError as error:
        return await summary_page(visit, conversation, summary_id, problem=error.message, status=error.status)
    return redirected(f"/ui/conversations/{segment(id_)}/summaries/{edited.id}?done=edited")


@router.get("/delete")
async def ask_about_deletion(visit: TheVisit, conversation: TheConversation) -> Response:
    return visit.page("delete.html", conversation=conversation, keeps_messages=visit.services.keeps_messages)


@router.post("/delete")
async def delete_conversation(visit: TheVisit, conversation: TheConversation, _: TheForm) -> Response:
    await conversations.delete_conversation(visit.services, visit.tenant, conversation.id)
    return redirected("/ui/conversations")


def _index(number: str) -> int:
    """Index of a message by its number. Raises `Trouble` for what no form of ours holds."""
    if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number)):
        raise no_such_page()
    return int(number) - 1


def _back(conversation: StoredConversation, done: str, place: str, **parameters: object) -> Response:
    path = f"/ui/conversations/{segment(conversation.id)}"
    return redirected(f"{address(path, done=done, **parameters)}#{place}")
