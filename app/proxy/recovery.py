"""Recovery: the changed payload that Steno may send after the provider refused a payload.

Steno changes the messages of a request at most once. Omitting usage or thinking, or merging adjacent
messages of one role, does not count as a change.

| refused | new payload | learnt |
|---|---|---|
| usage in a stream | the same, without asking for usage | for a day, Steno does not ask this model for usage |
| signed thinking | the same messages without thinking | this thinking is left out for the rest of the turn |
| two messages of one role in a row | the same view with alternating roles | the model requires alternating roles |
| another fault in the order of the messages | the next view (`simpler_decision`) | nothing |
| the size of prompt and output cap together | a lower output cap | if answered: both must fit the window together |
| the size | a smaller prompt | the limit in the refusal, confirmed if the smaller prompt is answered |
| nothing, but the window left no room for an answer | a smaller prompt | the window: prompt plus answer |
| a changed payload, for another reason (status 400 or 422) | the client's own bytes, if they fit | nothing |

If there is no other payload, the client gets the refusal. `retries.py` repeats an unchanged payload.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from time import monotonic

import structlog
from msgspec.structs import replace

from app.compaction.budget import least_room
from app.compaction.decision import Decision, capped
from app.compaction.overflow import Overflow, Payload, SmallerLimits, limits_after
from app.compaction.verify import order_of
from app.compaction.view import without_thinking
from app.conversation.reasons import Code, because
from app.formats.answers import LARGEST_WHOLE, AnswerEditor
from app.formats.format import WireFormat
from app.formats.refusals import (
    MISSING_PATH_STATUSES,
    OVERFLOW_STATUSES,
    decoded_body,
    demands_alternation,
    is_error,
    refused_shape,
    says_no_such_path,
    status_named,
)
from app.formats.sse import FrameSplitter
from app.http.connection import UpstreamExchange
from app.http.headers import EVENT_STREAM, media_type
from app.http.upstream import LONGEST_REFUSAL
from app.providers.providers import StreamedUsage
from app.providers.windows import overflow_in
from app.proxy.early_stream import announce_summary, longest_silence
from app.proxy.exchange import Attempt, Exchange, Refusal
from app.proxy.learn import learn_cut, learn_limit, learn_overflow, learn_refused_thinking, learn_streamed_usage

log = structlog.get_logger("steno.observe")

UNKNOWN_FAULT_STATUSES = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
MESSAGES_CHANGED = ("order", "size", "other")
"""Kinds of refusals after which Steno changes the messages."""
CUT_WORDS = (b'length"', b'"max_tokens"', b'"incomplete"', b"context")
"""Words in answers that ended at a length limit. Steno does not parse an answer without one of them."""
FIRST_PIECE_SECONDS = 1.0
"""Maximum seconds for which Steno holds back a stream without content, because the stream may be a refusal. For the
answer to a changed payload, `longest_silence` applies instead."""
MOST_EMPTY_FRAMES = 10
"""After more frames than this without known content, `FIRST_PIECE_SECONDS` applies: they may have unknown content."""


async def inspect_answer(exchange: Exchange, attempt: Attempt, answering: UpstreamExchange) -> None:
    """Read a refusal and learn from it. If the status is 200, read the answer until it is clear whether the answer is a
    refusal. Raises the upstream errors."""
    attempt.answering, attempt.refusal = answering, None
    request, status = attempt.request, answering.status
    if status in OVERFLOW_STATUSES:
        body, _ = await answering.read_ahead(LONGEST_REFUSAL, raises=status < HTTPStatus.INTERNAL_SERVER_ERROR)
        attempt.refusal = await _read_refusal(exchange, attempt, body)
    elif status in MISSING_PATH_STATUSES:
        body, _ = await answering.read_ahead(LONGEST_REFUSAL, raises=False)
        # A refusal of another spelling, such as one with a second slash, does not show that this path is missing.
        is_own = request.format.is_at(exchange.caller.target.partition(b"?")[0])
        if is_own and says_no_such_path(status, body):
            request.provider.lacks(request.format.name, request.tenant)
    elif status == HTTPStatus.OK and request.may_compact:
        bound = request.conversation.bound
        if bound is None or bound > least_room(request.budget):
            await _inspect_beginning(exchange, attempt, answering)


async def _inspect_beginning(exchange: Exchange, attempt: Attempt, answering: UpstreamExchange) -> None:
    """Detect a refusal in an answer with status 200: an error, or no content because the window is full."""
    kind, format_ = media_type(answering.headers), attempt.request.format
    if kind == EVENT_STREAM:
        is_changed = attempt.decision.view is not None
        seconds = longest_silence(exchange.caller) if is_changed else FIRST_PIECE_SECONDS
        editor = await read_beginning(answering, format_, seconds)
        if editor.error and not editor.has_content:
            attempt.refusal = await _read_refusal(exchange, attempt, editor.error, first_frame=True)
        elif editor.complete and not editor.has_content:
            attempt.refusal = _cut_short(attempt, editor)
    elif kind == "application/json":
        body, is_whole = await answering.read_ahead(LARGEST_WHOLE, raises=False)
        if len(body) <= LONGEST_REFUSAL and b'"error' in body and is_error(decoded_body(body)):
            attempt.refusal = await _read_refusal(exchange, attempt, body, first_frame=True)
        elif is_whole and any(word in body for word in CUT_WORDS):
            editor = format_.editor()
            editor.whole(body)
            attempt.refusal = _cut_short(attempt, editor)


async def read_beginning(answering: UpstreamExchange, format_: WireFormat, seconds: float) -> AnswerEditor:
    """Read a stream until it has content, ends or fails, but for at most `seconds`. Raises the upstream errors."""
    began, frames, seen = monotonic(), 0, 0
    editor, splitter = format_.editor(), FrameSplitter()
    beginning = await answering.beginning(seconds)
    while len(beginning) > seen:
        for frame in splitter.feed(beginning[seen:]):
            editor.edit(frame)
            frames += 1
            if editor.has_content:
                return editor
        if frames > MOST_EMPTY_FRAMES:
            seconds = min(seconds, FIRST_PIECE_SECONDS)
        seen, left = len(beginning), began + seconds - monotonic()
        if left <= 0 or editor.ended or editor.failed:
            break
        beginning = await answering.beginning(left, seen)
    return editor


def _cut_short(attempt: Attempt, editor: AnswerEditor) -> Refusal | None:
    """Return a `size` refusal if the window left no room for an answer, else None. Learn window and usage."""
    if not (editor.window_full or editor.at_length):
        return None
    attempt.calls[-1].usage = editor.usage
    overflow = learn_cut(attempt, editor)
    return None if overflow is None else Refusal("size", overflow=overflow)


async def _read_refusal(exchange: Exchange, attempt: Attempt, body: bytes, *, first_frame: bool = False) -> Refusal:
    """Read the reason of a refusal. `first_frame`: the answer has status 200, and `body` is the answer's body or the
    first frame of its stream."""
    request, view, services = attempt.request, attempt.decision.view, exchange.services
    status, headers, format_ = attempt.answering.status, attempt.answering.headers, request.format
    if exchange.recovered_from is None and not first_frame:
        option = format_.spec.usage_option if attempt.asks_usage and status in (400, 422) else None
        if option is not None and option.search(body):
            return Refusal("usage")
        if status == HTTPStatus.BAD_REQUEST and format_.refuses_thinking(body, request.wire, changed=view is not None):
            conversation = request.conversation
            leaving_out = partial(without_thinking, conversation, view, len(conversation.transcript), request.cost)
            without = await request.beside(services.work.do, leaving_out)
            if without is not view or request.wire.thinking == "enabled":
                return Refusal("thinking", view=without)
    overflow = overflow_in(status, headers, body, first_frame=first_frame)
    if overflow is not None and overflow.needs_pressure and _smaller_limits(attempt, overflow) is None:
        overflow = None  # No overflow: the refusal names no reason, and the prompt is far below the window.
    if overflow is not None:
        refusal = Refusal("size", overflow=overflow)
    elif view is not None and (said := refused_shape(status, body, first_frame=first_frame)) is not None:
        is_new = not request.policy.alternates and demands_alternation(said)
        refusal = Refusal("roles" if is_new else "order", said=said)
    else:
        named = status_named(decoded_body(body)) if first_frame else None
        return Refusal("other", named or status, f"the provider answered with status {status}")
    if first_frame:
        attempt.mark_refused()
    if overflow is not None and await learn_limit(services, attempt, overflow, body):
        return replace(refusal, limit_is_learnt=True)
    return refusal


async def choose_recovery(exchange: Exchange, refused: Attempt) -> Attempt | None:
    """Choose the payload to send after a refusal; None if the client gets the refusal."""
    request, decision, refusal = refused.request, refused.decision, refused.refusal
    if refusal is None:
        return None
    before = exchange.recovered_from
    if before is not None and before.kind in MESSAGES_CHANGED and refusal.kind != "roles":
        return None
    compactor = exchange.services.compactor
    match refusal.kind:
        case "usage":
            learn_streamed_usage(request, StreamedUsage.REFUSED)
            log.info("the provider reports no usage in streams", model=request.model)
            changed = exchange.begin_attempt(request, decision, refused.waited_seconds)
            changed.asks_usage = False
            return changed
        case "thinking":
            messages, view = len(request.conversation.transcript), refusal.view
            learn_refused_thinking(request, messages)
            log.info("the provider refused thinking", model=request.model)
            decision = replace(decision, view=view, actions=view.actions if view else (), output_cap=None)
            return exchange.begin_attempt(replace(request, thinking_from=messages), decision, refused.waited_seconds)
        case "roles" | "order":
            if refusal.kind == "roles":
                request.provider.learn_alternation(request.format.name, request.model, request.tenant)
                request = replace(request, policy=replace(request.policy, alternates=True))
                lower = await compactor.for_request(request).merge_roles(decision, refusal.said)
            else:
                lower = await compactor.for_request(request).step_down(decision, refusal.said)
            if lower is not decision:
                changed = exchange.begin_attempt(request, lower)
                changed.is_smaller = refused.is_smaller
                return changed
        case "size" if refusal.overflow is not None and request.may_compact:
            return await _make_smaller(exchange, refused, refusal.overflow)
        case "other":
            return _begin_unchanged(exchange, refused, refusal.said)
    return None


def _begin_unchanged(exchange: Exchange, refused: Attempt, said: str) -> Attempt | None:
    """Begin an attempt with the client's own bytes, after the provider refused a changed payload for an unknown reason.
    Return None if these bytes exceed the limit or contain refused thinking."""
    request, status = refused.request, refused.answering.status
    if refused.decision.view is None or status not in UNKNOWN_FAULT_STATUSES or request.thinking_from:
        return None
    if not request.conversation.is_within(request.budget.limit):
        return None
    return exchange.begin_attempt(request, Decision(None, why=because(Code.PAYLOAD_REFUSED, said)))


async def _make_smaller(exchange: Exchange, refused: Attempt, overflow: Overflow) -> Attempt | None:
    """Begin an attempt with a lower output cap or a smaller prompt; return None if neither helps."""
    request, decision = refused.request, refused.decision
    if (limits := _smaller_limits(refused, overflow)) is None:
        return None
    began, cap = monotonic(), limits.output_cap or decision.output_cap
    changed = replace(decision, output_cap=None)
    if limits.budget is not None:
        # The compactor computes the summary's limits again, because the summariser may be the refused model. Leave out
        # the turn's thinking: its signature covers messages that change now, and no other attempt follows.
        smaller = replace(request, budget=limits.budget, thinking_from=len(request.conversation.transcript))
        started = partial(announce_summary, exchange, request)
        changed = await exchange.services.compactor.for_request(smaller, started).prepare_smaller()
        if changed.view is not None and changed.view.tokens < refused.tokens:
            # Without a new reason, the earlier decision's reason for having no summary still applies.
            why = changed.why or (() if changed.status == "summarized" else decision.why)
            changed = replace(changed, why=why)
        elif (cap := limits.cap_alone) is not None:
            limits, changed = SmallerLimits(None, cap), replace(decision, output_cap=None)
        else:
            return None
    if cap is not None:
        changed = capped(changed, cap)
    changed = replace(changed, actions=(*changed.actions, "recovered"))
    seconds = round(monotonic() - began, 3)
    # The attempt gets `request`, because the budget of `smaller` is for this decision only.
    attempt = exchange.begin_attempt(request, changed, seconds if exchange.waits_for_summary else None)
    attempt.is_smaller = limits.budget is not None
    exchange.record.decided(request, attempt.decision, seconds=seconds, waited=exchange.waits_for_summary)
    return attempt


def _smaller_limits(refused: Attempt, overflow: Overflow) -> SmallerLimits | None:
    request, asked = refused.request, refused.request.wire.answer
    conversation, cap = request.conversation, refused.decision.output_cap or asked.output
    instructions, view, history = conversation.instruction_tokens, refused.decision.view, conversation.history
    holds_media = history.holds_media and (
        view is None or any(index is not None and history[index].media for index in order_of(view))
    )
    media_bytes = 0
    if overflow.kind == "payload" and request.policy.mask and request.policy.mask.shapes:
        media_bytes = sum(media.size for message in conversation.history for media in message.media)
    sent = Payload(refused.tokens, instructions, cap, asked.thinking, holds_media, refused.size, media_bytes)
    return limits_after(overflow, request.budget, sent)


def takes_place(refused: Attempt, changed: Attempt) -> bool:
    """Return whether the client gets the answer to `changed`, and not the refusal of `refused`."""
    if refused.refusal is None or refused.refusal.keeps_messages:
        return True
    if changed.decision.view is None and refused.decision.view is not None:
        return True
    return changed.answering.status == HTTPStatus.OK and changed.refusal is None


def learn_recovery(exchange: Exchange, refused: Attempt, changed: Attempt, *, is_taken: bool) -> None:
    """Learn from the answer to a changed payload. `is_taken`: whether the client gets this answer."""
    request, refusal = changed.request, refused.refusal
    if refusal is None:
        return
    if refusal.kind in ("roles", "order", "other"):
        # Only an answer to the new payload shows that the refused view was at fault. The provider would refuse a fault
        # in the client's own messages in every view.
        if not is_taken or changed.answering.status != HTTPStatus.OK or changed.refusal is not None:
            why = tuple(reason for reason in changed.decision.why if reason.code is not Code.PAYLOAD_REFUSED)
            changed.decision = replace(changed.decision, why=why)
        exchange.record.decided(request, changed.decision, seconds=0.0, waited=exchange.waits_for_summary)
    elif is_taken and refusal.kind == "size":
        refused.mark_refused()
        if not changed.is_smaller:
            request.provider.adds_output.learn(request.tenant, (request.format.name, request.model), True)
        elif refusal.limit_is_learnt and refusal.overflow is not None:
            # The smaller prompt was answered: this confirms the limit, even if the configured window is much larger.
            learn_overflow(request, refusal.overflow, is_measured=True)
