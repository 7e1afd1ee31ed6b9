"""What a request gets while the database is away: what this process remembers, and a summary that is stored later."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.compaction import leased
from app.core.deciding import decide
from app.store import StatementRefused, StoreUnavailable
from lab.simulator import Fault, Simulator
from tests.e2e.histories import chat, long_history, turns, used
from tests.e2e.raw import Answer, post, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.store_calls import Call, intercept

TOO_LONG = turns(30)
"""About 12,600 tokens, in a window of 8,000."""


async def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("away")


def take_away(steno: Steno, monkeypatch: pytest.MonkeyPatch, *calls: str) -> None:
    """For longer than anybody waits for it."""
    monkeypatch.setattr(decide, "RECOVERIES", 0)
    for name in calls or ("pins_in", "chunks_in", "masks_in", "keep_mask", "acquire", "ended", "commit"):
        intercept(monkeypatch, steno.services.store, name, lambda _: away)


def fail_once(steno: Steno, monkeypatch: pytest.MonkeyPatch, name: str, failure: StoreUnavailable | None) -> None:
    """The call raises the failure, or returns None where there is none, and works from then on."""
    failed = list[bool]()

    def wrap(real: Call) -> Call:
        async def call(*given: Any) -> Any:
            if failed:
                return await real(*given)
            failed.append(True)
            if failure is not None:
                raise failure
            return None

        return call

    intercept(monkeypatch, steno.services.store, name, wrap)


def context(answered: Answer) -> Any:
    assert answered.status == 200, answered.body
    return json.loads(answered.body)["context"]


def stored_summaries(steno: Steno) -> list[Any]:
    answered = send(steno.url, request_bytes(None, method="GET", target="/context/conversations/one/summaries"))
    listed: list[Any] = json.loads(answered.body)["data"]
    return listed


def test_what_fits_goes_as_it_came(simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = steno()
    take_away(proxy, monkeypatch)
    told = context(post(proxy.url, chat(long_history())))
    assert (told["actions"], told["reason"]) == ([], "storage")
    assert simulator.chats[0].payload["messages"] == long_history()
    assert not simulator.summaries


def test_what_does_not_fit_gets_a_summary_that_is_stored_once_the_database_is_back(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()
    with monkeypatch.context() as gone:
        take_away(proxy, gone)
        told = context(post(proxy.url, chat(TOO_LONG, conversation_id="one")))
        assert (told["actions"], told["reason"]) == (["summarized"], "storage")
        calls = len(simulator.summaries)
        longer = [*TOO_LONG, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        assert context(post(proxy.url, chat(longer, conversation_id="one")))["actions"] == ["summarized"]
        assert len(simulator.summaries) == calls  # Remembered.
        first, second = (record.payload["messages"] for record in simulator.chats)
        assert second[: len(first)] == first
    told = context(post(proxy.url, chat(TOO_LONG, conversation_id="one")))
    assert (told["actions"], told["reason"]) == (["summarized"], None)
    assert len(simulator.summaries) == calls
    assert simulator.chats[2].payload["messages"] == first
    assert len(stored_summaries(proxy)) == calls


@pytest.mark.parametrize("seconds", [0.1, 0.4])
def test_a_database_that_is_back_soon_is_waited_for_and_its_summary_is_paid_once(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    proxy, ends = steno(), time.monotonic() + seconds

    def wrap(read: Call) -> Call:
        return lambda *given: away() if time.monotonic() < ends else read(*given)

    intercept(monkeypatch, proxy.services.store, "chunks_in", wrap)
    told = context(post(proxy.url, chat(TOO_LONG, conversation_id="one")))
    assert (told["actions"], told["reason"]) == (["summarized"], None)
    assert len(simulator.summaries) == len(stored_summaries(proxy))


def test_nobody_waits_for_a_database_that_has_been_away_for_long(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, asked = steno(), list[bool]()

    async def recovers() -> bool:
        asked.append(True)
        return False

    with monkeypatch.context() as gone:
        take_away(proxy, gone)
        gone.setattr(decide, "RECOVERIES", 3)
        gone.setattr(proxy.services.store, "recovers", recovers)
        assert context(post(proxy.url, chat(TOO_LONG)))["actions"] == ["summarized"]
    assert asked == [True]
    assert simulator.summaries


def test_a_database_that_reads_and_does_not_write_is_tried_three_times_at_most(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reads succeed all the time, so the breaker never opens."""
    proxy, tried = steno(), list[bool]()

    async def acquire(*_: Any) -> Any:
        tried.append(True)
        raise StoreUnavailable("read-only")

    monkeypatch.setattr(proxy.services.store.leases, "acquire", acquire)
    assert context(post(proxy.url, chat(TOO_LONG)))["actions"] == ["summarized"]
    assert len(tried) == 1 + decide.RECOVERIES


