"""All that is stored of one caller, how much of it may be edited, and how it is erased."""

from __future__ import annotations

import json

import pytest

from lab.simulator import Simulator
from tests.databases import stored_rows
from tests.e2e.commands import until
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post, request_bytes, send
from tests.e2e.running import StartSteno, Steno

OTHER_KEY = b"authorization: Bearer sk-other"


def as_other(url: str, body: bytes | None = None, method: str = "GET", target: str = "/v1/chat/completions") -> Answer:
    usual = (b"content-type: application/json", OTHER_KEY)
    return send(url, request_bytes(body, *usual, method=method, target=target, usual=False), 30)


def erase(url: str) -> Answer:
    return get(url, "/context/tenant", method="DELETE")


def kinds(url: str, tenant: str) -> set[str]:
    """Tables with rows of the tenant."""
    return {name for name, rows in stored_rows(url).items() if any(row.get("tenant") == tenant for row in rows)}


def names(answered: Answer) -> list[str]:
    return [one["id"] for one in answered.json["data"]]


@pytest.fixture
def used(steno: StartSteno, shared_url: str) -> Steno:
    """Two callers with a conversation each, of the same name and history."""
    started = steno(storage={"url": shared_url})
    body = chat(turns(15), conversation_id="one")
    assert post(started.url, body).header("x-context-status") == "summarized"
    assert as_other(started.url, body, "POST").header("x-context-status") == "summarized"
    send(started.url, request_bytes(b'{"indexes": [1]}', method="PUT", target="/context/conversations/one/pins"))
    return started


def test_a_caller_erases_everything_and_others_keep_theirs(used: Steno, simulator: Simulator, shared_url: str) -> None:
    me = get(used.url, "/context/tenant").json["id"]
    other = as_other(used.url, target="/context/tenant").json["id"]
    until(lambda: not used.services.tasks._tasks)  # What is being made leaves a lease without a name for a day.
    erased = erase(used.url)
    assert (erased.status, erased.json) == (200, {"id": me, "object": "tenant.deleted", "deleted": True})
    assert get(used.url, "/context/conversations").json["data"] == []
    assert get(used.url, "/context/search?q=order").json["data"] == []
    assert get(used.url, "/context/conversations/one").status == 404
    # What the answers taught is stored for all at once, a second later: nothing comes after.
    until(lambda: "calibrations" in kinds(shared_url, other))
    assert kinds(shared_url, me) <= {"leases"}
    assert names(as_other(used.url, target="/context/conversations")) == ["one"]
    assert len(as_other(used.url, target="/context/search?q=order").json["data"]) == 1
    made = len(simulator.summaries)
    assert post(used.url, chat(turns(15))).header("x-context-conversation-id") != "one"
    assert len(simulator.summaries) == made + 1
    assert erase(used.url).status == 200


@pytest.mark.parametrize(("text", "told"), [("word " * 3_000, "it may take"), ("x" * 200_001, "200000")])
def test_an_edit_of_a_summary_has_a_size(used: Steno, text: str, told: str) -> None:
    summaries = "/context/conversations/one/summaries"
    [old] = get(used.url, summaries).json["data"]
    target = f"{summaries}/{old['id']}"
    body = json.dumps({"text": text}).encode()
    edit = request_bytes(body, b"content-type: application/json", method="PATCH", target=target)
    refused = send(used.url, edit)
    assert (refused.status, refused.json["error"]["param"]) == (400, "text")
    assert told in refused.json["error"]["message"]
    assert get(used.url, summaries).json["data"] == [old]
