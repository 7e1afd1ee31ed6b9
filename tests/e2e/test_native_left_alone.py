"""Compactions that are asked for and cannot be made here: the provider has the request as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider, answer

REFUSED = b'{"error":{"message":"An item is no object.","type":"invalid_request_error","param":"input[0]","code":null}}'
EDIT = {"context_management": {"edits": [{"type": "compact_20260112", "trigger": {"value": 1}}]}}
THRESHOLD = {"context_management": [{"type": "compaction", "compact_threshold": 10}]}
ODD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses/compact", {"input": [None, {"role": "user", "content": "Hello"}]}),
    ("/v1/responses", {"input": [5], **THRESHOLD}),
    ("/v1/responses", {"input": [["compaction_trigger"], {"role": "user", "content": "Hello"}], **THRESHOLD}),
    ("/v1/messages", {"messages": [{"content": "Hello"}], "compaction": {"type": "summarize"}}),
    ("/v1/messages", {"messages": [{"content": "Hello"}], **EDIT}),
]
BETAS = b"anthropic-beta: compact-2026-01-12"


def ask(running: Steno, target: str, body: bytes, *headers: bytes) -> Answer:
    usual = b"content-type: application/json", b"authorization: Bearer sk-callers", *headers
    return send(running.url, request_bytes(body, *usual, target=target, usual=False), timeout=30.0)


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize(("path", "members"), ODD)
def test_what_cannot_be_read_is_the_providers_to_refuse(
    before_scripted: StartSteno, scripted: ScriptedProvider, path: str, members: dict[str, Any], native: bool | None
) -> None:
    scripted.default = (answer(REFUSED, status=b"400 Bad Request"),)
    running = before_scripted(upstream={"native_compaction": native})
    body = json.dumps({"model": "a-model", **members}).encode()
    answered = ask(running, path, body)
    assert (answered.status, answered.body) == (400, REFUSED)
    assert [(request.target, request.body) for request in scripted.requests] == [(path.encode(), body)]


def test_who_wants_no_summaries_has_the_request_pass_with_its_betas(
    before_scripted: StartSteno, scripted: ScriptedProvider
) -> None:
    running = before_scripted(upstream={"native_compaction": False})
    body = json.dumps({"model": "a-model", "messages": [{"role": "user", "content": "Hello"}], **EDIT}).encode()
    ask(running, "/v1/messages", body, BETAS, b"x-context-compaction: off")
    [received] = scripted.requests
    assert (received.body, received.all(b"anthropic-beta")) == (body, [b"compact-2026-01-12"])
