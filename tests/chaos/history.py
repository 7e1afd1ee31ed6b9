"""The history check: what the provider's log, the clients and the database say about each other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from lab.replay.evidence import SentMessages
from lab.replay.judge import Judge, Kind, SummaryCalls
from lab.replay.sent import prompt_of
from lab.simulator import Record, Simulator
from tests.chaos.talkers import Asked

SETTLED_SECONDS = 1.0
"""So long after an answer everything about it stands in the log."""
LOG_LIMIT = 1_500
POLL_SECONDS = 0.1

GAPS: frozenset[Kind] = frozenset({"lost"})
OVERLAPS: frozenset[Kind] = frozenset({"twice"})
FOREIGN: frozenset[Kind] = frozenset({"foreign_summary", "changed"})
"""A summary made from other messages than those it stands for."""
DAMAGED: frozenset[Kind] = frozenset({"instructions", "last_user", "split_pair", "refused", "not_sent", "misnamed"})
JUDGED = GAPS | OVERLAPS | FOREIGN | DAMAGED
"""What can be judged by a payload alone. What the answer said of it is not kept here."""


class Views:
    """Judges every payload, while the log still has it."""

    def __init__(self, simulator: Simulator) -> None:
        self.judged = 0
        self.summarised = 0
        """Payloads with a summary in them."""
        self.found: Counter[Kind] = Counter()
        self.sentences: list[str] = []
        self.acknowledged: set[str] = set()
        """Summaries in payloads whose client got an answer."""
        self.summaries: list[Record] = []
        """Every summary call that is over."""
        self._simulator = simulator
        self._calls = SummaryCalls()
        self._reader = SentMessages()
        self._read: set[int] = set()
        self._payloads: dict[str, list[Record]] = {}

    @property
    def calls_under_way(self) -> int:
        """Summary calls."""
        return sum(not _is_over(record) for record in self._simulator.summaries)

    @property
    def missed(self) -> int:
        """Records that left the log unread: then nothing would be proved."""
        return max(self._read, default=0) - len(self._read)

    def collect(self) -> None:
        """Read what is new in the log."""
        for record in self._simulator.log:
            if record.sequence in self._read or not _is_over(record):
                continue
            self._read.add(record.sequence)
            if record.kind == "summary":
                self.summaries.append(record)
                self._calls.add(record)
            elif record.kind == "chat" and record.payload is not None:  # Else its sender was killed in the middle.
                self._payloads.setdefault(record.payload["user"], []).append(record)

    def judge(self, asked: Iterable[Asked]) -> None:
        """Each request by itself: what went before it may have gone through another process, or be under way yet."""
        for one in asked:
            records = self._payloads.pop(one.tag, [])
            if not records and not one.answered:
                continue
            verdict = Judge(one.conversation, self._calls, self._reader).judge(int(one.tag[1:]), one.body, records)
            self.judged += 1
            self.summarised += bool(verdict.summaries)
            for violation in verdict.violations:
                if violation.kind not in JUDGED:
                    continue
                self.found[violation.kind] += 1
                self.sentences.append(f"{one.tag} ({one.conversation}): {violation.kind}: {violation.sentence}")
            if one.answered:
                self.acknowledged.update(verdict.summaries)

    def payload(self, asked: Asked) -> bytes:
        """The messages that were forwarded for a request that is not judged yet."""
        records = self._payloads.get(asked.tag, ())
        return prompt_of(records[-1].body) if records else b""

    def count(self, kinds: frozenset[Kind]) -> int:
        return sum(self.found[kind] for kind in kinds)


@dataclass(slots=True)
class Watch:
    """Looks at the database the whole time, past all networks, and remembers what it saw."""

    url: str
    chunks: dict[str, str] = field(default_factory=dict)
    """Texts of committed chunks, by id."""
    backwards: list[str] = field(default_factory=list)
    """Where an epoch fell, or changed its holder without rising."""
    looks: int = 0
    _leases: dict[tuple[Any, ...], tuple[int, str]] = field(default_factory=dict)

    async def watch(self) -> None:
        """Until it is cancelled; a crashed server is looked at again once it is back."""
        while True:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                connection = await asyncpg.connect(self.url, timeout=3, command_timeout=5)
                try:
                    while True:
                        await self.look(connection)
                        await asyncio.sleep(POLL_SECONDS)
                finally:
                    connection.terminate()
            await asyncio.sleep(POLL_SECONDS)

    async def look(self, connection: Any) -> None:
        rows = await connection.fetch("select * from leases")
        seen = {(r["tenant"], r["series"], r["from_digest"], r["through_digest"]): r for r in rows}
        for key, (epoch, holder) in self._leases.items():
            row = seen.get(key)
            if row is None:
                continue  # It was released. The next one of its range must have a higher epoch.
            if row["epoch"] < epoch:
                self.backwards.append(f"epoch {epoch} became {row['epoch']}")
            elif row["epoch"] == epoch and row["holder"] != holder:
                self.backwards.append(f"epoch {epoch} went from {holder} to {row['holder']}")
        self._leases |= {key: (row["epoch"], row["holder"]) for key, row in seen.items()}
        for row in await connection.fetch(
            "select id, text from summary_chunks where not id = any($1)", list(self.chunks)
        ):
            self.chunks[row["id"]] = row["text"]
        self.looks += 1

    async def stored(self) -> dict[str, str]:
        """The texts of all chunks that are in the database, by id."""
        connection = await asyncpg.connect(self.url, timeout=10, command_timeout=30)
        try:
            rows = await connection.fetch("select id, text from summary_chunks")
        finally:
            await connection.close()
        return {row["id"]: row["text"] for row in rows}

    def lost(self, stored: Mapping[str, str], acknowledged: Iterable[str]) -> list[str]:
        """Chunks that were committed or stood in an answered payload, and that are not stored (so)."""
        texts = set(stored.values())
        missing = [f"chunk {id_}" for id_, text in self.chunks.items() if stored.get(id_) != text]
        shown = (text for text in acknowledged if text not in texts and not any(text in one for one in texts))
        return [*missing, *(f"the summary {text[:60]!r}" for text in shown)]


def ripe(asked: list[Asked]) -> Sequence[Asked]:
    """Takes out what can be judged."""
    before = time.monotonic() - SETTLED_SECONDS
    taken = [one for one in asked if one.done_at < before]
    asked[:] = [one for one in asked if one.done_at >= before]
    return taken


def _is_over(record: Record) -> bool:
    return record.finished_at is not None or record.disconnected_at is not None
