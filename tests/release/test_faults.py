"""Faults of the networks around Steno, one by one and at random: no hang, no 500, nothing leaked.

`make faults` plays every cell and injects as many random faults as FAULTS says, those of FAULTS_SEED.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from app.compaction.breakers import ModelBreaker
from app.http.loopback import RunningServer
from lab.simulator import Simulator
from lab.simulator.log import Kind
from tests.e2e import running
from tests.e2e.commands import until
from tests.e2e.histories import HELLO
from tests.e2e.raw import Answer
from tests.faults.proxy import NAMES, Fault, Name, Way
from tests.faults.scene import (
    DATABASE_SECONDS,
    PROVIDER_SECONDS,
    TTL_SECONDS,
    WAIT_SECONDS,
    Scene,
    Target,
    fresh_history,
    scene,
)

Phase = Literal[
    "at start",
    "before the request",
    "once",
    "during the summary",
    "at the first byte",
    "in mid-stream",
    "at the commit",
]

FAULTS = int(os.environ.get("FAULTS", "10000"))
REQUESTS = 24
HARMLESS = ("delay", "drip")
TRIES = 5
SLACK_SECONDS = 3.5
"""Less than the five seconds after which a driver gives up by itself."""
MID_STREAM = 700
"""Bytes of an answer: past its headers, before its end."""
COMMIT = (b"INSERT INTO summary_chunks", b"COMMIT")


@dataclass(frozen=True, slots=True)
class Cell:
    target: Target
    name: Name
    phase: Phase
    stream: bool

    def __str__(self) -> str:
        return f"{self.target}: {self.name} {self.phase}, {'stream' if self.stream else 'plain'}"

    @property
    def fault(self) -> Fault:
        """Delays and drips are slow, and faster than the settings demand."""
        match self.target, self.phase:
            case "database", "at the commit":
                # Of a stream the commit arrives and its acknowledgement does not; otherwise neither.
                return Fault(self.name, way="down" if self.stream else None, seen=COMMIT, size=10)
            case "database", _:
                return Fault(self.name, size=200, seconds=0.1 if self.name == "delay" else 0.01)
            case _, "at the first byte":
                return Fault(self.name, way="down", seconds=0.02 if self.name == "drip" else 0.2)
            case _, "in mid-stream":
                return Fault(self.name, way="down", after=MID_STREAM, seconds=0.02 if self.name == "drip" else 0.2)
        return Fault(self.name, size=2_000, seconds=0.02 if self.name == "drip" else 0.2)

    @property
    def bound(self) -> float:
        """Seconds that the settings allow its request to take, and some for a busy machine."""
        match self.target, self.phase:
            case "upstream", _:
                return 2 * PROVIDER_SECONDS + SLACK_SECONDS
            case "database", "before the request" | "once" | "at the first byte" | "in mid-stream":
                # Three calls that fail open the breaker.
                return 3 * DATABASE_SECONDS + SLACK_SECONDS
        return WAIT_SECONDS + SLACK_SECONDS

    @property
    def is_fatal(self) -> bool:
        """Whether the request itself cannot succeed: nothing but its provider can bring that about."""
        if self.target != "upstream" or self.phase == "at start" or self.name in HARMLESS:
            return False
        # A pooled connection that broke before the first byte is replaced once.
        return self.phase != "once" or self.name == "black hole"


def _cells() -> Iterator[Cell]:
    phases: dict[Target, tuple[Phase, ...]] = {
        "database": (
            "at start",
            "before the request",
            "during the summary",
            "at the first byte",
            "in mid-stream",
            "at the commit",
        ),
        "upstream": ("at start", "before the request", "during the summary", "at the first byte", "in mid-stream"),
        "summariser": ("at start", "before the request", "during the summary", "at the first byte", "in mid-stream"),
    }
    for target, some in phases.items():
        for name in NAMES:
            for number, phase in enumerate(some):
                # Where streaming makes no difference to the fault, it alternates.
                streams: tuple[bool, ...] = ((number + NAMES.index(name)) % 2 == 0,)
                if target == "upstream" or phase == "at the commit":
                    streams = (False, True)
                elif phase == "in mid-stream":
                    streams = (True,)
                yield from (Cell(target, name, phase, stream) for stream in streams)
            if name != "refuse":
                yield Cell(target, name, "once", target != "summariser")


CELLS = tuple(_cells())


@pytest.fixture(scope="session")
def _standing() -> Counter[str]:
    """The tasks of an idle Steno; `faulty` fills it once per process."""
    return Counter()


@pytest.fixture
def faulty(
    simulator: Simulator,
    provider: RunningServer,
    postgres_url: str,
    _standing: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    """Three networks, and a Steno that the test starts."""
    running.forget_environment(monkeypatch)
    # A lease has to end while we look; the setting's own proportions.
    monkeypatch.setattr("app.compaction.lease.HEARTBEAT_SECONDS", TTL_SECONDS / 3)
    if not _standing:
        with scene(simulator, provider.url, postgres_url) as undisturbed:
            undisturbed.start()
            undisturbed.ask(fresh_history(), stream=False)
            until(lambda: not undisturbed.steno.server._server.server_state.connections)
            _standing.update(undisturbed.tasks())
            undisturbed.stop()
        simulator.clear_log()
    with scene(simulator, provider.url, postgres_url, _standing) as networks:
        try:
            yield networks
        finally:
            networks.heal()
            with suppress(AttributeError):  # It was not started, or is stopped already.
                networks.steno.stop()


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_fault_costs_at_most_what_depends_on_it(faulty: Scene, cell: Cell) -> None:
    """A fault of the database or the summariser costs no request; one of the provider is a clean error."""
    answer = _play(faulty, cell)
    if cell.is_fatal:
        assert _is_clean_error(answer), answer
    else:
        assert _is_whole(answer), answer
    if cell.target == "summariser" and cell.phase == "once" and cell.name != "black hole":
        assert _is_summarised(answer), "the summary call is made twice where that may help"
    faulty.heal()
    faulty.settle()
    if cell.target != "database":
        assert not faulty.live_leases(), "it could have been released"
    until(lambda: not faulty.live_leases(), TTL_SECONDS + 0.5)
    until(lambda: _is_summarised(faulty.ask(fresh_history(), stream=False)))
    faulty.settle()
    faulty.stop()


def _play(faulty: Scene, cell: Cell) -> Answer | None:
    """The answer to the request that met the fault at its phase."""
    if cell.phase == "at start":
        faulty.proxies[cell.target].inject(cell.fault)
        faulty.start()
        faulty.heal()
        return faulty.ask(fresh_history(), stream=cell.stream, within=cell.bound)
    faulty.start()
    for _ in range(TRIES):
        until(lambda: faulty.steno.services.store.reason is None)
        assert _is_whole(faulty.ask(HELLO, stream=False))
        answer = _met(faulty, cell)
        if faulty.proxies[cell.target].wait_for(lambda proxy: bool(proxy.injected[cell.name]), 1.0):
            return answer
        # On a busy machine a healthy database takes longer than 250 ms, too: then there is no summary to disturb.
        assert _is_whole(answer), answer
        faulty.heal()
    raise AssertionError("the fault never happened")


def _met(faulty: Scene, cell: Cell) -> Answer | None:
    """One request, and the fault where it comes to that."""
    simulator, proxy = faulty.simulator, faulty.proxies[cell.target]
    simulator.clear_log()
    simulator.script.clear()
    awaited: Kind
    match cell.target, cell.phase:
        case _, "during the summary":
            awaited = "summary"
            simulator.next_summary(delay=0.3)
        case "database", "at the first byte":
            awaited = "chat"
            simulator.next_chat(delay=0.3)
        case "database", "in mid-stream":
            awaited = "chat"
            simulator.next_chat(words=40, chunk_delay=0.03, first_token_delay=0.1)
        case _:
            proxy.inject(cell.fault, times=1 if cell.phase == "once" else None)
            return faulty.ask(fresh_history(), stream=cell.stream, within=cell.bound)
    asking = faulty.asking(fresh_history(), stream=cell.stream, within=cell.bound)
    until(lambda: asking.done() or any(record.kind == awaited for record in simulator.log))
    if not asking.done():
        proxy.inject(cell.fault)
    return asking.result()


def _is_summarised(answer: Answer | None) -> bool:
    assert answer is not None
    assert answer.status == 200
    return answer.header("x-context-status") == "summarized"


def _is_whole(answer: Answer | None) -> bool:
    if answer is None or answer.status != 200:
        return False
    if answer.header("content-type") == "application/json":
        return bool(answer.json["choices"][0]["message"]["content"])
    return answer.body.endswith(b"data: [DONE]\n\n") and b'"error"' not in answer.body


def _is_clean_error(answer: Answer | None) -> bool:
    """OpenAI's envelope with a status of its own, or as the last frame of a stream that does not say it is done."""
    if answer is None:
        return False
    if answer.status in (502, 504):
        return _is_envelope(answer.json)
    if answer.status != 200 or b"[DONE]" in answer.body:
        return False
    last: Any = Answer(0, (), answer.body.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: "))
    return _is_envelope(last.json)


def _is_envelope(body: Any) -> bool:
    error = body["error"]
    return set(error) == {"message", "type", "param", "code"} and error["code"].startswith("upstream_")


@pytest.mark.timeout(0)
def test_random_faults_leave_nothing_behind(
    faulty: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All networks at once, several requests at once, one of them with a whole answer or a clean error each."""
    seed = int(os.environ.get("FAULTS_SEED", "1"))
    chance = random.Random(seed)
    began = time.monotonic()
    faulty.start()
    # Otherwise the first faults would keep the rest from happening, for 30 seconds.
    monkeypatch.setattr(ModelBreaker, "admits", lambda *_: True)
    answers: Counter[str] = Counter()
    while (happened := sum(sum(proxy.injected.values()) for proxy in faulty.proxies.values())) < FAULTS:
        for proxy in faulty.proxies.values():
            if chance.random() < 0.6:
                fault = _random_fault(chance)
                # What breaks nothing hits every exchange; without this nearly all faults would be of that kind.
                proxy.inject(fault, every=chance.randint(4, 8) if fault.name in HARMLESS else chance.randint(1, 2))
        asked = [
            faulty.asking(fresh_history() if chance.random() < 0.4 else HELLO, stream=chance.random() < 0.5)
            for _ in range(REQUESTS)
        ]
        for asking in asked:
            answer = asking.result()
            answers["whole" if _is_whole(answer) else "error"] += 1
            assert _is_whole(answer) or _is_clean_error(answer), (seed, happened, answer)
        faulty.heal()
        faulty.simulator.clear_log()
        if chance.random() < 0.1:
            faulty.settle()
    faulty.settle()
    until(lambda: not faulty.live_leases(), TTL_SECONDS + 0.5)
    until(lambda: _is_summarised(faulty.ask(fresh_history(), stream=False)))
    faulty.settle()
    faulty.stop()
    assert min(answers["whole"], answers["error"]) > 0
    happened_to = {target: dict(proxy.injected) for target, proxy in faulty.proxies.items()}
    with capsys.disabled():
        print(f"\nseed {seed}: {happened_to}, requests {dict(answers)}, {time.monotonic() - began:.0f} s")  # noqa: T201


def _random_fault(chance: random.Random) -> Fault:
    # Refusals, which last until the proxy heals, are rare: nothing else happens while one lasts.
    name = chance.choice([*NAMES, *(name for name in NAMES if name != "refuse")])
    ways: tuple[Way | None, ...] = ("up", "down", None)
    way = chance.choice(ways) if name != "refuse" else None
    return Fault(
        name,
        way=way,
        after=chance.choice((0, 0, 1, 50, MID_STREAM)) if way else 0,
        seconds=chance.choice((0.01, 0.1, 0.3)) if name == "delay" else 0.01,
        size=2_000,
    )
