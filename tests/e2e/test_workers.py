"""`steno serve --workers N`: processes that die, stop, share a database, and are added up."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import MODELS, Serving, until
from tests.e2e.conftest import Serve
from tests.e2e.histories import HELLO, chat, long_history
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, stream_head
from tests.e2e.test_serve import refused

pytestmark = [
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="it looks at processes as Linux shows them"),
]

KEY = {"authorization": "Bearer sk-test", "content-type": "application/json"}
CHAT = "/v1/chat/completions"
WORDS = {"words": 30, "chunk_delay": 0.05}
"""A stream of a second and a half."""


@pytest.fixture
def serve(tmp_path: Path, provider: RunningServer) -> Iterator[Serve]:
    """Starts two workers before the simulator, on a SQLite file in an empty directory."""
    with ExitStack() as started:

        def start(*more: str, **options: Any) -> Serving:
            arguments = ["--upstream", f"{provider.url}/v1", "--workers", "2", *more]
            serving = commands.serve(arguments, tmp_path, **{"STENO_MODELS": MODELS, **options})
            started.callback(end, serving)
            until(lambda: have_started(serving) == 2)
            return serving

        yield start


def end(serving: Serving) -> None:
    workers = workers_of(serving)
    serving.kill()
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def workers_of(serving: Serving) -> list[int]:
    """Their processes' ids, the one that is alive for longest first."""
    try:
        found = Path(f"/proc/{serving.process.pid}/task/{serving.process.pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(process) for process in found.split() if is_worker(process)]


def is_worker(process: str) -> bool:
    """Not the process in which Python looks after semaphores."""
    try:
        return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


class Talker:
    """A client with one connection, which one worker has accepted."""

    def __init__(self, serving: Serving) -> None:
        address = serving.url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self.get("/livez")
        self.port: int = self._connection.sock.getsockname()[1]
        self.worker = next(process for process in workers_of(serving) if self.port in peers_of(process))

    def get(self, path: str) -> str:
        self._connection.request("GET", path)
        return self._connection.getresponse().read().decode()

    def send(self, body: bytes) -> None:
        self._connection.request("POST", CHAT, body, KEY)

    def answer(self) -> http.client.HTTPResponse:
        return self._connection.getresponse()

    def is_open(self) -> bool:
        with suppress(http.client.HTTPException, OSError):
            return bool(self.get("/livez"))
        return False

    def close(self) -> None:
        self._connection.close()


def peers_of(process: int) -> set[int]:
    """The ports at the other ends of its connections."""
    own = set()
    for file in Path(f"/proc/{process}/fd").iterdir():
        try:
            own.add(str(file.readlink()))
        except FileNotFoundError:
            continue
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {int(row[2].partition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in own}


def listening_at(port: int) -> int:
    """How many sockets are."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(int(row[1].partition(":")[2], 16) == port and row[3] == "0A" for row in rows)


@pytest.fixture
def talkers() -> Iterator[ExitStack]:
    """Closes clients in the end."""
    with ExitStack() as talkers:
        yield talkers


def one_at(serving: Serving, talkers: ExitStack) -> Talker:
    return talkers.enter_context(closing(Talker(serving)))


def one_at_each(serving: Serving, talkers: ExitStack) -> Mapping[int, Talker]:
    """By worker. Each was used just now, as Steno closes a connection that rests for five seconds."""
    found: dict[int, Talker] = {}
    while len(found) < len(workers_of(serving)):
        talker = one_at(serving, talkers)
        found = {worker: each for worker, each in {talker.worker: talker, **found}.items() if each.is_open()}
    return found


def ask_each(talkers: Collection[Talker], body: bytes) -> list[http.client.HTTPResponse]:
    """Side by side: the first answer of a worker takes its time."""
    for talker in talkers:
        talker.send(body)
    return [talker.answer() for talker in talkers]


def metrics_of(text: str) -> dict[str, float]:
    rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {series: float(number) for series, _, number in rows}


def have_started(serving: Serving) -> int:
    """Workers, those that are gone included."""
    return sum(line["event"] == "Application startup complete." for line in serving.log)


# Start


def test_connections_meet_all_workers_and_no_other_steno_listens_beside_them(
    serve: Serve, talkers: ExitStack, tmp_path: Path
) -> None:
    """The kernel would let a second one of the same user."""
    serving = serve()
    served = Counter(one_at(serving, talkers).worker for _ in range(64))
    assert len(served) == 2
    assert min(served.values()) > 8  # Less happens once in a million times.
    # With one socket for all, whoever is awake takes most of a crowd.
    port, other = serving.url.rpartition(":")[2], tmp_path / "other"
    assert listening_at(int(port)) == 2
    other.mkdir()
    assert "Steno cannot listen on 127.0.0.1" in refused(other, "--port", port, "--workers", "2")
    assert not (other / ".local/share/steno/steno.db").exists()


# Workers that die


def test_a_killed_worker_is_replaced_and_streams_of_the_others_go_on(
    serve: Serve, talkers: ExitStack, scripted: ScriptedProvider
) -> None:
    is_gone = threading.Event()
    begun = stream_head() + chunked(b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n')
    stream = begun, is_gone, chunked(b"data: [DONE]\n\n") + LAST_CHUNK
    scripted.default = lambda received: stream if received.head.startswith(b"POST") else (answer(),)
    serving = serve("--upstream", f"{scripted.url}/v1")
    (killed, broken), (other, whole) = one_at_each(serving, talkers).items()
    answers = ask_each((broken, whole), chat(HELLO, stream=True))
    assert all(each.readline().startswith(b"data: ") for each in answers)
    os.kill(killed, signal.SIGKILL)
    until(lambda: killed not in workers_of(serving))
    is_gone.set()
    assert b"data: [DONE]" in answers[1].read()
    with pytest.raises((http.client.HTTPException, OSError)):
        answers[0].read()
    until(lambda: len(workers_of(serving)) == 2 and killed not in workers_of(serving))
    assert other in workers_of(serving)
    [line] = [line for line in serving.log if line["event"] == "worker ended"]
    assert line["status"] == -9
    assert set(one_at_each(serving, talkers)) == set(workers_of(serving))


# Stop


def streams(serving: Serving, talkers: ExitStack, simulator: Simulator) -> list[http.client.HTTPResponse]:
    """One at each worker, begun and not ended."""
    found = one_at_each(serving, talkers).values()
    for _ in found:
        simulator.next_chat(**WORDS)
    answers = ask_each(found, chat(HELLO, stream=True))
    for each in answers:
        each.readline()
    return answers


@pytest.mark.parametrize("told", ["SIGTERM", "an interrupt of the whole group"])
def test_a_stop_lets_the_streams_of_all_workers_end(
    serve: Serve, talkers: ExitStack, simulator: Simulator, told: str
) -> None:
    """Whether the supervisor is told, or everybody, as by a keyboard or by systemd, in whatever order."""
    serving = serve()
    answers = streams(serving, talkers, simulator)
    number = signal.SIGINT if "interrupt" in told else signal.SIGTERM
    for process in [serving.process.pid, *(workers_of(serving) if "group" in told else ())]:
        os.kill(process, number)
    until(lambda: refuses(serving))
    assert all(b"data: [DONE]" in answer.read() for answer in answers)
    assert serving.wait() == 0
    assert serving.errors == ""
    assert "worker ended" not in {line["event"] for line in serving.log}


def test_a_second_interrupt_waits_for_nothing(serve: Serve, talkers: ExitStack, simulator: Simulator) -> None:
    """Of the whole group, as from a keyboard."""
    serving = serve(STENO_SERVER__DRAIN_SECONDS="300")
    simulator.next_chat(words=1_000, chunk_delay=1.0)
    [talker, _] = one_at_each(serving, talkers).values()
    ask_each([talker], chat(HELLO, stream=True))[0].readline()
    group = [serving.process.pid, *workers_of(serving)]
    for process in group:
        os.kill(process, signal.SIGINT)
    until(lambda: refuses(serving))
    assert serving.process.poll() is None, "it waits for what may still end"
    for process in group:
        if Path(f"/proc/{process}").exists():
            os.kill(process, signal.SIGINT)
    assert serving.wait() == 0


def refuses(serving: Serving) -> bool:
    host, port = serving.url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return True
    return False


# What they share


def test_any_worker_tells_the_sum_of_all_also_of_those_that_died(serve: Serve, talkers: ExitStack) -> None:
    serving = serve()
    met = one_at_each(serving, talkers)
    assert all(each.read() for each in ask_each(met.values(), chat(HELLO)))
    assert ask_each([one_at(serving, talkers)], chat(long_history()))[0].read()
    told = [metrics_of(talker.get("/metrics")) for talker in one_at_each(serving, talkers).values()]
    for metrics in told:
        assert metrics['steno_requests_total{route="chat",status="2xx"}'] == 3
        assert metrics['steno_payloads_total{context_status="full"}'] == 2
        assert metrics['steno_payloads_total{context_status="summarized"}'] == 1
        assert metrics['steno_compactions_total{outcome="made",purpose="summary"}'] == 1
        assert metrics["steno_summary_wait_seconds_count"] == 1
        assert metrics['steno_tokens_total{kind="prompt",purpose="summary"}'] > 0
        assert metrics['steno_tokens_total{kind="saved",purpose="message"}'] > 0
        assert metrics["steno_database_up"] == 1
    for number, worker in enumerate(met, start=3):  # One after the other: somebody serves all the time.
        os.kill(worker, signal.SIGKILL)
        until(lambda: have_started(serving) == number)  # noqa: B023
    after = metrics_of(httpx2.get(f"{serving.url}/metrics", timeout=60).text)
    assert after["steno_database_up"] == 1
    counters = [series for series in after if re.match(r"steno_\w+(_total|_count|_sum|_bucket)\b", series)]
    assert len(counters) > 50
    assert not [series for series in counters if after[series] < told[-1].get(series, 0)]


def test_a_first_worker_that_cannot_start_ends_all_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in refused(tmp_path, "--workers", "2", "--database-url", f"sqlite:///{tmp_path}/file/steno.db")
