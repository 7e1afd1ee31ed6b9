"""Workers: several processes that serve at one address, under uvicorn's supervisor.

uvicorn's own supervisor starts a plain `uvicorn.Server` in each process. Here a worker is a `Server` of Steno's, with
two listeners; the first one starts alone, so that an error of settings or database ends the start with one message; a
worker that ends later is replaced, whatever its exit status; and workers end with a supervisor that was killed.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic

import structlog
import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from app.cli import ports
from app.cli.logs import configure_logging
from app.cli.ports import Taken
from app.cli.serve import Server
from app.settings import ConfigurationError, Settings
from app.store import StoreError
from app.telemetry.metrics import FOLDER

log = structlog.get_logger("steno.workers")


def serve_in_workers(settings: Settings, taken: Taken, password: str | None) -> str | None:
    """Serve until stopped. Return the reason why it did not start, or None. Exits with status 1 if the first worker
    could not start, which has printed the reason."""
    if ports.SPREADS:
        ports.share((*taken.callers, *taken.operator))
    supervisor = Supervisor(settings, taken, password)
    try:
        folder = TemporaryDirectory(prefix="steno-metrics-")
    except OSError as error:
        return f"Several workers need a folder for their metrics: {error.strerror}. Set TMPDIR to a writable one."
    with folder as path:
        os.environ[FOLDER] = path
        supervisor.run()
    if supervisor.has_failed:
        sys.exit(1)
    return None


class Worker(Process):
    def __init__(
        self, config: uvicorn.Config, settings: Settings, taken: Taken, password: str | None, *, reports: bool
    ) -> None:
        """`password`, `reports`: see `Server`."""
        super().__init__(config, [])
        self._settings = settings
        self._taken = taken
        self._password = password
        self._reports = reports
        self.began = monotonic()

    def target(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - it has two lists of its own
        self.parent_conn.close()
        configure_logging(self._settings.log.level, self._settings.log.format)
        failure: str | None
        try:
            taken = Taken(*map(ports.beside, self._taken)) if ports.SPREADS else self._taken
            self._server = server = Server(self._settings, taken, self._password, reports=self._reports)
        except OSError as error:
            failure = ports.cannot_listen(self._settings, error)
        except (ConfigurationError, StoreError) as error:
            failure = str(error)
        else:
            Thread(target=self.always_pong, daemon=True).start()
            failure = server.run_until_stopped()
        if failure is not None:
            sys.stderr.write(f"steno: {failure}\n")
            sys.exit(STARTUP_FAILURE)

    def is_ready(self, timeout: float = 5) -> bool:
        """Whether it serves. Answers to questions asked before it had started are thrown away."""
        with suppress(OSError, EOFError):
            while self.parent_conn.poll():
                self.parent_conn.recv()
        return super().is_ready(timeout)

    def always_pong(self) -> None:
        """Tell the supervisor whether the worker serves; stop once the supervisor is gone."""
        with suppress(EOFError, OSError):
            super().always_pong()
        os.kill(os.getpid(), signal.SIGTERM)


class Supervisor(Multiprocess):
    def __init__(self, settings: Settings, taken: Taken, password: str | None) -> None:
        # The workers make configurations of their own.
        super().__init__(uvicorn.Config("app.main:app", workers=settings.server.workers, log_config=None), [])
        self._settings = settings
        self._taken = taken
        self._password = password
        self.workers: list[Worker] = []
        self.processes = self.workers  # type: ignore[assignment] # a list of its base class, in uvicorn
        self.has_failed = False

    # Workers have their settings from the supervisor, which never reads them again.
    handle_hup = Multiprocess.handle_term
    handle_ttin = handle_ttou = lambda _: None

    def init_processes(self) -> None:
        """Start the first worker; `keep_subprocess_alive` starts the others once it serves."""
        self.workers.append(self._begin())

    def _begin(self) -> Worker:
        is_first = not self.workers
        worker = Worker(
            self.config, self._settings, self._taken, self._password if is_first else None, reports=is_first
        )
        worker.start()
        return worker

    def keep_subprocess_alive(self) -> None:
        first = self.workers[0]
        if len(self.workers) > 1 or first.exitcode == 0:
            for number, worker in enumerate(self.workers):
                if not worker.process.is_alive():
                    self.workers[number] = self._replacement(number, worker)
        elif not first.process.is_alive():
            self.has_failed = True
            self.should_exit.set()
        elif first.is_ready(timeout=1.0):
            self.workers += [self._begin() for _ in range(1, self.processes_num)]

    def _replacement(self, number: int, worker: Worker) -> Worker:
        mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
        seconds = round(monotonic() - worker.began, 1)
        log.warning("worker ended", worker=number, status=worker.exitcode, seconds=seconds)
        return self._begin()
