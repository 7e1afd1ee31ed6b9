"""What the REST API asks: pages of what is stored, and the erasure of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from app.core.view.chunks import SummaryChunk
from app.store import (
    calibration_rows,
    chunks,
    conversation_lists,
    conversation_rows,
    learned_windows,
    lease,
    message_rows,
    pins,
    revocations,
    search,
    tenant_rows,
    usage_days,
    usage_records,
)
from app.store.calibration_rows import StoredCalibration
from app.store.calls import REST_SECONDS, Calls
from app.store.conversation_lists import ConversationList, Sorting, Wanted
from app.store.conversation_rows import Pulse, StoredConversation
from app.store.message_rows import KeptHistory, MessagePage, StoredMessage
from app.store.pages import Order, Page
from app.store.pins import Pin
from app.store.search import Searched
from app.store.tenant_rows import SeenTenant
from app.store.usage_days import UsageDays
from app.store.usage_records import Grouping, UsagePage, UsageReport

ERASED_ROWS = 500
EXPORT_ROWS = 100
OF_ALL = ""
"""In place of a tenant, for whoever asks about all of them."""


class RestCalls(Calls):
    """All of it raises StoreUnavailable. A page holds at most `limit` entries, those after the id `after`, if any."""

    async def conversations(
        self, tenant: str, *, limit: int, after: str | None, order: Order
    ) -> Page[StoredConversation]:
        """By creation. Raises UnknownCursor if no conversation of the tenant is called `after`."""
        return await self._rest(
            tenant, self._read(conversation_rows.list_conversations, tenant, limit=limit, after=after, order=order)
        )

    async def search_conversations(
        self, tenant: str, wanted: Wanted, sorting: Sorting, *, limit: int, after: str | None
    ) -> ConversationList:
        """For people. Raises UnknownCursor for an `after` that no such list gave."""
        return await self._rest(
            tenant,
            self._read(conversation_lists.search_conversations, tenant, wanted, sorting, limit=limit, after=after),
        )

    async def conversation(self, tenant: str, conversation_id: str) -> StoredConversation | None:
        """None if nobody knows it, or only another tenant."""
        return await self._rest(tenant, self._read(conversation_rows.find_conversation, tenant, conversation_id))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Whether it was there. A compaction of it that is under way can no longer commit."""
        erase = self._write_patiently(conversation_rows.erase_conversation, tenant, conversation_id)
        erased = await self._bounded(lambda: self._writes.erase(tenant, conversation_id, erase), REST_SECONDS)
        if erased:
            await self._empty_log()  # What its words leave in SQLite's indexes is left to the tidying: it takes longer.
        return erased

    async def latest_tenant(self) -> str | None:
        """Whose conversation had a request last; None before the first one."""
        return await self._rest(OF_ALL, self._read(tenant_rows.latest_tenant))

    async def is_tenant(self, tenant: str) -> bool:
        """Whether it has a conversation."""
        return await self._rest(tenant, self._read(tenant_rows.is_tenant, tenant))

    async def revocations(self, ids: Sequence[str]) -> dict[str, int]:
        """When each of these was revoked that was, in milliseconds since 1970."""
        return await self._bounded(self._read(revocations.find_revocations, ids), REST_SECONDS)

    async def revoke(self, id_: str, seconds: int) -> None:
        """What has that id, for every replica. `seconds`: how long it could have gone on."""
        await self._bounded(self._write_patiently(revocations.revoke, id_, 1_000 * seconds), REST_SECONDS)

    async def tenants(self) -> list[SeenTenant]:
        """Who has conversations, the latest first; those seen last where there are very many."""
        return await self._rest(OF_ALL, self._read(tenant_rows.list_tenants))

    async def erase_tenant(self, tenant: str) -> bool:
        """Whether there was anything. No compaction that is under way can commit any more.

        In many transactions, so that nobody else waits long: where one fails, some of it is erased, and doing it again
        erases the rest.
        """
        await self._bounded(self._write_patiently(lease.revoke_leases, tenant), REST_SECONDS)
        some, erased = self._write_patiently(tenant_rows.erase_some, tenant, ERASED_ROWS), False
        while await self._bounded(some, REST_SECONDS):
            erased = True
        rest = self._write_patiently(tenant_rows.erase_rest, tenant)
        erased = await self._bounded(lambda: self._writes.erase(tenant, None, rest), REST_SECONDS) or erased
        await self._merge_indexes()
        await self._empty_log()
        return erased

    async def export(self, tenant: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """All rows of the tenant, each with the name of its table; a few are read at a time."""
        for table in tenant_rows.EXPORTED:
            after: list[Any] | None = None
            while True:
                rows = await self._rest(tenant, self._read(tenant_rows.read_rows, tenant, table, after, EXPORT_ROWS))
                for row in rows:
                    yield str(table.name), row
                if len(rows) < EXPORT_ROWS:
                    break
                after = tenant_rows.key_of(table, rows[-1])

    async def summaries(
        self, tenant: str, conversation_id: str, *, limit: int, after: str | None, order: Order
    ) -> Page[SummaryChunk]:
        """The chunks it made or its last payload used. Raises UnknownCursor if `after` is none of them."""
        return await self._rest(
            tenant, self._read(chunks.list_summaries, tenant, conversation_id, limit=limit, after=after, order=order)
        )

    async def summary(self, tenant: str, conversation_id: str, chunk_id: str) -> SummaryChunk | None:
        """One of `summaries`; None if it is none of them."""
        return await self._rest(tenant, self._read(chunks.find_summary, tenant, conversation_id, chunk_id))

    async def versions(self, tenant: str, chunk: SummaryChunk) -> list[SummaryChunk]:
        """Of that summary, itself among them, the oldest first."""
        return await self._rest(tenant, self._read(chunks.list_versions, tenant, chunk))

    async def replace_summary(self, tenant: str, old_id: str, new: SummaryChunk) -> SummaryChunk | None:
        """The next version of a chunk, as it is stored; None where the old one is not in use any more. What it replaces
        is deactivated, with every fold over it."""
        return await self._rest(tenant, self._write_patiently(chunks.replace_summary, tenant, old_id, new))

    async def deactivate_summaries(self, tenant: str, ids: Sequence[str]) -> list[str]:
        """Which of these chunks were in use until now, with every fold over any of them."""
        return await self._rest(tenant, self._write_patiently(chunks.deactivate_summaries, tenant, ids))

    async def messages(
        self, tenant: str, conversation_id: str, *, limit: int, after: str | None, order: Order
    ) -> MessagePage:
        """What was kept of it, in the order in which it came; fewer where they are large. Raises UnknownCursor if
        `after` is none of them."""
        return await self._rest(
            tenant,
            self._read(message_rows.list_messages, tenant, conversation_id, limit=limit, after=after, order=order),
        )

    async def history_between(self, tenant: str, conversation_id: str, first: int, last: int) -> list[StoredMessage]:
        """What was kept of the latest request's history, from one position to another; fewer where they are large."""
        return await self._rest(tenant, self._read(message_rows.read_stretch, tenant, conversation_id, first, last))

    async def questions(
        self, tenant: str, conversation_ids: Sequence[str], number: int, most_characters: int
    ) -> dict[str, StoredMessage]:
        """By conversation the user's message of that number, from 0, if it was kept and is not longer."""
        find = message_rows.find_questions
        return await self._rest(tenant, self._read(find, tenant, conversation_ids, number, most_characters))

    async def sources(self, tenant: str, chunk: SummaryChunk) -> list[StoredMessage]:
        """What was kept of the messages that a summary stands for; fewer where they are large."""
        return await self._rest(tenant, self._read(message_rows.read_sources, tenant, chunk))

    async def pulse(self, tenant: str, conversation_id: str) -> Pulse:
        """What may have changed since it was shown; of what waits to be stored nothing is known yet."""
        look = self._read(conversation_rows.read_pulse, tenant, conversation_id, self._ttl_ms)
        return await self._bounded(look, REST_SECONDS)

    async def history(
        self, tenant: str, conversation_id: str, most_messages: int, most_characters: int
    ) -> KeptHistory | None:
        """Of its latest request; None where nothing is kept of it, or more than that."""
        find = message_rows.find_history
        return await self._rest(tenant, self._read(find, tenant, conversation_id, most_messages, most_characters))

    async def search(
        self,
        tenant: str,
        words: Sequence[str],
        among: Searched,
        *,
        limit: int,
        after: str | None,
        order: Order,
    ) -> Page[SummaryChunk | StoredMessage]:
        """What of the tenant's holds every one of `words_in` a query, or a word that begins with it.

        Raises UnknownCursor if `after` is none of it.
        """
        return await self._rest(
            tenant, self._read(search.search, tenant, words, among, limit=limit, after=after, order=order)
        )

    async def pins(self, tenant: str, conversation_id: str) -> list[Pin]:
        """Ascending; empty also where nobody knows the conversation."""
        return await self._rest(tenant, self._read(pins.find_pins, tenant, conversation_id))

    async def replace_pins(self, tenant: str, conversation_id: str, positions: Sequence[int]) -> list[Pin] | None:
        """The new pins; None if nobody knows the conversation."""
        return await self._rest(tenant, self._write_patiently(pins.replace_pins, tenant, conversation_id, positions))

    async def usage(
        self, tenant: str, conversation_id: str, *, limit: int, after: str | None, order: Order
    ) -> UsagePage:
        """A page of the conversation's records with its sums. Raises UnknownCursor if `after` is none of them."""
        return await self._rest(
            tenant,
            self._read(usage_records.read_usage, tenant, conversation_id, limit=limit, after=after, order=order),
        )

    async def latest_usage(self, tenant: str, conversation_id: str, most: int) -> UsagePage:
        """The conversation's latest records, newest first, and the sums of all; of no turn."""
        return await self._rest(tenant, self._read(usage_records.read_latest_usage, tenant, conversation_id, most))

    async def usage_report(
        self, tenant: str, since_ms: int, until_ms: int, *, model: str | None = None, by: Grouping | None = None
    ) -> UsageReport:
        """The tenant's records of a period, added up; times are milliseconds since 1970."""
        return await self._rest(tenant, self._read(usage_records.report_usage, tenant, since_ms, until_ms, model, by))

    async def usage_days(self, tenant: str, days: int) -> UsageDays:
        """The tenant's usage of the last so many days in UTC, today included, added up by day and by model."""
        return await self._rest(tenant, self._read(usage_days.read_days, tenant, days))

    async def calibrations_of(
        self, tenant: str, *, limit: int, after: str | None, order: Order
    ) -> Page[StoredCalibration]:
        """Of the models in the tenant's conversations. Raises UnknownCursor if `after` is none of them."""
        return await self._rest(
            tenant, self._read(calibration_rows.list_calibrations, tenant, limit=limit, after=after, order=order)
        )

    async def models_used(self, tenant: str, most: int = 1_000) -> list[str]:
        """The models in the tenant's conversations, the latest first."""
        return await self._rest(tenant, self._read(learned_windows.read_models_used, tenant, most))
