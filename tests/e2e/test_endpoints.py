"""Paths, methods, base URLs, names of conversations, and who may ask."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from structlog.testing import capture_logs

from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import Answer, connected, is_closed, post
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider

BINARY = bytes(range(256)) * 400
LONG = long_history()


# Relayed paths


def test_upload_is_relayed_to_the_byte(simulator: Simulator, steno: StartSteno) -> None:
    """Through the official client, and larger than a chat may be."""
    served = steno(limits={"body_bytes": 1_000})
    uploaded: Any = served.sdk().files.create(file=("a.bin", BINARY * 20), purpose="user_data")
    [record] = simulator.others
    assert BINARY * 20 in record.body
    assert uploaded.sha256 == hashlib.sha256(record.body).hexdigest()
    assert (record.header("content-type") or "").startswith("multipart/form-data; boundary=")


def test_conversations_that_pass_uncompacted_are_logged_once_a_minute_for_each_path(
    before_scripted: StartSteno,
) -> None:
    url = before_scripted().url
    with capture_logs() as logged:
        for target in ("/v1/threads", "/v1/completions", "/c/a/v1/threads", "/c/b/v1/threads/", "/v1/embeddings"):
            post(url, chat(LONG), target=target)
        for _ in range(2):
            post(url, b"{")
    lines = [line for line in logged if line["event"] == "conversations passed un-compacted"]
    assert [(line["path"], line["times"]) for line in lines] == [
        ("/v1/threads", 1),
        ("/v1/completions", 1),
        ("/v1/chat/completions", 1),
    ]
    assert [line["reason"].partition(":")[0] for line in lines] == [
        *("server_state", "path_not_compacted", "unreadable")
    ]


# Names of conversations


def name_of(answered: Answer) -> str | None:
    """As it is in JSON; the header has it percent-encoded."""
    name: str | None = answered.json["context"]["conversation_id"]
    assert unquote(answered.header("x-context-conversation-id") or "", errors="strict") == name
    return name


def test_an_unusable_name_from_a_header_of_another_tool_is_ignored(before_scripted: StartSteno) -> None:
    """The next place is read, and the log says so once."""
    url = before_scripted().url
    with capture_logs() as logged:
        for header in (b"x-session-id: " + b"x" * 257, b"x-session-id: caf\xe9", b"x-conversation-id: caf\xe9"):
            assert name_of(post(url, chat(conversation_id="mine"), header)) == "mine"
    ignored = [line["reason"] for line in logged if line["event"] == "a conversation's id was ignored"]
    assert [reason.partition(" ")[0] for reason in ignored] == ["x-session-id", "x-conversation-id"]


# Who may ask


# The command


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., commands.Serving]]:
    """Runs `steno serve`."""
    running: list[commands.Serving] = []

    def start(*arguments: str, **variables: Any) -> commands.Serving:
        running.append(commands.serve([*arguments], tmp_path, DATABASE_URL="memory", **variables))
        return running[-1]

    yield start
    for serving in running:
        serving.kill()


def test_command_closes_connections_that_owe_headers(
    scripted: ScriptedProvider, serve: Callable[..., commands.Serving]
) -> None:
    """What the tests serve is what the command serves."""
    serving = serve("--upstream", f"{scripted.url}/v1", STENO_LIMITS__RECEIVE_SECONDS="0.3")
    with connected(serving.url) as connection:
        connection.sendall(b"GET /liv")
        assert is_closed(connection)
