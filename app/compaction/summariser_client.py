"""Client for summarisers. It chooses the options and routes of a request's summaries, calls the models in order, and
retries a failed call if a retry may help. A circuit breaker pauses failing models.

Use `SummaryRouting` only in the event loop: it reads windows and calibrations, which other tasks of the loop change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import limit_of
from app.compaction.chunks import Failure
from app.compaction.overflow import PRESSURE
from app.compaction.plan import SummaryOptions
from app.compaction.prompts import SummaryRequest
from app.compaction.request import ChatRequest
from app.compaction.view import View
from app.conversation.reasons import Code, Reason, Reasons, because, hint_for, joined
from app.errors import StenoError, UpstreamTimedOut, UpstreamUnreachable
from app.formats.raw_json import replaced
from app.formats.refusals import (
    decoded_body,
    demands_alternation,
    named_pause,
    read_overflow,
    refused_shape,
    says_no_such_path,
)
from app.formats.spec import SummaryAnswer
from app.formats.summaries import Manners, SummaryDialect, SummaryReader
from app.http.connection import UpstreamExchange
from app.http.credentials import keys_alone
from app.http.headers import for_other_providers, for_summary, with_missing
from app.http.upstream import LARGEST_OWN_ANSWER, LONGEST_REFUSAL, Headers, Upstream
from app.providers.providers import Provider, Providers
from app.runtime.caches import MOST_REMEMBERED, BoundedMap, LogThrottle, TenantFacts
from app.store import CalibrationKey
from app.tokens.estimator import Estimator

if TYPE_CHECKING:
    from app.telemetry.traces import Tracer
from app.compaction.breakers import ModelBreaker

log = structlog.get_logger("steno.summariser")
PAUSED = Reason(Code.SUMMARISER_PAUSED)
"""Reason for making no call: the circuit breaker pauses the models."""
LONGEST_WAIT_SECONDS = 5.0
"""Maximum Retry-After. If it is longer, Steno does not retry the call, because a client may wait for the summary."""
LONGEST_SUMMARY = 250_000
"""Maximum characters of a summary, about 60,000 tokens."""
REASONING_ALLOWANCE = 8_192
"""Tokens for reasoning, added to the output cap of a summary. Models use few of them, because Steno asks for low
reasoning effort."""
RETRY_PAUSE_SECONDS = 0.25
"""Seconds before a call is repeated after a temporary failure."""
TAUGHT_SECONDS = 24 * 3600.0
"""Seconds for which Steno remembers the request members that a model refused."""
_Asked = tuple[Upstream, bytes, str]
"""Upstream, request path and model."""


@dataclass(frozen=True, slots=True)
class Route:
    """Model that may write summaries, with everything that a call needs."""

    model: str
    provider: Provider
    dialect: SummaryDialect
    headers: Headers
    """Headers of the call, without a key that the upstream adds itself."""
    window: int = 0
    """Tokens of the model's window; 0 if unknown."""
    is_own: bool = False
    """True if the route has the provider and the format of the conversation."""
    continues: bool = True
    """True if the route has the conversation's format, so that a call may send the conversation itself."""
    target: bytes = field(default=b"", repr=False)
    """Path and query, which may hold the client's keys and are never logged. Empty to use the format's path."""


class Prefix(Struct, frozen=True):
    """Conversation that Steno sends instead of a transcript, because the provider may have it in its prompt cache."""

    messages: tuple[bytes, ...]
    declared: Mapping[str, bytes]
    """Request members, such as tools, that must be the same as in the conversation's requests for a cache hit."""
    tokens: int = 0
    """Tokens of the conversation, converted from the estimate to the provider's count."""
    routing: Mapping[str, bytes] = field(default_factory=dict)
    """Request members by which the provider chooses the machine with the cache."""


class _Setback(Struct, frozen=True):
    """Failed call."""

    failure: Failure
    pause: float | None = None
    """Seconds after which the same call may succeed; None if a retry is useless."""
    model_fails: bool | None = False
    """True if the model fails for every tenant, False if it only refuses this request or account, None if unknown."""
    refusal: bytes = b""
    """Body of a refusal that may name an unsupported request member; empty for other failures."""
    shape: str | None = None
    """Text with which the provider refused the order of the messages; None for other failures."""


