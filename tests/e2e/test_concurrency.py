"""Many requests of one conversation at once: one summary, paid for once, whichever process they reach."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e.commands import until
from tests.e2e.crowds import replicas as processes
from tests.e2e.crowds import send_crowd
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider
from tests.e2e.test_scenarios import LONG, RULES

MESSAGES: Any = [RULES, *LONG, {"role": "user", "content": "Which one was that?"}]


def test_a_stream_that_waits_for_somebody_elses_summary_is_told_so(steno: StartSteno, simulator: Simulator) -> None:
    simulator.summary_default = type(simulator.summary_default)(delay=0.7)
    client = steno().sdk()

    def events(_: int) -> list[str]:
        chunks: Any = client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)
        return [chunk.compaction["type"] for chunk in chunks if hasattr(chunk, "compaction")]

    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(events, range(3)))
    assert told == [["compaction_started", "compaction_completed"]] * 3
    assert len(simulator.summaries) == 1


@pytest.mark.slow
def test_a_stream_that_waits_for_somebody_elses_summary_is_kept_alive(
    steno: StartSteno, simulator: Simulator, sqlite_url: str
) -> None:
    """Whichever process makes it."""
    simulator.summary_default = type(simulator.summary_default)(delay=4.5)
    replicas = [steno(storage={"url": sqlite_url}) for _ in range(2)]

    def beats(replica: Steno) -> int:
        client = replica.sdk(timeout=3.0)  # Between two pieces: shorter than the summary takes.
        chunks: Any = client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)
        return sum(not hasattr(chunk, "compaction") and chunk.choices[0].delta.to_dict() == {} for chunk in chunks)

    with ThreadPoolExecutor(4) as pool:
        counted = list(pool.map(beats, replicas * 2))
    assert min(counted) >= 3  # Two of ours, and the one that finishes.
    assert len(simulator.summaries) == 1


def test_nobody_waits_for_somebody_elses_summary_beyond_the_limit(
    steno: StartSteno, simulator: Simulator, sqlite_url: str
) -> None:
    """They go on without it, the one that asked for it too; it is made to its end, and the next request has it."""
    simulator.next_summary(delay=3.0)
    replicas = [steno(storage={"url": sqlite_url}, compaction={"wait_seconds": 0.5}) for _ in range(2)]

    def reason(replica: Steno) -> Any:
        raw = replica.sdk().chat.completions.with_raw_response.create(model="gpt-4o", messages=MESSAGES)
        return raw.headers["x-context-reason"]

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(reason, replicas * 3)) == {"summary_takes_too_long"}
    assert [summary.finished_at for summary in simulator.summaries] == [None], "they were told before it was made"
    assert simulator.wait_for(lambda _: simulator.summaries[0].finished_at is not None)
    until(lambda: not any(replica.services.tasks._tasks for replica in replicas))
    for replica in replicas:
        answer: Any = replica.sdk().chat.completions.create(model="gpt-4o", messages=MESSAGES)
        assert answer.context_status == "summarized"
    assert len(simulator.summaries) == 1


def test_a_summary_that_only_drips_is_given_up_in_time(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """The timeout is for the whole call: bytes that keep coming do not prolong it."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    scripted.then(head, *[step for _ in range(100) for step in (b" ", 0.1)])
    proxy = before_scripted(summary={"timeout_seconds": 1.0})
    raw = proxy.sdk().chat.completions.with_raw_response.create(model="gpt-4o", messages=MESSAGES)
    assert raw.headers["x-context-reason"] == "summariser_upstream_timeout"
    assert len(scripted.requests) == 2


@pytest.mark.sampled(0.5)
@pytest.mark.parametrize("database", ["sqlite_url", "postgres_url"])
def test_a_crowd_over_four_processes_pays_for_one_summary(
    simulator: Simulator, provider: RunningServer, tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    """Nobody makes a second one."""
    url = request.getfixturevalue(database)
    # A generous bound for the database: how busy the machine is is not what this is about.
    with processes(4, url, provider.url, tmp_path, STENO_STORAGE__TIMEOUT_SECONDS="10") as servings:
        seen = send_crowd(simulator, servings, 200, summary_seconds=4.0)
    assert seen.statuses == {"summarized": 200}
    assert seen.summaries == 1
    assert len({record.body for record in simulator.chats}) == 1
