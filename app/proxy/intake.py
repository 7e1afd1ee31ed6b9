"""Intake: a chat request on its way in, from its bytes to the request that is decided upon.

`read` splits the body. `take_in` does the rest: measure it (where it goes, and how large it may be there), digest its
messages into a conversation, and find out which conversation that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from itertools import dropwhile

from msgspec.structs import replace

from app.compaction.policy import Strategy
from app.compaction.request import MANY_MESSAGES, ChatRequest, Measure
from app.compaction.view import Conversation, turn_digest
from app.conversation.identity import Identity
from app.conversation.messages import Kind
from app.conversation.recognition import heads_of
from app.formats.reader import MessageReader
from app.formats.requests import BOUNDS, BodyBounds, WireRequest, check_number
from app.proxy.caller import Caller
from app.proxy.naming import name_of
from app.proxy.options import event_shape, wait_seconds, wants_compaction
from app.proxy.services import Services
from app.tokens.estimator import Prompt

INLINE_BYTES = 32_768
"""Bytes of unread text up to which it is digested and counted in the event loop: about a millisecond's work."""
INLINE_BODY = 1 << 20
"""Unread bytes of a body up to which it is read in the event loop: four milliseconds' work."""
_ALL_MESSAGES = BodyBounds(messages=BOUNDS.values)
"""Bounds of a body before it is known how many of its messages are new."""


def _series(strategy: Strategy, focus: str) -> str:
    """Series of a request's summaries: those with a focus are of no use with another one, or with none."""
    digest = blake2b(focus.encode("utf-8", "surrogatepass"), digest_size=8, person=b"steno-focus")
    return f"{strategy}:{digest.hexdigest()}" if focus else strategy


async def read(services: Services, caller: Caller, body: bytes) -> WireRequest:
    """Read a request. Raises `Unreadable` and `InvalidRequest`."""
    format_ = caller.format
    beginnings = services.readers[format_.name].beginnings
    reading = partial(format_.read, body, _ALL_MESSAGES, beginnings)
    if len(body) > INLINE_BODY and beginnings.unread_bytes(body) > INLINE_BODY:
        wire = await services.work.do(caller.tenant, reading)
    else:
        wire = reading()
    if len(wire.raw_messages) > BOUNDS.messages and not await _is_known(services, caller, wire.raw_messages):
        check_number(len(wire.raw_messages), BOUNDS)
    return wire


async def _is_known(services: Services, caller: Caller, raw_messages: Sequence[bytes]) -> bool:
    """Return whether a request with too many messages goes on from one that was served and had half
    of them. Raises `Unreadable`."""
    reader, most = services.readers[caller.format.name], BOUNDS.messages
    placing = partial(_latest_places, services.identity, reader, caller.tenant, raw_messages, most)
    return await services.conversations.knows(caller.tenant, await services.work.do(caller.tenant, placing))


