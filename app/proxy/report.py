"""Reports to an answer, a stream's events and the store about what was done to a request's context.

What `http/own_headers` names is said here, but for the request's id, which is a part of `http/asgi.Signature`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from app.compaction.compactor import CompactionStart
from app.compaction.fallback import Decision, account_of
from app.compaction.request import ChatRequest
from app.compaction.verify import coverage_of
from app.compaction.view import Note, Recalled
from app.conversation.reasons import Code, Reason
from app.formats.answers import UNTOLD, AnswerEditor, ContextMembers
from app.formats.format import WireFormat
from app.formats.paths import Uncompacted
from app.formats.sse import EarlyFrames
from app.http import own_headers
from app.http.relayed import Headers, value_of
from app.proxy.conversation_ids import encoded_name
from app.runtime.bounded import Repeats
from app.store import ConversationSeen, LatestHistory

log = structlog.get_logger("steno.bypass")

LONGEST_REASON = 1_000
"""Characters of a reason in a header, and in the store."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


class Tokens(msgspec.Struct, frozen=True):
    """Sizes of a request in the provider's tokens, all of them estimates."""

    estimated: int
    """Tokens of the history as it came."""
    forwarded: int
    """Tokens of the payload that was sent."""
    saved: int
    window: int
    """The model's context window; 0 where that is not known."""

    @classmethod
    def counted(cls, before: int, after: int, window: int) -> Self:
        return cls(before, after, before - after, window)


class Context(msgspec.Struct, frozen=True):
    """The `context` object, wherever one stands: in answers, streams, events and the routes that plan or compact.

    Nothing else writes it. `app/api/wire_schema.py` describes each member; `make examples` renews what shows one.
    """

    conversation_id: str
    status: str
    actions: list[str]
    tokens: Tokens
    chunks: list[str]
    reason: str | None
    messages: Mapping[str, int] | UnsetType = UNSET
    recalled: Mapping[str, int] | UnsetType = UNSET


def context_of(request: ChatRequest, decision: Decision) -> Context:
    """Say what was done to the context of a request."""
    view = decision.view
    return Context(
        conversation_id=request.conversation_id,
        status=decision.status,
        actions=list(decision.actions),
        tokens=Tokens.counted(*request.tokens(decision), request.window.context),
        chunks=[chunk.id for chunk in view.chunks] if view else [],
        reason=decision.reason,
        messages=(view and view.changed) or UNSET,
        recalled=(view and _recalled(request, view.recalled)) or UNSET,
    )


def _recalled(request: ChatRequest, notes: Sequence[Recalled | Note]) -> Mapping[str, int]:
    """Count the quoted messages, and the provider's tokens of everything that is brought back; empty if nothing is."""
    quoted = {index for note in notes if isinstance(note, Recalled) for index in note.messages}
    return {"messages": len(quoted), "tokens": request.recalled(notes)} if notes else {}


def status_member(decision: Decision) -> bytes:
    """The JSON member `context_status`, which stands where an answer begins."""
    return b'"context_status":"%b"' % decision.status.encode()


def context_members(request: ChatRequest, decision: Decision) -> ContextMembers:
    """JSON members of an answer: the status alone, and the status with the context."""
    status, context = status_member(decision), context_of(request, decision)
    return ContextMembers(status, status + b',"context":' + msgspec.json.encode(context))


def announcement(request: ChatRequest, started: CompactionStart) -> dict[str, Any]:
    """Members of a `compaction_started` event: those of the context that are known by then."""
    return {
        "conversation_id": request.conversation_id,
        "messages": {"summarizing": started.messages},
        "tokens": {
            "estimated": request.budget.line.to_provider_tokens(request.conversation.tokens),
            "window": request.window.context,
        },
    }


def closing(request: ChatRequest, decision: Decision) -> dict[str, Any]:
    """Members of the event that closes a compaction."""
    members: dict[str, Any] = msgspec.to_builtins(context_of(request, decision))
    return members


def context_headers(request: ChatRequest, decision: Decision | None) -> Headers:
    """Build the `x-context-*` headers; without a decision while the outcome is open."""
    line = request.budget.line
    before = b"%d" % line.to_provider_tokens(request.conversation.tokens)
    headers = [
        (own_headers.STATUS, decision.status.encode() if decision else b"pending"),
        (own_headers.CONVERSATION_ID, encoded_name(request.conversation_id)),
        (own_headers.TOKENS_BEFORE, before),
        (own_headers.WINDOW, b"%d" % request.measure.window.context),
    ]
    if decision is None:
        return headers
    after = b"%d" % request.tokens(decision)[1]
    headers.append((own_headers.TOKENS_AFTER, after))
    if decision.actions:
        headers.append((own_headers.ACTIONS, ",".join(decision.actions).encode()))
    if (reason := decision.reason) is not None:
        # It may quote the request, which may hold line ends.
        headers.append((own_headers.REASON, _UNPRINTABLE.sub("?", reason[:LONGEST_REASON]).encode()))
    return headers


def seen(request: ChatRequest, decision: Decision) -> ConversationSeen:
    """Build the store's record of a request: names, sizes and digests, never a message."""
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
    """The messages of a request, to be stored. An answer comes with the next request, which has it in its history."""
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
    """Explain how a payload came about, with numbers and the steps that were tried; None if nothing was due."""
    if decision.view is None and not decision.why:
        return None
    turn = len(request.conversation.transcript.turn_starts)
    account = account_of(request.conversation, request.budget, request.window.source, decision)
    return {"request_id": request.request_id, "turn": turn, **account}


def editor_of(
    request: ChatRequest,
    decision: Decision,
    hides_usage: bool,
    early: EarlyFrames | None = None,
    *,
    reports: bool = True,
) -> AnswerEditor:
    """Make an editor that adds to an answer what was done. `early`: the frames sent before the provider's."""
    context = context_members(request, decision) if reports else UNTOLD
    return request.format.answers.editor(context, request.wire, early, hides_usage=hides_usage)


def passing(entry: Uncompacted, formats: Iterable[WireFormat]) -> Reason:
    """Return the reason why a post to this path passes."""
    if entry.reason is not Code.PATH_NOT_COMPACTED:
        return Reason(entry.reason)
    paths = ", ".join(format_.path.decode() for format_ in formats)
    return Reason(Code.PATH_NOT_COMPACTED, f"only POST {paths} is compacted")


def log_bypass(repeats: Repeats, path: str, reason: Reason) -> None:
    if (count := repeats.again(path)) is not None:
        log.info("conversations passed un-compacted", path=path, reason=reason.text, times=count)


def bypassed(reason: Reason) -> Headers:
    """Build the headers of a request that passes un-compacted."""
    return unread("bypassed", reason.text)


def unread(status: str, reason: str) -> Headers:
    """Build the headers of a request that is forwarded unread."""
    return [(own_headers.STATUS, status.encode()), (own_headers.REASON, reason.encode())]


def unless_told(own: Headers, answered: Headers) -> Headers:
    """Return no headers if another Steno behind this one said what it did: that may be more."""
    return [] if value_of(answered, own_headers.STATUS) else own
