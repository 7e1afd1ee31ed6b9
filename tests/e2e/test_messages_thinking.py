"""Thinking that is bound to its prefix: whatever is done to a conversation, its provider refuses nothing of it.

What one request shows is tested on every change, histories before a release; `make thinking` plays a thousand, and
fifty each of what is harder.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise
from random import Random
from typing import Any

import httpx2
import pytest

from lab.simulator import Simulator
from lab.simulator.messages.thoughts import misplaced
from tests.e2e.conftest import TABLES
from tests.e2e.raw import Answer, get, request_bytes, send
from tests.e2e.running import NOTHING_RECALLED, WINDOW, StartSteno, forget_environment, start
from tests.e2e.thinkers import BETAS, Thinker, kept, payloads_by_thinker, script_calls, turn
from tests.faults.proxy import Fault, FaultProxy

HISTORIES = int(os.environ.get("HISTORIES", "0"))
TURNS, COMPACTIONS = 30, 3
SIDE_BY_SIDE = 6
WIDE = 200_000
THINKING = {"type": "enabled", "budget_tokens": 1_024}
STEADY = HISTORIES or 2
HARDER = HISTORIES // 20 or 4
BATCH = 50
FEW_TURNS = 5
BUSY_TURNS = TURNS if HISTORIES else FEW_TURNS
READINGS = ["claude-bind", "claude-bind-sent"]
"""Bound to the prompt as the model read it, and as it was sent with what was dropped: nobody has said which."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if HISTORIES else 120)]


@pytest.fixture
def simulator() -> Simulator:
    simulator = Simulator(window=WINDOW, models="any", tables=TABLES)
    script_calls(simulator)
    return simulator


async def play(thinkers: Sequence[Thinker], urls: Sequence[str], most: int, faults: FaultProxy | None = None) -> None:
    """All of them, some side by side, each to its end: so many turns, and the compactions or `most` turns."""
    places, addresses = asyncio.Semaphore(SIDE_BY_SIDE), cycle(urls)
    async with httpx2.AsyncClient(timeout=60.0) as client:

        async def talk(thinker: Thinker) -> None:
            async with places:
                for number in range(most):
                    if thinker.refusals or (number >= TURNS and thinker.compactions >= COMPACTIONS):
                        return
                    if faults is not None and number % 10 == 5:
                        faults.inject(Fault("refuse"))
                    if faults is not None and number % 10 == 7:
                        faults.heal()
                    await turn(client, thinker, addresses)

        await asyncio.gather(*map(talk, thinkers))


def made(number: int, **traits: Any) -> list[Thinker]:
    return [Thinker(n, Random(n), streams=n % 2 == 1, adaptive=n % 3 == 0, **traits) for n in range(1, number + 1)]


@pytest.mark.slow
def test_no_thought_is_refused_and_a_prompt_only_grows_until_the_next_compaction(
    simulator: Simulator, steno: StartSteno
) -> None:
    url, shares = steno(compaction=NOTHING_RECALLED).url, list[float]()
    for batch in batched(made(STEADY)):
        asyncio.run(play(batch, [url], 2 * TURNS))
        assert refusals(simulator) == []
        assert min(thinker.compactions for thinker in batch) >= COMPACTIONS
        sent = payloads_by_thinker(simulator.log)
        simulator.clear_log()
        for thinker in batch:
            for number, (earlier, later) in enumerate(pairwise(sent[f"You are {thinker.name}"])):
                shares.append(kept(earlier, later))
                assert shares[-1] == 1 or thinker.changed(number), (thinker.number, number, shares[-1])
    assert sum(shares) / len(shares) > 0.9


def refusals(simulator: Simulator) -> list[int]:
    """Those that Steno goes round by itself, too: none of these is due to anything that it cannot know."""
    return [record.sequence for record in simulator.log if record.status != 200]


def batched(thinkers: Sequence[Thinker]) -> Iterator[Sequence[Thinker]]:
    """Not all at once: their payloads are kept until they were looked at."""
    return (thinkers[start : start + BATCH] for start in range(0, len(thinkers), BATCH))


@pytest.mark.release
def test_no_thought_is_refused_to_a_client_that_goes_back_or_switches_thinking_and_compaction_off(
    simulator: Simulator, steno: StartSteno
) -> None:
    """In a window that the whole history fits, so that nothing else is refused where nothing is compacted."""
    simulator.window = WIDE
    thinkers = made(HARDER, capricious=True)
    asyncio.run(play(thinkers, [steno().url], TURNS))
    assert refusals(simulator) == []
    assert sum(thinker.compactions for thinker in thinkers) >= len(thinkers)


