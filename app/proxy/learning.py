"""Learning: lessons of a provider's answer about its model. Off the request's path, and never in its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

import structlog
from msgspec.structs import replace

from app.compaction.budget import MIN_LIMIT, CutAnswer, Overflow, Payload, Recovery, least_room, overflow_of, recover
from app.compaction.fallback import Decision
from app.compaction.request import ChatRequest
from app.compaction.view import sent_again_from, turn_digest, without_thinking
from app.formats.answers import AnswerEditor
from app.formats.refusals import refused_shape
from app.formats.usage import Usage
from app.http.upstream import LONGEST_REFUSAL, Headers
from app.providers.ledger import NOT_REPORTED
from app.providers.providers import Provider, StreamedUsage
from app.providers.windows import overflow_in
from app.proxy.caller import Caller
from app.proxy.peeking import PeekedAnswer
from app.proxy.report import LONGEST_REASON
from app.proxy.services import Services
from app.tokens.calibration import Sample, picture_sample, pictures_of
from app.tokens.tokenizer import by_bytes
from app.tokens.usage import UNBILLED, PromptEstimate, Tokens

log = structlog.get_logger("steno.observe")

MISJUDGED = 4
"""Greatest error of an estimate: what a refusal says about a prompt that much smaller is not about it."""


@dataclass(slots=True)
class AnsweredCall:
    status: int
    usage: Usage | None = None

    @property
    def tokens(self) -> Tokens:
        """Usage as far as it was told."""
        return self.usage.tokens if self.usage else NOT_REPORTED


@dataclass(slots=True)
class Observation:
    """Answer of one request, compared with what was expected of it."""

    services: Services
    request: ChatRequest
    decision: Decision
    waited_seconds: float | None = None
    """Seconds waited for a compaction; None if none was being made for it."""
    asks_usage: bool = field(init=False)
    """True if we ask for the stream's usage and the client does not: without it a stream teaches nothing."""
    overflow: Overflow | None = None
    """Reason why the provider refused the request, if that was its size."""
    is_refused: bool = False
    """True once the provider refused it, also in the first frame of a stream with status 200."""
    misshapen: str | None = None
    """Words of the provider about the order of the messages, if we had changed them."""
    is_smaller: bool = False
    """True for a payload made smaller in place of a refused one: an empty answer to it is no matter of the window."""
    _limit: Overflow | None = None
    """The refusal, if requests may be measured by its limit."""
    size: int = 0
    """Bytes of the body that was sent."""
    _answered: list[AnsweredCall] = field(default_factory=list)
    """Calls that are not in the ledger yet."""

    def __post_init__(self) -> None:
        # Only where it was seen that nothing comes unasked: what comes then is what we asked for, and is taken out.
        wire, services = self.request.wire, self.services
        self.asks_usage = (
            self.decision.view is not None
            and services.events.body
            and wire.answer.stream
            and not wire.answer.wants_usage
            and self.request.provider.streamed_usage.holding(
                self.request.tenant, (self.request.format.name, wire.model)
            )
            is StreamedUsage.WHEN_ASKED
        )

    @property
    def could_overflow(self) -> bool:
        """True if an early error may be about the prompt's size, and a smaller one could be made."""
        bound, request = self.request.conversation.bound, self.request
        return request.compaction and (bound is None or bound > least_room(request.budget))

    @property
    def sent(self) -> int:
        """Estimate of what was sent, in our tokens."""
        return self.request.forwarded(self.decision)

    @property
    def reported(self) -> Tokens:
        """Usage of the latest call, as far as it was reported and is not in the ledger yet."""
        return self._answered[-1].tokens if self._answered else NOT_REPORTED

    def payload(self) -> bytes:
        """Bytes that are sent."""
        return self.request.payload(self.decision, ask_usage=self.asks_usage)

    def answered(self, status: int) -> None:
        """Record that a call was answered; its usage may still be reported."""
        self._answered.append(AnsweredCall(status))
        if status == HTTPStatus.OK:
            self.request.provider.windows.add_answered(self.request.tenant)
            if self.request.binds_thinking:
                self._learn_refused_thinking(sent_again_from(self.request.conversation, self.decision.view))

    def usage(self, usage: Usage | None, *, whole: bool = True, streamed: bool = True) -> None:
        """Record the usage that an answer reported. From one that broke off nothing is learnt. `streamed`: it came
        as a stream. A completion in one piece always reports it."""
        if self._answered:
            self._answered[-1].usage = usage
        if not whole:
            return
        try:
            if streamed and not (self.asks_usage or self.request.wire.answer.says_whether_usage):
                self._remember(StreamedUsage.UNASKED if usage else StreamedUsage.WHEN_ASKED)
            self._usage(usage)
        except Exception:
            log.exception("an answer's usage was not learnt from")

    def ended(self, editor: AnswerEditor, *, is_empty: bool) -> None:
        """Record an answer that may have ended for want of room, before the client has got anything of it."""
        if not (editor.window_full or editor.at_length):
            return
        if self._answered:
            self._answered[-1].usage = editor.usage
        self.overflow = self._cut(editor, is_empty=is_empty)

    def cut_off(self, editor: AnswerEditor) -> None:
        """Record an answer that ended for want of room and is the client's: the next request is made smaller."""
        if editor.window_full or (editor.at_length and not editor.text_bytes):
            self._cut(editor, is_empty=not editor.text_bytes)

    def _cut(self, editor: AnswerEditor, *, is_empty: bool) -> Overflow | None:
        """Return the overflow that the end of an answer tells, and learn from it: there is no more room than prompt
        and answer took."""
        asked, budget = self.request.wire.answer, self.request.budget
        try:
            usage = editor.usage
            tokens, expected = usage.tokens if usage else Tokens(), budget.line.to_provider_tokens(self.sent)
            completion = tokens.completion
            if completion is None and not is_empty:
                completion = by_bytes(editor.text_bytes)
            each = None if completion is None else completion // max(1, asked.choices)
            cut, cap = CutAnswer(editor.window_full, is_empty, tokens.prompt, each), self.decision.output_cap
            overflow = overflow_of(cut, expected, budget.window, budget.reserve, cap or asked.output)
            is_told = overflow is not None or (cut.by_window and cut.total(expected) >= MIN_LIMIT)
            if is_told and not (self.is_smaller and is_empty):
                self._learn(Overflow("context_window", cut.total(expected)), is_measured=True)
        except Exception:
            log.exception("a full window was not learnt from")
            return None
        else:
            return overflow

    def confirmed(self) -> None:
        """Record that a smaller prompt was answered than the one refused: the limit in the refusal holds, however much
        less it is than the configured window."""
        if self._limit is not None:
            self._learn(self._limit, is_measured=True)

    def _learn(self, overflow: Overflow, output: int | None = None, *, is_measured: bool = False) -> None:
        request = self.request
        windows, model, asked = request.provider.windows, request.wire.model, request.measure.asked
        windows.learn(request.tenant, model, overflow, output, asked, is_measured=is_measured)

    def replaced(self) -> None:
        """Record that another answer went to the client in place of this one, which was as good as a refusal."""
        if self._answered:
            self._answered[-1].status = 400

    def settle(self) -> None:
        """Enter answered calls into the ledger. Not before the request is counted."""
        answered, self._answered = self._answered, []
        try:
            for each in answered:
                self._record(each)
        except Exception:
            log.exception("an answer was not recorded")

    async def mended(self, refusal: PeekedAnswer) -> bool:
        """True if the provider, which did not take the request, may take the same messages, now without what we
        added, or without signed thinking. Remembered."""
        model, spoken = self.request.wire.model, self.request.format
        if self.asks_usage and refusal.status in (400, 422) and spoken.answers.refuses_to_tell_usage(refusal.read):
            self.asks_usage = False
            self._remember(StreamedUsage.REFUSED)
            log.info("the provider reports no usage in streams", model=model)
            return True
        if await self._goes_without_thinking(refusal):
            log.info("the provider refused thinking", model=model)
            return True
        return False

    async def _goes_without_thinking(self, refusal: PeekedAnswer) -> bool:
        """True if signed thinking was refused that the request can do without."""
        view, request = self.decision.view, self.request
        is_about_it = request.format.refuses_thinking(refusal.read, request.wire, changed=view is not None)
        if refusal.status != HTTPStatus.BAD_REQUEST or not is_about_it:
            return False
        conversation = request.conversation
        messages = len(conversation.transcript)
        leaving_out = partial(without_thinking, conversation, view, messages, request.cost)
        left = await request.beside(self.services.work.do, leaving_out)
        if left is view and not request.wire.demands_thinking:
            return False
        self._learn_refused_thinking(messages)
        self.request = replace(request, thinking_from=messages)
        without = replace(self.decision, view=left, actions=left.actions if left else (), output_cap=None)
        self.decision = self.request.with_output_limits(without)
        return True

    def _learn_refused_thinking(self, messages: int) -> None:
        """Remember that the turn goes on without the thinking of so many messages; 0 is nothing to remember."""
        request, turn = self.request, turn_digest(self.request.conversation)
        if messages and turn is not None:
            request.provider.learn_refused_thinking(request.tenant, request.format.name, request.model, turn, messages)

    async def refusal(self, status: int, headers: Headers, body: bytes, *, first_frame: bool = False) -> None:
        """Record a refusal. `first_frame`: the error came as the first frame of a stream that began with status 200."""
        self.is_refused = True
        try:
            self.overflow = overflow_in(status, headers, body, first_frame=first_frame)
            if self.decision.view is not None and self.overflow is None:
                self.misshapen = refused_shape(status, body, first_frame=first_frame)
            if first_frame and (self.overflow or self.misshapen):
                self.replaced()
            if self.overflow is not None and await self._trusts(self.overflow, body):
                # A number that is no more than the output cap may be about that, where the prompt's is not told.
                output = self.request.wire.answer.output if self.overflow.prompt is None else None
                self._limit = self.overflow
                self._learn(self.overflow, output)
        except Exception:
            log.exception("a refusal was not learnt from")

    async def _trusts(self, overflow: Overflow, body: bytes) -> bool:
        """True if requests may be measured by what this refusal said. Some errors quote the client. Its own words
        are no limit: a number that may be the request's is not learnt, nor one that does not fit what was sent."""
        if overflow.limit is None:
            return False
        expected = self.request.budget.line.to_provider_tokens(self.sent)
        named = overflow.prompt or overflow.requested or overflow.limit
        error = body[:LONGEST_REFUSAL].decode("utf-8", "replace")
        if named > MISJUDGED * expected:
            return False
        wire, limit, tenant = self.request.wire, overflow.limit, self.request.tenant
        return not await self.services.work.do(tenant, lambda: wire.echoed_in(error, limit))

    def recovery(self) -> Recovery | None:
        """Return what to send once more, or None if nothing can help."""
        request, overflow, asked = self.request, self.overflow, self.request.wire.answer
        if overflow is None or not request.compaction:
            return None
        conversation, cap = request.conversation, self.decision.output_cap or asked.output
        sent = Payload(
            self.sent, conversation.instruction_tokens, cap, asked.thinking, conversation.holds_media, self.size
        )
        if overflow.kind == "payload" and request.policy.mask and request.policy.mask.shapes:
            media = (media.size for message in conversation.history for media in message.media)
            sent = replace(sent, media_bytes=sum(media))
        return recover(overflow, request.budget, sent)

    def _record(self, answered: AnsweredCall) -> None:
        request, decision = self.request, self.decision
        estimated, forwarded = request.tokens(decision)
        decided = request.measure.decided
        if decision.actions or decision.why or self.waited_seconds is not None:
            reason = decision.reason
            decided = replace(
                decided,
                actions=decision.actions,
                reason=reason and reason[:LONGEST_REASON],
                waited_seconds=self.waited_seconds,
            )
        self.services.ledger.record(
            tenant=request.tenant,
            conversation_id=request.conversation_id,
            request_id=request.request_id,
            turn=len(request.conversation.transcript.turn_starts),
            purpose="message",
            upstream=request.measure.provider.name,
            format_=request.format.name,
            model=request.model,
            status=answered.status,
            tokens=answered.tokens,
            bill=answered.usage.bill if answered.usage else UNBILLED,
            estimated=estimated,
            forwarded=forwarded,
            context_status=decision.status,
            decided=decided,
            chain=request.conversation.chain,
            sizes=PromptEstimate(request.conversation.tokens, request.forwarded(decision), request.budget.line.ratio),
        )

    def _remember(self, seen: StreamedUsage) -> None:
        """Remember how the model's streams tell their usage. A model that refused to is not asked again for a day."""
        known, model = self.request.provider.streamed_usage, (self.request.format.name, self.request.wire.model)
        tenant = self.request.tenant
        if known.own(tenant, model) is StreamedUsage.REFUSED and seen is StreamedUsage.WHEN_ASKED:
            return
        known.saw(tenant, model, seen)

    def _usage(self, usage: Usage | None) -> None:
        wire, conversation = self.request.wire, self.request.conversation
        provider, tenant = self.request.provider, self.request.tenant
        reported = usage.prompt if usage else None
        if reported is None:
            return
        provider.windows.add_prompt(tenant, wire.model, reported, self.request.measure.asked)
        if not self.services.calibration.enabled:
            return
        calibrations, formula, tools = provider.calibrations, self.request.measure.formula, self.request.measure.tools
        taught = (pictures_of(formula), False) if conversation.holds_media else (formula, tools)
        if not calibrations.is_due(tenant, wire.model, *taught):
            return
        if not wire.is_typical:
            return  # What it cost is only guessed, or differs from provider to provider.
        if not conversation.holds_media:
            calibrations.learn(tenant, wire.model, *taught, Sample(self.sent, reported))
        elif self.decision.view is None and (shown := self.request.prompt.pictures()):
            # Everything was sent, and all media are pictures of known size: what the text does not cost, they do.
            plain, scaled = shown
            text = calibrations.of(tenant, wire.model, formula, tools)
            sample = picture_sample(text, self.sent - scaled, plain, reported)
            if sample is not None:
                calibrations.learn(tenant, wire.model, *taught, sample)


def enter_unread(
    services: Services,
    caller: Caller,
    request_id: str,
    provider: Provider,
    model: str,
    answered: AnsweredCall,
    context_status: str,
    body: bytes,
) -> None:
    """Enter a call whose request passed as it came: nobody knows its conversation."""
    size = answered.tokens.prompt or by_bytes(len(body))
    services.ledger.record(
        tenant=caller.tenant,
        conversation_id="",
        request_id=request_id,
        turn=0,
        purpose="message",
        upstream=provider.name,
        format_=caller.format.name,
        model=model,
        status=answered.status,
        tokens=answered.tokens,
        bill=answered.usage.bill if answered.usage else UNBILLED,
        estimated=size,
        forwarded=size,
        context_status=context_status,
    )
