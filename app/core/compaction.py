"""Compaction: one generator of effects that streaming, plain and dry runs drive alike.

It yields what it wants done and is sent the reply. A failed summary is a reply, not an exception.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import ceil

from app.core import prompts
from app.core.budget import Budget
from app.core.chunks import SummaryChunk
from app.core.estimate import Count, text_tokens
from app.core.gate import CUT_OFF, MINIMUM_TOKENS, TOO_LONG, Answer, objection, visible_text
from app.core.plan import (
    FOLD_MINIMUM,
    Plan,
    Span,
    SummarySettings,
    carried_in,
    halves,
    quoted_tokens,
    replaced_tokens,
    summary_tokens,
)
from app.core.prompts import SummaryRequest
from app.core.view import Conversation

AIMED_SHARE = 0.5
"""A summary is asked to take at most this share of what it replaces, so that the gate does not find it too large."""

LEASE_LOST = "lease_lost"
"""The failure of a compaction that another one has overtaken: its result is worth looking for."""

MAX_HALVINGS = 3


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the client that a summary is about to be made. No reply."""

    messages: int
    """How many messages it will stand for; 0 if chunks are only folded."""


@dataclass(frozen=True, slots=True)
class Summarise:
    """Ask the summariser. Reply: `Answer` or `Failure`."""

    request: SummaryRequest


