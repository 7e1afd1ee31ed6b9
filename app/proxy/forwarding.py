"""Forwarding: a payload on its way to the provider, and again where nobody saw it, or without a refused member."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic, time
from typing import TypeVar

import structlog
from msgspec import Struct

from app.errors import UpstreamUnreachable
from app.formats.provider_errors import is_repeatable, named_pause
from app.formats.refusals import (
    CUT_WORDS,
    MISSING_PATH_STATUSES,
    OVERFLOW_STATUSES,
    decoded_body,
    is_error,
    says_no_such_path,
)
from app.formats.sse import LARGEST_WHOLE
from app.http.connection import Exchange
from app.http.relayed import EVENT_STREAM, Headers, forwarded, media_type
from app.http.upstream import LONGEST_REFUSAL, UpstreamAnswer
from app.providers.providers import Provider
from app.proxy.caller import Caller
from app.proxy.decoding import Encoded
from app.proxy.learning import Observation
from app.proxy.milestones import Milestones
from app.proxy.peeking import read_beginning, read_whole
from app.proxy.record import FIRST_ERROR, RequestRecord
from app.proxy.services import Services

log = structlog.get_logger("steno.chat")

A = TypeVar("A", bound=UpstreamAnswer)


class Forwarding(Struct, frozen=True):
    """Calls of one request to the provider."""

    services: Services
    caller: Caller
    record: RequestRecord
    encoded: Encoded | None = None
    """The request as it came, if its body was decoded: it goes on so if it is not changed."""

    async def send(
        self,
        body: bytes,
        provider: Provider,
        model: str | None = None,
        headers: Headers | None = None,
        *,
        tells: bool = True,
    ) -> Exchange:
        """Make one call, with the client's headers if no others are given. `tells`: a refusal is logged at once.
        Raises the upstream errors."""
        self.record.goes_to(provider, model)
        upstream, caller = provider.upstream, self.caller
        if self.encoded is not None and headers is None and body == self.encoded.plain:
            caller, body = self.encoded.caller, self.encoded.body
        if headers is None:
            head = caller.head_at(upstream)
        else:
            head = upstream.head(b"POST", caller.target, forwarded(headers, read_here=True))
        answering = await upstream.relay(head, body)
        self.record.answered(answering, tells=tells)
        return answering

    def obtain(self, observed: Observation, milestones: Milestones) -> Awaitable[UpstreamAnswer]:
        """Return the provider's answer. Once the client's stream has begun no SDK repeats a request: then we do, as
        it would. Raises the upstream errors."""
        return self._ask_again(observed, milestones) if milestones.is_early else self._ask(observed, milestones)

    async def _ask_again(self, observed: Observation, milestones: Milestones) -> UpstreamAnswer:
        patience = Patience(observed.request.wait_seconds)
        while True:
            try:
                answering = await self._ask(observed, milestones)
            except UpstreamUnreachable:  # Nobody has seen the request.
                if (pause := patience.pause()) is None:
                    raise
            else:
                status, headers = answering.status, answering.headers
                is_understood = observed.overflow is not None or observed.misshapen is not None
                is_final = status == 200 or is_understood or not is_repeatable(status, headers)
                if is_final or (pause := patience.pause(headers)) is None:
                    return answering
                await answering.close()
                request_id = self.record.request_id
                log.info("asked once more", request_id=request_id, status=status, seconds=round(pause, 3))
            await asyncio.sleep(pause)

    async def _ask(self, observed: Observation, milestones: Milestones) -> UpstreamAnswer:
        """Return an answer. A refusal is read first; the member that it is about is left out, if that can be done
        without a change to the history. A second refusal is final."""
        answering = await self._send_observed(observed, milestones)
        if answering.status in OVERFLOW_STATUSES:
            is_fault = answering.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            refused = await read_whole(answering, is_passed_on=is_fault)
            if not milestones.is_resent and await observed.mended(refused):
                await refused.close()
                milestones.is_resent = True
                answering = await self._send_observed(observed, milestones)
                if answering.status not in OVERFLOW_STATUSES:
                    return self._told(answering)
                refused = await read_whole(answering)
            self._told(refused)
            await observed.refusal(refused.status, refused.headers, refused.read)
            return refused
        self._told(answering)
        if answering.status in MISSING_PATH_STATUSES:
            refused = await read_whole(answering, is_passed_on=True)
            # At another spelling of it, such as with a slash more, a server may miss what it has.
            is_own = self.caller.target.partition(b"?")[0] == observed.request.format.path
            if is_own and says_no_such_path(refused.status, refused.read):
                observed.request.provider.lacks(observed.request.format.name, observed.request.tenant)
            return refused
        if answering.status == HTTPStatus.OK and observed.could_overflow:
            return await self._checked(answering, observed)
        return answering

    async def _checked(self, answering: Exchange, observed: Observation) -> UpstreamAnswer:
        """Return an answer with status 200, after a look whether it is an overflow in truth: an error, or nothing for
        want of room."""
        kind, answers = media_type(answering.headers), observed.request.format.answers
        if kind == EVENT_STREAM:
            editor, says_something = await read_beginning(answering, observed.request.format)
            if editor.refusal:
                await observed.refusal(answering.status, answering.headers, editor.refusal, first_frame=True)
            elif editor.complete and not says_something:
                observed.ended(editor, is_empty=True)
            return answering
        if kind != "application/json":
            return answering
        peeked = await read_whole(answering, LARGEST_WHOLE, is_passed_on=True)
        body = peeked.read
        if len(body) <= LONGEST_REFUSAL and b'"error' in body and is_error(decoded_body(body)):
            await observed.refusal(peeked.status, peeked.headers, body, first_frame=True)
        elif peeked.is_whole and any(word in body for word in CUT_WORDS):
            editor = answers.editor()
            editor.whole(body)
            observed.ended(editor, is_empty=not editor.CONTENT.search(body))
        return peeked

    def _told(self, answering: A) -> A:
        """Return the answer, with a line in the log if it is a refusal."""
        if answering.status >= FIRST_ERROR:
            self.record.refused(answering)
        return answering

    async def _send_observed(self, observed: Observation, milestones: Milestones) -> Exchange:
        request, decision = observed.request, observed.decision
        if decision.view is None:
            body = request.payload(decision)
        else:
            body = await request.beside(self.services.work.do, observed.payload)
        observed.size = len(body)
        answering = milestones.own(await self.send(body, request.provider, request.model, tells=False))
        observed.answered(answering.status)
        return answering


MOST_REPEATS = 2
"""Maximum number of repetitions, as in OpenAI's SDKs, whose pauses these are, too."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0
JITTER = 0.25


@dataclass(slots=True)
class Patience:
    """Patience with one request. It begins to run out with the first refusal."""

    seconds: float
    """Seconds that may pass until the last repetition."""
    repeats: int = 0
    _deadline: float | None = None

    def pause(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> float | None:
        """Seconds after which to ask again, as the refusal's headers say; None if that is too late, or too often."""
        if self._deadline is None:
            self._deadline = monotonic() + self.seconds
        pause = named_pause(headers, time()) or self._usual
        if self.repeats >= MOST_REPEATS or monotonic() + pause > self._deadline:
            return None
        self.repeats += 1
        return pause

    @property
    def _usual(self) -> float:
        """Usual pause, spread so that callers who were refused together do not come back together."""
        pause = min(FIRST_PAUSE_SECONDS * 2.0**self.repeats, LONGEST_PAUSE_SECONDS)
        return pause * (1 - JITTER * random.random())
