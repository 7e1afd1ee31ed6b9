"""The simulator: a scripted provider of four APIs, as strict as the real ones, as a plain ASGI application."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from app.http.loopback import RunningServer, serve
from app.tokens.estimate import Count
from app.tokens.tokenizer import Tokenizer
from lab.simulator.chat_completions.format import ChatCompletions
from lab.simulator.delivery import (
    Connection,
    Delivery,
    OpenProtocol,
    Receive,
    Scope,
    Send,
    read_body,
    received_headers,
    received_target,
    wait_until_closed,
)
from lab.simulator.format import Accepted, Content, Format, json_content
from lab.simulator.gemini.format import Gemini
from lab.simulator.log import Kind, Log, Record
from lab.simulator.messages.format import Messages
from lab.simulator.openai import list_models
from lab.simulator.refusals import Refused
from lab.simulator.replies import default_reply, summary_of
from lab.simulator.responses.format import Responses
from lab.simulator.rules import Model, Rules
from lab.simulator.script import Fault, Predicate, Script

SUMMARY_WORDS = 400
"""Words of a summary at most, and at most one for every two tokens that the caller allows."""
CALL_HEADER = b"x-context-call"
DEFAULT_MODELS = (
    *map(Model, ("gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-4.1-mini", "gpt-5.4")),
    Model("o4-mini", unsupported=frozenset({"max_tokens"})),
    *map(Model, ("claude-haiku-4-5", "claude-opus-4-8", "claude-sonnet-5", "gemini-2.5-flash", "gemini-3.6-flash")),
)
"""Listed with the simulator's window. What is not listed has the window that Steno's own table knows."""

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (_HIGH, _LOW, _HIGH, _LOW))
_REPLACED = rb"\\ufffd"

Reply = Callable[[list[Any]], str]


class Simulator(Rules):
    """Settings, state and application. The settings are plain attributes and may be changed while it runs."""

    def __init__(
        self,
        *,
        window: int = 8_000,
        models: Iterable[Model | str] | Literal["any"] = DEFAULT_MODELS,
        reply: Reply = default_reply,
        count: Count | None = None,
        tables: Path | None = None,
        strict_roles: bool = False,
        max_messages: int | None = 2048,
        lenient_text: bool = False,
        log_limit: int = 100_000,
    ) -> None:
        offered: Mapping[str, Model] | Literal["any"] = models if models == "any" else _by_name(models)
        super().__init__(window, offered, strict_roles, max_messages)
        self.reply = reply
        """Function from messages to what the model says."""
        self.summary_edit: Callable[[str], str] = str
        """Function that changes a summary before it is sent."""
        self.lenient_text = lenient_text
        """Read a surrogate without its pair as U+FFFD, and log the body so; others take such a body for no JSON."""
        self.summary_default = Fault()
        """How summaries are answered that the script does not mention."""
        self.script = Script()
        self.count: Count = count or Tokenizer(tables).counter("o200k_base")
        kinds = (ChatCompletions, Messages, Responses, Gemini)
        self._formats: Sequence[Format] = [each(self.count) for each in kinds]
        self._log = Log(log_limit)

    # What arrived

    @property
    def log(self) -> tuple[Record, ...]:
        """Every request in order of arrival."""
        return self._log.records()

    @property
    def chats(self) -> tuple[Record, ...]:
        return self._of_kind("chat")

    @property
    def summaries(self) -> tuple[Record, ...]:
        return self._of_kind("summary")

    @property
    def others(self) -> tuple[Record, ...]:
        return self._of_kind("other")

    def clear_log(self) -> None:
        self._log.clear()

    def wait_for(self, condition: Callable[[tuple[Record, ...]], bool], timeout: float = 30.0) -> bool:
        """Block until the log satisfies the condition; False if it never did. Not for an event loop's own thread."""
        return self._log.wait(condition, timeout)

    # What to answer

    def next_chat(self, **fault: Any) -> None:
        """How to answer the next acceptable chat: the fields of a `Fault`. Calls queue up."""
        self.script.next("chat", Fault(**fault))

    def next_summary(self, **fault: Any) -> None:
        self.script.next("summary", Fault(**fault))

    def next_other(self, **fault: Any) -> None:
        self.script.next("other", Fault(**fault))

    def when(self, predicate: Predicate, *, times: int | None = None, **fault: Any) -> None:
        """How to answer requests that satisfy the predicate: all of them, or the first so many."""
        self.script.when(predicate, Fault(**fault), times)

    # Running

    def serve(self, *, host: str = "127.0.0.1", port: int = 0) -> RunningServer:
        """Run on a real socket in a thread; base URL of the API: `server.url + "/v1"`."""
        return serve(self, host=host, port=port, http=OpenProtocol, lifespan="off")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"The simulator speaks HTTP, not {scope['type']}.")
        body, whole = await read_body(receive)
        record = self._record(scope, body)
        if not whole:
            self._log.update(record.sequence, disconnected_at=time.monotonic())
            return
        await self._answer_while_connected(record, Connection(scope, send), receive)

    async def _answer_while_connected(self, record: Record, connection: Connection, receive: Receive) -> None:
        answering = asyncio.create_task(self._answer(record, connection))
        closed = asyncio.create_task(wait_until_closed(receive))
        try:
            await asyncio.wait({answering, closed}, return_when=asyncio.FIRST_COMPLETED)
            if connection.ended:
                self._log.update(record.sequence, finished_at=time.monotonic())
            elif closed.done():
                self._log.update(record.sequence, disconnected_at=time.monotonic())
                answering.cancel()
            await asyncio.wait({answering})
            if connection.severed:
                await closed  # or uvicorn would take the answer for a forgotten one
        finally:
            answering.cancel()
            closed.cancel()
        if not answering.cancelled():
            answering.result()

    async def _answer(self, record: Record, connection: Connection) -> None:
        """Refuse, or answer as the script says. A refused request uses up no fault."""
        request: Accepted | None = None
        content: Content | None = None
        fault = Fault()
        written = self._format_of(record)
        try:
            if record.kind == "other":
                content = self._other(record)
            else:
                request = written.read(
                    record, self, lambda tokens: self._log.update(record.sequence, prompt_tokens=tokens)
                )
            fault = self.script.take(record) or (self.summary_default if record.kind == "summary" else fault)
        except Refused as refused:
            self._log.update(record.sequence, refusal=refused.message)
            content = written.error_content(record, refused.body, refused.status)
        delivery = Delivery(
            connection, record, fault, written, lambda status: self._log.update(record.sequence, status=status)
        )
        scripted = _scripted_content(fault, written, record)
        if scripted is not None:
            await delivery.content(scripted)
        elif content is not None:
            await delivery.content(content)
        elif request is not None:
            await self._complete(record, request, written, fault, delivery)

    async def _complete(
        self, record: Record, request: Accepted, written: Format, fault: Fault, delivery: Delivery
    ) -> None:
        text = fault.text if fault.text is not None else self._text(record.kind, request)
        answer = written.answer(record.sequence, request, fault, text)
        self._log.update(record.sequence, text=answer.text, usage=answer.usage)
        if request.stream:
            await delivery.stream(written.stream(record, answer.frames))
        else:
            await delivery.content(json_content(answer.whole))

    def _text(self, kind: Kind, request: Accepted) -> str:
        if kind == "summary":
            notes = summary_of(request.conversation, SUMMARY_WORDS, request.max_tokens, self.count)
            return self.summary_edit(notes)
        return self.reply(list(request.conversation))

    def _format_of(self, record: Record) -> Format:
        """Format whose path it is, or whose headers; OpenAI's for what has none."""
        own = (each for each in self._formats if each.owns(record))
        return next(own, self._formats[0])

    def _other(self, record: Record) -> Content:
        for written in self._formats:
            if (content := written.respond(record, self)) is not None:
                return content
        offered: Sequence[Model] = DEFAULT_MODELS if self.models == "any" else list(self.models.values())
        return list_models(record, offered, self.window)

    def _kind(self, scope: Scope) -> Kind:
        if not any(each.is_posted(scope["path"]) for each in self._formats):
            return "other"
        return "summary" if (CALL_HEADER, b"summary") in map(tuple, scope["headers"]) else "chat"

    def _of_kind(self, kind: Kind) -> tuple[Record, ...]:
        return tuple(record for record in self.log if record.kind == kind)

    def _record(self, scope: Scope, body: bytes) -> Record:
        """The request, entered in the log."""
        record = Record(
            sequence=self._log.next_sequence(),
            at=time.monotonic(),
            method=scope["method"],
            target=received_target(scope),
            headers=received_headers(scope),
            body=_LONE.sub(_REPLACED, body) if self.lenient_text else body,
            kind=self._kind(scope),
        )
        self._log.add(record)
        return record


def _by_name(models: Iterable[Model | str]) -> Mapping[str, Model]:
    offered = [Model(model) if isinstance(model, str) else model for model in models]
    return {model.name: model for model in offered}


def _scripted_content(fault: Fault, written: Format, record: Record) -> Content | None:
    """Content that a fault answers in place of the endpoint."""
    if fault.body is not None:
        return Content(fault.body, status=fault.status)
    if fault.status < 400:
        return None
    return written.error_content(record, written.error(fault), fault.status)
