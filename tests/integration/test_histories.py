"""Stored histories: the latest one of each conversation, bounded, never older than what is stored already."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.store import Store, histories, write_behind
from app.store.conversations import find_conversation, write_conversations
from app.store.histories import find_titles
from app.store.tables import histories as table
from tests.integration.examples import STRANGER, TENANT, Replicas, StartStore, history_of, seen, show, until
from tests.integration.test_retention import count


@pytest.fixture(autouse=True)
def _seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no history becomes due in the middle of a test."""
    monkeypatch.setattr(write_behind, "HISTORY_SECONDS", 1_000.0)


TALK = [f"word{number} is said" for number in range(9)]


async def kept(store: Store, conversation_id: str = "c1", tenant: str = TENANT) -> list[str]:
    found = await store.history(tenant, conversation_id)
    return [text_of(message.sent) for message in found.messages] if found else []


def text_of(sent: str) -> str:
    return sent.removeprefix('{"content": "').removesuffix('"}')


async def test_a_history_comes_back_as_it_was_recorded(store: Store) -> None:
    show(store, *TALK[:3])
    found = await store.history(TENANT, "c1")
    assert found is not None
    assert [(message.index, text_of(message.sent), message.tokens) for message in found.messages] == [
        (index, text, 10) for index, text in enumerate(TALK[:3])
    ]
    digests = history_of(*TALK[:3]).digests
    assert (found.head, found.digests, found.is_latest) == (digests[-1], frozenset(digests), True)


async def test_leading_instructions_stand_before_the_first_message(store: Store) -> None:
    show(store, *TALK[:2], leading=["be brief", "be kind"])
    found = await store.history(TENANT, "c1")
    assert found is not None
    assert [message.index for message in found.messages] == [-2, -1, 0, 1]
    assert [text_of(message.sent) for message in found.messages[:3]] == ["be brief", "be kind", TALK[0]]


async def test_the_latest_request_counts_whatever_branch_it_is_of(store: Store) -> None:
    for texts in (["a", "b", "c", "d", "e"], ["a", "b2", "c"]):
        show(store, *texts)
        await store.writes.flush()
    assert await kept(store) == ["a", "b2", "c"]


async def test_letters_come_back_as_they_were(store: Store) -> None:
    texts = [r"\u0000 \ud800 \"quoted\" \\", "a\u2028b", "\U0001f600 \ufffe", "1e400, 1.0, -0", "ß" * 50_000]
    show(store, *texts)
    assert await kept(store) == texts


async def test_a_history_is_written_at_most_every_few_seconds_and_for_who_looks_at_once(store: Store) -> None:
    show(store, *TALK[:1])
    await store.writes.flush()
    show(store, *TALK[:3])
    await store.writes.flush()
    assert store.writes.histories.number == 1
    assert not store.writes.due_histories()
    assert await kept(store) == TALK[:3]
    assert store.writes.histories.number == 0


async def test_a_history_that_waited_is_written_when_its_time_has_come(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_behind, "HISTORY_SECONDS", 0.3)
    for length in (1, 3):
        show(store, *TALK[:length])
        await store.writes.flush()
    await until(lambda: not store.writes.histories)
    assert await count(store, table) == [1]


async def test_what_waits_is_bounded_and_what_is_dropped_is_counted_and_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_behind, "QUEUE_BYTES", 100)
    await store.writes.stop()
    with capture_logs() as log:
        show(store, *TALK[:3])
        show(store, *TALK[:3], conversation_id="c2")
        await store.writes.flush()
    assert [(line["event"], line.get("reason")) for line in log] == [
        ("history not stored", "the queue is full"),
        ("histories stored again", None),
    ]
    assert store.writes.histories.dropped == 1
    assert (await kept(store), await kept(store, "c2")) == (TALK[:3], [])


async def test_a_history_beyond_the_largest_is_not_kept_and_no_older_one_in_its_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.writes, "_largest_history", 100)
    await store.writes.stop()
    show(store, "short")
    show(store, "short", "x" * 100)
    await store.writes.flush()
    assert (await kept(store), store.writes.histories.dropped) == ([], 1)


