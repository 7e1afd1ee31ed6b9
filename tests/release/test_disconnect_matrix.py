"""The disconnect matrix: a client leaves at each phase, streaming or not, while Steno is told to stop or not.

Every summary that was begun is finished and kept, and the provider is rid of the answer within a second. Where Steno
stops it is a process of its own, with a real SIGTERM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.e2e import commands, running
from tests.e2e.commands import SECRET, Serving, until
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import connected, post, read_answer, read_until, request_bytes
from tests.e2e.running import WINDOW, Sections, Steno
from tests.e2e.scripted import LAST_CHUNK, Received, ScriptedProvider, Step, answer, chunked, stream_head
from tests.e2e.test_disconnects import FRAME

Phase = Literal[
    "waiting for the summary", "summary streaming", "waiting for the first byte", "mid-stream", "after the end"
]
PHASES: tuple[Phase, ...] = (
    "waiting for the summary",
    "summary streaming",
    "waiting for the first byte",
    "mid-stream",
    "after the end",
)

LONG = long_history()
TEXT = b"The customer asked about an order that went to the old address; it returns to the warehouse on Friday. " * 3
END = b'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
PLAIN = answer(
    json.dumps(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}]}
    ).encode()
)
SECONDS = 1.5
"""That the provider takes for a summary, after the client has left: longer than a server that stops goes on anyway."""


@dataclass(frozen=True, slots=True)
class Case:
    phase: Phase
    stream: bool
    stop: bool

    def __str__(self) -> str:
        return f"{self.phase}, {'stream' if self.stream else 'plain'}{', SIGTERM' if self.stop else ''}"

    @property
    def summary(self) -> tuple[Step, ...]:
        begun, rest = stream_head() + chunked(FRAME % TEXT), chunked(END) + LAST_CHUNK
        match self.phase:
            case "waiting for the summary":
                return SECONDS, begun + rest
            case "summary streaming":
                return begun, SECONDS, rest
        return (begun + rest,)

    @property
    def answer(self) -> tuple[Step, ...]:
        begun = stream_head() + chunked(FRAME % b"aaa") if self.stream else PLAIN[:-20]
        match self.phase:
            case "waiting for the first byte":
                return ("hang",)
            case "mid-stream":
                return begun, "hang"
        return (begun + chunked(END) + LAST_CHUNK if self.stream else PLAIN,)

    @property
    def is_answered(self) -> bool:
        """Whether the client leaves so late that the provider was asked for the answer."""
        return self.phase not in ("waiting for the summary", "summary streaming")


CASES = tuple(Case(phase, stream, stop) for phase in PHASES for stream in (False, True) for stop in (False, True))

Start = Callable[[], Steno | Serving]


@pytest.fixture
def start(
    scripted: ScriptedProvider, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> Iterator[Start]:
    """Starts Steno on the one database: in this process, or in one of its own that can be sent a signal."""
    running.forget_environment(monkeypatch)
    started: list[Steno | Serving] = []
    sections: Sections = {"storage": {"url": sqlite_url}}

    def start() -> Steno | Serving:
        if case.stop:
            serving = commands.serve(
                ["--upstream", f"{scripted.url}/v1"],
                tmp_path,
                DATABASE_URL=sqlite_url,
                STENO_SECRET=SECRET,
                STENO_MODELS=json.dumps([{"match": "*", "context_window": WINDOW}]),
                STENO_UPSTREAM__DISCOVER_WINDOWS="false",
            )
            started.append(serving)
            return serving
        started.append(running.start(scripted.url, sections))
        return started[-1]

    yield start
    for one in started:
        one.kill() if isinstance(one, Serving) else one.stop()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_client_that_leaves_loses_no_summary_and_ends_the_answer(
    scripted: ScriptedProvider, start: Start, case: Case
) -> None:
    """The next client of the same history is sent the same summary, and nobody pays for it again."""
    scripted.then(*case.summary).then(*case.answer)
    steno = start()
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(LONG, stream=case.stream)))
        assert scripted.wait_for(lambda requests: len(requests) == (2 if case.is_answered else 1))
        if case.phase == "after the end":
            assert read_answer(connection).status == 200
        elif case.phase == "mid-stream" and case.stream:
            read_until(connection, b"aaa")
        else:
            time.sleep(0.2)  # Whatever comes comes to Steno only.
        connection.close()
        if isinstance(steno, Serving):
            steno.terminate()
    _check_answer(scripted, case)
    if isinstance(steno, Serving):
        assert steno.wait() == 0
        steno = start()
    else:
        tasks = steno.services.tasks._tasks
        until(lambda: not tasks)
    assert _is_summary(scripted.requests[0])
    assert scripted.requests[0].closed_at is None, "the summary was given up"
    before = len(scripted.requests)
    assert before == (2 if case.is_answered else 1), "the answer was asked for, and nobody waited for it"
    scripted.then(PLAIN)
    again: Any = post(steno.url, chat(LONG))
    assert (again.status, again.header("x-context-status")) == (200, "summarized")
    assert [_is_summary(request) for request in scripted.requests[before:]] == [False]


def _check_answer(scripted: ScriptedProvider, case: Case) -> None:
    """The provider was working on it: then it sees the connection close."""
    if case.phase in ("waiting for the first byte", "mid-stream"):
        assert scripted.wait_for(lambda requests: requests[1].closed_at is not None)


def _is_summary(request: Received) -> bool:
    return request.all(b"x-context-call") == [b"summary"]
