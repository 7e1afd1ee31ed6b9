"""The pool and the client beside it: a provider that cannot be reached is named by host and port."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from app.errors import UpstreamUnreachable
from app.http.upstream import Upstream, host_and_port


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("https://api.example/v1", "api.example:443"),
        ("http://api.example", "api.example:80"),
        ("http://127.0.0.1:9000/v1", "127.0.0.1:9000"),
        ("http://[::1]:9000/v1", "[::1]:9000"),
        ("https://user:secret@api.example/v1", "api.example:443"),
    ],
)
def test_a_base_url_is_shown_by_host_and_port(base_url: str, expected: str) -> None:
    assert "{}:{}".format(*host_and_port(httpx.URL(base_url))) == expected


async def test_an_unreachable_provider_is_named_by_host_and_port() -> None:
    upstream = Upstream("http://127.0.0.1:1/v1", 1.0, 1.0, 1.0, b"instance")
    try:
        with pytest.raises(UpstreamUnreachable, match=r"provider at 127\.0\.0\.1:1 could"):
            await upstream.relay(upstream.head(b"POST", b"/v1/chat/completions", []), b"{}")
        with pytest.raises(UpstreamUnreachable, match=r"provider at 127\.0\.0\.1:1 could"):
            await upstream.ask(b"/v1/models", [], 1.0)
    finally:
        await upstream.close()
