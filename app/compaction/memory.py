"""Cached state of a process: chunks of each conversation for times without the store, recall indexes, and circuit
breakers for models, histories and compactions, which pause after failures but never for good."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import nullcontext
from sys import getsizeof
from threading import Lock
from time import monotonic

from msgspec import Struct, field
from msgspec.structs import replace

from app.compaction.chunks import Compaction, Outcome, SummaryChunk, was_refused
from app.compaction.recall import RecallPolicy, Recollection, with_recalled
from app.compaction.request import ChatRequest, ConversationKey
from app.compaction.verify import problems
from app.compaction.view import View
from app.conversation.reasons import Code, Reasons
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap, HistoryKey, HistoryMap
from app.runtime.caches import Cache, Caches, Erased
from app.runtime.tasks import Work
from app.runtime.tenant_facts import TenantFacts

CHUNK_BYTES = 2_000
"""Estimated bytes of a chunk without its texts."""
SECONDS = 900.0
"""Seconds for which the store's answer may be used: another process may erase these chunks meanwhile."""
_Key = tuple[ConversationKey, str]


class _Remembered(Struct, frozen=True):
    chunks: tuple[SummaryChunk, ...]
    until: float
    """Expiry, by the clock."""


class ChunkMemory:
    """Cached chunks by conversation and series. Each answer of the store replaces the previous one, so that edited or
    erased chunks disappear with the next read."""

    def __init__(self, caches: Caches, clock: Callable[[], float] = monotonic) -> None:
        self._chunks: Cache[_Key, _Remembered] = caches.cache("summaries", _held_bytes)
        self._clock = clock

    def keep(self, key: ConversationKey, series: str, chunks: Sequence[SummaryChunk]) -> None:
        """Replace the cached chunks by the store's answer."""
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
        """Forget an erased conversation, and all conversations that use chunks of it."""

        def is_gone(key: _Key, held: _Remembered) -> bool:
            tenant, conversation_id = key[0]
            ids = {conversation_id, *(chunk.conversation_id for chunk in held.chunks)}
            return any(erased.covers(tenant, id_) for id_ in ids)

        self._chunks.drop(is_gone)

    def forget_chunks(self, tenant: str, ids: Collection[str]) -> None:
        """Forget all conversations of the tenant that use one of these chunks, so that the store is read again."""
        gone = set(ids)
        self._chunks.drop(lambda key, held: key[0][0] == tenant and not gone.isdisjoint(c.id for c in held.chunks))


def _held_bytes(_: _Key, held: _Remembered) -> int:
    said = (words.text for chunk in held.chunks for words in chunk.user_words)
    texts = (*said, *(text for chunk in held.chunks for text in (chunk.text, *chunk.values, *chunk.children)))
    return CHUNK_BYTES * len(held.chunks) + sum(map(getsizeof, texts))


class _Held(Struct, frozen=True):
    recollection: Recollection
    size: int = 0
    """Estimated size after the last search. Computed under the lock, because another thread may be extending the
    index."""
    lock: Lock = field(default_factory=Lock)
    """Lock for concurrent requests of one conversation."""


class RecallIndexCache:
    def __init__(self, work: Work, caches: Caches) -> None:
        self._work = work
        self._held: Cache[tuple[ConversationKey, str], _Held] = caches.cache("recall", lambda _, held: held.size)
        """Indexes by conversation and model, as token counts differ by model. An evicted index is rebuilt, which takes
        seconds for a million tokens."""

    async def recalled(self, request: ChatRequest, view: View, policy: RecallPolicy) -> View:
        """Add quotations that match the current message, from messages that the view omits."""
        key = request.conversation_key, request.model
        known = self._held.use(key)
        found, held = await self._work.do(request.tenant, lambda: _look(request, view, policy, known))
        self._held.keep(key, held)
        return found

    def forget(self, erased: Erased) -> None:
        self._held.drop(lambda key, _: erased.covers(*key[0]))


def _look(request: ChatRequest, view: View, policy: RecallPolicy, known: _Held | None) -> tuple[View, _Held]:
    conversation, budget = request.conversation, request.budget
    with known.lock if known else nullcontext():
        held = known if known and known.recollection.is_of(conversation) else _Held(Recollection(conversation))
        found = with_recalled(conversation, view, held.recollection, policy, budget, request.cost)
        held = replace(held, size=held.recollection.size)
    wrong = problems(conversation, found, budget.limit, alternates=request.policy.alternates)
    return view if wrong else found, held


FAILURES = 3
OPEN_SECONDS = 30.0
LEAST_GAIN = 0.10
"""Least share of the request that an effective compaction frees."""
VAIN_PASSES = 2
LEAST_GROWTH = 0.10
"""Share of the room by which a history has to grow between two compactions; with less they are too frequent."""
CLOSE_PASSES = 3
RESTING_GROWTH = 0.20
"""Share of the room by which a blocked history has to change before it is compacted again."""


