"""Summary chunks: found by a chain's digests, stored once under the fence."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from app.core.view.chunks import SummaryChunk
from app.store import Store, UnknownCursor
from app.store.chunks import (
    chunks_in,
    chunks_named,
    deactivate_summaries,
    find_summary,
    read_active,
    read_summaries,
    read_versions,
    recent_first_chunks,
    replace_summary,
)
from app.store.conversation_rows import find_conversation
from app.store.pages import Paging
from app.store.search import search_texts
from tests.integration.examples import STRANGER, TENANT, OpenStore, chain, chunk, digest, put, seen, take


async def test_stored_chunk_comes_back_as_it_was_made(store: Store) -> None:
    """Every field survives, and the database's clock adds the time."""
    made = chunk(
        0,
        4,
        level=1,
        children=("a", "b"),
        continued=True,
        text="Zoë 🙂 \u202e\u05e9\u05dc\u05d5\u05dd",
        carried=(),
        values=("ORD-4711", 'read_file(path="/tmp/ß")'),
        rules=("Never \0push to main \ud83d!", "Immer auf Deutsch 🙂"),
        rules_left_out=2,
        values_kept=0.5,
    )
    (stored,) = await put(store, made)
    assert replace(stored, created_at=None) == made
    assert stored.created_at is not None
    assert abs(stored.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert await store.request(chunks_in, TENANT, "default", chain(5)) == [stored]


async def test_chunk_applies_only_if_both_its_digests_are_in_the_chain(store: Store) -> None:
    """A history that was edited before or inside the range has other digests from there on."""
    await put(store, chunk(2, 4))
    assert await store.request(chunks_in, TENANT, "default", [digest(2), digest(3)]) == []
    assert await store.request(chunks_in, TENANT, "default", [digest(3), digest(4)]) == []
    assert len(await store.request(chunks_in, TENANT, "default", [digest(2), digest(4)])) == 1


async def test_chunks_of_another_series_are_not_read(store: Store) -> None:
    """A request with a focus never gets a summary made without it."""
    await put(store, chunk(0, 4))
    assert await store.request(chunks_in, TENANT, "focus", chain(5)) == []


async def test_chunks_are_found_in_a_chain_of_ten_thousand(store: Store) -> None:
    """Wherever in the chain they end, in whatever batch that falls."""
    ends = (1, 511, 2047, 2048, 5000, 9999)
    await put(store, *(chunk(0, end) for end in ends))
    found = await store.request(chunks_in, TENANT, "default", chain(10_000))
    assert sorted(found_chunk.last_index + 1 for found_chunk in found) == list(ends)


async def test_empty_chain_has_no_chunks(store: Store) -> None:
    """Nothing to look up is not an error."""
    assert await store.request(chunks_in, TENANT, "default", []) == []


async def test_every_version_is_read(store: Store) -> None:
    """Which one counts is the view's decision, not the store's."""
    await put(store, chunk(0, 4))
    await put(store, chunk(0, 4, id="edited", version=2, text="They met in June."))
    assert {found.version for found in await store.request(chunks_in, TENANT, "default", chain(5))} == {1, 2}


async def test_commit_repeated_is_commit_done_once(store: Store) -> None:
    """After a lost answer the same commit is sent again and gets the same rows."""
    lease = await take(store, 0, 4)
    first = await store.leases.commit(lease, [chunk(0, 4)])
    assert await store.leases.commit(lease, [chunk(0, 4)]) == first
    assert len(await store.request(chunks_in, TENANT, "default", chain(5))) == 1


async def test_chunk_of_a_range_that_is_taken_is_answered_with_the_stored_one(store: Store) -> None:
    """Two replicas that summarised at once both go on with the same text."""
    (stored,) = await put(store, chunk(0, 4))
    (answer,) = await put(store, chunk(0, 4, id="late", text="Something else."))
    assert answer == stored


async def test_commit_of_a_chunk_and_its_fold_keeps_the_order_asked_for(store: Store) -> None:
    """One statement of the fence covers both, and the caller gets them as it gave them."""
    await put(store, chunk(0, 4))
    fold = chunk(0, 8, id="fold", level=1, children=("chunk-0-4", "chunk-4-8"))
    lease = await take(store, 4, 8)
    stored = await store.leases.commit(lease, [fold, chunk(4, 8)])
    assert stored is not None
    assert [one.id for one in stored] == ["fold", "chunk-4-8"]


async def test_summaries_made_side_by_side_are_all_stored_while_others_write(
    open_store: OpenStore, sqlite_url: str
) -> None:
    """What is not stored was paid for in vain; behind a gap no later summary is of use."""
    store = open_store(sqlite_url, timeout=0.25)
    await store.start()
    held = await take(store, 0, 64)

    async def write() -> None:
        async with store.database.writing(patient=True):
            await asyncio.sleep(0.2)

    others = [asyncio.create_task(write()) for _ in range(12)]
    made = [chunk(number, number + 8) for number in range(0, 64, 8)]
    with capture_logs() as log:
        stored = await asyncio.gather(*(store.leases.commit(held, [each]) for each in made))
    assert [len(each or ()) for each in stored] == [1] * len(made)
    assert not log
    await asyncio.gather(*others)


async def test_commit_is_all_or_nothing(store: Store) -> None:
    """A pass whose second chunk cannot be stored leaves no first one behind."""
    lease = await take(store, 0, 4)
    with pytest.raises(Exception, match=r"."):
        await store.leases.commit(lease, [chunk(0, 4), chunk(4, 8, tokens=None)])
    assert await store.request(chunks_in, TENANT, "default", chain(10)) == []


async def test_nul_in_a_summary_becomes_the_replacement_character(store: Store) -> None:
    """PostgreSQL refuses NUL and SQLite's length() stops at it, so both get U+FFFD."""
    (stored,) = await put(store, chunk(0, 4, text="a\0b"))
    assert stored.text == "a\ufffdb"


async def test_nul_and_half_surrogates_in_ids_find_what_was_stored_under_them(store: Store) -> None:
    """An id is the client's choice; odd ones are cleaned alike when stored and when looked up."""
    odd = "c\0\ud800"
    store.writes.record(seen(odd))
    (stored,) = await put(store, chunk(0, 4, conversation_id=odd))
    assert (await store.rest(find_summary, TENANT, odd, "chunk-0-4")) == stored
    assert await store.rest(find_conversation, TENANT, odd) is not None
    assert await store.delete_conversation(TENANT, odd)


async def test_summaries_of_a_conversation_are_those_it_made_and_those_it_used(store: Store) -> None:
    """A fork lists the chunk it shares, and not what else its origin has."""
    await put(store, chunk(0, 4))
    await put(store, chunk(4, 8))
    await put(store, chunk(4, 9, conversation_id="c2"))
    store.writes.record(seen("c2", summaries=("chunk-0-4", "gone")))
    page = await store.rest(read_summaries, TENANT, "c2", Paging(10))
    assert [one.id for one in page.data] == ["chunk-0-4", "chunk-4-9"]
    assert await store.rest(find_summary, TENANT, "c2", "chunk-0-4") is not None
    assert await store.rest(find_summary, TENANT, "c2", "chunk-4-8") is None


async def test_summaries_are_listed_before_the_conversation_is(store: Store) -> None:
    """Chunks are stored at once, conversations a little later."""
    await put(store, chunk(0, 4))
    page = await store.rest(read_summaries, TENANT, "c1", Paging(10))
    assert [one.id for one in page.data] == ["chunk-0-4"]


async def test_what_a_conversation_may_use_is_read_by_version_and_of_too_much_the_latest(store: Store) -> None:
    first = chunk(0, 4)
    await put(store, first, chunk(4, 8))
    edited = chunk(0, 4, id="edited", version=2, text="edited")
    assert await store.change_at_once(replace_summary, TENANT, first.id, edited) is not None
    read = [one.id for one in await store.rest(read_active, TENANT, "c1", 10)]
    assert read == ["chunk-4-8", "edited"]
    assert [one.id for one in await store.rest(read_active, TENANT, "c1", 1)] == ["edited"]
    assert await store.rest(read_active, STRANGER, "c1", 10) == []


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_of_summaries_join_without_gap_or_overlap(store: Store, order: str) -> None:
    """Also when many rows have the same time: then the id decides."""
    await put(store, *(chunk(0, end) for end in range(1, 8)))
    pages, after = [], None
    while True:
        page = await store.rest(
            read_summaries, TENANT, "c1", Paging(3, after=after, order="asc" if order == "asc" else "desc")
        )
        pages.append([one.id for one in page.data])
        assert (page.first_id, page.last_id) == (pages[-1][0], pages[-1][-1])
        if not page.has_more:
            break
        after = page.last_id
    expected = [f"chunk-0-{end}" for end in range(1, 8)]
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [one for page in pages for one in page] == (expected if order == "asc" else expected[::-1])


async def test_unknown_cursor_is_an_error_rather_than_the_end_of_the_list(store: Store) -> None:
    """An empty page would tell somebody who deletes page by page that all is done."""
    await put(store, chunk(0, 4))
    with pytest.raises(UnknownCursor):
        await store.rest(read_summaries, TENANT, "c1", Paging(3, after="gone"))


async def test_other_tenant_reads_no_chunk(store: Store) -> None:
    """Not by digest, not by list, not by id."""
    await put(store, chunk(0, 4))
    store.writes.record(seen(tenant=STRANGER, summaries=("chunk-0-4",)))
    assert await store.request(chunks_in, STRANGER, "default", chain(5)) == []
    assert (await store.rest(read_summaries, STRANGER, "c1", Paging(3))).data == []
    assert await store.rest(find_summary, STRANGER, "c1", "chunk-0-4") is None


async def test_two_tenants_may_hold_chunks_of_the_same_id(store: Store) -> None:
    """Each reads its own text."""
    await put(store, chunk(0, 4, text="ours"))
    await put(store, chunk(0, 4, text="theirs"), tenant=STRANGER)
    assert [one.text for one in await store.request(chunks_in, TENANT, "default", chain(5))] == ["ours"]
    assert [one.text for one in await store.request(chunks_in, STRANGER, "default", chain(5))] == ["theirs"]


async def test_recent_first_chunks_are_found_by_their_last_message_under_any_chain(store: Store) -> None:
    """How a history that is rewritten every turn is noticed: its earlier chunks end with messages it still holds."""
    elsewhere = chunk(0, 4, id="elsewhere", from_digest=digest(50), through_digest=digest(54))
    await put(store, chunk(0, 4), elsewhere)
    await put(store, chunk(4, 8), chunk(0, 8, level=1, id="fold"))
    # One of an earlier release, which did not tell how long the history was, says nothing.
    await put(store, chunk(0, 4, id="early", from_digest=digest(60), through_digest=digest(64), history_length=None))
    ends = [digest(1004), digest(1008)]
    found = await store.request(recent_first_chunks, TENANT, "default", ends, 3600)
    assert {(first.last_index, first.through_digest) for first in found} == {(3, digest(4)), (3, digest(54))}
    assert {(first.conversation_id, first.history_length) for first in found} == {("c1", 11)}
    assert all(abs(first.created_at / 1000 - time.time()) < 60 for first in found)
    assert await store.request(recent_first_chunks, TENANT, "focus", ends, 3600) == []
    assert await store.request(recent_first_chunks, STRANGER, "default", ends, 3600) == []
    assert await store.request(recent_first_chunks, TENANT, "default", ends, 0) == []


# Versions


async def ids(store: Store, conversation_id: str = "c1") -> dict[str, bool]:
    """The summaries of a conversation, each with whether it is in use."""
    page = await store.rest(read_summaries, TENANT, conversation_id, Paging(100))
    return {one.id: one.deactivated_at is None for one in page.data}


async def read(store: Store) -> set[str]:
    return {one.id for one in await store.request(chunks_in, TENANT, "default", chain(50))}


def next_of(old: SummaryChunk, **changes: Any) -> SummaryChunk:
    written = {"text": "They met in June.", "version": old.version + 1, "id": f"{old.id}-v{old.version + 1}"}
    return replace(old, created_at=None, **{**written, **changes})


async def test_an_edit_takes_the_place_of_what_it_replaces_which_stays_as_a_record(store: Store) -> None:
    (old,) = await put(store, chunk(0, 4))
    new = await store.rest_change(replace_summary, TENANT, old.id, next_of(old))
    assert new is not None
    assert (new.text, new.version, new.deactivated_at) == ("They met in June.", 2, None)
    assert await store.request(chunks_in, TENANT, "default", chain(5)) == [new]
    record = await store.rest(find_summary, TENANT, "c1", old.id)
    assert record is not None
    assert record.deactivated_at is not None
    assert replace(record, deactivated_at=None) == old
    assert await ids(store) == {old.id: False, new.id: True}
    assert await store.request(chunks_named, TENANT, [old.id]) == [record]


async def test_what_is_not_in_use_cannot_be_edited_or_deactivated_once_more(store: Store) -> None:
    (old,) = await put(store, chunk(0, 4))
    assert await store.rest_change(replace_summary, TENANT, old.id, next_of(old)) is not None
    assert await store.rest_change(replace_summary, TENANT, old.id, next_of(old, id="other", text="In July.")) is None
    assert await store.rest_change(deactivate_summaries, TENANT, [old.id]) == []
    assert await store.rest_change(deactivate_summaries, TENANT, ["gone"]) == []
    assert await read(store) == {f"{old.id}-v2"}


@pytest.mark.parametrize("edits", [True, False])
async def test_every_fold_over_what_is_edited_or_deactivated_is_deactivated_too(store: Store, edits: bool) -> None:
    """Also a fold of a fold, and what took it in. What else they stand for stays in use, as does what others made."""
    await put(store, chunk(0, 4))
    await put(store, chunk(4, 8))
    await put(store, chunk(0, 8, id="fold", level=1, children=("chunk-0-4", "chunk-4-8"), conversation_id="c2"))
    await put(store, chunk(8, 12))
    await put(store, chunk(0, 12, id="folds", level=2, children=("fold", "chunk-8-12")))
    await put(store, chunk(0, 12, id="other", level=1, children=("chunk-8-12",)))
    await put(store, chunk(0, 16, id="taken-in", children=("folds",)))
    if edits:
        assert await store.rest_change(replace_summary, TENANT, "chunk-4-8", next_of(chunk(4, 8))) is not None
        assert await read(store) == {"chunk-0-4", "chunk-4-8-v2", "chunk-8-12", "other"}
    else:
        assert set(await store.rest_change(deactivate_summaries, TENANT, ["chunk-4-8"])) == {
            "chunk-4-8",
            "fold",
            "folds",
            "taken-in",
        }
        assert await read(store) == {"chunk-0-4", "chunk-8-12", "other"}


async def test_what_is_made_anew_after_a_deactivation_is_another_version(store: Store) -> None:
    """The first text is no way back, even where a model writes the same once more."""
    (old,) = await put(store, chunk(0, 4))
    await store.rest_change(deactivate_summaries, TENANT, [old.id])
    (new,) = await put(store, chunk(0, 4))
    assert (new.version, new.text) == (2, old.text)
    assert new.id not in (old.id, "")
    assert await store.request(chunks_in, TENANT, "default", chain(5)) == [new]
    assert await put(store, chunk(0, 4)) == [new]
    await store.rest_change(deactivate_summaries, TENANT, [new.id])
    assert [one.version for one in await put(store, chunk(0, 4))] == [3]


async def test_a_fold_of_what_was_edited_meanwhile_is_not_stored(store: Store) -> None:
    """It was made of the old text. Whoever made it looks again, as after a lost lease."""
    await put(store, chunk(0, 4), chunk(4, 8))
    lease = await take(store, 0, 8)
    await store.rest_change(replace_summary, TENANT, "chunk-0-4", next_of(chunk(0, 4)))
    fold = chunk(0, 8, id="fold", level=1, children=("chunk-0-4", "chunk-4-8"))
    assert await store.leases.commit(lease, [fold]) is None
    assert await read(store) == {"chunk-0-4-v2", "chunk-4-8"}
    assert await store.leases.commit(lease, [replace(fold, children=("chunk-0-4-v2", "chunk-4-8"))]) is not None


async def test_a_fold_names_the_version_that_was_stored_of_what_was_made_with_it(store: Store) -> None:
    (old,) = await put(store, chunk(0, 4))
    await store.rest_change(deactivate_summaries, TENANT, [old.id])
    fold = chunk(0, 8, id="fold", level=1, children=("chunk-0-4", "chunk-4-8"))
    stored = await put(store, chunk(0, 4), chunk(4, 8), fold)
    assert stored[2].children == (stored[0].id, "chunk-4-8")
    assert stored[0].version == 2


async def test_no_search_finds_what_is_not_in_use(store: Store) -> None:
    await put(store, chunk(0, 4, text="They met in Tokyo."))
    await store.rest_change(replace_summary, TENANT, "chunk-0-4", next_of(chunk(0, 4), text="They met in Kyoto."))
    await store.tidying.index_summaries()
    for word, found in (("tokyo", []), ("kyoto", ["chunk-0-4-v2"])):
        page = await store.rest(search_texts, TENANT, [word], "summaries", Paging(5))
        assert [one.id for one in page.data] == found


async def test_a_strangers_edit_changes_nothing(store: Store) -> None:
    await put(store, chunk(0, 4))
    await put(store, chunk(0, 4, text="theirs"), tenant=STRANGER)
    assert await store.rest_change(replace_summary, STRANGER, "chunk-0-4", next_of(chunk(0, 4))) is not None
    assert set(await store.rest_change(deactivate_summaries, STRANGER, ["chunk-0-4-v2"])) == {"chunk-0-4-v2"}
    assert [one.text for one in await store.request(chunks_in, TENANT, "default", chain(5))] == ["They met in May."]
    assert await ids(store) == {"chunk-0-4": True}


async def test_versions_are_those_of_one_range_level_and_series_of_one_tenant(store: Store) -> None:
    old = chunk(0, 8)
    others = (chunk(0, 4), chunk(0, 8, id="fold", level=1, children=("chunk-0-4",)), chunk(0, 8, id="b", series="b"))
    await put(store, old, *others)
    await put(store, old, tenant=STRANGER)
    new = await store.rest_change(replace_summary, TENANT, old.id, next_of(old))
    assert new is not None
    for asked in (old, new):
        assert [each.id for each in await store.rest(read_versions, TENANT, asked)] == [old.id, new.id]
    assert [each.version for each in await store.rest(read_versions, STRANGER, old)] == [1]


async def test_a_deleted_conversation_leaves_no_version(store: Store) -> None:
    (old,) = await put(store, chunk(0, 4))
    await store.rest_change(replace_summary, TENANT, old.id, next_of(old))
    await store.delete_conversation(TENANT, "c1")
    assert await ids(store) == {}
    assert await store.request(chunks_named, TENANT, [old.id, f"{old.id}-v2"]) == []


async def test_another_replica_reads_an_edit_and_a_deactivation_at_once(open_store: OpenStore, shared_url: str) -> None:
    """Chunks that are in use are read from the database each time: there is nothing to wait for."""
    one, two = open_store(shared_url), open_store(shared_url)
    await one.start()
    await two.start()
    (old,) = await put(one, chunk(0, 4))
    assert await read(two) == {old.id}
    await one.rest_change(replace_summary, TENANT, old.id, next_of(old))
    assert await read(two) == {f"{old.id}-v2"}
    await two.rest_change(deactivate_summaries, TENANT, [f"{old.id}-v2"])
    assert await read(one) == set()


async def test_of_two_edits_at_once_one_is_told_that_it_came_too_late(open_store: OpenStore, shared_url: str) -> None:
    one, two = open_store(shared_url), open_store(shared_url)
    await one.start()
    await two.start()
    (old,) = await put(one, chunk(0, 4))
    done = await asyncio.gather(
        one.rest_change(replace_summary, TENANT, old.id, next_of(old, id="june")),
        two.rest_change(replace_summary, TENANT, old.id, next_of(old, id="july", text="They met in July.")),
    )
    [kept] = [each for each in done if each is not None]
    assert await read(one) == {kept.id}
