"""The archive: each message once, in its order, and gone with its conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import event, update
from structlog.testing import capture_logs

from app.store import Store, StoreUnavailable, UnknownCursor, archive, message_rows
from app.store.conversation_rows import find_conversation, write_conversations
from app.store.message_rows import find_history, find_questions, read_messages, read_stretch
from app.store.pages import Paging
from app.store.tables import conversations, messages
from tests.integration.examples import STRANGER, TENANT, OpenStore, seen, show, strand
from tests.integration.test_retention import DAY, DAYS, age, count, used

pytestmark = pytest.mark.sampled(0.6)

TALK = [f"word{number} is said" for number in range(9)]


async def kept(
    store: Store, conversation_id: str = "c1", tenant: str = TENANT, *, limit: int = 100, **page: Any
) -> list[str]:
    """What was said, in the order in which the archive has it."""
    found = await store.rest(read_messages, tenant, conversation_id, Paging(limit, **page))
    return [text_of(message.sent) for message in found.page.data]


def text_of(sent: str) -> str:
    return sent.removeprefix('{"content": "').removesuffix('"}')


async def latest(store: Store) -> list[str]:
    found = await store.rest(read_messages, TENANT, "c1", Paging(100))
    return [text_of(message.sent) for message in found.page.data if message.id in found.latest]


def statements(store: Store) -> list[tuple[str, Any]]:
    """What is sent to the database from here on, with its parameters."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        sent.append((statement, parameters))

    event.listen(store.database.engine.sync_engine, "before_cursor_execute", note)
    return sent


# What is kept


async def test_a_history_that_is_sent_again_adds_what_is_new(store: Store) -> None:
    for length in range(1, 10, 2):
        show(store, *TALK[:length], request_id=f"r{length}")
        await store.flush()
    page = (await store.rest(read_messages, TENANT, "c1", Paging(100))).page
    assert [text_of(message.sent) for message in page.data] == TALK
    assert [message.position for message in page.data] == list(range(9))
    assert [message.request_id for message in page.data] == ["r1", "r3", "r3", "r5", "r5", "r7", "r7", "r9", "r9"]
    assert [message.previous_id for message in page.data] == [None, *(message.id for message in page.data[:-1])]
    assert {message.kind for message in page.data} == {"user", "assistant"}


async def test_what_was_recorded_before_is_not_sent_to_the_database_again(store: Store) -> None:
    show(store, *TALK[:7])
    await store.flush()
    sent = statements(store)
    show(store, *TALK)
    await store.flush()
    written = [parameters for statement, parameters in sent if statement.startswith("INSERT INTO messages")]
    assert "word7" in str(written)
    assert "word6" not in str(written)
    sent.clear()
    show(store, *TALK)
    await store.flush()
    assert not [statement for statement, _ in sent if "messages (" in statement]


async def test_branches_keep_their_own_and_share_what_they_have_in_common(store: Store) -> None:
    show(store, "a", "b", "c")
    show(store, "a", "b2", "c")
    show(store, "a", "b", "c", "d", "e")
    await store.flush()
    assert sorted(await kept(store)) == ["a", "b", "b2", "c", "c", "d", "e"]
    assert await latest(store) == ["a", "b", "c", "d", "e"]
    show(store, "a", "b2", "c")
    await store.flush()
    assert await latest(store) == ["a", "b2", "c"]


async def test_two_conversations_that_begin_alike_keep_their_messages_each(store: Store) -> None:
    show(store, *TALK[:3])
    show(store, *TALK[:5], conversation_id="c2")
    await store.delete_conversation(TENANT, "c1")
    assert await kept(store) == []
    assert await kept(store, "c2") == TALK[:5]


async def test_letters_come_back_as_they_were(store: Store) -> None:
    texts = [r"\u0000 \ud800 \"quoted\" \\", "a\u2028b", "\U0001f600 \ufffe", "1e400, 1.0, -0", "ß" * 50_000]
    show(store, *texts)
    await store.flush()
    assert await kept(store) == texts


