"""Observation: what a provider's answer teaches about its model. Off the request's path, and never in its way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import structlog

from app.compaction.job import Job
from app.core.limits.overflow import LEAST_LIMIT, Overflow
from app.core.limits.recovery import LEAST_ROOM, recovery_budget
from app.core.stages.ladder import Decision
from app.core.tokens.calibration import Sample, picture_sample, pictures_of
from app.providers.ledger import Call
from app.providers.providers import StreamedUsage
from app.providers.upstream import LONGEST_REFUSAL, Answering, Headers, read_refusal_into
from app.proxy.intake import Understood
from app.proxy.services import Services
from app.tokens.tokenizer import by_bytes
from app.wire.sse import FrameSplitter, StreamEditor
from app.wire.usage import prompt_tokens, read_usage

log = structlog.get_logger("steno.observe")

MISJUDGED = 4
"""An estimate is never wrong by more: what a refusal tells of a prompt that much smaller is not about it."""

REFUSALS = frozenset({400, 413, 422, 429})
"""Statuses that can mean the prompt was too large, or a parameter unknown."""
FIRST_PIECE_SECONDS = 1.0
_USAGE_OPTION = re.compile(rb"stream_options|include_usage")


@dataclass(slots=True)
class Answered:
    """A call to the provider that was answered."""

    status: int
    usage: object = None
    """As received."""


@dataclass(slots=True)
class Observation:
    """One request's answer, compared with what was expected of it."""

    services: Services
    understood: Understood
    prepared: Decision
    asks_usage: bool = field(init=False)
    """Whether we ask for the stream's usage and the client does not: without it a stream teaches nothing."""
    overflow: Overflow | None = None
    """Why the provider refused the request, where that was its size."""
    _answered: list[Answered] = field(default_factory=list)
    """What is not in the ledger yet."""

    def __post_init__(self) -> None:
        # Only where it was seen that nothing comes unasked: what comes then is what we asked for, and is taken out.
        request, settings = self.understood.request, self.services.settings
        self.asks_usage = (
            settings.calibration.ask_usage
            and settings.events.body
            and self.prepared.view is not None
            and request.stream
            and not request.wants_usage
            and self.understood.provider.streamed_usage.holding(self.understood.job.tenant, request.model)
            is StreamedUsage.WHEN_ASKED
        )

    @property
    def could_overflow(self) -> bool:
        """Whether an early error may be about the prompt's size, and a smaller one could be made."""
        return (
            self.understood.job.compaction and (self.understood.job.conversation.bound or LEAST_ROOM + 1) > LEAST_ROOM
        )

    @property
    def sent(self) -> int:
        """Our estimate of what was sent."""
        return self.understood.forwarded(self.prepared)

    def body(self) -> bytes:
        """What is sent."""
        alternate = self.understood.provider.settings.alternating_roles
        return self.understood.body(self.prepared, alternate, self.asks_usage)

    def answered(self, status: int) -> None:
        """A call was answered; what it took may still be told."""
        self._answered.append(Answered(status))
        if status == HTTPStatus.OK:
            self.understood.provider.windows.accepts(self.understood.job.tenant)

    def usage(self, usage: object, *, whole: bool = True, streamed: bool = True) -> None:
        """An answer came, and said that it cost this much. From one that broke off nothing is learnt.

        `streamed`: it came as a stream. A completion in one piece always says what it cost.
        """
        if self._answered:
            self._answered[-1].usage = usage
        self.settle()
        if not whole:
            return
        try:
            if streamed and not (self.asks_usage or self.understood.request.says_whether_usage):
                self._remember(StreamedUsage.UNASKED if usage else StreamedUsage.WHEN_ASKED)
            self._usage(usage)
        except Exception:
            log.exception("an answer's usage was not learnt from")

    def window_full(self, usage: object, written: int) -> None:
        """The window cut the answer off, of which so many bytes had come: prompt and answer are all there is room for.

        An overflow, but there is an answer: it is the next request that is made smaller.
        """
        try:
            told, request = read_usage(usage), self.understood.request
            prompt = told.prompt or self.understood.job.budget.line.reported(self.sent)
            answer = told.completion or by_bytes(written)
            limit = prompt + answer // max(1, request.choices)
            if limit >= LEAST_LIMIT:
                self.understood.provider.windows.learn(
                    self.understood.job.tenant, request.model, Overflow("context_window", limit)
                )
        except Exception:
            log.exception("a full window was not learnt from")

    def settle(self) -> None:
        """Enters into the ledger what was answered. Not before the request is counted."""
        answered, self._answered = self._answered, []
        try:
            for answer in answered:
                self.services.ledger.record(self._call(answer))
        except Exception:
            log.exception("an answer was not recorded")

    async def refused(self, opened: Opened) -> bool:
        """The provider did not take the request: whether it may take it without what we added. Remembered."""
        model = self.understood.request.model
        if self.asks_usage and opened.status in (400, 422) and _USAGE_OPTION.search(opened.read):
            self.asks_usage = False
            self._remember(StreamedUsage.REFUSED)
            log.info("the provider tells no usage in streams", model=model)
            return True
        await self.refusal(opened.status, opened.headers, opened.read)
        return False

    async def refusal(self, status: int, headers: Headers, body: bytes, *, first_frame: bool = False) -> None:
        """`first_frame`: the error came as the first frame of a stream that began with status 200."""
        try:
            windows, model = self.understood.provider.windows, self.understood.request.model
            self.overflow = windows.overflow_in(status, headers, body, first_frame=first_frame)
            if first_frame and self.overflow is not None and self._answered:
                self._answered[-1].status = 400  # In truth it was refused.
            if self.overflow is not None and await self._trusts(self.overflow, body):
                windows.learn(self.understood.job.tenant, model, self.overflow, self.understood.request.output)
        except Exception:
            log.exception("a refusal was not learnt from")

    async def _trusts(self, overflow: Overflow, body: bytes) -> bool:
        """Whether requests may be measured by what this refusal told.

        Some errors quote the client. Its own words are no limit: a number that may be the request's is not learnt, nor
        one that does not fit what was sent.
        """
        if overflow.limit is None:
            return False
        expected = self.understood.job.budget.line.reported(self.sent)
        told = overflow.prompt or overflow.requested or overflow.limit
        error = body[:LONGEST_REFUSAL].decode("utf-8", "replace")
        if told > MISJUDGED * expected:
            return False
        request, limit, tenant = self.understood.request, overflow.limit, self.understood.job.tenant
        return not await self.services.work.do(tenant, lambda: request.echoed_in(error, limit))

    def recovery(self) -> Job | None:
        """The request with the limits to send it once more with, or None where that cannot help."""
        job, overflow = self.understood.job, self.overflow
        if overflow is None or not job.compaction:
            return None
        instructions, output = job.conversation.instruction_tokens, self.understood.request.output
        budget = recovery_budget(overflow, job.budget, self.sent, instructions, output)
        # Its summary settings are then worked out anew: what the refusal told holds for the summariser too, where it is
        # the same model.
        return replace(job, budget=budget) if budget is not None else None

    def _call(self, answered: Answered) -> Call:
        job = self.understood.job
        estimated, forwarded = self.understood.tokens(self.prepared)
        return Call(
            tenant=job.tenant,
            conversation_id=job.conversation_id,
            request_id=job.request_id,
            turn=len(job.conversation.transcript.turn_starts),
            purpose="message",
            upstream=self.understood.provider.name,
            model=job.model,
            status=answered.status,
            usage=answered.usage,
            estimated=estimated,
            forwarded=forwarded,
            context_status=self.prepared.status,
        )

    def _remember(self, told: StreamedUsage) -> None:
        """How the model's streams tell their usage. What it refused once it is not asked again for a day."""
        known, model = self.understood.provider.streamed_usage, self.understood.request.model
        tenant = self.understood.job.tenant
        if known.own(tenant, model) is StreamedUsage.REFUSED and told is StreamedUsage.WHEN_ASKED:
            return
        known.saw(tenant, model, told)

    def _usage(self, usage: object) -> None:
        request, conversation = self.understood.request, self.understood.job.conversation
        provider, tenant = self.understood.provider, self.understood.job.tenant
        reported = prompt_tokens(usage)
        if reported is None:
            return
        provider.windows.succeeded(tenant, request.model, reported)
        if not self.services.settings.calibration.enabled:
            return
        if not request.is_typical:
            return  # What it cost is only guessed, or differs from provider to provider.
        calibrations, formula, tools = provider.calibrations, self.understood.formula, self.understood.tools
        if not conversation.holds_media:
            calibrations.learn(tenant, request.model, formula, tools, Sample(self.sent, reported))
        elif self.prepared.view is None and (shown := self.understood.prompt.pictures()):
            # Everything was sent, and all media are pictures of known size: what the text does not cost, they do.
            plain, scaled = shown
            text = calibrations.of(tenant, request.model, formula, tools)
            sample = picture_sample(text, self.sent - scaled, plain, reported)
            if sample is not None:
                calibrations.learn(tenant, request.model, pictures_of(formula), False, sample)


