"""Summary chunks: found by a chain's digests, stored once under the fence."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from app.compaction.chunks import SummaryChunk, UserWords
from app.store import Store
from app.store.chunks import (
    chunks_in,
    chunks_named,
    delete_chunk,
    find_summary,
    read_summaries,
    recent_first_chunks,
    replace_chunk,
)
from app.store.conversations import find_conversation
from app.store.tables import Paging
from tests.integration.examples import STRANGER, TENANT, Replicas, StartStore, chain, chunk, digest, put, seen, take


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
        user_words=(UserWords(None, "Never \0push to main \ud83d!"), UserWords(3, "Immer auf Deutsch 🙂")),
        user_words_tokens=9,
        values_kept=0.5,
    )
    await put(store, chunk(0, 2, id="a"), chunk(2, 4, id="b"))
    (stored,) = await put(store, made)
    assert replace(stored, created_at=None) == made
    assert stored.created_at is not None
    assert abs(stored.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert await store.request(chunks_in, TENANT, "default", [digest(0), digest(4)]) == [stored]


async def test_chunk_applies_only_if_both_its_digests_are_in_the_chain(store: Store) -> None:
    """A history that was edited before or inside the range has other digests from there on."""
    await put(store, chunk(2, 4))
    assert await store.request(chunks_in, TENANT, "default", [digest(2), digest(3)]) == []
    assert await store.request(chunks_in, TENANT, "default", [digest(3), digest(4)]) == []
    assert len(await store.request(chunks_in, TENANT, "default", [digest(2), digest(4)])) == 1


async def test_chunks_are_found_in_a_chain_of_ten_thousand(store: Store) -> None:
    """Wherever in the chain they end, in whatever batch that falls."""
    ends = (1, 511, 2047, 2048, 5000, 9999)
    await put(store, *(chunk(0, end) for end in ends))
    found = await store.request(chunks_in, TENANT, "default", chain(10_000))
    assert sorted(found_chunk.last_index + 1 for found_chunk in found) == list(ends)


async def test_commit_repeated_is_commit_done_once(store: Store) -> None:
    """After a lost answer the same commit is sent again and gets the same rows."""
    lease = await take(store, 0, 4)
    first = await store.keep_chunks(lease, [chunk(0, 4)])
    assert await store.keep_chunks(lease, [chunk(0, 4)]) == first
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
    stored = await store.keep_chunks(lease, [chunk(4, 8), fold])
    assert stored is not None
    assert [one.id for one in stored] == ["chunk-4-8", "fold"]


async def test_summaries_made_side_by_side_are_all_stored_while_others_write(
    start_store: StartStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not stored was paid for in vain; behind a gap no later summary is of use."""
    store = await start_store(sqlite_url, timeout=0.25)
    held = await take(store, 0, 64)
    monkeypatch.setattr("app.store.engine.QUEUE_SECONDS", 0.3)

    async def write() -> None:
        async with store.database.writing(patient=True):
            await asyncio.sleep(0.05)

    others = [asyncio.create_task(write()) for _ in range(12)]
    made = [chunk(number, number + 8) for number in range(0, 64, 8)]
    with capture_logs() as log:
        stored = await asyncio.gather(*(store.keep_chunks(held, [each]) for each in made))
    assert [len(each or ()) for each in stored] == [1] * len(made)
    assert not log
    await asyncio.gather(*others)


async def test_commit_is_all_or_nothing(store: Store) -> None:
    """A pass whose second chunk cannot be stored leaves no first one behind."""
    lease = await take(store, 0, 4)
    with pytest.raises(Exception, match=r"."):
        await store.keep_chunks(lease, [chunk(0, 4), chunk(4, 8, tokens=None)])
    assert await store.request(chunks_in, TENANT, "default", chain(10)) == []


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


async def test_other_tenant_reads_no_chunk(store: Store) -> None:
    """Not by digest, not by list, not by id."""
    await put(store, chunk(0, 4))
    store.writes.record(seen(tenant=STRANGER, summaries=("chunk-0-4",)))
    assert await store.request(chunks_in, STRANGER, "default", chain(5)) == []
    assert (await store.rest(read_summaries, STRANGER, "c1", Paging(3))).data == []
    assert await store.rest(find_summary, STRANGER, "c1", "chunk-0-4") is None


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


# Corrections and deletions


async def ids(store: Store) -> set[str]:
    page = await store.rest(read_summaries, TENANT, "c1", Paging(100))
    return {one.id for one in page.data}


async def read(store: Store) -> set[str]:
    return {one.id for one in await store.request(chunks_in, TENANT, "default", chain(50))}


