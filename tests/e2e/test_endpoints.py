"""Paths, methods, base URLs, names of conversations, and who may ask."""

from __future__ import annotations

import pytest
from openai import NotFoundError
from structlog.testing import capture_logs

from lab.simulator import Simulator
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import post
from tests.e2e.running import StartSteno

BINARY = bytes(range(256)) * 400
LONG = long_history()


# Relayed paths


def test_upload_is_relayed_to_the_byte(simulator: Simulator, steno: StartSteno) -> None:
    """Through the official client, and larger than a chat may be."""
    served = steno(limits={"body_bytes": 1_000})
    with pytest.raises(NotFoundError):  # The simulator has no files.
        served.sdk().files.create(file=("a.bin", BINARY * 20), purpose="user_data")
    [record] = simulator.others
    assert BINARY * 20 in record.body
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
