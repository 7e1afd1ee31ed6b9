"""A provider of telegrams: a real server that asks the strict simulator in chats, and says its answers as telegrams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.runtime.server import serve
from tests.e2e import running
from tests.e2e.running import StartSteno, Steno
from tests.telegrams.telegrams import KINDS

Json = dict[str, Any]

ROLES = dict(zip(("system", "user", "assistant", "tool"), KINDS, strict=True))
ENDS = {"stop": "sent", "length": "paper_out", "tool_calls": "orders", "content_filter": "declined"}
CHATS = "/v1/chat/completions"


def telegram_of(message: Json) -> Json:
    """A chat message as a telegram."""
    sender, content = ROLES[message["role"]], message.get("content")
    if sender == "depot":
        return {"from": sender, "deliveries": [{"no": message["tool_call_id"], "text": content}]}
    telegram: Json = {"from": sender, "text": content or ""}
    if isinstance(content, list):
        telegram["text"] = [part["text"] for part in content if part["type"] == "text"]
        telegram["pictures"] = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    if calls := message.get("tool_calls"):
        telegram["orders"] = [
            {"no": call["id"], "what": call["function"]["name"], "with": json.loads(call["function"]["arguments"])}
            for call in calls
        ]
    return telegram


def telegrams_of(chat: Json) -> Json:
    """A chat request as one of telegrams."""
    log = [telegram_of(message) for message in chat.pop("messages")]
    chat.pop("stream_options", None)
    return {**chat, "log": log}


def _messages(telegram: Json) -> Iterator[Json]:
    """The chat messages of a telegram: a delivery each for itself."""
    role = {sender: role for role, sender in ROLES.items()}[telegram["from"]]
    for each in telegram.get("deliveries", ()):
        yield {"role": role, "tool_call_id": each["no"], "content": each["text"]}
    if "text" in telegram:
        text, pictures = telegram["text"], telegram.get("pictures", ())
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
        said = text if isinstance(text, str) else [*parts, *({"type": "text", "text": each} for each in text)]
        calls = [
            {
                "id": each["no"],
                "type": "function",
                "function": {"name": each["what"], "arguments": _written(each)},
            }
            for each in telegram.get("orders", ())
        ]
        yield {"role": role, "content": said or None, **({"tool_calls": calls} if calls else {})}


def _written(order: Json) -> str:
    return json.dumps(order["with"])


def chat_of(telegrams: Json) -> Json:
    """A request of telegrams as a chat."""
    chat = {**telegrams, "messages": [message for each in telegrams.pop("log") for message in _messages(each)]}
    chat.pop("log", None)
    if (most := chat.pop("most", None)) is not None:
        chat["max_tokens"] = most
    return {**chat, "stream_options": {"include_usage": True}} if chat.get("stream") else chat


def _charge(usage: Json | None) -> Json | None:
    return {"read": usage["prompt_tokens"], "wrote": usage["completion_tokens"]} if usage else None


def _end(finish: str | None) -> str:
    return ENDS.get(finish or "stop", finish or "")


def answered(completion: Json) -> Json:
    """A whole completion as a telegram."""
    [choice] = completion["choices"]
    said = {name: value for name, value in telegram_of(choice["message"]).items() if name != "from"}
    named = {"id": completion["id"], "model": completion["model"]}
    return {**named, **said, "end": _end(choice["finish_reason"]), "charge": _charge(completion.get("usage"))}


def _stream(frames: bytes) -> Iterator[Json]:
    told = (each.removeprefix("data: ") for each in frames.decode().split("\n\n"))
    chunks = [json.loads(each) for each in told if each.startswith("{")]
    yield {"open": {"id": chunks[0]["id"], "model": chunks[0]["model"]}}
    finish = usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            if text := choice["delta"].get("content"):
                yield {"word": text}
    yield {"close": {"end": _end(finish), "charge": _charge(usage)}}


def office(provider_url: str) -> Starlette:
    """The provider before the simulator at an address."""
    host = urlsplit(provider_url).netloc

    def ask(request: Request, body: bytes) -> Response:
        is_telegram = request.url.path == "/v1/telegrams"
        if is_telegram:
            body = json.dumps(chat_of(json.loads(body))).encode()
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        connection = HTTPConnection(host, timeout=20.0)
        connection.request(request.method, CHATS if is_telegram else request.url.path, body or None, headers)
        answer = connection.getresponse()
        given, kind = answer.read(), answer.headers.get("content-type", "")
        connection.close()
        if is_telegram and answer.status == 200:
            if kind.startswith("text/event-stream"):
                given = b"".join(b"data: %b\n\n" % json.dumps(said).encode() for said in _stream(given))
            else:
                given = json.dumps(answered(json.loads(given))).encode()
        kept = {name: value for name, value in answer.headers.items() if name in ("content-type", "retry-after")}
        return Response(given, answer.status, kept)

    async def endpoint(request: Request) -> Response:
        return await asyncio.to_thread(ask, request, await request.body())

    return Starlette(routes=[Route("/{path:path}", endpoint, methods=["GET", "POST"])])


def before_an_office(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartSteno]:
    """Starts Steno before such a provider, as `start_steno` does before others."""
    running.forget_environment(monkeypatch)
    with ExitStack() as started:

        def start(provider_url: str, **sections: object) -> Steno:
            between = started.enter_context(serve(office(provider_url)))
            steno = running.start(between.url, sections)
            started.callback(steno.stop)
            return steno

        yield start
