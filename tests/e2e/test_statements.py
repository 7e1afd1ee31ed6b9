"""The budget of statements: what a request below the trigger costs the database, by the database's own log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.running import StartSteno, Steno
from tests.statements import WRITING, Statements

TALKS, TURNS = 20, 5
"""Requests between two flushes, for a hundred a second; and how often."""


def flush(replica: Steno) -> None:
    """As it does five times a second, whatever this machine is busy with."""
    store = replica.services.store
    task = store.writes._task
    assert task is not None
    asyncio.run_coroutine_threadsafe(store.flush(), task.get_loop()).result(60)


def test_requests_below_the_trigger_cost_less_than_a_statement_each_where_many_are_stored_together(
    steno: StartSteno, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that each get every other request of a conversation, and store twenty requests at once."""
    monkeypatch.setattr("app.store.write_behind.PAUSE_SECONDS", 3_600.0)
    monkeypatch.setattr("app.store.retention.START_SECONDS", 3_600.0)
    statements = Statements(postgres_url)
    asyncio.run(statements.begin())
    replicas = [steno(storage={"url": postgres_url}, calibration={"enabled": False}) for _ in range(2)]
    clients = [replica.sdk() for replica in replicas]
    talks: list[list[Any]] = [[{"role": "user", "content": f"My order is {number}."}] for number in range(TALKS)]
    asyncio.run(statements.since())
    for turn in range(TURNS):
        for number, messages in enumerate(talks):
            client = clients[(number + turn) % len(clients)]
            answer = client.chat.completions.create(model="gpt-4o", messages=messages)
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content},
                {"role": "user", "content": f"And {turn}?"},
            ]
        for replica in replicas:
            flush(replica)
    counted, transactions = asyncio.run(statements.since())
    requests = TALKS * TURNS
    assert sum(counted.values()) < requests, counted
    assert counted["SELECT heads"] >= TALKS  # Each process has to look once for what the other one stored.
    assert sum(number for name, number in counted.items() if name.startswith(WRITING)) <= 0.5 * requests, counted
    assert transactions <= 0.5 * requests
