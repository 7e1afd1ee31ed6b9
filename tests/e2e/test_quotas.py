"""One tenant that asks for very much: it gets what it may have, no chat is refused, and others do not notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from app.settings import LimitSettings
from lab.simulator import Fault, Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, post, request_bytes, send
from tests.e2e.running import StartSteno
from tests.e2e.test_without_database import take_away

OTHER_KEY = b"authorization: Bearer sk-other"
CROWD, MOST = 40, 4


def long(number: int) -> list[Any]:
    return turns(15, first=100 * number + 1)


def outcome(answer: Answer) -> tuple[str | None, str | None]:
    return answer.header("x-context-status"), answer.header("x-context-reason")


def as_other(url: str, body: bytes, target: str = "/v1/chat/completions") -> Answer:
    return send(url, request_bytes(body, b"content-type: application/json", OTHER_KEY, target=target, usual=False), 60)


def most_at_once(simulator: Simulator) -> int:
    """Summary calls that the provider had before it at the same moment."""
    began = [(record.at, 1) for record in simulator.summaries]
    ended = [(record.finished_at or 0.0, -1) for record in simulator.summaries]
    under_way = most = 0
    for _, change in sorted(began + ended):
        under_way += change
        most = max(most, under_way)
    return most


@pytest.mark.slow
def test_many_conversations_of_a_tenant_have_their_turns_on_sqlite(
    simulator: Simulator, steno: StartSteno, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them were answered without the database, and so was the other. A bound that a busy machine keeps."""
    monkeypatch.setattr(LimitSettings, "compactions_per_tenant", MOST)
    started = steno(storage={"url": sqlite_url, "timeout_seconds": 1.0})
    simulator.summary_default = Fault(delay=1.0)

    async def crowd() -> tuple[list[Answer], Answer]:
        bodies = [chat(long(number), conversation_id=f"c{number}") for number in range(CROWD)]
        asking = [asyncio.to_thread(post, started.url, body, timeout=60) for body in bodies]
        *answers, other = await asyncio.gather(*asking, asyncio.to_thread(as_other, started.url, chat(long(1))))
        return answers, other

    answers, other = asyncio.run(crowd())
    assert {answer.status for answer in answers} == {200}
    told = Counter(map(outcome, answers))
    assert set(told) == {("summarized", None), ("full", "too_many_compactions")}
    assert told["summarized", None] >= MOST
    assert outcome(other) == ("summarized", None)
    assert most_at_once(simulator) <= MOST + 1
    assert started.services.store.state == "ok"


def test_a_compaction_that_is_over_makes_room_for_that_of_another_conversation(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitSettings, "compactions_per_tenant", 1)
    url = steno().url
    told = [outcome(post(url, chat(long(number), conversation_id=f"c{number}"))) for number in (1, 2, 3)]
    assert told == [("summarized", None)] * 3


def test_who_waited_for_a_compaction_takes_no_room(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitSettings, "compactions_per_tenant", 1)
    url = steno().url
    simulator.summary_default = Fault(delay=0.5)

    async def both() -> list[Answer]:
        body = chat(long(1), conversation_id="c1")
        return await asyncio.gather(*(asyncio.to_thread(post, url, body, timeout=60) for _ in range(2)))

    assert [outcome(answer) for answer in asyncio.run(both())] == [("summarized", None)] * 2
    assert len(simulator.summaries) == 1
    assert outcome(post(url, chat(long(2), conversation_id="c2"))) == ("summarized", None)


def test_what_the_database_kept_from_beginning_takes_no_room(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitSettings, "compactions_per_tenant", 1)
    started = steno()
    with monkeypatch.context() as gone:
        take_away(started, gone, "acquire")
        assert post(started.url, chat(long(1), conversation_id="c1")).status == 200
    assert outcome(post(started.url, chat(long(2), conversation_id="c2"))) == ("summarized", None)
