"""Conversations with more bytes of pictures than their provider takes: they go on, in every format."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from lab.simulator import Record, Simulator
from tests.e2e.conftest import TABLES
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\0\0\0\x03\0\x08\x02\0\0\0"
PICTURE_BYTES = 3_000_000
"""Bytes of a picture in base64, of 1,024 x 768."""


@dataclass(frozen=True)
class Client:
    path: str
    member: str
    members: dict[str, Any]
    most: int
    """Bytes of a body that the provider takes."""

    def picture(self, number: int) -> dict[str, Any]:
        data = b64encode(PNG + os.urandom(8) + bytes(PICTURE_BYTES * 3 // 4)).decode()
        if self.path == "/v1/messages":
            shown: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        elif self.path == "/v1/responses":
            shown = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
        else:
            shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        kind = "input_text" if self.path == "/v1/responses" else "text"
        return {"role": "user", "content": [{"type": kind, "text": f"Picture {number}?"}, shown]}

    def ask(self, steno: Steno, history: list[Any]) -> Answer:
        body = json.dumps({**self.members, self.member: history}).encode()
        usual = b"content-type: application/json", b"authorization: Bearer sk-test"
        return send(steno.url, request_bytes(body, *usual, target=self.path, usual=False), timeout=60.0)


CLIENTS = {
    "chat_completions": Client("/v1/chat/completions", "messages", {"model": "gpt-x"}, 50_000_000),
    "messages": Client("/v1/messages", "messages", {"model": "claude-x", "max_tokens": 400}, 32_000_000),
    "responses": Client("/v1/responses", "input", {"model": "gpt-y"}, 50_000_000),
}


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(window=200_000, models="any", tables=TABLES)


def turns(client: Client, number: int) -> list[Any]:
    return [
        message
        for turn in range(number)
        for message in (client.picture(turn), {"role": "assistant", "content": f"A heron, number {turn}."})
    ]


def sent(record: Record, client: Client) -> list[Any]:
    messages: list[Any] = record.payload[client.member]
    return messages


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_the_oldest_pictures_become_lines_until_the_provider_takes_the_body(
    simulator: Simulator, steno: StartSteno, client: Client
) -> None:
    proxy = steno(upstream={"formats": [*CLIENTS]}, models=[{"match": "*", "context_window": 200_000}])
    under, over = int(0.8 * client.most) // PICTURE_BYTES, client.most // PICTURE_BYTES + 2
    history = turns(client, over)
    for number in (under, under + 1, under + 2, over):
        said = [*history[: 2 * number], {"role": "user", "content": "Which was the last?"}]
        assert client.ask(proxy, said).status == 200
    whole, first, second, last = simulator.chats
    assert len(whole.body) <= 0.8 * client.most < len(whole.body) + PICTURE_BYTES
    assert b"left out now" not in whole.body
    for record in (first, second, last):
        assert len(record.body) <= 0.8 * client.most
        assert record.body.count(b"[image, ") == record.body.count(b"left out now") > 0
    # The newest stay, and what the user said with each.
    newest = (json.dumps(message["content"][1]) for message in history[-4::2])
    assert all(part in json.dumps(record) for part in newest for record in [sent(last, client)])
    assert all(f"Picture {number}?".encode() in last.body for number in range(over))
    # It happens by leaps: what was sent once is sent again, with the same bytes.
    shown = [[json.dumps(message)[-200:] for message in sent(record, client)[:-1]] for record in (first, second, last)]
    moves = sum(later[: len(earlier)] != earlier for earlier, later in pairwise(shown))
    assert moves == 0
