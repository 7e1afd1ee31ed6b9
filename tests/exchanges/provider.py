"""The provider of a case: scripted answers, rules by which it refuses, and otherwise plain answers."""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import Any, cast

import msgspec

from lab.simulator.chat_completions import judge as chat_judge
from lab.simulator.gemini import judge as gemini_judge
from lab.simulator.gemini.contents import POSTED, camel_case, role_of
from lab.simulator.messages import judge as messages_judge
from lab.simulator.refusals import Refused, refused_by
from lab.simulator.responses import judge as responses_judge
from tests.e2e.scripted import Received, ScriptedProvider, Step
from tests.exchanges.answers import compact, steps_of
from tests.exchanges.histories import MEMBER, Format, Json, format_at, texts_in
from tests.exchanges.matching import mismatches

SETTLE = b"x-exchanges-settle"
"""Header of the runner's own requests, which no case sees."""
ORDER = re.compile(rb"ORD-\d+|PCL-\d+")
ANSWER = "The parcel is on its way, and nothing else is due."
ALWAYS = 1_000
"""How often an answer is given that stands alone, not in a list."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that reached the provider, and what it was answered."""

    received: Received
    format: Format | None
    """None for another path."""
    is_summary: bool
    facts: Json
    """What rules and expectations are about: `facts_of`."""
    steps: list[Step]
    elements: list[bytes]
    """Elements of its history, to the byte."""


