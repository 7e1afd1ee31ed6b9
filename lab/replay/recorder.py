"""The recorder: listens in between Steno and a real provider, and logs as the simulator does."""

from __future__ import annotations

from app.errors import StenoError
from app.http.headers import new_instance
from app.http.upstream import Upstream
from app.tokens.estimate import Count
from lab.formats.known import format_at
from lab.replay.evidence import SentMessages
from lab.simulator.connection import Connection, HeaderPairs
from lab.simulator.log import Record
from lab.simulator.simulator import Simulator

NOT_PASSED_ON = frozenset({b"host", b"connection", b"transfer-encoding"})


class Recorder(Simulator):
    """Passes everything on as it is, both ways."""

    def __init__(self, base_url: str, count: Count) -> None:
        super().__init__(models="any", count=count)
        self._upstream = Upstream(
            base_url, connect=10.0, first_byte=600.0, between_bytes=120.0, instance=new_instance()
        )

    async def _answer(self, record: Record, connection: Connection) -> None:
        written = format_at(record.path)
        pieces = (piece for message in SentMessages(written).split(record.body) for piece in message.pieces)
        self._log.update(record.sequence, prompt_tokens=sum(map(self.count, pieces)))
        head = self._upstream.head(record.method.encode(), record.target.encode("latin-1"), _passed_on(record.headers))
        try:
            answering = await self._upstream.relay(head, record.body)
        except StenoError as error:
            self._log.update(record.sequence, status=error.status)
            await connection.start(error.status, [])
            await connection.write(error.envelope)
            await connection.finish()
            return
        try:
            self._log.update(record.sequence, status=answering.status)
            await connection.start(answering.status, _passed_on(answering.headers))
            answer = bytearray()
            async for chunk in answering.chunks():
                answer += chunk
                await connection.write(chunk)
            # Before the end: the client that has the whole answer may look at the log.
            self._log.update(record.sequence, text=written.answered(bytes(answer)))
            await connection.finish()
        finally:
            await answering.close()


def _passed_on(headers: HeaderPairs) -> HeaderPairs:
    return [(name.lower(), value) for name, value in headers if name.lower() not in NOT_PASSED_ON]
