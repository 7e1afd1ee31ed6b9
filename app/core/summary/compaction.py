"""Compaction: one generator of effects that streaming, plain and dry runs drive alike.

Theory: what is to be done, in which order and what next when something fails, is decided here and nowhere else. But
here nothing is done: the generator yields an effect (`Summarise` this, `Store` that) and stands still until it is sent
the reply, so it needs neither a clock nor a network nor a lock, and a test plays all of them with a list. A failure is
a reply like any other. Whoever has a flow drives it with `drive` or `drive_async` and brings a function that performs
one effect; the loop itself stands here once. What may be done side by side is one effect as well, `Together`, with
flows of its own: whether they are, and how many at once, is the performer's choice. The flow returns what came of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from hashlib import blake2b
from math import ceil

from app.core.limits.budget import Budget
from app.core.reasons import Code, Reasons, because
from app.core.stages.repair import repair
from app.core.summary import prompts
from app.core.summary.gate import MINIMUM_TOKENS, TOO_LARGE, Answer, objection, visible_text
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
from app.core.tokens.estimate import Count, text_tokens
from app.core.view.chunks import SummaryChunk
from app.core.view.view import Conversation, Path, Verbatim, View, build_view

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
    """Work that may be done side by side. Reply: what came of each, in order."""

    flows: tuple[Flow, ...]


class Outcome(Enum):
    """What an attempt at a compaction came to."""

    MADE = auto()
    """All that was planned."""
    FAILED = auto()
    LEASE_LOST = auto()
    """Another one has overtaken it: that one's result is worth looking for."""
    DELETED = auto()
    """The conversation is gone."""
    STORE_AWAY = auto()
    TAKES_TOO_LONG = auto()
    """It is still being made; the request goes on without."""
    AWAITED = auto()
    """Somebody else's ended: its result is worth looking for."""
    NOTHING_TO_SUMMARISE = auto()
    NOT_BEGUN = auto()


_CODES: Mapping[Outcome, Code] = {
    Outcome.LEASE_LOST: Code.LEASE_LOST,
    Outcome.DELETED: Code.CONVERSATION_DELETED,
    Outcome.STORE_AWAY: Code.STORAGE,
    Outcome.TAKES_TOO_LONG: Code.SUMMARY_TAKES_TOO_LONG,
    Outcome.NOTHING_TO_SUMMARISE: Code.NOTHING_TO_SUMMARISE,
}
"""What is told of an outcome that needs no more words."""


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer could be had, or none that may be kept."""

    why: Reasons
    overflow: bool = False
    """The range was too large for one summary: a part of it may do."""
    outcome: Outcome = Outcome.FAILED


@dataclass(frozen=True, slots=True)
class Compaction:
    """What came of an attempt: the chunks that were made, oldest first, and whether that is all of them."""

    made: tuple[SummaryChunk, ...]
    outcome: Outcome = Outcome.MADE
    why: Reasons = ()
    """Of what failed, or was not begun."""

    @property
    def is_whole(self) -> bool:
        return self.outcome is Outcome.MADE

    @property
    def reasons(self) -> Reasons:
        """What is told of it."""
        if self.why or self.outcome not in _CODES:
            return self.why
        return because(_CODES[self.outcome])


Effect = Announce | Summarise | Store | Together
Reply = Answer | Failure | SummaryChunk | tuple[Compaction, ...] | None
Flow = Generator[Effect, Reply, Compaction]


def drive(flow: Flow, perform: Callable[[Effect], Reply]) -> Compaction:
    """Lets `perform` do what the flow asks for, until it returns."""
    reply: Reply = None
    while not isinstance(asked := _step(flow, reply), Compaction):
        reply = perform(asked)
    return asked


async def drive_async(
    flow: Flow,
    perform: Callable[[Effect], Awaitable[Reply]],
    beside: Callable[[Callable[[], Effect | Compaction]], Awaitable[Effect | Compaction]],
) -> Compaction:
    """Likewise for effects that take time. `beside` takes the flow's own steps: for a long history they take some."""
    reply: Reply = None
    while not isinstance(asked := await beside(partial(_step, flow, reply)), Compaction):
        reply = await perform(asked)
    return asked


def _step(flow: Flow, reply: Reply) -> Effect | Compaction:
    """What a flow asks for next, or what came of it."""
    try:
        return flow.send(reply)
    except StopIteration as end:
        compaction: Compaction = end.value
        return compaction


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
    yield Announce(plan.messages)
    if settings.cumulative:
        return (yield from _go_on(maker, plan))
    summarised = yield from _side_by_side([_summarised(maker, span) for span in plan.spans])
    path = [*plan.base.chunks, *summarised.made]
    if not summarised.is_whole or summary_tokens(path) <= budget.fold:
        return summarised
    folded = yield from _fold(maker, path[:-1])
    return replace(folded, made=(*summarised.made, *folded.made))


def _as_far_as(made: Sequence[SummaryChunk], failure: Failure) -> Compaction:
    """What a failure left of a compaction."""
    return Compaction(tuple(made), failure.outcome, failure.why)


