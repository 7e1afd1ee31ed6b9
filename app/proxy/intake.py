"""Intake: a chat request's bytes, with everything that decides about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from math import inf
from typing import Any, TypeVar

import msgspec
import structlog

from app.compaction.job import MANY_MESSAGES, Job, Started
from app.compaction.summariser import Prefix
from app.compaction.writing import Writing
from app.core.history.recognition import Recognised, heads_of
from app.core.limits.budget import Window, budget_for
from app.core.stages.ladder import Decision
from app.core.stages.policy import Strategy
from app.core.tokens.rules import rules_for
from app.core.view.coverage import coverage_of
from app.core.view.view import Conversation, View
from app.errors import InvalidRequest
from app.headers.relayed import Headers, value_of
from app.providers.providers import Provider
from app.proxy.naming import encoded_name, name_in_header, name_in_json
from app.proxy.services import HEURISTIC_CAUTION, Services
from app.settings.policies import Rules, read_preset, read_trigger
from app.store import ConversationSeen
from app.tokens.estimator import Prompt
from app.wire.chat_completions import ChatRequest, model_in, read_request, render
from app.wire.events import EVENT_SHAPES, EventShape
from app.wire.sse import ChunkHead, StreamEditor

log = structlog.get_logger("steno.intake")

T = TypeVar("T")

INLINE_BYTES = 32_768
"""More unread text than this is digested and counted in a worker thread: about a millisecond's work."""
INLINE_BODY = 1 << 19
"""A body of more bytes is read in a worker thread."""
NAMING_HEADERS = ("x-context-conversation-id", "x-conversation-id")
SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
CACHED_MEMBERS = ("tools", "functions", "parallel_tool_calls")
"""What stands before the messages in a prompt, so that the provider's cache depends on it."""
LONGEST_REASON = 1_000
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
ANNOUNCED_TIMEOUTS = (b"x-stainless-read-timeout", b"x-stainless-timeout")
"""How long a client waits, in seconds: openai-python's, and openai-node's, which is rounded down."""
PATIENCE_SHARE = 0.8
"""Of the timeout a client announces, what a compaction may use."""


@dataclass(frozen=True, slots=True)
class Understood:
    request: ChatRequest
    provider: Provider
    job: Job
    prompt: Prompt
    formula: str
    """What the estimate was made with."""
    tools: bool
    """Whether the model is shown tools."""
    window: Window
    recognised: Recognised
    events: EventShape

    services: Services

    async def counted(self) -> None:
        """Counts what was not counted yet; long text in a worker thread."""
        await _count(self.services, self.job.tenant, self.job.conversation, self.prompt)

    async def beside(self, work: Callable[[], T]) -> T:
        """Works something out about this request; in a worker thread where it is long."""
        return await self.services.work.do(self.job.tenant, work) if self.job.is_long else work()

    def forwarded(self, prepared: Decision) -> int:
        """Our estimate of what is sent."""
        return prepared.view.tokens if prepared.view else self.job.conversation.tokens

    def tokens(self, prepared: Decision) -> tuple[int, int]:
        """Tokens of what came and of what is sent, as the provider counts them."""
        reported = self.job.budget.line.reported
        return reported(self.job.conversation.tokens), reported(self.forwarded(prepared))

    def body(self, prepared: Decision, alternate: bool, ask_usage: bool = False) -> bytes:
        """The bytes for the provider: the client's own where nothing was compacted."""
        if prepared.view is None:
            return self.request.untouched
        return self.request.with_messages(render(self.job.conversation, prepared.view, alternate), ask_usage)

    def report(self, prepared: Decision) -> dict[str, Any]:
        """The `context` object of an answer."""
        before, after = self.tokens(prepared)
        window = self.window.context
        changed = prepared.view.changed if prepared.view else {}
        return {
            "conversation_id": self.job.conversation_id,
            "status": prepared.status,
            "actions": list(prepared.actions),
            "tokens": {"estimated": before, "forwarded": after, "saved": before - after, "window": window},
            "chunks": [chunk.id for chunk in prepared.view.chunks] if prepared.view else [],
            "reason": prepared.reason,
            **({"messages": changed} if changed else {}),
        }

    def status_members(self, prepared: Decision) -> bytes:
        """What is added at the top level of an answer."""
        report = msgspec.json.encode(self.report(prepared))
        return self.status_member(prepared) + b',"context":' + report

    def status_member(self, prepared: Decision) -> bytes:
        return b'"context_status":' + msgspec.json.encode(prepared.status)

    def headers(self, prepared: Decision | None) -> Headers:
        """The `x-context-*` headers; None while the outcome is open."""
        before = self.job.budget.line.reported(self.job.conversation.tokens)
        headers = [
            (b"x-context-status", prepared.status.encode() if prepared else b"pending"),
            (b"x-context-conversation-id", encoded_name(self.job.conversation_id)),
            (b"x-context-tokens-before", str(before).encode()),
            (b"x-context-window", str(self.window.context).encode()),
        ]
        if prepared:
            headers.append((b"x-context-tokens-after", str(self.tokens(prepared)[1]).encode()))
        if prepared and prepared.actions:
            headers.append((b"x-context-actions", ",".join(prepared.actions).encode()))
        if prepared and prepared.reason:
            # It may quote the request, which may hold line ends.
            reason = _UNPRINTABLE.sub("?", prepared.reason[:LONGEST_REASON])
            headers.append((b"x-context-reason", reason.encode()))
        return headers

    def stream_editor(
        self, prepared: Decision, hides_usage: bool, sent: ChunkHead | None = None, *, tells: bool = True
    ) -> StreamEditor:
        members = (self.status_member(prepared), self.status_members(prepared)) if tells else (b"", b"")
        return StreamEditor(*members, sent, self.request.choices, hides_usage)

    def announcement(self, started: Started) -> dict[str, Any]:
        """What `compaction_started` tells."""
        return {
            "conversation_id": self.job.conversation_id,
            "messages": {"summarizing": started.messages},
            "tokens": {
                "estimated": self.job.budget.line.reported(self.job.conversation.tokens),
                "window": self.window.context,
            },
        }

    def seen(self, prepared: Decision) -> ConversationSeen:
        """What is kept of this request: names, sizes and digests, never a message."""
        job, transcript = self.job, self.job.conversation.transcript
        before, after = self.tokens(prepared)
        coverage = coverage_of(job.conversation, prepared.view, job.budget.line)
        return ConversationSeen(
            tenant=job.tenant,
            conversation_id=job.conversation_id,
            model=job.model,
            turns=len(transcript.turn_starts),
            messages=len(transcript),
            status=prepared.status,
            tokens_before=before,
            tokens_after=after,
            window=self.window.context,
            reason=prepared.reason,
            forked_from=self.recognised.forked_from,
            heads=heads_of(transcript, job.conversation.chain),
            coverage=msgspec.json.encode(coverage).decode(),
            summaries=tuple(chunk.id for chunk in prepared.view.chunks) if prepared.view else (),
        )


