"""Bodies that clients compress: read, compacted, and forwarded as they came where nothing was changed."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.histories import chat, long_history, turns
from tests.e2e.raw import post
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


WAYS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip in capitals": (" GZip ", gzip.compress),
    "zstd": ("zstd", zstd.compress),
}
each_way = pytest.mark.parametrize(("named", "encode"), WAYS.values(), ids=WAYS)
FORMATS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "gpt-4o", "messages": turns(40)},
    "/v1/messages": {"model": "claude-x", "max_tokens": 400, "messages": turns(40)},
    "/v1/responses": {"model": "gpt-4o", "input": turns(40)},
}
BOMB = b'{"messages":[{"role":"user","content":"' + b" " * 30_000_000 + b'"}]}'


def encoding(named: str) -> bytes:
    return b"content-encoding: " + named.encode()


@each_way
def test_an_encoded_body_that_fits_goes_on_as_it_came(
    before_scripted: StartSteno, scripted: ScriptedProvider, named: str, encode: Callable[[bytes], bytes]
) -> None:
    body = encode(chat(turns(1)))
    answered = post(before_scripted().url, body, encoding(named))
    assert (answered.status, answered.header("x-context-status")) == (200, "full")
    [sent] = scripted.requests
    assert sent.body == body
    assert sent.all(b"content-encoding") == [named.strip().encode()]


@pytest.mark.parametrize("target", FORMATS)
def test_an_encoded_body_that_is_compacted_goes_on_plain(
    before_scripted: StartSteno, scripted: ScriptedProvider, target: str
) -> None:
    url = before_scripted(compaction={"preset": "sliding-window"}).url
    body = json.dumps(FORMATS[target]).encode()
    answered = post(url, gzip.compress(body), encoding("gzip"), target=target)
    assert (answered.status, answered.header("x-context-status")) == (200, "trimmed")
    [sent] = scripted.requests
    assert sent.all(b"content-encoding") == []
    assert sent.all(b"content-length") == [b"%d" % len(sent.body)]
    assert json.loads(sent.body)["model"] == FORMATS[target]["model"]
    assert len(sent.body) < len(body)


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/messages", "/context/plan"])
def test_a_bomb_is_refused_in_the_format_s_shape_and_not_forwarded(
    before_scripted: StartSteno, scripted: ScriptedProvider, target: str
) -> None:
    refused = post(before_scripted().url, zstd.compress(BOMB), encoding("zstd"), target=target)
    assert refused.status == 413
    assert "100 times" in refused.json["error"]["message"]
    assert refused.json.get("type") == ("error" if target == "/v1/messages" else None)
    assert not scripted.requests


def test_the_limit_is_one_of_decoded_bytes(before_scripted: StartSteno, scripted: ScriptedProvider) -> None:
    refused = post(
        before_scripted(limits={"body_bytes": 20_000}).url, gzip.compress(chat(long_history())), encoding("gzip")
    )
    assert (refused.status, refused.json["error"]["code"]) == (413, "request_too_large")
    assert "20000" in refused.json["error"]["message"]
    assert not scripted.requests


def test_a_body_as_large_as_its_vendor_takes_is_served(before_scripted: StartSteno, scripted: ScriptedProvider) -> None:
    body = chat(turns(40), x_padding="A" * 25_000_000)
    answered = post(before_scripted().url, body, b"x-context-compaction: off")
    assert answered.status == 200
    assert scripted.requests[0].body == body
