"""Processes that begin with everything imported: `steno` would spend more than a second on that, each time.

A process of its own imports Steno once and waits. Whatever is to be run is run there as `python -m` does it, in a copy
that knows nothing but its arguments, folder and environment; it has an id of its own, and can be sent any signal.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any

LONGEST = 1 << 16
"""Bytes of an order."""


class Forked:
    """As much of `subprocess.Popen` as is used."""

    def __init__(self, reply: socket.socket) -> None:
        self._reply = reply
        self.pid = int(reply.recv(LONGEST))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._reply], [], [], 0)[0]:
            self.returncode = int(self._reply.recv(LONGEST))
            self._reply.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self._reply], [], [], timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Gives the process up, whether it has ended or not."""
        self._reply.close()


class Forks:
    """The process that waits for orders."""

    def __init__(self, environment: Mapping[str, str], checkout: Path) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=checkout,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def start(
        self, module: str, arguments: list[str], folder: Path, environment: Mapping[str, str], *files: IO[Any]
    ) -> Forked:
        """The files are its standard output and standard error."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            order = json.dumps([module, arguments, str(folder), dict(environment)]).encode()
            socket.send_fds(self._control, [order], [theirs.fileno(), *(file.fileno() for file in files)])
        return Forked(ours)

    def close(self) -> None:
        """What was started goes on."""
        self._control.close()
        self._process.wait()


def _import_everything() -> None:
    import app  # noqa: PLC0415 - for the process that waits alone
    from app.tokens.tokenizer import Tokenizer  # noqa: PLC0415

    for found in pkgutil.walk_packages(app.__path__, "app."):
        if not found.name.endswith("__main__"):
            import_module(found.name)
    Tokenizer().counter("o200k_base")


def _wait_for_orders(control: socket.socket) -> str:
    """Returns in each of the copies, with the module that it shall run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for those that wait for the copies.
    while True:
        order, files, *_ = socket.recv_fds(control, LONGEST, 3)
        if not order:
            os._exit(0)
        if not os.fork():
            break
        for file in files:
            os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        with socket.socket(fileno=files[0]) as reply:
            reply.send(str(pid).encode())
            _, status = os.waitpid(pid, 0)
            reply.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    control.close()
    for number, file in enumerate(files):
        if number:
            os.dup2(file, number)
        os.close(file)
    module, arguments, folder, environment = json.loads(order)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = [module, *arguments], folder
    sys.modules.pop(module, None)
    return str(module)


if __name__ == "__main__":
    _import_everything()
    gc.freeze()
    runpy.run_module(_wait_for_orders(socket.socket(fileno=int(sys.argv[1]))), run_name="__main__", alter_sys=True)
