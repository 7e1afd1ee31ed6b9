"""Lists of conversations for people: what is found, in which order, a page at a time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from app.store import ConversationSeen, Store, UnknownCursor, Wanted
from app.store.conversations import read_tenants, search_conversations
from app.store.tables import Paging
from tests.integration.examples import TENANT, StartStore, chunk, put, seen

STRANGER = "another tenant"


@pytest.fixture
async def store(start_store: StartStore, shared_url: str) -> Store:
    store = await start_store(shared_url)
    for number in range(5):
        store.writes.record(shown(number))
        await store.flush()
    store.writes.record(shown(2, tenant=STRANGER, conversation_id="a-strangers"))
    await store.flush()
    return store


def shown(number: int, **changes: Any) -> ConversationSeen:
    return replace(
        seen(f"talk-{number}"),
        **{
            "model": ("gpt-4o", "gpt-4o-mini")[number % 2],
            "status": ("full", "summarized")[number % 2],
            **changes,
        },
    )


async def names(store: Store, **wanted: Any) -> list[str]:
    found = await store.rest(search_conversations, TENANT, Wanted(**wanted), Paging(10, order="desc"))
    return [each.id for each in found.data]


async def test_the_latest_request_comes_first(store: Store) -> None:
    assert await names(store) == ["talk-4", "talk-3", "talk-2", "talk-1", "talk-0"]


async def test_they_are_filtered_by_their_latest_request(store: Store) -> None:
    assert await names(store, status="summarized") == ["talk-3", "talk-1"]
    assert await names(store, model="gpt-4o") == ["talk-4", "talk-2", "talk-0"]
    assert await names(store, status="summarized", model="gpt-4o") == []


async def test_part_of_an_id_finds_them_in_any_case_and_as_it_is_written(store: Store) -> None:
    assert await names(store, text="TALK-3") == ["talk-3"]
    assert await names(store, text="%") == []
    assert await names(store, text="talk_3") == []
    assert await names(store, text="strangers") == []


async def test_a_part_of_a_summary_finds_its_conversation(store: Store) -> None:
    await put(store, replace(chunk(0, 2, conversation_id="talk-1"), text="A refund of the bicycle was agreed."))
    assert await names(store, text="OF THE BICY") == ["talk-1"]
    assert await names(store, text="bicycle refund") == []
    found = await store.rest(search_conversations, STRANGER, Wanted(text="bicycle"), Paging(9))
    assert found.data == []


async def test_pages_hold_every_conversation_once(store: Store) -> None:
    pages, after = list[list[str]](), None
    while True:
        found = await store.rest(search_conversations, TENANT, Wanted(), Paging(2, after, "desc"))
        pages.append([each.id for each in found.data])
        after = found.last_id
        if not found.has_more:
            break
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [name for page in pages for name in page] == await names(store)


@pytest.mark.parametrize("after", ["", "a-strangers"])
async def test_a_cursor_that_no_list_gave_is_refused(after: str, store: Store) -> None:
    with pytest.raises(UnknownCursor):
        await store.rest(search_conversations, TENANT, Wanted(), Paging(2, after, "desc"))


async def test_tenants_are_listed_with_their_conversations_the_latest_first(store: Store) -> None:
    assert [(each.id, each.conversations) for each in await store.rest(read_tenants)] == [
        (STRANGER, 1),
        (TENANT, 5),
    ]
