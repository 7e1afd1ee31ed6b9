"""Databases that fall silent, restart, are crowded or full, behind a whole Steno: what each request still gets."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.commands import until
from tests.e2e.conftest import Serve
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import StartSteno
from tests.faults.proxy import FaultProxy

BOUND_SECONDS = 0.5
"""Of one database call; a request makes two before it does without: whose it is, and what is stored of it."""
KEY = b"authorization: Bearer sk-test"


def soft(number: int) -> list[Any]:
    """About 6,300 tokens that nobody has seen: over the trigger of a window of 8,000, and within it."""
    return turns(15, first=1_000 * number)


def hard(number: int) -> list[Any]:
    """About 12,600 tokens: over the window."""
    return turns(30, first=1_000 * number)


def ask(url: str, messages: list[Any], **members: Any) -> Answer:
    answered = post(url, chat(messages, **members), timeout=60)
    assert answered.status == 200, answered.body
    return answered


def told(answered: Answer) -> tuple[list[str], str | None]:
    context = answered.json["context"]
    return context["actions"], context["reason"]


def without_store(answered: Answer) -> tuple[str | None, str | None]:
    return answered.header("x-context-status"), answered.json["context"]["reason"]


# Silent


def test_a_silent_database_is_waited_for_three_times_and_then_not_at_all(
    steno: StartSteno, simulator: Simulator, gate: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fits goes as it came, what does not is trimmed; nobody gets an error."""
    served = steno(storage={"url": gate.url, "timeout_seconds": BOUND_SECONDS})
    guard, tried = served.services.store.guard, []
    guard._open_seconds, bounded, probe = 0.5, guard.bounded, guard._database.ping

    def counted(work: Any, timeout: float) -> Any:
        tried.extend([work] if work != probe else [])
        return bounded(work, timeout)

    # On a busy machine a database that is well can take longer than the bound, too.
    until(lambda: told(ask(served.url, soft(1))) == (["summarized", "user_words"], None))
    calls = len(simulator.summaries)
    gate.inject("black hole")
    monkeypatch.setattr(guard, "bounded", counted)
    for number in range(2, 14):
        assert told(ask(served.url, soft(number))) == ([], "storage")
        assert simulator.chats[-1].payload["messages"] == soft(number)
    assert 3 <= len(tried) <= 6  # What is written meanwhile is tried, too.
    assert len(simulator.summaries) == calls
    assert without_store(ask(served.url, hard(20))) == ("trimmed", "storage")
    assert len(simulator.summaries) == calls
    ready = get(served.url, "/readyz")
    assert (ready.status, ready.json["status"], ready.json["db"]) == (200, "degraded", "degraded")
    gate.heal()
    until(lambda: get(served.url, "/readyz").json["status"] == "ok")
    until(lambda: told(ask(served.url, hard(20))) == (["summarized"], None))


# Full


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits another process's files, as Linux can")
def test_a_full_disk_costs_no_request(serve: Serve) -> None:
    """What was stored before is still read. Only writing fails, for as long as the disk is full."""
    process = serve(STENO_UPSTREAM__DISCOVER_WINDOWS="false")
    assert told(ask(process.url, soft(1))) == (["summarized", "user_words"], None)
    until(lambda: _conversations(process.url) == 1)
    _, most = resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE)
    # What a log line still needs; the database's files are larger already.
    resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (8_192, most))
    assert told(ask(process.url, soft(2))) == ([], "storage")
    assert without_store(ask(process.url, hard(3))) == ("trimmed", "storage")
    assert ask(process.url, soft(1)).header("x-context-status") == "summarized"
    until(lambda: get(process.url, "/readyz").json["status"] == "degraded")
    ready = get(process.url, "/readyz")
    assert (ready.status, ready.json["db"]) == (200, "not_written")
    assert ready.json["reason"]
    assert "its disk has room" in ready.json["remedy"]
    told_by_metrics = get(process.url, "/metrics").body.decode()
    assert "steno_database_up 1.0" in told_by_metrics
    assert "steno_database_writable 0.0" in told_by_metrics
    assert 'steno_records_waiting{kind="requests"} 0.0' not in told_by_metrics
    assert 'steno_payload_reasons_total{reason="storage"} 2.0' in told_by_metrics
    resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (most, most))
    until(lambda: get(process.url, "/readyz").json["status"] == "ok")
    until(lambda: _conversations(process.url) == 3)
    assert told(ask(process.url, hard(3))) == (["summarized"], None)
    assert not [line for line in process.log if line["level"] == "error"]
    assert process.errors == ""


def _conversations(url: str) -> int:
    """How many are listed; none while the database cannot be asked."""
    return len(get(url, "/context/conversations", KEY).json.get("data", ()))


def test_requests_are_answered_while_the_database_is_away_and_messages_are_stored_after_it(
    steno: StartSteno, gate: FaultProxy
) -> None:
    proxy = steno(storage={"url": gate.url, "timeout_seconds": 0.25, "messages": True})
    history, target = turns(8, 20), "/context/conversations/outage/messages?limit=100"
    ask(proxy.url, history[:3], conversation_id="outage")
    until(lambda: not proxy.services.store.writes.waiting)
    gate.inject("refuse")
    for end in range(5, len(history) + 1, 2):
        ask(proxy.url, history[:end], conversation_id="outage")
    assert get(proxy.url, target).status == 503
    gate.heal()
    until(lambda: get(proxy.url, target).status == 200)
    assert [message["sent"] for message in get(proxy.url, target).json["data"]] == history
