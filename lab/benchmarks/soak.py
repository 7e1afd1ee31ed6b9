"""Hours of mixed load against one process: its memory and its descriptors have to stay where they are.

The provider is the simulator; one in a hundred of its answers goes wrong. The clients hold one conversation after the
other, each of them new, half of them without a name: so there are summaries to make all the time, and the caches, which
get little room, are full soon after the start. What still grows after the warm-up is a leak.

    python -m lab.benchmarks.soak --hours 1

Exit status 1 if the memory grows by more than 1 MB an hour after the warm-up, if there are more descriptors at the end
than at its end, or if a request got no answer in time. Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import httpx2
import msgspec

from lab.simulator import Record, Simulator
from lab.simulator.script import Fault
from tests.chaos.talkers import WORDS
from tests.e2e.commands import Serving, serve

CLIENTS = 8
CONVERSATIONS = 6
"""Names that each client has for its conversations. It deletes what it held under one before it uses it again."""
CACHE_MEGABYTES = 24
TURNS = 14
FAULTS = 0.01
ASK_SECONDS = 60.0
PAUSE = 0.25
"""Mean seconds between two requests of a client."""
SAMPLE_SECONDS = 2.0
TOLD, TOLD_SECONDS = 60, 20.0
"""Lines on the way, and seconds between two of them at least."""
WARM_UP = 2 / 3
"""Share of the time, at most two hours: SQLite's caches alone take 2 MB a connection, and fill with the file, and the
heap still took steps of 1 MB after 37 minutes."""
LONGEST_WARM_UP = 7_200.0
MOST_MB_AN_HOUR = 1.0
GRAIN_MB = 0.65
"""Megabytes that a heap may move by itself; over an hour less than the limit, so only short runs are spared by it."""
SPARE_DESCRIPTORS = 3

WAYS: Sequence[Fault] = (
    Fault(status=500),
    Fault(status=503, retry_after=1.0),
    Fault(status=429, retry_after=2.0),
    Fault(cut="reset", after=40),
    Fault(cut="close", after=3),
    Fault(cut="end", after=5),
    Fault(error_frame={"message": "The engine is overloaded.", "type": "server_error"}, after=2),
    Fault(delay=3.0),
    Fault(text=""),
    Fault(refusal="I cannot help with that."),
)
"""Ways in which an answer goes wrong."""


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    """Seconds since the start."""
    megabytes: float
    """Resident."""
    descriptors: int
    cached: float
    """Megabytes that the caches hold, by their own account."""


@dataclass(slots=True)
class Load:
    """The clients of one Steno."""

    url: str
    seed: int
    statuses: Counter[str] = field(default_factory=Counter)
    silent: list[str] = field(default_factory=list)
    """Requests without an answer in time."""
    _over: bool = False

    @property
    def requests(self) -> int:
        return self.statuses.total()

    def stop(self) -> None:
        self._over = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        names = [f"soak-{number}-{conversation}" for conversation in range(CONVERSATIONS)]
        headers = {"authorization": f"Bearer sk-soak-{number % 3}"}
        async with httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=ASK_SECONDS, trust_env=False
        ) as client:
            while not self._over:
                for name in names:
                    await self._send(client, "DELETE", f"/context/conversations/{name}")
                    await self._hold(client, name, _history(name, chance), chance)
                    await self._hold(client, "", _history(name, chance), chance)

    async def _hold(self, client: httpx2.AsyncClient, name: str, history: Sequence[Any], chance: random.Random) -> None:
        for turn in range(1, TURNS + 1):
            if self._over:
                return
            await asyncio.sleep(chance.expovariate(1 / PAUSE))
            body = {"model": "gpt-4o", "messages": history[: 2 * turn], "stream": chance.random() < 0.5}
            await self._send(client, "POST", "/v1/chat/completions", msgspec.json.encode(body), session=name, turn=turn)
            match chance.randrange(40):
                case 0:
                    await self._send(client, "POST", "/v1/chat/completions", b'{"model": "gpt-4o", "messages": [')
                case 1:
                    await self._send(client, "GET", "/v1/models")
                case 2 if name:
                    await self._send(client, "GET", f"/context/conversations/{name}/coverage")
                case 3:
                    await self._leave(client, name, body)
                case _:
                    pass

    async def _leave(self, client: httpx2.AsyncClient, name: str, body: Mapping[str, Any]) -> None:
        """A client that hangs up in the middle of a stream."""
        content = msgspec.json.encode({**body, "stream": True})
        try:
            headers = {"x-session-id": name} if name else {}
            async with client.stream("POST", "/v1/chat/completions", content=content, headers=headers) as answer:
                async for _ in answer.aiter_raw():
                    break
        except httpx2.HTTPError as error:
            self.statuses[type(error).__name__] += 1
        else:
            self.statuses["left"] += 1

    async def _send(
        self, client: httpx2.AsyncClient, method: str, path: str, body: bytes = b"", *, session: str = "", turn: int = 0
    ) -> None:
        headers = {"content-type": "application/json", **({"x-session-id": session} if session else {})}
        try:
            answer = await client.request(method, path, content=body, headers=headers)
        except httpx2.TimeoutException:
            self.silent.append(f"{method} {path} {session} {turn}")
        except httpx2.HTTPError as error:  # As it should be: the provider broke off.
            self.statuses[type(error).__name__] += 1
        else:
            self.statuses[str(answer.status_code)] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache-megabytes", type=int, default=CACHE_MEGABYTES, help="limits.cache_bytes")
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    simulator = Simulator(models="any", window=1_000_000, log_limit=200, log_bodies=False, count=lambda t: len(t) // 4)
    for way in WAYS:
        simulator.when(_now_and_then(chance), way)
    with tempfile.TemporaryDirectory() as folder, simulator.serve() as provider:
        steno = serve(["--config", _config(Path(folder), provider.url, chosen.cache_megabytes)], Path(folder))
        try:
            load = Load(steno.url, chosen.seed)
            samples = asyncio.run(_soak(load, steno, 3_600 * chosen.hours))
            steno.terminate()
            steno.wait()
        finally:
            steno.kill()
        summaries = sum(line["event"] == "compacted" for line in steno.log)
    sys.exit(1 if _report(load, samples, summaries) else 0)


def _now_and_then(chance: random.Random) -> Callable[[Record], bool]:
    return lambda _: chance.random() < FAULTS / len(WAYS)


def _config(folder: Path, provider: str, cache_megabytes: int) -> str:
    path = folder / "steno.json"
    settings = {
        "upstream": {"base_url": f"{provider}/v1"},
        "models": [{"match": "*", "context_window": 8_000}],
        "limits": {"cache_bytes": cache_megabytes * 1_000_000},
        "storage": {"url": f"sqlite:///{folder}/steno.db"},
    }
    path.write_bytes(msgspec.json.encode(settings))
    return str(path)


async def _soak(load: Load, steno: Serving, seconds: float) -> list[Sample]:
    loading = asyncio.create_task(load.run())
    began, samples = time.monotonic(), list[Sample]()
    told = 0.0
    while (at := time.monotonic() - began) < seconds and not loading.done():
        samples.append(Sample(at, *_look(steno.process.pid), await asyncio.to_thread(_cached, steno.url)))
        if at >= told:
            latest = samples[-1]
            shown = f"{latest.megabytes:.1f} MB, {latest.cached:.1f} in caches, {latest.descriptors} descriptors"
            print(f"{at / 60:5.1f} minutes, {load.requests:,} requests: {shown}", flush=True)
            told += max(TOLD_SECONDS, seconds / TOLD)
        await asyncio.sleep(SAMPLE_SECONDS)
    load.stop()
    await loading
    return samples


def _look(process: int) -> tuple[float, int]:
    """Resident megabytes and open descriptors."""
    folder = Path("/proc") / str(process)
    pages = int((folder / "statm").read_text().split()[1])
    return pages * 4_096 / 1e6, sum(1 for _ in (folder / "fd").iterdir())


def _cached(url: str) -> float:
    told = httpx2.get(f"{url}/metrics", trust_env=False).text.splitlines()
    return sum(float(line.split()[-1]) for line in told if line.startswith("steno_cache_bytes{")) / 1e6


def _report(load: Load, samples: Sequence[Sample], summaries: int) -> bool:
    """Prints what was seen; whether it is too much."""
    lasted = samples[-1].at
    warm = min(WARM_UP * lasted, LONGEST_WARM_UP)
    after = [sample for sample in samples if sample.at >= warm]
    hours = [sample.at / 3_600 for sample in after]
    slope = linear_regression(hours, [sample.megabytes for sample in after]).slope
    growth = slope * (hours[-1] - hours[0])
    quarter = max(1, len(after) // 4)
    first, last = (median(s.descriptors for s in part) for part in (after[:quarter], after[-quarter:]))
    leaks = slope > MOST_MB_AN_HOUR and growth > GRAIN_MB
    print(
        f"{lasted / 60:.0f} minutes, {load.requests:,} requests ({load.requests / lasted:.0f}/s), {summaries} summaries"
    )
    print("answers: " + ", ".join(f"{status} x {number:,}" for status, number in load.statuses.most_common()))
    resident = (f"{sample.megabytes:.1f} MB" for sample in (samples[0], after[0], after[-1]))
    print("memory: {} at the start, {} after the warm-up, {} at the end".format(*resident))
    print(f"caches: {after[0].cached:.1f} MB after the warm-up, {after[-1].cached:.1f} MB at the end")
    print(f"slope after {warm / 60:.1f} minutes of warm-up: {slope:+.2f} MB an hour ({growth:+.2f} MB)")
    print(f"descriptors: {first:.0f} after the warm-up, {last:.0f} at the end")
    problems = {
        f"the memory grows by more than {MOST_MB_AN_HOUR:.0f} MB an hour": leaks,
        "descriptors are not closed": last > first + SPARE_DESCRIPTORS,
        f"{len(load.silent)} requests were not answered within {ASK_SECONDS:.0f} s": bool(load.silent),
    }
    for problem, is_there in problems.items():
        if is_there:
            print(f"FAILED: {problem}")
    return any(problems.values())


def _history(name: str, chance: random.Random) -> list[dict[str, str]]:
    """Ends with a user message at every odd length."""

    def text(sentences: int) -> str:
        said = (" ".join(chance.choices(WORDS, k=12)) for _ in range(sentences))
        return f"Of {name} {chance.getrandbits(40):x}: {'. '.join(said)}."

    messages = [{"role": "system", "content": f"You keep the log of {name}."}]
    for _ in range(TURNS):
        messages += [{"role": "user", "content": text(26)}, {"role": "assistant", "content": text(18)}]
    return messages


if __name__ == "__main__":
    main()
