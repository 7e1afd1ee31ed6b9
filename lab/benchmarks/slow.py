"""Requests that wait for a slow summariser: a summary takes twenty seconds, and a turn comes every seven.

The dialogues of a file, or a chat made in code, are held side by side, each with its own id and key, through a
`steno serve` of its own for each setting of `compaction.background`. The provider is the simulator; it takes its time
only over summaries. All times are scaled down alike, so that the longest dialogue takes two minutes. A turn has waited
if its stream says `compaction_started`.

    python -m lab.benchmarks.slow [--background off,on] [--seconds 120] [--chain 10] [locomo.jsonl]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx2

from app.providers.tokenizer import Tokenizer
from app.settings import load
from lab.benchmarks import talks
from lab.formats.known import CHAT_COMPLETIONS
from lab.formats.sent import common_prefix
from lab.replay.recordings import Recording, UnreadableRecording, chain, read_recordings
from lab.replay.tables import Grid
from lab.simulator import Fault, Record, Simulator
from lab.simulator.log import Kind
from tests.e2e import commands

MODEL, ENCODING, WINDOW = "gpt-4o", "o200k_base", 8_000
SUMMARY_SECONDS, TURN_SECONDS = 20.0, 7.0
WAIT_SECONDS = 60.0
"""Default of `compaction.wait_seconds`, before it is scaled."""
RUN_SECONDS = 120.0
CHAT_TOKENS = 100_000
PATIENCE = 600.0
KEY = "Bearer sk-"
WAYS = ("off", "on", "unset")
"""Values of `compaction.background.enabled`; unset: the default."""

LINES = (
    "turns",
    "turns that waited",
    "share",
    "longest wait, seconds",
    "all waiting, seconds",
    "summary calls",
    "of which never used",
    "tokens of summary calls",
    "tokens forwarded",
    "prefix kept",
    "refused by the provider",
    "errors",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    seconds: float
    """Until its whole answer, not scaled up again."""
    status: int
    waited: bool = False
    """True if it was told that a compaction started."""


@dataclass(frozen=True, slots=True)
class Course:
    """Results of one run."""

    turns: Sequence[Turn]
    records: Sequence[Record]
    """Records of the provider, in the order of arrival."""
    scale: float

    def lines(self) -> tuple[str, ...]:
        """A cell for each of `LINES`."""
        waits = [turn.seconds * self.scale for turn in self.turns if turn.waited]
        summaries = [record for record in self.records if record.kind == "summary"]
        chats = [record for record in self.records if record.kind == "chat"]
        talks = self._by_conversation("chat").values()
        accepted = [record for record in chats if record.status == 200]
        return (
            f"{len(self.turns):,}",
            f"{len(waits):,}",
            f"{len(waits) / len(self.turns):.1%}",
            f"{max(waits, default=0):,.0f}",
            f"{sum(waits):,.0f}",
            f"{len(summaries):,}",
            f"{self._unused():,}",
            f"{sum(record.prompt_tokens or 0 for record in summaries):,}",
            f"{sum(record.prompt_tokens or 0 for record in accepted):,}",
            f"{prefix_kept([[chat.body for chat in talk if chat.status == 200] for talk in talks]):.1%}",
            f"{len(chats) - len(accepted):,}",
            f"{sum(turn.status != 200 for turn in self.turns):,}",
        )

    def _unused(self) -> int:
        """Summaries that stand in no payload."""
        chats = self._by_conversation("chat")
        return sum(
            not any(made.text in text for chat in chats[name] if chat.at > made.at for text in _texts(chat))
            for name, summaries in self._by_conversation("summary").items()
            for made in summaries
            if made.text
        )

    def _by_conversation(self, kind: Kind) -> defaultdict[str, list[Record]]:
        """The requests of that kind that reached the provider. Each conversation has a key of its own."""
        found: defaultdict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            if record.kind == kind:
                found[(record.header("authorization") or "").removeprefix(KEY)].append(record)
        return found


def _texts(chat: Record) -> Iterator[str]:
    return (message["content"] for message in chat.messages or () if isinstance(message.get("content"), str))


def prefix_kept(talks: Sequence[Sequence[bytes]]) -> float:
    """Share of the previous payloads' bytes with which the next ones begin, over several conversations' bodies."""
    kept = previous = 0
    for bodies in talks:
        payloads = (CHAT_COMPLETIONS.prompt_of(body).removesuffix(b"]") for body in bodies)
        for one, other in pairwise(payloads):
            kept += common_prefix(one, other)
            previous += len(one)
    return kept / previous if previous else 1.0


def scale_of(recordings: Sequence[Recording], seconds: float) -> float:
    """Factor by which everything goes faster, so that the longest conversation takes so long."""
    return max(len(recording.requests) for recording in recordings) * TURN_SECONDS / seconds


async def _hold(client: httpx2.AsyncClient, url: str, recording: Recording, scale: float) -> list[Turn]:
    """Hold one conversation: each turn comes at its time, or once the one before is answered."""
    name = recording.name
    turns: list[Turn] = []
    due = time.monotonic()
    for end in recording.requests:
        await asyncio.sleep(due - time.monotonic())
        sent = time.monotonic()
        body = {"model": MODEL, "messages": recording.messages[:end], "stream": True}
        answer = await client.post(
            f"{url}/c/{name}/v1/chat/completions", json=body, headers={"authorization": f"{KEY}{name}"}
        )
        seconds, waited = time.monotonic() - sent, b"compaction_started" in answer.content
        turns.append(Turn(seconds, answer.status_code, waited))
        due = sent + TURN_SECONDS / scale
    return turns


async def _hold_all(url: str, recordings: Sequence[Recording], scale: float) -> list[Turn]:
    async with httpx2.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
        held = await asyncio.gather(*(_hold(client, url, recording, scale) for recording in recordings))
    return [turn for talk in held for turn in talk]


def course(recordings: Sequence[Recording], background: str, seconds: float, count: talks.Count) -> Course:
    """Hold all conversations side by side, with one setting."""
    scale = scale_of(recordings, seconds)
    provider = Simulator(window=WINDOW, models="any", count=count, max_messages=None)
    provider.summary_default = Fault(delay=SUMMARY_SECONDS / scale)
    with tempfile.TemporaryDirectory() as folder, provider.serve() as behind:
        serving = commands.serve(
            ["--upstream", f"{behind.url}/v1"], Path(folder), commands.ROOT, **dict(_variables(background, scale))
        )
        try:
            turns = asyncio.run(_hold_all(serving.url, recordings, scale))
            time.sleep(2 * SUMMARY_SECONDS / scale)  # Summaries for turns that never come have their cost, too.
        finally:
            serving.terminate()
            serving.wait()
    return Course(turns, provider.log, scale)


def _variables(background: str, scale: float) -> Iterator[tuple[str, str]]:
    yield "STENO_SECRET", "a secret for the benchmark"
    yield "STENO_UPSTREAM__DISCOVER_WINDOWS", "false"
    yield "STENO_MODELS", json.dumps([{"match": "*", "context_window": WINDOW}])
    yield "STENO_STORAGE__TIMEOUT_SECONDS", "5"  # a busy machine must not make Steno do without its store
    yield "STENO_COMPACTION__WAIT_SECONDS", str(WAIT_SECONDS / scale)
    if background != "unset":
        yield "STENO_COMPACTION__BACKGROUND__ENABLED", json.dumps(background == "on")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.slow", description="Requests that wait for a slow summariser."
    )
    parser.add_argument(
        "files", nargs="*", type=Path, help="dialogues, such as locomo.jsonl; none: a chat made in code"
    )
    parser.add_argument("--background", type=_ways, default=["off", "on"], help=f"of {', '.join(WAYS)}, with commas")
    parser.add_argument("--seconds", type=float, default=RUN_SECONDS, help="for the longest dialogue")
    parser.add_argument("--chain", type=int, default=1, help="join so many dialogues to one")
    return parser.parse_args()


def _ways(text: str) -> list[str]:
    ways = text.split(",")
    if unknown := set(ways) - set(WAYS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(WAYS)}")
    return ways


def main() -> None:
    options = _options()
    count = Tokenizer(load().tokenizer.folder).counter(ENCODING)
    try:
        recordings = chain([each for file in options.files for each in read_recordings(file)], options.chain)
    except UnreadableRecording as error:
        raise SystemExit(str(error)) from error
    recordings = recordings or [talks.chat(CHAT_TOKENS, count)]
    columns = [course(recordings, way, options.seconds, count).lines() for way in options.background]
    header = ("compaction.background", *options.background)
    scale = scale_of(recordings, options.seconds)
    title = f"Summaries of {SUMMARY_SECONDS:.0f} s, turns every {TURN_SECONDS:.0f} s, {scale:.1f} times as fast"
    print(Grid(title, header, list(zip(LINES, *columns, strict=True))).markdown())


if __name__ == "__main__":
    main()