async def test_what_is_recorded_in_the_middle_of_a_flush_is_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = "app.store.write_behind.write_conversations"

    async def write_beside(*arguments: Any) -> None:
        monkeypatch.setattr(written, write_conversations)
        show(store, *TALK)
        await write_conversations(*arguments)

    monkeypatch.setattr(written, write_beside)
    show(store, *TALK[:3])
    await store.writes.flush()
    assert await kept(store) == TALK


async def test_who_reads_waits_for_no_history_that_is_compressed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of megabytes takes a second."""
    done = threading.Event()

    def wait(text: str) -> str:
        assert done.wait(20)
        return text

    monkeypatch.setattr(histories, "without_secrets", wait)
    show(store, *TALK)
    flushing = asyncio.ensure_future(store.writes.flush())
    await asyncio.sleep(0)
    assert await store.rest(find_conversation, TENANT, "c1") is not None
    assert await count(store, table) == [0]
    done.set()
    await flushing
    assert await count(store, table) == [1]


# Replicas


async def test_an_older_history_never_takes_the_place_of_a_newer_one(replicas: Replicas) -> None:
    """Whichever replica is later to write: the conversation's row says whose request was the latest."""
    one, two = replicas
    show(one, *TALK[:1])
    await one.writes.flush()
    show(one, *TALK[:3])
    await one.writes.flush()
    assert one.writes.histories.number == 1
    show(two, *TALK[:5])
    await two.writes.flush()
    await one.writes.flush_everything()
    assert await kept(two) == TALK[:5]


async def test_a_history_that_a_later_request_has_left_behind_says_so(replicas: Replicas) -> None:
    one, two = replicas
    for length in (1, 3):
        show(one, *TALK[:length])
        await one.writes.flush()
    found = await two.history(TENANT, "c1")
    assert found is not None
    assert (len(found.messages), found.is_latest) == (1, False)


async def test_what_another_replica_deleted_does_not_come_back(replicas: Replicas) -> None:
    here, there = replicas
    for length in (3, 5):
        show(here, *TALK[:length])
        await here.writes.flush()
    await there.delete_conversation(TENANT, "c1")
    await here.writes.flush_everything()
    assert await count(here, table) == [0]


async def test_a_flush_and_a_deletion_at_once_leave_all_or_nothing(replicas: Replicas) -> None:
    here, there = replicas
    for number in range(20):
        name = f"c{number}"
        show(here, *TALK, conversation_id=name)
        await asyncio.gather(here.writes.flush(), there.delete_conversation(TENANT, name))
        gone = await there.rest(find_conversation, TENANT, name) is None
        assert await kept(here, name) == ([] if gone else TALK)


# Deletion, retention, titles


async def test_a_deleted_conversation_leaves_nothing_and_begins_again(store: Store) -> None:
    show(store, *TALK[:5])
    await store.writes.flush()
    show(store, *TALK[:7])
    show(store, *TALK[:3], tenant=STRANGER)
    await store.delete_conversation(TENANT, "c1")
    await store.writes.flush()
    assert [await kept(store), await kept(store, tenant=STRANGER)] == [[], TALK[:3]]
    show(store, *TALK)
    assert await kept(store) == TALK


async def test_titles_are_found_by_conversation(store: Store) -> None:
    show(store, *TALK)
    show(store, "another talk", conversation_id="c2")
    show(store, "a stranger's", tenant=STRANGER)
    store.writes.record(seen("c3"))
    await store.writes.flush()
    found = await store.rest(find_titles, TENANT, ["c1", "c2", "c3", "gone"])
    assert found == {"c1": TALK[0], "c2": "another talk"}


async def test_secrets_are_removed(start_store: StartStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await start_store(sqlite_url)
    monkeypatch.setattr(histories, "without_secrets", lambda text: text.replace("hunter2", "*"))
    show(store, "the password is hunter2")
    assert await kept(store) == ["the password is *"]
    assert await store.rest(find_titles, TENANT, ["c1"]) == {"c1": "the password is *"}


async def test_a_history_without_messages_is_not_kept(store: Store) -> None:
    store.writes.record_history(replace(history_of("a"), messages=[], digests=[]))
    assert store.writes.histories.number == 0
