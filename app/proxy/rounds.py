"""Rounds: an answer in which the model asks for what was left out, until it has what it needs.

The client gets one answer. Whatever edits and relays it reads the rounds as if they were the one that the provider
gave: `AskedAnswer` goes to the provider again behind their backs. A round that fails, or one too many, is followed by
the answer to the same request without our functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import structlog
from msgspec import field
from msgspec.structs import replace

from app.core.deciding.attempt import Untie
from app.core.recall.asked import NO_MORE, ROUNDS, Asked, AskPolicy, room_in
from app.core.stages.ladder import Decision
from app.core.view.view import View
from app.edge.relayed import EVENT_STREAM, media_type
from app.edge.upstream import Headers, UpstreamAnswer, read_into
from app.errors import StenoError, UpstreamDisconnected, UpstreamUnreadable
from app.proxy.decoding import WrappedAnswer, plain_answer
from app.proxy.early import StreamedAnswer
from app.proxy.forwarding import Forwarding
from app.proxy.learning import Observation
from app.proxy.milestones import Milestones
from app.proxy.options import keep_alive_seconds
from app.proxy.report import context_members
from app.wire.answers import AnswerEditor
from app.wire.recall_tools import Aside, Rounds
from app.wire.sse import KEEP_ALIVE, FrameSplitter
from app.wire.streamed import LARGEST_WHOLE
from app.wire.usage import usage_of

log = structlog.get_logger("steno.chat")

MOST_CALLS = 32
"""Calls in one round that are answered."""
LEAST_ANSWER = 100
"""Tokens of an answer that says that there is no more room, with its frame."""
_UNTRUE = frozenset({b"content-length", b"content-encoding", b"content-md5", b"etag", b"digest"})
"""Headers of the first round that are not true of all of them together."""


class AskedAnswer(WrappedAnswer):
    """A provider's answer with status 200 to a request that offers our functions, as one answer. It wraps the first."""

    forwarding: Forwarding
    milestones: Milestones
    observed: Observation
    view: View
    policy: AskPolicy
    _rounds: Rounds
    editor: AnswerEditor | None = None
    """Editor that tells of it at the end."""
    given: list[str] = field(default_factory=list)
    """Answers to the model's calls so far."""
    tokens: int = 0
    """Tokens of what was answered, by our estimate."""

    @property
    def headers(self) -> Headers:
        return [header for header in self.answering.headers if header[0] not in _UNTRUE]

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises the upstream errors."""
        rounds, answering = self._rounds, plain_answer(self.answering)
        streamed = media_type(answering.headers) == EVENT_STREAM
        while True:
            try:
                async for piece in self._frames(answering) if streamed else self._pieces(answering):
                    yield piece
            except StenoError as error:
                rounds.failed = True
                if not rounds.falls_back:
                    raise
                self._warn(error.message)
            if not (rounds.asks or rounds.falls_back):
                break
            following = asyncio.ensure_future(self._following(streamed=streamed))
            try:
                async for frame in self._meanwhile(following):
                    yield frame if streamed else b""
                answering = following.result()
            finally:
                following.cancel()
        yield await self._end(streamed=streamed)

    async def _meanwhile(self, following: asyncio.Future[UpstreamAnswer]) -> AsyncIterator[bytes]:
        """Frames that keep the client's stream alive until the next round is answered."""
        seconds = keep_alive_seconds(self.forwarding.caller)
        while not (await asyncio.wait({following}, timeout=seconds))[0]:
            yield KEEP_ALIVE

    async def _end(self, *, streamed: bool) -> bytes:
        """End of the answer, and what is kept of it."""
        rounds = self._rounds
        await self.forwarding.services.compactor.asides.keep(self.observed.request, await self._aside())
        if (self.given or rounds.number) and self.observed.request.ties:
            await self.forwarding.services.compactor.ties_nothing(self.observed.request)
        if rounds.number:
            self.observed.ends_with(usage_of(rounds.usage_said))
        self._tell()
        return rounds.end() if streamed else rounds.ended_whole()

    def _tell(self) -> None:
        """Put into the answer how often the model asked, and the provider's tokens of what it got."""
        if self.given and self.editor is not None:
            request, decision = self.observed.request, self.observed.decision
            asked = {"calls": len(self.given), "tokens": request.budget.line.reported(self.tokens)}
            self.editor.finish_members = context_members(request, decision, asked).report

    async def _frames(self, answering: UpstreamAnswer) -> AsyncIterator[bytes]:
        splitter = FrameSplitter()
        async for chunk in answering.chunks():
            if passed := b"".join(map(self._rounds.frame, splitter.feed(chunk))):
                yield passed
        if rest := splitter.flush():
            yield self._rounds.frame(rest)

    async def _pieces(self, answering: UpstreamAnswer) -> AsyncIterator[bytes]:
        """Take a round in one piece; the first one passes as it comes if it is too large."""
        body, chunks = bytearray(), answering.chunks()
        if await read_into(body, chunks, LARGEST_WHOLE):
            if not self._rounds.whole(bytes(body)) and self._rounds.number:
                raise UpstreamUnreadable("The provider's answer to what the model asked for cannot be read.")
        elif self._rounds.number:
            raise UpstreamUnreadable(f"The provider's answer is larger than {LARGEST_WHOLE} bytes.")
        else:
            yield bytes(body)
            async for chunk in chunks:
                yield chunk

    async def _following(self, *, streamed: bool) -> UpstreamAnswer:
        """The next round's answer: with what the model asked for, or without our functions where that fails."""
        rounds, request, decision = self._rounds, self.observed.request, self.observed.decision
        beside = partial(request.beside, self.forwarding.services.work.do)
        self.observed.goes_on(usage_of(rounds.usage_said), first=not rounds.number)
        may_go_on = rounds.asks and rounds.number < ROUNDS and rounds.whole_calls and len(rounds.calls) <= MOST_CALLS
        if may_go_on and (free := await beside(self._free)) >= 0:
            answers = await self._answers(free, is_last=rounds.number + 1 == ROUNDS)
            body = await beside(partial(self.observed.payload, rounds.go_on(answers)))
            try:
                return await self._sent(body, decision, streamed=streamed)
            except StenoError as error:
                self._warn(error.message)
        rounds.start_anew()
        # Thoughts were tied to our functions, too: what was made behind them would be refused without.
        without = await self.forwarding.services.compactor.decide(request, Untie(replace(decision, offered=0)))
        body = await beside(partial(request.payload, without, ask_usage=self.observed.asks_usage))
        return await self._sent(body, without, streamed=streamed)

    def _warn(self, error: str) -> None:
        log.warning("a round was not answered", request_id=self.observed.request.request_id, error=error)

    async def _sent(self, body: bytes, decision: Decision, *, streamed: bool) -> UpstreamAnswer:
        """The answer to a further round. Raises the upstream errors, also for a refusal."""
        request = self.observed.request
        sent = self.milestones.own(await self.forwarding.send_decided(body, request, decision, tells=False))
        self.observed.answered(sent.status)
        if sent.status != 200:
            raise UpstreamDisconnected(f"The provider refused to go on with its answer, with status {sent.status}.")
        answering = plain_answer(sent)
        return StreamedAnswer(answering, request.format, request.wire) if streamed else answering

    def _free(self) -> int:
        """Tokens that are left for answers behind the prompt and what the rounds said, beside the least for each."""
        request, rounds = self.observed.request, self._rounds
        said = b"".join(rounds.so_far()).decode("utf-8", "replace")
        return request.budget.limit - self.observed.sent - request.count(said) - LEAST_ANSWER * len(rounds.calls)

    async def _answers(self, free: int, *, is_last: bool) -> Sequence[str]:
        """Answers to the calls of the round, in so many tokens beside the least for each."""
        request, compactor = self.observed.request, self.forwarding.services.compactor
        most = room_in(request.budget.limit)
        texts = []
        for call in self._rounds.calls:
            room = max(0, min(most - self.tokens, free))
            asked = Asked(call.name, call.arguments)
            found = await compactor.answer(request, self.view, self.policy, asked, room, self.given)
            self.given.append(found.text)
            self.tokens += found.tokens
            free -= found.tokens
            self.observed.asked.append((self._rounds.number, asked, found))
            self.forwarding.record.metrics.asked(found.tokens)
            log.info(
                "the model asked",
                request_id=request.request_id,
                conversation_id=request.conversation_id,
                messages=len(found.messages),
                tokens=found.tokens,
            )
            texts.append(f"{found.text}\n{NO_MORE}" if is_last else found.text)
        return texts

    async def _aside(self) -> Aside | None:
        """Put together what the client does not see, for when it sends the results of its own calls."""
        rounds = self._rounds
        if not rounds.is_mixed or len(rounds.calls) > MOST_CALLS:
            return None
        free = await self.observed.request.beside(self.forwarding.services.work.do, self._free)
        return rounds.aside(await self._answers(free, is_last=False))


def in_rounds(
    forwarding: Forwarding, milestones: Milestones, observed: Observation, answering: UpstreamAnswer
) -> UpstreamAnswer:
    """The answer in which the model may ask, if its request offers that; else the answer as it is."""
    request, decision = observed.request, observed.decision
    if not decision.offered or answering.status != 200:
        return answering
    tools, policy, view = request.format.recall_tools, request.asks, decision.view
    if tools is None or policy is None or view is None:
        return answering
    rounds = tools.rounds(policy.names)
    return AskedAnswer(answering, forwarding, milestones, observed, view, policy, rounds)


def tell_asked(answering: UpstreamAnswer, editor: AnswerEditor) -> None:
    """Let an editor tell of the rounds that an answer takes, if it tells of the context at all."""
    if isinstance(answering, AskedAnswer) and editor.finish_members:
        answering.editor = editor
