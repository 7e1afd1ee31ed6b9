"""A fleet while its parts fail: `python -m tests.chaos.fleet`. Exit status 1 if anything was lost, or answered wrongly.

Three processes of Steno behind HAProxy, on PgBouncer in transaction mode, on a PostgreSQL that Patroni keeps
(`tests.chaos.patroni`). Clients ask through the balancer alone, and know nothing of what happens behind it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from app.compaction.prompts import STRICTER_NOTE
from lab.simulator.log import Record
from lab.simulator.script import Fault
from tests.chaos.cluster import Replica
from tests.chaos.driver import CONVERSATIONS, STORING_SECONDS, Provider, all_ready, judge, settings
from tests.chaos.history import LOG_LIMIT, SETTLED_SECONDS, Views, Watch, ripe
from tests.chaos.patroni import Kept, Node, missing
from tests.chaos.talkers import Talkers
from tests.e2e.scripted import closed_port
from tests.faults.pgbouncer import pgbouncer
from tests.integration.examples import unprepared
from tests.release.test_processes import next_release

REPLICAS = 3
CALL_SECONDS = 0.5
"""What a summary call takes."""
QUIET_SECONDS = 15.0
PARTITION_SECONDS = 40.0
BALANCED_SECONDS = 3.0
"""So long the balancer may take to see that a process is back."""
LEASE_SECONDS = 1.0
"""Seconds from a lease to the call that it is for, at most: what the database may take."""
SHOWN = 12
_STRICTER = STRICTER_NOTE.partition("{")[0].encode()


@dataclass(slots=True)
class Door:
    """The balancer, as clients see it."""

    url: str
    number: int = 0
    deaths: int = 0
    naps: int = 0
    up: bool = True


@dataclass(slots=True)
class Phase:
    """What was done to the fleet, and when. Times are of the monotonic clock."""

    name: str
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    hit: list[float] = field(default_factory=list)
    """Moments at which something was taken away."""
    errors: int = 0

    def has(self, moment: float) -> bool:
        return self.began <= moment < self.ended


@dataclass(slots=True)
class Fleet:
    """All of it, and its clients."""

    database: Kept
    replicas: Sequence[Replica]
    talkers: Talkers
    views: Views
    folder: Path
    waits: list[tuple[float, float]] = field(default_factory=list)
    """When each request began, and how long it took."""
    phases: list[Phase] = field(default_factory=list)

    async def quiet(self, _: Phase) -> None:
        await asyncio.sleep(QUIET_SECONDS)

    async def kill_leader(self, phase: Phase) -> None:
        leader = await self._leader(phase)
        leader.kill()
        await self._led_again()
        leader.start()

    async def partition_leader(self, phase: Phase) -> None:
        await (await self._leader(phase)).partition(PARTITION_SECONDS)

    async def restart_all(self, phase: Phase) -> None:
        """One by one: Steno, the nodes of the database, etcd, HAProxy."""
        for replica in self.replicas:
            await self._restart(replica, phase)
        for node in self.database.nodes:
            phase.hit.append(time.monotonic())
            await node.stop()
            node.start()
            await self.database.whole()
        phase.hit.append(time.monotonic())
        self.database.restart_etcd()
        self.database.reload_haproxy()
        await asyncio.sleep(BALANCED_SECONDS)

    async def upgrade(self, phase: Phase) -> None:
        """To a release with a migration of its own."""
        checkout = await asyncio.to_thread(next_release, self.folder / "next")
        for replica in self.replicas:
            replica.checkout = checkout
            await self._restart(replica, phase)

    async def play(self, do: Callable[[Phase], Awaitable[None]], name: str) -> None:
        """Something, and what comes of it until all is well again."""
        before = len(self.talkers.errors)
        self.phases.append(phase := Phase(name))
        await do(phase)
        await self.database.whole()
        await all_ready(self.replicas)
        await asyncio.sleep(BALANCED_SECONDS)
        phase.ended, phase.errors = time.monotonic(), len(self.talkers.errors) - before
        typer.echo(f"{name}: {phase.ended - phase.began:.0f} s", err=True)

    async def keep_judging(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            await self.judge_some()

    async def judge_some(self) -> None:
        finished = ripe(self.talkers.asked)
        self.waits += [(one.began, one.done_at - one.began) for one in finished]
        await asyncio.to_thread(judge, self.views, finished)

    async def _leader(self, phase: Phase) -> Node:
        leader = await self.database.leader()
        assert leader is not None, "a database that is whole"
        phase.hit.append(time.monotonic())
        return leader

    async def _led_again(self) -> None:
        async def is_led() -> bool:
            return await self.database.leader() is not None

        await self.database.until(is_led)

    async def _restart(self, replica: Replica, phase: Phase) -> None:
        phase.hit.append(time.monotonic())
        await replica.restart()
        await all_ready([replica])
        await asyncio.sleep(BALANCED_SECONDS)


async def run(seed: int) -> bool:
    """Play all phases and print what they showed; whether it is as it must be."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    simulator = Provider(window=100_000_000, models="any", count=lambda text: len(text) // 2, log_limit=LOG_LIMIT)
    simulator.max_messages = None
    simulator.summary_default = Fault(delay=CALL_SECONDS)
    async with _fleet(simulator, seed) as fleet:
        watch = Watch(fleet.database.url)
        watching = [asyncio.create_task(watch.watch()), asyncio.create_task(fleet.keep_judging())]
        talking = asyncio.create_task(fleet.talkers.talk(CONVERSATIONS))
        await fleet.play(fleet.quiet, "nothing")
        await fleet.play(fleet.kill_leader, "the primary is killed")
        await fleet.play(fleet.partition_leader, "the primary is partitioned")
        await fleet.play(fleet.restart_all, "each part is restarted in turn")
        await fleet.play(fleet.upgrade, "Steno is upgraded")
        fleet.talkers.stop()
        await talking
        for task in watching:
            task.cancel()
        await asyncio.sleep(2 * SETTLED_SECONDS)
        await fleet.judge_some()
        stored = await watch.stored()
        lost = watch.lost(stored, fleet.views.acknowledged)
        for replica in fleet.replicas:
            await replica.stop()
        return _told(fleet, set(stored.values()), [*lost, *watch.backwards])