async def test_a_message_is_stored_after_the_one_it_follows_whatever_waits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In many transactions."""
    monkeypatch.setattr(archive, "BATCH_MESSAGES", 2)
    many = [f"m{number}" for number in range(25)]
    show(store, *many[:11])
    show(store, *many)
    await store.flush()
    assert await kept(store) == many
    assert store.writes.dropped_messages == 0


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    histories=st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=6), min_size=1, max_size=8), data=st.data()
)
async def test_whatever_is_shown_the_archive_has_every_history_once(
    data: st.DataObject, histories: list[list[str]], open_store: OpenStore
) -> None:
    store = open_store("memory")
    await store.start()
    for history in histories:
        show(store, *history)
        if data.draw(st.booleans()):
            await store.flush()
    await store.flush()
    expected = {tuple(history[:length]) for history in histories for length in range(1, len(history) + 1)}
    assert await count(store, messages) == [len(expected)]
    assert await latest(store) == histories[-1]
    await store.close()


# Replicas


async def test_replicas_that_see_the_same_requests_store_each_message_once(
    open_store: OpenStore, shared_url: str
) -> None:
    replicas = [open_store(shared_url) for _ in range(3)]
    for replica in replicas:
        await replica.start()
    for length in range(1, 60, 6):
        for number, replica in enumerate(replicas):
            texts = [f"m{place}" for place in range(length + number)]
            for name in ("c1", "c2", "c3"):
                show(replica, *texts, conversation_id=name)
        await asyncio.gather(*(replica.flush() for replica in replicas))
    for name in ("c1", "c2", "c3"):
        assert await kept(replicas[0], name) == [f"m{place}" for place in range(57)]
    assert sum(replica.writes.dropped_messages for replica in replicas) == 0


async def test_what_another_replica_deleted_does_not_come_back_in_parts(open_store: OpenStore, shared_url: str) -> None:
    """The next request brings its whole history, and with it a new beginning."""
    here, there = open_store(shared_url), open_store(shared_url)
    for replica in (here, there):
        await replica.start()
    show(here, *TALK[:5])
    await here.flush()
    await there.delete_conversation(TENANT, "c1")
    show(here, *TALK[:7])
    with capture_logs() as log:
        await here.flush()
    assert [line["reason"] for line in log if line["event"] == "messages not archived"]
    assert (await kept(here), here.writes.dropped_messages) == ([], 2)
    show(here, *TALK)
    await here.flush()
    assert await kept(here) == TALK


async def test_a_flush_and_a_deletion_at_once_leave_all_or_nothing(open_store: OpenStore, shared_url: str) -> None:
    here, there = open_store(shared_url), open_store(shared_url)
    for replica in (here, there):
        await replica.start()
    for number in range(20):
        name = f"c{number}"
        show(here, *TALK[:5], conversation_id=name)
        await here.flush()
        show(here, *TALK, conversation_id=name)
        await asyncio.gather(here.flush(), there.delete_conversation(TENANT, name))
        left = await kept(here, name)
        assert left == TALK[: len(left)]
        gone = await there.rest(find_conversation, TENANT, name) is None
        assert not gone or left == []


# In nobody's way


async def test_what_waits_is_bounded_and_what_is_dropped_is_counted_and_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "QUEUE_BYTES", 100)
    show(store, *TALK[:3])
    with capture_logs() as log:
        for length in (5, 7, 9):
            show(store, *TALK[:length])
        await store.flush()
    assert store.writes.dropped_messages > 0
    assert [line["event"] for line in log] == ["messages not archived", "messages archived again"]
    assert log[-1]["times"] == 3 > log[-1]["seconds"]
    assert await kept(store) == TALK[:3]
    show(store, *TALK)
    await store.flush()
    assert await kept(store) == TALK


async def test_messages_wait_for_a_database_that_is_away(open_store: OpenStore, shared_url: str) -> None:
    store = open_store(shared_url)
    show(store, *TALK[:3])
    with pytest.raises(StoreUnavailable):
        await store.flush()
    show(store, *TALK)
    await store.start()
    await store.flush()
    assert (await kept(store), store.writes.dropped_messages) == (TALK, 0)


async def test_a_flush_that_failed_half_way_is_done_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "BATCH_MESSAGES", 2)
    write, calls = message_rows.write_messages, 0

    async def fail_later(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise TimeoutError
        return await write(*arguments)

    monkeypatch.setattr("app.store.write_behind.write_messages", fail_later)
    show(store, *TALK)
    with pytest.raises(StoreUnavailable):
        await store.flush()
    await store.flush()
    assert (await kept(store), store.writes.dropped_messages) == (TALK, 0)


async def test_what_is_recorded_in_the_middle_of_a_flush_waits_for_the_next_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its conversation is not stored yet, and the database takes no messages without it."""
    written = "app.store.write_behind.write_conversations"

    async def write_beside(*arguments: Any) -> None:
        monkeypatch.setattr(written, write_conversations)
        show(store, *TALK, conversation_id="another")
        await write_conversations(*arguments)

    monkeypatch.setattr(written, write_beside)
    show(store, *TALK)
    await store.flush()
    await store.flush()
    assert (await kept(store), await kept(store, "another"), store.writes.dropped_messages) == (TALK, TALK, 0)


