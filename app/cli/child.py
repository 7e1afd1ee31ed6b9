"""A command that runs in the foreground, as if the shell had started it: its terminal, its signals, its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

CANNOT_START = 125
"""Exit status where the command could not be started; this and the next two are as in `env` and `timeout`."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
FROM_A_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
PASSED_ON = (*FROM_A_KEYBOARD, signal.SIGTERM, signal.SIGHUP)


class Child:
    """One command, and the signals that are meant for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        """Signals that came before it ran."""

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run it; returns its exit status, negative if a signal ended it. Raises `OSError` if it cannot start."""
        with self._taking_signals():
            self._process = subprocess.Popen(command, env=environment)  # noqa: S603 - the user's own command
            for number in self._early:
                self._process.send_signal(number)
            return self._process.wait()

    @contextmanager
    def _taking_signals(self) -> Iterator[None]:
        # Handlers, and not SIG_IGN: the command would inherit that. What nohup had ignored stays ignored.
        taken = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._pass_on) for number in taken}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if number in FROM_A_KEYBOARD and _has_the_terminal():
            return  # The terminal sent it to the whole foreground group: the command has it already.
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)


def end_like(status: int) -> int:
    """Exit status for a command that ended so. An interrupt ends this process, too, so that a shell's loop ends."""
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status if status >= 0 else 128 - status


def _has_the_terminal() -> bool:
    """True if this process is in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
