"""Archiving: the messages of a request are kept as they were sent, if the operator wants that."""

from __future__ import annotations

from collections.abc import Iterator

from app.compaction.request import ChatRequest
from app.core.history.identity import Identity
from app.proxy.services import Services
from app.store import Strand


def archive(services: Services, request: ChatRequest) -> None:
    """Archive the messages after the answer, and after the request itself was recorded, if messages are kept; not those
    kept before.

    An answer is kept with the next request, which has it in its history: as its client took it, and not as a stream
    that would have to be put together here.
    """
    for strand in _strands(request, services.identity) if services.keeps_messages else ():
        services.store.writes.record_messages(strand)


def _strands(request: ChatRequest, identity: Identity) -> Iterator[Strand]:
    """Split a history into leading instructions and the rest: the same history may come behind other instructions."""
    conversation = request.conversation
    leading, costs = conversation.instructions, conversation.costs.messages
    chain = identity.chain(conversation.root, (message.digest for message in leading))
    rest = conversation.chain
    for messages, places, first, tokens, marks in (
        (leading, chain.digests, -len(leading), costs[: len(leading)], chain.digests[-1:]),
        (conversation.transcript.messages, rest.digests, 0, costs[len(leading) :], [head for head, _ in request.heads]),
    ):
        yield Strand(
            tenant=request.tenant,
            conversation_id=request.conversation_id,
            request_id=request.request_id,
            format=request.format.name,
            messages=messages,
            alone=request.format.alone,
            places=places,
            root=places[0],
            tokens=tokens,
            ratio=request.budget.line.ratio,
            first=first,
            marks=marks,
        )
