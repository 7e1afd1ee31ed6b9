"""A PostgreSQL that Patroni keeps: three nodes, etcd, HAProxy before the one that leads, PgBouncer before HAProxy.

Each node is reached through networks of its own (`tests.faults.proxy`), which may fall silent together: then it is
partitioned. Everything comes from Debian's packages and ends with the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx2

from tests.chaos.cluster import DATABASE
from tests.e2e.commands import ROOT
from tests.e2e.scripted import closed_port
from tests.faults.proxy import FaultProxy

NODES = 3
WAIT_SECONDS = 120.0
_PLACES = f"{os.environ['PATH']}:/usr/sbin"
TTL_SECONDS = 20
"""Seconds until a leader that says nothing is replaced: the least that Patroni allows."""


def missing() -> str:
    """What is not installed and needed; empty where all is there."""
    absent = [name for name in ("patroni", "etcd", "haproxy", "pgbouncer") if shutil.which(name, path=_PLACES) is None]
    return ", ".join([*absent, *([] if _binaries() else ["postgresql"])])


def _binaries() -> Path | None:
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


def run(name: str, *arguments: str, folder: Path, unprivileged: bool = False) -> subprocess.Popen[bytes]:
    """Start a program that says what it does to a file."""
    command = shutil.which(name, path=_PLACES)
    assert command is not None, name
    user: dict[str, Any] = {}
    if unprivileged and os.getuid() == 0:
        user = {"user": "postgres", "group": "postgres", "extra_groups": []}
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen([command, *arguments], cwd=folder, stdout=log, stderr=log, **user)  # noqa: S603


class Node:
    """A PostgreSQL and the Patroni beside it."""

    def __init__(self, number: int, folder: Path, etcd: int, stack: ExitStack) -> None:
        self.name = f"node{number}"
        self._folder = folder / self.name
        self._folder.mkdir(mode=0o700)
        if os.getuid() == 0:
            shutil.chown(self._folder, "postgres", "postgres")
        self._process: subprocess.Popen[bytes]
        self._port, rest = closed_port(), closed_port()
        ways = [f"postgresql://127.0.0.1:{self._port}", f"http://127.0.0.1:{rest}", f"http://127.0.0.1:{etcd}"]
        self._networks = [stack.enter_context(FaultProxy(way)) for way in ways]
        self.port, self.rest_port, way_out = (network.port for network in self._networks)
        self._configuration = self._folder / "patroni.json"
        self._configuration.write_text(json.dumps(self._configured(rest, way_out)))
        self._configuration.chmod(0o644)

    async def is_(self, role: str) -> bool:
        """Whether Patroni says that it is that, without a network in between."""
        return await _says(f"http://127.0.0.1:{self._rest}/{role}")

    def start(self) -> None:
        self._process = run("patroni", str(self._configuration), folder=self._folder, unprivileged=True)

    def kill(self) -> None:
        """As a machine that loses its power."""
        self._process.kill()
        self._process.wait()
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    async def stop(self) -> None:
        """As a machine that is shut down: Patroni stops its PostgreSQL, and leaves the lead to another one."""
        self._process.terminate()
        await asyncio.to_thread(self._process.wait, WAIT_SECONDS)

    async def partition(self, seconds: float) -> None:
        """Nobody hears it and it hears nobody, and it goes on."""
        for network in self._networks:
            await asyncio.to_thread(network.inject, "black hole")
        await asyncio.sleep(seconds)
        for network in self._networks:
            await asyncio.to_thread(network.heal)

    def end(self) -> None:
        if hasattr(self, "_process"):
            self.kill()

    def _configured(self, rest: int, way_out: int) -> Mapping[str, Any]:
        self._rest = rest
        trusted = ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        user = {"username": "postgres", "password": "postgres"}
        return {
            "scope": "steno",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{rest}", "connect_address": f"127.0.0.1:{self.rest_port}"},
            # As a proxy, or Patroni would learn etcd's own address and go past the network.
            "etcd3": {"hosts": f"127.0.0.1:{way_out}", "use_proxies": True},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_SECONDS,
                    "loop_wait": 2,
                    "retry_timeout": 5,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"max_connections": 100}},
                },
                "initdb": ["data-checksums", {"encoding": "UTF8"}, {"auth": "trust"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self._port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self._folder / "data"),
                "bin_dir": str(_binaries()),
                "pgpass": str(self._folder / "pgpass"),
                "authentication": {"superuser": user, "replication": user, "rewind": user},
                # Only the machine's own crash would need fsync.
                "parameters": {"unix_socket_directories": str(self._folder), "shared_buffers": "32MB", "fsync": "off"},
                "pg_hba": trusted,
            },
        }


class Kept:
    """The database of a fleet."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        folder.chmod(0o755)
        self._folder = folder
        self._etcd_port, peers = closed_port(), closed_port()
        self._etcd = (
            *("--data-dir", str(folder / "etcd")),
            *("--listen-client-urls", f"http://127.0.0.1:{self._etcd_port}"),
            *("--advertise-client-urls", f"http://127.0.0.1:{self._etcd_port}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{peers}"),
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.nodes = [Node(number, folder, self._etcd_port, stack) for number in range(NODES)]
        self.port, self.door = closed_port(), closed_port()
        stack.callback(self._end)

    @property
    def url(self) -> str:
        """URL of whichever node leads, through HAProxy."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{DATABASE}"

    async def start(self, replicas: Sequence[int]) -> None:
        """All of it, with these ports of Steno's processes behind the balancer."""
        (self._folder / "haproxy.cfg").write_text(self._balanced(replicas))
        self.restart_etcd()
        await self.until(lambda: _says(f"http://127.0.0.1:{self._etcd_port}/health"))
        for node in self.nodes:
            node.start()
        self._processes["haproxy"] = run("haproxy", "-W", "-f", "haproxy.cfg", folder=self._folder)
        await self.until(self._is_whole)
        await self.until(self._has_database)

    async def leader(self) -> Node | None:
        """The node that leads; None while there is none."""
        return next(iter([node for node in self.nodes if await node.is_("primary")]), None)

    async def whole(self) -> None:
        """Wait until a node leads, and two follow it."""
        await self.until(self._is_whole)

    def restart_etcd(self) -> None:
        if "etcd" in self._processes:
            self._processes["etcd"].terminate()
            self._processes["etcd"].wait()
        self._processes["etcd"] = run("etcd", *self._etcd, folder=self._folder)

    def reload_haproxy(self) -> None:
        """As an operator does: a new process takes over, and the old one ends with its connections."""
        self._processes["haproxy"].send_signal(signal.SIGUSR2)

    async def until(self, holds: Any) -> None:
        """Wait for it."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not await holds():
            if time.monotonic() > deadline:
                raise RuntimeError(f"Not so after {WAIT_SECONDS:.0f} s: {holds.__name__}; see {self._folder}")
            await asyncio.sleep(0.2)

    async def _is_whole(self) -> bool:
        led = [node for node in self.nodes if await node.is_("primary")]
        follow = [node for node in self.nodes if await node.is_("replica?lag=1MB")]
        synchronous = [node for node in self.nodes if await node.is_("synchronous")]
        return (len(led), len(follow)) == (1, NODES - 1) and bool(synchronous)

    async def _has_database(self) -> bool:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            connection = await asyncpg.connect(self.url.replace(f"/{DATABASE}", "/postgres"), timeout=3)
            with suppress(asyncpg.DuplicateDatabaseError):
                await connection.execute(f'create database "{DATABASE}"')
            await connection.close()
            return True
        return False

    def _balanced(self, replicas: Sequence[int]) -> str:
        """The balancer of docker-compose.yml, with these processes, and the database's own beside it."""
        shipped, _, _ = (ROOT / "config" / "haproxy.cfg").read_text().partition("# Docker's DNS")
        nodes = "\n".join(
            f"    server {node.name} 127.0.0.1:{node.port} check port {node.rest_port}" for node in self.nodes
        )
        check = "check inter 1s fall 2 rise 1"
        stenos = "\n".join(f"    server steno{port} 127.0.0.1:{port} {check}" for port in replicas)
        return (
            f"{shipped}\n"
            f"listen clients\n    bind 127.0.0.1:{self.door}\n    balance leastconn\n    option httpchk\n"
            f"    http-check send meth GET uri /readyz\n    http-check expect status 200\n{stenos}\n"
            f"listen primary\n    bind 127.0.0.1:{self.port}\n    mode tcp\n    option httpchk GET /primary\n"
            "    http-check expect status 200\n"
            f"    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions\n{nodes}\n"
        )

    def _end(self) -> None:
        for node in self.nodes:
            node.end()
        for process in self._processes.values():
            process.terminate()
            process.wait()


async def _says(url: str) -> bool:
    with suppress(httpx2.HTTPError):
        async with httpx2.AsyncClient(trust_env=False, timeout=2.0) as client:
            return (await client.get(url)).status_code == 200
    return False
