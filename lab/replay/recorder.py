"""The recorder: listens in between Steno and a real provider, and logs as the simulator does."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from app.errors import StenoError
from app.http.hops import new_instance
from app.http.upstream import Upstream
from app.runtime.server import RunningServer, serve
from lab.formats.known import FORMATS, format_at
from lab.replay.evidence import SentMessages
from lab.simulator.log import Kind, Log, Record

BY_PATH = {written.path: written for written in FORMATS.values()}
NOT_PASSED_ON = frozenset({b"host", b"connection", b"transfer-encoding"})
LOG_LIMIT = 10_000


class Recorder:
    """Passes everything on as it is, both ways."""

    def __init__(self, base_url: str, count: Callable[[str], int]) -> None:
        self._upstream = Upstream(
            base_url, connect=10.0, first_byte=600.0, between_bytes=120.0, instance=new_instance()
        )
        self._count = count
        self._log = Log(LOG_LIMIT)

    @property
    def log(self) -> tuple[Record, ...]:
        return self._log.records()

    def clear_log(self) -> None:
        self._log.clear()

    def serve(self) -> RunningServer:
        return serve(self, date_header=False, server_header=False, lifespan="off")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        record = self._record(scope, body)
        target: bytes = scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        headers = [(name, value) for name, value in scope["headers"] if name not in NOT_PASSED_ON]
        try:
            answering = await self._upstream.relay(self._upstream.head(scope["method"].encode(), target, headers), body)
        except StenoError as error:
            self._log.update(record.sequence, status=error.status)
            await send({"type": "http.response.start", "status": error.status, "headers": []})
            await send({"type": "http.response.body", "body": error.envelope})
            return
        try:
            self._log.update(record.sequence, status=answering.status)
            kept = [(name.lower(), value) for name, value in answering.headers if name.lower() not in NOT_PASSED_ON]
            await send({"type": "http.response.start", "status": answering.status, "headers": kept})
            answer = bytearray()
            async for chunk in answering.chunks():
                if record.kind == "summary":
                    answer += chunk
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            # Before the end: whoever has the whole answer may look at the log.
            text = BY_PATH[scope["path"]].answered(bytes(answer)) if record.kind == "summary" else None
            self._log.update(record.sequence, text=text, finished_at=time.monotonic())
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answering.close()

    def _record(self, scope: Scope, body: bytes) -> Record:
        messages = SentMessages(format_at(scope["path"])).split(body)
        record = Record(
            sequence=self._log.next_sequence(),
            at=time.monotonic(),
            method=scope["method"],
            target=scope["raw_path"].decode("latin-1"),
            headers=tuple(map(tuple, scope["headers"])),
            body=body,
            kind=_kind(scope),
            prompt_tokens=sum(self._count(piece) for message in messages for piece in message.pieces),
        )
        self._log.add(record)
        return record


def _kind(scope: Scope) -> Kind:
    if scope["path"] not in BY_PATH:
        return "other"
    return "summary" if (b"x-context-call", b"summary") in map(tuple, scope["headers"]) else "chat"


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)