async def test_closing_stores_what_waits(open_store: OpenStore, shared_url: str) -> None:
    store = open_store(shared_url)
    await store.start()
    show(store, *TALK)
    await store.close()
    again = open_store(shared_url)
    await again.start()
    assert await kept(again) == TALK


async def test_a_message_is_not_kept_without_its_conversation(store: Store) -> None:
    """As when the row of it was refused."""
    store.writes.record_messages(strand(*TALK))
    await store.flush()
    assert await count(store, messages) == [0]
    assert store.writes.dropped_messages == len(TALK)


# Pages


async def test_pages_join_in_both_orders(store: Store) -> None:
    show(store, *TALK)
    whole = (await store.rest(read_messages, TENANT, "c1", Paging(100))).page
    for order, all_of_it in (("asc", TALK), ("desc", TALK[::-1])):
        joined: list[str] = []
        after = None
        while True:
            page = (await store.rest(read_messages, TENANT, "c1", Paging(2, after=after, order=order))).page  # type: ignore[arg-type]
            joined += [text_of(message.sent) for message in page.data]
            after = page.last_id
            if not page.has_more:
                break
        assert joined == all_of_it
    with pytest.raises(UnknownCursor):
        await kept(store, after="msg_none")
    assert await kept(store, after=whole.data[4].id, limit=2) == TALK[5:7]


async def test_a_page_of_large_messages_is_cut_and_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_rows, "MOST_PAGE_CHARACTERS", 120)
    show(store, "a" * 90, "b" * 50, "c" * 40, "d" * 500)
    pages, after = [], None
    for _ in range(4):
        page = (await store.rest(read_messages, TENANT, "c1", Paging(100, after=after))).page
        pages.append(([text_of(message.sent)[0] for message in page.data], page.has_more))
        after = page.last_id
        if not page.has_more:
            break
    assert pages == [(["a"], True), (["b", "c"], True), (["d"], False)]


async def test_only_what_the_latest_request_held_counts_as_its_history(store: Store) -> None:
    show(store, *TALK)
    show(store, *TALK[:3])
    page = await store.rest(read_messages, TENANT, "c1", Paging(2, order="desc"))
    assert page.latest == frozenset()
    assert await latest(store) == TALK[:3]


