"""Workers: several processes that serve at one address, and the supervisor that starts them and those after them.

Theory: uvicorn has a supervisor too, but its workers import everything anew, take connections from one socket, where
most go to whoever is awake, are started again without a pause however often they die, and outlive it if it is killed.
Here the supervisor imports what every worker needs and forks: a worker is there in a fraction of a second, and what is
never written to is in memory once. It has neither threads nor an event loop, which a fork would break.

The first worker starts alone: settings, database, migrations and secret are looked after once, and what is wrong with
them ends the start. A worker that dies later is replaced at once, and after a growing pause where that happens again
and again. One pipe, of which the supervisor alone has the end that is written to, stops all of them: it is
closed for that, and by the system if the supervisor dies. A signal could meet a worker that does not listen yet.
"""

from __future__ import annotations

import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from time import monotonic
from types import FrameType
from typing import Any

import structlog

from app.commands import ports, server
from app.commands.logs import configure_logging
from app.commands.ports import Taken
from app.commands.server import Started
from app.core.tokens.rules import rules_for
from app.providers.tokenizer import Tokenizer
from app.runtime import heap
from app.settings import Settings
from app.telemetry.metrics import Metrics, SupervisorMetrics
from app.telemetry.table import Table

log = structlog.get_logger("steno.workers")

CONTEXT: ForkContext | SpawnContext = get_context("fork") if sys.platform == "linux" else get_context("spawn")
"""Start method of worker processes. Outside Linux the system's own libraries do not survive a fork."""
STOPS = (signal.SIGTERM, signal.SIGINT)
STEADY_SECONDS = 10.0
"""Seconds after which a worker counts as steady: one that ends sooner will probably do so again."""
LONGEST_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class Worker:
    """One place among the workers, whoever has it now."""

    number: int
    process: BaseProcess
    pipe: Connection
    """Pipe that brings `Started` once the worker serves, or the reason why it cannot."""
    began: float
    quick_ends: int = 0
    """Number of quick ends in a row."""
    due: float = inf
    """Time at which the next process begins; infinite while this one runs."""

    def heard(self) -> Started | str | None:
        """Return what the worker said; None if it ended without a word."""
        with suppress(EOFError, OSError):
            message: Started | str = self.pipe.recv()
            return message
        return None

    def has_ended(self, now: float) -> float:
        """Record an end. Returns the pause before the next start in seconds: the first quick end may be an accident."""
        self.quick_ends = self.quick_ends + 1 if now - self.began < STEADY_SECONDS else 0
        pause = 0.0 if self.quick_ends < 2 else min(2.0 ** (self.quick_ends - 2), LONGEST_PAUSE_SECONDS)
        self.due = now + pause
        return pause


