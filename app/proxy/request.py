"""Reading of chat requests: from the bytes of a body to a `ChatRequest`.

`plain_body` decodes the body, `split_body` reads its members, and `parse_request` finds the provider, its limits, the
digests of the messages, and the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import CAP, HEURISTIC_CAUTION, Budget, Window, budget_for
from app.compaction.request import MANY_MESSAGES, ChatRequest, Measure
from app.compaction.view import Conversation, turn_digests
from app.conversation.identity import heads_of
from app.conversation.reasons import Code, Reason
from app.errors import BodyTooLarge, InvalidRequest
from app.formats.compaction_events import EVENT_SHAPES, EventShape
from app.formats.format import WireFormat
from app.formats.raw_json import Unreadable
from app.formats.requests import WireRequest
from app.http.encodings import KINDS, DecodedTooLarge, UndecodableBody, decoded, encoding_of
from app.http.headers import COMPACTION, EVENTS, PRESET, RECALL, SUMMARY_CALL, Headers
from app.providers.bundled_models import cap_of
from app.providers.providers import Provider, Providers
from app.proxy.caller import Caller
from app.proxy.conversation_ids import find_name
from app.runtime.tasks import WorkerThreads
from app.settings.compaction import Policies
from app.settings.presets import read_preset
from app.store import CalibrationKey
from app.tokens.counting_rules import LONGEST_MODEL
from app.tokens.estimate import Count
from app.tokens.estimator import Estimator, Prompt

if TYPE_CHECKING:
    from app.proxy.exchange import Services

log = structlog.get_logger("steno.windows")

MOST_RATIO = 100
"""Maximum ratio of decoded to encoded bytes: ten times the ratio of the most repetitive histories."""
SMALL_BYTES = 8 << 20
"""Bytes of a decoded body up to which any compression ratio is allowed."""
INLINE_ENCODED = 262_144
"""If a body has at most this many encoded bytes, the event loop decodes up to this many bytes: under a millisecond."""
STEP_BYTES = 4 << 20
"""Bytes decoded in one step. Between the steps, Steno counts the bytes, and other tasks run."""
INLINE_BODY = 1 << 20
"""Maximum uncached bytes of a body that is parsed in the event loop: four milliseconds of work."""
INLINE_BYTES = 32_768
"""Maximum bytes of uncached text that the event loop digests or counts: about a millisecond of work."""
PATIENCE_SHARE = 0.8
"""Share of the client's timeout that a compaction may use if Steno sends no keep-alives meanwhile."""
MOST_GUESSED = 100
"""Maximum number of models whose unknown window is logged. Clients could invent any number of model names."""
BODY_SHARE = 0.8
"""Steno masks media if a body exceeds this share of the provider's maximum body size."""


async def plain_body(
    body: bytes, headers: Headers, at_most: int, count: Callable[[int], None], work: WorkerThreads, tenant: str
) -> bytes | None:
    """Return the decoded body; None if it cannot be decoded. Raises `BodyTooLarge`.

    `count` gets the number of bytes decoded in each step, and may raise an error.
    """
    if not (encoding := encoding_of(headers)):
        return body
    if encoding not in KINDS:
        return None
    most = min(at_most, max(SMALL_BYTES, MOST_RATIO * len(body)))
    pieces, found = decoded(body, encoding, most), list[bytes]()
    try:
        if len(body) <= INLINE_ENCODED:
            found.append(_take(pieces, INLINE_ENCODED))
            count(len(found[0]))
            if len(found[0]) < INLINE_ENCODED:
                return found[0]
        while step := await work.do(tenant, partial(_take, pieces, STEP_BYTES)):
            count(len(step))
            found.append(step)
        return b"".join(found)
    except UndecodableBody:
        return None
    except DecodedTooLarge as error:
        if most == at_most:
            text = f"has more than {at_most} bytes when decoded. Send less, or raise limits.body_bytes."
        else:
            text = (
                f"has {len(body)} bytes, and more than {most} when decoded: at most {MOST_RATIO} times as many may come"
                " of it. Send it without content-encoding."
            )
        raise BodyTooLarge(f"The request body {text}") from error


def _take(pieces: Iterator[bytes], most: int) -> bytes:
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= most:
            break
    return b"".join(taken)


class Unread(Struct, frozen=True):
    """Request that Steno forwards without compaction."""

    reason: Reason
    body: bytes
    """Bytes for the provider."""


async def read_request(services: Services, caller: Caller, body: bytes, request_id: str) -> ChatRequest | Unread:
    """Read a chat request whose body is decoded. Raises `UnknownUpstream` and `InvalidRequest`.

    Return `Unread` if the client or the provider manages the history. If one of them compacts it, two histories are
    exceptions: a history above the limit, which Steno compacts so that the client can continue, and a history with
    signed thinking, from which Steno may have to omit thinking because of its own earlier compactions.
    """
    if SUMMARY_CALL in caller.headers:  # Sent by this Steno or by another Steno.
        return Unread(Reason(Code.SUMMARY_CALL), body)
    try:
        if caller.header(b"content-encoding"):
            raise Unreadable("The body is encoded in a way that cannot be undone.")
        wire = await split_body(services, caller, body)
        handed_off = wire.hands_off
        if handed_off is not None and handed_off.code not in (Code.CLIENT_COMPACTION, Code.NATIVE_COMPACTION):
            return Unread(handed_off, wire.untouched)
        request = await parse_request(services, wire, caller, request_id)
    except Unreadable as error:
        return Unread(Reason(error.reason), body)
    if handed_off is None or not request.conversation.is_within(request.budget.limit):
        return request
    if request.conversation.history.holds_signed_thinking:
        return replace(request, may_compact=False)
    return Unread(handed_off, wire.untouched)


