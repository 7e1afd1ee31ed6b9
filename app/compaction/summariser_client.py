"""The summariser's call: which models a request asks, with what prompt; streamed, retried once where that may help,
then made to the next model of the list.

`SummaryRouting` runs in the event loop alone: windows and calibrations are the loop's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, time
from typing import Any

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import PRESSURE, limit_of
from app.compaction.chunks import Failure, SummaryAnswer
from app.compaction.memory import ModelBreaker
from app.compaction.policy import SummaryOptions
from app.compaction.prompts import SummaryRequest
from app.compaction.request import ChatRequest
from app.compaction.view import View
from app.conversation.reasons import Code, Reason, Reasons, because, hint_for, joined
from app.errors import StenoError, UpstreamTimedOut, UpstreamUnreachable
from app.formats.raw_json import replaced
from app.formats.refusals import (
    classify,
    decoded_body,
    demands_alternation,
    named_pause,
    refused_shape,
    says_no_such_path,
)
from app.formats.summaries import Manners, SummaryDialect, SummaryReader
from app.http.connection import UpstreamExchange
from app.http.credentials import keys_alone
from app.http.headers import for_other_providers, for_summary, with_missing
from app.http.upstream import LARGEST_OWN_ANSWER, LONGEST_REFUSAL, Headers, Upstream, read_into
from app.providers.providers import Provider, Providers
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap, LogThrottle
from app.runtime.tenant_facts import TenantFacts
from app.telemetry.spans import Tracer
from app.tokens.estimator import Estimator

log = structlog.get_logger("steno.summariser")
PAUSED = Reason(Code.SUMMARISER_PAUSED)
"""Reason why no call is made: no model that may be asked has worked recently."""
LONGEST_WAIT_SECONDS = 5.0
"""Longest pause asked by a provider that is waited for, in seconds: the client is waiting too."""
LONGEST_SUMMARY = 250_000
"""Characters of the longest summary; sixty thousand tokens have so many."""
REASONING_ALLOWANCE = 8_192
"""Tokens that a reasoning model may think before it writes a summary, on top of the summary's own. A cap, not a cost:
such models are asked for little effort."""
RETRY_PAUSE_SECONDS = 0.25
"""Seconds before a call that failed by accident is repeated."""
TAUGHT_SECONDS = 24 * 3600.0
"""Seconds for which it is remembered how a model wants to be asked."""
_Asked = tuple[Upstream, bytes, str]
"""Model behind an upstream, and the path at which it is asked."""


@dataclass(frozen=True, slots=True)
class Route:
    """Way to a summariser: a model, and how it is reached."""

    model: str
    upstream: Upstream
    dialect: SummaryDialect
    headers: Headers
    """Headers, complete for the call: the caller's own, or with the operator's key."""
    name: str = ""
    """Name of the upstream in the settings."""
    host: str = ""
    window: int = 0
    """Tokens of the model's window; 0 if it is not known."""
    is_own: bool = False
    """True if the conversation itself goes there, too, and in the same format."""
    continues: bool = True
    """True if it is asked in the conversation's format, so that a call may continue the conversation itself."""
    missing: Callable[[], None] = lambda: None
    """Called if the path of its format turns out not to be there."""
    alternates: Callable[[], None] = lambda: None
    """Called if it refuses two messages of one role in a row."""
    target: bytes = field(default=b"", repr=False)
    """Path and query, with the caller's keys that stand there and not in a header: for the provider alone, neither for
    the log nor for a trace. Empty: the path of the format."""


class Prefix(Struct, frozen=True):
    """The conversation itself, in place of a transcript, so that the provider's prompt cache is hit."""

    messages: tuple[bytes, ...]
    declared: Mapping[str, bytes]
    """Members that have to be the same for a hit."""
    tokens: int = 0
    """Estimate of its size, as the provider counts."""
    routing: Mapping[str, bytes] = field(default_factory=dict)
    """Members by which the conversation's own provider finds the machine that has it in its cache."""


