"""Steno without its protections, for the control arm: `python -m tests.chaos.unprotected serve ...`.

No lease and no fence: whoever wants a summary makes it, and whoever made one may store it. And chunks are read as one
would first think of it: a conversation's own, by the positions they were made for, in whatever history asks for them.
That this breaks under chaos shows that the checker can tell, and what the protections are for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Any

from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.commands import cli
from app.compaction import compactor, leased
from app.compaction.compactor import Compactor
from app.compaction.request import ChatRequest
from app.core.stages.ladder import Decision
from app.core.view.chunks import ChunkRange, SummaryChunk
from app.store import chunks, lease
from app.store.tables import summary_chunks

_conversation: ContextVar[str] = ContextVar("conversation")

_decide = Compactor.decide


async def _decide_knowing_the_name(self: Compactor, request: ChatRequest, *arguments: Any) -> Decision:
    _conversation.set(request.conversation_id)
    return await _decide(self, request, *arguments)


async def _granted(
    _: AsyncConnection,
    tenant: str,
    conversation_id: str,
    wanted: ChunkRange,
    chain: Collection[bytes],  # noqa: ARG001 - as the one it stands for
    holder: str,
    ttl_ms: int,  # noqa: ARG001
    most: int | None,  # noqa: ARG001
) -> lease.Lease:
    return lease.Lease(tenant, conversation_id, wanted, holder, epoch=1)


async def _nobody(*_: Any) -> None:
    return None


async def _always(*_: Any) -> bool:
    return True


async def _chunks_by_position(
    connection: AsyncConnection, tenant: str, series: str, chain: Sequence[bytes]
) -> list[SummaryChunk]:
    """The conversation's chunks as if they had been made from this history."""
    own = (
        summary_chunks.c.tenant == tenant,
        summary_chunks.c.series == series,
        summary_chunks.c.conversation_id == _conversation.get(),
    )
    rows = await connection.execute(select(summary_chunks).where(*own))
    found = map(chunks._read_chunk, rows)
    return [
        replace(chunk, from_digest=chain[chunk.first_index], through_digest=chain[chunk.last_index + 1])
        for chunk in found
        if chunk.last_index + 1 < len(chain)
    ]


REPLACED: Sequence[tuple[object, str, object]] = (
    (Compactor, "decide", _decide_knowing_the_name),
    (lease, "acquire_lease", _granted),
    (lease, "find_live", _nobody),
    (lease, "renew_lease", _always),
    (lease, "release_lease", _nobody),
    (chunks, "fence_holds", _always),
    # Where it is called: who imports a query has its own name for it.
    (compactor, "chunks_in", _chunks_by_position),
    (leased, "chunks_in", _chunks_by_position),
)


if __name__ == "__main__":
    for owner, name, stand_in in REPLACED:
        getattr(owner, name)  # What is not there any more would protect on unseen.
        setattr(owner, name, stand_in)
    cli.main()
