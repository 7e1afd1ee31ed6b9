"""Requests of one conversation in each other's way: they wait, fail and are deleted beside each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.compaction import lease
from app.settings import LimitSettings
from app.store import StoreUnavailable
from lab.simulator import Fault, Simulator
from tests.e2e.commands import until
from tests.e2e.histories import chat, long_history, turns
from tests.e2e.raw import post, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.test_background import HeldSummaries
from tests.e2e.test_without_database import context, take_away

FAILED_LATELY = "summariser_status_400, summary_failed_lately"


def ask_all(proxy: Steno, bodies: Sequence[bytes]) -> list[Any]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: context(post(proxy.url, body)), bodies))


def stored_summaries(proxy: Steno) -> list[Any]:
    answered = send(proxy.url, request_bytes(None, method="GET", target="/context/conversations/one/summaries"))
    listed: list[Any] = json.loads(answered.body)["data"]
    return listed


def test_agents_that_share_a_name_wait_for_each_other_and_nothing_is_left_out_unsaid(
    steno: StartSteno, simulator: Simulator
) -> None:
    """Each gets its summary: compactions come too often for a history, not for a name."""
    simulator.summary_default = Fault(delay=0.1)
    told = ask_all(steno(), [chat(turns(30, first=1 + 100 * agent), conversation_id="one") for agent in range(6)])
    assert {(*each["actions"], each["reason"]) for each in told} == {("summarized", None)}


def test_a_summary_that_fails_for_one_agent_is_made_for_the_others_of_its_name(
    steno: StartSteno, simulator: Simulator
) -> None:
    proxy = steno()
    mine = chat(turns(19), conversation_id="gateway")
    simulator.when(lambda record: record.kind == "summary" and "ORD-0001" in str(record.messages), status=400)
    assert [context(post(proxy.url, mine))["reason"] for _ in range(3)][-1] == FAILED_LATELY
    other = context(post(proxy.url, chat(turns(19, first=101), conversation_id="gateway")))
    assert (other["status"], other["reason"]) == ("summarized", None)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_compaction_that_another_request_made_first_is_used_and_not_logged_as_failed(
    steno: StartSteno, simulator: Simulator, monkeypatch: pytest.MonkeyPatch, sqlite_url: str, processes: int
) -> None:
    """It was stored after this request read the store, and before it took the lease."""
    proxy, *others = (steno(storage={"url": sqlite_url}) for _ in range(processes))
    url, body, earlier = (others or [proxy])[0].url, chat(long_history(), conversation_id="one"), list[Any]()
    acquire = proxy.services.store.take_lease

    async def acquire_late(*arguments: Any) -> Any:
        if not earlier:
            earlier.append(None)
            earlier.append(await asyncio.to_thread(post, url, body))
        return await acquire(*arguments)

    monkeypatch.setattr(proxy.services.store, "take_lease", acquire_late)
    with capture_logs() as logged:
        told = context(post(proxy.url, body))
    assert (told["status"], told["reason"]) == ("summarized", None)
    assert told["chunks"] == context(earlier[1])["chunks"]
    assert len(simulator.summaries) == 1
    assert [line["event"] for line in logged if line["log_level"] != "info"] == []


def test_what_is_made_for_a_conversation_that_is_deleted_is_neither_stored_nor_made_again(
    steno: StartSteno, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.2)
    simulator.summary_default = Fault(delay=30.0)
    proxy = steno()
    context(post(proxy.url, chat(turns(2), conversation_id="one")))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, proxy.url, chat(long_history(), conversation_id="one"))
        assert simulator.wait_for(lambda records: any(record.kind == "summary" for record in records))
        delete = request_bytes(None, method="DELETE", target="/context/conversations/one")
        assert send(proxy.url, delete).status == 200
        told = context(asked.result())
    assert (told["actions"], told["reason"]) == ([], "conversation_deleted")
    assert len(simulator.summaries) == 1
    look = request_bytes(None, method="GET", target="/context/conversations/one/summaries")
    assert send(proxy.url, look).status == 404


def test_what_was_read_of_a_conversation_is_not_used_once_another_process_deleted_it(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    """It hears of the deletion when it cannot store what it makes; then the database goes away."""
    proxy, other = (steno(storage={"url": sqlite_url}) for _ in range(2))
    context(post(proxy.url, chat(long_history(), conversation_id="one")))
    assert stored_summaries(proxy)
    held = HeldSummaries(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, proxy.url, chat(turns(40), conversation_id="one"))
        until(lambda: held.begun)
        delete = request_bytes(None, method="DELETE", target="/context/conversations/one")
        assert send(other.url, delete).status == 200
        held.let_go()
        assert context(asked.result())["reason"] == "conversation_deleted"
    take_away(proxy, monkeypatch)
    told = context(post(proxy.url, chat(long_history(), conversation_id="one")))
    assert (told["actions"], told["reason"]) == ([], "storage")


def test_a_lease_is_kept_although_every_other_beat_is_missed(
    steno: StartSteno, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)
    held, proxy, beats = HeldSummaries(monkeypatch), steno(), list[bool]()
    renew = proxy.services.store.renew_lease

    async def miss_every_other(held: Any) -> bool:
        beats.append(True)
        if len(beats) % 2:
            raise StoreUnavailable("busy")
        return await renew(held)

    monkeypatch.setattr(proxy.services.store, "renew_lease", miss_every_other)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, proxy.url, chat(long_history(), conversation_id="one"))
        until(lambda: len(beats) > 3)
        held.let_go()
        told = context(asked.result())
    assert (told["actions"], told["reason"]) == (["summarized", "user_words"], None)
    assert (len(simulator.summaries), len(stored_summaries(proxy))) == (1, 1)


def test_a_tenant_that_compacts_as_much_as_it_may_goes_on_without_and_others_do_not_notice(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitSettings, "compactions_per_tenant", 1)
    held, url = HeldSummaries(monkeypatch), steno().url
    other = b"content-type: application/json", b"authorization: Bearer sk-other"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, url, chat(turns(15), conversation_id="c-1"))
        until(lambda: held.begun)
        second = context(post(url, chat(turns(15, first=101), conversation_id="c-2")))
        assert (second["status"], second["reason"]) == ("full", "too_many_compactions")
        assert context(send(url, request_bytes(chat(turns(15)), *other, usual=False)))["status"] == "summarized"
        held.let_go()
        assert context(first.result())["status"] == "summarized"
    assert context(post(url, chat(turns(15, first=101), conversation_id="c-2")))["status"] == "summarized"
