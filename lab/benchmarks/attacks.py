"""Attacks on a running Steno, by name: hostile bodies, answers, headers and connections.

Runs as a process of its own, so that whoever measures beside it is not slowed down by it: it reads a line with the name
of an attack from its standard input, makes what it needs, writes `ready` and the size; at the next line it begins, and
when it is over it writes what came of it.

    python -m lab.benchmarks.attacks --url http://127.0.0.1:8080 --seed 7
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPException, HTTPResponse
from urllib.parse import urlsplit

from lab.benchmarks.adversary import ANSWERS
from lab.benchmarks.shapes import SHAPES, generated, long_history

Attack = Callable[[], bytes]
"""Makes what is sent, or is going to be."""
GENERATED = 12
SLOW = 200
"""Connections."""
SECONDS = 60.0
"""Seconds of one attack."""
KEY = b"authorization: Bearer sk-attacker\r\ncontent-type: application/json\r\nhost: localhost\r\n"
CHAT = b"POST /u/adversary/v1/chat/completions HTTP/1.1\r\n" + KEY
UPLOAD = b"POST /u/adversary/v1/files HTTP/1.1\r\n" + KEY
IN_CHUNKS = b"transfer-encoding: chunked\r\n\r\n"
SMALL = b'{"model":"gpt-4o","messages":[{"role":"user","content":"Why?"}]'
FLOOD = 100_000_000
SEVERAL = ("spaces", "tiny_messages_9999", "text_of_words", "parts_9000")
"""Bodies that are sent eight times at once as well."""


class Attacker:
    def __init__(self, url: str, seed: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._seed = seed
        self.attacks: dict[str, Callable[[], tuple[int, Callable[[], str]]]] = {
            **{f"body {name}": partial(self._body, shape) for name, shape in SHAPES.items()},
            **{f"body {name}": partial(self._body, shape) for name, shape in generated(seed, GENERATED)},
            **{f"8 x body {name}": partial(self._body, SHAPES[name], 8) for name in SEVERAL},
            **{f"answer {name}": partial(self._answered, name) for name in ANSWERS},
            **{f"header {name}": partial(self._flood, *flood) for name, flood in FLOODS.items()},
            "many names of models": self._names,
            "slow heads": partial(self._slow, CHAT[:-10]),
            "slow bodies": partial(self._slow, CHAT + b"content-length: 1000\r\n\r\n{"),
            "slow uploads": partial(self._slow, UPLOAD + IN_CHUNKS),
            "answers nobody takes": self._unread,
            "requests in one packet": self._pipelined,
        }

    def _body(self, shape: Callable[[], bytes], times: int = 1) -> tuple[int, Callable[[], str]]:
        body = shape()
        request = CHAT + b"content-length: %d\r\n\r\n" % len(body) + body
        return times * len(body), lambda: self._together([request] * times)

    def _answered(self, name: str) -> tuple[int, Callable[[], str]]:
        size = sum(map(len, ANSWERS[name]()))
        is_stream = b',"stream":true}' if not name.startswith(("plain", "refusal")) else b"}"
        body = long_history(12, 1_900) if name.startswith("summary") else SMALL + is_stream
        head = CHAT + b"x-answer: %b\r\ncontent-length: %d\r\n\r\n" % (name.encode(), len(body))
        return size, lambda: self._together([head + body])

    def _names(self) -> tuple[int, Callable[[], str]]:
        rng = random.Random(self._seed)
        bodies = [SMALL.replace(b"gpt-4o", b"%x" % rng.getrandbits(1_200)) + b"}" for _ in range(100)]
        requests = [CHAT + b"content-length: %d\r\n\r\n" % len(body) + body for body in bodies]
        return sum(map(len, requests)), lambda: self._together(requests[:50]) + " " + self._together(requests[50:])

    def _flood(self, before: bytes, unit: bytes) -> tuple[int, Callable[[], str]]:
        """Sends without an end, until it is refused."""
        block = unit * (65_536 // len(unit))

        def flood() -> str:
            sent = 0
            with self._connected() as connection, suppress(OSError):
                connection.sendall(before)
                while sent < FLOOD:
                    sent += connection.send(block)
            return f"took {sent / 1e6:.0f} MB"

        return FLOOD, flood

    def _slow(self, beginning: bytes) -> tuple[int, Callable[[], str]]:
        def drip() -> str:
            with ExitStack() as stack:
                connections = [stack.enter_context(self._connected()) for _ in range(SLOW)]
                for connection in connections:
                    connection.sendall(beginning)
                for _ in range(20):
                    time.sleep(0.1)
                    for connection in connections:
                        with suppress(OSError):
                            connection.sendall(b"a")
            return f"{SLOW} open"

        return SLOW * len(beginning), drip

    def _unread(self) -> tuple[int, Callable[[], str]]:
        body = SMALL + b',"stream":true}'
        head = CHAT + b"x-answer: frames_of_a_word\r\ncontent-length: %d\r\n\r\n" % len(body)

        def ask() -> str:
            with ExitStack() as stack:
                for _ in range(SLOW // 10):
                    connection = stack.enter_context(self._connected())
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                    connection.sendall(head + body)
                time.sleep(2)
            return f"{SLOW // 10} open"

        return SLOW // 10 * len(body), ask

    def _pipelined(self) -> tuple[int, Callable[[], str]]:
        packet = (CHAT + b"content-length: %d\r\n\r\n" % (len(SMALL) + 1) + SMALL + b"}") * 4_000
        return len(packet), lambda: self._together([packet])

    def _together(self, requests: list[bytes]) -> str:
        """All at once, each on a connection of its own; what they were answered."""
        statuses: Counter[str] = Counter()
        with ExitStack() as stack:
            connections = [stack.enter_context(self._connected()) for _ in requests]
            for connection, request in zip(connections, requests, strict=True):
                with suppress(OSError):  # It may be refused before it is all there.
                    connection.sendall(request)
            for connection in connections:
                statuses[_status(connection)] += 1
        return " ".join(f"{status}" if count == 1 else f"{count} x {status}" for status, count in statuses.items())

    def _connected(self) -> socket.socket:
        return socket.create_connection(self._address, timeout=SECONDS)


FLOODS = {
    "in one": (CHAT + b"x-a: ", b"a"),
    "in many": (CHAT, b"x-a: b\r\n"),
    "request line": (b"POST /v1/chat/completions?", b"a"),
    "blank lines": (b"", b"\r\n"),
    "trailer": (CHAT + IN_CHUNKS + b"1\r\n{\r\n0\r\nx-a: ", b"a"),
    "trailers": (CHAT + IN_CHUNKS + b"1\r\n{\r\n0\r\n", b"x-a: b\r\n"),
    "chunk extension": (UPLOAD + IN_CHUNKS + b"1;", b"a"),
    "tiny chunks": (UPLOAD + IN_CHUNKS, b"1\r\na\r\n"),
    "tiny chunks of a chat": (CHAT + IN_CHUNKS, b"1\r\na\r\n"),
}


def _status(connection: socket.socket) -> str:
    """Takes an answer as long as something comes, without keeping it."""
    response = HTTPResponse(connection, method="POST")
    try:
        response.begin()
        while response.read(1 << 18):
            pass
    except (OSError, HTTPException) as error:
        status = getattr(response, "status", "_UNKNOWN")
        return type(error).__name__ if status == "_UNKNOWN" else f"{status}, cut"
    return str(response.status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--seed", type=int, required=True)
    chosen = parser.parse_args()
    attacks = Attacker(chosen.url, chosen.seed).attacks
    print("\t".join(attacks), flush=True)
    for line in sys.stdin:
        size, attack = attacks[line.strip()]()
        print(f"ready {size}", flush=True)
        sys.stdin.readline()
        print(attack(), flush=True)


if __name__ == "__main__":
    main()
