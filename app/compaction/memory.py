"""Data about conversations in the memory of this process: chunks for times when the store is unavailable, recall
indexes, and circuit breakers that pause useless and failing compactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from sys import getsizeof
from threading import Lock
from time import monotonic

from msgspec import Struct, field
from msgspec.structs import replace

from app.compaction.chunks import Compaction, Outcome, SummaryChunk
from app.compaction.recall import Recollection, with_recalled
from app.compaction.request import ChatRequest, ConversationKey
from app.compaction.verify import problems
from app.compaction.view import View
from app.conversation.reasons import Code, Reasons
from app.runtime.caches import Cache, Caches, Erased, HistoryKey, HistoryMap
from app.runtime.tasks import WorkerThreads

CHUNK_BYTES = 2_000
"""Estimated bytes of a chunk without its texts."""
SECONDS = 900.0
"""Maximum age of cached chunks in seconds. Another process may erase the chunks from the store in this time."""
_Key = tuple[ConversationKey, str]


class _Remembered(Struct, frozen=True):
    chunks: tuple[SummaryChunk, ...]
    until: float
    """Expiry time by the cache's clock."""


class ChunkMemory:
    """Cache of chunks by conversation and series. Each read of the store replaces the entry, so that edited and erased
    chunks disappear."""

    def __init__(self, caches: Caches, clock: Callable[[], float] = monotonic) -> None:
        self._chunks: Cache[_Key, _Remembered] = Cache(caches, "summaries", _held_bytes)
        self._clock = clock

    def keep(self, key: ConversationKey, series: str, chunks: Sequence[SummaryChunk]) -> None:
        """Replace the cached chunks by `chunks`, as read from the store."""
        if chunks:
            self._chunks.keep((key, series), _Remembered(tuple(chunks), self._clock() + SECONDS))
        else:
            self._chunks.pop((key, series))

    def add(self, key: ConversationKey, series: str, chunk: SummaryChunk) -> None:
        held = self._chunks.get((key, series))
        self.keep(key, series, (*(held.chunks if held else ()), chunk))

    def chunks_in(self, key: ConversationKey, series: str, chain: Collection[bytes]) -> list[SummaryChunk]:
        held, digests = self._chunks.use((key, series)), frozenset(chain)
        if held is None or held.until <= self._clock():
            return []
        return [chunk for chunk in held.chunks if {chunk.from_digest, chunk.through_digest} <= digests]

    def forget(self, erased: Erased) -> None:
        """Forget an erased conversation, and all conversations that use its chunks."""

        def is_gone(key: _Key, held: _Remembered) -> bool:
            tenant, conversation_id = key[0]
            ids = {conversation_id, *(chunk.conversation_id for chunk in held.chunks)}
            return any(erased.covers(tenant, id_) for id_ in ids)

        self._chunks.drop(is_gone)

    def forget_chunks(self, tenant: str, ids: Collection[str]) -> None:
        """Forget all conversations of the tenant that use one of these edited or deleted chunks. Other processes learn
        of the change when they next read the conversation."""
        gone = set(ids)
        self._chunks.drop(lambda key, held: key[0][0] == tenant and not gone.isdisjoint(c.id for c in held.chunks))


def _held_bytes(_: _Key, held: _Remembered) -> int:
    said = (words.text for chunk in held.chunks for words in chunk.user_words)
    texts = (*said, *(text for chunk in held.chunks for text in (chunk.text, *chunk.values, *chunk.children)))
    return CHUNK_BYTES * len(held.chunks) + sum(map(getsizeof, texts))


class _Held(Struct, frozen=True):
    recollection: Recollection
    size: int = 0
    """Estimated bytes after the last search. A thread computes this number only under the lock, because another thread
    may extend the index."""
    lock: Lock = field(default_factory=Lock)
    """Lock that allows one search at a time."""


class RecallIndexCache:
    def __init__(self, work: WorkerThreads, caches: Caches) -> None:
        self._work = work
        self._held: Cache[tuple[ConversationKey, str], _Held] = Cache(caches, "recall", lambda _, held: held.size)
        """Indexes by conversation and model, because token counts differ between models. Rebuilding an evicted index
        takes seconds for a million tokens."""

    async def recalled(self, request: ChatRequest, view: View) -> View:
        """Return the view with quotations from omitted messages that match the current message."""
        key = request.conversation_key, request.model
        known = self._held.use(key)
        found, held = await self._work.do(request.tenant, lambda: _look(request, view, known))
        self._held.keep(key, held)
        return found

    def forget(self, erased: Erased) -> None:
        self._held.drop(lambda key, _: erased.covers(*key[0]))


