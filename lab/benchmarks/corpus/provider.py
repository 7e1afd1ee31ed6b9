"""The provider of the corpus: scripted answers, and where the script says nothing, plain ones made from the request."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lab.benchmarks.corpus.answers import answered
from lab.benchmarks.corpus.framing import header, read_request
from lab.benchmarks.corpus.replies import CREATED, Reply, compact_json, plain, streamed

SETTLE = b"x-corpus-settle"
"""Marks a request of the recorder's own, which is in no recording."""
_ORDER = re.compile(rb"ORD-\d+|PCL-\d+")


def refusal(
    message: str,
    status: str = "400 Bad Request",
    *headers: str,
    code: str | None = None,
    kind: str = "invalid_request_error",
) -> Reply:
    """OpenAI's error object."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    return plain({"error": error}, "x-request-id: req-provider", *headers, status=status)


def frame(value: dict[str, Any]) -> bytes:
    return b"data: " + compact_json(value) + b"\n\n"


def completion(content: str | None, model: str, usage: dict[str, Any] | None = None, **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "refusal": None, **choice.pop("message", {})}
    answer = {
        "id": "chatcmpl-provider",
        "object": "chat.completion",
        "created": CREATED,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", **choice}],
        "system_fingerprint": "fp_corpus",
    }
    return answer if usage is None else {**answer, "usage": usage}


def chunk(delta: dict[str, Any], model: str, finish: str | None = None, **members: Any) -> bytes:
    """A frame of a stream; `members` take the place of its usual ones."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    usual = {"id": "chatcmpl-provider", "object": "chat.completion.chunk", "created": CREATED, "model": model}
    return frame({**usual, "choices": [choice], **members})


def text_frames(text: str, model: str, usage: dict[str, Any] | None = None, finish: str | None = "stop") -> list[bytes]:
    """A text, a few words at a time."""
    words = text.split(" ")
    parts = [" ".join(words[at : at + 6]) + (" " if at + 6 < len(words) else "") for at in range(0, len(words), 6)]
    frames = [chunk({"role": "assistant", "content": ""}, model), *(chunk({"content": part}, model) for part in parts)]
    frames += [chunk({}, model, finish)] if finish else []
    return frames + ([chunk({}, model, choices=[], usage=usage)] if usage else [])


def usage_of(body: bytes, completion_tokens: int = 7) -> dict[str, Any]:
    """A plausible usage: a little more than a token for each four and a half bytes."""
    prompt = 10 + len(body) * 10 // 45
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


@dataclass(frozen=True, slots=True)
class Received:
    head: bytes
    body: bytes

    @property
    def is_summary(self) -> bool:
        return header(self.head, b"x-context-call") == b"summary"

    @property
    def is_settling(self) -> bool:
        return header(self.head, SETTLE) is not None

    @property
    def raw(self) -> bytes:
        return self.head + b"\r\n\r\n" + self.body


@dataclass(slots=True)
class Provider:
    """One for each Steno. `messages` and `summaries` are what it answers next; then its own answers follow."""

    messages: deque[Reply] = field(default_factory=deque)
    summaries: deque[Reply] = field(default_factory=deque)
    received: list[Received] = field(default_factory=list)
    port: int = 0
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def script(self, messages: Sequence[Reply], summaries: Sequence[Reply]) -> None:
        """Set the answers to come. Those left of the step before are dropped."""
        self.messages, self.summaries = deque(messages), deque(summaries)

    def take(self) -> list[Received]:
        """Return the requests that came since the last call."""
        taken, self.received = self.received, []
        return taken

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                received = Received(*await read_request(reader))
                if not received.is_settling:
                    self.received.append(received)
                reply = self._reply(received)
                writer.write(reply.data)
                await writer.drain()
                if reply.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Steno closed it.
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _reply(self, received: Received) -> Reply:
        script = self.summaries if received.is_summary else self.messages
        if script and not received.is_settling:
            return script.popleft()
        method, target, _ = received.head.split(b"\r\n", 1)[0].split(b" ", 2)
        path = target.partition(b"?")[0]
        if not path.endswith((b"/chat/completions", b"/v1/messages", b"/v1/responses")):
            return _elsewhere(method, target, received.body)
        return _answer(received, path)


def _elsewhere(method: bytes, target: bytes, body: bytes) -> Reply:
    if target.partition(b"?")[0].endswith(b"/models"):
        reply = plain({"object": "list", "data": [{"id": "gpt-4o", "object": "model", "created": CREATED}]})
    else:
        said = {"method": method.decode(), "target": target.decode("latin-1"), "bytes": len(body)}
        reply = plain(said, "X-Request-Id: req-elsewhere", "x-ratelimit-remaining-requests: 99", "Set-Cookie: a=b")
    return Reply(reply.data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n") if method == b"HEAD" else reply


def _answer(received: Received, path: bytes) -> Reply:
    """A summary that names the orders it is about, or an answer; a stream with its usage where one was asked for."""
    try:
        asked = json.loads(received.body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        return refusal("We could not parse the JSON body of your request.")
    model = asked["model"] if isinstance(asked.get("model"), str) else "unknown"
    text = _summary(received.body) if received.is_summary else "The parcel is on its way, and nothing else is due."
    usage = None if received.is_settling else usage_of(received.body)
    if (reply := answered(path, text, asked, usage_of(received.body)["prompt_tokens"])) is not None:
        return reply
    if asked.get("stream") is not True:
        return plain(completion(text, model, usage), "x-request-id: req-provider", "openai-processing-ms: 12")
    options = asked.get("stream_options")
    wanted = isinstance(options, dict) and options.get("include_usage") is True
    return streamed(*text_frames(text, model, usage if wanted else None), headers=("x-request-id: req-provider",))


def _summary(body: bytes) -> str:
    orders = sorted(set(_ORDER.findall(body))) or [b"nothing with a number"]
    return (
        f"The user asked about {len(orders)} orders, from {orders[0].decode()} to {orders[-1].decode()}. Each was sent"
        " to the old address, came back to the warehouse, and was sent again after the clerk had asked for the new one."
    )
