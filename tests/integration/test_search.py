"""Search: the tenant's own summaries that hold every word."""

from __future__ import annotations

import pytest

from app.store import Store, UnknownCursor
from tests.integration.examples import STRANGER, chunk, put
from tests.integration.examples import TENANT as US


async def found(store: Store, *words: str, tenant: str = US, limit: int = 100, after: str | None = None) -> list[str]:
    page = await store.search_summaries(tenant, words, limit=limit, after=after, order="desc")
    return [one.id for one in page.data]


async def write(store: Store, *texts: str, tenant: str = US) -> None:
    for number, text in enumerate(texts):
        await put(store, chunk(number, number + 1, id=f"s{number}", text=text), tenant=tenant)


async def test_every_word_has_to_be_in_the_text_in_any_case(store: Store) -> None:
    await write(store, "The parcel went to Aunt Mary.", "the PARCEL came back", "Mary wrote.")
    assert sorted(await found(store, "Parcel")) == ["s0", "s1"]
    assert await found(store, "mary", "parcel") == ["s0"]
    assert await found(store, "mary", "invoice") == []


@pytest.mark.parametrize("word", ["Ärger", "ärger", "ÄRGER"])
async def test_letters_beyond_ascii_are_found_as_they_are_usually_written(store: Store, word: str) -> None:
    await write(store, "Der Ärger war groß.", "viel ärger", "GROSSER ÄRGER", "Arger")
    assert sorted(await found(store, word)) == ["s0", "s1", "s2"]


@pytest.mark.parametrize(("word", "ids"), [("100%", ["s0"]), ("a_b", ["s1"]), ("c\\d", ["s2"]), ("/", ["s3"])])
async def test_what_is_a_wildcard_elsewhere_is_a_character_here(store: Store, word: str, ids: list[str]) -> None:
    await write(store, "100% done", "a_b", "c\\d", "1/2", "100 acb cd")
    assert await found(store, word) == ids


async def test_words_no_database_can_hold_are_looked_for_as_they_are_stored(store: Store) -> None:
    await write(store, "a\0b", "ab")
    assert await found(store, "a\0b") == ["s0"]


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
