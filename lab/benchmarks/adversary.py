"""A provider that answers as badly as it is asked to, with raw sockets. A client names the answer in `x-answer`.

Names that begin with `summary_` are for summary calls alone; without a name, and for all others, the answer is good.

    python -m lab.benchmarks.adversary     # prints its port
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

Answer = Callable[[], Iterator[bytes]]

PIECE = 65_536
TEXT = b"The user asked about foxes and dogs, and the assistant told which of them jump. " * 3
PLAIN = b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[%b],"usage":{"prompt_tokens":9}}'
CHOICE = b'{"index":0,"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}'
CHUNK = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n'
END = CHUNK % (b"", b'"stop"') + b"data: [DONE]\n\n"
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: "


def plain(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    return head + body


def good(*, is_stream: bool) -> Iterator[bytes]:
    """A short one, which would do for a summary."""
    if is_stream:
        yield CLOSING + b"text/event-stream\r\n\r\n" + CHUNK % (TEXT, b"null") + END
    else:
        yield plain(PLAIN % (CHOICE % TEXT))


def stream(pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield CLOSING + b"text/event-stream\r\n\r\n"
    yield from pieces


def in_chunks(data: bytes, size: int) -> Iterator[bytes]:
    """A stream in chunks of HTTP so small, many of them in each packet."""
    yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    for start in range(0, len(data), size * 5_000):
        block = data[start : start + size * 5_000]
        yield b"".join(b"%x\r\n%b\r\n" % (len(p := block[at : at + size]), p) for at in range(0, len(block), size))
    yield b"0\r\n\r\n"


def repeated(unit: bytes, size: int) -> Iterator[bytes]:
    block = unit * max(1, PIECE // len(unit))
    for _ in range(size // len(block) + 1):
        yield block


def unending(before: bytes, unit: bytes, size: int) -> Iterator[bytes]:
    yield before
    yield from repeated(unit, size)


def frame(content: bytes) -> bytes:
    return CHUNK % (content, b"null")


ANSWERS: dict[str, Answer] = {
    "frame_of_8_mb_in_pieces": lambda: in_chunks(frame(b"a" * 8_000_000) + END, 100),
    "frame_of_1_mb_in_bytes": lambda: in_chunks(frame(b"a" * 1_000_000) + END, 1),
    "frames_of_escapes": lambda: stream(iter([frame(rb"\n" * 3_900_000), frame(rb"\"" * 3_900_000), END])),
    "frame_of_values": lambda: stream(iter([b'data: {"choices":[' + b"{}," * 2_600_000 + b"{}]}\n\n", END])),
    "frame_of_keys": lambda: stream(iter([b'data: {"choices":[],' + b'"k":0,' * 1_300_000 + b'"l":0}\n\n', END])),
    "frame_without_end": lambda: stream(unending(b"data: ", b"a", 50_000_000)),
    "frames_of_two_bytes": lambda: stream(repeated(b"\n\n", 5_000_000)),
    "frames_of_a_word": lambda: stream(repeated(frame(b"word"), 20_000_000)),
    "tiny_chunks": lambda: in_chunks(b"".join(frame(b"%d" % n) for n in range(10_000)) + END, 1),
    "comments": lambda: stream(repeated(b":\n", 20_000_000)),
    "plain_of_300_mb": lambda: unending(CLOSING + b"application/json\r\n\r\n" + PLAIN[:100], b" ", 300_000_000),
    "plain_of_15_mb": lambda: iter([plain(PLAIN % (CHOICE % (b"a" * 15_000_000)))]),
    "plain_of_values": lambda: iter([plain(PLAIN % (b"{}," * 5_000_000 + b"{}"))]),
    "plain_of_keys": lambda: iter([plain(b"{" + b"".join(b'"k%d":0,' % n for n in range(1_200_000)) + b'"l":0}')]),
    "plain_of_usage": lambda: iter([plain(b'{"choices":[],"usage":{"a":[' + b"0," * 7_000_000 + b"0]}}")]),
    "headers_without_end": lambda: unending(b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n", 50_000_000),
    "header_without_end": lambda: unending(b"HTTP/1.1 200 OK\r\nx-a: ", b"a", 50_000_000),
    "interim_answers": lambda: repeated(b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n", 5_000_000),
    "refusal_of_values": lambda: iter([plain(b'{"error":[' + b"{}," * 5_000_000 + b"{}]}", b"400 Bad Request")]),
    "refusal_of_versions": lambda: iter(
        [plain(b'{"error":{"message":"' + b"nginx/1.400 " * 1_600 + b'?"}}', b"400 Bad Request")]
    ),
    "refusal_of_numbers": lambda: iter(
        [plain(b'{"error":{"message":"' + b"limit: 1 requested tokens (" * 740 + b'"}}', b"400 Bad Request")]
    ),
    "refusal_of_refusals": lambda: iter([plain(b'{"error":' * 900 + b"1" + b"}" * 900, b"400 Bad Request")]),
    "summary_of_values": lambda: iter([plain(PLAIN % (b"{}," * 1_300_000 + b"{}"))]),
    "summary_frame_of_values": lambda: stream(iter([b'data: {"choices":[' + b"{}," * 1_300_000 + b"{}]}\n\n"])),
    "summary_of_one_letter_frames": lambda: stream(repeated(frame(b"a"), 20_000_000)),
    "summary_of_3_mb": lambda: iter([plain(PLAIN % (CHOICE % (b"word " * 600_000)))]),
    "summary_without_end": lambda: unending(CLOSING + b"application/json\r\n\r\n" + b'{"choices":[', b" ", 50_000_000),
    "summary_refused_at_length": lambda: iter([plain(b"[" + b"{}," * 5_000_000 + b"{}]", b"400 Bad Request")]),
    "summary_of_a_long_reason": lambda: iter([plain(PLAIN % CHOICE.replace(b"stop", b"context" * 500_000) % TEXT)]),
}


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            rest = await _drained(reader, head)
            is_stream = b'"stream":true' in rest or b'"stream": true' in rest
            named = re.search(rb"\r\nx-answer: *([a-z0-9_]+)", head)
            name = named[1].decode() if named else ""
            is_meant = name in ANSWERS and name.startswith("summary_") == (b"\r\nx-context-call: summary" in head)
            for piece in ANSWERS[name]() if is_meant else good(is_stream=is_stream):
                writer.write(piece)
                await writer.drain()
            if is_meant or is_stream:
                return  # They end with the connection, if they end.
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # The caller left.
    finally:
        writer.close()


async def _drained(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body's beginning and end; all of it is taken."""
    length = re.search(rb"\r\ncontent-length: *([0-9]+)", head)
    left, beginning, end = int(length[1]) if length else 0, b"", b""
    if b"\r\ntransfer-encoding: chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    while left:
        piece = await reader.read(min(left, PIECE))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(piece)
        beginning = beginning or piece
        end = (end + piece)[-1_000:]
    return beginning + end


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=1 << 20, backlog=1_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
