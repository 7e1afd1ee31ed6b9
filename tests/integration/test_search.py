"""Search: the tenant's own summaries that hold a text."""

from __future__ import annotations

import pytest

from app.compaction.chunks import UserWords
from app.store import Store, UnknownCursor
from app.store.chunks import search_summaries
from app.store.tables import Paging
from tests.integration.examples import STRANGER, chunk, put
from tests.integration.examples import TENANT as US


async def found(store: Store, text: str, tenant: str = US, limit: int = 100, after: str | None = None) -> list[str]:
    page = await store.rest(search_summaries, tenant, text, Paging(limit, after=after, order="desc"))
    return [one.id for one in page.data]


async def write(store: Store, *texts: str, tenant: str = US) -> None:
    for number, text in enumerate(texts):
        await put(store, chunk(number, number + 1, id=f"s{number}", text=text), tenant=tenant)


async def test_a_part_of_a_text_is_found_in_any_case(store: Store) -> None:
    await write(store, "The parcel went to Aunt Mary.", "the PARCEL came back", "Mary wrote.", "我喜欢苹果")
    assert sorted(await found(store, "Parcel")) == ["s0", "s1"]
    assert await found(store, "aunt mary") == ["s0"]
    assert await found(store, "mary aunt") == []
    assert await found(store, "苹果") == ["s3"]


async def test_letters_beyond_ascii_are_found_in_any_case_on_sqlite(store: Store) -> None:
    """On PostgreSQL the collation of the database decides."""
    await write(store, "Der Ärger war groß.", "viel ärger", "Arger")
    everywhere = sorted({*await found(store, "Ärger"), *await found(store, "ärger")})
    assert everywhere == ["s0", "s1"]
    if store.database.address.kind != "postgresql":
        assert sorted(await found(store, "äRGER")) == ["s0", "s1"]


async def test_signs_of_a_pattern_stand_for_themselves(store: Store) -> None:
    await write(store, "order ORD-0001: 100% done", "snake_case, 'quoted' & (x | !y)", "order ORD-0001: 1000 done")
    assert await found(store, "100%") == ["s0"]
    assert await found(store, "e_c") == ["s1"]
    assert await found(store, "'quoted' & (x") == ["s1"]
    assert await found(store, "%") == ["s0"]


async def test_exact_values_and_user_words_are_found_like_the_text(store: Store) -> None:
    said = (UserWords(2, 'Always say "für dich".'),)
    await put(store, chunk(0, 1, id="s0", values=("ORD-4711",), user_words=said))
    await write(store, "A text without.")
    assert await found(store, "ord-4711") == await found(store, 'say "für') == ["s0"]


async def test_of_many_summaries_the_newest_are_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.chunks.MOST_SEARCHED", 2)
    await write(store, *["The parcel."] * 4)
    assert await found(store, "parcel") == ["s3", "s2"]


async def test_nobody_finds_what_another_tenant_holds(store: Store) -> None:
    await write(store, "The parcel.", tenant=STRANGER)
    assert await found(store, "parcel") == []
    assert await found(store, "parcel", tenant=STRANGER) == ["s0"]


async def test_pages_of_findings_join_newest_first(store: Store) -> None:
    await write(store, *["The parcel."] * 5, "Nothing.")
    whole = await found(store, "parcel")
    assert sorted(whole) == ["s0", "s1", "s2", "s3", "s4"]
    first = await found(store, "parcel", limit=2)
    assert first + await found(store, "parcel", after=first[-1]) == whole
    with pytest.raises(UnknownCursor):
        await found(store, "parcel", after="s5")
