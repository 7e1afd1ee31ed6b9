"""Code that one request goes through: files, functions, and calls from one file of `app` into another.

python -m lab.benchmarks.request_path

A request below the trigger, and one whose summary is made.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx2

from lab.replay.stage import stage

APP = f"{Path(__file__).parents[2] / 'app'}/"
MODEL, WINDOW = "gpt-4o", 8_000
TURN = "The ferry leaves berth {n} at noon, and the harbour master writes down the weather. " * 12


class RequestPath:
    """Functions of `app` that run while `watching`, in all threads that begin after this."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.calls: Counter[tuple[str, str]] = Counter()
        """Calls from one file into another."""
        self._watches = False
        threading.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._watches or not frame.f_code.co_filename.startswith(APP):
            return
        code, caller = frame.f_code, frame.f_back
        self.functions.add(code)
        if caller is not None and caller.f_code.co_filename not in ("", code.co_filename):
            self.calls[caller.f_code.co_filename, code.co_filename] += caller.f_code.co_filename.startswith(APP)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.functions.clear()
        self.calls.clear()
        self._watches = True
        try:
            yield
        finally:
            self._watches = False

    def files(self) -> list[str]:
        return sorted({code.co_filename.removeprefix(APP) for code in self.functions})

    def line(self, what: str) -> str:
        compaction = sum(file.startswith("compaction/") for file in self.files())
        # Comprehensions and lambdas have names such as `<listcomp>`; the former are functions only before Python 3.12.
        defs = sum(not code.co_name.startswith("<") for code in self.functions)
        return (
            f"{what}: {len(self.files())} files ({compaction} in compaction), {len(self.functions)} functions"
            f" ({defs} of them by `def`), {sum(self.calls.values())} calls between files"
        )


def ask(client: httpx2.Client, turns: int, name: str) -> str:
    """Send a conversation of so many turns; return its context status."""
    talk = [
        {"role": role, "content": f"{name}: {TURN.format(n=n)}"} for n in range(turns) for role in ("user", "assistant")
    ]
    body = {"model": MODEL, "messages": [*talk, {"role": "user", "content": "Which berth?"}]}
    response = client.post("/chat/completions", json=body)
    response.raise_for_status()
    return str(response.json()["context_status"])


def main() -> int:
    path = RequestPath()
    with stage(MODEL, WINDOW) as on, httpx2.Client(base_url=on.base_url, timeout=60, trust_env=False) as client:
        client.headers["authorization"] = "Bearer sk-path"
        for turns, expected in ((2, "full"), (14, "summarized")):
            ask(client, turns, "one before")  # What is loaded and learnt once.
            with path.watching():
                status = ask(client, turns, "measured")
            if status != expected:
                raise SystemExit(f"The request of {turns} turns went {status}, not {expected}.")
            sys.stdout.write(path.line(f"a request that goes {status}") + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
