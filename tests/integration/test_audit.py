"""The audit trail: in order, by tenant, without names of conversations, for a year."""

from __future__ import annotations

from sqlalchemy import update

from app.store import Store
from app.store.audit import KEPT_DAYS, Act, hashed, read_acts, record_act
from app.store.tables import operator_acts
from app.store.usage_days import DAY_MS
from tests.integration.examples import STRANGER, TENANT

WHO = "user root"


async def acts(store: Store, most: int = 100, tenant: str = "") -> list[Act]:
    return await store.rest_of_all(read_acts, most, tenant)


async def test_acts_are_told_newest_first_and_by_the_beginning_of_a_tenants_id(store: Store) -> None:
    await store.change_at_once(record_act, WHO, "make_link", subject="0a")
    await store.change_at_once(record_act, WHO, "view_tenant", TENANT)
    await store.change_at_once(record_act, WHO, "delete_conversation", STRANGER, hashed(STRANGER, "order-4711"))
    assert [each.did for each in await acts(store)] == ["delete_conversation", "view_tenant", "make_link"]
    assert [each.did for each in await acts(store, 1)] == ["delete_conversation"]
    assert [each.tenant for each in await acts(store, tenant=TENANT[:8])] == [TENANT]
    assert await acts(store, tenant="%") == []


def test_a_conversation_has_another_digest_for_each_tenant_and_its_name_is_not_in_it() -> None:
    assert hashed(TENANT, "order-4711") == hashed(TENANT, "order-4711") != hashed(STRANGER, "order-4711")
    assert "order" not in hashed(TENANT, "order-4711")


async def test_acts_stay_for_a_year_though_all_else_is_deleted(store: Store) -> None:
    await store.change_at_once(record_act, WHO, "long_ago", TENANT)
    await _age(store, (KEPT_DAYS + 1) * DAY_MS)
    await store.change_at_once(record_act, WHO, "nearly_a_year_ago", TENANT)
    await _age(store, (KEPT_DAYS - 1) * DAY_MS)
    await store.change_at_once(record_act, WHO, "today", TENANT)
    store.tidying.kept_ms = DAY_MS
    await store.tidying.remove_unused()
    await store.erase_tenant(TENANT)
    assert [each.did for each in await acts(store)] == ["today", "nearly_a_year_ago"]


async def _age(store: Store, milliseconds: int) -> None:
    async with store.database.writing() as connection:
        await connection.execute(update(operator_acts).values(at=operator_acts.c.at - milliseconds))
