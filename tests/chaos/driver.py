"""A cluster, clients, chaos for a while, and what the history check found."""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Literal

import httpx2
import typer

from lab.simulator import Simulator
from lab.simulator.format import Accepted
from lab.simulator.log import Kind, Record
from lab.simulator.replies import cut_to_tokens
from lab.simulator.script import Fault
from tests.chaos.cluster import KEY_VARIABLE, Postgres, Replica, key_of
from tests.chaos.history import DAMAGED, FOREIGN, GAPS, LOG_LIMIT, OVERLAPS, SETTLED_SECONDS, Views, Watch, ripe
from tests.chaos.talkers import BRANCHES, Asked, Talkers
from tests.faults.proxy import FaultProxy

REPLICAS = 4
CONVERSATIONS = 3
SHOWN = 12
"""Sentences of each kind."""
CALLS_PER_CHUNK = 1.05
WINDOW = 8_000
SHORT_SECONDS, LONG_SECONDS = (1.0, 6.0), (17.0, 21.0)
"""Shorter and longer than the lease's 15 s."""
CALL_SECONDS = (0.2, 2.5)
"""What a summary call takes."""
BETWEEN_SECONDS = (1.0, 3.0)
DISTURBED_AT_ONCE = 2
"""Replicas; the others answer meanwhile."""
READY_SECONDS = 60.0

Disturbance = Literal["kill", "pause", "long pause", "crash", "black hole", "long black hole"]
PROGRAMME: Sequence[Disturbance] = (
    "kill",
    "crash",
    "long pause",
    "kill",
    "black hole",
    "pause",
    "kill",
    "long black hole",
)
"""The order of the first ones, so that a short run has one of each; then they come by chance."""
LONG: frozenset[Disturbance] = frozenset({"long pause", "long black hole"})
ROUNDS = 4
STORING_SECONDS = 2.0
"""So long a process may take to store what it has, and to see that the database is back."""


