"""Answers of the REST interface from one run, for the schema's examples.

`make examples` writes them; `test_stream_recordings` compares them with what comes now. What differs between runs
is replaced as in the streams, and long texts and lists are cut: an example is to be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx2
import pytest

from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.conftest import TABLES
from tests.e2e.histories import MODEL, turns
from tests.e2e.running import WINDOW
from tests.e2e.stream_recordings import TEXT, with_fixed_names
from tests.shown_examples import MESSAGES, is_proxied

NAME = "order-4711"
LONGEST_TEXT, SHOWN_TEXT = 110, 60
MOST = {"messages": 2, "values": 2}
"""Entries of a list that are shown, by the member that holds it."""
DOCUMENT_LINES = 17
CONVERSATION = "/context/conversations/{conversation_id}"
SUMMARY = CONVERSATION + "/summaries/{summary_id}"
ROUTES = (
    "GET /context/conversations",
    f"GET {CONVERSATION}",
    f"GET {CONVERSATION}/coverage",
    f"GET {CONVERSATION}/handoff",
    f"GET {CONVERSATION}/messages",
    f"GET {CONVERSATION}/summaries",
    f"GET {SUMMARY}",
    "GET /context/search",
    f"GET {CONVERSATION}/usage",
    "GET /context/usage",
    "GET /context/models",
    "GET /context/calibration",
    "GET /context/tenant",
    "GET /livez",
    "GET /readyz",
    "POST /context/plan",
    "POST /context/compact",
    f"POST {CONVERSATION}/compact",
    f"PUT {CONVERSATION}/pins",
    f"GET {CONVERSATION}/pins",
    f"DELETE {CONVERSATION}/pins",
    f"PATCH {SUMMARY}",
    f"DELETE {SUMMARY}",
    f"DELETE {CONVERSATION}",
    "DELETE /context/tenant",
)
"""The routes in the order in which they are asked: what deletes comes last."""
QUERIES = {"/context/search": {"q": "ORD-0001"}, f"{CONVERSATION}/messages": {"limit": "1"}}
BODIES = {
    "PUT": {"indexes": [0]},
    "PATCH": {"text": "The customer asked about twelve orders, ORD-0001 to ORD-0012; all left the depot."},
}
"""Bodies that are no chat request, by method."""

_MOMENTS = re.compile(r"20\d\d-\d\d-\d\dT[\d:.]+Z")
_PASSING = frozenset({"seconds", "waited_seconds"})
"""Members whose numbers depend on the machine."""


def record() -> dict[str, Any]:
    """An answer of each route, and the request where there is one, by method and path."""
    simulator = Simulator(window=WINDOW, models="any", tables=TABLES)
    simulator.when(lambda record: record.kind == "chat", text=TEXT)
    sections: dict[str, Any] = {
        "compaction": {"background": {"enabled": False}},
        "storage": {"messages": True, "timeout_seconds": 30.0},
    }
    with pytest.MonkeyPatch.context() as patch, simulator.serve() as provider:
        running.forget_environment(patch)
        steno = running.start(provider.url, sections)
        with httpx2.Client(base_url=steno.url, headers={"authorization": "Bearer sk-examples"}, timeout=30) as client:
            client.post("/v1/chat/completions", json=_chat()).raise_for_status()
            recorded = dict(_recorded(client))
        steno.stop()
    text = _MOMENTS.sub("2026-11-21T10:48:13.714000Z", with_fixed_names(json.dumps(recorded)))
    fixed: dict[str, Any] = json.loads(text.replace(provider.url, "https://api.openai.com"))
    return fixed


def _chat() -> dict[str, Any]:
    return {"model": MODEL, "messages": turns(15), "conversation_id": NAME}


def _recorded(client: httpx2.Client) -> Iterator[tuple[str, Any]]:
    for route in ROUTES:
        method, _, path = route.partition(" ")
        listed = client.get(f"/context/conversations/{NAME}/summaries").json().get("data", [])
        target = path.format(conversation_id=NAME, summary_id=listed[0]["id"] if listed else "")
        sent = None if method in ("GET", "DELETE") else BODIES.get(method, _chat())
        answered = client.request(method, target, params=QUERIES.get(path), json=sent).raise_for_status()
        asked = {"request": BODIES.get(method, {"model": MODEL, "messages": MESSAGES})} if sent else {}
        yield route, {"answer": _SHOWN[answered.headers["content-type"].partition(";")[0]](answered), **asked}


def _cut(value: Any, name: str = "") -> Any:
    """A value with its long texts and its many messages cut, and with fixed numbers where they depend on the run."""
    match value:
        case dict():
            return {key: _cut(inner, key) for key, inner in value.items()}
        case list():
            return [_cut(inner, name) for inner in value[: MOST.get(name)]]
        case str() if len(value) > LONGEST_TEXT:
            return value[:SHOWN_TEXT].rstrip() + "..."
        case int() | float() if name in _PASSING:
            return 0
    return value


def _document(text: str) -> str:
    """The first lines, each of them cut."""
    lines = text.splitlines()
    return "\n".join(map(_cut, lines[:DOCUMENT_LINES])) + "\n...\n"


_SHOWN: Mapping[str, Callable[[httpx2.Response], Any]] = {
    "application/json": lambda answered: _cut(answered.json()),
    "text/markdown": lambda answered: _document(answered.text),
}
"""What is shown of an answer, by its type."""


def every_route(schema: dict[str, Any]) -> set[str]:
    """Routes of a schema that answer with something to show."""
    return {
        f"{method.upper()} {path}"
        for path, methods in schema["paths"].items()
        for method in methods
        if not is_proxied(path) and path not in ("/healthz", "/metrics")
    }
