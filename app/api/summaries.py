"""REST over the summaries of a conversation."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from msgspec.structs import asdict
from pydantic import BaseModel, Field

from app.api.dependencies import ConversationId, Listing, OldestFirst, Tenant, TheServices, known, listing, made_of
from app.compaction.chunks import SummaryChunk
from app.errors import SummaryNotFound
from app.proxy.services import Services
from app.store.chunks import find_summary, read_summaries


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
    user_words: list[dict[str, int | str | None]] = Field(description="What the user said there: `turn` and `text`.")
    user_words_tokens: int
    token_count: int
    model: str
    prompt_version: str = Field(description="`edited` where a person wrote the text.")
    created_at: datetime | None


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
    """Stored summary of the tenant. Raises `SummaryNotFound`."""
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