@pytest.mark.release
@pytest.mark.parametrize("model", READINGS)
@pytest.mark.parametrize("capricious", [False, True], ids=["steady", "capricious"])
def test_no_thought_is_refused_after_compactions_in_mid_turn_whichever_prompt_it_is_bound_to(
    simulator: Simulator, steno: StartSteno, model: str, capricious: bool
) -> None:
    """Also in the turns that follow, and where it was made behind thoughts that the provider dropped."""
    simulator.window = WIDE
    thinkers = made(HARDER // 2, busy=True, model=model, capricious=capricious)
    asyncio.run(play(thinkers, [steno().url], BUSY_TURNS))
    assert refusals(simulator) == []
    assert any("thinking_dropped" in acts for thinker in thinkers for acts in thinker.acts)
    assert sum(thinker.compactions for thinker in thinkers) >= len(thinkers)


@pytest.mark.release
@pytest.mark.parametrize("capricious", [False, True], ids=["steady", "capricious"])
def test_processes_that_serve_a_conversation_in_turns_know_what_the_others_sent(
    simulator: Simulator, steno: StartSteno, postgres_url: str, capricious: bool
) -> None:
    simulator.window = WIDE
    thinkers = made(HARDER, capricious=capricious)
    urls = [steno(storage={"url": postgres_url}).url for _ in range(2)]
    asyncio.run(play(thinkers, urls, TURNS))
    assert refusals(simulator) == []
    assert sum(thinker.compactions for thinker in thinkers) >= len(thinkers)


def ask(url: str, body: dict[str, Any], *headers: bytes, target: str = "/v1/messages", betas: str = BETAS) -> Answer:
    usual = b"content-type: application/json", b"x-api-key: sk-test", b"anthropic-beta: " + betas.encode(), *headers
    return send(url, request_bytes(json.dumps(body).encode(), *usual, target=target, usual=False), timeout=30.0)


@pytest.mark.slow
def test_what_would_be_forwarded_is_counted_without_thoughts_that_would_be_refused(
    simulator: Simulator, steno: StartSteno
) -> None:
    [thinker] = made(1)
    running = steno()
    asyncio.run(play([thinker], [running.url], TURNS))
    assert thinker.compactions
    thinker.ask()
    counted = {name: value for name, value in thinker.body().items() if name not in ("max_tokens", "stream")}
    told = ask(running.url, counted, b"x-context-count: forwarded", target="/v1/messages/count_tokens")
    assert told.status == 200, told.body
    [sent] = [record.payload for record in simulator.others]
    assert sent["messages"] != counted["messages"]
    assert not list(misplaced(sent))


def test_an_open_turn_keeps_its_thoughts_and_the_provider_leaves_out_what_does_not_fit(
    simulator: Simulator, steno: StartSteno
) -> None:
    """The turn's first thoughts were thought behind everything, and then a summary came: in a turn of many calls."""
    running, body = steno(), made(1)[0].body()
    results = "the parcel was sent and came back " * 60
    messages: list[Any] = [{"role": "user", "content": "Find them all. CALL1"}]
    seen: set[str] = set()
    for number in range(20):
        answered = ask(running.url, {**body, "thinking": THINKING, "stream": False, "messages": messages})
        assert answered.status == 200, answered.body
        answer = answered.json
        seen |= set(answer["context"]["actions"])
        call = next(block for block in answer["content"] if block["type"] == "tool_use")
        messages.append({"role": "assistant", "content": answer["content"]})
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"{number}. {results} CALL1"}
        messages.append({"role": "user", "content": [result]})
    counted = {name: value for name, value in body.items() if name not in ("max_tokens", "stream")}
    counted |= {"messages": messages, "thinking": THINKING}
    told = ask(running.url, counted, b"x-context-count: forwarded", target="/v1/messages/count_tokens")
    assert told.status == 200, told.body
    assert seen >= {"summarized", "thinking_dropped"}
    asked = [record for record in simulator.chats if "block_binding" in (record.payload["thinking"])]
    assert asked
    assert all("thinking-binding-controls-2026-08-01" in (record.header("anthropic-beta") or "") for record in asked)
    assert all(BETAS in (record.header("anthropic-beta") or "") for record in simulator.chats)


@pytest.fixture(scope="module")
def compacted_body() -> dict[str, Any]:
    """The next request of a conversation that a Steno compacted."""
    [thinker] = made(1)
    elsewhere = Simulator(window=WIDE, models="any", tables=TABLES)
    script_calls(elsewhere)
    with pytest.MonkeyPatch.context() as patch, elsewhere.serve() as provider:
        forget_environment(patch)
        steno = start(provider.url, {})
        asyncio.run(play([thinker], [steno.url], TURNS))
        steno.stop()
    assert thinker.compactions
    thinker.ask()
    return {**thinker.body(), "stream": False}


