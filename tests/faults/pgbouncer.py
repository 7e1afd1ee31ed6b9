"""PgBouncer in transaction mode: a caller's session is nobody's, and each transaction meets whichever is free."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.e2e.scripted import closed_port

COMMAND = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
"""Where Debian puts it; None where it is not installed."""
START_SECONDS = 10.0
_CONFIGURATION = """\
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
server_login_retry = 1
logfile = {folder}/log
{more}
"""


@contextmanager
def pgbouncer(url: str, *, connections: int = 2) -> Iterator[str]:
    """The URL of the same database through a PgBouncer of its own, which keeps so many connections."""
    if COMMAND is None:
        pytest.skip("PgBouncer is not installed")
    more = ""
    target = urlsplit(url)
    host = target.hostname or parse_qs(target.query)["host"][0]
    user = target.username or "postgres"
    with tempfile.TemporaryDirectory(prefix="steno-pgbouncer-") as name:
        folder, port = Path(name), closed_port()
        server = f"host={host} port={target.port or 5432} user={user}"
        if os.getuid() == 0:  # It refuses to run as root. The socket of a test's own PostgreSQL is its owner's alone.
            owner = Path(host).owner() if host.startswith("/") else "nobody"
            shutil.chown(folder, owner)
            more += f"\nuser = {owner}"
        options = {"server": server, "port": port, "connections": connections, "folder": folder, "more": more}
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(_CONFIGURATION.format(**options))
        process = subprocess.Popen([COMMAND, "-q", str(configuration)])  # noqa: S603 - a program of the system
        try:
            _wait_for(port)
            yield f"postgresql://{user}@127.0.0.1:{port}{target.path}"
        finally:
            process.kill()  # Told to stop, it waits for its callers.
            process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