class _Failing(Struct, frozen=True):
    """Consecutive failures of a model for one tenant."""

    failures: int = 0
    undertakings: frozenset[Hashable] = frozenset()
    """Failed undertakings, recorded until the circuit opens."""
    until: float = 0.0
    """End of the pause, if there were too many failures."""
    why: Reasons = ()


class ModelBreaker:
    """Circuit breaker for models: after three consecutive failures a tenant does not call the model for 30 seconds,
    then one call probes it.

    Calls of one undertaking count once: many run in parallel and fail for the same reason.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failing: BoundedMap[tuple[Hashable, str], _Failing] = BoundedMap(MOST_REMEMBERED)
        # Every tenant counts: an invented key is only refused, and a refusal is no failure.
        self._paused: TenantFacts[Hashable, Reasons] = TenantFacts(OPEN_SECONDS, clock, agrees=lambda *_: True)

    def admits(self, model: Hashable, tenant: str) -> bool:
        """Return whether the model may be called now. The first call after a pause is the probe; other calls wait for
        its result."""
        failing = self._failing.get((model, tenant)) or _Failing()
        if failing.failures < FAILURES:
            return not self._paused.confirmed(model)
        if self._clock() < failing.until:
            return False
        self._failing.keep((model, tenant), replace(failing, until=self._clock() + OPEN_SECONDS))
        return True

    @property
    def open(self) -> int:
        now = self._clock()
        return len(
            {model for (model, _), each in self._failing.items() if each.failures >= FAILURES and now < each.until}
        )

    def why(self, model: Hashable, tenant: str) -> Reasons | None:
        """Return the reason of the latest failure, or None if the model has answered since."""
        failing = self._failing.get((model, tenant))
        return failing.why if failing else next(iter(self._paused.confirmed(model)), None)

    def failed(self, model: Hashable, tenant: str, why: Reasons, undertaking: Hashable = None) -> None:
        """Record a failed call. `undertaking`: purpose that several calls share; None for a single call."""
        before = self._failing.get((model, tenant)) or _Failing()
        known = before.undertakings
        if undertaking is None or undertaking not in known:
            before = replace(before, failures=before.failures + 1)
            known = known | {undertaking} if before.failures <= FAILURES else known
        failing = replace(before, undertakings=known, until=self._clock() + OPEN_SECONDS, why=why)
        self._failing.keep((model, tenant), failing)
        if failing.failures >= FAILURES:
            self._paused.learn(tenant, model, why)

    def answered(self, model: Hashable, tenant: str) -> None:
        self._failing.pop((model, tenant), None)
        self._paused.forget(tenant, model)


class _Passes(Struct, frozen=True):
    at: int
    """Size of the history at the last compaction, in tokens."""
    vain: int
    """Number of compactions in a row that freed hardly anything."""
    close: int
    """Number of compactions in a row with hardly any growth between them."""


class HistoryBreaker:
    """Circuit breaker for histories that compaction does not help, or that would be compacted again and again.

    It measures growth of the client's own history, not time, as no compaction makes that history smaller. A history
    that shrank by the same share is taken for another one and is no longer blocked.
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
        """Record a compaction, with all its parts and folds, that changed a request from `before` to `after` tokens.

        `tokens`: size of the client's own history; `before` may already include summaries.
        """
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


TOLERATED = 1
"""Consecutive failures that are retried without a pause. Rejected summaries are not: they cost money and were retried
once already."""
FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 300.0


class _Setback(Struct, frozen=True):
    failures: int
    until: float
    """End of the pause, by the clock."""
    why: Reasons


class CompactionBackoff:
    """Backoff for each compaction: a pause after two consecutive failures, or after one if a summary was rejected. Each
    further failure doubles the pause, up to five minutes."""

    def __init__(self, clock: Callable[[], float] = monotonic, tolerated: int = TOLERATED) -> None:
        """Allow `tolerated` consecutive failures without a pause."""
        self._clock = clock
        self._tolerated = tolerated
        self._latest: HistoryMap[_Setback] = HistoryMap()

    def pauses(self, what: HistoryKey) -> Reasons | None:
        """Return the reason of the last failure while the compaction pauses; otherwise None."""
        latest = self._latest.find(what)
        return latest.why if latest is not None and self._clock() < latest.until else None

    def failed_last(self, what: HistoryKey) -> bool:
        """Return whether the last attempt failed."""
        return self._latest.find(what) is not None

    def learn(self, what: HistoryKey, compaction: Compaction) -> None:
        """Record the outcome. A compaction has failed if one part failed, because the other parts may be useless
        without it. A lost lease or a missing database does not count."""
        if compaction.outcome is Outcome.MADE:
            self._latest.forget(what)
        elif compaction.outcome is Outcome.FAILED:
            self.failed(what, compaction.why)

    def failed(self, what: HistoryKey, why: Reasons) -> None:
        latest = self._latest.find(what)
        failures = (latest.failures if latest else 0) + 1
        tolerated = 0 if was_refused(why) else self._tolerated
        doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(failures - tolerated - 1, 10)
        pause = min(doubled, LONGEST_PAUSE_SECONDS) if failures > tolerated else 0.0
        self._latest.keep(what, _Setback(failures, self._clock() + pause, why))
