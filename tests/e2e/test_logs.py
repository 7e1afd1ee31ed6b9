"""The log: one line for each decision and each error, with the ids by which everything else knows the request."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.histories import chat, long_history, turns
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider, answer

Line = MutableMapping[str, Any]

REFUSAL = b'{"error":{"message":"canary words","code":"rate_limit_exceeded"}}'


class Log:
    """What was logged so far."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def of(self, *events: str) -> list[Line]:
        """Those lines, without their noise."""
        return [line for line in self._lines if line["event"] in events]

    @property
    def text(self) -> str:
        return json.dumps(self._lines, default=str)


@pytest.fixture
def log() -> Iterator[Log]:
    with capture_logs() as lines:
        yield Log(lines)


# On a terminal


def test_on_a_terminal_it_begins_with_a_banner_and_goes_on_with_lines_to_read(tmp_path: Path) -> None:
    """And says nothing as JSON, nor twice what the banner says."""
    ours, theirs = pty.openpty()
    arguments = ["serve", "--port", "0", "--upstream", "http://127.0.0.1:9/v1"]
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "app.cli.main", *arguments],
        cwd=tmp_path,
        env=commands.environment({"STENO_SECRET": commands.SECRET, "DATABASE_URL": "memory", "NO_COLOR": "1"}),
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = ""
    with closing(os.fdopen(ours, "rb", buffering=0)) as terminal:
        try:
            while "check failed" not in shown:
                shown += terminal.read(4096).decode()
            pages = re.search(r"Inspector +(http://\S+)/ui\s+Password +(\S{16}) ", shown)
            assert pages is not None
            assert httpx2.post(f"{pages[1]}/ui/sign-in", data={"key": pages[2]}).status_code == 303
            process.send_signal(signal.SIGTERM)
            with suppress(OSError):  # So ends a terminal that nobody writes to any more.
                while piece := terminal.read(4096):
                    shown += piece.decode()
            assert process.wait(commands.START_SECONDS) == 0
        finally:
            process.kill()
    head, _, rest = shown.replace("\r\n", "\n").partition("Stop it with Ctrl-C.")
    address = head.partition("OPENAI_BASE_URL=")[2].partition("\n")[0]
    assert address.startswith("http://127.0.0.1:")
    assert f"ANTHROPIC_BASE_URL={address.removesuffix('/v1')}\n" in head
    assert re.search("Upstream default +http://127.0.0.1:9/v1\n", head)
    assert pages[1] == address.removesuffix("/v1")
    assert re.search(r"\[warning +\] check failed", rest)
    assert "{" not in shown
    assert "serving" not in rest


# Decisions


def test_a_changed_payload_is_one_line_with_the_ids_that_header_and_ledger_have(steno: StartSteno, log: Log) -> None:
    proxy = steno()
    answered = post(proxy.url, chat(long_history()), b"x-conversation-id: order-4711")
    [line] = log.of("payload changed")
    tokens = answered.json["context"]["tokens"]
    assert line.pop("seconds") >= 0
    assert line == {
        "event": "payload changed",
        "log_level": "info",
        "request_id": answered.header("x-context-request-id"),
        "conversation_id": "order-4711",
        "upstream": "default",
        "model": "gpt-4o",
        "context_status": "summarized",
        "actions": ["summarized", "user_words"],
        "messages": {},
        "reason": None,
        "remedy": None,
        "tokens_before": tokens["estimated"],
        "tokens_after": tokens["forwarded"],
        "window": tokens["window"],
    }
    [compacted] = log.of("compacted")
    assert compacted["request_id"] == line["request_id"]
    ledger = json.loads(get(proxy.url, "/context/conversations/order-4711/usage").body)["data"]
    assert {record["request_id"] for record in ledger} == {line["request_id"]}
    assert len(ledger) == 2


def test_what_is_left_over_the_trigger_is_a_line_that_says_why(steno: StartSteno, log: Log) -> None:
    answered = post(steno().url, chat(long_history()), b"x-context-compaction: off")
    [line] = log.of("payload unchanged")
    assert (line["log_level"], line["reason"], line["actions"]) == ("info", "compaction_off", [])
    assert line["tokens_before"] == line["tokens_after"] > 5_600
    assert line["request_id"] == answered.header("x-context-request-id")


