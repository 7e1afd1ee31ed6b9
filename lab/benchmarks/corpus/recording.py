"""Recording: a Steno of a checkout, the cases sent to it one after the other, and what was exchanged in files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import Any

from lab.benchmarks.corpus.case import Answers, Case, Group, Step, chat
from lab.benchmarks.corpus.framing import OWN_KEY, Answer, header, read_answer, request
from lab.benchmarks.corpus.provider import SETTLE, Provider, Received

START = "{tree}/.venv/bin/python -m app.commands.cli serve"
"""`{tree}` is the checkout. Settings come by `STENO_CONFIG`, the code by `PYTHONPATH`."""
SETTINGS: Mapping[str, Any] = {
    "server": {"port": 0},
    # Not asked for its models: in which order that goes beside the cases is of chance.
    "upstream": {"base_url": "{provider}/v1", "discover_windows": False},
    "models": [
        {"match": "*small*", "context_window": 2_000},
        {"match": "*wide*", "context_window": 128_000},
        {"match": "*", "context_window": 6_000},
    ],
    # Generous: how busy this machine is must not be seen.
    "storage": {"url": "memory", "timeout_seconds": 10.0},
    # A folder that is named makes the tables required, wherever they are found.
    "tokenizer": {"directory": "{folder}"},
    "secret": "the secret of the recorded corpus",
}
START_SECONDS = 60.0
STEP_SECONDS = 30.0
BREATH_SECONDS = 0.02
"""Between two steps: what Steno learns of an answer, it learns right after its last byte."""
AT_ONCE = 6
"""Stenos that are recorded side by side. Each has a provider of its own."""
TIME = b"<time>"


@dataclass(slots=True)
class Placeholders:
    """Stand-ins for chance, numbered by their first appearance in a case, and for the clock, without a number.

    Names of conversations, summaries and compactions need none: they are digests under the secret.
    """

    port: int
    own: Sequence[bytes] = ()
    _numbers: dict[bytes, bytes] = field(default_factory=dict)
    _counts: dict[bytes, int] = field(default_factory=dict)

    def replaced(self, data: bytes) -> bytes:
        data = data.replace(b"127.0.0.1:%d" % self.port, b"<provider>")
        for pattern in CLOCK:
            data = pattern.sub(TIME, data)
        for kind, pattern in CHANCE.items():
            data = pattern.sub(lambda found, kind=kind: self._number(kind, found[0]), data)  # type: ignore[misc]
        for own in self.own:
            data = re.sub(own, lambda found: self._number(b"chance", found[0]), data)
        return data

    def message(self, head: bytes, body: bytes) -> bytes:
        """A request or an answer; a length that was right is right for the body with its placeholders."""
        placed = self.replaced(body)
        if header(head, b"content-length") == b"%d" % len(body):
            head = re.sub(rb"(?i)(\r\ncontent-length: *)\d+", rb"\g<1>%d" % len(placed), head)
        return self.replaced(head) + b"\r\n\r\n" + placed

    def _number(self, kind: bytes, found: bytes) -> bytes:
        if found not in self._numbers:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._numbers[found] = b"<%b %d>" % (kind, self._counts[kind])
        return self._numbers[found]


CHANCE = {
    b"request": re.compile(rb"\breq_[0-9a-f]{24}\b"),
    b"usage": re.compile(rb"\buse_[0-9a-f]{24}\b"),
    b"completion": re.compile(rb"\bchatcmpl-[0-9a-f]{24}\b"),
    # The last one only: those before it came from the client.
    b"hop": re.compile(rb"(?<=[:,] )[0-9a-f]{16}(?=\r|\Z)"),
    b"holder": re.compile(rb"(?<=\"holder\":\")[0-9a-f]{16}\b"),
    # A digest that holds the provider's port.
    b"calibration": re.compile(rb"\bcal_[0-9a-f]{32}\b"),
}
CLOCK = (
    re.compile(rb"(?<=\"created\":)(1[7-9]|[2-9]\d)\d{8}\b"),
    re.compile(rb"(?<=[:,\[])-?(1[7-9]|[2-9]\d)\d{11}\b"),
    re.compile(rb"\b20(2[5-9]|[3-9]\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"),
    re.compile(rb"(?i)(?<=\r\ndate: )[^\r]*"),
)


class RecordingFailed(Exception):
    """Steno did not start, or a step came to no end."""


@dataclass(slots=True)
class Recorder:
    """A running Steno and the provider behind it."""

    provider: Provider
    port: int
    _settled: int = 0

    async def case(self, number: int, case: Case) -> bytes:
        """Everything that was exchanged, in the form in which it is kept."""
        key = f"sk-{number}-{case.name}".encode()
        placeholders = Placeholders(self.provider.port, case.chance)
        answers: list[Answer] = []
        sections: list[bytes] = []
        for place, step in enumerate(case.steps, 1):
            try:
                sent, answer = await self._step(step, answers, key)
            except (TimeoutError, OSError, ValueError, LookupError, asyncio.IncompleteReadError) as error:
                raise RecordingFailed(f"{case.name}, step {place}: {error!r}") from error
            answers.append(answer)
            sections.append(_section(place, b"to Steno", sent))
            for received in _sorted(self.provider.take()):
                kind = b"to the provider, for a summary" if received.is_summary else b"to the provider"
                sections.append(_section(place, kind, placeholders.message(received.head, received.body)))
            ended = b"from Steno, " + answer.end if answer.end else b"from Steno"
            sections.append(_section(place, ended, placeholders.message(answer.head, answer.body)))
        return b"".join(sections)

    async def settle(self) -> None:
        """Returns once everything that was seen so far is stored: records are stored in their order."""
        self._settled += 1
        name = f"settle-{self._settled}"
        marked = chat(
            [{"role": "user", "content": name}],
            f"{SETTLE.decode()}: 1",
            key="sk-settle",
            model=name,
            conversation_id=name,
        )
        await self._exchange(marked)
        asked = request(f"/context/conversations/{name}/usage", key="sk-settle")
        deadline = monotonic() + STEP_SECONDS
        while (answer := await self._exchange(asked)).head[9:12] != b"200" or not answer.json["data"]:
            if monotonic() > deadline:
                raise RecordingFailed("What was seen is not stored.")
            await asyncio.sleep(BREATH_SECONDS)

    async def _step(self, step: Step, answers: Answers, key: bytes) -> tuple[bytes, Answer]:
        await (self.settle() if step.settles else asyncio.sleep(BREATH_SECONDS))
        made = step.request if isinstance(step.request, bytes) else step.request(answers)
        head, blank, body = made.partition(b"\r\n\r\n")
        sent = head.replace(OWN_KEY.encode(), key) + blank + body
        self.provider.script(step.messages, step.summaries)
        deadline = monotonic() + STEP_SECONDS
        while True:
            answer = await self._exchange(sent)
            if step.until is None or step.until(answer):
                return sent, answer
            if monotonic() > deadline:
                raise TimeoutError
            self.provider.take()
            await asyncio.sleep(BREATH_SECONDS)

    async def _exchange(self, sent: bytes) -> Answer:
        async with asyncio.timeout(STEP_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
            try:
                writer.write(sent)
                return await read_answer(reader, sent.partition(b" ")[0])
            finally:
                writer.close()


def _section(place: int, title: bytes, data: bytes) -> bytes:
    return b"\n=== %d: %b ===\n%b\n" % (place, title, data)


def _sorted(received: Sequence[Received]) -> Iterator[Received]:
    """Calls in their order, but summary calls that follow each other by their bytes: some are made side by side."""
    for is_summary, run in groupby(received, key=lambda one: one.is_summary):
        together = list(run)
        yield from sorted(together, key=lambda one: CHANCE[b"hop"].sub(b"", one.raw)) if is_summary else together


async def record(groups: Sequence[Group], out: Path, tree: Path, start: str) -> int:
    """Writes a folder for each group, with a file for each case. How many cases there are."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def recorded(group: Group) -> int:
        async with turns:
            return await _record_group(group, out / group.name, tree, start)

    async with asyncio.TaskGroup() as tasks:
        counts = [tasks.create_task(recorded(group)) for group in groups]
    return sum(count.result() for count in counts)


