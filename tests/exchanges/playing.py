"""Playing a case: a real Steno on loopback, the client's requests one after the other, and what came of each."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse, IncompleteRead
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import msgspec

from tests.e2e.raw import connected
from tests.e2e.running import Steno, start
from tests.exchanges.answers import body_in, compact
from tests.exchanges.cases import Spec, Variant, laid_over
from tests.exchanges.histories import PATHS, STREAMED, Format, Json, body_of, format_at, messages_of
from tests.exchanges.matching import member, mismatches
from tests.exchanges.provider import SETTLE, Call, Provider, read_body, refusal

SETTINGS: Mapping[str, Any] = {
    "models": [
        {"match": "*small*", "context_window": 2_000},
        {"match": "*wide*", "context_window": 128_000},
        {"match": "*", "context_window": 6_000},
    ],
    # Summaries are made in the request, unless a case is about making them earlier.
    "compaction": {"background": {"enabled": False}},
    # What is learnt from one of two calls side by side would depend on which is faster.
    "calibration": {"enabled": False},
    "summary": {"prompt": "Write notes on the conversation."},
    # How busy the machine is must not be seen.
    "storage": {"url": "memory", "timeout_seconds": 10.0},
    "secret": "the secret of the exchanges",
}
MODELS: Mapping[str, str] = {
    "chat": "gpt-4o",
    "messages": "claude-opus-4-8",
    "responses": "gpt-5.2",
    "gemini": "gemini-2.5-pro",
}
STEPS_SECONDS = 30.0
BREATH_SECONDS = 0.01
"""Between two requests: what Steno learns from an answer, it learns right after its last byte."""
MOST_RUNNING = 12
"""Stenos that run at the same time in one process, for cases with equal settings."""
OWN_MEMBERS = ("compaction", "context_status", "context")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    """0 where the connection ended before the head of an answer."""
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_cut: bool

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of the client, the calls that came of it, and its answer."""

    number: int
    spec: Spec
    format: Format | None
    sent: bytes
    body: Json | None
    elements: list[bytes]
    calls: list[Call]
    answer: Answer
    previous: list[bytes]
    """Elements of the payload before this one."""
    forwarded: Any
    """Tokens of the payload before this one, as the member `context` of its answer has them; `...` if it has none."""
    seen: Json = field(default_factory=dict)
    """What expectations are about."""

    @property
    def attempts(self) -> list[Call]:
        return [call for call in self.calls if not call.is_summary]

    @property
    def answering(self) -> list[Call]:
        """Calls with the answer that the client got; all of them where it got none of these."""
        return [call for call in self.attempts if is_same_answer(self.answer, call, self.body)] or self.attempts

    @property
    def payload(self) -> Call | None:
        """The call whose answer the client got, the last one of several."""
        return next(reversed(self.answering), None)


@dataclass(slots=True)
class Stage:
    """A Steno and its provider."""

    steno: Steno
    provider: Provider
    settled: int = 0

    def stop(self) -> None:
        self.steno.stop()
        self.provider.stop()

    def settle(self) -> None:
        """Returns once everything that was seen so far is stored: records are stored in their order."""
        self.settled += 1
        name = f"settle-{self.settled}"
        body = compact({"model": name, "messages": [{"role": "user", "content": name}]})
        headers = {"authorization": "Bearer sk-settle", SETTLE.decode(): "1", "x-context-conversation-id": name}
        self.send(http_request("POST", PATHS["chat"], {**headers, "content-type": "application/json"}, body))
        asked = http_request("GET", f"/context/conversations/{name}/usage", {"authorization": "Bearer sk-settle"}, None)
        deadline = time.monotonic() + STEPS_SECONDS
        while (answer := self.send(asked)).status != 200 or not answer.json["data"]:
            if time.monotonic() > deadline:
                raise TimeoutError("The records of a request were not stored.")
            time.sleep(0.003)

    def send(self, request: bytes) -> Answer:
        with connected(self.steno.url, STEPS_SECONDS) as connection:
            connection.sendall(request)
            response = HTTPResponse(connection, method=request.partition(b" ")[0].decode())
            with response:
                try:
                    response.begin()
                except (HTTPException, OSError):
                    return Answer(0, (), b"", is_cut=True)
                headers = tuple((name.lower(), value) for name, value in response.headers.items())
                try:
                    return Answer(response.status, headers, response.read(), is_cut=False)
                except IncompleteRead as error:
                    return Answer(response.status, headers, error.partial, is_cut=True)
                except (HTTPException, OSError):
                    return Answer(response.status, headers, b"", is_cut=True)


