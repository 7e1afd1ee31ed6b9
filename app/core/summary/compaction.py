"""Compaction: one generator of effects that streaming, plain and dry runs drive alike.

It yields what it wants done and is sent the reply. A failed summary is a reply, not an exception.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import ceil

from app.core.limits.budget import Budget
from app.core.stages.repair import repair
from app.core.summary import prompts
from app.core.summary.gate import CUT_OFF, MINIMUM_TOKENS, TOO_LONG, Answer, objection, visible_text
from app.core.summary.plan import (
    AIMED_SHARE,
    FOLD_MINIMUM,
    Plan,
    Span,
    SummarySettings,
    halves,
    is_shown,
    quoted_tokens,
    replaced_tokens,
    shown_size,
    summary_tokens,
)
from app.core.summary.prompts import SummaryRequest
from app.core.tokens.estimate import Count, note_tokens
from app.core.view.chunks import SummaryChunk
from app.core.view.view import Conversation, Path, Verbatim, View, build_view

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
class Together:
    """Work that may be done side by side. Reply: the outcomes, in order."""

    flows: tuple[Flow, ...]


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


Effect = Announce | Summarise | Store | Together
Reply = Answer | Failure | SummaryChunk | tuple[Outcome, ...] | None
Flow = Generator[Effect, Reply, Outcome]


def compact(
    conversation: Conversation,
    conversation_id: str,
    plan: Plan,
    budget: Budget,
    settings: SummarySettings,
    count: Count,
) -> Flow:
    """Make the planned chunks, one call each, then fold all but the newest if they exceed their share.

    Where a summary stands for the whole history, each call goes on from the chunk before it.
    """
    maker = _ChunkMaker(conversation, conversation_id, plan, budget, settings, count)
    yield Announce(sum(span.stop - span.start for span in plan.spans))
    if settings.cumulative:
        return (yield from _go_on(maker, plan))
    outcome = yield from _side_by_side([_summarised(maker, span) for span in plan.spans])
    path = [*plan.base.chunks, *outcome.made]
    if outcome.failure or summary_tokens(path) <= budget.fold:
        return outcome
    folded = yield from _fold(maker, path[:-1])
    return Outcome((*outcome.made, *folded.made), folded.failure)


def _side_by_side(flows: Sequence[Flow]) -> Flow:
    if len(flows) == 1:
        return (yield from flows[0])
    replies = (yield Together(tuple(flows))) if flows else ()
    outcomes = replies if isinstance(replies, tuple) else ()
    made = tuple(chunk for outcome in outcomes for chunk in outcome.made)
    return Outcome(made, next((outcome.failure for outcome in outcomes if outcome.failure), None))


def _summarised(maker: _ChunkMaker, span: Span, halvings: int = 0) -> Flow:
    """The chunk of a span; two or more where it turns out too large for one."""
    result = yield from maker.summarise(span)
    if not isinstance(result, Failure):
        return Outcome((result,))
    parts = halves(maker.conversation.transcript, span) if result.overflow and halvings < MAX_HALVINGS else (span,)
    if len(parts) == 1:
        return Outcome((), result.reason)
    made: list[SummaryChunk] = []
    for part in parts:
        outcome = yield from _summarised(maker, part, halvings + 1)
        made.extend(outcome.made)
        if outcome.failure:
            return Outcome(tuple(made), outcome.failure)
    return Outcome(tuple(made))


def _go_on(maker: _ChunkMaker, plan: Plan) -> Flow:
    """Each chunk stands for everything before its end, and is made from the one before it and what follows that.

    Only the last one is kept: shorter ones would be used until they do not fit, and the tail not be the one planned.
    """
    prior = plan.base.chunks[-1] if plan.base.chunks else None
    reached: SummaryChunk | None = None
    failure: str | None = None
    spans = deque(plan.spans)
    halvings = 0
    while spans and failure is None:
        span = spans.popleft()
        result = yield from maker.update(span, prior)
        if not isinstance(result, Failure):
            prior = reached = result
            continue
        parts = halves(maker.conversation.transcript, span) if result.overflow and halvings < MAX_HALVINGS else (span,)
        if len(parts) == 1:
            failure = result.reason
        else:
            halvings += 1
            spans.extendleft(reversed(parts))
    if reached is None:
        return Outcome((), failure)
    kept = yield from maker.keep(reached)
    return Outcome((), kept.reason) if isinstance(kept, Failure) else Outcome((kept,), failure)


def _fold(maker: _ChunkMaker, chunks: Sequence[SummaryChunk]) -> Flow:
    """Fold the chunks in one call, or in as few as fit, then the results again while too many."""
    settings = maker.settings
    at_most = min(settings.input_tokens, settings.source_tokens or settings.input_tokens)
    made: list[SummaryChunk] = []
    todo = list(chunks)
    while len(todo) >= FOLD_MINIMUM:
        groups = _groups(todo, at_most)
        outcome = yield from _side_by_side([_folded(maker, group, group is not groups[-1]) for group in groups])
        made += [chunk for chunk in outcome.made if chunk not in todo]
        if outcome.failure or len(groups) == 1 or summary_tokens(outcome.made) <= maker.budget.fold:
            return Outcome(tuple(made), outcome.failure)
        todo = list(outcome.made)
    return Outcome(tuple(made))


def _folded(maker: _ChunkMaker, chunks: Sequence[SummaryChunk], continued: bool) -> Flow:
    """One chunk that stands for several; a single one stays as it is."""
    if len(chunks) < FOLD_MINIMUM:
        return Outcome(tuple(chunks))
    result = yield from maker.fold(chunks, continued)
    return Outcome((), result.reason) if isinstance(result, Failure) else Outcome((result,))


def _groups(chunks: Sequence[SummaryChunk], at_most: int) -> list[list[SummaryChunk]]:
    """Neighbouring chunks in groups the summariser can read; each of at least two, so that a fold always gains."""
    groups: list[list[SummaryChunk]] = [[]]
    for chunk in chunks:
        if len(groups[-1]) >= FOLD_MINIMUM and summary_tokens(groups[-1]) + chunk.tokens > at_most:
            groups.append([])
        groups[-1].append(chunk)
    return groups


@dataclass(frozen=True, slots=True)
class _Source:
    """What a chunk is made from."""

    quoted: str
    replaces: int
    """Tokens of what the chunk stands for in a view."""
    shown: View | None = None
    """The conversation itself, where that is what the summariser is to read."""
    beside: tuple[str, ...] = ()
    """What the conversation does not show and the quoted text does."""


@dataclass(frozen=True, slots=True)
class _ChunkMaker:
    conversation: Conversation
    conversation_id: str
    plan: Plan
    budget: Budget
    settings: SummarySettings
    count: Count

    def summarise(self, span: Span) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        """A level 0 chunk, made from messages."""
        transcript = self.conversation.transcript
        end = self.plan.spans[-1].stop
        carried = tuple(index - span.start for index in transcript.carried(span.start, span.stop, end))
        continued = span.stop < end
        chunk = replace(self._blank(span.start, span.stop, carried, ()), continued=continued)
        base = self.plan.base
        shown = self._shown(base, span) if span.start == base.covered else None
        source = _Source(self._quoted(span, carried), replaced_tokens(transcript, span, end), shown)
        return (yield from self.keep((yield from self._ask(chunk, source, self.settings.prompt, ()))))

    def update(self, span: Span, prior: SummaryChunk | None) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        """A level 0 chunk over everything before the span's end, from the last such chunk and the span; not kept."""
        transcript = self.conversation.transcript
        prior = prior and self._without_failed_results(prior)
        kept = transcript.carried(0, span.stop, span.stop)
        chunk = self._blank(0, span.stop, kept, ())
        carried = tuple(index - span.start for index in kept if index >= span.start)
        quoted, replaces, path = self._quoted(span, carried), replaced_tokens(transcript, span, span.stop), Path()
        if prior is None:
            source = _Source(quoted, replaces, self._shown(path, span))
            return (yield from self._ask(chunk, source, self.settings.prompt, self._notes))
        released = {
            index: transcript.messages[index]
            for offset in prior.carried
            if (index := prior.first_index + offset) not in kept and index < span.start
        }
        if span.start:
            path = Path((prior,), span.start)
            replaces += prior.tokens + sum(map(transcript.tokens_of, released))
        before = prompts.quote_chunks((prior,), released, prompts.fence_of(chunk.through_digest))
        shown = self._shown(path, span)
        prompt, notes = self.settings.update_prompt or self.settings.prompt, (prompts.UPDATE_NOTE, *self._notes)
        beside = () if span.start else (prompts.notes_so_far(prior),)
        source = _Source(f"{before}\n{quoted}", replaces, shown, beside)
        return (yield from self._ask(chunk, source, prompt, notes))

    @property
    def _notes(self) -> tuple[str, ...]:
        return (prompts.RECENT_NOTE,) if self.settings.strategy == "checkpoint" else ()

    def _quoted(self, span: Span, carried: tuple[int, ...]) -> str:
        """The span's messages as the summariser reads them; offsets in `carried` count from the span's start."""
        transcript = self.conversation.transcript
        messages = transcript.messages[span.start : span.stop]
        # Characters per text, about 3 a token: only a unit that could not be cut is larger than one call.
        readable = self.settings.input_tokens
        too_large = quoted_tokens(transcript, span.start, span.stop) > readable
        longest = max(200, readable * 3 // len(messages)) if too_large else None
        recent = len(messages) - len(messages) // 3 if self.settings.strategy == "checkpoint" else None
        fence = prompts.fence_of(self.conversation.chain[span.stop])
        return prompts.quote_messages(messages, span.start, carried, fence, longest, recent)

    def _shown(self, path: Path, span: Span) -> View | None:
        """The conversation itself up to the span's end, where the summariser is to read that and can."""
        if not is_shown(self.conversation, path, span, self.settings):
            return None
        tokens = shown_size(self.conversation, path, span)
        before = (part for part in build_view(self.conversation, path).parts if not isinstance(part, Verbatim))
        parts = (*before, Verbatim(path.covered, span.stop))
        # A provider refuses a call that the client left without its result. What repairing saves is of no account.
        return repair(self.conversation, View(parts, tokens), lambda _: 0)

    def fold(self, chunks: Sequence[SummaryChunk], continued: bool) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        """A chunk of a higher level that stands for several, and for what they carried of turns that are over now.

        Without that the user messages of an agent's turns, each split by some cut, would pile up in the payload.
        """
        chunks = [*map(self._without_failed_results, chunks)]
        start = chunks[0].first_index
        stop = chunks[-1].last_index + 1
        transcript = self.conversation.transcript
        kept = transcript.carried(start, stop, stop)
        held = (chunk.first_index + offset for chunk in chunks for offset in chunk.carried)
        released = {index: transcript.messages[index] for index in held if index not in kept}
        blank = replace(
            self._blank(start, stop, tuple(index - start for index in kept), tuple(chunk.id for chunk in chunks)),
            level=1 + max(chunk.level for chunk in chunks),
            continued=continued,
        )
        quoted = prompts.quote_chunks(chunks, released, prompts.fence_of(blank.through_digest))
        replaces = summary_tokens(chunks) + sum(map(transcript.tokens_of, released))
        source = _Source(quoted, replaces)
        return (yield from self.keep((yield from self._ask(blank, source, self.settings.prompt, (prompts.FOLD_NOTE,)))))

    def _blank(self, start: int, stop: int, carried: tuple[int, ...], children: tuple[str, ...]) -> SummaryChunk:
        transcript, chain = self.conversation.transcript, self.conversation.chain
        return SummaryChunk(
            id="",
            conversation_id=self.conversation_id,
            series=self.plan.range.series,
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
            prompt_version=prompts.prompt_version(self.settings.prompt + self.settings.update_prompt),
            children=children,
            history_length=len(transcript),
        )

    def _ask(
        self, chunk: SummaryChunk, source: _Source, prompt: str, notes: tuple[str, ...]
    ) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        """One call, and one more with a stricter prompt and more room where the gate refused the first.

        A summariser that was shown the conversation itself may have gone on with it: the second time it is quoted.
        """
        aim = room = max(MINIMUM_TOKENS, min(self.budget.summary, int(AIMED_SHARE * source.replaces)))
        refused = ""
        for extra, shown in (((), source.shown), ((prompts.STRICTER_NOTE,), None)):
            beside = source.beside if shown is not None else ()
            hints = (*self._focus, *notes, *beside, *(note.format(reason=refused) for note in extra))
            cap = ceil(room * self.settings.ratio)
            reply = yield Summarise(prompts.summary_request(prompt, source.quoted, aim, cap, hints, shown))
            if not isinstance(reply, Answer):
                return reply if isinstance(reply, Failure) else Failure("summary_failed")
            text = visible_text(reply.text)
            refused = objection(reply, self.count(text), room, source.replaces) or ""
            if not refused:
                model = reply.model or chunk.model
                return self._finished(replace(chunk, model=model), text + self._failed_results(chunk))
            room = 2 * aim
        # Fewer messages have shorter notes.
        return Failure(refused, overflow=refused in (TOO_LONG, CUT_OFF))

    def _failed_results(self, chunk: SummaryChunk) -> str:
        transcript = self.conversation.transcript
        return prompts.failed_results(
            transcript.messages[chunk.first_index : chunk.last_index + 1], self.settings.failed_results
        )

    def _without_failed_results(self, chunk: SummaryChunk) -> SummaryChunk:
        """As the summariser wrote it: what it reads it copies, and then the list would be there twice."""
        if not self._failed_results(chunk):
            return chunk
        # By its heading: earlier releases kept the line ends of the results.
        written, heading, _ = chunk.text.rpartition(prompts.FAILURES_HEADING)
        return replace(chunk, text=written) if heading else chunk

    @property
    def _focus(self) -> tuple[str, ...]:
        focus = self.settings.focus
        return (prompts.focus_note(focus),) if focus else ()

    def _finished(self, blank: SummaryChunk, text: str) -> SummaryChunk:
        body = prompts.summary_text(text, blank.first_index, blank.last_index, prompts.fence_of(blank.through_digest))
        return replace(
            blank,
            id=_content_address(blank, text),
            text=text,
            tokens=note_tokens(body, self.count),
        )

    def keep(self, result: SummaryChunk | Failure) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        """The chunk as it is stored; a failure stays one."""
        if isinstance(result, Failure):
            return result
        stored = yield Store(result)
        return stored if isinstance(stored, SummaryChunk) else Failure(LEASE_LOST)


def _content_address(chunk: SummaryChunk, text: str) -> str:
    address = blake2b(digest_size=16, person=b"steno-chunk")
    for part in (chunk.series, str(chunk.level), str(chunk.version), text):
        encoded = part.encode("utf-8", "surrogatepass")
        address.update(len(encoded).to_bytes(8, "big") + encoded)
    address.update(chunk.from_digest + chunk.through_digest)
    return f"chk_{address.hexdigest()}"