async def test_the_history_of_the_latest_request_is_read_by_its_positions(store: Store) -> None:
    show(store, *TALK)
    show(store, *TALK[:4], "another end", "and an answer")
    whole = await store.rest(read_stretch, TENANT, "c1", 0, 100)
    assert [text_of(message.sent) for message in whole] == [*TALK[:4], "another end", "and an answer"]
    some = await store.rest(read_stretch, TENANT, "c1", 3, 4)
    assert [(message.position, text_of(message.sent)) for message in some] == [(3, TALK[3]), (4, "another end")]
    assert await store.rest(read_stretch, STRANGER, "c1", 0, 100) == []
    assert await store.rest(read_stretch, TENANT, "c1", 50, 60) == []


async def test_of_leading_instructions_those_that_came_last_are_read(store: Store) -> None:
    show(store, *TALK[:2])
    for texts in (["be brief", "be kind"], ["be brief", "be quick"]):
        store.writes.record_messages(replace(strand(*texts), first=-2))
        await store.flush()
        await asyncio.sleep(0.002)  # The database's clock has to move on.
    found = await store.rest(read_stretch, TENANT, "c1", -2, 0)
    assert [text_of(message.sent) for message in found] == ["be brief", "be quick", TALK[0]]
    assert [text_of(message.sent) for message in await store.rest(read_stretch, TENANT, "c1", -1, -1)] == ["be quick"]


async def test_a_history_of_large_messages_is_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_rows, "MOST_PAGE_CHARACTERS", 60)
    show(store, *TALK[:4])
    assert len(await store.rest(read_stretch, TENANT, "c1", 0, 3)) == 2


async def test_the_latest_history_is_read_with_its_instructions_and_without_other_branches(store: Store) -> None:
    show(store, *TALK[:4])
    show(store, *TALK[:2], "another question")
    rules = strand("the first rules", "and more")
    for leading in (strand("old rules"), rules):
        store.writes.record_messages(replace(leading, first=-len(leading.messages)))
    await store.flush()
    found = await store.rest(find_history, TENANT, "c1", 100, 10_000)
    assert found is not None
    told = ["the first rules", "and more", *TALK[:2], "another question"]
    assert [text_of(sent) for sent in found.sent] == told
    [last] = [message for message in (await kept_messages(store)) if text_of(message.sent) == "another question"]
    assert (found.format, found.ids[-1]) == ("chat_completions", last.id)
    assert await store.rest(find_history, TENANT, "c1", 5, 10_000) == found
    assert await store.rest(find_history, TENANT, "c1", 4, 10_000) is None
    characters = sum(map(len, found.sent))
    assert await store.rest(find_history, TENANT, "c1", 5, characters) == found
    assert await store.rest(find_history, TENANT, "c1", 5, characters - 1) is None
    assert await store.rest(find_history, TENANT, "none", 5, 10_000) is None
    assert await store.rest(find_history, STRANGER, "c1", 5, 10_000) is None


async def test_a_history_of_which_the_last_message_is_not_kept_is_none(store: Store) -> None:
    show(store, *TALK[:2])
    store.writes.record(seen(heads=((strand(*TALK[:4]).places[-1], 2),)))
    await store.flush()
    assert await store.rest(find_history, TENANT, "c1", 100, 10_000) is None


async def kept_messages(store: Store) -> list[Any]:
    return list((await store.rest(read_messages, TENANT, "c1", Paging(100))).page.data)


async def test_what_a_request_took_stands_beside_what_it_brought(store: Store) -> None:
    show(store, *TALK[:1], request_id="r")
    show(store, *TALK[:3], request_id="r2")
    store.writes.record_usage(used("u1"))
    found = await store.rest(read_messages, TENANT, "c1", Paging(100))
    assert set(found.usage) == {"r"}
    assert found.usage["r"].messages.prompt == 1


# Deletion and retention


async def test_a_deleted_conversation_leaves_nothing_and_begins_anew(store: Store) -> None:
    show(store, *TALK[:5])
    await store.flush()
    show(store, *TALK[:7])
    await store.delete_conversation(TENANT, "c1")
    await store.flush()
    assert await count(store, messages) == [0]
    show(store, *TALK)
    await store.flush()
    assert await kept(store) == TALK


