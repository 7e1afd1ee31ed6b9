"""Random histories with items of every type, grown request by request through Steno, before a provider that refuses
what OpenAI does: `make histories` plays 500 of them, otherwise some are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from itertools import chain, count
from random import Random
from typing import Any

import pytest

from app.simulator import Simulator
from app.simulator.responses.items import PREFIXES, SAID, item_id
from app.simulator.responses.judge import refusal_of
from app.simulator.responses.sealing import seal
from tests.e2e.compactions import statuses
from tests.e2e.conftest import TABLES
from tests.e2e.raw import Answer, post
from tests.e2e.running import StartSteno, Steno
from tests.unit.test_responses_properties import is_placed, written

Item = dict[str, Any]

HISTORIES = int(os.environ.get("HISTORIES", "6"))
TENANTS = 3
END: Item = {}
MOST = 30
"""Requests of one history."""
WINDOW = 4_000
"""What Steno believes. The provider has room for anything, so that all it refuses is what is out of order."""


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(models="any", window=1_000_000, tables=TABLES)


def test_no_request_of_a_growing_history_is_refused(simulator: Simulator, steno: StartSteno) -> None:
    running = steno(models=[{"match": "*", "context_window": WINDOW}])
    told: Counter[str | None] = Counter()
    for seed in range(HISTORIES):
        history = said(written(seed), seed)
        for number, items in enumerate(requests(history)[:MOST]):
            answered = ask(running, seed, items, stream=bool(number % 2))
            assert answered.status == 200, (seed, number, refusal_of({"model": "gpt-x", "input": items}), answered.body)
            told[answered.header("x-context-status")] += 1
            sent = simulator.chats[-1].payload["input"]
            assert [item for item in sent if is_placed(item)] == [item for item in items if is_placed(item)]
            last = [item for item in items if item.get("role") == "user"][-1]
            assert last in sent
    assert told["summarized"] + told["pending"] > HISTORIES
    assert statuses(simulator) == {200}


def ask(running: Steno, seed: int, items: list[Item], stream: bool) -> Answer:
    key = f"authorization: Bearer sk-{seed % TENANTS}".encode()
    body = {"model": "gpt-x", "instructions": "Be kind.", "input": items, "store": False, "stream": stream}
    return post(running.url, body, key, target="/v1/responses", timeout=60.0)


def requests(history: list[list[Item]]) -> list[list[Item]]:
    """What a client sends: the history up to each question, and up to where everything that was called is answered."""
    items = list(chain(*history))
    ends = (end for end in range(1, len(items) + 1) if is_asking(items[end - 1]))
    return [items[:end] for end in ends if refusal_of({"model": "gpt-x", "input": items[:end]}) is None]


def is_asking(item: Item) -> bool:
    return item.get("role") == "user" or str(item.get("type")).endswith("_output")


def said(turns: Iterable[Iterable[Item]], seed: int) -> list[list[Item]]:
    """The same items as this provider says them: it seals with a key of its own, and ids tell what they are bound to.

    Some of what is said after reasoning has no id, as some clients send it back. Every other history is an agent's one
    long turn, which has to be cut in its midst.
    """
    random, numbers = Random(seed), count(1)
    renamed: dict[str, str] = {}
    history: list[list[Item]] = []
    for turn in turns:
        asked_before = any(item.get("role") == "user" for item in chain(*history))
        goes_on = bool(seed % 2) and asked_before
        thought, items = 0, [item for item in turn if not (goes_on and item.get("role") == "user")]
        history.append([])
        for item, behind in zip(items, [*items[1:], END], strict=False):
            kind, own = item.get("type", "message"), dict(item)
            if kind == "reasoning" and behind.get("type", "message") not in (*SAID, "message"):
                continue
            if kind in ("reasoning", "compaction"):
                own["encrypted_content"] = seal(kind, f"thought {seed}")
            number = thought or next(numbers)
            if kind in PREFIXES and "id" in own:
                renamed[own["id"]] = item_id(kind, number, 1 if thought else 0, bool(thought))
                own["id"] = renamed[own["id"]]
                if kind in ("message", "function_call") and random.random() < 0.2:
                    del own["id"]
            if "approval_request_id" in own:
                own["approval_request_id"] = renamed[own["approval_request_id"]]
            thought = number if kind == "reasoning" else 0
            history[-1].append(own)
    return history