def _latest_places(
    identity: Identity, reader: MessageReader, tenant: str, raw_messages: Sequence[bytes], most: int
) -> list[bytes]:
    """Return the places of a history where an earlier request may have ended that had half of it, with at most so
    many messages behind them. Each message is read and let go: so many are not held for somebody unknown."""
    said = [*dropwhile(lambda each: each[0] is Kind.INSTRUCTIONS, reader.digests(raw_messages))]
    chain = identity.chain(tenant, (digest for _, digest in said))
    latest = range(max(1, len(said) // 2, len(said) - most) - 1, len(said))
    return [chain[place + 1] for place in latest if said[place][0] is not Kind.ASSISTANT]


async def model_of(services: Services, caller: Caller, body: bytes) -> str:
    """Return the model named in a body that cannot be read, as far as that can be known."""
    reading = partial(caller.format.model_in, body)
    return await services.work.do(caller.tenant, reading) if len(body) > INLINE_BODY else reading()


async def take_in(
    services: Services,
    wire: WireRequest,
    caller: Caller,
    request_id: str,
    *,
    remember: bool = True,
) -> ChatRequest:
    """Collect what is known of a request. `request_id`: Steno's own, for log and ledger. `remember=False` is for a
    dry run, which leaves no trace.

    Raises `Unreadable` where an element of the history is no message, `UnknownUpstream`, and `InvalidRequest`.
    """
    measured = await services.measuring.of(wire, caller, remember=remember)
    rules = measured.rules
    named = name_of(services.repeats, wire, caller)
    events = event_shape(wire, caller, services.events.stream)
    conversation, prompt = await digest(services, wire, caller, measured)
    if not (is_left_alone := measured.surely_leaves_alone(conversation)):
        await count(services, caller.tenant, conversation, prompt)
        conversation = conversation.with_newest_instructions(measured.budget.limit)
    heads = heads_of(conversation.transcript, conversation.chain)
    recognised = await services.conversations.identify(caller.tenant, named, conversation, heads if remember else None)
    policy = rules.policy
    if measured.provider.demands_alternation(caller.format.name, wire.model, caller.tenant):
        policy = replace(policy, alternates=True)
    refused_thinking = partial(measured.provider.thinking_from, caller.tenant, caller.format.name, wire.model)
    return ChatRequest(
        tenant=caller.tenant,
        conversation_id=recognised.conversation_id,
        named=recognised.by_name,
        conversation=conversation,
        policy=policy,
        budget=measured.budget,
        model=wire.model,
        series=_series(policy.strategy, wire.wishes.focus),
        count=prompt.count,
        cost=prompt.cost,
        compaction=rules.compaction.enabled and wants_compaction(wire, caller),
        recalls=caller.allows_recall and wire.wishes.options.get("recall") is not False,
        pins=_pinned(wire, conversation) if wire.wishes.pins else (),
        pinned_text=measured.pinned_text,
        thinking_from=refused_thinking(turn_digest(conversation)),
        binds_thinking=refused_thinking(b"") > 0,
        request_id=request_id,
        format=caller.format,
        wire=wire,
        measure=measured,
        prompt=prompt,
        headers=caller.headers,
        query=caller.query,
        is_left_alone=is_left_alone,
        recognised=recognised,
        heads=heads,
        events=events,
        wait_seconds=wait_seconds(rules, events, caller),
    )


async def digest(
    services: Services, wire: WireRequest, caller: Caller, measured: Measure
) -> tuple[Conversation, Prompt]:
    """Return the conversation and its prompt, which counts it; long ones are worked out in a thread."""
    # Of many messages, all of which were read, another thread may still be working out what follows from them.
    raw_messages = wire.raw_messages
    is_short = len(raw_messages) <= MANY_MESSAGES and (
        len(wire.body) <= INLINE_BYTES
        or services.readers[caller.format.name].unread_bytes(raw_messages) <= INLINE_BYTES
    )
    if is_short:
        return _converse(services, wire, caller, measured)
    return await services.work.do(caller.tenant, partial(_converse, services, wire, caller, measured))


def _converse(services: Services, wire: WireRequest, caller: Caller, measured: Measure) -> tuple[Conversation, Prompt]:
    format_ = caller.format
    messages = services.readers[format_.name].read(wire.raw_messages)
    prompt = services.estimator.prompt(
        measured.counted_as,
        messages,
        wire.declared,
        wire.declarations,
        measured.provider.host,
        measured.picture_scale,
        format_.token_rules,
    )
    return Conversation(messages, services.identity, caller.tenant, prompt.costs, prompt.bound), prompt


async def count(services: Services, tenant: str, conversation: Conversation, prompt: Prompt) -> None:
    """Count messages that were not counted yet; long text in a worker thread."""
    if prompt.uncounted > INLINE_BYTES or not prompt.count.is_ready:
        await services.work.do(tenant, conversation.count)
    else:
        conversation.count()


def count_meanwhile(services: Services, request: ChatRequest) -> asyncio.Task[None] | None:
    """Count new messages beside something else: long text in a thread, short text when the loop is free.

    A task is to be waited for before the count is needed; short text is counted then, where the loop was never free.
    """
    conversation, prompt = request.conversation, request.prompt
    if not (uncounted := prompt.uncounted):
        return None
    if uncounted > INLINE_BYTES or not prompt.count.is_ready:
        return asyncio.ensure_future(count(services, request.tenant, conversation, prompt))
    asyncio.get_running_loop().call_soon(conversation.count)
    return None


def _pinned(wire: WireRequest, conversation: Conversation) -> tuple[int, ...]:
    skipped = len(conversation.instructions)
    return tuple(pin - skipped for pin in wire.wishes.pins if pin >= skipped)
