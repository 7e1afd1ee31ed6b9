"""Search: the tenant's own summaries that hold every word."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store import Store, UnknownCursor, summary_index, words_in
from app.store.pages import Paging
from app.store.search import search_texts
from app.store.tables import summary_words
from app.store.words import terms
from tests.integration.examples import STRANGER, OpenStore, chunk, put, take
from tests.integration.examples import TENANT as US


async def found(store: Store, *words: str, tenant: str = US, limit: int = 100, after: str | None = None) -> list[str]:
    asked = words_in(" ".join(words))
    page = await store.rest(search_texts, tenant, asked, "summaries", Paging(limit, after=after, order="desc"))
    return [one.id for one in page.data]


async def write(store: Store, *texts: str, tenant: str = US) -> None:
    for number, text in enumerate(texts):
        await put(store, chunk(number, number + 1, id=f"s{number}", text=text), tenant=tenant)


async def test_every_word_has_to_be_in_the_text_in_any_case(store: Store) -> None:
    await write(store, "The parcel went to Aunt Mary.", "the PARCEL came back", "Mary wrote.")
    assert sorted(await found(store, "Parcel")) == ["s0", "s1"]
    assert await found(store, "mary", "parcel") == ["s0"]
    assert await found(store, "mary", "invoice") == []


async def test_a_word_may_be_the_beginning_of_a_longer_one_from_three_letters_on(store: Store) -> None:
    await write(store, "The parcels arrived.", "Oh, a par!", "The post office", "pa")
    assert sorted(await found(store, "par")) == ["s0", "s1"]
    assert await found(store, "parce", "arri") == ["s0"]
    assert await found(store, "arcel") == []
    assert await found(store, "pa") == ["s3"]


@pytest.mark.parametrize("word", ["Ärger", "ärger", "ÄRGER", "A\u0308rger"])
async def test_letters_beyond_ascii_are_found_in_any_case(store: Store, word: str) -> None:
    await write(store, "Der Ärger war groß.", "viel ärger", "GROSSER ÄRGER", "Arger", "der A\u0308rger")
    assert sorted(await found(store, word)) == ["s0", "s1", "s2", "s4"]
    assert sorted(await found(store, "gross")) == ["s0", "s2"]


async def test_scripts_without_spaces_are_found_by_their_letters(store: Store) -> None:
    await write(store, "我喜欢苹果", "我喜欢梨", "りんごが好き")
    assert await found(store, "苹果") == ["s0"]
    assert sorted(await found(store, "喜欢")) == ["s0", "s1"]
    assert await found(store, "りんご") == ["s2"]


async def test_what_stands_between_words_does_not_count(store: Store) -> None:
    await write(store, "order ORD-0001: 100% done", "snake_case, 'quoted' & (x | !y)", "ORD 0002")
    assert await found(store, "ord-0001") == ["s0"]
    assert await found(store, "100%") == ["s0"]
    assert await found(store, "snake_case") == ["s1"]
    assert await found(store, "'quoted':*") == ["s1"]
    assert await found(store, "ord/") == ["s2", "s0"]


async def test_what_no_database_can_hold_is_between_words_too(store: Store) -> None:
    await write(store, "a\0b \ud800c", "ab")
    assert await found(store, "a\0b") == ["s0"]
    assert await found(store, "c") == ["s0"]


LETTERS = "abAB äÄßSs\u017fk\u212ai\u0130\u0131é\u0301-_'\"*:&|!()<>\\%/.0\u0663\uff19我กี\U0001f600\0\n"
"""Of those that databases, or their tokenizers, treat in ways of their own."""


def belongs(text: str, words: Iterable[str]) -> bool:
    """The model: what both databases are to find."""
    held = words_in(text)
    return all(any(one.startswith(word) if len(word) > 2 else one == word for one in held) for word in words)


@pytest.mark.slow
async def test_both_databases_find_what_the_model_finds(store: Store) -> None:
    random = Random(1)

    def text(most: int) -> str:
        return "".join(random.choices(LETTERS, k=random.randint(1, most)))

    texts = [text(40) for _ in range(40)]
    await write(store, *texts)
    for _ in range(150):
        start = random.choice(texts)
        at = random.randrange(len(start))
        asked = words_in(random.choice([text(4), start[at : at + random.randint(1, 6)]]))
        if asked:
            assert sorted(await found(store, *asked)) == sorted(
                f"s{n}" for n, t in enumerate(texts) if belongs(t, asked)
            )


@given(st.text(max_size=60), st.text(min_size=1, max_size=20))
def test_terms_are_ascii_and_beginnings_stay_beginnings(text: str, tenant: str) -> None:
    words = words_in(text)
    for word, term in zip(words, terms(tenant, words), strict=True):
        assert re.fullmatch("[a-z0-9_]+", term)
        assert terms(tenant, [word[:3]])[0] in term
        assert words_in(word)
    assert len(set(terms(tenant, words))) == len(words)


async def test_what_is_deleted_is_found_no_more(store: Store) -> None:
    await put(store, chunk(0, 1, id="s0", text="The parcel."))
    await put(store, chunk(1, 2, id="s1", text="The parcel.", conversation_id="c2"))
    await store.delete_conversation(US, "c1")
    assert await found(store, "parcel") == ["s1"]
    await store.delete_conversation(US, "c2")
    async with store.database.reading() as connection:
        left = await connection.execute(select(summary_words.c.number))
        assert not left.all()
        if connection.dialect.name == "sqlite":
            assert not (await connection.exec_driver_sql("SELECT rowid FROM summary_search")).all()


async def test_what_is_stored_twice_is_found_once(store: Store) -> None:
    lease = await take(store, 0, 1)
    for _ in range(2):
        assert await store.leases.commit(lease, [chunk(0, 1, id="s0", text="The parcel.")])
    again = await store.leases.commit(lease, [chunk(0, 1, id="s1", text="An invoice.")])
    assert again is not None
    assert again[0].id == "s0"
    assert (await found(store, "parcel"), await found(store, "invoice")) == (["s0"], [])


async def test_what_an_earlier_release_stored_is_found_after_tidying(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are."""
    monkeypatch.setattr("app.store.tidying.INDEXED_ROWS", 3)
    monkeypatch.setattr("app.store.tidying.PAUSE_SECONDS", 0.0)
    await write(store, *["The parcel."] * 8)
    await write(store, *["The parcel."] * 4, tenant=STRANGER)
    async with store.database.writing() as connection:
        await connection.execute(delete(summary_words).where(summary_words.c.id != "s1"))
    assert await found(store, "parcel") == ["s1"]
    await store.tidying.index_summaries()
    assert len(await found(store, "parcel")) == 8
    assert len(await found(store, "parcel", tenant=STRANGER)) == 4


