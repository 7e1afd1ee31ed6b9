"""Targets: what is done with each input, and what must hold then. Each raises for a finding."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from app.api.conversations import Pins
from app.api.dependencies import decoded
from app.compaction.budget import Window, budget_for
from app.compaction.view import Altered, Conversation, View, whole
from app.conversation.identity import Identity
from app.errors import InvalidRequest, LoopDetected
from app.formats.answers import ContextMembers
from app.formats.compaction_events import EventShape
from app.formats.format import WireFormat
from app.formats.paths import FORMATS
from app.formats.raw_json import RawObject, Unreadable
from app.formats.reader import MessageReader
from app.formats.refusals import decoded_body, echoed_in, error_body, is_repeatable, named_pause, read_overflow
from app.formats.requests import OWN_MEMBERS, WireRequest
from app.formats.sse import FrameSplitter
from app.http.admission import HostPolicy, check_hops
from app.http.asgi import ClientAnswer
from app.http.credentials import keys_in
from app.http.headers import NOT_FORWARDED, for_summary, forwarded, hops_in, media_type, returned, with_hop
from app.proxy.caller import ANNOUNCED_TIMEOUTS, announced_seconds
from app.proxy.conversation_ids import encoded_name, name_in_header, name_in_json, name_in_path
from app.proxy.router import Router
from app.settings import Settings, load
from app.settings.presets import read_preset
from app.telemetry.metrics import Metrics
from app.tokens.costs import MOST_TOKENS
from app.tokens.estimate import Costs
from tests.conformance.samples import samples_of
from tests.unit.conversations import shares_with
from tests.unit.refusals import NEGATIVES, OVERFLOWS

Check = Callable[[bytes, Random], None]

IDENTITY = Identity(b"a secret for the fuzzer")


@dataclass(frozen=True, slots=True)
class Target:
    check: Check
    seeds: Sequence[bytes]


ALL_SAMPLES = {each.name: samples_of(each.name) for each in FORMATS}
SAMPLES = ALL_SAMPLES["chat_completions"]

# Bodies


def _body(**members: Any) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}], **members}).encode()


MESSAGES = [json.loads(raw) for raw in (*SAMPLES.shown, *dict(SAMPLES.others), *dict(SAMPLES.alike).values())]
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRgAAAABXQVZF", "format": "wav"}}
BODIES = (
    _body(),
    SAMPLES.request,
    SAMPLES.with_own_members,
    _body(messages=[*MESSAGES, {"role": "user", "content": [SOUND]}], n=2, stream_options={"include_usage": False}),
    _body(context={"preset": "rolling"}, conversation_id="one", metadata={"session_id": "two"}, max_tokens=10),
    json.dumps({"indexes": [0, 4]}).encode(),
    *(each.with_own_members for each in ALL_SAMPLES.values()),
)


class _Twice(Exception):
    """A key stands more than once."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _by_json(data: bytes) -> dict[str, Any] | None:
    """What Python's own decoder finds in an object; None where it finds none, or too much to compare."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_constant, parse_int=str)
    except (ValueError, RecursionError, _Twice):
        return None
    return value if isinstance(value, dict) else None


def check_body(data: bytes, random: Random) -> None:
    known = _by_json(data)
    try:
        found = RawObject(data)
    except Unreadable:
        assert known is None or not _is_plain(data), "json.loads reads what RawObject does not"
        return
    assert found.spliced() == data
    if known is not None:
        assert list(found.members) == list(known)
        assert all(_same(found.raw(name), value) for name, value in known.items())
        removed = {name for name in known if random.random() < 0.3}
        left = _by_json(found.spliced(remove=removed, add=b'"added here":7'))
        expected = {name: value for name, value in known.items() if name not in removed} | {"added here": "7"}
        assert left == expected or "added here" in known
        RawObject(found.with_status(b'"context_status":"full","context":{}'))
    for format_ in FORMATS:
        _check_request(format_, data)
    _refused(lambda: decoded(data, Pins, ""))


def _is_plain(data: bytes) -> bool:
    """Without what decoders differ about: lone surrogates, how deep, how large."""
    return b"\\ud" not in data.lower() and data.count(b"[") + data.count(b"{") < 100


def _same(raw: bytes | None, value: Any) -> bool:
    return raw is not None and json.loads(raw.decode(), parse_int=str) == value


def _check_request(format_: WireFormat, data: bytes) -> None:
    try:
        request = format_.read(data)
    except (Unreadable, InvalidRequest):
        return
    known = _by_json(data)
    _ = list(request.names), request.answer.wants_usage, request.is_typical, request.has_tools, request.forbids_tools
    echoed_in("at most 128000 tokens", 128_000, request.body)
    request.declarations()
    if not any(name in request.source for name in OWN_MEMBERS):
        assert request.untouched == data
    if format_.spec.history not in request.source:  # It is handed off, for the history that its provider keeps.
        return
    for ask_usage in (False, True):
        sent = request.with_messages(request.raw_messages, ask_usage)
        if known is not None:
            theirs = _by_json(sent)
            assert theirs is not None
            assert all(theirs[name] == known[name] for name in known if name not in (*OWN_MEMBERS, "stream_options"))
    _decide(request)
    try:
        messages = MessageReader(IDENTITY, format_.message, ("a+b",)).read(request.raw_messages)
    except Unreadable:
        return
    talk = Conversation(messages, IDENTITY, "tenant", lambda: Costs([1] * len(messages), 0), None)
    assert format_.render(talk, whole(talk)) == list(request.raw_messages)
    if format_.name != "chat_completions":  # The others have messages that no stage alters: sealed, settled, compacted.
        return
    changed = tuple(
        Altered(index, tuple("x" for _ in said.texts), 1, "masked", tuple((n, "{}") for n in range(len(said.calls))))
        for index, said in enumerate(talk.transcript.messages)
    )
    for raw in format_.render(talk, View(changed, 1), alternate=True):
        assert isinstance(msgspec.json.decode(raw), dict)


def _decide(request: WireRequest) -> None:
    """What the numbers of a request decide."""
    _refused(lambda: read_preset(request.wishes.options.get("preset")))
    for reserve in (None, 0.05):
        budget = budget_for(
            Window(8_000, "config"),
            request.answer.output,
            shares_with(reserve=reserve),
            threshold=request.wishes.threshold,
        )
        assert 0 <= budget.target <= budget.limit <= 8_000
    for member, raw in request.names:
        _refused(lambda: name_in_json(member, raw))  # noqa: B023 - called at once


def _refused(read: Callable[[], object]) -> None:
    try:
        read()
    except InvalidRequest as error:
        assert len(error.envelope) < 2_000  # noqa: PT017 - what is allowed to be raised, and how
        assert json.loads(error.envelope)["error"]["message"]  # noqa: PT017


# Streams

_CALL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}'
_STREAM = b"".join((*SAMPLES.stream[:4], _CALL + b"\n\n", *SAMPLES.stream[4:]))
STREAMS = (
    _STREAM,
    _STREAM.replace(b"\n", b"\r\n"),
    b": hello\n\n" + _STREAM.replace(b"data: ", b"event: message\nid: 1\ndata:"),
    b'data: {"error":{"message":"no","code":"x"}}\n\n',
    b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n',
    b'  \n{"choices":[{"index":0,"message":{"content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}',
    b'[{"error":{"code":429,"message":"later"}}]',
    *(b"".join(each.stream) for each in ALL_SAMPLES.values()),
    *(b"".join(each.full_stream) for each in ALL_SAMPLES.values()),
)
SHAPES: tuple[EventShape | None, ...] = (None, "chunk", "comment")
_TOLD = ContextMembers(b'"context_status":"full"', b'"context_status":"full","context":{"tokens":{}}')


def _pieces(data: bytes, random: Random) -> Iterator[bytes]:
    size = random.choice((1, 2, 3, 7, 64, 1_000))
    start = 0
    while start < len(data):
        stop = start + random.randint(1, size)
        yield data[start:stop]
        start = stop


def _frames(pieces: Iterator[bytes]) -> list[bytes]:
    splitter = FrameSplitter()
    found = [frame for piece in pieces for frame in splitter.feed(piece)]
    return [*found, splitter.flush()]


def check_stream(data: bytes, random: Random) -> None:
    whole_frames, frames = _frames(iter([data])), _frames(_pieces(data, random))
    assert b"".join(frames) == data
    assert b"".join(whole_frames) == data
    for each in FORMATS:
        assert b"".join(map(each.editor().edit, frames)) == data, "a stream that nothing is told in changes"
    format_ = random.choice(FORMATS)
    request = format_.read(ALL_SAMPLES[format_.name].request)
    for shape in SHAPES:
        early = format_.editor.EARLY(shape, "cmp_1", request.model) if shape else None
        hides, edited = random.random() < 0.5, []
        for split in (whole_frames, frames):
            editor = format_.editor(_TOLD, request, early, hides_usage=hides)
            edited.append(b"".join(map(editor.edit, split)))
        assert edited[0] == edited[1], "what is told depends on how the stream was split"
    one, other = format_.summaries.reader(), format_.summaries.reader()
    for piece in _pieces(data, random):
        one.feed(piece)
    one.end()
    other.feed(data)
    other.end()
    same = (one.answer, one.error, one.unreadable) == (other.answer, other.error, other.unreadable)
    assert same, "an answer depends on how it was split"


# Refusals

_BODIES: list[Any] = [*(refused.body for refused in OVERFLOWS), *(other.body for other in NEGATIVES)]
REFUSALS = tuple(body if isinstance(body, bytes) else json.dumps(body).encode() for body in _BODIES)
STATUSES = (200, 400, 401, 404, 413, 422, 429, 500, 503)


def check_refusal(data: bytes, random: Random) -> None:
    body = decoded_body(data)
    for status in STATUSES:
        found = read_overflow(status, body, first_frame=status == 200)
        if found is None:
            continue
        _ = found.learn_window
        for number in (found.limit, found.prompt, found.requested):
            assert number is None or 0 <= number <= 2 * MOST_TOKENS
        assert found.limit is None or found.limit >= 1_000
    status = random.choice(STATUSES)
    headers = [(b"retry-after", data[:40]), (b"x-request-id", data[-40:])]
    told = msgspec.json.decode(error_body(status, headers, data, 1.7e9))
    assert isinstance(told["error"], dict)
    assert told["error"]["message"] or status == 200 or data


# Headers

HEADERS = tuple(Path(__file__).with_name("headers.txt").read_bytes().strip().split(b"\n\n"))


@cache
def _settings() -> Settings:
    """The limits and lists that an application has."""
    at = {"base_url": "http://127.0.0.1:9/v1", "discover_windows": False}
    return load(upstream=at, storage={"url": "memory"})


def _request(data: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
    """A method, a target and headers, as a server that reads HTTP would hand them on."""
    line, *rest = data.split(b"\n")
    method, _, target = line.partition(b" ")
    pairs = (header.partition(b":") for header in rest)
    headers = [
        (name.strip().lower(), value.strip().translate(None, b"\r\0")) for name, _, value in pairs if name.strip()
    ]
    return method, target, headers


async def _passes(method: bytes, target: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    statuses: list[int] = []

    async def app(scope: Any, _: Any, send: Any) -> None:
        assert isinstance(scope["path"], str)
        await ClientAnswer(send).whole(204, [], b"")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            assert all(b"\n" not in value and b"\r" not in value for _, value in message["headers"])

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    path, _, query = target.partition(b"?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method.decode("latin-1"),
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
    }
    server = _settings().server
    hosts = HostPolicy(server.host, server.allowed_hosts, server.allowed_origins)
    router = Router(
        app, app, app, app, formats=FORMATS, instance=b"0" * 16, hosts=hosts, metrics=Metrics(), verbose=False
    )
    await router(scope, receive, send)
    [status] = statuses
    return status


def check_headers(data: bytes, random: Random) -> None:
    method, target, headers = _request(data)
    status = asyncio.run(_passes(method, target, headers)) if random.random() < 0.2 else 204
    assert status == 204 or 400 <= status < 500 or status == 508
    for read_here in (False, True):
        kept = {name for name, _ in forwarded(headers, read_here)}
        assert not kept & (NOT_FORWARDED - {b"accept-encoding"})
    assert not {name for name, _ in for_summary(headers)} & {b"content-length", b"connection", b"cookie"}
    returned(headers, [(b"x-a", b"1")], body_changed=True)
    media_type(headers)
    assert all(key and key == key.strip() for key in keys_in(headers))
    assert all(len(hop) == 16 for hop in hops_in(headers))
    assert len(with_hop(headers, b"0" * 16)) <= len(headers) + 1
    with suppress(LoopDetected):
        check_hops(headers, b"0123456789abcdef")
    is_repeatable(random.choice(STATUSES), headers)
    pause = named_pause(headers, 1.7e9)
    assert pause is None or (isfinite(pause) and pause >= 0), f"a pause of {pause}"
    for name, value in headers:
        if name in ANNOUNCED_TIMEOUTS:
            seconds = announced_seconds(value.decode("latin-1"))
            assert seconds is None or (isfinite(seconds) and seconds >= 0)
    for text in (target, *(value for _, value in headers)):
        for read in (_in_header, _in_path, _in_json):
            with suppress(InvalidRequest):
                if (named := read(text)) is not None:
                    assert name_in_header("x", encoded_name(named).decode()) == named


def _in_header(text: bytes) -> str | None:
    return name_in_header("x", text.decode("latin-1"))


def _in_path(text: bytes) -> str | None:
    return name_in_path("x", text)


def _in_json(text: bytes) -> str | None:
    return name_in_json("x", text)


TARGETS: Mapping[str, Target] = {
    "body": Target(check_body, BODIES),
    "stream": Target(check_stream, STREAMS),
    "refusal": Target(check_refusal, REFUSALS),
    "headers": Target(check_headers, HEADERS),
}
