"""Conversations by name: the id a client gives, or the one its history is recognised by."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from app.compaction.view import Conversation
from app.conversation.identity import Identity
from app.conversation.recognition import Head, Heads, Recognition, goes_on, possible_heads, recognise
from app.runtime.caches import Cache, Caches, Erased
from app.store import Store, StoreUnavailable

HEAD_BYTES = 250
"""Bytes of a head with its digest, and with its share of its owner."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Owner:
    """Conversation that some heads belong to."""

    tenant: str
    conversation_id: str
    recognition: Recognition
    """Recognition of a request by its history alone."""
    tip: int = 0
    """Turns begun by the deepest place that it is known to have reached."""


_Held = tuple[_Owner, int]
"""Owner of a head, and the turns begun there."""


class Conversations:
    """Recognition with a memory, so that only the first request of a process asks the database."""

    def __init__(self, store: Store, identity: Identity, caches: Caches) -> None:
        self._store = store
        self._identity = identity
        self._heads: Cache[bytes, _Held] = caches.cache("heads", lambda *_: HEAD_BYTES)
        """Owners by digest, which no two tenants share."""
        self._owners: WeakValueDictionary[tuple[str, str], _Owner] = WeakValueDictionary()
        """Owners, for as long as one of their heads is remembered."""

    async def identify(
        self, tenant: str, named: str | None, conversation: Conversation, heads: Heads | None
    ) -> Recognition:
        """Return the conversation of a request, remembered by these heads from here on; None only asks. `named` is
        the client's own name for it."""
        owner: _Owner | None = None
        if named is not None:
            found = Recognition(named, by_name=True)
        else:
            held = self._remembered(conversation)
            if held is not None and goes_on(held[1], held[0].tip):
                owner = held[0]
                found = owner.recognition
            else:
                found = await self._recognised(tenant, conversation, held)
        if heads is not None:
            self._remember(owner or self._owner(tenant, found.conversation_id), heads)
        return found

    async def knows(self, tenant: str, digests: Sequence[bytes]) -> bool:
        """Return whether an earlier request of the tenant ended at one of these places."""
        return any(self._heads.get(digest) for digest in digests) or bool(await self._stored(tenant, digests))

    def forget(self, erased: Erased) -> None:
        """Forget what was erased: the next request with its history starts anew."""
        self._heads.drop(lambda _, held: erased.covers(held[0].tenant, held[0].conversation_id))

    def _remembered(self, conversation: Conversation) -> _Held | None:
        """Return the deepest head this process knows of."""
        for digest in possible_heads(conversation.transcript, conversation.chain):
            if (held := self._heads.get(digest)) is not None:
                return held
        return None

    async def _recognised(self, tenant: str, conversation: Conversation, held: _Held | None) -> Recognition:
        """Return a new conversation, one that the database knows, or a fork."""
        transcript, chain = conversation.transcript, conversation.chain
        known: list[Head] = []
        if held is not None:
            owner, turn = held
            known.append(Head(chain[len(transcript)], owner.conversation_id, turn, owner.tip))
        elif len(transcript) > 1:
            known = await self._stored(tenant, tuple(possible_heads(transcript, chain)))
        return recognise(transcript, chain, known, self._identity, partial(secrets.token_bytes, 8))

    async def _stored(self, tenant: str, digests: Sequence[bytes]) -> list[Head]:
        try:
            return await self._store.heads(tenant, digests)
        except StoreUnavailable:
            return []

    def _owner(self, tenant: str, conversation_id: str) -> _Owner:
        if (owner := self._owners.get((tenant, conversation_id))) is None:
            owner = self._owners[tenant, conversation_id] = _Owner(
                tenant, conversation_id, Recognition(conversation_id)
            )
        return owner

    def _remember(self, owner: _Owner, heads: Heads) -> None:
        for digest, turn in heads:
            self._heads.keep(digest, (owner, turn))
            owner.tip = max(owner.tip, turn)
