"""Cost of a turn for a whole process, by the length of the history before it.

`plain`: the window is far away. `over`: it is over the trigger, and the summaries it needs are stored. `first`: what
the process has never seen, plain and over, where a summariser answers at once. Times are milliseconds of the
processor, of all threads, for one turn: the median of a few, each with two new messages. `direct` is what the same
bytes take where they are not looked at, by another path. One process, one run: ratios hold on any machine, times do
not.

    python -m lab.benchmarks.history
"""

from __future__ import annotations

import asyncio
import http.client
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec

from lab.benchmarks.talks import message
from lab.benchmarks.waiters import ANSWER, SUMMARY, _response
from tests.e2e.commands import Serving
from tests.e2e.crowds import replicas

SIZES = {1_000: 1_500, 10_000: 6_000, 100_000: 32_000, 1_000_000: 128_000}
"""Tokens of the history, and the window in which it is over the trigger."""
MESSAGE_TOKENS = 135
TURNS = 9
PLAIN, OVER = "plain", "over"
COLUMNS = ("direct", PLAIN, OVER, "first", "first over")


def main() -> None:
    print(f"{'history':>10} {'messages':>9} {'bytes':>10}" + "".join(f" {column:>10}" for column in COLUMNS))
    with tempfile.TemporaryDirectory() as folder, provider() as url:
        for tokens, window in SIZES.items():
            models = [{"match": PLAIN, "context_window": 10_000_000}, {"match": OVER, "context_window": window}]
            variables = {
                "STENO_MODELS": msgspec.json.encode(models).decode(),
                "STENO_CALIBRATION__ENABLED": "false",
                "STENO_UPSTREAM__DISCOVER_WINDOWS": "false",
                "STENO_STORAGE__TIMEOUT_SECONDS": "10",
                "STENO_LIMITS__SUMMARY_TOKENS_PER_HOUR": "1000000000",
            }
            place = Path(folder) / str(tokens)
            place.mkdir()
            with replicas(1, f"sqlite:///{place}/steno.db", url, place, **variables) as (serving,):
                print(_row(serving, tokens), flush=True)


def _row(serving: Serving, tokens: int) -> str:
    random_ = random.Random(tokens)
    history = [message(random_) for _ in range(tokens // MESSAGE_TOKENS | 1)]
    size = sum(map(len, history))
    client = Client(serving)
    client.turn("warm", [message(random_)])
    direct = median(client.turn(PLAIN, history, "/v1/responses") for _ in range(3))
    first = {model: client.turn(model, history) for model in (PLAIN, OVER)}
    seen: dict[str, list[float]] = {PLAIN: [], OVER: []}
    for _ in range(TURNS):
        history = [*history, message(random_), message(random_)]
        for model, times in seen.items():
            times.append(client.turn(model, history))
    columns = [direct, median(seen[PLAIN]), median(seen[OVER]), first[PLAIN], first[OVER]]
    shown = "".join(f" {value:10.2f}" for value in columns)
    return f"{tokens:>10,} {len(history):>9,} {size:>10,}{shown}"


class Client:
    def __init__(self, serving: Serving) -> None:
        self._pid = serving.process.pid
        self._connection = http.client.HTTPConnection("127.0.0.1", int(serving.url.rpartition(":")[2]))

    def turn(self, model: str, history: list[bytes], path: str = "/v1/chat/completions") -> float:
        """Milliseconds of the processor."""
        body = b'{"model":"%b","messages":[%b]}' % (model.encode(), b",".join(history))
        before = processor_nanoseconds(self._pid)
        self._connection.request("POST", path, body, {"content-type": "application/json", "authorization": "Bearer k"})
        answer = self._connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path} was answered with status {answer.status}.")
        return (processor_nanoseconds(self._pid) - before) / 1e6


def processor_nanoseconds(pid: int) -> int:
    """Nanoseconds used by all threads, as Linux counts."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


@contextmanager
def provider() -> Iterator[str]:
    """One that answers at once, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    serving = asyncio.run_coroutine_threadsafe(asyncio.start_server(_serve, "127.0.0.1", 0, limit=1 << 24), loop)
    port = serving.result().sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(loop.stop)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
            summary = b"x-context-call: summary" in head
            writer.write(
                _response(b"text/event-stream", SUMMARY) if summary else _response(b"application/json", ANSWER)
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


if __name__ == "__main__":
    main()