async def read(services: Services, tenant: str, body: bytes) -> ChatRequest:
    """Raises `Unreadable` and `InvalidRequest`."""
    reading = partial(read_request, body, services.bounds)
    return await services.work.do(tenant, reading) if len(body) > INLINE_BODY else reading()


async def model_of(services: Services, tenant: str, body: bytes) -> str:
    """The model that a body names which cannot be read, as far as that can be told."""
    reading = partial(model_in, body)
    return await services.work.do(tenant, reading) if len(body) > INLINE_BODY else reading()


async def understand(
    services: Services,
    request: ChatRequest,
    tenant: str,
    headers: Headers,
    request_id: str,
    in_path: str | None = None,
    upstream: str | None = None,
    remember: bool = True,
) -> Understood:
    """Raises `Unreadable` where an element of `messages` is no message, and `UnknownUpstream`.

    `in_path` is an id from the base URL, `upstream` a name; `remember=False` is for a dry run, which leaves no trace.
    """
    estimator, model = services.estimator, request.model
    provider = services.providers.of(model, upstream)
    counted_as = services.settings.base_model(model)
    formula = estimator.formula(counted_as)
    await provider.windows.settled(model, tenant, headers if remember else ())
    window = provider.windows.of(model, tenant)
    hidden = request.forbids_tools and rules_for(counted_as, provider.host).hides_tools
    tools = request.has_tools and not hidden
    line = provider.calibrations.of(tenant, model, formula, tools).line
    caution = HEURISTIC_CAUTION if estimator.heuristic(counted_as) else 1.0
    rules = _rules(services, provider, request, headers)
    if window.source == "default":
        window = replace(window, context=rules.compaction.default_window)
    budget = budget_for(window, request.output, rules.shares, line, caution=caution, threshold=request.threshold)

    def converse() -> tuple[Conversation, Prompt]:
        messages = services.reader.read(request.raw_messages)
        scale = provider.calibrations.picture_scale(tenant, model, formula)
        declared, declarations = request.declared, request.declarations
        prompt = estimator.prompt(counted_as, messages, declared, declarations, provider.host, scale)
        return Conversation(messages, services.identity, tenant, prompt.costs, prompt.bound), prompt

    if not estimator.is_ready(counted_as):
        await services.work.do(tenant, lambda: estimator.make_ready(counted_as))
    is_short = len(request.source.text) <= INLINE_BODY and len(request.raw_messages) <= MANY_MESSAGES
    if is_short and services.reader.unread_bytes(request.raw_messages) <= INLINE_BYTES:
        conversation, prompt = converse()
    else:
        conversation, prompt = await services.work.do(tenant, converse)
    if rules.policy.needs_count(conversation, budget):
        await _count(services, tenant, conversation, prompt)
    named = _named(services, request, headers, in_path)
    recognised = await services.conversations.identify(tenant, named, conversation, remember)

    def prefix(view: View) -> Prefix:
        messages = render(conversation, view, provider.settings.alternating_roles)
        given = ((name, request.source.raw(name)) for name in CACHED_MEMBERS)
        return Prefix(tuple(messages), {name: raw for name, raw in given if raw is not None})

    events = _event_shape(services, request, headers)
    job = Job(
        tenant=tenant,
        conversation_id=recognised.conversation_id,
        named=recognised.by_name,
        conversation=conversation,
        budget=budget,
        count=prompt.count,
        cost=prompt.cost,
        model=model,
        series=_series(rules.policy.strategy, request.focus),
        writing=Writing(
            rules=rules,
            provider=provider,
            model=model,
            tenant=tenant,
            focus=request.focus,
            headers=headers,
            providers=services.providers,
            estimator=estimator,
            base_model=services.settings.base_model,
            prefix=prefix,
        ),
        compaction=rules.compaction.enabled and not _switched_off(request, headers),
        policy=rules.policy,
        pins=tuple(pin - skipped for pin in request.pins if pin >= (skipped := len(conversation.instructions))),
        wait_seconds=_patience(rules, events, headers),
        request_id=request_id,
    )
    return Understood(request, provider, job, prompt, formula, tools, window, recognised, events, services)