@dataclass(frozen=True, slots=True)
class Store:
    """Keep this chunk. Reply: the chunk as stored, or None if the right to store it was lost."""

    chunk: SummaryChunk


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer could be had."""

    reason: str
    overflow: bool = False
    """The range was too large for one summary: a part of it may do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The chunks that were made, oldest first, and why it was not all of them."""

    made: tuple[SummaryChunk, ...]
    failure: str | None = None


Effect = Announce | Summarise | Store
Reply = Answer | Failure | SummaryChunk | None
Flow = Generator[Effect, Reply, Outcome]


def compact(
    conversation: Conversation,
    conversation_id: str,
    plan: Plan,
    budget: Budget,
    settings: SummarySettings,
    count: Count,
) -> Flow:
    """Make the planned chunks, one call each, then fold all but the newest if they exceed their share."""
    maker = _ChunkMaker(conversation, conversation_id, plan.range.series, budget, settings, count)
    yield Announce(sum(span.stop - span.start for span in plan.spans))
    path = list(plan.base.chunks)
    made: list[SummaryChunk] = []
    spans = deque(plan.spans)
    halvings = 0
    while spans:
        span = spans.popleft()
        result = yield from maker.summarise(span)
        if isinstance(result, Failure):
            parts = halves(conversation.transcript, span)
            if result.overflow and len(parts) > 1 and halvings < MAX_HALVINGS:
                halvings += 1
                spans.extendleft(reversed(parts))
                continue
            return Outcome(tuple(made), result.reason)
        made.append(result)
        path.append(result)
    failure = None
    if summary_tokens(path) > budget.fold:
        folded = yield from _fold(maker, path[:-1])
        made.extend(folded.made)
        failure = folded.failure
    return Outcome(tuple(made), failure)


def _fold(maker: _ChunkMaker, chunks: Sequence[SummaryChunk]) -> Flow:
    """Fold the chunks in one call, or in as few as the summariser can read, then the results again while too many."""
    made: list[SummaryChunk] = []
    todo = list(chunks)
    while len(todo) >= FOLD_MINIMUM:
        groups = _groups(todo, maker.settings.input_tokens)
        folded: list[SummaryChunk] = []
        for group in groups:
            if len(group) < FOLD_MINIMUM:
                folded.extend(group)
                continue
            result = yield from maker.fold(group)
            if isinstance(result, Failure):
                return Outcome(tuple(made), result.reason)
            made.append(result)
            folded.append(result)
        if len(groups) == 1 or summary_tokens(folded) <= maker.budget.fold:
            break
        todo = folded
    return Outcome(tuple(made))


def _groups(chunks: Sequence[SummaryChunk], at_most: int) -> list[list[SummaryChunk]]:
    """Neighbouring chunks in groups the summariser can read; each of at least two, so that a fold always gains."""
    groups: list[list[SummaryChunk]] = [[]]
    for chunk in chunks:
        if len(groups[-1]) >= FOLD_MINIMUM and summary_tokens(groups[-1]) + chunk.tokens > at_most:
            groups.append([])
        groups[-1].append(chunk)
    return groups


@dataclass(frozen=True, slots=True)
class _ChunkMaker:
    conversation: Conversation
    conversation_id: str
    series: str
    budget: Budget
    settings: SummarySettings
    count: Count

    def summarise(self, span: Span) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        """A level 0 chunk, made from messages."""
        transcript = self.conversation.transcript
        fence = prompts.fence_of(self.conversation.chain[span.stop])
        messages = transcript.messages[span.start : span.stop]
        carried = tuple(index - span.start for index in carried_in(transcript, span.start, span.stop))
        # Characters per text, about 3 a token: only a unit that could not be cut is larger than one call.
        readable = self.settings.input_tokens
        too_large = quoted_tokens(transcript, span.start, span.stop) > readable
        longest = max(200, readable * 3 // len(messages)) if too_large else None
        chunk = self._blank(span.start, span.stop, carried, ())
        replaces = replaced_tokens(transcript, span)
        quoted = prompts.quote_messages(messages, span.start, carried, fence, longest)
        return (yield from self._ask(chunk, quoted, replaces, ()))

    def fold(self, chunks: Sequence[SummaryChunk]) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        """A chunk of a higher level that stands for several, and for what they carried of turns that are over now.

        Without that the user messages of an agent's turns, each split by some cut, would pile up in the payload.
        """
        start = chunks[0].first_index
        stop = chunks[-1].last_index + 1
        transcript = self.conversation.transcript
        kept = carried_in(transcript, start, stop)
        held = (chunk.first_index + offset for chunk in chunks for offset in chunk.carried)
        released = {index: transcript.messages[index] for index in held if index not in kept}
        blank = replace(
            self._blank(start, stop, tuple(index - start for index in kept), tuple(chunk.id for chunk in chunks)),
            level=1 + max(chunk.level for chunk in chunks),
        )
        quoted = prompts.quote_chunks(chunks, released, prompts.fence_of(blank.through_digest))
        replaces = summary_tokens(chunks) + sum(map(transcript.tokens_of, released))
        return (yield from self._ask(blank, quoted, replaces, (prompts.FOLD_NOTE,)))

    def _blank(self, start: int, stop: int, carried: tuple[int, ...], children: tuple[str, ...]) -> SummaryChunk:
        transcript, chain = self.conversation.transcript, self.conversation.chain
        return SummaryChunk(
            id="",
            conversation_id=self.conversation_id,
            series=self.series,
            level=0,
            version=1,
            from_digest=chain[start],
            through_digest=chain[stop],
            last_message_digest=transcript.messages[stop - 1].digest,
            first_index=start,
            last_index=stop - 1,
            through_turn=transcript.turn_at(stop),
            carried=carried,
            text="",
            tokens=0,
            model=self.settings.model,
            prompt_version=prompts.prompt_version(self.settings.prompt),
            children=children,
        )

    def _ask(
        self, chunk: SummaryChunk, quoted: str, replaces: int, notes: tuple[str, ...]
    ) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        """One call, and one more with a stricter prompt and more room where the gate refused the first."""
        aim = room = max(MINIMUM_TOKENS, min(self.budget.summary, int(AIMED_SHARE * replaces)))
        refused = ""
        for extra in ((), (prompts.STRICTER_NOTE,)):
            hints = (*self._focus, *notes, *(note.format(reason=refused) for note in extra))
            cap = ceil(room * self.settings.ratio)
            reply = yield Summarise(prompts.summary_request(self.settings.prompt, quoted, aim, cap, hints))
            if not isinstance(reply, Answer):
                return reply if isinstance(reply, Failure) else Failure("summary_failed")
            text = visible_text(reply.text)
            refused = objection(reply, self.count(text), room, replaces) or ""
            if not refused:
                return (yield from self._keep(chunk, text))
            room = 2 * aim
        # Fewer messages have shorter notes.
        return Failure(refused, overflow=refused in (TOO_LONG, CUT_OFF))

    @property
    def _focus(self) -> tuple[str, ...]:
        focus = self.settings.focus
        return (prompts.FOCUS_NOTE.replace("{focus}", focus),) if focus else ()

    def _keep(self, blank: SummaryChunk, text: str) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        body = prompts.summary_text(text, blank.first_index, blank.last_index, prompts.fence_of(blank.through_digest))
        chunk = replace(
            blank,
            id=_content_address(blank, text),
            text=text,
            tokens=text_tokens("user", body, self.count),
        )
        stored = yield Store(chunk)
        return stored if isinstance(stored, SummaryChunk) else Failure(LEASE_LOST)


def _content_address(chunk: SummaryChunk, text: str) -> str:
    address = blake2b(digest_size=16, person=b"steno-chunk")
    for part in (chunk.series, str(chunk.level), str(chunk.version), text):
        encoded = part.encode("utf-8", "surrogatepass")
        address.update(len(encoded).to_bytes(8, "big") + encoded)
    address.update(chunk.from_digest + chunk.through_digest)
    return f"chk_{address.hexdigest()}"