@dataclass(slots=True)
class Stages:
    """Running Stenos by their settings: cases whose provider only answers share one."""

    _running: dict[str, Stage] = field(default_factory=dict)
    _stopping: list[threading.Thread] = field(default_factory=list)

    def stage_for(self, variant: Variant, sections: Spec) -> tuple[Stage, Callable[[], None]]:
        """A running Steno, and what to call after the case."""
        if _needs_its_own(variant):
            rules = variant.spec.get("provider") or ()
            stage = _started(sections, variant.spec.get("environment") or {}, rules)
            return stage, lambda: self._stop(stage)
        return self.stage(sections, variant.mode, variant.spec.get("environment") or {}), lambda: None

    def stage(self, sections: Spec, mode: str = "", environment: Mapping[str, str] = MappingProxyType({})) -> Stage:
        """A running Steno that all share who name the same."""
        name = json.dumps([mode, sections, dict(environment)], sort_keys=True)
        if name not in self._running:
            while len(self._running) >= MOST_RUNNING:
                self._stop(self._running.pop(next(iter(self._running))))
            self._running[name] = _started(sections, environment)
        self._running[name] = self._running.pop(name)  # The one used last stays longest.
        return self._running[name]

    def close(self) -> None:
        for stage in self._running.values():
            self._stop(stage)
        for thread in self._stopping:
            thread.join()

    def _stop(self, stage: Stage) -> None:
        thread = threading.Thread(target=stage.stop)
        self._stopping = [one for one in self._stopping if one.is_alive()] + [thread]
        thread.start()


def _needs_its_own(variant: Variant) -> bool:
    """Steno learns from refusals and failures, for all who use the model or the upstream."""
    spec = variant.spec
    scripted = any(request.get("answers") or request.get("summaries") for request in variant.requests)
    return bool(spec.get("fresh", scripted or spec.get("provider") or variant.database != "sqlite"))


def _started(sections: Spec, environment: Mapping[str, str], rules: Sequence[Spec] = ()) -> Stage:
    """`rules`: a Steno that asks the provider for its models asks at once."""
    provider = Provider(rules=rules)
    provider.start()
    written = json.dumps(sections).replace("{provider}", provider.url)
    with ExitStack() as undone:
        for name, value in environment.items():
            os.environ[name] = str(value)
            undone.callback(os.environ.pop, name)
        return Stage(start(provider.url, json.loads(written)), provider)