class Provider(Simulator):
    """No two of its summaries are alike, so that each tells which call it comes from."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._numbers = count(1)

    def _text(self, kind: Kind, request: Accepted) -> str:
        text = super()._text(kind, request)
        if kind != "summary":
            return text
        numbered = f"{next(self._numbers)}. {text}"
        # What goes over the caller's limit is cut, and Steno has to ask again.
        return numbered if request.max_tokens is None else cut_to_tokens(numbered, request.max_tokens, self.count)


@dataclass(slots=True)
class Absence:
    """When a process could not do its part; all of them, where the database was away. Times are of the log."""

    replica: int | None
    began: float
    ended: float = math.inf

    def took(self, call: Record) -> bool:
        """Whether it is why a summary call came to nothing."""
        over = call.disconnected_at if call.finished_at is None else call.finished_at
        assert over is not None, "a call that is over"
        named = call.header("authorization") == f"Bearer {key_of(self.replica)}"
        at_once = self.began <= over + STORING_SECONDS and call.at <= self.ended + STORING_SECONDS
        return at_once and (named or self.replica is None)


class Chaos:
    """Disturbs for a while, then lets everything heal."""

    def __init__(self, postgres: Postgres, replicas: Sequence[Replica], random: Random, views: Views) -> None:
        self.done: Counter[Disturbance] = Counter()
        self.absences: list[Absence] = []
        self._postgres = postgres
        self._replicas = replicas
        self._random = random
        self._views = views
        self._crashing = asyncio.Lock()
        self._long = asyncio.Lock()

    async def run(self, seconds: float, call: Callable[[float], None]) -> None:
        """`call` sets how long summary calls take from here on."""
        ends = time.monotonic() + seconds
        programme = list(PROGRAMME)
        async with asyncio.TaskGroup() as group:
            while (left := ends - time.monotonic()) > 0:
                kind = programme.pop(0) if programme else self._random.choice(PROGRAMME)
                # One long one at a time, or there would be nobody left to disturb.
                if kind not in LONG or (left > LONG_SECONDS[1] and not self._long.locked()):
                    group.create_task(await self._begin(kind))
                call(self._random.uniform(*CALL_SECONDS))
                await asyncio.sleep(self._random.uniform(*BETWEEN_SECONDS))

    async def _begin(self, kind: Disturbance) -> Coroutine[Any, Any, None]:
        """Once it can hit something: a summary under way, and a process that is well."""
        await until(lambda: self._views.calls_under_way > 0, 2.0)
        if kind == "crash":
            return self._crash(self._random.uniform(0.0, 2.0))
        await until(lambda: sum(replica.disturbed for replica in self._replicas) < DISTURBED_AT_ONCE, READY_SECONDS)
        replica = self._random.choice([replica for replica in self._replicas if not replica.disturbed])
        replica.disturbed = True
        if kind in LONG:
            await self._long.acquire()
        return self._disturb(kind, replica, self._random.uniform(*(LONG_SECONDS if kind in LONG else SHORT_SECONDS)))

    async def _disturb(self, kind: Disturbance, replica: Replica, seconds: float) -> None:
        with self._absence(kind, replica.number):
            match kind:
                case "kill":
                    await replica.kill()
                case "pause" | "long pause":
                    await replica.pause(seconds)
                case _:
                    await replica.cut_off(seconds)
        replica.disturbed = False
        if kind in LONG:
            self._long.release()

    async def _crash(self, seconds: float) -> None:
        async with self._crashing:
            with self._absence("crash", None):
                await self._postgres.crash(seconds)

    @contextmanager
    def _absence(self, kind: Disturbance, replica: int | None) -> Iterator[None]:
        self.done[kind] += 1
        self.absences.append(absence := Absence(replica, time.monotonic()))
        yield
        absence.ended = time.monotonic()


async def run_chaos(seconds: float, seed: int) -> list[str]:
    """Print what the run showed, and return what must not be. The seed decides about the conversations and the order of
    disturbances; what they hit is up to the machine."""
    # A broken network is what is wanted here, and asyncio would tell of each connection.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # More tokens than Steno counts, or it would refuse summaries that fill their limit, and ask again.
    simulator = Provider(window=100_000_000, models="any", count=lambda text: len(text) // 2, log_limit=LOG_LIMIT)
    simulator.max_messages = None
    views = Views(simulator)
    async with _cluster(simulator) as (postgres, replicas):
        talkers, watch = Talkers(replicas, Random(f"{seed} talkers")), Watch(postgres.url)
        chaos = Chaos(postgres, replicas, Random(f"{seed} chaos"), views)

        def call(seconds: float) -> None:
            simulator.summary_default = Fault(delay=seconds)

        call(CALL_SECONDS[0])
        watching = asyncio.create_task(watch.watch())
        quiet = asyncio.Event()
        judging = asyncio.create_task(keep_judging(views, talkers, quiet))
        talking = asyncio.create_task(talkers.talk(CONVERSATIONS))
        await asyncio.sleep(3.0)
        await chaos.run(seconds, call)
        talkers.stop()
        await talking
        await all_ready(replicas)
        quiet.set()
        await judging
        call(0.0)
        disagreements = await _disagreements(talkers, views)
        await asyncio.sleep(2 * SETTLED_SECONDS)
        judge(views, ripe(talkers.asked))
        watching.cancel()
        stored = await watch.stored()
        stopped = await asyncio.gather(*(replica.stop() for replica in replicas))
        logged = [line for replica in replicas for line in replica.errors]
    lost, calls, allowed = watch.lost(stored, views.acknowledged), len(views.summaries), _allowed(chaos, views, stored)
    errors = [*talkers.errors, *(f"exit status {status} on SIGTERM" for status in stopped if status)]
    typer.echo(f"{dict(chaos.done)}; {talkers.requests} requests, {views.judged} views, {views.summarised} summarised")
    typer.echo(f"{len(stored)} chunks, {calls} summary calls ({allowed} allowed)")
    typer.echo(f"{talkers.excused} requests failed with a killed process, {talkers.overslept} with one that slept")
    for sentences in (views.sentences, lost, watch.backwards, errors, logged):
        for sentence in sentences[:SHOWN]:
            typer.echo(f"  {sentence}")
    wrong = {
        "acknowledged chunks lost": len(lost),
        "gaps": views.count(GAPS),
        "overlaps": views.count(OVERLAPS),
        "summaries of other messages": views.count(FOREIGN),
        "views damaged otherwise": views.count(DAMAGED),
        "epochs gone back": len(watch.backwards),
        "summary calls too many": max(0, calls - allowed),
        "client errors": len(errors),
        "histories that two processes forwarded differently when all was quiet": disagreements,
        "errors in the processes' logs": len(logged),
        "records that left the log before they were read": views.missed,
        "no summary was made and used while somebody looked": not (watch.looks and views.summarised and stored),
    }
    return [f"{kind}: {number}" for kind, number in wrong.items() if number]


def _allowed(chaos: Chaos, views: Views, stored: Mapping[str, str]) -> int:
    """Summary calls. What a disturbance took is made again: of each branch one call at most, or the process repeats by
    itself."""
    texts = set(stored.values())
    unused = [call for call in views.summaries if call.text not in texts]
    taken = sum(any(absence.took(call) for absence in chaos.absences) for call in unused)
    repeated = min(taken, CONVERSATIONS * len(BRANCHES) * chaos.done.total())
    return int(CALLS_PER_CHUNK * len(stored)) + repeated


def settings(provider: str) -> Mapping[str, Any]:
    """See `replica` for what no setting says."""
    return {
        "upstream": {"base_url": f"{provider}/v1", "discover_windows": False, "api_key_env": KEY_VARIABLE},
        "models": [{"match": "*", "context_window": WINDOW}],
        "storage": {"timeout_seconds": 1.0},
    }


@asynccontextmanager
async def _cluster(simulator: Simulator) -> AsyncIterator[tuple[Postgres, Sequence[Replica]]]:
    folder = Path(tempfile.mkdtemp(prefix="steno-chaos-"))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # Not inside the other folder: a PostgreSQL that root starts opens every folder above its data.
        postgres = await asyncio.to_thread(Postgres, folder.with_name(f"{folder.name}-pg"))
        stack.callback(postgres.stop)
        await postgres.prepare()
        provider = stack.enter_context(simulator.serve())
        replicas = []
        for number in range(REPLICAS):
            network = stack.enter_context(FaultProxy(postgres.url))
            replicas.append(Replica(number, settings(provider.url), network.url, folder, network=network))
            stack.callback(replicas[-1].end)
        await asyncio.gather(*(replica.start() for replica in replicas))
        yield postgres, replicas


async def keep_judging(views: Views, talkers: Talkers, quiet: asyncio.Event) -> None:
    while not quiet.is_set():
        await asyncio.sleep(0.25)
        # In a thread: meanwhile the clients go on.
        await asyncio.to_thread(judge, views, ripe(talkers.asked))


def judge(views: Views, finished: Sequence[Asked]) -> None:
    views.collect()
    views.judge(finished)


async def all_ready(replicas: Sequence[Replica]) -> None:
    """All processes use the database again."""
    deadline = time.monotonic() + READY_SECONDS
    async with httpx2.AsyncClient(trust_env=False, timeout=10.0) as client:
        for replica in replicas:
            while (await client.get(f"{replica.url}/readyz")).json().get("db") != "ok":
                if time.monotonic() > deadline:
                    raise RuntimeError(f"Replica {replica.number} does not get back to its database.")
                await asyncio.sleep(0.2)


async def _disagreements(talkers: Talkers, views: Views) -> int:
    """How many histories do not go out as the same bytes from every process, once earlier rounds made what was due. A
    compaction in the background may end in the middle of a round."""
    different = 0
    for name, history in list(talkers.histories.items()):
        for _ in range(ROUNDS):
            asked = await talkers.ask_everywhere(history, name.partition(" ")[0])
            await until(lambda: views.calls_under_way == 0, READY_SECONDS)
            await asyncio.sleep(0.05)
            views.collect()
            if len({views.payload(one) for one in asked}) == 1:
                break
        else:
            different += 1
    return different


async def until(condition: Callable[[], bool], seconds: float) -> None:
    """Or until the time is over."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - the simulator runs in another thread
        await asyncio.sleep(0.02)