def _side_by_side(flows: Sequence[Flow]) -> Flow:
    if len(flows) == 1:
        return (yield from flows[0])
    replies = (yield Together(tuple(flows))) if flows else ()
    parts = replies if isinstance(replies, tuple) else ()
    made = tuple(chunk for part in parts for chunk in part.made)
    first_failed = next((part for part in parts if not part.is_whole), None)
    return replace(first_failed, made=made) if first_failed else Compaction(made)


def _summarised(maker: _ChunkMaker, span: Span, halvings: int = 0) -> Flow:
    """The chunk of a span; two or more where it turns out too large for one."""
    result = yield from maker.summarise(span)
    if not isinstance(result, Failure):
        return Compaction((result,))
    parts = halves(maker.conversation.transcript, span) if result.overflow and halvings < MAX_HALVINGS else (span,)
    if len(parts) == 1:
        return _as_far_as((), result)
    made: list[SummaryChunk] = []
    for part in parts:
        half = yield from _summarised(maker, part, halvings + 1)
        made.extend(half.made)
        if not half.is_whole:
            return replace(half, made=tuple(made))
    return Compaction(tuple(made))


def _go_on(maker: _ChunkMaker, plan: Plan) -> Flow:
    """Each chunk stands for everything before its end, and is made from the one before it and what follows that.

    Only the last one is kept: shorter ones would be used until they do not fit, and the tail not be the one planned.
    """
    prior = plan.base.chunks[-1] if plan.base.chunks else None
    reached: SummaryChunk | None = None
    failure: Failure | None = None
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
            failure = result
        else:
            halvings += 1
            spans.extendleft(reversed(parts))
    if reached is not None:
        kept = yield from maker.keep(reached)
        if isinstance(kept, Failure):
            return _as_far_as((), kept)
        reached = kept
    made = (reached,) if reached else ()
    return _as_far_as(made, failure) if failure else Compaction(made)


def _fold(maker: _ChunkMaker, chunks: Sequence[SummaryChunk]) -> Flow:
    """Fold the chunks in one call, or in as few as fit, then the results again while too many."""
    settings = maker.settings
    at_most = min(settings.input_tokens, settings.source_tokens or settings.input_tokens)
    made: list[SummaryChunk] = []
    todo = list(chunks)
    while len(todo) >= FOLD_MINIMUM:
        groups = _groups(todo, at_most)
        folded = yield from _side_by_side([_folded(maker, group, group is not groups[-1]) for group in groups])
        made += [chunk for chunk in folded.made if chunk not in todo]
        if not folded.is_whole or len(groups) == 1 or summary_tokens(folded.made) <= maker.budget.fold:
            return replace(folded, made=tuple(made))
        todo = list(folded.made)
    return Compaction(tuple(made))


def _folded(maker: _ChunkMaker, chunks: Sequence[SummaryChunk], continued: bool) -> Flow:
    """One chunk that stands for several; a single one stays as it is."""
    if len(chunks) < FOLD_MINIMUM:
        return Compaction(tuple(chunks))
    result = yield from maker.fold(chunks, continued)
    return _as_far_as((), result) if isinstance(result, Failure) else Compaction((result,))


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
        refused: Reasons = ()
        for shown in (source.shown, None):
            beside = source.beside if shown is not None else ()
            stricter = (prompts.STRICTER_NOTE.format(reason=reason.text) for reason in refused)
            hints = (*self._focus, *notes, *beside, *stricter)
            cap = ceil(room * self.settings.ratio)
            reply = yield Summarise(prompts.summary_request(prompt, source.quoted, aim, cap, hints, shown))
            if not isinstance(reply, Answer):
                return reply if isinstance(reply, Failure) else Failure(because(Code.SUMMARY_FAILED))
            text = visible_text(reply.text)
            found = objection(reply, self.count(text), room, source.replaces)
            if found is None:
                model = reply.model or chunk.model
                return self._finished(replace(chunk, model=model), text + self._failed_results(chunk))
            refused, room = (found,), 2 * aim
        # Fewer messages have shorter notes.
        return Failure(refused, overflow=TOO_LARGE.issuperset(refused))

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
            tokens=text_tokens("user", body, self.count),
        )

    def keep(self, result: SummaryChunk | Failure) -> Generator[Effect, Reply, SummaryChunk | Failure]:
        """The chunk as it is stored; a failure stays one."""
        if isinstance(result, Failure):
            return result
        stored = yield Store(result)
        return stored if isinstance(stored, SummaryChunk) else Failure((), outcome=Outcome.LEASE_LOST)


def _content_address(chunk: SummaryChunk, text: str) -> str:
    address = blake2b(digest_size=16, person=b"steno-chunk")
    for part in (chunk.series, str(chunk.level), str(chunk.version), text):
        encoded = part.encode("utf-8", "surrogatepass")
        address.update(len(encoded).to_bytes(8, "big") + encoded)
    address.update(chunk.from_digest + chunk.through_digest)
    return f"chk_{address.hexdigest()}"