@dataclass(slots=True)
class Player:
    """Plays the requests of one variant."""

    variant: Variant
    stage: Stage
    _saved: dict[str, str] = field(default_factory=dict)
    _payload: list[bytes] = field(default_factory=list)
    _forwarded: Any = None

    def play(self) -> list[Exchange]:
        self.stage.provider.rules = self.variant.spec.get("provider") or ()
        self.stage.provider.take()
        try:
            return [self._exchange(number, spec) for number, spec in enumerate(self.variant.requests, 1)]
        finally:
            self.stage.provider.rules = ()

    def _exchange(self, number: int, spec: Spec) -> Exchange:
        reads = "get" in spec or bool(spec.get("settled"))
        if number > 1:
            self.stage.settle() if reads else time.sleep(BREATH_SECONDS)
        sent, format_ = self._written(spec)
        provider = self.stage.provider
        provider.script(spec.get("answers"), spec.get("summaries"))
        deadline = time.monotonic() + STEPS_SECONDS
        while True:
            answer = self.stage.send(sent)
            if "until" not in spec or not mismatches(spec["until"], {"status": answer.status, "body": answer.json}):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"Request {number} never had the answer it waits for.")
            provider.take()
            time.sleep(BREATH_SECONDS)
        body, elements = read_body(sent.partition(b"\r\n\r\n")[2], format_)
        calls, before = provider.take(), (self._payload, self._forwarded)
        exchange = Exchange(number, spec, format_, sent, body, elements, calls, answer, *before)
        self._remember(exchange)
        exchange.seen.update(_seen(exchange))
        if "get" not in spec:
            self._forwarded = member(exchange.seen, "context.tokens.forwarded")
        return exchange

    def _remember(self, exchange: Exchange) -> None:
        if exchange.payload is not None and exchange.payload.elements:
            self._payload = exchange.payload.elements
        if conversation := exchange.answer.header("x-context-conversation-id"):
            self._saved["conversation"] = conversation
        for name, path in (exchange.spec.get("save") or {}).items():
            self._saved[name] = str(member(exchange.answer.json, path))

    def _written(self, spec: Spec) -> tuple[bytes, Format | None]:
        """The request to the byte, and its format if its answer is one of the model."""
        if "raw" in spec:
            raw = self._filled(spec["raw"]).replace("{key}", self._key(spec)).encode("utf-8", "surrogateescape")
            head, *rest = re.split(rb"\r?\n\r?\n", raw, maxsplit=1)
            target = head.split(b"\n")[0].decode("latin-1").partition(" ")[2]
            format_ = self.variant.format if PATHS[self.variant.format] in target or format_at(target) else None
            return b"\r\n".join((*head.splitlines(), b"", *rest)), format_
        named = next((name for name in ("get", "post", "put", "patch", "delete") if name in spec), None)
        path = self._filled(spec[named] if named else spec.get("path", self._path(spec)))
        body = self._body(spec)
        method = str(spec.get("method") or named or ("GET" if body is None else "POST")).upper()
        is_models = format_at(path) == self.variant.format
        written = http_request(method, path, self._headers(spec, body), body)
        return written, self.variant.format if is_models and not path.startswith("/context") else None

    def _path(self, spec: Spec) -> str:
        path = PATHS[self.variant.format].replace("{model}", self.model(spec))
        for whole, streamed in STREAMED.items() if self.variant.mode == "streamed" else ():
            path = path.replace(whole, streamed)
        return path

    def _headers(self, spec: Spec, body: bytes | None) -> dict[str, Any]:
        headers: dict[str, Any] = {}
        key = self._key(spec)
        if key and self.variant.format == "messages":
            headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        elif key and self.variant.format == "gemini":
            headers = {"x-goog-api-key": key}
        elif key:
            headers = {"authorization": f"Bearer {key}"}
        if body is not None:
            headers["content-type"] = "application/json"
        given = {name: self._filled(value) for name, value in (spec.get("headers") or {}).items()}
        return {name: value for name, value in {**headers, **given}.items() if value is not None}

    def _key(self, spec: Spec) -> str:
        """Credential: one for each variant, so that its tenant has nothing of another's."""
        named = spec.get("key", "own")
        return "" if named is None else f"sk-{self.variant.slug}-{named}"

    def _body(self, spec: Spec) -> bytes | None:
        if "body" in spec:
            return str(self._filled(spec["body"])).encode("utf-8", "surrogateescape")
        if "json" in spec:
            return compact(self._filled(spec["json"]))
        if "history" not in spec:
            return None
        messages = messages_of(spec["history"])
        declares = int(spec.get("tools", any("tool_calls" in message for message in messages)))
        functions = bool(spec.get("functions", any("function_call" in one for one in messages)))
        body = body_of(
            messages,
            self.variant.format,
            self.model(spec),
            tools=declares,
            functions=functions and self.variant.format == "chat",
        )
        if self.variant.mode == "streamed" and self.variant.format != "gemini":
            body["stream"] = True
        body = {**body, **self._filled(dict(spec.get("members") or {}))}
        return compact({key: value for key, value in body.items() if key not in (spec.get("without") or ())})

    def model(self, spec: Spec) -> str:
        """Model of a request: one for each variant, so that what Steno learns of it stays there. `=name` is as it
        stands."""
        named = str(spec.get("model", MODELS[self.variant.format]))
        return named[1:] if named.startswith("=") else f"{named}-{self.variant.slug}"

    def _filled(self, value: Any) -> Any:
        """Value with the names that were saved from earlier answers, such as `{summary}`."""
        if isinstance(value, Mapping):
            return {key: self._filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._filled(inner) for inner in value]
        if isinstance(value, str):
            for name, saved in self._saved.items():
                value = value.replace(f"{{{name}}}", saved)
        return value


