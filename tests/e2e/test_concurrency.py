"""Many requests of one conversation at once: one summary, paid for once, whichever process they reach."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.simulator import Simulator
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider
from tests.e2e.test_scenarios import LONG, RULES

REQUESTS = 24


@pytest.mark.parametrize("database", ["sqlite_url", "postgres_url"])
def test_one_summary_for_many_requests_over_two_processes(
    steno: StartSteno, simulator: Simulator, database: str, request: pytest.FixtureRequest
) -> None:
    """All the others wait for the result and send the same payload."""
    storage = {"url": request.getfixturevalue(database), "timeout_seconds": 5.0}
    replicas = [steno(storage=storage).sdk() for _ in range(2)]
    simulator.summary_default = type(simulator.summary_default)(delay=0.5)
    messages: Any = [RULES, *LONG, {"role": "user", "content": "Which one was that?"}]

    def ask(number: int) -> Any:
        return replicas[number % 2].chat.completions.create(model="gpt-4o", messages=messages)

    with ThreadPoolExecutor(REQUESTS) as pool:
        answers = list(pool.map(ask, range(REQUESTS)))
    assert {answer.context_status for answer in answers} == {"summarized"}
    assert len(simulator.summaries) == 1
    assert len({record.body for record in simulator.chats}) == 1
    assert len(simulator.chats) == REQUESTS


def test_a_stream_that_waits_for_somebody_elses_summary_is_told_so(steno: StartSteno, simulator: Simulator) -> None:
    simulator.summary_default = type(simulator.summary_default)(delay=0.7)
    client = steno().sdk()
    messages: Any = [RULES, *LONG, {"role": "user", "content": "Which one was that?"}]

    def events(_: int) -> list[str]:
        chunks: Any = client.chat.completions.create(model="gpt-4o", messages=messages, stream=True)
        return [chunk.compaction["type"] for chunk in chunks if hasattr(chunk, "compaction")]

    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(events, range(3)))
    assert told == [["compaction_started", "compaction_completed"]] * 3
    assert len(simulator.summaries) == 1


def test_a_summary_that_only_drips_is_given_up_in_time(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """The timeout is for the whole call: bytes that keep coming do not prolong it."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    scripted.then(head, *[step for _ in range(100) for step in (b" ", 0.1)])
    proxy = before_scripted(summary={"timeout_seconds": 1.0})
    messages: Any = [RULES, *LONG, {"role": "user", "content": "Which one was that?"}]
    raw = proxy.sdk().chat.completions.with_raw_response.create(model="gpt-4o", messages=messages)
    assert raw.headers["x-context-reason"] == "summariser_upstream_timeout"
    assert len(scripted.requests) == 2