@pytest.fixture
def unknowing(simulator: Simulator, steno: StartSteno) -> str:
    """A Steno that knows nothing of it."""
    simulator.window = WIDE
    return steno(models=[{"match": "*", "context_window": WIDE}]).url


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_thoughts_of_which_nothing_is_known_any_more_are_dropped_once_they_were_refused(
    simulator: Simulator, unknowing: str, compacted_body: dict[str, Any], stream: bool
) -> None:
    """The database was lost, or the conversation deleted: the client need not notice."""
    answered = ask(unknowing, {**compacted_body, "stream": stream})
    assert answered.status == 200, answered.body
    assert answered.header("x-context-actions") == "thinking_dropped"
    refused, taken = (record.payload for record in simulator.chats)
    assert [record.status for record in simulator.chats] == [400, 200]
    assert taken["messages"] == refused["messages"] == compacted_body["messages"]
    assert taken["thinking"] == {**THINKING, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


@pytest.mark.parametrize(("skew", "samples"), [(1.0, 0), (3.0, 1)])
def test_what_thoughts_cost_that_the_provider_may_have_left_out_is_learnt_from_only_where_it_is_more_than_expected(
    simulator: Simulator, unknowing: str, compacted_body: dict[str, Any], skew: float, samples: int
) -> None:
    simulator.skew = skew
    answered = ask(unknowing, compacted_body)
    assert answered.header("x-context-actions") == "thinking_dropped", answered.body
    assert len(json.loads(get(unknowing, "/context/calibration", b"x-api-key: sk-test").body)["data"]) == samples


@pytest.mark.sampled(0.3)
@pytest.mark.parametrize("model", READINGS)
def test_what_was_refused_once_is_asked_to_be_dropped_at_once_until_the_next_compaction(
    simulator: Simulator, steno: StartSteno, postgres_url: str, model: str
) -> None:
    """By every process, in this turn and in those that follow; and it leaves no warning."""
    simulator.window = WIDE
    thinker = Thinker(1, Random(1), model=model, busy=True)
    asyncio.run(play([thinker], [steno().url], FEW_TURNS))
    assert thinker.compactions
    wide = {"models": [{"match": "*", "context_window": WIDE}], "storage": {"url": postgres_url}}
    both = [steno(**wide), steno(**wide)]
    simulator.clear_log()
    asyncio.run(play([thinker], [running.url for running in both], 4))
    assert [record.status for record in simulator.chats[:2]] == [400, 200]
    assert {record.status for record in simulator.chats[1:]} == {200}
    assert all("block_binding" in record.payload["thinking"] for record in simulator.chats[1:])
    assert thinker.refusals == []


def test_thoughts_that_were_refused_are_left_out_where_the_model_is_not_to_think(
    simulator: Simulator, unknowing: str, compacted_body: dict[str, Any]
) -> None:
    answered = ask(unknowing, {**compacted_body, "thinking": {"type": "disabled"}})
    assert answered.status == 200, answered.body
    assert answered.header("x-context-actions") == "thinking_removed"
    sent = simulator.chats[-1].payload
    assert sent["thinking"] == {"type": "disabled"}
    assert b'"type":"thinking"' not in simulator.chats[-1].body


def test_a_refusal_that_was_gone_round_is_no_warning(
    unknowing: str, compacted_body: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert ask(unknowing, compacted_body).status == 200
    logged = "".join(capfd.readouterr())
    assert "the provider is asked to drop thoughts that it refused" in logged
    assert "provider refused" not in logged


@pytest.mark.slow
def test_a_client_that_wants_to_be_told_of_thoughts_that_do_not_fit_is_told(
    unknowing: str, compacted_body: dict[str, Any]
) -> None:
    thinking = {**THINKING, "block_binding": {"prefix_mismatch_behavior": "error"}}
    answered = ask(
        unknowing, {**compacted_body, "thinking": thinking}, betas=f"{BETAS},thinking-binding-controls-2026-08-01"
    )
    assert (answered.status, answered.json["error"]["type"]) == (400, "invalid_request_error")
    assert "bound to a different conversation" in answered.json["error"]["message"]


@pytest.mark.release
# Connections that the fault cut in mid-handshake are closed by the collector, at any time.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "processes", [1, pytest.param(2, marks=pytest.mark.skipif(not HISTORIES, reason="make thinking"))]
)
def test_no_client_is_refused_its_thoughts_while_the_database_comes_and_goes(
    simulator: Simulator, steno: StartSteno, gate: FaultProxy, processes: int
) -> None:
    """What one process could not tell another is refused, and goes without thoughts the second time."""
    simulator.window = WIDE
    thinkers = made(HARDER)
    urls = [steno(storage={"url": gate.url, "timeout_seconds": 0.25}).url for _ in range(processes)]
    asyncio.run(play(thinkers, urls, TURNS, gate))
    assert [thinker.refusals for thinker in thinkers if thinker.refusals] == []
