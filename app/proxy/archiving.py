"""Archiving: the messages of a request are kept as they were sent, if the operator wants that."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.history.identity import Identity
from app.proxy.facts import Facts
from app.proxy.services import Services
from app.store import Strand


def archive(services: Services, facts: Facts) -> None:
    """Archive the messages after the answer, and after the request itself was recorded; not those kept before.

    An answer is kept with the next request, which has it in its history: as its client took it, and not as a stream
    that would have to be put together here.
    """
    for strand in _strands(facts, services.identity):
        services.store.writes.record_messages(strand)


def _strands(facts: Facts, identity: Identity) -> Iterator[Strand]:
    """Split a history into leading instructions and the rest: the same history may come behind other instructions."""
    job, conversation = facts.job, facts.job.conversation
    leading, costs = conversation.instructions, conversation.costs.messages
    chain = identity.chain(job.tenant, (message.digest for message in leading))
    rest = conversation.chain
    for messages, places, first, tokens, marks in (
        (leading, chain.digests, -len(leading), costs[: len(leading)], chain.digests[-1:]),
        (conversation.transcript.messages, rest.digests, 0, costs[len(leading) :], [head for head, _ in facts.heads]),
    ):
        yield Strand(
            tenant=job.tenant,
            conversation_id=job.conversation_id,
            request_id=job.request_id,
            format=facts.format.name,
            messages=messages,
            alone=facts.format.alone,
            places=places,
            root=places[0],
            tokens=tokens,
            ratio=job.budget.line.ratio,
            first=first,
            marks=marks,
        )