def _look(request: ChatRequest, view: View, known: _Held | None) -> tuple[View, _Held]:
    conversation, budget = request.conversation, request.budget
    with known.lock if known else nullcontext():
        held = known if known and known.recollection.is_of(conversation) else _Held(Recollection(conversation))
        found = with_recalled(conversation, view, held.recollection, budget, request.cost)
        held = replace(held, size=held.recollection.size)
    wrong = problems(conversation, found, budget.limit, alternates=request.policy.alternates)
    return view if wrong else found, held


LEAST_GAIN = 0.10
"""Minimum share of the request that a useful compaction frees."""
VAIN_PASSES = 2
"""Number of consecutive useless compactions after which a history is blocked."""
LEAST_GROWTH = 0.10
"""Minimum change of a history, as a share of the room, between two compactions that are not too close."""
CLOSE_PASSES = 3
"""Number of consecutive compactions, each too close to the previous one, after which a history is blocked."""
RESTING_GROWTH = 0.20
"""Minimum change of a blocked history, as a share of the room, after which it is no longer blocked."""


class _Passes(Struct, frozen=True):
    at: int
    """Size of the history at the last compaction, in tokens."""
    vain: int
    """Number of consecutive compactions that freed less than `LEAST_GAIN`."""
    close: int
    """Number of consecutive compactions with less than `LEAST_GROWTH` between them."""


class HistoryBreaker:
    """Circuit breaker for histories for which compactions are useless or too frequent.

    A block ends when the client's own history has grown or shrunk enough, not after a time.
    """

    def __init__(self) -> None:
        self._passes: HistoryMap[_Passes] = HistoryMap()

    def blocks(self, history: HistoryKey, tokens: int, room: int) -> Code | None:
        passes = self._passes.find(history)
        if passes is None or abs(tokens - passes.at) >= RESTING_GROWTH * room:
            return None
        if passes.vain >= VAIN_PASSES:
            return Code.COMPACTION_INEFFECTIVE
        return Code.COMPACTION_TOO_FREQUENT if passes.close >= CLOSE_PASSES else None

    def finished(self, history: HistoryKey, tokens: int, before: int, after: int, room: int) -> None:
        """Record a complete compaction, which changed a request's view from `before` to `after` tokens. `tokens`: size
        of the client's own history."""
        last = self._passes.find(history)
        vain = before - after < LEAST_GAIN * before
        close = last is not None and abs(tokens - last.at) < LEAST_GROWTH * room
        self._passes.keep(
            history,
            _Passes(
                at=tokens,
                vain=(last.vain if last else 0) + 1 if vain else 0,
                close=(last.close if last else 0) + 1 if close else 1,
            ),
        )


FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 300.0


class _Setback(Struct, frozen=True):
    pause: float
    """Length of the pause in seconds."""
    until: float
    """End of the pause by the clock of `CompactionBackoff`."""
    why: Reasons


class CompactionBackoff:
    """Backoff for each compaction: a pause after a failure, which each further failure doubles, up to five minutes."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._latest: HistoryMap[_Setback] = HistoryMap()

    def pauses(self, what: HistoryKey) -> Reasons | None:
        """Return the reason of the last failure while the compaction pauses; otherwise None."""
        latest = self._latest.find(what)
        return latest.why if latest is not None and self._clock() < latest.until else None

    def failed_last(self, what: HistoryKey) -> bool:
        return self._latest.find(what) is not None

    def learn(self, what: HistoryKey, compaction: Compaction) -> None:
        """Record a compaction with the outcome `MADE` or `FAILED`. Ignore other outcomes, such as a lost lease."""
        if compaction.outcome is Outcome.MADE:
            self._latest.forget(what)
        elif compaction.outcome is Outcome.FAILED:
            latest = self._latest.find(what)
            pause = min(2 * latest.pause, LONGEST_PAUSE_SECONDS) if latest else FIRST_PAUSE_SECONDS
            self._latest.keep(what, _Setback(pause, self._clock() + pause, compaction.why))
