"""Short ways to write chunks, ranges, leases and sightings whose details do not matter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from inspect import isawaitable
from typing import Any, Protocol

from msgspec.structs import replace

from app.compaction.chunks import ChunkRange, SummaryChunk
from app.conversation.identity import Identity
from app.conversation.messages import Kind, Message
from app.store import Claim, ConversationSeen, LatestHistory, Lease, Store

TENANT = "tenant-a"
STRANGER = "tenant-b"
SERIES = "default"
IDENTITY = Identity(b"a secret for the integration tests")


class OpenStore(Protocol):
    """The fixture `open_store`: a store that is closed when the test ends."""

    def __call__(self, url: str, timeout: float = 5.0, *, lease_ttl: float = 15.0) -> Store: ...


StartStore = Callable[..., Awaitable[Store]]
"""The fixture `start_store`: the same, started."""
Replicas = tuple[Store, Store]
"""The fixture `replicas`: two started stores on one database, on each of the two databases."""


def unprepared(url: str) -> str:
    """The URL of a PostgreSQL, for a store that prepares no statements."""
    return f"{url}{'&' if '?' in url else '?'}prepared_statement_cache_size=0"


async def until(condition: Callable[[], Any]) -> None:
    """Waits for it, or fails. It may be a coroutine function."""
    async with asyncio.timeout(60):
        while not (await found if isawaitable(found := condition()) else found):  # noqa: ASYNC110 - it may have no event
            await asyncio.sleep(0.02)


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def chain(length: int) -> list[bytes]:
    return [digest(number) for number in range(length)]


def span(start: int, end: int, series: str = SERIES) -> ChunkRange:
    return ChunkRange(series, digest(start), digest(end))


def chunk(start: int, end: int, **changes: Any) -> SummaryChunk:
    made = SummaryChunk(
        id=f"chunk-{start}-{end}",
        conversation_id="c1",
        series=SERIES,
        level=0,
        from_digest=digest(start),
        through_digest=digest(end),
        last_message_digest=digest(1000 + end),
        first_index=start,
        last_index=end - 1,
        through_turn=end,
        carried=(0, 2),
        text="They met in May.",
        tokens=6,
        model="gpt-4o-mini",
        prompt_version="p1",
        history_length=end + 7,
    )
    return replace(made, **changes)


def seen(conversation_id: str = "c1", *, tenant: str = TENANT, **changes: Any) -> ConversationSeen:
    first = ConversationSeen(
        tenant=tenant,
        conversation_id=conversation_id,
        model="gpt-4o",
        turns=1,
        messages=2,
        status="full",
        tokens_before=100,
        tokens_after=100,
        window=8192,
        reason=None,
        forked_from=None,
        heads=(),
        coverage="[]",
        summaries=(),
    )
    return replace(first, **changes)


async def take(
    store: Store, start: int, end: int, *, tenant: str = TENANT, conversation_id: str = "c1", holder: str = "h1"
) -> Lease:
    """A lease that must be granted."""
    granted = await store.take_lease(Claim(tenant, conversation_id, span(start, end), chain(100)), holder)
    assert isinstance(granted, Lease)
    return granted


async def put(store: Store, *chunks: SummaryChunk, tenant: str = TENANT) -> Sequence[SummaryChunk]:
    """Store chunks under a lease of the first one's range."""
    first = chunks[0]
    lease = await store.take_lease(
        Claim(
            tenant, first.conversation_id, ChunkRange(first.series, first.from_digest, first.through_digest), chain(100)
        ),
        "maker",
    )
    assert isinstance(lease, Lease)
    stored = await store.keep_chunks(lease, chunks)
    assert stored is not None
    await store.release_lease(lease)
    return stored


def said(text: str, kind: Kind = Kind.USER) -> Message:
    """A message; equal texts have equal digests."""
    raw = f'{{"content": "{text}"}}'.encode()
    return Message(kind, kind.name.lower(), (text,), raw=raw, digest=blake2b(raw, digest_size=16).digest())


def history_of(
    *texts: str, tenant: str = TENANT, conversation_id: str = "c1", leading: Sequence[str] = ()
) -> LatestHistory:
    """A whole history of such texts, alternately the user's and the assistant's."""
    kinds = (Kind.USER, Kind.ASSISTANT)
    messages = [said(text, kinds[number % 2]) for number, text in enumerate(texts)]
    return LatestHistory(
        tenant=tenant,
        conversation_id=conversation_id,
        format="chat_completions",
        leading=[said(text, Kind.INSTRUCTIONS) for text in leading],
        messages=messages,
        alone=bytes,
        digests=IDENTITY.chain(tenant, (message.digest for message in messages)).digests[1:],
        tokens=[10] * (len(leading) + len(messages)),
    )


def show(
    store: Store, *texts: str, tenant: str = TENANT, conversation_id: str = "c1", leading: Sequence[str] = ()
) -> None:
    """A request with this history is recorded, as the proxy records one."""
    shown = history_of(*texts, tenant=tenant, conversation_id=conversation_id, leading=leading)
    heads = ((shown.digests[-1], (len(texts) + 1) // 2),)
    store.writes.record(seen(conversation_id, tenant=tenant, messages=len(texts), heads=heads))
    store.writes.record_history(shown)