def _told(fleet: Fleet, stored: set[str], lost: Sequence[str]) -> bool:
    """Print a table and what is wrong."""
    again = _made_again(fleet.views.summaries, stored)
    typer.echo(
        "| what is done | seconds | requests | longest wait, s | failed | summaries paid | made again | in flight |"
    )
    typer.echo("|---|" + "--:|" * 7)
    beyond, moments = 0, [moment for phase in fleet.phases for moment in phase.hit]
    for phase in fleet.phases:
        waits = [seconds for began, seconds in fleet.waits if phase.has(began)]
        made = [call for call in again if phase.has(call.at)]
        flying = [call for call in made if any(_is_under_way(call, moment) for moment in moments)]
        beyond += len(made) - len(flying)
        paid = sum(phase.has(call.at) for call in fleet.views.summaries)
        figures = phase.ended - phase.began, len(waits), max(waits, default=0.0), phase.errors, paid, len(made)
        typer.echo("| " + " | ".join([phase.name, *(f"{figure:.4g}" for figure in figures), str(len(flying))]) + " |")
    views = fleet.views
    typer.echo(f"{views.judged} payloads, {views.summarised} with summaries; {len(stored)} summaries stored")
    wrong = [*fleet.talkers.errors, *views.sentences, *lost]
    for sentence in wrong[:SHOWN]:
        typer.echo(f"  {sentence}")
    typer.echo(
        f"lost: {len(lost)}; wrong payloads: {len(views.sentences)}; failed: {len(fleet.talkers.errors)}; ", nl=False
    )
    typer.echo(f"paid twice beyond what was in flight: {beyond}")
    return not wrong and not beyond


def _made_again(calls: Sequence[Record], stored: set[str]) -> list[Record]:
    """Calls of which nothing is stored, but for answers that Steno refused: after each it asked once more, and said
    so."""
    again = [call for call in calls if call.text not in stored]
    for stricter in (call for call in calls if _STRICTER in call.body):
        before = [call for call in again if call.finished_at is not None and call.finished_at <= stricter.at]
        if before:
            again.remove(max(before, key=lambda call: call.finished_at or 0.0))
    return again


def _is_under_way(call: Record, moment: float) -> bool:
    """Whether somebody had the lease at that moment, which comes before the call, and nothing was stored."""
    over = call.disconnected_at if call.finished_at is None else call.finished_at
    return call.at - LEASE_SECONDS <= moment <= (over or call.at) + STORING_SECONDS


@asynccontextmanager
async def _fleet(simulator: Provider, seed: int) -> AsyncIterator[Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="steno-fleet-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ports = [closed_port() for _ in range(REPLICAS)]
        database = Kept(folder, stack)
        await database.start(ports)
        provider = stack.enter_context(simulator.serve())
        url = unprepared(stack.enter_context(pgbouncer(database.url, connections=20)))
        # With the operator's key, Steno would refuse clients behind a balancer.
        upstream = {**settings(provider.url)["upstream"], "api_key_env": None}
        given = {**settings(provider.url), "upstream": upstream, "storage": {"timeout_seconds": LEASE_SECONDS}}
        replicas = []
        for number, port in enumerate(ports):
            replicas.append(Replica(number, given, url, folder, port=port))
            stack.callback(replicas[-1].end)
            await replicas[-1].start()
        talkers = Talkers([Door(f"http://127.0.0.1:{database.door}")], Random(f"{seed} talkers"))
        await asyncio.sleep(BALANCED_SECONDS)
        yield Fleet(database, replicas, talkers, Views(simulator), folder)


def main(seed: Annotated[int, typer.Option(help="Any one if left out.")] = 0) -> None:
    """Take parts of a fleet away while it serves, and check what came of it."""
    if absent := missing():
        typer.echo(f"skipped: not installed: {absent}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seed = seed or secrets.randbelow(1_000_000)
    typer.echo(f"seed {seed}")
    sys.exit(0 if asyncio.run(run(seed)) else 1)


if __name__ == "__main__":
    typer.run(main)