def test_messages_that_are_left_out_are_counted_and_a_warning(
    simulator: Simulator, steno: StartSteno, log: Log
) -> None:
    for _ in range(4):
        simulator.next_summary(status=500)
    post(steno(compaction={"tail": {"turns": 30}}).url, chat(turns(22)))
    [line] = log.of("payload changed")
    assert line["log_level"] == "warning"
    assert "pruned" in line["actions"]
    assert line["messages"]["pruned"] > 0
    assert line["reason"].startswith("summariser_")
    [failed] = log.of("compaction failed")
    assert (failed["log_level"], failed["request_id"]) == ("warning", line["request_id"])
    assert "summary.fallbacks" in failed["remedy"]
    assert line["remedy"] == failed["remedy"]


# Errors


@pytest.mark.parametrize(
    ("target", "body", "model"),
    [("chat/completions", chat(), "gpt-4o"), ("chat/completions", b"{", None), ("embeddings", chat(), None)],
)
def test_each_refusal_of_a_provider_is_a_line_without_its_text(
    scripted: ScriptedProvider, before_scripted: StartSteno, log: Log, target: str, body: bytes, model: str | None
) -> None:
    steno = before_scripted()
    for status in (b"429 Too Many Requests", b"503 Service Unavailable"):
        scripted.then(answer(REFUSAL, b"x-request-id: req_theirs", status=status))
    answered = [post(steno.url, body, b"authorization: Bearer sk-canary", target=f"/v1/{target}") for _ in range(2)]
    lines = log.of("provider refused")
    assert [line["status"] for line in lines] == [429, 503]
    assert [line["request_id"] for line in lines] == [given.header("x-context-request-id") for given in answered]
    assert {given.header("x-request-id") for given in answered} == {"req_theirs"}
    assert lines[0]["provider_request_id"] == "req_theirs"
    assert ["rate limit" in line["remedy"] for line in lines] == [True, False]
    assert lines[0]["model"] == model
    assert {line["log_level"] for line in lines} == {"warning"}
    assert "canary" not in log.text


def test_a_provider_that_is_away_is_told_of_once_and_once_more_when_it_is_back(
    scripted: ScriptedProvider, before_scripted: StartSteno, log: Log
) -> None:
    steno = before_scripted()
    for _ in range(3):
        scripted.then("close")
        assert post(steno.url, chat()).status == 502
    [failed] = log.of("provider failed")
    assert (failed["upstream"], failed["code"], failed["times"]) == ("default", "upstream_disconnected", 1)
    assert failed["remedy"]
    assert log.of("provider answers again") == []
    assert post(steno.url, chat()).status == 200
    [back] = log.of("provider answers again")
    assert (back["upstream"], back["times"], back["log_level"]) == ("default", 3, "info")


def test_a_dead_summariser_is_told_of_once_and_once_more_when_it_is_back(
    simulator: Simulator, steno: StartSteno, log: Log
) -> None:
    proxy = steno(summary={"model": "gpt-4o-mini"})
    for _ in range(4):
        simulator.next_summary(status=500)
    for first in (1, 100):
        post(proxy.url, chat(turns(15, first=first)))
    [fails] = log.of("summariser fails")
    assert (fails["upstream"], fails["model"], fails["reason"]) == ("default", "gpt-4o-mini", "summariser_status_500")
    assert [line["reason"] for line in log.of("compaction failed")] == ["summariser_status_500"] * 2
    post(proxy.url, chat(turns(15, first=200)))
    [works] = log.of("summariser works again")
    assert (works["model"], works["times"]) == ("gpt-4o-mini", 2)


def test_conversations_that_pass_uncompacted_are_logged_once_a_minute_for_each_path(
    before_scripted: StartSteno, log: Log
) -> None:
    url = before_scripted().url
    for target in ("/v1/threads", "/v1/completions", "/c/a/v1/threads", "/c/b/v1/threads/", "/v1/embeddings"):
        post(url, chat(long_history()), target=target)
    for _ in range(2):
        post(url, b"{")
    lines = log.of("conversations passed un-compacted")
    assert [(line["path"], line["times"], line["reason"].partition(":")[0]) for line in lines] == [
        ("/v1/threads", 1, "server_state"),
        ("/v1/completions", 1, "path_not_compacted"),
        ("/v1/chat/completions", 1, "unreadable"),
    ]