async def _record_group(group: Group, folder: Path, tree: Path, start: str) -> int:
    provider = Provider()
    await provider.start()
    try:
        async with _steno(group, provider.port, tree, start) as port:
            recorder = Recorder(provider, port)
            for number, each in enumerate(group.cases, 1):
                _write(folder / f"{number:03d}-{each.name}", await recorder.case(number, each))
    finally:
        provider.stop()
    return len(group.cases)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@asynccontextmanager
async def _steno(group: Group, provider: int, tree: Path, start: str) -> Any:
    """The port of a Steno with the group's settings; it is stopped at the end."""
    settings = {name: _laid_over(SETTINGS.get(name), group.settings.get(name)) for name in {*SETTINGS, *group.settings}}
    with tempfile.TemporaryDirectory(prefix="steno-corpus-") as name:
        folder = Path(name)
        written = json.dumps(settings).replace("{provider}", f"http://127.0.0.1:{provider}").replace("{folder}", name)
        (folder / "steno.yaml").write_text(written)  # JSON is YAML.
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tree), "STENO_CONFIG": str(folder / "steno.yaml")}
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(start.replace("{tree}", str(tree))),
                cwd=folder,
                env={**environment, **group.environment},
                stdout=log,
                stderr=log,
            )
        try:
            yield await _port(process, folder / "log")
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()


def _laid_over(usual: Any, given: Any) -> Any:
    if isinstance(usual, Mapping) and isinstance(given, Mapping):
        return {**usual, **given}
    return usual if given is None else given


async def _port(process: asyncio.subprocess.Process, log: Path) -> int:
    """Port that the log names once Steno listens."""
    deadline = monotonic() + START_SECONDS
    while monotonic() < deadline and process.returncode is None:
        if (port := _port_in(log)) is not None:
            return port
        await asyncio.sleep(0.05)
    raise RecordingFailed(f"Steno did not start: {_end_of(log)}")


def _port_in(log: Path) -> int | None:
    found = re.search(rb'"url": ?"http://127\.0\.0\.1:(\d+)', log.read_bytes())
    return int(found[1]) if found else None


def _end_of(log: Path) -> str:
    return log.read_text()[-2_000:]