def http_request(method: str, path: str, headers: Mapping[str, Any], body: bytes | None) -> bytes:
    target = quote(path, safe="/?&=%:;,+@!*~.-_'()#$[]{}|\\^\"<>")
    lines = [f"{method} {target} HTTP/1.1".encode(), b"host: steno.test"]
    for name, value in headers.items():
        values = value if isinstance(value, list) else [value]
        lines += [f"{name}: {one}".encode() for one in values]
    if body is not None and "transfer-encoding" not in headers:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def _seen(exchange: Exchange) -> Json:
    """Everything that expectations may name: the README lists it."""
    answer = exchange.answer
    calls, payload = exchange.attempts, exchange.payload
    summaries = [call for call in exchange.calls if call.is_summary]
    seen: Json = {
        "status": answer.status,
        "cut": answer.is_cut,
        "headers": {name: ", ".join(v for key, v in answer.headers if key == name) for name, _ in answer.headers},
        "body": answer.json,
        "answer": answer.body.decode("utf-8", "replace"),
        "context": context_of(answer) if exchange.format else None,
        "calls": len(calls),
        "summaries": len(summaries),
        "attempts": [call.facts for call in calls],
        "payload": None,
        "summary": summaries[-1].facts if summaries else None,
        "summary_calls": [call.facts for call in summaries],
    }
    if payload is not None:
        sent = payload.elements
        same = {
            "unchanged": sent == exchange.elements,
            "same_last": not sent or not exchange.elements or sent[-1] == exchange.elements[-1],
            "same_bytes": payload.received.body == exchange.sent.partition(b"\r\n\r\n")[2],
        }
        seen["payload"] = {**payload.facts, **same, **_prefix(exchange, sent)}
        seen["same_answer"] = is_same_answer(answer, payload, exchange.body)
    seen["events"] = own_events(answer)
    if exchange.spec.get("get") == "/metrics":
        seen["metrics"] = _metrics_in(answer.body.decode())
    return seen


def _metrics_in(text: str) -> dict[str, float]:
    """Values of a page of metrics by their names, with labels."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def _prefix(exchange: Exchange, sent: list[bytes]) -> Json:
    """`shared`: elements with which the payload begins as the one before did; `extends`: these are all of it, but for
    its last message and the quotation before that."""
    before = exchange.previous
    shared = next(
        (at for at, (one, other) in enumerate(zip(before, sent, strict=False)) if one != other),
        min(len(before), len(sent)),
    )
    ours = set(exchange.elements)
    behind = next((at for at, element in enumerate(reversed(before)) if at > 1 or (at and element in ours)), 0)
    return {"shared": shared, "extends": bool(before) and shared >= len(before) - max(behind, 1)}


def is_same_answer(answer: Answer, call: Call, body: Json | None) -> bool:
    """`body`: the client's. True if the client's answer is the provider's but for Steno's own members and events."""
    given = body_in(call.steps)
    options = (body or {}).get("stream_options")
    asks_usage = isinstance(options, dict) and options.get("include_usage") is True
    if answer.body == given:
        return True
    if not is_stream(answer):
        return without_own_members(answer.body) == given
    frames = [left for frame in frames_in(answer.body) if (left := without_own_data(frame)) is not None]
    theirs = frames_in(given)
    if not asks_usage and len(theirs) > len(frames):
        # Usage that Steno asked for and the client did not.
        theirs = [frame for frame in theirs if b'"choices":[],"usage":' not in frame]
    if own_events(answer):
        # The stream began before the provider's answer: all of it has the id, time and role of its first chunk.
        frames, theirs = [_AGREED.sub(b"", frame) for frame in frames], [_AGREED.sub(b"", frame) for frame in theirs]
    return frames == theirs


_AGREED = re.compile(rb'"(?:id":"chatcmpl-[^"]*"|created":\d+|model":"[^"]*"|role":"assistant"),')


def is_stream(answer: Answer) -> bool:
    return "text/event-stream" in (answer.header("content-type") or "")


def own_members(data: bytes) -> dict[str, Any]:
    """Steno's members at the top level of a JSON object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return {name: value[name] for name in OWN_MEMBERS if name in value} if isinstance(value, dict) else {}


def without_own_members(body: bytes) -> bytes:
    """A JSON object without Steno's members, which stand at its end; every other byte stays."""
    try:
        raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
    for name in OWN_MEMBERS:
        if name in raw:
            written = b'"%b":%b' % (name.encode(), bytes(raw[name]))
            body = body.replace(b"," + written, b"", 1) if b"," + written in body else body.replace(written, b"", 1)
    return body


def frames_in(body: bytes) -> list[bytes]:
    """Frames of a stream, each with its blank line."""
    return [frame for frame in re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)", body) if frame]