async def test_the_first_request_after_a_deletion_brings_the_whole_history(store: Store) -> None:
    show(store, *TALK[:7])
    await store.flush()
    await store.delete_conversation(TENANT, "c1")
    show(store, *TALK)
    await store.flush()
    assert (await kept(store), store.writes.dropped_messages) == (TALK, 0)


async def test_what_waits_of_another_conversation_or_tenant_is_kept(store: Store) -> None:
    show(store, *TALK[:3])
    show(store, *TALK[:3], conversation_id="c2")
    show(store, *TALK[:3], tenant=STRANGER)
    await store.delete_conversation(TENANT, "c1")
    assert [await kept(store), await kept(store, "c2"), await kept(store, tenant=STRANGER)] == [[], TALK[:3], TALK[:3]]


async def test_an_erased_tenant_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.facade.ERASED_ROWS", 2)
    show(store, *TALK)
    show(store, *TALK, tenant=STRANGER)
    await store.flush()
    show(store, *TALK, "and more")
    await store.erase_tenant(TENANT)
    await store.flush()
    assert await kept(store) == []
    assert await count(store, messages) == [len(TALK)]


async def test_messages_are_removed_with_their_conversation_and_never_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old they are: a history without its beginning would be none."""
    monkeypatch.setattr("app.store.tidying.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("app.store.retention.MESSAGES", 10)
    store.tidying.kept_ms = DAYS * DAY
    for number in range(5):
        show(store, *TALK, conversation_id=f"c{number}")
    await store.flush()
    async with store.database.writing() as connection:
        await connection.execute(update(messages).values(created_at=messages.c.created_at - 2 * DAYS * DAY))
    await store.tidying.remove_unused()
    assert await count(store, messages) == [45]
    await age(store, DAYS + 0.1, conversations)
    show(store, *TALK, conversation_id="c3")
    await store.flush()
    await store.tidying.remove_unused()
    assert await count(store, conversations, messages) == [1, 9]
    assert await kept(store, "c3") == TALK


async def test_no_message_is_stored_that_nobody_asked_to_keep(store: Store) -> None:
    """Conversations are recorded without their messages where the archive is off."""
    store.writes.record(seen(heads=((strand(*TALK).places[-1], 1),)))
    await store.flush()
    assert await count(store, messages) == [0]


async def test_many_messages_that_wait_let_everything_else_be_stored_between_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage: what looks into the store waits for a few batches, and not for all."""
    monkeypatch.setattr(archive, "BATCH_MESSAGES", 1)
    monkeypatch.setattr(archive, "FLUSH_BATCHES", 3)
    await store.writes.stop()
    show(store, *TALK)
    assert await kept(store) == TALK[:3]
    assert await kept(store) == TALK[:6]
    await store.flush()
    assert await kept(store) == TALK


async def test_all_that_waits_is_stored_in_the_background(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "BATCH_MESSAGES", 1)
    show(store, *TALK)
    async with asyncio.timeout(20):
        while await count(store, messages) != [len(TALK)]:  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.05)


# Titles


async def test_the_users_first_messages_are_found_by_conversation(store: Store) -> None:
    show(store, *TALK)
    show(store, "another talk", "its answer", "a second question", conversation_id="c2")
    show(store, "a stranger's", tenant=STRANGER)
    store.writes.record(seen("c3"))
    await store.flush()
    questions = await store.rest(find_questions, TENANT, ["c1", "c2", "c3", "gone"], 0, 1_000)
    assert {id_: text_of(message.sent) for id_, message in questions.items()} == {"c1": TALK[0], "c2": "another talk"}
    seconds = await store.rest(find_questions, TENANT, ["c2"], 1, 1_000)
    assert text_of(seconds["c2"].sent) == "a second question"
    assert await store.rest(find_questions, TENANT, ["c2"], 2, 1_000) == {}
    assert await store.rest(find_questions, TENANT, ["c1"], 0, 10) == {}, "longer than that"