async def split_body(services: Services, caller: Caller, body: bytes) -> WireRequest:
    """Read the members of a body. Raises `Unreadable` and `InvalidRequest`."""
    format_ = caller.format
    beginnings = services.readers[format_.name].beginnings
    reading = partial(format_.read, body, beginnings=beginnings, target=caller.target)
    if len(body) > INLINE_BODY and beginnings.unread_bytes(body) > INLINE_BODY:
        wire = await services.work.do(caller.tenant, reading)
    else:
        wire = reading()
    return wire


async def parse_request(
    services: Services, wire: WireRequest, caller: Caller, request_id: str, *, remember: bool = True
) -> ChatRequest:
    """Build the `ChatRequest`. `request_id`: Steno's id of the request, for log and ledger. `remember=False`: a dry
    run, which records nothing.

    Raises `UnknownUpstream`, `InvalidRequest`, and `Unreadable` if an element of the history is not a message.
    """
    tenant, format_, wishes, epoch = caller.tenant, caller.format, wire.wishes, services.store.writes.epoch
    measure = await services.model_limits.measure(wire, caller, remember=remember)
    provider, rules = measure.provider, measure.rules
    name = find_name(services.throttle, wire, caller)
    events = event_shape(wire, caller, services.events.stream)
    reader = services.readers[format_.name]

    def read_history() -> tuple[Conversation, Prompt]:
        messages = reader.read(wire.raw_messages)
        prompt = services.estimator.prompt(
            measure.counted_as,
            messages,
            wire.declared,
            wire.declarations,
            provider.host,
            measure.picture_scale,
            format_.token_rules,
        )
        return Conversation(messages, services.identity, tenant, prompt.costs, prompt.bound), prompt

    # A worker thread reads many messages even if all are cached, because another thread may still be reading them.
    is_short = len(wire.raw_messages) <= MANY_MESSAGES and (
        len(wire.body) <= INLINE_BYTES or reader.unread_bytes(wire.raw_messages) <= INLINE_BYTES
    )
    conversation, prompt = read_history() if is_short else await services.work.do(tenant, read_history)
    policy, budget = rules.policy, measure.budget
    if not policy.leaves_alone(conversation, budget, counts=False):
        await count_messages(services, tenant, conversation, prompt)
        conversation = conversation.with_newest_instructions(budget.limit)
    heads = heads_of(conversation.transcript, conversation.chain)
    recognised = await services.conversations.identify(tenant, name, conversation, heads if remember else None)
    if provider.demands_alternation(format_.name, wire.model, tenant):
        policy = replace(policy, alternates=True)
    series: str = policy.strategy
    if wishes.focus:  # A summary is reused only with the same focus.
        focus = blake2b(wishes.focus.encode("utf-8", "surrogatepass"), digest_size=8, person=b"steno-focus")
        series = f"{series}:{focus.hexdigest()}"
    wait = rules.compaction.wait_seconds  # Without keep-alives, the wait also depends on the client's timeout.
    wants_compaction = caller.allows(COMPACTION) and wishes.options.get("compaction") is not False
    wants_recall = caller.allows(RECALL) and wishes.options.get("recall") is not False
    skipped = len(conversation.instructions)
    refused_thinking = partial(provider.thinking_from, tenant, format_.name, wire.model)
    has_refused = conversation.history.holds_signed_thinking and refused_thinking(b"") > 0
    return ChatRequest(
        tenant=tenant,
        conversation_id=recognised.conversation_id,
        named=recognised.by_name,
        conversation=conversation,
        policy=policy,
        budget=budget,
        model=wire.model,
        series=series,
        count=prompt.way.count,
        cost=prompt.cost,
        may_compact=rules.compaction.enabled and wants_compaction,
        recalls=wants_recall,
        pins=tuple([pin - skipped for pin in wishes.pins if pin >= skipped]) if wishes.pins else (),
        thinking_from=next(filter(None, map(refused_thinking, turn_digests(conversation))), 0) if has_refused else 0,
        request_id=request_id,
        format=format_,
        wire=wire,
        measure=measure,
        prompt=prompt,
        headers=caller.headers,
        target=caller.target,
        recognised=recognised,
        heads=heads,
        events=events,
        epoch=epoch,
        wait_seconds=wait if events != "off" else min(wait, PATIENCE_SHARE * caller.patience()),
    )