class _Setback(Struct, frozen=True):
    """Call that brought no answer."""

    failure: Failure
    pause: float | None = None
    """Seconds after which the same call may succeed; None: no use in repeating it."""
    model_fails: bool | None = False
    """True if it would fail for every caller, and not for this request or this account alone; None if unknown."""
    refusal: bytes = b""
    """Provider's words about a request that it does not take as it is."""
    shape: str | None = None
    """Provider's words about the order of the messages."""


@dataclass(slots=True)
class _Call:
    """Request to one route, and the chances that it has left."""

    route: Route
    request: SummaryRequest
    prefix: Prefix | None
    deadline: float
    tenant: str
    undertaking: Hashable
    key: _Asked
    lessons: int
    """Number of times that it may be refused for a member and asked otherwise: once for each, and for the cap."""
    retries: int = 1

    def body(self, options: Mapping[str, Any]) -> bytes:
        request, prefix, model, dialect = self.request, self.prefix, self.route.model, self.route.dialect
        if prefix is None:
            return dialect.quoting(request, model, options)
        declared = {**prefix.declared, **prefix.routing} if self.route.is_own else prefix.declared
        # What the conversation's own provider takes in a chat, another one may refuse, and the call with it.
        return replaced(dialect.continuing(prefix.messages, declared, request.closing, model, options))


