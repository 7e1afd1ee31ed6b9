"""Calls of the REST API that are more than one query; every other one is `Calls.rest` with a query."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store import conversation_rows, lease, tenant_rows
from app.store.calls import REST_SECONDS, Calls
from app.store.clock import now_ms
from app.store.conversation_rows import Pulse
from app.store.database import insert_into
from app.store.tables import revocations
from app.store.tenant_rows import SeenTenant

ERASED_ROWS = 500
EXPORT_ROWS = 100
OF_ALL = ""
"""Slot of calls about all tenants."""


class RestCalls(Calls):
    """Calls that raise StoreUnavailable."""

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation; False if it was not there. A compaction that is under way can no longer commit."""
        erase = self._write_patiently(conversation_rows.erase_conversation, tenant, conversation_id)
        erased = await self._bounded(lambda: self.writes.erase(tenant, conversation_id, erase), REST_SECONDS)
        if erased:
            await self._empty_log()  # What its words leave in SQLite's indexes is left to the tidying: it takes longer.
        return erased

    async def latest_tenant(self) -> str | None:
        """The tenant whose conversation had a request last; None before the first one."""
        return await self._rest(OF_ALL, self._read(tenant_rows.latest_tenant))

    async def tenants(self) -> list[SeenTenant]:
        """Tenants with conversations, at most 500, the latest first."""
        return await self._rest(OF_ALL, self._read(tenant_rows.read_tenants))

    async def revocations(self, ids: Sequence[str]) -> dict[str, int]:
        """Time of revocation of those ids that were revoked, in milliseconds since 1970."""
        return await self._bounded(self._read(_find_revocations, ids), REST_SECONDS)

    async def revoke(self, id_: str, seconds: int) -> None:
        """End what has that id before its time, for every replica. `seconds`: how long it could have gone on."""
        await self._bounded(self._write_patiently(_revoke, id_, 1_000 * seconds), REST_SECONDS)

    async def erase_tenant(self, tenant: str) -> bool:
        """Erase all of a tenant; False if there was nothing. No compaction that is under way can commit any more."""
        await self._bounded(self._write_patiently(lease.revoke_leases, tenant), REST_SECONDS)
        some, erased = self._write_patiently(tenant_rows.erase_some, tenant, ERASED_ROWS), False
        while await self._bounded(some, REST_SECONDS):
            erased = True
        rest = self._write_patiently(tenant_rows.erase_rest, tenant)
        erased = await self._bounded(lambda: self.writes.erase(tenant, None, rest), REST_SECONDS) or erased
        await self._merge_indexes()
        await self._empty_log()
        return erased

    async def export(self, tenant: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """All rows of the tenant, each with the name of its table; a few are read at a time."""
        for table in tenant_rows.EXPORTED:
            after: list[Any] | None = None
            while True:
                rows = await self.rest(tenant_rows.read_rows, tenant, table, after, EXPORT_ROWS)
                for row in rows:
                    yield str(table.name), row
                if len(rows) < EXPORT_ROWS:
                    break
                after = tenant_rows.key_of(table, rows[-1])

    async def pulse(self, tenant: str, conversation_id: str) -> Pulse:
        """The conversation at this moment; what waits to be stored is not seen yet."""
        look = self._read(conversation_rows.read_pulse, tenant, conversation_id, self._ttl_ms)
        return await self._bounded(look, REST_SECONDS)


async def _find_revocations(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, int]:
    rows = await connection.execute(select(revocations.c.id, revocations.c.revoked_at).where(revocations.c.id.in_(ids)))
    return {row.id: row.revoked_at for row in rows}


async def _revoke(connection: AsyncConnection, id_: str, lasts_ms: int) -> None:
    """Revoke from now on, or once more, and drop those that are over. Needs a transaction."""
    await connection.execute(delete(revocations).where(revocations.c.expires_at < now_ms()))
    fresh = insert_into(connection, revocations).values(id=id_, revoked_at=now_ms(), expires_at=now_ms() + lasts_ms)
    moments = {name: fresh.excluded[name] for name in ("revoked_at", "expires_at")}
    await connection.execute(fresh.on_conflict_do_update(index_elements=["id"], set_=moments))
