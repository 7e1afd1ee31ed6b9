"""Erased: whose memories go, at this process and at every other one, in words that reveal no name."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from msgspec import Struct

_SAYS = "erased "


@lru_cache(maxsize=4_096)
def conversation_word(tenant: str, conversation_id: str) -> str:
    """Word for a conversation among processes. It reveals neither name; two may have the same."""
    # Alike for an id as a client sent it and as the database keeps it, which replaces what it cannot store.
    storable = conversation_id.replace("\0", "?").encode("ascii", "replace")
    return blake2b(tenant.encode() + b"\0" + storable, digest_size=16, person=b"steno-wake").hexdigest()


class Erased(Struct, frozen=True):
    """A conversation that was erased, or all of a tenant."""

    tenant: str
    word: str = ""
    """Word of the conversation; empty for all."""

    @classmethod
    def of(cls, tenant: str, conversation_id: str | None = None) -> Erased:
        return cls(tenant, "" if conversation_id is None else conversation_word(tenant, conversation_id))

    @classmethod
    def told_by(cls, message: str) -> Erased | None:
        """Erasure at another process that the message tells of; None for one about something else."""
        if not message.startswith(_SAYS):
            return None
        tenant, _, word = message.removeprefix(_SAYS).rpartition(" ")
        return cls(tenant, word)

    @property
    def message(self) -> str:
        """The message that tells other processes."""
        return f"{_SAYS}{self.tenant} {self.word}"

    def covers(self, tenant: str, conversation_id: str) -> bool:
        """Whether the conversation was erased."""
        return tenant == self.tenant and self.word in ("", conversation_word(tenant, conversation_id))
