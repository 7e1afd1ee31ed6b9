"""Calls about links between tenants, and a memory of all of them: who somebody is must be known for each request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from app.store import tenant_links
from app.store.calls import Calls
from app.store.errors import StoreUnavailable
from app.store.tenant_links import Link, Mark

log = structlog.get_logger("steno.store")

LOOK_SECONDS = 5.0
"""Time after which links that another process made are known here."""
MOVED_ROWS = 200
MOVE_SECONDS = 2.0
"""Longest wait of a request for rows that become its caller's."""


class LinkCalls:
    """Links between tenants, which all processes of a database share."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.mark = Mark(0, 0)
        """Sign that somebody may be another tenant than before: another one."""
        self._leads: Mapping[str, str] = {}
        self._merged: Mapping[str, str] = {}
        """The same without the keys that persons have claimed."""
        self._roots: Mapping[str, tuple[str, ...]] = {}
        self._moving: asyncio.Task[None] | None = None

    def resolved(self, tenant: str, *, persons: bool) -> str:
        """Tenant as which a caller is served who is known as this one. `persons`: whether a key that a person has
        claimed leads elsewhere. To be asked once: the tenant of a claimed key is the person's from then on."""
        return (self._leads if persons else self._merged).get(tenant, tenant)

    def roots(self, tenant: str) -> tuple[str, ...]:
        """Other tenants at whose digests its histories may begin."""
        return self._roots.get(tenant, ())

    async def watch(self) -> None:
        """Look for links of other processes, for ever."""
        await self._calls.readiness.ready.wait()
        while True:
            try:
                await self.look()
            except StoreUnavailable:
                pass  # The rest of Steno says so.
            except Exception:
                log.exception("tidying put off", task="watch")
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Read the links anew where there are others. Raises StoreUnavailable."""
        if (mark := await self._calls.task(tenant_links.read_mark)) == self.mark:
            return
        links = await self._calls.task(tenant_links.read_links)
        roots: dict[str, tuple[str, ...]] = {}
        for link in links:
            if link.state in ("due", "moved"):
                roots[link.tenant] = (*roots.get(link.tenant, ()), link.alias)
        self._leads = {link.alias: link.tenant for link in links if link.leads}
        self._merged = {link.alias: link.tenant for link in links if link.leads and link.state != "apart"}
        self._roots, self.mark = roots, mark

    async def claim(self, person: str, key: str, apart: str) -> bool:
        """See `tenant_links.claim`. Of a key's tenant that is linked already nothing is claimed."""
        if key in self._leads or not await self._calls.request(tenant_links.has_rows, key):
            return False
        claimed = await self._calls.change_at_once(tenant_links.claim, person, key, apart)
        await self.look()
        if claimed:
            log.info("stored data became a person's", tenant=key, person=self.resolved(person, persons=True))
            # Most have few rows, which are then there for the request that waits; else it goes on without the rest.
            self._moving = asyncio.ensure_future(self._move_on())
            await asyncio.wait({self._moving}, timeout=MOVE_SECONDS)
        return claimed

    async def merge(self, old: str, new: str) -> None:
        """See `tenant_links.merge`. Both are tenants that somebody is served as."""
        await self._calls.change_at_once(tenant_links.merge, old, new)
        await self.look()

    async def _move_on(self) -> None:
        try:
            await self.move()
        except StoreUnavailable as error:
            log.warning("tidying put off", task="move_linked_rows", reason=error.reason)

    async def move(self, tenant: str | None = None) -> int:
        """Move all rows that are due, or those that become one tenant's; how many there were."""
        due: list[Link] = await self._calls.task(tenant_links.read_due)
        number = 0
        for link in due:
            if tenant in (None, link.tenant):
                arguments = link.alias, link.tenant, MOVED_ROWS
                while moved := await self._calls.task_change(tenant_links.move_some, *arguments):
                    number += moved
        return number