class Supervisor:
    def __init__(self, settings: Settings, taken: Taken, announce: Callable[[Started], None]) -> None:
        self._settings = settings
        self._taken = taken
        self._announce = announce
        count = settings.server.workers
        self._table = Table.of_many(count)
        self._metrics = SupervisorMetrics(self._table, count)
        self._workers: list[Worker] = []
        self._signals: list[int] = []
        """Signals that asked the supervisor to stop."""
        self._waking, self._woken = socket.socketpair()
        self._lasts, self._ends = CONTEXT.Pipe(duplex=False)
        """Both ends of the pipe whose end stops all workers."""
        self._started = Started()

    def run(self) -> str | None:
        """Serve until stopped. Return the reason why it did not start, or None."""
        self._listen_to_signals()
        try:
            if CONTEXT.get_start_method() == "fork":
                _load_what_all_need(self._settings)
            if ports.SPREADS:
                ports.share((*self._taken.callers, *self._taken.operator))
            failure = self._start()
            if failure is None:
                self._watch()
        finally:
            self._stop()
        return failure

    def _listen_to_signals(self) -> None:
        for end in (self._waking, self._woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waking.fileno())
        for number in STOPS:
            signal.signal(number, self._stop_asked)

    def _stop_asked(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _wait(self, things: Iterable[Any], seconds: float | None = None) -> list[Any]:
        """Wait for an event and return those things that have one; a signal ends the wait as well."""
        ready = wait([self._woken, *things], seconds)
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        return [each for each in ready if each is not self._woken]

    # Starting

    def _start(self) -> str | None:
        """Start the first worker, then the others. Return the reason why one cannot serve, or None."""
        count = self._settings.server.workers
        for numbers in (range(1), range(1, count)):
            begun = [self._begin(number, reports=number == 0) for number in numbers]
            self._workers += begun
            if (failure := self._await(begun)) is not None:
                return failure
        if not self._signals:
            self._metrics.alive(count)
            self._announce(self._started)
        return None

    def _await(self, begun: Sequence[Worker]) -> str | None:
        """Wait until all of these serve, or a stop is asked for. Return the reason why one cannot serve, or None."""
        waiting = {worker.pipe: worker for worker in begun}
        while waiting and not self._signals:
            for ready in self._wait(waiting):
                worker = waiting.pop(ready)
                match worker.heard():
                    case Started() as started:
                        self._started = started
                    case str(failure):
                        return failure
                    case None:
                        worker.process.join()
                        return f"A worker ended with status {worker.process.exitcode} before it served."
        return None

    def _begin(self, number: int, *, reports: bool = False) -> Worker:
        heard, reporting = CONTEXT.Pipe(duplex=False)
        given = self._settings, self._taken, self._table, number, reporting, self._lasts, self._ends, reports
        process = CONTEXT.Process(target=_work, args=given, name=f"worker {number}")
        # Until it has handlers of its own, a fork would take a signal with ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        reporting.close()
        return Worker(number, process, heard, monotonic())

    # Watching

    def _watch(self) -> None:
        """Replace each worker that ends, until a stop is asked for."""
        while not self._signals:
            living = [worker.process.sentinel for worker in self._workers if worker.due == inf]
            due = min(worker.due for worker in self._workers)
            self._wait(living, None if due == inf else max(0.0, due - monotonic()))
            for worker in self._workers:
                if not self._signals:
                    self._look_after(worker)
            self._metrics.alive(sum(worker.due == inf for worker in self._workers))

    def _look_after(self, worker: Worker) -> None:
        now = monotonic()
        if worker.due == inf and not worker.process.is_alive():
            message = worker.heard()
            if isinstance(message, Started):  # When it began; why it ended nobody knows.
                message = worker.heard()
            pause = worker.has_ended(now)
            self._metrics.ended(worker.number)
            log.warning(
                "worker ended",
                worker=worker.number,
                status=worker.process.exitcode,
                reason=message,
                seconds=round(now - worker.began, 1),
                pause=pause,
            )
        if worker.due <= now:
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        try:
            begun = self._begin(worker.number)
        except OSError as error:  # The system has no room for a process now.
            worker.began = monotonic()
            pause = worker.has_ended(worker.began)
            log.warning("worker not started", worker=worker.number, reason=error.strerror, pause=pause)
            return
        worker.pipe.close()
        worker.process, worker.pipe, worker.began, worker.due = begun.process, begun.pipe, begun.began, inf
        self._metrics.restarted()

    # Stopping

    def _stop(self) -> None:
        """Let all workers finish what they have begun, as one process would; a second interrupt kills them."""
        self._ends.close()
        ports.close((*self._taken.callers, *self._taken.operator))
        while living := [worker.process for worker in self._workers if worker.process.is_alive()]:
            if signal.SIGINT in self._signals[1:]:
                for process in living:
                    process.kill()
            self._wait([process.sentinel for process in living])


def _load_what_all_need(settings: Settings) -> None:
    """Load the largest parts of what all workers need before the first fork, so that they are in memory once."""
    heap.keep_small()
    Tokenizer(settings.tokenizer.folder).counter(rules_for("gpt-4o").encoding)
    # The collector would write to all of it.
    gc.collect()
    heap.give_back()
    gc.freeze()


def _work(
    settings: Settings,
    taken: Taken,
    table: Table,
    number: int,
    reporting: Connection,
    lasts: Connection,
    ends: Connection,
    reports: bool,
) -> None:
    """Serve as one worker: the body of its process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    ends.close()
    configure_logging(settings.log.level, settings.log.format)
    try:
        own = Taken(*map(ports.beside, taken)) if ports.SPREADS else taken
    except OSError as error:
        failure: str | None = server.cannot_listen(settings, error)
    else:
        failure = server.run(settings, own, Metrics(table, number), reporting.send, lasts, reports=reports)
    if failure is not None:
        reporting.send(failure)
        sys.exit(1)
