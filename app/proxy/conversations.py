"""Conversations by name: the id a client gives, or the one its history is recognised by."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import partial

from app.core.history.identity import Identity
from app.core.history.recognition import Head, Recognition, possible_heads, recognise
from app.core.view.view import Conversation
from app.memory.bounded import BoundedMap
from app.store import Store, StoreUnavailable

MOST_REMEMBERED = 100_000

Heads = tuple[tuple[bytes, int], ...]
"""What a request leaves behind to be known by (`core/history/recognition`)."""


class Conversations:
    """Recognition with a memory, so that only the first request of a process asks the database."""

    def __init__(self, store: Store, identity: Identity) -> None:
        self._store = store
        self._identity = identity
        self._heads: BoundedMap[tuple[str, bytes], tuple[str, int]] = BoundedMap(MOST_REMEMBERED)
        self._tips: BoundedMap[tuple[str, str], int] = BoundedMap(MOST_REMEMBERED)

    async def identify(
        self, tenant: str, named: str | None, conversation: Conversation, heads: Heads | None
    ) -> Recognition:
        """The conversation of a request, remembered by these heads from here on; None where it is only asked about.

        `named` is the client's own name for it.
        """
        transcript, chain = conversation.transcript, conversation.chain
        if named is not None:
            found = Recognition(named, by_name=True)
        else:
            known = self._remembered(tenant, possible_heads(transcript, chain))
            if not known and len(transcript) > 1:
                known = await self._stored(tenant, tuple(possible_heads(transcript, chain)))
            found = recognise(transcript, chain, known, self._identity, partial(secrets.token_bytes, 8))
        if heads is not None:
            self._remember(tenant, found.conversation_id, heads)
        return found

    def forget(self, tenant: str, conversation_id: str | None = None) -> None:
        """After a deletion of one conversation, or of all: the next request with its history starts anew."""
        self._tips.drop(lambda own, _: own[0] == tenant and conversation_id in (None, own[1]))
        self._heads.drop(lambda head, held: head[0] == tenant and conversation_id in (None, held[0]))

    def _remembered(self, tenant: str, digests: Iterable[bytes]) -> list[Head]:
        """The deepest head this process knows of."""
        for digest in digests:
            if (held := self._heads.get((tenant, digest))) is not None:
                conversation_id, turn = held
                return [Head(digest, conversation_id, turn, self._tips.get((tenant, conversation_id)) or turn)]
        return []

    async def _stored(self, tenant: str, digests: tuple[bytes, ...]) -> list[Head]:
        try:
            return await self._store.heads(tenant, digests)
        except StoreUnavailable:
            return []

    def _remember(self, tenant: str, conversation_id: str, heads: Heads) -> None:
        owner = (tenant, conversation_id)
        deepest = heads[-1][1] if heads else 0
        self._tips.keep(owner, max(self._tips.get(owner) or 0, deepest))
        for digest, turn in heads:
            self._heads.keep((tenant, digest), (conversation_id, turn))