def test_nobody_waits_where_the_prompt_fits_or_the_database_refuses(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()

    async def refuses(*_: Any) -> Any:
        raise StatementRefused("read-only")

    async def recovers() -> bool:
        raise AssertionError("waited")

    monkeypatch.setattr(proxy.services.store, "recovers", recovers)
    with monkeypatch.context() as gone:
        take_away(proxy, gone)
        gone.setattr(decide, "RECOVERIES", 3)
        assert context(post(proxy.url, chat(long_history())))["actions"] == []
    monkeypatch.setattr(proxy.services.store.leases, "acquire", refuses)
    assert context(post(proxy.url, chat(TOO_LONG)))["actions"] == ["summarized"]


@pytest.mark.slow
def test_a_database_that_is_back_knows_better_than_what_was_remembered(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    """Another process deleted it meanwhile."""
    proxy, other = (steno(storage={"url": sqlite_url}) for _ in range(2))
    post(proxy.url, chat(TOO_LONG, conversation_id="one"))
    calls = len(simulator.summaries)
    assert len(stored_summaries(proxy)) == calls
    assert send(other.url, request_bytes(None, method="DELETE", target="/context/conversations/one")).status == 200
    fail_once(proxy, monkeypatch, "chunks_in", StoreUnavailable("away"))
    told = context(post(proxy.url, chat(turns(50), conversation_id="one")))
    assert (told["actions"], told["reason"]) == (["summarized"], None)
    assert min(summary["first_index"] for summary in stored_summaries(proxy)) == 0  # Made anew.


def test_what_another_process_made_as_well_meanwhile_takes_no_place_of_what_is_due(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    proxy, other = (steno(storage={"url": sqlite_url}) for _ in range(2))
    with monkeypatch.context() as gone:
        take_away(proxy, gone)
        post(proxy.url, chat(TOO_LONG, conversation_id="one"))
    simulator.summary_default = Fault(text="In other words, the clerk wrote down what was agreed on each order. " * 3)
    post(other.url, chat(TOO_LONG, conversation_id="one"))
    monkeypatch.setattr(decide, "ROUNDS", 1)
    calls = len(simulator.summaries)
    told = context(post(proxy.url, chat(turns(50), conversation_id="one")))
    assert (told["actions"], told["reason"]) == (["summarized"], None)
    assert len(simulator.summaries) > calls


def test_a_summary_is_not_lost_with_the_lease_under_which_it_was_to_be_stored_late(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()
    with monkeypatch.context() as gone:
        take_away(proxy, gone)
        post(proxy.url, chat(TOO_LONG, conversation_id="one"))
    calls = len(simulator.summaries)
    fail_once(proxy, monkeypatch, "commit", None)
    assert context(post(proxy.url, chat(TOO_LONG, conversation_id="one")))["reason"] is None
    assert len(simulator.summaries) == calls == len(stored_summaries(proxy))


def test_a_summary_is_not_lost_with_the_lease_that_could_not_be_renewed(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit was under way when the second heartbeat was missed."""
    monkeypatch.setattr(leased, "HEARTBEAT_SECONDS", 0.2)
    proxy = steno()
    commit, tried = proxy.services.store.leases.commit, list[bool]()

    async def hang_once(*given: Any) -> Any:
        tried.append(True)
        await asyncio.sleep(5.0 if len(tried) == 1 else 0.0)
        return await commit(*given)

    monkeypatch.setattr(proxy.services.store.leases, "commit", hang_once)
    monkeypatch.setattr(proxy.services.store.leases, "renew", away)
    told = context(post(proxy.url, chat(long_history(), conversation_id="one")))
    assert (told["actions"], told["reason"]) == (["summarized"], None)
    assert len(simulator.summaries) == 1 == len(stored_summaries(proxy))


def test_what_still_cannot_be_stored_is_not_forgotten(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()
    with monkeypatch.context() as gone:
        take_away(proxy, gone)
        post(proxy.url, chat(TOO_LONG, conversation_id="one"))
    calls = len(simulator.summaries)
    with monkeypatch.context() as gone:
        take_away(proxy, gone, "commit")
        assert context(post(proxy.url, chat(TOO_LONG, conversation_id="one")))["reason"] == "storage"
    assert context(post(proxy.url, chat(TOO_LONG, conversation_id="one")))["reason"] is None
    assert len(simulator.summaries) == calls


def test_summaries_that_were_read_before_are_used(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()
    context(post(proxy.url, chat(long_history())))
    take_away(proxy, monkeypatch)
    told = context(post(proxy.url, chat(long_history())))
    assert (told["actions"], told["reason"]) == (["summarized"], "storage")
    assert len(simulator.summaries) == 1
    first, second = simulator.chats
    assert first.payload == second.payload


def test_a_summary_that_is_paid_for_and_cannot_be_stored_is_used(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()
    take_away(proxy, monkeypatch, "commit")
    told = context(post(proxy.url, chat(long_history())))
    assert (told["actions"], told["reason"]) == (["summarized"], "storage")
    assert len(simulator.summaries) == 1


def test_another_tenant_gets_nothing_of_what_is_remembered(steno: StartSteno, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = steno()
    context(post(proxy.url, chat(long_history())))
    take_away(proxy, monkeypatch)
    told = context(post(proxy.url, chat(long_history()), b"authorization: Bearer sk-other"))
    assert told["actions"] == []


def test_what_was_deleted_is_not_remembered(steno: StartSteno, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = steno()
    context(post(proxy.url, chat(long_history(), conversation_id="one")))
    target = "/context/conversations/one"
    assert send(proxy.url, request_bytes(None, method="DELETE", target=target)).status == 200
    take_away(proxy, monkeypatch)
    assert context(post(proxy.url, chat(long_history(), conversation_id="one")))["actions"] == []


def test_masks_are_made_without_it_too(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty-five reports of about 400 tokens each: shortening single ones would not do."""
    talk: list[Any] = []
    for number in range(25):
        talk += [
            {"role": "user", "content": f"Read report {number}."},
            *used(f"c{number}", f"{number} " + "row " * 400),
            {"role": "assistant", "content": "Fine."},
        ]
    proxy = steno()
    take_away(proxy, monkeypatch)
    told = context(post(proxy.url, chat([*talk, {"role": "user", "content": "And?"}])))
    assert (told["actions"], told["reason"]) == (["masked"], "storage")
    assert not simulator.summaries


@pytest.mark.slow
def test_what_was_made_without_it_does_not_count_against_the_conversation(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as compactions in vain, nor as too many: those without the database have no say once it is back."""
    proxy = steno()
    with monkeypatch.context() as gone:
        take_away(proxy, gone)
        for first in (1, 2, 3, 4):
            told = context(post(proxy.url, chat(turns(30, first=first), conversation_id="one")))
            assert told["actions"] == ["summarized"]
    told = context(post(proxy.url, chat(turns(30, first=5), conversation_id="one")))
    assert (told["actions"], told["reason"]) == (["summarized"], None)


def test_a_summary_is_remembered_although_its_client_left(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.summary_default = Fault(delay=0.5)
    proxy = steno()
    take_away(proxy, monkeypatch)
    body = request_bytes(chat(TOO_LONG, conversation_id="one"))
    with socket.create_connection(("127.0.0.1", proxy.server.port)) as client:
        client.sendall(body)
        assert simulator.wait_for(lambda records: any(record.kind == "summary" for record in records))
    assert simulator.wait_for(lambda records: all(r.finished_at for r in records if r.kind == "summary"))
    time.sleep(0.5)  # The rest of the parts.
    assert simulator.wait_for(lambda records: all(r.finished_at for r in records if r.kind == "summary"))
    calls = len(simulator.summaries)
    assert context(post(proxy.url, chat(TOO_LONG, conversation_id="one")))["actions"] == ["summarized"]
    assert len(simulator.summaries) == calls


def test_nobody_waits_for_a_summary_of_another_history_while_the_database_is_away(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every history begins at the same place."""
    proxy = steno()
    take_away(proxy, monkeypatch)
    simulator.when(lambda record: record.kind == "summary" and "ORD-0001" in str(record.messages), delay=3.0)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(post, proxy.url, chat(TOO_LONG))
        assert simulator.wait_for(lambda records: any(record.kind == "summary" for record in records))
        told = context(post(proxy.url, chat(turns(30, first=101))))
        assert not slow.done()
        assert told["actions"] == ["summarized"]
        assert context(slow.result())["actions"] == ["summarized"]


def test_a_summary_that_failed_while_the_database_is_away_is_tried_again(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()
    take_away(proxy, monkeypatch)
    simulator.summary_default = Fault(status=400)
    told = context(post(proxy.url, chat(TOO_LONG)))
    assert (told["actions"], told["reason"]) == (["pruned", "stub"], "storage, summariser_status_400")
    simulator.summary_default = Fault()
    told = context(post(proxy.url, chat(TOO_LONG)))
    assert (told["actions"], told["reason"]) == (["summarized"], "storage")


def test_a_summary_that_keeps_failing_while_the_database_is_away_is_left_alone_for_a_while(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()
    take_away(proxy, monkeypatch)
    simulator.summary_default = Fault(status=400)
    told = [context(post(proxy.url, chat(TOO_LONG)))["reason"] for _ in range(2)]
    calls = len(simulator.summaries)
    told.append(context(post(proxy.url, chat(TOO_LONG)))["reason"])
    once = "storage, summariser_status_400"
    assert told == [once, once, f"{once}, summary_failed_lately"]
    assert len(simulator.summaries) == calls
