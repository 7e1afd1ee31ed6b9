"""Memory of a process: the chunks of each conversation, for when the store is away; what recall has read of it; and the
models, histories and compactions that failed or did not help, which are left alone for a while, never for ever."""

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
"""Bytes of a chunk beside its texts."""
SECONDS = 900.0
"""Seconds after the store's answer for which its chunks are used: another process may have erased them meanwhile."""
_Key = tuple[ConversationKey, str]


class _Remembered(Struct, frozen=True):
    chunks: tuple[SummaryChunk, ...]
    until: float
    """End of their use, by the clock."""


class ChunkMemory:
    """Chunks by conversation and series. Each answer of the store takes the place of the one before, so that what was
    edited or erased is not used once the store has been asked again."""

    def __init__(self, caches: Caches, clock: Callable[[], float] = monotonic) -> None:
        self._chunks: Cache[_Key, _Remembered] = caches.cache("summaries", _held_bytes)
        self._clock = clock

    def keep(self, key: ConversationKey, series: str, chunks: Sequence[SummaryChunk]) -> None:
        """Keep the store's answer in place of an earlier one."""
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
        """Forget an erased conversation, and what others have of its chunks."""

        def is_gone(key: _Key, held: _Remembered) -> bool:
            tenant, conversation_id = key[0]
            ids = {conversation_id, *(chunk.conversation_id for chunk in held.chunks)}
            return any(erased.covers(tenant, id_) for id_ in ids)

        self._chunks.drop(is_gone)

    def forget_chunks(self, tenant: str, ids: Collection[str]) -> None:
        """Forget all conversations of the tenant in which any of these chunks stands: the store is asked again."""
        gone = set(ids)
        self._chunks.drop(lambda key, held: key[0][0] == tenant and not gone.isdisjoint(c.id for c in held.chunks))


def _held_bytes(_: _Key, held: _Remembered) -> int:
    said = (words.text for chunk in held.chunks for words in chunk.user_words)
    texts = (*said, *(text for chunk in held.chunks for text in (chunk.text, *chunk.values, *chunk.children)))
    return CHUNK_BYTES * len(held.chunks) + sum(map(getsizeof, texts))


class _Held(Struct, frozen=True):
    recollection: Recollection
    size: int = 0
    """Size when it was last looked through. It is not counted outside the lock: it may just be read on."""
    lock: Lock = field(default_factory=Lock)
    """Lock for several requests of one conversation that are looked through at once."""


class RecallIndexCache:
    def __init__(self, work: Work, caches: Caches) -> None:
        self._work = work
        self._held: Cache[tuple[ConversationKey, str], _Held] = caches.cache("recall", lambda _, held: held.size)
        """Indexes by conversation and model: notes have other sizes for each. One that is pushed out is read anew:
        some seconds of work for a million tokens."""

    async def recalled(self, request: ChatRequest, view: View, policy: RecallPolicy) -> View:
        """Add quotations of what the current message is about, from messages that the view leaves out."""
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
"""Share of the request that an effective pass frees."""
VAIN_PASSES = 2
LEAST_GROWTH = 0.10
"""Share of the room by which a history grows between two compactions: with less they come too often."""
CLOSE_PASSES = 3
RESTING_GROWTH = 0.20
"""Share of the room that has to change before a history is compacted again."""


class _Failing(Struct, frozen=True):
    """Failures of a model that did not answer a tenant the last time."""

    failures: int = 0
    """Failures in a row."""
    undertakings: frozenset[Hashable] = frozenset()
    """Undertakings that failed, as long as they matter."""
    until: float = 0.0
    """End of the pause, if the failures are too many."""
    why: Reasons = ()


class ModelBreaker:
    """Circuit breaker of models: after three failures in a row a tenant does not call one for 30 seconds, then one call
    probes it.

    The calls of one undertaking count once: many are made side by side, and fail for one reason.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failing: BoundedMap[tuple[Hashable, str], _Failing] = BoundedMap(MOST_REMEMBERED)
        # A key that was made up is refused, and that is no failure: every tenant counts.
        self._paused: TenantFacts[Hashable, Reasons] = TenantFacts(OPEN_SECONDS, clock, agrees=lambda *_: True)

    def admits(self, model: Hashable, tenant: str) -> bool:
        """True if the model may be asked now. The first one after a pause is the probe: the others wait for its
        result."""
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
        """Return the reason of the latest failure, if the model did not answer since."""
        failing = self._failing.get((model, tenant))
        return failing.why if failing else next(iter(self._paused.confirmed(model)), None)

    def failed(self, model: Hashable, tenant: str, why: Reasons, undertaking: Hashable = None) -> None:
        """Record a failed call. `undertaking`: the purpose of the call; None for one by itself."""
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
    """Histories that compaction does not help, or that would be compacted again and again.

    Growth counts, never time: it is measured on the client's own history, which no compaction makes smaller. A history
    that shrank by as much is another one, and starts anew.
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
        """Record a compaction with all its parts and folds, which made a request of `before` tokens one of `after`.

        `tokens` is the size of the client's own history: `before` may already hold summaries.
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
"""Failures in a row that are retried without a pause. Rejected answers are not: they were paid for, and were retried
once already."""
FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 300.0


class _Setback(Struct, frozen=True):
    failures: int
    until: float
    """End of the pause, by the clock."""
    why: Reasons


class CompactionBackoff:
    """Pauses by compaction: after two failures in a row, or after one if answers were refused. Each further failure
    doubles the pause, up to five minutes."""

    def __init__(self, clock: Callable[[], float] = monotonic, tolerated: int = TOLERATED) -> None:
        """Forgive `tolerated` failures in a row without a pause."""
        self._clock = clock
        self._tolerated = tolerated
        self._latest: HistoryMap[_Setback] = HistoryMap()

    def pauses(self, what: HistoryKey) -> Reasons | None:
        """Return the reason of the last failure, if the compaction failed too often recently to be tried now."""
        latest = self._latest.find(what)
        return latest.why if latest is not None and self._clock() < latest.until else None

    def failed_last(self, what: HistoryKey) -> bool:
        """True if it failed, and did not succeed since."""
        return self._latest.find(what) is not None

    def learn(self, what: HistoryKey, compaction: Compaction) -> None:
        """Learn from a compaction. It has failed if one part failed: without that part, the others may be of no use. A
        lost lease or a missing database counts neither way."""
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
