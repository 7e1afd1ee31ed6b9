"""Whole answers as a client gets them, in each format and for each shape of events, for docs/streams.

`make examples` writes them; `test_stream_recordings` compares them with what comes now. What differs from one run to
the next is replaced: ids and times by fixed ones; of keep-alives, whose number depends on the machine, one is shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from app.formats.compaction_events import EVENT_SHAPES
from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.conftest import TABLES
from tests.e2e.histories import turns
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import WINDOW

FOLDER = Path(__file__).parents[2] / "docs" / "streams"
LONG = turns(15)
SHORT = turns(1)
TEXT = "It left the depot on Monday."
SUMMARY_SECONDS = 1.5
AT_ONCE = 12
SHOWN_HEADERS = frozenset({"content-type", "cache-control", "x-accel-buffering", "retry-after", "x-should-retry"})
"""Beside those of Steno's own."""

_IDS = re.compile(r"(?<![a-z])(chatcmpl|cmp|chk|conv|msg|req|resp|rs|fp|use|cal)[_-][0-9a-z]{6,}")
_TIMES = re.compile(r'("created(?:_at)?":\s?)[0-9]{10}(?:\.[0-9]+)?')
_KEEP_ALIVES = re.compile(
    r'^(: keep-alive|event: ping\ndata: \{"type": "ping"\}|data: \{[^\n]*"delta":\{\},"finish_reason":null\}\]\})$'
)


@dataclass(frozen=True, slots=True)
class Written:
    """A format: where its requests go, and how it writes one."""

    name: str
    path: str
    history: str
    """The member that holds the messages."""
    members: Mapping[str, Any]


CHAT = Written("chat-completions", "/v1/chat/completions", "messages", {"model": "gpt-4o"})
MESSAGES = Written("messages", "/v1/messages", "messages", {"model": "claude-sonnet-5", "max_tokens": 400})
RESPONSES = Written("responses", "/v1/responses", "input", {"model": "gpt-4o", "store": False})
FORMATS = (CHAT, MESSAGES, RESPONSES)


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked, and what goes wrong with the provider."""

    name: str
    what: str
    stream: bool = True
    messages: list[Any] = field(default_factory=lambda: LONG)
    headers: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    """How the simulator answers the summary call."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """How it answers the chat itself."""


SHAPES = {
    "chunk": "in what every client of the format takes",
    "comment": "as comments",
    "off": "not at all: the client waits, and the headers have the outcome",
}
CASES = (
    Case("full", "Everything fits: the provider's stream, with the status.", messages=SHORT),
    *(
        Case(shape, f"A summary had to be made; the stream says so {how}.", headers={"x-context-events": shape})
        for shape, how in SHAPES.items()
    ),
    Case("failed", "No summary could be had: the request goes on without.", summary={"status": 400}),
    Case("refused", "The provider refuses after the stream has begun.", answer={"status": 429, "retry_after": 60}),
    Case("broken", "The provider breaks off in the middle of its answer.", answer={"cut": "close", "after": 2}),
    Case("whole", "An answer in one piece.", stream=False),
    Case("error", "Steno refuses the request itself.", stream=False, members={"context": {"presets": "default"}}),
)
assert set(EVENT_SHAPES) == set(SHAPES)


@contextmanager
def recorder() -> Iterator[Recorder]:
    """A provider, and Steno before it. Nothing is learnt, so that no case has a part in another's figures."""
    simulator = Simulator(window=WINDOW, models="any", tables=TABLES)
    sections: dict[str, Any] = {
        "upstream": {"formats": ["chat_completions", "messages", "responses"]},
        "calibration": {"enabled": False},
        "compaction": {"background": {"enabled": False}},
        "storage": {"timeout_seconds": 30.0},
    }
    with pytest.MonkeyPatch.context() as patch, simulator.serve() as provider:
        running.forget_environment(patch)
        # At least one comes while a summary is made, however busy the machine is.
        patch.setattr("app.proxy.early_stream.KEEP_ALIVE_SECONDS", 1.0)
        steno = running.start(provider.url, sections)
        yield Recorder(simulator, steno.url)
        steno.stop()


@dataclass(frozen=True, slots=True)
class Recorder:
    simulator: Simulator
    url: str

    def record(self, written: Written, case: Case) -> str:
        """As a tenant of its own, whose summaries nobody else has made."""
        key = f"Bearer sk-{written.name}-{case.name}"
        for kind, usual, fault in (
            ("summary", {"delay": SUMMARY_SECONDS}, case.summary),
            ("chat", {"text": TEXT}, case.answer),
        ):
            self.simulator.when(
                lambda record, kind=kind: record.kind == kind and record.header("authorization") == key,  # type: ignore[misc]
                **{**usual, **fault},
            )
        asked = {**written.members, **({"stream": True} if case.stream else {}), **case.members}
        headers = {"content-type": "application/json", "x-context-conversation-id": "order-4711", **case.headers}
        lines = [f"{name}: {value}".encode() for name, value in headers.items()]
        body = json.dumps({**asked, written.history: case.messages}).encode()
        request = request_bytes(body, *lines, f"authorization: {key}".encode(), target=written.path, usual=False)
        answered = send(self.url, request, timeout=30.0)
        shown = json.dumps({**asked, written.history: ["..."]})
        said = [case.what, "", f"POST {written.path}", *(line.decode() for line in lines), "", shown]
        return "\n".join((*(f"> {line}".rstrip() for line in said), "", _shown(answered)))

    def all(self) -> dict[Path, str]:
        """Every case in every format, by its file: side by side, as most of the time is the summariser's."""
        cases = [(written, case) for written in FORMATS for case in CASES]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            recorded = pool.map(lambda each: self.record(*each), cases)
            return {file_of(*each): text for each, text in zip(cases, recorded, strict=True)}


def file_of(written: Written, case: Case) -> Path:
    return FOLDER / written.name / f"{case.name}.txt"


def _shown(answered: Answer) -> str:
    shown = [
        (name, value) for name, value in answered.headers if name in SHOWN_HEADERS or name.startswith("x-context-")
    ]
    head = [f"HTTP/1.1 {answered.status}", *(f"{name}: {value}" for name, value in shown)]
    return _without_chance("\n".join((*head, "", "")) + answered.body.decode())


def _without_chance(text: str) -> str:
    text = _TIMES.sub(r"\g<1>1795257889", with_fixed_names(text))
    return _with_one_keep_alive(text).rstrip("\n") + "\n"


def with_fixed_names(text: str) -> str:
    """The text with its random ids numbered by kind, in the order in which they come."""
    names: dict[str, str] = {}
    for found in _IDS.finditer(text):
        kind = found[1]
        names.setdefault(found[0], f"{kind}{found[0][len(kind)]}{sum(n.startswith(kind) for n in names.values()) + 1}")
    return _IDS.sub(lambda found: names[found[0]], text)


def _with_one_keep_alive(text: str) -> str:
    """Those that came while the summary was made are one; later ones are an accident."""
    kept: list[str] = []
    begun = closed = False
    for is_keep_alive, frames in groupby(text.split("\n\n"), lambda frame: _KEEP_ALIVES.match(frame) is not None):
        several = list(frames)
        if is_keep_alive:
            kept += several[:1] if begun and not closed else []
            continue
        begun = begun or any("compaction_started" in frame for frame in several)
        closed = closed or any(re.search("compaction_(completed|failed)", frame) for frame in several)
        kept += several
    return "\n\n".join(kept)