async def test_summaries_are_looked_through_until_none_is_missing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    index_some = summary_index.index_some

    async def counted(connection: AsyncConnection, after: summary_index.Key | None, most: int) -> object:
        looks.append(after)
        return await index_some(connection, after, most)

    monkeypatch.setattr("app.store.summary_index.index_some", counted)
    await write(store, "The parcel.")
    async with store.database.writing() as connection:
        await connection.execute(delete(summary_words))
    for look in (1, 2, 2):
        await store.tidying.index_summaries()
        assert len(looks) == look


async def test_one_replica_at_a_time_looks_for_what_no_search_finds(open_store: OpenStore, postgres_url: str) -> None:
    """The other one leaves it alone, and is not kept waiting."""
    first, second = open_store(postgres_url), open_store(postgres_url)
    await first.start()
    await second.start()
    async with first.database.writing() as connection:
        await summary_index.index_some(connection, None, 10)
        await second.tidying.index_summaries()
        assert not second.tidying.is_indexed
    await second.tidying.index_summaries()
    assert second.tidying.is_indexed


async def test_exact_values_and_rules_are_found_like_the_text_whoever_indexed_it(store: Store) -> None:
    await put(store, chunk(0, 1, id="s0", values=("ORD-4711",), rules=("Always answer in French.",)))
    await write(store, "A text without.")
    assert await found(store, "ord-4711") == await found(store, "french", "met") == ["s0"]
    async with store.database.writing() as connection:
        await connection.execute(delete(summary_words))
    assert await found(store, "4711") == []
    await store.tidying.index_summaries()
    assert await found(store, "4711", "french") == ["s0"]


async def test_nobody_finds_what_another_tenant_holds(store: Store) -> None:
    await write(store, "The parcel.", tenant=STRANGER)
    assert await found(store, "parcel") == []
    assert await found(store, "parcel", tenant=STRANGER) == ["s0"]


async def test_nobody_finds_what_another_tenant_holds_where_the_index_takes_them_for_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells tenants apart by four bytes of a digest."""
    monkeypatch.setattr("app.store.word_index.terms", lambda _, words: terms("one for both", words))
    await write(store, "Your parcel.", "The parcel.", tenant=STRANGER)
    await write(store, "My parcel.")
    assert await found(store, "parcel") == ["s0"]
    assert await found(store, "parcel", tenant=STRANGER) == ["s1", "s0"]


async def test_pages_of_findings_join_newest_first(store: Store) -> None:
    await write(store, *["The parcel."] * 5, "Nothing.")
    whole = await found(store, "parcel")
    assert sorted(whole) == ["s0", "s1", "s2", "s3", "s4"]
    first = await found(store, "parcel", limit=2)
    assert first + await found(store, "parcel", after=first[-1]) == whole
    with pytest.raises(UnknownCursor):
        await found(store, "parcel", after="s5")