def event_shape(wire: WireRequest, caller: Caller, usual: EventShape) -> EventShape:
    """Return the shape of the events that announce a compaction before the answer; `off` for no events. Raises
    `InvalidRequest` for an unknown shape in the header."""
    asked = caller.header(EVENTS)
    shape = usual if asked is None else next((shape for shape in EVENT_SHAPES if shape == asked.lower()), None)
    if shape is None:
        name = EVENTS.decode()
        raise InvalidRequest(f"{name} must be one of {', '.join(EVENT_SHAPES)}; it is {asked!r:.100}.", name)
    # With several choices Steno sends nothing early, because its first chunk would belong to only one choice.
    if not wire.answer.stream or wire.answer.choices != 1:
        return "off"
    if asked is None and wire.SPEC.early_is_content and wire.has_tools:
        return "off"
    return shape


async def count_messages(services: Services, tenant: str, conversation: Conversation, prompt: Prompt) -> None:
    """Count the tokens of uncounted messages. Count long text in a worker thread."""
    if prompt.uncounted > INLINE_BYTES:
        await services.work.do(tenant, conversation.count)
    else:
        conversation.count()


def count_meanwhile(services: Services, request: ChatRequest) -> asyncio.Task[None] | None:
    """Start to count the tokens of new messages: long text in a worker thread, short text later in the event loop.

    Return the task for long text; the caller must await it before it uses the count. For short text, return None.
    """
    conversation, prompt = request.conversation, request.prompt
    if not (uncounted := prompt.uncounted):
        return None
    if uncounted > INLINE_BYTES:
        return asyncio.ensure_future(count_messages(services, request.tenant, conversation, prompt))
    asyncio.get_running_loop().call_soon(conversation.count)
    return None


class ModelLimits:
    """Finds the provider of a request, and the limits of its prompt at this provider."""

    def __init__(
        self, providers: Providers, policies: Policies, estimator: Estimator, base_model: Callable[[str], str]
    ) -> None:
        self._providers = providers
        self._policies = policies
        self._estimator = estimator
        self._base_model = base_model
        self._guessed: set[tuple[str, str]] = set()

    async def measure(self, wire: WireRequest, caller: Caller, *, remember: bool) -> Measure:
        """Find a request's provider and limits. If the provider's list of models is being fetched, wait briefly for it.

        `remember=False`: a dry run, which does not call the provider. Raises `UnknownUpstream`, and `InvalidRequest`
        for an unknown preset.
        """
        provider = self._providers.of(wire.model, caller.format.name, caller.tenant, caller.upstream)
        await provider.windows.wait_for_listing(wire.model, caller.headers if remember else ())
        estimator, model, tenant = self._estimator, wire.model, caller.tenant
        counted_as = self._base_model(model)
        token_rules = caller.format.token_rules(counted_as, provider.host)
        formula = estimator.formula(token_rules)
        tools = wire.has_tools and not (wire.forbids_tools and token_rules.hides_tools)
        key = CalibrationKey(provider.settings.base_url, model, formula, tools, tenant)
        line = provider.calibrations.of(key).line
        caution = HEURISTIC_CAUTION if token_rules.encoding in estimator.heuristics else 1.0
        in_body, header = read_preset(wire.wishes.options.get("preset")), PRESET
        rules = self._policies.of(model, in_body or read_preset(caller.header(header), header.decode()))
        asked = caller.window_asked
        window = provider.windows.window_of(model, tenant, asked)
        if window.source == "default":
            self._log_guess(provider, model, window)
        shares = rules.shares.for_model(cap_of(counted_as, CAP))
        budget = budget_for(
            window,
            wire.answer.output,
            shares,
            line,
            thinking=wire.answer.thinking,
            caution=caution,
            threshold=wire.wishes.threshold,
            body_bytes=int(BODY_SHARE * provider.largest_body(caller.format)),
        )
        scale = provider.calibrations.picture_scale(key)
        return Measure(provider, counted_as, formula, tools, window, asked, rules, budget, scale)

    def for_summaries(self, model: str, tenant: str, format_: WireFormat) -> tuple[Count, Budget]:
        """Return a model's token counter and budget for summaries. Raises `UnknownUpstream` and `FormatNotSpoken`."""
        provider = self._providers.of(model, format_.name, tenant)
        counted_as = self._base_model(model)
        token_rules = format_.token_rules(counted_as, provider.host)
        formula = self._estimator.formula(token_rules)
        rules = self._policies.of(model)
        window = provider.windows.window_of(model, tenant)
        line = provider.calibrations.of(CalibrationKey(provider.settings.base_url, model, formula, False, tenant)).line
        count = self._estimator.counter(token_rules.encoding)
        shares = rules.shares.for_model(cap_of(counted_as, CAP))
        return count, budget_for(window, None, shares, line)

    def _log_guess(self, provider: Provider, model: str, window: Window) -> None:
        if (provider.name, model) not in self._guessed and len(self._guessed) < MOST_GUESSED:
            self._guessed.add((provider.name, model))
            log.warning(
                "a model's window is a guess",
                upstream=provider.name,
                model=model[:LONGEST_MODEL],
                window=window.context,
                remedy="Set `context_window` for it in `models`, or `base_model` to one that it is like.",
            )