@dataclass(slots=True)
class _Call:
    """Summary call to one route, with its remaining retries."""

    route: Route
    request: SummaryRequest
    prefix: Prefix | None
    deadline: float
    tenant: str
    key: _Asked
    lessons: int
    """Remaining retries after refusals of request members: one for each optional member, and one for the output cap."""
    retries: int = 1

    def body(self, options: Mapping[str, Any]) -> bytes:
        request, prefix, model, dialect = self.request, self.prefix, self.route.model, self.route.dialect
        if prefix is None:
            return dialect.quoting(request, model, options)
        declared = {**prefix.declared, **prefix.routing} if self.route.is_own else prefix.declared
        # Only the conversation's own provider gets the routing members. Other providers may refuse them.
        return replaced(dialect.continuing(prefix.messages, declared, request.closing, model, options))


class Summariser:
    """Client for summarisers. It remembers failures and refused request members by model."""

    def __init__(
        self,
        timeout_seconds: float,
        parameters: Mapping[str, Any],
        clock: Callable[[], float] = monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        """`parameters`: request members for each call, such as a temperature."""
        self._tracer = tracer
        self.timeout_seconds = timeout_seconds
        """Timeout of each call; `ask` may make several calls."""
        self._parameters = parameters
        self._clock = clock
        self._breaker = ModelBreaker(clock)
        self._throttle = LogThrottle(clock)
        self._answered: BoundedMap[str, None] = BoundedMap(MOST_REMEMBERED)
        """Tenants that got an answer from some model. Only these tenants may confirm facts for other tenants."""
        among = self._answered.__contains__
        self._caps: TenantFacts[_Asked, str] = TenantFacts(TAUGHT_SECONDS, clock, counts=among)
        """Name of the request member for the output cap, by model."""
        self._refused: TenantFacts[tuple[_Asked, str], bool] = TenantFacts(TAUGHT_SECONDS, clock, counts=among)
        """Pairs of a model and a request member that the model refuses."""

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
    ) -> SummaryAnswer | Failure:
        """Return the first summary that a route gives. Errors are returned, never raised.

        `deadline`: time by the clock, in seconds. After an overflow, Steno tries no other route, because the caller
        then makes the request smaller.
        """
        failure: Failure | None = None
        for route in routes:
            lessons = 1 + len({*route.dialect.spec.summary.optional, *self._parameters})
            shown = prefix if route.continues else None
            key = route.provider.upstream, route.dialect.spec.path, route.model
            call = _Call(route, request, shown, deadline, tenant, key, lessons)
            if call.deadline <= self._clock():
                return failure or Failure(because(Code.SUMMARISER_UPSTREAM_TIMEOUT))
            if not self._breaker.admits(call.key, tenant):
                failure = failure or Failure((*(self._breaker.why(call.key, tenant) or ()), PAUSED))
                self._fails(call, (PAUSED,))
                continue
            while True:
                manners = self._manners(call)
                most, dialect = request.max_tokens, route.dialect
                options = dialect.options(manners, route.model, most, REASONING_ALLOWANCE, self._parameters)
                reply = await self._send_traced(call, call.body(options))
                if isinstance(reply, SummaryAnswer):
                    self._answered.keep(tenant, None)
                    self._works(call)
                    return replace(reply, model=route.model, upstream=route.provider.name, format=dialect.spec.name)
                if (pause := self._retry_pause(call, reply, manners, options)) is None:
                    break
                await asyncio.sleep(pause)
            failure = reply.failure
            if failure.overflow:
                return failure
        return failure or Failure((PAUSED,))

    def _manners(self, call: _Call) -> Manners:
        """Return the output cap's name and the members to omit, learnt from refusals to this tenant or two others."""
        dialect = call.route.dialect
        names = (*dialect.spec.summary.optional, *self._parameters)
        without = frozenset(name for name in names if self._refused.find(call.tenant, (call.key, name)))
        return Manners(self._caps.find(call.tenant, call.key) or dialect.cap(call.route.model), without)

    def _retry_pause(
        self, call: _Call, setback: _Setback, manners: Manners, options: Mapping[str, Any]
    ) -> float | None:
        """Adapt a failed call for a retry. Return the seconds to wait before the retry. If no retry helps, tell the
        circuit breaker whether the model fails, and return None."""
        route = call.route
        if call.prefix is not None and setback.shape is not None:
            # The provider refused the conversation itself: send a transcript.
            log.info("the summariser is quoted what it does not continue", model=route.model, reason=setback.shape)
            if demands_alternation(setback.shape):
                route.provider.learn_alternation(route.dialect.spec.name, route.model, call.tenant)
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
                    upstream=route.provider.name,
                    parameter=next(iter(given_up)),
                )
            return 0.0
        if call.retries and setback.pause is not None and setback.pause < call.deadline - self._clock():
            call.retries -= 1
            return setback.pause
        if setback.model_fails:
            self._breaker.failed(call.key, call.tenant, setback.failure.why)
            self._fails(call, setback.failure.why)
        elif setback.model_fails is False:
            self._works(call)
        return None

    def _fails(self, call: _Call, why: Reasons) -> None:
        if (times := self._throttle.count((call.key, call.tenant))) is not None:
            log.warning(
                "summariser fails",
                upstream=call.route.provider.name,
                model=call.route.model,
                reason=joined(why),
                remedy=hint_for(why),
                times=times,
            )

    def _works(self, call: _Call) -> None:
        """Record that the model works, because it answered or only refused this request."""
        self._breaker.answered(call.key, call.tenant)
        if (ended := self._throttle.end((call.key, call.tenant))) is not None:
            log.info(
                "summariser works again",
                upstream=call.route.provider.name,
                model=call.route.model,
                times=ended[0],
                seconds=ended[1],
            )

    async def _send_traced(self, call: _Call, body: bytes) -> SummaryAnswer | _Setback:
        """Send a call. If there is a tracer, record a span whose parent is the client's request."""
        headers = call.route.headers
        if self._tracer is None:
            return await self._send(call, body, headers)
        span = self._tracer.begins(call.route.dialect.spec.path, headers)
        try:
            span.names(call.route.model, call.route.provider.host)
            span.says("steno.summary_call", value=True)
            reply = await self._send(call, body, span.parent_of(headers))
            if isinstance(reply, SummaryAnswer):
                span.used(reply.usage)
            else:
                span.failed(joined(reply.failure.why) or "unknown")
            return reply
        finally:
            span.ends()

    async def _send(self, call: _Call, body: bytes, headers: Headers) -> SummaryAnswer | _Setback:
        seconds = min(self.timeout_seconds, call.deadline - self._clock())
        route, dialect, prefix = call.route, call.route.dialect, call.prefix
        target = route.target or dialect.target(route.model)
        # A refusal without a reason may be an overflow if the conversation itself was sent, which may fill the window.
        # A transcript is far smaller.
        pressed = prefix is not None and prefix.tokens >= PRESSURE * route.window
        reader = dialect.reader()
        try:
            async with route.provider.upstream.call(target, body, headers, seconds) as answering:
                if answering.status != 200:
                    refusal, _ = await answering.read_ahead(LONGEST_REFUSAL)
                    if says_no_such_path(answering.status, refusal):
                        route.provider.lacks(dialect.spec.name, call.tenant)
                    return _refused(answering, refusal, pressed=pressed)
                async for chunk in answering:
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
        # A complete answer counts, even if an error follows it.
        return setback if _too_large(reader) else reader.answer or setback


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
    """Return the failure of a response with status 200 that is no summary."""
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
    """Return whether a smaller request may succeed. `pressed`: the request was nearly as large as the window. If it was
    not, a refusal without a reason is no overflow."""
    found = read_overflow(status, body, first_frame=status == 200)
    return found is not None and (pressed or not found.needs_pressure)


