"""HTTP/1.1 as bytes: requests as they are written, answers as they are read, without the borders of chunks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
OWN_KEY = "sk-case"
"""Stands for a key that only this case has: another tenant for each."""
WHOLE, CUT = b"", b"cut"


@dataclass(frozen=True, slots=True)
class Answer:
    head: bytes
    """Status line and headers, without the blank line."""
    body: bytes
    end: bytes = WHOLE
    """`CUT` where the connection ended before the answer did."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(
    target: str,
    body: bytes | None = None,
    *headers: str | bytes,
    method: str | None = None,
    key: str | None = OWN_KEY,
    kind: str | None = "application/json",
) -> bytes:
    """A request; `headers` are lines. Without a key and without a type there is no such header."""
    lines = [f"{method or ('GET' if body is None else 'POST')} {target} HTTP/1.1".encode(), b"host: steno.test"]
    if key is not None:
        lines.append(f"authorization: Bearer {key}".encode())
    if body is not None:
        lines += [f"content-type: {kind}".encode()] if kind else []
        lines.append(b"content-length: %d" % len(body))
    lines += [line if isinstance(line, bytes) else line.encode() for line in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def chunks_of(body: bytes, size: int) -> bytes:
    """A body framed in chunks of so many bytes."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def header(head: bytes, name: bytes) -> bytes | None:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return next((value.strip() for key, _, value in lines if key.lower() == name), None)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body; raises `EOFError` where there is none."""
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    if header(head, b"transfer-encoding"):
        return head, (await _dechunked(reader))[0]
    return head, await reader.readexactly(int(header(head, b"content-length") or 0))


async def read_answer(reader: asyncio.StreamReader, method: bytes) -> Answer:
    """The answer to a request; what came of it where it was cut."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    except asyncio.IncompleteReadError as error:
        return Answer(error.partial, b"", CUT)
    status = int(head.split(b" ", 2)[1])
    if method == b"HEAD" or status in {204, 304}:
        return Answer(head, b"")
    if header(head, b"transfer-encoding"):
        return Answer(head, *await _dechunked(reader))
    length = header(head, b"content-length")
    try:
        return Answer(head, await (reader.read() if length is None else reader.readexactly(int(length))))
    except asyncio.IncompleteReadError as error:
        return Answer(head, error.partial, CUT)


async def _dechunked(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    body = b""
    try:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    except asyncio.IncompleteReadError as error:
        return body + error.partial, CUT
    return body, WHOLE