def correction(old: SummaryChunk, **changes: Any) -> SummaryChunk:
    written = {"text": "They met in June.", "id": f"{old.id}-new"}
    return replace(old, created_at=None, **{**written, **changes})


async def test_a_correction_takes_the_range_of_what_it_replaces(store: Store) -> None:
    (old,) = await put(store, chunk(0, 4))
    new = await store.rest_change(replace_chunk, TENANT, old.id, correction(old))
    assert new is not None
    assert new.text == "They met in June."
    assert await store.request(chunks_in, TENANT, "default", chain(5)) == [new]
    assert await ids(store) == {new.id}
    assert await store.request(chunks_named, TENANT, [old.id]) == []


@pytest.mark.parametrize("corrects", [True, False])
async def test_every_fold_over_what_is_corrected_or_deleted_goes(store: Store, corrects: bool) -> None:
    """Also a fold of a fold, and what took it in. What else they stand for stays, as does what others made."""
    await put(store, chunk(0, 4))
    await put(store, chunk(4, 8))
    await put(store, chunk(0, 8, id="fold", level=1, children=("chunk-0-4", "chunk-4-8"), conversation_id="c2"))
    await put(store, chunk(8, 12))
    await put(store, chunk(0, 12, id="folds", level=2, children=("fold", "chunk-8-12")))
    await put(store, chunk(0, 12, id="other", level=1, children=("chunk-8-12",)))
    await put(store, chunk(0, 16, id="taken-in", children=("folds",)))
    if corrects:
        assert await store.rest_change(replace_chunk, TENANT, "chunk-4-8", correction(chunk(4, 8))) is not None
        assert await read(store) == {"chunk-0-4", "chunk-4-8-new", "chunk-8-12", "other"}
    else:
        gone = await store.rest_change(delete_chunk, TENANT, "chunk-4-8")
        assert gone == ["chunk-4-8", "fold", "folds", "taken-in"]
        assert await read(store) == {"chunk-0-4", "chunk-8-12", "other"}


async def test_a_summary_in_flight_does_not_replace_a_persons_text(store: Store) -> None:
    """Nor does a fold that was made of the summary in flight."""
    (old,) = await put(store, chunk(0, 4))
    lease = await take(store, 0, 8)
    person = await store.rest_change(replace_chunk, TENANT, old.id, correction(old))
    late = chunk(0, 4, id="late", text="They met in May, perhaps.")
    assert await store.keep_chunks(lease, [late]) == [person]
    fold = chunk(0, 8, id="fold", level=1, children=("late", "chunk-4-8"))
    assert await store.keep_chunks(lease, [late, chunk(4, 8), fold]) is None
    assert await read(store) == {f"{old.id}-new", "chunk-4-8"}


async def test_a_fold_of_what_was_corrected_meanwhile_is_not_stored(store: Store) -> None:
    """It was made of the old text. The process that made it looks again, as after a lost lease."""
    await put(store, chunk(0, 4), chunk(4, 8))
    lease = await take(store, 0, 8)
    await store.rest_change(replace_chunk, TENANT, "chunk-0-4", correction(chunk(0, 4)))
    fold = chunk(0, 8, id="fold", level=1, children=("chunk-0-4", "chunk-4-8"))
    assert await store.keep_chunks(lease, [fold]) is None
    assert await read(store) == {"chunk-0-4-new", "chunk-4-8"}
    assert await store.keep_chunks(lease, [replace(fold, children=("chunk-0-4-new", "chunk-4-8"))]) is not None


async def test_a_strangers_correction_changes_nothing(store: Store) -> None:
    await put(store, chunk(0, 4))
    await put(store, chunk(0, 4, text="theirs"), tenant=STRANGER)
    assert await store.rest_change(replace_chunk, STRANGER, "chunk-0-4", correction(chunk(0, 4))) is not None
    assert await store.rest_change(delete_chunk, STRANGER, "chunk-0-4-new") == ["chunk-0-4-new"]
    assert [one.text for one in await store.request(chunks_in, TENANT, "default", chain(5))] == ["They met in May."]


async def test_of_two_corrections_at_once_one_comes_too_late(replicas: Replicas) -> None:
    one, two = replicas
    (old,) = await put(one, chunk(0, 4))
    done = await asyncio.gather(
        one.rest_change(replace_chunk, TENANT, old.id, correction(old, id="june")),
        two.rest_change(replace_chunk, TENANT, old.id, correction(old, id="july", text="They met in July.")),
    )
    [kept] = [each for each in done if each is not None]
    assert await read(one) == {kept.id}