def _pause(status: int, headers: Headers) -> float | None:
    """Return the seconds after which the same call may succeed; None if a retry is useless."""
    if status != 429 and status < 500:
        return None
    said = named_pause(headers, time())
    if said is None:
        return None if status in (429, 503) else RETRY_PAUSE_SECONDS
    return said if said <= LONGEST_WAIT_SECONDS else None


INPUT_SHARE = 0.85
"""Share of the summariser's limit that one call may use. The rest covers estimation errors."""
PART_SHARE = 0.50
VALUES_SHARE = 0.4
"""Maximum share of a summary for exact values."""


@dataclass(frozen=True, slots=True)
class SummaryRouting:
    providers: Providers
    estimator: Estimator
    base_model: Callable[[str], str]
    """Function that returns, for a given model, the model whose rules for counting tokens apply."""

    def options(self, request: ChatRequest, *, warm: bool) -> SummaryOptions:
        """Return the summary options. `warm`: whether the provider has the conversation in its prompt cache."""
        rules, wire, budget = request.measure.rules, request.wire, request.budget
        summary = rules.summary
        summariser, provider = summary.model or request.model, self._at(request, summary.upstream)
        format_ = provider.format_for(request.format, request.tenant)
        formula = self.estimator.formula(format_.token_rules(self.base_model(summariser)))
        key = CalibrationKey(provider.settings.base_url, summariser, formula, tools=False, tenant=request.tenant)
        line = provider.calibrations.of(key).line
        window = provider.windows.window_of(summariser, request.tenant)
        room = line.to_estimate(limit_of(window, budget.summary))
        prompt, style, source_tokens = summary.prompt, rules.preset.style, rules.preset.source_tokens
        alternates = provider.demands_alternation(format_.name, summariser, request.tenant)
        if alternates and not request.policy.alternates:
            style = "transcript"  # The conversation itself may have consecutive messages of one role.
        if style == "auto":
            # The provider may refuse signed thinking in a prompt with another ending.
            is_signed = request.wire.thinking or request.conversation.history.holds_signed_thinking
            reads_it = warm and self.is_by_own_model(request) and not is_signed
            style = "prefix" if reads_it else "transcript"
        return SummaryOptions(
            model=summariser,
            prompt=prompt,
            update_prompt=rules.update_prompt,
            # A call has the prompt twice: at four characters per token, half as many tokens as characters.
            input_tokens=max(0, int(INPUT_SHARE * room) - len(prompt + wire.wishes.focus) // 2),
            shown_tokens=max(0, room - len(prompt + wire.wishes.focus) // 2),
            part_tokens=int(PART_SHARE * min(window.context, room)),
            source_tokens=source_tokens and int(source_tokens / budget.line.ratio),
            focus=wire.wishes.focus,
            ratio=line.ratio,
            strategy=rules.policy.strategy,
            # The conversation itself can only be sent in its own format.
            style=style if format_ is request.format else "transcript",
            alternates=alternates,
            values_share=VALUES_SHARE,
            user_words=rules.policy.user_words,
            folds_in=rules.policy.folds_in,
            failed_results=rules.policy.failed_results,
        )

    def routes(self, request: ChatRequest) -> tuple[Route, ...]:
        """Return the routes to try, in order. An upstream with its own API key adds the key itself."""
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
        """Return whether the first route has the model and the provider of the conversation."""
        summary = request.measure.rules.summary
        return summary.model in (None, request.model) and self._at(request, summary.upstream) is request.provider

    def _route(self, request: ChatRequest, model: str, provider: Provider, headers: list[tuple[bytes, bytes]]) -> Route:
        format_, is_own = provider.format_for(request.format, request.tenant), provider is request.provider
        # Only the conversation's own provider gets the client's key.
        shown = headers if is_own else for_other_providers(headers)
        asked, _, query = request.target.partition(b"?") if is_own else (b"", b"", b"")
        return Route(
            model,
            provider,
            format_.summaries,
            with_missing(shown, format_.summaries.spec.summary.headers),
            provider.windows.window_of(model, request.tenant).context,
            is_own=is_own and format_ is request.format,
            continues=format_ is request.format,
            target=format_.summaries.target(model, asked, keys_alone(query)),
        )

    def _at(self, request: ChatRequest, upstream: str | None) -> Provider:
        return self.providers.named(upstream) if upstream else request.provider
