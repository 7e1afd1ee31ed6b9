"""Learning from answers: limits, token counts and quirks of models. Also builds the records of a request."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from app.compaction.decision import THINKING_OFF, Decision, account_of
from app.compaction.overflow import MIN_LIMIT, CutAnswer, Overflow, overflow_of
from app.compaction.request import ChatRequest
from app.compaction.verify import coverage_of
from app.compaction.view import changes_with_each_request, turn_digests
from app.formats.answers import AnswerEditor
from app.formats.refusals import echoed_in
from app.formats.usage import Usage
from app.http.upstream import LONGEST_REFUSAL
from app.providers.providers import Provider, StreamedUsage
from app.proxy.exchange import Attempt, Call, Exchange, Services
from app.store import CalibrationKey, ConversationSeen, LatestHistory, UsageRecord
from app.tokens.calibration import Sample, picture_sample, pictures_of
from app.tokens.costs import UNBILLED, PromptEstimate, Tokens
from app.tokens.tokenizer import by_bytes

LONGEST_REASON = 1_000
"""Maximum characters of a reason in a header and in the store."""
MISJUDGED = 4
"""Steno learns no limit from a refusal that names a number above this multiple of the prompt's estimated tokens."""


def learn_status(attempt: Attempt, status: int) -> None:
    """Record an answered call. Its usage is added later, if the provider reports it."""
    attempt.calls.append(Call(status))
    request = attempt.request
    if status == 200:
        request.provider.windows.add_answered(request.tenant)
        conversation, decision = request.conversation, attempt.decision
        if request.thinking_from and changes_with_each_request(conversation, decision.view):
            learn_refused_thinking(request, len(conversation.transcript) + 1)  # Including this answer's thinking.
        elif THINKING_OFF in decision.actions:
            # This answer has no thinking, but the provider would demand thinking in the turn's next request.
            learn_refused_thinking(request, len(conversation.transcript))


def learn_refused_thinking(request: ChatRequest, messages: int) -> None:
    """Remember, for the rest of the turn, to send the first `messages` messages without thinking."""
    if turns := turn_digests(request.conversation):
        request.provider.learn_refused_thinking(request.tenant, request.format.name, request.model, turns[0], messages)


def learn_overflow(
    request: ChatRequest, overflow: Overflow, output: int | None = None, *, is_measured: bool = False
) -> None:
    """Learn a limit. `output`: output cap, if the limit may apply to the output. `is_measured`: see `Windows.learn`."""
    windows, asked = request.provider.windows, request.measure.asked
    windows.learn(request.tenant, request.wire.model, overflow, output, asked, is_measured=is_measured)


def learn_cut(attempt: Attempt, editor: AnswerEditor) -> Overflow | None:
    """Return the overflow if the window cut the answer short, else None. Learn the window as prompt plus answer."""
    request, usage = attempt.request, editor.usage
    asked, budget = request.wire.answer, request.budget
    tokens, expected = usage.tokens if usage else Tokens(), budget.line.to_provider_tokens(attempt.tokens)
    each = None if tokens.completion is None else tokens.completion // max(1, asked.choices)
    cut, cap = CutAnswer(editor.window_full, not editor.has_content, tokens.prompt, each), attempt.decision.output_cap
    overflow = overflow_of(cut, expected, budget.window, budget.reserve, cap or asked.output)
    is_shown = overflow is not None or (cut.by_window and cut.total(expected) >= MIN_LIMIT)
    if is_shown and not (attempt.is_smaller and cut.is_empty):
        learn_overflow(request, Overflow("context_window", cut.total(expected)), is_measured=True)
    return overflow


async def learn_limit(services: Services, attempt: Attempt, overflow: Overflow, body: bytes) -> bool:
    """Learn the limit that a refusal names; return False if it names no credible limit. A number that may be quoted
    from the request, or is far larger than the prompt, is not credible."""
    limit, request = overflow.limit, attempt.request
    if limit is None:
        return False
    expected = request.budget.line.to_provider_tokens(attempt.tokens)
    if (overflow.prompt or overflow.requested or limit) > MISJUDGED * expected:
        return False
    error = body[:LONGEST_REFUSAL].decode("utf-8", "replace")
    if await services.work.do(request.tenant, lambda: echoed_in(error, limit, request.wire.body)):
        return False
    # If the refusal gives no size of the prompt, a limit up to the output cap may be about the output.
    learn_overflow(request, overflow, request.wire.answer.output if overflow.prompt is None else None)
    return True


def learn_streamed_usage(request: ChatRequest, seen: StreamedUsage) -> None:
    """Remember how the model's streams report usage. For a day after `REFUSED`, Steno does not ask for usage."""
    known, model = request.provider.streamed_usage, (request.format.name, request.wire.model)
    if known.own(request.tenant, model) is StreamedUsage.REFUSED and seen is StreamedUsage.WHEN_ASKED:
        return
    known.learn(request.tenant, model, seen)


