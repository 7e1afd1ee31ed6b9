"""Replies of the corpus' provider: bytes on a connection."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lab.benchmarks.corpus.framing import chunks_of

CREATED = 1_234_567_890


@dataclass(frozen=True, slots=True)
class Reply:
    """Bytes on the connection; `closes`: then it is closed."""

    data: bytes
    closes: bool = False


def plain(body: bytes | dict[str, Any], *headers: str, status: str = "200 OK", kind: str = "application/json") -> Reply:
    """An answer with a length."""
    data = body if isinstance(body, bytes) else compact_json(body)
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(data)}", *headers]
    return Reply("\r\n".join(lines).encode() + b"\r\n\r\n" + data)


def streamed(
    *frames: bytes, headers: Iterable[str] = (), done: bool = True, size: int = 97, cut: bool = False
) -> Reply:
    """Server-sent events in chunks whose borders lie anywhere; `cut`: the connection ends without the last one."""
    lines = [
        "HTTP/1.1 200 OK",
        "content-type: text/event-stream; charset=utf-8",
        "transfer-encoding: chunked",
        *headers,
    ]
    body = b"".join(frames) + (b"data: [DONE]\n\n" if done else b"")
    framed = chunks_of(body, size)
    return Reply("\r\n".join(lines).encode() + b"\r\n\r\n" + (framed[:-5] if cut else framed), closes=cut)


def compact_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
