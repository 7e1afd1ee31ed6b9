"""Conversations with more bytes of pictures than their provider takes: they go on."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from itertools import pairwise
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.conftest import TABLES
from tests.e2e.raw import post
from tests.e2e.running import StartSteno

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\0\0\0\x03\0\x08\x02\0\0\0"
PICTURE_BYTES = 3_000_000
"""Bytes of a picture in base64, of 1,024 x 768."""
ROOM = int(0.8 * 32_000_000)
"""Of the bytes that the provider of Messages takes, which are the fewest."""


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(window=200_000, models="any", tables=TABLES)


def turns(number: int) -> list[Any]:
    history: list[Any] = []
    for turn in range(number):
        data = b64encode(PNG + os.urandom(8) + bytes(PICTURE_BYTES * 3 // 4)).decode()
        shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        history.append({"role": "user", "content": [{"type": "text", "text": f"Picture {turn}?"}, shown]})
        history.append({"role": "assistant", "content": f"A heron, number {turn}."})
    return history


def test_the_oldest_pictures_become_lines_until_the_provider_takes_the_body(
    simulator: Simulator, steno: StartSteno
) -> None:
    url = steno(upstream={"formats": ["messages"]}, models=[{"match": "*", "context_window": 200_000}]).url
    under, over = ROOM // PICTURE_BYTES, ROOM // PICTURE_BYTES + 4
    history = turns(over)
    for number in (under, under + 1, under + 2, over):
        said = [*history[: 2 * number], {"role": "user", "content": "Which was the last?"}]
        asked = {"model": "claude-x", "max_tokens": 400, "messages": said}
        assert post(url, asked, target="/v1/messages").status == 200
    whole, first, second, last = simulator.chats
    assert len(whole.body) <= ROOM < len(whole.body) + PICTURE_BYTES
    assert b"left out now" not in whole.body
    for record in (first, second, last):
        assert len(record.body) <= ROOM
        assert record.body.count(b"[image, ") == record.body.count(b"left out now") > 0
    # The newest stay, and what the user said with each.
    assert all(json.dumps(message["content"][1]).encode() in last.body for message in history[-4::2])
    assert all(f"Picture {number}?".encode() in last.body for number in range(over))
    # It happens by leaps: what was sent once is sent again, with the same bytes.
    sent = [
        [json.dumps(message)[-200:] for message in record.payload["messages"][:-1]] for record in (first, second, last)
    ]
    assert [later[: len(earlier)] == earlier for earlier, later in pairwise(sent)] == [True, True]