def learn_usage(attempt: Attempt, usage: Usage | None, *, streamed: bool) -> None:
    """Learn from an answer's usage, which is None if not reported. `streamed`: the answer was a stream."""
    request = attempt.request
    wire, conversation, provider, tenant = request.wire, request.conversation, request.provider, request.tenant
    # Only streams may lack the usage. Learn whether this model's streams report it without being asked.
    if streamed and not (attempt.asks_usage or wire.answer.says_whether_usage):
        learn_streamed_usage(request, StreamedUsage.UNASKED if usage else StreamedUsage.WHEN_ASKED)
    reported = usage.prompt if usage else None
    if reported is None:
        return
    provider.windows.add_prompt(tenant, wire.model, reported, request.measure.asked)
    calibrations, measure = provider.calibrations, request.measure
    key = CalibrationKey(provider.settings.base_url, wire.model, measure.formula, measure.tools, tenant)
    holds_media = conversation.history.holds_media
    learner = replace(key, formula=pictures_of(key.formula), tools=False) if holds_media else key
    if not calibrations.is_due(learner) or not wire.is_typical:
        return  # No sample is due, or the request's parts cost differently at each provider.
    if not holds_media:
        calibrations.learn(learner, Sample(attempt.tokens, reported))
    elif attempt.decision.view is None and (shown := request.prompt.pictures()):
        # All messages are sent, and all media are pictures of known size: tokens beyond the text's are for pictures.
        plain, scaled = shown
        sample = picture_sample(calibrations.of(key), attempt.tokens - scaled, plain, reported)
        if sample is not None:
            calibrations.learn(learner, sample)


def record_calls(services: Services, attempt: Attempt) -> None:
    """Enter an attempt's answered calls into the ledger. The request's tokens must be counted before."""
    request, decision, decided = attempt.request, attempt.decision, attempt.request.measure.decided
    estimated, sent = request.tokens(decision)
    if decision.actions or decision.why or attempt.waited_seconds is not None:
        reason = decision.reason and decision.reason[:LONGEST_REASON]
        decided = replace(decided, actions=decision.actions, reason=reason, waited_seconds=attempt.waited_seconds)
    for call in attempt.calls:
        services.ledger.record(
            UsageRecord(
                tenant=request.tenant,
                conversation_id=request.conversation_id,
                request_id=request.request_id,
                turn=request.turn,
                purpose="message",
                upstream=request.provider.name,
                format=request.format.name,
                model=request.model,
                status=call.status,
                tokens=call.tokens,
                estimated=estimated,
                forwarded=sent,
                context_status=decision.status,
                decided=decided,
            ),
            bill=call.usage.bill if call.usage else UNBILLED,
            chain=request.conversation.chain,
            sizes=PromptEstimate(request.conversation.tokens, attempt.tokens, request.budget.line.ratio),
        )


def record_unread(
    exchange: Exchange, provider: Provider, model: str, call: Call, context_status: str, body: bytes
) -> None:
    caller, size = exchange.caller, call.tokens.prompt or by_bytes(len(body))
    exchange.services.ledger.record(
        UsageRecord(
            tenant=caller.tenant,
            conversation_id="",
            request_id=exchange.record.request_id,
            turn=0,
            purpose="message",
            upstream=provider.name,
            format=caller.format.name,
            model=model,
            status=call.status,
            tokens=call.tokens,
            estimated=size,
            forwarded=size,
            context_status=context_status,
        ),
        bill=call.usage.bill if call.usage else UNBILLED,
    )


def conversation_seen(request: ChatRequest, decision: Decision) -> ConversationSeen:
    """Build the store's record of a request: names, sizes and digests, but no messages."""
    view = decision.view
    messages = request.conversation.transcript.messages
    before, after = request.tokens(decision)
    plan = plan_of(request, decision)
    return ConversationSeen(
        tenant=request.tenant,
        conversation_id=request.conversation_id,
        model=request.model,
        turns=len(messages.turn_starts),
        messages=len(messages),
        status=decision.status,
        tokens_before=before,
        tokens_after=after,
        window=request.measure.window.context,
        reason=decision.reason,
        forked_from=request.recognised.forked_from,
        heads=request.heads,
        coverage=msgspec.json.encode(
            coverage_of(request.conversation, view, request.budget.line, request.cost)
        ).decode(),
        plan=None if plan is None else msgspec.json.encode(plan).decode(),
        summaries=tuple(chunk.id for chunk in view.chunks) if view else (),
    )


def latest_history(request: ChatRequest) -> LatestHistory:
    """Build the record that stores a request's messages. It lacks the answer, which the next request contains."""
    conversation, ratio = request.conversation, request.budget.line.ratio
    return LatestHistory(
        tenant=request.tenant,
        conversation_id=request.conversation_id,
        format=request.format.name,
        leading=conversation.instructions,
        messages=conversation.transcript.messages,
        alone=request.format.alone,
        digests=conversation.chain.digests[1:],
        tokens=[round(ratio * tokens) for tokens in conversation.costs.messages],
    )


def plan_of(request: ChatRequest, decision: Decision) -> dict[str, Any] | None:
    """Explain a decision: the numbers and the steps that Steno tried. None if no compaction was due."""
    if decision.view is None and not decision.why:
        return None
    turn = len(request.conversation.transcript.turn_starts)
    account = account_of(request.conversation, request.budget, request.window.source, decision)
    return {"request_id": request.request_id, "turn": turn, **account}