def data_in(frame: bytes) -> bytes:
    return frame.partition(b"data:")[2].strip(b" \r\n")


def without_own_data(frame: bytes) -> bytes | None:
    """A frame without Steno's members; None for a frame that is Steno's own."""
    if frame.startswith((b": compaction_", b": keep-alive", b"event: compaction_")):
        return None
    data = data_in(frame)
    told = own_members(data)
    if not told:
        return frame
    left = without_own_members(data)
    if "compaction" in told and any(word in left for word in (b'"ping"', b'"delta":{', b'{"text":""}')):
        return None
    return frame.replace(data, left, 1)


def own_events(answer: Answer) -> list[str]:
    """Names of the events that Steno added to a stream, in order."""
    found = (
        [re.search(rb'"type":"(compaction_\w+)"', frame) for frame in frames_in(answer.body)]
        if is_stream(answer)
        else []
    )
    return [name[1].decode() for name in found if name]


def context_of(answer: Answer) -> Any:
    """The member `context` of an answer, of a stream's last frame that has it."""
    if not is_stream(answer):
        return own_members(answer.body).get("context")
    told = (own_members(data_in(frame)) for frame in reversed(frames_in(answer.body)) if b'"context":{' in frame)
    return next((members["context"] for members in told if "context" in members), None)


def sections_of(variant: Variant, database: str) -> Spec:
    """Settings of a variant: the case's, laid over those of the suite. A section without what is null there."""
    suite = {**SETTINGS, "storage": {**SETTINGS["storage"], "url": database}}
    sections: Spec = laid_over(suite, variant.spec.get("settings") or {})
    return {name: _without_nulls(section) for name, section in sections.items()}


def _without_nulls(section: Any) -> Any:
    if isinstance(section, Mapping):
        return {name: inner for name, inner in section.items() if inner is not None}
    return section


def universal_problems(exchange: Exchange) -> list[str]:
    """What holds in every exchange, whatever the case: a sentence for each that does not."""
    if isinstance(exchange.seen["body"], dict) and exchange.seen["body"].get("object") == "coverage":
        return _coverage_problems(exchange.seen["body"], exchange.forwarded)
    payload, format_ = exchange.payload, exchange.format
    if payload is None or format_ is None or exchange.body is None:
        return []
    problems = []
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in payload.received.headers}
    if payload.format == format_ and refusal(format_, exchange.body, headers) is None:
        for number, call in enumerate(exchange.calls, 1):
            if not call.facts["accepted"] and call.format == format_:
                told = refusal(format_, json.loads(call.received.body), call.facts["headers"])
                problems.append(f"call {number}: its provider refuses what came of a request that it accepts: {told}")
    sent = _declared_in(exchange.sent.partition(b"\r\n\r\n")[2])
    if any(_declared_in(call.received.body) != sent for call in exchange.calls if call.format and not call.is_summary):
        problems.append("The tools are not the client's, to the byte.")
    passed = any(call.elements == exchange.elements for call in exchange.answering)
    if (exchange.seen["context"] or {}).get("status") == "full" and not passed:
        problems.append("The status is full, and the payload is not the client's history.")
    whole_last = member(exchange.spec, "expect.payload.same_last") is not False
    if whole_last and exchange.answer.status == 200 and not exchange.seen["payload"]["same_last"]:
        last = exchange.elements[-1]
        problems.append(f"The last element did not arrive as it was sent: {last[:200]!r}")
    is_whole = exchange.answer.status == 200 and not exchange.answer.is_cut
    if is_whole and exchange.spec["expect"].get("same_answer", True) and not exchange.seen["same_answer"]:
        problems.append("The answer is not the provider's with Steno's own members and events added.")
    return problems


def _coverage_problems(coverage: Json, forwarded: Any) -> list[str]:
    """The parts of a coverage are the payload that was sent last. `forwarded`: its tokens."""
    tokens = [part["tokens"] for part in coverage["parts"]]
    if sum(tokens) == coverage["tokens"] and forwarded in (..., coverage["tokens"]) and min(tokens) >= 0:
        return []
    return [f"The parts have {tokens} tokens, the coverage {coverage['tokens']}; forwarded were {forwarded}."]


def _declared_in(body: bytes) -> list[bytes | None]:
    """What a body says of the functions that the model may call, to the byte."""
    try:
        raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    return [bytes(raw[name]) if name in raw else None for name in ("tools", "functions", "tool_choice")]
