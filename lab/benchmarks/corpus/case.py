"""Parts of a case, and short ways to write one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.benchmarks.corpus.framing import CHAT, Answer, request
from lab.benchmarks.corpus.replies import Reply

MODEL = "gpt-4o"
FORK = rb"conv_[0-9a-f]{24}"
"""A fork's name, which is of chance. It looks like other names, so they are hidden with it."""
Answers = Sequence[Answer]


@dataclass(frozen=True, slots=True)
class Step:
    """A request, and what the provider answers to the calls that come of it; then it answers as it always does."""

    request: bytes | Callable[[Answers], bytes]
    """Made from the case's answers so far where it depends on them."""
    messages: tuple[Reply, ...] = ()
    summaries: tuple[Reply, ...] = ()
    until: Callable[[Answer], bool] | None = None
    """Asked again until this holds; only the last time is kept."""
    settles: bool = False
    """True if everything shown before has to be stored first."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    steps: tuple[Step, ...]
    chance: tuple[bytes, ...] = ()
    """Patterns of what is of chance in this case alone, such as the name of a fork."""


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that one Steno serves, one after the other. Their tenants differ, so that none sees another's."""

    name: str
    cases: Sequence[Case]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sections, laid over those of `recording.SETTINGS`. `{provider}` is the provider's address."""
    environment: Mapping[str, str] = field(default_factory=dict)


def case(name: str, *steps: Step | bytes, chance: tuple[bytes, ...] = ()) -> Case:
    return Case(name, tuple(step if isinstance(step, Step) else Step(step) for step in steps), chance)


def body(messages: Sequence[Any], model: str = MODEL, **members: Any) -> bytes:
    return json.dumps({"model": model, "messages": list(messages), **members}).encode()


def chat(messages: Sequence[Any], *headers: str, target: str = CHAT, key: str | None = None, **members: Any) -> bytes:
    """A chat request; `members` are those of its body."""
    made = body(messages, **members)
    return request(target, made, *headers) if key is None else request(target, made, *headers, key=key)


def raw(text: str | bytes, *headers: str, **options: Any) -> bytes:
    """A chat request whose body is this text."""
    return request(CHAT, text if isinstance(text, bytes) else text.encode(), *headers, **options)


def after(request_of: Callable[[Answers], bytes], **options: Any) -> Step:
    """A step that needs the answers before it."""
    return Step(request_of, **options)


def stored(request: bytes, **options: Any) -> Step:
    """A step that reads what the steps before have left in the store."""
    return Step(request, settles=True, **options)
