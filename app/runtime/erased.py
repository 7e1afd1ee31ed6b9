"""Erased: a conversation, or all of a tenant, that is forgotten wherever this process remembers it."""

from __future__ import annotations

from msgspec import Struct


class Erased(Struct, frozen=True):
    """A conversation that was erased, or all of a tenant."""

    tenant: str
    conversation_id: str | None = None
    """None for all."""

    def covers(self, tenant: str, conversation_id: str) -> bool:
        """Whether the conversation was erased."""
        if tenant != self.tenant:
            return False
        return self.conversation_id is None or _storable(conversation_id) == _storable(self.conversation_id)


def _storable(conversation_id: str) -> bytes:
    """An id alike as a client sent it and as the database keeps it, which replaces what it cannot store."""
    return conversation_id.replace("\0", "?").encode("ascii", "replace")
