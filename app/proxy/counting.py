"""Counting: the provider counts a request, or the payload that Steno would make of it now, and nobody answers it."""

from __future__ import annotations

from functools import partial

from app.compaction.request import ChatRequest
from app.conversation.reasons import Code, Reason
from app.formats.paths import uncompacted
from app.proxy.exchange import Exchange
from app.proxy.gate import counts_forwarded
from app.proxy.report import bypassed, context_headers, passing
from app.proxy.request import count_messages


class Counting(Exchange):
    """Request to count, which leaves no trace: compacted with what is stored, or as it came."""

    __slots__ = ()
    remembers = False

    async def serve(self) -> None:
        if counts_forwarded(self.caller.headers):
            await super().serve()
            return
        entry = uncompacted("POST", self.caller.target)
        reason = Reason(Code.PATH_NOT_COMPACTED) if entry is None else passing(entry, self.services.formats)
        self._tell_bypass(reason)
        await self._relay_unread(bypassed(reason), self.body)

    async def _serve(self, request: ChatRequest) -> None:
        decision = await self._decide(request, self.services.compactor.dry_run(request).simulate(summaries=False))
        await count_messages(self.services, request.tenant, request.conversation, request.prompt)
        self.own_headers = context_headers(request, decision)
        body = await request.beside(self.services.work.do, partial(request.payload, decision))
        answering = await self._forwarding.send(body, request.provider, request.model)
        try:
            await self._relay.as_sent(answering, self.own_headers)
        finally:
            await answering.close()