@dataclass(slots=True)
class Opened:
    """An answer whose beginning was read to see what it is. It is passed on as it came."""

    answering: Answering
    rest: AsyncIterator[bytes]
    read: bytes = b""
    reading: asyncio.Future[bytes] | None = None
    """A piece that had not come yet when it was time to go on."""

    @property
    def status(self) -> int:
        return self.answering.status

    @property
    def headers(self) -> Headers:
        return self.answering.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.read:
            yield self.read
        if self.reading is not None:
            try:
                yield await self.reading
            except StopAsyncIteration:
                return
        async for chunk in self.rest:
            yield chunk

    async def close(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
            await asyncio.wait({self.reading})
        await self.answering.close()


async def read_refusal(answering: Answering) -> Opened:
    """Reads a refusal's body, up to a size no refusal has. Raises the upstream errors."""
    opened, body = Opened(answering, answering.chunks()), bytearray()
    await read_refusal_into(body, opened.rest)
    opened.read = bytes(body)
    return opened


async def read_first_piece(answering: Answering) -> Opened:
    """The first piece of a stream if it comes soon: an error that other providers send with its status does."""
    opened = Opened(answering, answering.chunks())
    reading = asyncio.ensure_future(anext(opened.rest, b""))
    try:
        if (await asyncio.wait({reading}, timeout=FIRST_PIECE_SECONDS))[0]:
            opened.read = reading.result()
        else:
            opened.reading = reading
    finally:
        if opened.reading is None:
            reading.cancel()
    return opened


def refusal_in(piece: bytes) -> bytes:
    """The error that a stream begins with; empty if it begins with anything else."""
    editor, splitter = StreamEditor(b"", b""), FrameSplitter()
    for frame in splitter.feed(piece):
        editor.edit(frame)
        if editor.refusal or editor.seen_first:
            break
    return editor.refusal
