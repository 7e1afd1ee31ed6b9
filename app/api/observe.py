"""Observation: what a provider's answer teaches about its model. Off the request's path, and never in its way."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog

from app.api.intake import Understood
from app.core.calibration import Sample
from app.core.ladder import Decision
from app.services import Services
from app.upstream import Answering, Headers
from app.wire.sse import StreamEditor
from app.wire.usage import prompt_tokens

log = structlog.get_logger("steno.observe")

REFUSALS = frozenset({400, 413, 422, 429})
"""Statuses that can mean the prompt was too large, or a parameter unknown."""
LONGEST_REFUSAL = 64 << 10
_USAGE_OPTION = re.compile(rb"stream_options|include_usage")


@dataclass(slots=True)
class Observation:
    """One request's answer, compared with what was expected of it."""

    services: Services
    understood: Understood
    prepared: Decision

    @property
    def asks_usage(self) -> bool:
        """Whether we ask for the stream's usage and the client does not: without it a stream teaches nothing."""
        request, services = self.understood.request, self.services
        return (
            services.settings.calibration.ask_usage
            and self.prepared.view is not None
            and request.stream
            and not request.wants_usage
            and request.model not in services.without_usage
        )

    def body(self) -> bytes:
        """What is sent."""
        alternate = self.services.settings.upstream.alternating_roles
        return self.understood.body(self.prepared, alternate, self.asks_usage)

    def usage(self, usage: object) -> None:
        """An answer came, and said that it cost this much."""
        try:
            self._usage(usage)
        except Exception:
            log.exception("an answer's usage was not learnt from")

    def stream_ended(self, editor: StreamEditor) -> None:
        """A stream came to its end, or began with an error that another provider sends with its status."""
        if editor.refusal:
            self._refusal(200, (), editor.refusal, first_frame=True)
        else:
            self.usage(editor.usage)

    def refused(self, refused: Refused) -> bool:
        """The provider did not take the request: whether it may take it without what we added. Remembered."""
        model = self.understood.request.model
        if self.asks_usage and refused.status in (400, 422) and _USAGE_OPTION.search(refused.read):
            self.services.without_usage.add(model)
            log.info("the provider tells no usage in streams", model=model)
            return True
        self._refusal(refused.status, refused.headers, refused.read)
        return False

    def _refusal(self, status: int, headers: Headers, body: bytes, *, first_frame: bool = False) -> None:
        model = self.understood.request.model
        try:
            self.services.windows.observe_error(model, status, headers, body, first_frame=first_frame)
        except Exception:
            log.exception("a refusal was not learnt from")

    def _usage(self, usage: object) -> None:
        request, conversation = self.understood.request, self.understood.job.conversation
        reported = prompt_tokens(usage)
        if reported is None:
            return
        self.services.windows.succeeded(request.model, reported)
        if not self.services.settings.calibration.enabled:
            return
        if conversation.holds_media or request.has_hosted_tools or request.has_schema:
            return  # What they cost is only guessed, or differs from provider to provider.
        sample = Sample(self.understood.forwarded(self.prepared), reported)
        self.services.calibrations.learn(request.model, self.understood.formula, request.has_tools, sample)


@dataclass(slots=True)
class Refused:
    """A refusal that was read to see why, and is passed on as it came."""

    answering: Answering
    read: bytes
    rest: AsyncIterator[bytes]

    @property
    def status(self) -> int:
        return self.answering.status

    @property
    def headers(self) -> Headers:
        return self.answering.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.read:
            yield self.read
        async for chunk in self.rest:
            yield chunk

    async def close(self) -> None:
        await self.answering.close()


async def read_refusal(answering: Answering) -> Refused:
    """Reads a refusal's body, up to a size no refusal has. Raises the upstream errors."""
    rest, read = answering.chunks(), b""
    async for chunk in rest:
        read += chunk
        if len(read) > LONGEST_REFUSAL:
            break
    return Refused(answering, read, rest)