@dataclass(slots=True)
class Provider:
    """Runs on loopback for one Steno. Its state belongs to the request that is played."""

    server: ScriptedProvider = field(default_factory=ScriptedProvider)
    rules: Sequence[Mapping[str, Any]] = ()
    calls: list[Call] = field(default_factory=list)
    _answers: deque[Mapping[str, Any]] = field(default_factory=deque)
    _summaries: deque[Mapping[str, Any]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self.server.default = self._steps
        self.server.__enter__()

    def stop(self) -> None:
        self.server.__exit__(None, None, None)

    @property
    def url(self) -> str:
        return self.server.url

    def script(self, answers: Any, summaries: Any) -> None:
        """Set the answers to come; those left of the request before are dropped."""
        with self._lock:
            self._answers, self._summaries = deque(_listed(answers)), deque(_listed(summaries))

    def take(self) -> list[Call]:
        """Calls since this was asked last, in their order; summary calls side by side are sorted by their bodies."""
        with self._lock:
            taken, self.calls = self.calls, []
        ordered: list[Call] = []
        for call in taken:
            at = len(ordered)
            while (
                call.is_summary
                and at
                and ordered[at - 1].is_summary
                and ordered[at - 1].received.body > call.received.body
            ):
                at -= 1
            ordered.insert(at, call)
        return ordered

    def _steps(self, received: Received) -> list[Step]:
        target = received.target.decode("latin-1")
        format_ = format_at(target)
        if received.all(SETTLE):
            return steps_of({"text": "Settled."}, format_ or "chat", {"model": "settle"}, 10)
        is_summary = b"summary" in received.all(b"x-context-call")
        body, elements = read_body(received.body, format_)
        facts = facts_of(received, format_, body, elements)
        with self._lock:
            queue = self._summaries if is_summary else self._answers
            spec = queue.popleft() if queue else self._default(facts)
        if format_ == "gemini" and body is not None:
            found = POSTED.search(target)
            body = {**body, "model": found and found[2], "stream": "alt=sse" in target}
        steps = self._made(spec, received, format_, body, facts)
        with self._lock:
            self.calls.append(Call(received, format_, is_summary, facts, steps, elements))
        return steps

    def _default(self, facts: Json) -> Mapping[str, Any]:
        broken = (rule for rule in self.rules if not mismatches(rule["when"], facts))
        rule = next(broken, None)
        return {} if rule is None else cast("Mapping[str, Any]", rule["answer"])

    @staticmethod
    def _made(
        spec: Mapping[str, Any], received: Received, format_: Format | None, body: Json | None, facts: Json
    ) -> list[Step]:
        if format_ is None:
            return steps_of(spec or _elsewhere(received), "chat", {}, 0)
        if body is None:
            return steps_of(spec or {"error": "We could not parse the JSON body of your request."}, format_, {}, 0)
        text = _summary(received.body) if facts["summary"] else ANSWER
        return steps_of({"text": text, **spec} if "calls" not in spec else spec, format_, body, facts["tokens"])


def read_body(body: bytes, format_: Format | None) -> tuple[Json | None, list[bytes]]:
    """A body as a value, None where it is no JSON object, and the elements of its history to the byte."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or format_ is None or not isinstance(value.get(MEMBER[format_]), list):
        return (value if isinstance(value, dict) else None), []
    try:
        raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])[MEMBER[format_]]
        return value, [bytes(element) for element in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    except (ValueError, RecursionError):
        return value, []


def facts_of(received: Received, format_: Format | None, body: Json | None, elements: Sequence[bytes]) -> Json:
    """What a case may say about a payload. Tokens are the provider's own count: one for each four and a half bytes."""
    history = [json.loads(element) for element in elements]
    member = MEMBER[format_] if format_ else ""
    names = dict.fromkeys(name.lower() for name, _ in received.headers)
    facts: Json = {
        "path": received.target.decode("latin-1"),
        "headers": {name.decode("latin-1"): b", ".join(received.all(name)).decode("latin-1") for name in names},
        "summary": b"summary" in received.all(b"x-context-call"),
        "bytes": len(received.body),
        "tokens": 10 + len(received.body) * 10 // 45,
        "count": len(history),
        "roles": [_role(element) for element in history],
        "history": history,
        "members": {key: value for key, value in (body or {}).items() if key != member},
        "text": "\n".join(texts_in(body or {})),
    }
    facts["alternates"] = refusal(format_, body, facts["headers"], alternating=True) is None
    facts["accepted"] = refusal(format_, body, facts["headers"]) is None
    return facts


def refusal(format_: Format | None, body: Any, headers: Mapping[str, str], *, alternating: bool = False) -> str | None:
    """What a provider of the format would say against a body, but for its size; None if nothing."""
    refused: Refused | None = None
    try:
        match format_:
            case "chat":
                refused = refused_by(chat_judge.check, body, alternating)
            case "messages":
                betas = [beta.strip() for beta in headers.get("anthropic-beta", "").split(",")]
                refused = refused_by(messages_judge.check, body, betas, alternating=alternating)
            case "gemini":
                refused = refused_by(gemini_judge.check, camel_case(body), "gemini-2.5-pro")
                roles = [role_of(content) for content in body["contents"]]
                if refused is None and alternating and any(map(eq, roles, roles[1:])):
                    return "The roles have to alternate."
            case "responses":
                refused = refused_by(responses_judge.check, body, alternating=alternating)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return repr(error)
    return None if refused is None else refused.message


def _role(element: Any) -> str:
    """Role of an element, or its type; results of tools are `tool` in every format."""
    if not isinstance(element, dict):
        return type(element).__name__
    content = element.get("content")
    if any("functionResponse" in part for part in element.get("parts") or ()):
        return "tool"
    if (
        isinstance(content, list)
        and content
        and isinstance(content[0], dict)
        and content[0].get("type") == "tool_result"
    ):
        return "tool"
    kind = str(element.get("role") or element.get("type") or "none")
    return {"function_call_output": "tool", "function_call": "assistant", "model": "assistant"}.get(kind, kind)


def _listed(given: Any) -> list[Mapping[str, Any]]:
    """Answers of a case: a list in turn, or one for every call."""
    if given is None:
        return []
    if not isinstance(given, list):
        return [_spec(given)] * ALWAYS
    return [
        _spec(one) for entry in given for one in [entry] * (entry.get("repeat", 1) if isinstance(entry, dict) else 1)
    ]


def _spec(given: Any) -> Mapping[str, Any]:
    return {"text": given} if isinstance(given, str) else given


def _elsewhere(received: Received) -> Mapping[str, Any]:
    method, target, _ = received.head.split(b"\r\n", 1)[0].split(b" ", 2)
    if target.partition(b"?")[0].endswith(b"/models"):
        listed = {"object": "list", "data": [{"id": "gpt-4o", "object": "model", "created": 1_234_567_890}]}
        return {"body": listed}
    said = {"method": method.decode(), "target": target.decode("latin-1"), "bytes": len(received.body)}
    return {"body": compact(said), "headers": {"x-ratelimit-remaining-requests": "99", "set-cookie": "a=b"}}


def _summary(body: bytes) -> str:
    """A summary that names the orders it is about."""
    orders = sorted(set(ORDER.findall(body))) or [b"nothing with a number"]
    return (
        f"The user asked about {len(orders)} orders, from {orders[0].decode()} to {orders[-1].decode()}. Each was sent"
        " to the old address, came back to the warehouse, and was sent again after the clerk had asked for the new one."
    )