def _rules(services: Services, provider: Provider, request: ChatRequest, headers: Headers) -> Rules:
    options = request.options
    in_body, in_header = options.get("preset"), value_of(headers, b"x-context-preset")
    preset = read_preset(in_body) if in_body else read_preset(in_header, "x-context-preset")
    return services.policies.of(provider.settings, request.model, preset, read_trigger(options.get("trigger")))


async def _count(services: Services, tenant: str, conversation: Conversation, prompt: Prompt) -> None:
    if prompt.uncounted > INLINE_BYTES:
        await services.work.do(tenant, conversation.count)
    else:
        conversation.count()


def _named(services: Services, request: ChatRequest, headers: Headers, in_path: str | None) -> str | None:
    """The conversation's name, from the first place that has one.

    Raises `InvalidRequest` for one that cannot be used. Where it stands in what other tools or the provider decide
    about, the caller could not mend it: that place names nothing then, and the log says why.
    """
    for is_ours, read in _places(services, request, headers, in_path):
        try:
            if (name := read()) is not None:
                return name
        except InvalidRequest as error:
            if is_ours:
                raise
            if (count := services.repeats.again(f"name in {error.param}")) is not None:
                log.warning("a conversation's id was ignored", reason=error.message, times=count)
    return None


def _places(
    services: Services, request: ChatRequest, headers: Headers, in_path: str | None
) -> Iterator[tuple[bool, Callable[[], str | None]]]:
    """Where a name may stand, the first choice first: whether it is meant for Steno there, and how it is read."""
    identity = services.settings.identity
    for header in (*NAMING_HEADERS, *identity.session_headers):
        if (value := value_of(headers, header.encode())) is not None:
            yield header in NAMING_HEADERS, partial(name_in_header, header, value)
    for member, given in request.names:
        yield True, partial(name_in_json, member, given)
    yield True, lambda: in_path
    for member, used in (("prompt_cache_key", identity.use_prompt_cache_key), ("user", identity.use_user)):
        if used and (raw := request.source.raw(member)) is not None:
            yield False, partial(name_in_json, member, raw)


def _series(strategy: Strategy, focus: str) -> str:
    """Summaries with a focus are none for a request that has another one, or none."""
    digest = blake2b(focus.encode("utf-8", "surrogatepass"), digest_size=8, person=b"steno-focus")
    return f"{strategy}:{digest.hexdigest()}" if focus else strategy


def _switched_off(request: ChatRequest, headers: Headers) -> bool:
    """Raises `InvalidRequest` for a header that says neither."""
    header = (value_of(headers, b"x-context-compaction") or "on").lower()
    if header not in SWITCHES:
        told = f"x-context-compaction must be one of {', '.join(SWITCHES)}; it is {header!r:.100}."
        raise InvalidRequest(told, "x-context-compaction")
    return request.options.get("compaction") is False or not SWITCHES[header]


def _event_shape(services: Services, request: ChatRequest, headers: Headers) -> EventShape:
    asked = value_of(headers, b"x-context-events")
    shape = next((shape for shape in EVENT_SHAPES if shape == asked), services.settings.events.stream)
    # With several choices nothing may be sent early: a role chunk of ours would belong to one of them only.
    return shape if request.stream and request.choices == 1 else "off"


def _patience(rules: Rules, events: EventShape, headers: Headers) -> float:
    """How long a compaction may hold the request; without keep-alives less than the client says it will wait."""
    wait = rules.compaction.wait_seconds
    if events != "off":
        return wait
    announced = (_seconds(value_of(headers, name)) for name in ANNOUNCED_TIMEOUTS)
    return min([wait, *(PATIENCE_SHARE * seconds for seconds in announced if seconds is not None)])


def _seconds(told: str | None) -> float | None:
    try:
        seconds = float(told or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < inf else None
