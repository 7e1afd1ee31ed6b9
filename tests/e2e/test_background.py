"""Background compaction: the summary is made after an answer, and nobody waits for it who fits well without."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.compaction.summariser_client import Summariser
from lab.simulator import Simulator
from tests.e2e.commands import until
from tests.e2e.histories import chat, turns
from tests.e2e.raw import connected, get, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.test_without_database import context

# A window of 8,000 has a limit of 7,600: the soft threshold is at 4,180 tokens, the trigger at 5,320; over 7,372 wait.
BELOW, SOFT, FIRING, WAITING = 9, 10, 13, 18
"""So many turns of about 430 tokens are below the soft threshold, over it, over the trigger, too large to go on."""


class HeldSummaries:
    """The first summary call is made, but not before it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self._go, real = threading.Event(), Summariser.ask

        async def ask(summariser: Summariser, *given: Any) -> Any:
            self.begun += 1
            if self.begun == 1:
                await asyncio.to_thread(self._go.wait, 60)
            return await real(summariser, *given)

        monkeypatch.setattr(Summariser, "ask", ask)

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldSummaries]:
    summaries = HeldSummaries(monkeypatch)
    yield summaries
    summaries.let_go()


def ask(proxy: Steno, number: int, *headers: bytes, name: str = "one", first: int = 1, **members: Any) -> Any:
    """The context of the answer to a history of so many turns."""
    body = chat(turns(number, first=first), conversation_id=name, **members)
    lines = request_bytes(body, *(headers or (b"authorization: Bearer sk-test",)), usual=False)
    return context(send(proxy.url, lines))


def grow(proxy: Steno, last: int = SOFT, *headers: bytes, name: str = "one", first: int = 1) -> None:
    """A conversation that comes back: up to the soft threshold."""
    for number in range(last - 3, last + 1):
        told = ask(proxy, number, *headers, name=name, first=first)
        assert (told["status"], told["reason"]) == ("full", None)


def summaries_of(proxy: Steno, name: str = "one") -> list[Any]:
    found: list[Any] = get(proxy.url, f"/context/conversations/{name}/summaries").json.get("data", [])
    return found


def calls_of(proxy: Steno, purpose: str) -> list[Any]:
    """The conversation's calls to the provider that are in the ledger, of this purpose."""
    told = get(proxy.url, "/context/conversations/one/usage?limit=100").json["data"]
    return [record for record in told if record["purpose"] == purpose]


def settled(proxy: Steno) -> bool:
    return not proxy.services.background._room.taken


def events(proxy: Steno, number: int) -> Iterator[str]:
    chunks: Any = proxy.sdk().chat.completions.create(
        model="gpt-4o", messages=turns(number), stream=True, extra_body={"conversation_id": "one"}
    )
    yield from (chunk.compaction["type"] for chunk in chunks if hasattr(chunk, "compaction"))


def test_the_turn_that_fires_the_trigger_finds_its_summary(steno: StartSteno, simulator: Simulator) -> None:
    proxy = steno()
    grow(proxy)
    until(lambda: summaries_of(proxy))
    for number in (SOFT + 1, SOFT + 2):  # What is there waits until it is needed.
        assert ask(proxy, number)["status"] == "full"
        assert simulator.chats[-1].payload["messages"] == turns(number)
    assert len(simulator.summaries) == 1
    assert [*events(proxy, FIRING)] == []
    told = ask(proxy, FIRING)
    assert (told["status"], told["reason"], len(told["chunks"])) == ("summarized", None, 1)
    assert len(simulator.summaries) == 1
    (call,) = calls_of(proxy, "background")
    served = next(each for each in calls_of(proxy, "message") if each["request_id"] == call["request_id"])
    assert (served["turn"], call["turn"], call["tokens"]["saved"]) == (SOFT + 1, SOFT + 1, 0)
    assert not calls_of(proxy, "summary")


def test_turns_that_come_while_it_is_made_do_not_wait(
    steno: StartSteno, simulator: Simulator, held: HeldSummaries
) -> None:
    proxy = steno()
    grow(proxy)
    until(lambda: held.begun == 1)
    for number in range(FIRING, WAITING):
        told = ask(proxy, number)
        assert (told["status"], told["actions"], told["reason"]) == ("full", [], "summary_in_background")
        assert simulator.chats[-1].payload["messages"] == turns(number)
    assert [*events(proxy, WAITING - 1)] == []
    held.let_go()
    until(lambda: summaries_of(proxy))
    assert ask(proxy, WAITING - 1)["status"] == "summarized"
    assert (held.begun, len(simulator.summaries)) == (1, 1)


def test_a_turn_that_does_not_fit_well_waits_for_the_summary_that_is_being_made(
    steno: StartSteno, simulator: Simulator, held: HeldSummaries
) -> None:
    proxy = steno()
    grow(proxy)
    until(lambda: held.begun == 1)
    told = events(proxy, WAITING)
    assert next(told) == "compaction_started"
    held.let_go()
    assert [*told] == ["compaction_completed"]
    assert len(simulator.summaries) == 1


def test_a_client_that_leaves_ends_no_background_compaction(
    steno: StartSteno, simulator: Simulator, held: HeldSummaries
) -> None:
    """Nor does it need to take its whole answer for one to begin."""
    proxy = steno()
    grow(proxy, SOFT - 1)
    simulator.next_chat(chunk_delay=0.2)
    with connected(proxy.url) as client:
        client.sendall(request_bytes(chat(turns(SOFT), conversation_id="one", stream=True)))
        assert client.recv(100)
    until(lambda: held.begun == 1)
    held.let_go()
    until(lambda: summaries_of(proxy))


def test_a_stop_begins_nothing_and_finishes_what_was_begun(
    steno: StartSteno, simulator: Simulator, held: HeldSummaries, sqlite_url: str
) -> None:
    proxy = steno(storage={"url": sqlite_url}, server={"drain_seconds": 10})
    grow(proxy)
    until(lambda: held.begun == 1)
    proxy.services.tasks.stop()
    grow(proxy, name="two", first=101)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(proxy.stop)
        held.let_go()
        stopping.result(60)
    assert len(simulator.summaries) == 1
    again = steno(storage={"url": sqlite_url})
    assert (len(summaries_of(again)), summaries_of(again, "two")) == (1, [])
    assert ask(again, FIRING)["status"] == "summarized"


def test_of_two_processes_one_makes_it_and_neither_waits(
    steno: StartSteno, simulator: Simulator, held: HeldSummaries, shared_url: str
) -> None:
    storage = {"url": shared_url, "timeout_seconds": 5.0}
    replicas = [steno(storage=storage) for _ in range(2)]
    for replica in replicas:
        grow(replica)
    until(lambda: held.begun == 1 and any(map(settled, replicas)))
    assert [ask(replica, FIRING)["reason"] for replica in replicas] == ["summary_in_background"] * 2
    until(lambda: any(map(settled, replicas)))
    held.let_go()
    until(lambda: all(map(settled, replicas)) and summaries_of(replicas[0]))
    assert [ask(replica, FIRING)["status"] for replica in replicas] == ["summarized"] * 2
    assert (held.begun, len(simulator.summaries)) == (1, 1)