class Summariser:
    """Asks for summaries, and remembers how each model wants to be asked and which do not work."""

    def __init__(
        self,
        timeout_seconds: float,
        parameters: Mapping[str, Any],
        clock: Callable[[], float] = monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        """Add `parameters` to each call, such as a temperature."""
        self._tracer = tracer
        self.timeout_seconds = timeout_seconds
        """Timeout of one call; `ask` may make several."""
        self._parameters = parameters
        self._clock = clock
        self._breaker = ModelBreaker(clock)
        self._throttle = LogThrottle(clock)
        self._answered: BoundedMap[str, None] = BoundedMap(MOST_REMEMBERED)
        """Tenants whom any model answered: their sightings may confirm those of others."""
        among = self._answered.__contains__
        self._caps: TenantFacts[_Asked, str] = TenantFacts(TAUGHT_SECONDS, clock, counts=among)
        """Name that each model wants for its cap."""
        self._refused: TenantFacts[tuple[_Asked, str], bool] = TenantFacts(TAUGHT_SECONDS, clock, counts=among)
        """Members that each model does not take."""

    @property
    def paused(self) -> int:
        return self._breaker.open

    async def ask(
        self,
        request: SummaryRequest,
        routes: Sequence[Route],
        prefix: Prefix | None,
        deadline: float,
        tenant: str,
        undertaking: Hashable = None,
    ) -> SummaryAnswer | Failure:
        """Ask for one summary for a tenant, from the first route that gives one by the deadline (of the clock, in
        seconds).

        Calls of one `undertaking` that fail tell no more of a model than a single one; None for a call by itself.
        Whatever goes wrong is a reply, never an exception. An overflow ends it at once: not another model is what the
        request needs, but to become smaller, which its caller sees to.
        """
        failure: Failure | None = None
        for route in routes:
            lessons = 1 + len({*route.dialect.spec.summary.optional, *self._parameters})
            shown = prefix if route.continues else None
            key = route.upstream, route.dialect.spec.path, route.model
            call = _Call(route, request, shown, deadline, tenant, undertaking, key, lessons)
            if self._left(call) <= 0:
                return failure or Failure(because(Code.SUMMARISER_UPSTREAM_TIMEOUT))
            if not self._breaker.admits(call.key, tenant):
                failure = failure or Failure((*(self._breaker.why(call.key, tenant) or ()), PAUSED))
                self._fails(call, (PAUSED,))
                continue
            while True:
                manners = self._manners(call)
                most, dialect = request.max_tokens, route.dialect
                options = dialect.options(manners, route.model, most, REASONING_ALLOWANCE, self._parameters)
                with self._traced(call) as (headers, trace_reply):
                    reply = await self._send(call, call.body(options), headers)
                    trace_reply(reply)
                if isinstance(reply, SummaryAnswer):
                    self._answered.keep(tenant, None)
                    self._works(call)
                    return replace(reply, model=route.model, upstream=route.name, format=dialect.spec.name)
                if (pause := self._retry_pause(call, reply, manners, options)) is None:
                    break
                await asyncio.sleep(pause)
            failure = reply.failure
            if failure.overflow:
                return failure
        return failure or Failure((PAUSED,))

    def _manners(self, call: _Call) -> Manners:
        """How the model wants to be asked, as far as its refusals taught the tenant, or two others."""
        dialect = call.route.dialect
        names = (*dialect.spec.summary.optional, *self._parameters)
        without = frozenset(name for name in names if self._refused.find(call.tenant, (call.key, name)))
        return Manners(self._caps.find(call.tenant, call.key) or dialect.cap(call.route.model), without)

    def _retry_pause(
        self, call: _Call, setback: _Setback, manners: Manners, options: Mapping[str, Any]
    ) -> float | None:
        """Change a call that brought no answer so that it may bring one. Return the seconds to wait before it is made
        again; None if it is given up, which is told to the breaker."""
        route = call.route
        if call.prefix is not None and setback.shape is not None:
            # The provider does not take the request behind the conversation itself.
            log.info("the summariser is quoted what it does not continue", model=route.model, reason=setback.shape)
            if demands_alternation(setback.shape):
                route.alternates()
            call.prefix = None
            return 0.0
        if call.lessons and (taught := route.dialect.taught(manners, setback.refusal, options)):
            call.lessons -= 1
            if taught.cap != manners.cap:
                self._caps.learn(call.tenant, call.key, taught.cap)
            for name in (refused := taught.without - manners.without):
                self._refused.learn(call.tenant, (call.key, name), True)
            if given_up := refused & self._parameters.keys():
                log.warning(
                    "the provider refused a member of summary.parameters: it is left out",
                    model=route.model,
                    upstream=route.name,
                    parameter=next(iter(given_up)),
                )
            return 0.0
        if call.retries and setback.pause is not None and setback.pause < self._left(call):
            call.retries -= 1
            return setback.pause
        if setback.model_fails:
            self._breaker.failed(call.key, call.tenant, setback.failure.why, call.undertaking)
            self._fails(call, setback.failure.why)
        elif setback.model_fails is False:
            self._works(call)
        return None

    def _fails(self, call: _Call, why: Reasons) -> None:
        if (times := self._throttle.count((call.key, call.tenant))) is not None:
            log.warning(
                "summariser fails",
                upstream=call.route.name,
                model=call.route.model,
                reason=joined(why),
                remedy=hint_for(why),
                times=times,
            )

    def _works(self, call: _Call) -> None:
        """Record that the model answers, if only to refuse this request."""
        self._breaker.answered(call.key, call.tenant)
        if (ended := self._throttle.end((call.key, call.tenant))) is not None:
            log.info(
                "summariser works again",
                upstream=call.route.name,
                model=call.route.model,
                times=ended[0],
                seconds=ended[1],
            )

    @contextmanager
    def _traced(self, call: _Call) -> Iterator[tuple[Headers, Callable[[SummaryAnswer | _Setback], None]]]:
        """A call in the trace of the request it is made for: the headers that name it, and a function for its reply."""
        headers = call.route.headers
        if self._tracer is None:
            yield headers, lambda _: None
            return
        span = self._tracer.begins(call.route.dialect.spec.path, headers)

        def trace_reply(reply: SummaryAnswer | _Setback) -> None:
            if isinstance(reply, SummaryAnswer):
                span.used(reply.usage)
            else:
                span.failed(joined(reply.failure.why) or "unknown")

        try:
            span.names(call.route.model, call.route.host)
            span.says("steno.summary_call", value=True)
            yield span.parent_of(headers), trace_reply
        finally:
            span.ends()

    async def _send(self, call: _Call, body: bytes, headers: Headers) -> SummaryAnswer | _Setback:
        seconds = min(self.timeout_seconds, self._left(call))
        route, dialect, prefix = call.route, call.route.dialect, call.prefix
        target = route.target or dialect.target(route.model)
        # It may be refused for its size without a word of that: a transcript is made to be smaller than half of the
        # window, the conversation itself is not.
        pressed = prefix is not None and prefix.tokens >= PRESSURE * route.window
        reader = dialect.reader()
        try:
            async with route.upstream.call(target, body, headers, seconds) as answering:
                if answering.status != 200:
                    refusal = bytearray()
                    await read_into(refusal, answering.chunks(), LONGEST_REFUSAL)
                    if says_no_such_path(answering.status, bytes(refusal)):
                        route.missing()
                    return _refused(answering, bytes(refusal), pressed=pressed)
                async for chunk in answering.chunks():
                    reader.feed(chunk)
                    if reader.done or _too_large(reader):
                        break
                else:
                    reader.end()
        except UpstreamTimedOut:
            had_its_time = seconds >= self.timeout_seconds
            setback = _Setback(Failure(because(Code.SUMMARISER_UPSTREAM_TIMEOUT)), model_fails=had_its_time or None)
        except StenoError as error:
            unreached = isinstance(error, UpstreamUnreachable)
            code = Code.SUMMARISER_UPSTREAM_UNREACHABLE if unreached else Code.SUMMARISER_UPSTREAM_DISCONNECTED
            setback = _Setback(Failure(because(code)), RETRY_PAUSE_SECONDS, model_fails=True)
        else:
            setback = _setback(reader, pressed=pressed)
        # What came after the end of the answer is not missed.
        return setback if _too_large(reader) else reader.answer or setback

    def _left(self, call: _Call) -> float:
        return call.deadline - self._clock()


def _too_large(reader: SummaryReader) -> bool:
    return reader.held > LARGEST_OWN_ANSWER or reader.length > LONGEST_SUMMARY


def _refused(answering: UpstreamExchange, body: bytes, *, pressed: bool) -> _Setback:
    status = answering.status
    overflow = _is_overflow(status, decoded_body(body), pressed=pressed)
    return _Setback(
        Failure(because(Code.SUMMARISER_STATUS, str(status)), overflow),
        None if overflow else _pause(status, answering.headers),
        model_fails=status >= 500,
        refusal=body if status in (400, 422) and not overflow else b"",
        shape=None if overflow else refused_shape(status, body),
    )


def _setback(reader: SummaryReader, *, pressed: bool) -> _Setback:
    """Return the reason why an answer with status 200 is none."""
    if reader.error is not None:
        overflow = reader.error_is_first and _is_overflow(200, reader.error, pressed=pressed)
        failure = Failure(because(Code.SUMMARISER_ERROR_FRAME), overflow)
        refused = reader.error_is_first and not overflow
        shape = refused_shape(200, msgspec.json.encode(reader.error), first_frame=True) if refused else None
        return _Setback(failure, None if overflow else RETRY_PAUSE_SECONDS, model_fails=not overflow, shape=shape)
    if _too_large(reader):
        return _Setback(Failure(because(Code.SUMMARISER_ANSWER_TOO_LARGE)))
    if reader.unreadable:
        return _Setback(Failure(because(Code.SUMMARISER_ANSWER_UNREADABLE)), model_fails=True)
    return _Setback(Failure(because(Code.SUMMARISER_ANSWER_CUT)), RETRY_PAUSE_SECONDS, model_fails=True)


def _is_overflow(status: int, body: object, *, pressed: bool) -> bool:
    """True if a smaller request may succeed. A refusal without a reason counts only where the request may have been
    that large, which is `pressed`."""
    found = classify(status, body, first_frame=status == 200)
    return found is not None and (pressed or not found.needs_pressure)


def _pause(status: int, headers: Headers) -> float | None:
    """Seconds after which the same call may succeed."""
    if status != 429 and status < 500:
        return None
    said = named_pause(headers, time())
    if said is None:
        return None if status in (429, 503) else RETRY_PAUSE_SECONDS
    return said if said <= LONGEST_WAIT_SECONDS else None


INPUT_SHARE = 0.85
"""Share of the summariser's room that one call may read: the rest is for wrong estimates."""
PART_SHARE = 0.50
VALUES_SHARE = 0.4
"""Share of a summary that exact values, which code copies after it, may take."""


@dataclass(frozen=True, slots=True)
class SummaryRouting:
    providers: Providers
    estimator: Estimator
    base_model: Callable[[str], str]
    """Function from a model to the one that it is counted as."""

    def options(self, request: ChatRequest, *, warm: bool) -> SummaryOptions:
        """`warm`: whether the conversation's provider has what was sent last in its cache."""
        rules, wire, budget = request.measure.rules, request.wire, request.budget
        summary = rules.summary
        summariser, provider = summary.model or request.model, self._at(request, summary.upstream)
        format_ = provider.format_for(request.format, request.tenant)
        formula = self.estimator.formula(format_.token_rules(self.base_model(summariser)))
        line = provider.calibrations.of(request.tenant, summariser, formula, tools=False).line
        window = provider.windows.window_of(summariser, request.tenant)
        room = line.to_estimate(limit_of(window, budget.summary))
        prompt, style, source_tokens = summary.prompt, rules.preset.style, rules.preset.source_tokens
        alternates = provider.demands_alternation(format_.name, summariser, request.tenant)
        if alternates and not request.policy.alternates:
            style = "transcript"  # The conversation is written for its own provider.
        if style == "auto":
            # Signed thinking may be refused where the prompt ends otherwise.
            is_signed = request.wire.thinking or request.conversation.history.holds_signed_thinking
            reads_it = warm and self.is_by_own_model(request) and not is_signed
            style = "prefix" if reads_it else "transcript"
        return SummaryOptions(
            model=summariser,
            prompt=prompt,
            update_prompt=rules.update_prompt,
            # The prompt stands in a call twice: at four characters a token, half its length.
            input_tokens=max(0, int(INPUT_SHARE * room) - len(prompt + wire.wishes.focus) // 2),
            shown_tokens=max(0, room - len(prompt + wire.wishes.focus) // 2),
            part_tokens=int(PART_SHARE * min(window.context, room)),
            source_tokens=source_tokens and int(source_tokens / budget.line.ratio),
            focus=wire.wishes.focus,
            ratio=line.ratio,
            strategy=rules.policy.strategy,
            # What is shown as it came can be read in its own format alone.
            style=style if format_ is request.format else "transcript",
            alternates=alternates,
            values_share=VALUES_SHARE,
            user_words=rules.policy.user_words,
            folds_in=rules.policy.folds_in,
            failed_results=rules.policy.failed_results,
        )

    def routes(self, request: ChatRequest) -> tuple[Route, ...]:
        """Summarisers to ask, the first choice first. An upstream with a key of its own adds that itself."""
        summary, headers = request.measure.rules.summary, for_summary(request.headers)
        asked = ((summary.model, summary.upstream), *((other.model, other.upstream) for other in summary.fallbacks))
        return tuple(
            self._route(request, model or request.model, self._at(request, upstream), headers)
            for model, upstream in asked
        )

    def prefix(self, request: ChatRequest, view: View) -> Prefix:
        routing = dict([request.wire.cache_key] if request.wire.cache_key else ())
        tokens = request.budget.line.to_provider_tokens(view.tokens)
        return Prefix(tuple(request.rendered(view)), request.wire.cached, tokens, routing)

    def is_by_own_model(self, request: ChatRequest) -> bool:
        """True if the conversation's own model is asked first, whose provider has just read it."""
        summary = request.measure.rules.summary
        return summary.model in (None, request.model) and self._at(request, summary.upstream) is request.provider

    def _route(self, request: ChatRequest, model: str, provider: Provider, headers: list[tuple[bytes, bytes]]) -> Route:
        format_, is_own = provider.format_for(request.format, request.tenant), provider is request.provider
        shown = (
            headers if is_own else for_other_providers(headers)
        )  # A key is for the conversation's own provider alone.
        asked, _, query = request.target.partition(b"?") if is_own else (b"", b"", b"")
        return Route(
            model,
            provider.upstream,
            format_.summaries,
            with_missing(shown, format_.summaries.spec.summary.headers),
            provider.name,
            provider.host,
            provider.windows.window_of(model, request.tenant).context,
            is_own=is_own and format_ is request.format,
            continues=format_ is request.format,
            missing=partial(provider.lacks, format_.name, request.tenant),
            alternates=partial(provider.learn_alternation, format_.name, model, request.tenant),
            target=format_.summaries.target(model, asked, keys_alone(query)),
        )

    def _at(self, request: ChatRequest, upstream: str | None) -> Provider:
        return self.providers.named(upstream) if upstream else request.provider
