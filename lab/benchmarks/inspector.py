"""Time of the inspector's pages over a store that has been in use for a month.

Fills a store directly, as requests would have left it: conversations of a thousand messages, a ledger row for each
request and each summary, chunks with their words, sums by day, and the archive of some. Then it starts Steno over it
and asks for every page in turn, as the operator's browser does.

    python -m lab.benchmarks.inspector --conversations 10000 [--database postgresql://...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time, time
from typing import Any

import httpx2
from sqlalchemy import Table, insert, select, text

from app.edge.protocol import protocol_within
from app.inspector.links import operator_token
from app.main import create_app
from app.runtime.server import serve
from app.settings import load
from app.store import Store
from app.store.summary_index import SUMMARIES
from app.store.tables import (
    calibrations,
    conversations,
    heads,
    messages,
    summary_chunks,
    usage_days_due,
    usage_records,
)
from app.store.usage_days import DAY_MS
from app.store.wakeups import set_within

MESSAGES = 1_000
TURNS = MESSAGES // 2
CHUNKS = 13
ARCHIVED = 50
"""One in so many conversations has its messages."""
DAYS = 30
MODELS = ("gpt-4o", "gpt-4o-mini", "claude-sonnet-4-5", "local/llama-3.3-70b")
TENANTS = 20
LARGEST = 0.8
"""The share of the tenant whose pages are measured."""
ROWS = 5_000
SECRET = "a secret for the benchmark of the inspector"  # noqa: S105 - of a server that nobody else reaches
WORDS = [
    f"{a}{b}{c}" for a in ("ka", "lo", "mi", "ter") for b in ("ran", "sil", "vo") for c in ("ta", "ner", "x", "dom")
]


class World:
    """All of it follows from the number of a conversation."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.now = int(time() * 1000)
        self.tenants = [blake2b(b"tenant %d" % each, digest_size=16).hexdigest() for each in range(TENANTS)]

    def tenant(self, conversation: int) -> str:
        return self.tenants[0 if conversation % 100 < 100 * LARGEST else 1 + conversation % (TENANTS - 1)]

    def id(self, conversation: int) -> str:
        return f"session-{conversation:06d}-{digest('id', conversation).hex()[:8]}"

    def began(self, conversation: int) -> int:
        """Spread over the month, the later ones later."""
        return self.now - (DAYS - 1) * DAY_MS * (self.number - conversation) // self.number - DAY_MS // 4

    def conversations(self) -> Iterator[dict[str, Any]]:
        for each in range(self.number):
            chance = random.Random(each)
            status = chance.choice(("full", "full", "summarized", "summarized", "summarized", "trimmed", "bypassed"))
            changed = status in ("summarized", "trimmed")
            before = chance.randrange(95_000, 400_000) if changed else chance.randrange(2_000, 88_000)
            after = min(before // chance.randrange(2, 9), 88_000) if changed else before
            yield {
                "tenant": self.tenant(each),
                "id": self.id(each),
                "model": MODELS[each % len(MODELS)],
                "turns": TURNS,
                "messages": MESSAGES,
                "requests": TURNS,
                "status": status,
                "reason": chance.choice((None,) * 9 + ("summariser_upstream_timeout",)),
                "tokens_before": before,
                "tokens_after": after,
                "window": 128_000,
                "forked_from": None,
                "coverage": json.dumps(coverage(each)),
                "summaries": [f"chk_{each}_{number}" for number in range(CHUNKS)],
                "last_message": f"msg_{each}_{MESSAGES - 1}",
                "created_at": self.began(each),
                "updated_at": self.began(each) + DAY_MS // 5,
            }

    def usage(self) -> Iterator[dict[str, Any]]:
        for each in range(self.number):
            for turn in range(TURNS + CHUNKS):
                is_summary = turn >= TURNS
                size = 900 + 150 * (turn % 300)
                saved = 0 if is_summary or turn < 100 else 200 * (turn - 100)
                yield {
                    "tenant": self.tenant(each),
                    "id": f"use_{each:06d}_{turn:04d}",
                    "conversation_id": self.id(each),
                    "request_id": f"req_{each}_{turn}",
                    "turn": turn + 1,
                    "purpose": "summary" if is_summary else "message",
                    "upstream": "default",
                    "model": MODELS[each % len(MODELS)],
                    "status": 200 if turn % 97 else 502,
                    "estimated_tokens": None if is_summary else size + saved,
                    "forwarded_tokens": None if is_summary else size,
                    "saved_tokens": saved,
                    "prompt_tokens": size,
                    "completion_tokens": 300,
                    "cached_tokens": size * 3 // 4,
                    "prompt_rate": 2.5,
                    "completion_rate": 10.0,
                    "price_source": "settings",
                    "cost": size * 2.5e-6,
                    "context_status": None if is_summary else "summarized" if saved else "full",
                    "created_at": self.began(each) + DAY_MS // 5 * turn // (TURNS + CHUNKS),
                }

    def chunks(self) -> Iterator[dict[str, Any]]:
        span = MESSAGES // CHUNKS
        for each in range(self.number):
            for number in range(CHUNKS):
                chance = random.Random(CHUNKS * each + number)
                yield {
                    "tenant": self.tenant(each),
                    "id": f"chk_{each}_{number}",
                    "conversation_id": self.id(each),
                    "series": "default",
                    "level": 0,
                    "version": 1,
                    "from_digest": digest("chain", each, number),
                    "through_digest": digest("chain", each, number + 1),
                    "last_message_digest": digest("last", each, number),
                    "first_index": span * number,
                    "last_index": span * (number + 1) - 1,
                    "through_turn": span * (number + 1) // 2,
                    "carried": [],
                    "tokens": 600,
                    "text": " ".join(chance.choices(WORDS, k=250)) + f" rare{each % 500}",
                    "model": "gpt-4o-mini",
                    "prompt_version": "1",
                    "children": [],
                    "exact_values": ["ORD-1"],
                    "created_at": self.began(each) + number,
                    "used_at": self.now,
                }

    def heads(self) -> Iterator[dict[str, Any]]:
        for each in range(self.number):
            for turn in range(12):
                owner = {"tenant": self.tenant(each), "conversation_id": self.id(each)}
                yield {**owner, "digest": digest("head", each, turn), "turn": turn}

    def messages(self) -> Iterator[dict[str, Any]]:
        for each in range(0, self.number, ARCHIVED):
            for position in range(MESSAGES):
                kind = ("user", "assistant")[position % 2]
                sent = json.dumps(
                    {"role": kind, "content": " ".join(WORDS[(position + n) % len(WORDS)] for n in range(60))}
                )
                yield {
                    "tenant": self.tenant(each),
                    "id": f"msg_{each}_{position}",
                    "conversation_id": self.id(each),
                    "previous_id": f"msg_{each}_{position - 1}" if position else None,
                    "position": position,
                    "kind": kind,
                    "role": kind,
                    "format": "chat_completions",
                    "sent": sent,
                    "tokens": 90,
                    "request_id": f"req_{each}_{position // 2}",
                    "created_at": self.began(each) + position,
                }

    def calibrations(self) -> Iterator[dict[str, Any]]:
        for tenant in self.tenants:
            for model in MODELS:
                yield {
                    "id": f"cal_{tenant}_{model}",
                    "upstream": "http://127.0.0.1:9/v1",
                    "model": model,
                    "formula": "1",
                    "tools": False,
                    "tenant": tenant,
                    "recent": [[100, 104]] * 20,
                    "samples": 4_000,
                    "offset_tokens": 3.0,
                    "ratio": 1.04,
                    "created_at": self.now,
                    "updated_at": self.now,
                }


def digest(*parts: object) -> bytes:
    return blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest()


def coverage(conversation: int) -> list[dict[str, Any]]:
    """Coverage of a payload with summaries, masked results among the messages after them, and a tail."""
    span, parts = MESSAGES // CHUNKS, [{"kind": "instructions", "messages": 1, "tokens": 900}]
    for number in range(CHUNKS - 2):
        place = {"first_index": span * number, "last_index": span * (number + 1) - 1}
        parts.append({"kind": "summarized", **place, "summary_id": f"chk_{conversation}_{number}", "tokens": 600})
    for index in range(span * (CHUNKS - 2), MESSAGES):
        kind = "masked" if index % 3 == 0 and index < MESSAGES - 40 else "verbatim"
        parts.append({"kind": kind, "first_index": index, "last_index": index, "tokens": 200})
    return parts


async def fill(store: Store, world: World) -> None:
    """Directly, a few thousand rows in each transaction."""
    tables: dict[Table, Iterator[dict[str, Any]]] = {
        conversations: world.conversations(),
        heads: world.heads(),
        summary_chunks: world.chunks(),
        usage_records: world.usage(),
        messages: world.messages(),
        calibrations: world.calibrations(),
    }
    for table, rows in tables.items():
        began, number = perf_counter(), 0
        while batch := list(islice(rows, ROWS)):
            async with store.database.writing(patient=True) as connection:
                await connection.execute(insert(table), batch)
                if table is summary_chunks:
                    indexed = [(row["tenant"], row["id"], [*row["text"].split()]) for row in batch]
                    await SUMMARIES.add(connection, indexed)
            number += len(batch)
        print(f"{table.name}: {number:,} rows in {perf_counter() - began:.0f} s", flush=True)
    day = usage_records.c.created_at - usage_records.c.created_at % DAY_MS
    async with store.database.migrating() as connection:
        days = select(usage_records.c.tenant, day).distinct()
        await connection.execute(insert(usage_days_due).from_select(["tenant", "day"], days))
        await connection.execute(text("ANALYZE"))
    await store.tidying.add_days_up()


def pages(world: World) -> list[tuple[str, str]]:
    """Pages by name, each with its address."""
    last = next(
        each for each in range(world.number - 1, 0, -1) if each % ARCHIVED == 0 and not each % 100 >= 100 * LARGEST
    )
    plain = last + 1
    at = "/ui/conversations"
    return [
        ("setup", "/"),
        ("overview", "/ui"),
        ("overview of a month", "/ui?days=30"),
        ("conversations", at),
        ("conversations, by what was saved", f"{at}?sort=saved"),
        ("conversations, one status", f"{at}?status=trimmed"),
        ("conversations, one model", f"{at}?model=gpt-4o-mini"),
        ("conversations, those that failed", f"{at}?failed=1"),
        ("search by a part of an id", f"{at}?q=session-00{world.number // 200:04d}"),
        ("search by a rare word", f"{at}?q=rare17"),
        ("search by a word in every summary", f"{at}?q={WORDS[0]}"),
        ("tenants", "/ui/tenants"),
        ("a conversation", f"{at}/{world.id(plain)}"),
        ("a conversation whose messages are kept", f"{at}/{world.id(last)}"),
    ]


Timed = tuple[str, list[float], list[float], int]
"""A page, milliseconds until it was there, those of the processor, and its bytes."""


def measure(url: str, world: World, rounds: int) -> list[Timed]:
    client = httpx2.Client(base_url=url, timeout=60.0, follow_redirects=True)
    client.get("/ui", params={"token": operator_token(SECRET.encode())})
    token = client.get("/ui/tenants").text.partition('name="form_token" value="')[2].partition('"')[0]
    client.post("/ui/tenants", data={"form_token": token, "tenant": world.tenants[0]})
    asked = [*pages(world)]
    listed = client.get("/ui/conversations").text
    if "after=" in listed:
        after = listed.partition("after=")[2].partition('"')[0].partition("&amp;")[0]
        asked.append(("conversations, the second page", f"/ui/conversations?after={after}"))
    found = []
    for name, address in asked:
        took, worked, size = list[float](), list[float](), 0
        for _ in range(rounds):
            began, idle = perf_counter(), process_time()
            size = len(client.get(address).raise_for_status().content)
            took.append(1000 * (perf_counter() - began))
            worked.append(1000 * (process_time() - idle))
        found.append((name, took, worked, size))
    return found


def table_of(found: Sequence[Timed]) -> str:
    lines = ["| page | median | 95th percentile | of the median, CPU | bytes |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, took, worked, size in found:
        late = quantiles(took, n=20)[-1]
        lines.append(f"| {name} | {median(took):.0f} ms | {late:.0f} ms | {median(worked):.0f} ms | {size:,} |")
    return "\n".join(lines)


async def prepare(url: str, world: World) -> None:
    store = Store(url, timeout=60.0, retention_days=None)
    await store.start()
    await set_within(store.readiness.ready, 60.0)
    await fill(store, world)
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--database", help="an empty PostgreSQL, instead of a SQLite file of its own")
    parser.add_argument("--keep", type=Path, help="a SQLite file that is filled where it is not there, and kept")
    given = parser.parse_args()
    world = World(given.conversations)
    with tempfile.TemporaryDirectory() as folder:
        file = given.keep or Path(folder) / "steno.db"
        url = given.database or f"sqlite:///{file}"
        if given.database or not file.exists():
            asyncio.run(prepare(url, world))
        settings = load(
            storage={"url": url, "messages": True, "retention_days": None},
            upstream={"base_url": "http://127.0.0.1:9/v1", "discover_windows": False},
            secret=SECRET,
        )
        app = create_app(settings)
        limits = settings.limits
        server = serve(app, http=protocol_within(limits.receive_seconds, limits.connections), lifespan="on")
        try:
            print(table_of(measure(server.url, world, given.rounds)))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
