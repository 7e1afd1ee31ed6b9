"""Intake: a chat request on its way in, from its bytes to the facts that it is decided by.

Four steps: `read` splits the body; `measure` says where it goes and how large it may be there; `digest` makes a
conversation of its messages; `recognise` finds out which one it is. `take_in` goes through the last three.
"""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import blake2b

from app.compaction.job import MANY_MESSAGES, Job
from app.compaction.summariser import Prefix
from app.compaction.writing import Writing
from app.core.history.recognition import Recognition, heads_of
from app.core.stages.policy import Strategy
from app.core.view.view import Conversation, View
from app.proxy.caller import Caller
from app.proxy.conversations import Heads
from app.proxy.facts import Facts
from app.proxy.measuring import Measure
from app.proxy.options import event_shape, is_recall_off, is_switched_off, name_of, wait_seconds
from app.proxy.services import Services
from app.tokens.estimator import Prompt
from app.wire.format import EventShape, WireRequest

INLINE_BYTES = 32_768
"""More unread text than this is digested and counted in a worker thread: about a millisecond's work."""
INLINE_BODY = 1 << 20
"""More unread bytes of a body than this are read in a worker thread: four milliseconds' work."""


async def read(services: Services, caller: Caller, body: bytes) -> WireRequest:
    """Raises `Unreadable` and `InvalidRequest`."""
    beginnings = services.readers[caller.format.name].beginnings
    reading = partial(caller.format.read, body, services.bounds, beginnings)
    if len(body) > INLINE_BODY and beginnings.unread_bytes(body) > INLINE_BODY:
        return await services.work.do(caller.tenant, reading)
    return reading()


async def model_of(services: Services, caller: Caller, body: bytes) -> str:
    """The model that a body names which cannot be read, as far as that can be known."""
    reading = partial(caller.format.model_in, body)
    return await services.work.do(caller.tenant, reading) if len(body) > INLINE_BODY else reading()


async def take_in(
    services: Services, request: WireRequest, caller: Caller, request_id: str, *, remember: bool = True
) -> Facts:
    """What is to be known of a request. `request_id`: Steno's own, for log and ledger. `remember=False` is for a dry
    run, which leaves no trace.

    Raises `Unreadable` where an element of the history is no message, `UnknownUpstream`, and `InvalidRequest`.
    """
    measured = await services.measuring.of(request, caller, remember=remember)
    conversation, prompt = await digest(services, request, caller, measured)
    heads = heads_of(conversation.transcript, conversation.chain)
    recognised = await recognise(services, request, caller, conversation, heads if remember else None)
    events = event_shape(request, caller, services.events.stream)
    job = _job(services, request, caller, request_id, measured, conversation, prompt, recognised, events)
    return Facts(caller.format, request, measured, job, prompt, recognised, heads, events)


async def digest(
    services: Services, request: WireRequest, caller: Caller, measured: Measure
) -> tuple[Conversation, Prompt]:
    """The conversation, counted if nothing can be decided without that; what is long is worked out in a thread."""
    reader, estimator, tenant = services.readers[caller.format.name], services.estimator, caller.tenant
    counted_as, host, token_rules = measured.counted_as, measured.provider.host, caller.format.token_rules

    def converse() -> tuple[Conversation, Prompt]:
        messages = reader.read(request.raw_messages)
        declared, declarations, scale = request.declared, request.declarations, measured.picture_scale
        prompt = estimator.prompt(counted_as, messages, declared, declarations, host, scale, token_rules)
        return Conversation(messages, services.identity, tenant, prompt.costs, prompt.bound), prompt

    # Of many messages, all of which were read, another thread may still be working out what follows from them.
    raw_messages = request.raw_messages
    is_short = len(raw_messages) <= MANY_MESSAGES
    if is_short and (len(request.body) <= INLINE_BYTES or reader.unread_bytes(raw_messages) <= INLINE_BYTES):
        conversation, prompt = converse()
    else:
        conversation, prompt = await services.work.do(tenant, converse)
    if measured.rules.policy.needs_count(conversation, measured.budget):
        await count(services, tenant, conversation, prompt)
    return conversation, prompt


async def recognise(
    services: Services, request: WireRequest, caller: Caller, conversation: Conversation, heads: Heads | None
) -> Recognition:
    """Which conversation it is: by its name, or by its history. It is remembered by its heads, if there are any."""
    named = name_of(services.naming, services.repeats, request, caller)
    return await services.conversations.identify(caller.tenant, named, conversation, heads)


async def count(services: Services, tenant: str, conversation: Conversation, prompt: Prompt) -> None:
    """Counts what was not counted yet; long text in a worker thread."""
    if prompt.uncounted > INLINE_BYTES or not prompt.is_ready:
        await services.work.do(tenant, conversation.count)
    else:
        conversation.count()


def count_meanwhile(services: Services, facts: Facts) -> asyncio.Task[None] | None:
    """Counts what was not counted yet beside something else: long text in a thread, short text when the loop is free.

    A task is to be waited for before the count is needed; short text is counted then, where the loop was never free.
    """
    conversation = facts.job.conversation
    if not (uncounted := facts.prompt.uncounted):
        return None
    if uncounted > INLINE_BYTES or not facts.prompt.is_ready:
        return asyncio.ensure_future(count(services, facts.job.tenant, conversation, facts.prompt))
    asyncio.get_running_loop().call_soon(conversation.count)
    return None


def _job(
    services: Services,
    request: WireRequest,
    caller: Caller,
    request_id: str,
    measured: Measure,
    conversation: Conversation,
    prompt: Prompt,
    recognised: Recognition,
    events: EventShape,
) -> Job:
    rules = measured.rules
    return Job(
        tenant=caller.tenant,
        conversation_id=recognised.conversation_id,
        named=recognised.by_name,
        conversation=conversation,
        budget=measured.budget,
        count=prompt.count,
        cost=prompt.cost,
        model=request.model,
        series=_series(rules.policy.strategy, request.focus),
        begin_writing=partial(_writing, services, request, caller, measured, conversation),
        compaction=rules.compaction.enabled and not is_switched_off(request, caller),
        recalls=not is_recall_off(request, caller),
        policy=rules.policy,
        pins=tuple(pin - skipped for pin in request.pins if pin >= (skipped := len(conversation.instructions))),
        wait_seconds=wait_seconds(rules, events, caller),
        request_id=request_id,
        ties=request.ties,
    )


def _writing(
    services: Services, request: WireRequest, caller: Caller, measured: Measure, conversation: Conversation
) -> Writing:
    provider = measured.provider

    def prefix(view: View) -> Prefix:
        messages = caller.format.render(conversation, view, provider.settings.alternating_roles)
        return Prefix(tuple(messages), request.cached, dict([request.cache_key] if request.cache_key else ()))

    return Writing(
        rules=measured.rules,
        provider=provider,
        model=request.model,
        tenant=caller.tenant,
        focus=request.focus,
        headers=caller.headers,
        providers=services.providers,
        format=caller.format,
        estimator=services.estimator,
        base_model=services.base_model,
        prefix=prefix,
        inherited_rules=caller.inherited_rules,
    )


def _series(strategy: Strategy, focus: str) -> str:
    """Summaries with a focus are none for a request that has another one, or none."""
    digest = blake2b(focus.encode("utf-8", "surrogatepass"), digest_size=8, person=b"steno-focus")
    return f"{strategy}:{digest.hexdigest()}" if focus else strategy
