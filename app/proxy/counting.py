"""Counting: the provider counts the payload that Steno would make of a request now, and nobody answers it."""

from __future__ import annotations

from functools import partial

from app.proxy.exchange import Exchange
from app.proxy.facts import Facts
from app.proxy.intake import count
from app.proxy.report import context_headers


class Counting(Exchange):
    """A request to count: compacted with what is stored, without a trace, and sent on to be counted."""

    __slots__ = ()
    remembers = False

    async def _serve(self, facts: Facts) -> None:
        job = facts.job
        decision = await self._decide(facts, self.services.compactor.look(job))
        await count(self.services, job.tenant, job.conversation, facts.job.prompt)
        self.own_headers = context_headers(facts, decision)
        body = await job.beside(self.services.work, partial(facts.payload, decision))
        answering = await self._forwarding.send_decided(body, facts, decision)
        try:
            await self._relay.as_sent(answering, self.own_headers)
        finally:
            await answering.close()
