"""Many requests of one conversation at once: one summary, paid for once, whichever process they reach."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e.crowds import replicas as processes
from tests.e2e.crowds import send_crowd
from tests.e2e.running import StartSteno, Steno
from tests.e2e.test_scenarios import LONG, RULES

MESSAGES: Any = [RULES, *LONG, {"role": "user", "content": "Which one was that?"}]


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


def test_a_crowd_over_four_processes_pays_for_one_summary(
    simulator: Simulator, provider: RunningServer, tmp_path: Path, postgres_url: str
) -> None:
    """Nobody makes a second one."""
    # A generous bound for the database: how busy the machine is is not what this is about.
    with processes(4, postgres_url, provider.url, tmp_path, STENO_STORAGE__TIMEOUT_SECONDS="10") as servings:
        seen = send_crowd(simulator, servings, 200, summary_seconds=4.0)
    assert seen.statuses == {"summarized": 200}
    assert seen.summaries == 1
    assert len({record.body for record in simulator.chats}) == 1
