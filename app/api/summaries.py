"""REST routes of summaries: list, read, edit, delete and search."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace
from pydantic import BaseModel, Field

from app.api.dependencies import (
    After,
    Body,
    ConversationId,
    Limit,
    Listing,
    OldestFirst,
    Tenant,
    TheServices,
    decoded,
    known,
    listing,
    made_of,
    request_body,
)
from app.compaction.chunk_builder import corrected
from app.compaction.chunks import SummaryChunk, UserWords
from app.conversation.secrets import without_secrets
from app.errors import InvalidRequest, SummaryNotFound
from app.proxy.exchange import Services
from app.store.chunks import delete_chunk, find_summary, read_summaries, replace_chunk, search_summaries
from app.store.tables import Paging

LONGEST_QUERY = 200
"""Maximum characters of a search text."""
LONGEST_BODY = 200_000
"""Maximum bytes of a body; all summaries are shorter."""
MOST_LINES = 1_000
WHAT_TO_SEND = 'Send {"text": "..."}, a new text; "values" are lines, "user_words" {"turn": 3, "text": "..."}.'

Text = Annotated[str, Query(description="Part of a text, in upper or lower case.")]


class SummaryOut(BaseModel):
    id: str
    object: Literal["summary"] = "summary"
    conversation_id: str
    text: str
    summarized_through_turn: int
    first_index: int = Field(description="First message it stands for, counted after the instructions, from 0.")
    last_index: int = Field(description="Last message it stands for, inclusive.")
    carried: list[int] = Field(description="Messages of that range that stay verbatim after the summary.")
    level: int = Field(description="0: made from messages; more: a fold of summaries.")
    children: list[str] = Field(description="Summaries a fold stands for.")
    values: list[str] = Field(description="Exact values of those messages, copied by code: they stand after the text.")
    values_kept: float | None = Field(description="Share of the values that the text holds, too; null without any.")
    user_words: list[dict[str, int | str | None]] = Field(
        description="The user's words in those messages: `turn` and `text`."
    )
    user_words_tokens: int
    token_count: int
    model: str
    prompt_version: str = Field(description="`edited` where a person wrote the text.")
    created_at: datetime | None


class SummaryEdit(Struct):
    text: str | None = None
    values: Annotated[list[str], Meta(max_length=MOST_LINES)] | None = None
    user_words: Annotated[list[UserWords], Meta(max_length=MOST_LINES)] | None = None


class SummariesDeletedOut(BaseModel):
    conversation_id: str
    object: Literal["summaries.deleted"] = "summaries.deleted"
    data: list[str] = Field(description="Ids of the summary and of every fold that stood for it.")


router = APIRouter(prefix="/context", tags=["summaries"])


@router.get("/conversations/{conversation_id}/summaries")
async def list_summaries(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, paging: OldestFirst
) -> Listing[SummaryOut]:
    """The summaries that a conversation made or uses, oldest first."""
    await known(services, tenant, conversation_id)
    found = await services.store.rest(read_summaries, tenant, conversation_id, paging)
    return listing(found, summary_out)


@router.get("/conversations/{conversation_id}/summaries/{summary_id}")
async def read_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str
) -> SummaryOut:
    return summary_out(await found_summary(services, tenant, conversation_id, summary_id))


async def found_summary(services: Services, tenant: str, conversation_id: str, summary_id: str) -> SummaryChunk:
    """Return a stored summary of the tenant. Raises `SummaryNotFound`."""
    chunk = await services.store.rest(find_summary, tenant, conversation_id, summary_id)
    if chunk is None:
        raise no_summary(conversation_id, summary_id)
    return chunk


def no_summary(conversation_id: str, summary_id: str) -> SummaryNotFound:
    return SummaryNotFound(f"The conversation {conversation_id!r} has no summary {summary_id!r}.")


def summary_out(chunk: SummaryChunk) -> SummaryOut:
    return made_of(
        SummaryOut,
        chunk,
        summarized_through_turn=chunk.through_turn,
        user_words=[asdict(said) for said in chunk.user_words],
        carried=[chunk.first_index + offset for offset in chunk.carried],
        token_count=chunk.tokens,
    )


@router.patch(
    "/conversations/{conversation_id}/summaries/{summary_id}", openapi_extra=request_body(SummaryEdit, required=True)
)
async def edit_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str, body: Body
) -> SummaryOut:
    """Replaces the summary: a new one with this text stands for its messages, under an id of its own, from the next
    request on. Every fold that stood for it is deleted."""
    members = _read_edit(body)
    old = await found_summary(services, tenant, conversation_id, summary_id)
    conversation = await known(services, tenant, conversation_id)
    count, budget = services.model_limits.for_summaries(conversation.model, tenant, services.format)
    new = await services.work.do(tenant, lambda: corrected(old, conversation_id, count, **members))
    most = max(budget.summary, old.tokens)
    if new.tokens > most:
        shown, room = (round(budget.line.ratio * tokens) for tokens in (new.tokens, most))
        raise InvalidRequest(
            f"The summary would take about {shown} tokens with its values and the user's words; it may take {room}"
            " (summary.max_tokens, and a share of the model's window).",
            "text",
        )
    if new is old:
        return summary_out(old)
    stored = await services.store.rest_change(replace_chunk, tenant, old.id, new)
    services.compactor.forget_summaries(tenant, [old.id])
    if stored is None:
        raise no_summary(conversation_id, summary_id)
    return summary_out(stored)


@router.delete("/conversations/{conversation_id}/summaries/{summary_id}")
async def delete_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str
) -> SummariesDeletedOut:
    """Deletes the summary and every fold that stands for it: its messages are sent again, or summarised anew."""
    chunk = await found_summary(services, tenant, conversation_id, summary_id)
    deleted = await services.store.rest_change(delete_chunk, tenant, chunk.id)
    services.compactor.forget_summaries(tenant, [chunk.id])
    if not deleted:
        raise no_summary(conversation_id, summary_id)
    return SummariesDeletedOut(conversation_id=conversation_id, data=deleted)


def _read_edit(body: bytes) -> dict[str, Any]:
    """Read the new text, values and user's words of a summary, and remove secrets. Raises `InvalidRequest`."""
    edit = decoded(body, SummaryEdit, LONGEST_BODY, WHAT_TO_SEND)
    if not (given := {name: value for name, value in asdict(edit).items() if value is not None}):
        raise InvalidRequest(WHAT_TO_SEND, "text")
    if edit.text is not None and not edit.text.strip():
        raise InvalidRequest("The text is empty. To be rid of the summary, delete it.", "text")
    for name, lines in (("values", edit.values or []), ("user_words", [said.text for said in edit.user_words or []])):
        if any(not line.strip() or (name == "values" and len(line.splitlines()) > 1) for line in lines):
            raise InvalidRequest(f"{name} holds a text that is empty, or not one line.", name)
    clean: dict[str, Callable[[Any], Any]] = {
        "text": without_secrets,
        "values": lambda lines: [*map(without_secrets, lines)],
        "user_words": lambda words: [replace(said, text=without_secrets(said.text)) for said in words],
    }
    return {name: clean[name](value) for name, value in given.items()}


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
