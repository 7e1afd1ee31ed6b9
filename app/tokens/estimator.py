"""The estimator: the core's formula with a memory, so that a turn counts only what is new in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, pairwise
from threading import Lock
from typing import Protocol

import structlog

from app.core.history.messages import Kind, Message, unit_starts
from app.core.tokens.declarations import Declarations
from app.core.tokens.estimate import (
    FORMULA_VERSION,
    Count,
    answer_tokens,
    byte_bound,
    declared_tokens,
    is_answer,
    picture_tokens,
    system_text,
    unit_tokens,
)
from app.core.tokens.rules import CountingRules, rules_for
from app.core.view.view import Costs
from app.memory.bounded import BoundedMap
from app.tokens.tokenizer import by_bytes

log = structlog.get_logger("steno.estimator")

MOST_REMEMBERED = 100_000
"""Units of which the tokens are remembered: about 20 MB."""

COSTLY = 1 << 20
"""Bytes that tools or a schema stand for until they were counted once: with them the instructions are, twice."""

Tokens = tuple[int, ...]
Key = tuple[int | bytes, ...]


class Counters(Protocol):
    """Where the text counters come from."""

    @property
    def missing(self) -> Sequence[str]:
        """Encodings that are only estimated by bytes."""
        ...

    def counter(self, encoding: str) -> Count: ...


class Estimator:
    """Counts every prompt, by whatever rules its model has. Safe to use from several threads."""

    def __init__(self, counters: Counters, most_remembered: int = MOST_REMEMBERED) -> None:
        self._counters = counters
        self._remembered: BoundedMap[Key, Tokens] = BoundedMap(most_remembered)
        self._ready: set[str] = set()
        self._tags: dict[CountingRules, int] = {}
        """A number for each set of rules: what is remembered holds for one."""
        self._lock = Lock()

    def prompt(
        self,
        model: str,
        messages: Sequence[Message],
        declared: bytes,
        read: Callable[[], Declarations],
        host: str = "",
        picture_scale: float = 1.0,
    ) -> Prompt:
        """What is to be counted. `declared` stands for what `read` returns: equal bytes, equal declarations."""
        rules = replace(rules_for(model, host), picture_scale=picture_scale)
        with self._lock:
            tag = self._tags.setdefault(rules, len(self._tags))
        bounds = (*unit_starts(messages), len(messages))
        units = [messages[start:stop] for start, stop in pairwise(bounds)]
        keys = [_key(tag, unit) for unit in units]
        known = self.recall(keys)
        declaration = _Declaration(self, rules, tag, messages, declared, read)
        (beside,) = self.recall([declaration.key])
        return Prompt(self, rules, self.counter(rules), list(zip(units, keys, known, strict=True)), declaration, beside)

    @property
    def heuristics(self) -> Sequence[str]:
        """Encodings whose tables are missing."""
        return self._counters.missing

    def counter(self, rules: CountingRules) -> Count:
        counter = self._counters.counter(rules.encoding)
        self._ready.add(rules.encoding)
        return counter

    def is_ready(self, model: str) -> bool:
        """Whether the model's table is in memory: loading one takes a tenth of a second or more."""
        return rules_for(model).encoding in self._ready

    def make_ready(self, model: str) -> None:
        self.counter(rules_for(model))

    def formula(self, model: str) -> str:
        """Names what a model is counted with: what a calibration learnt holds for this alone."""
        encoding = "bytes" if self.heuristic(model) else rules_for(model).encoding
        return f"{FORMULA_VERSION}/{encoding}"

    def heuristic(self, model: str) -> bool:
        """Whether the model's table is missing, so that its tokens are only estimated by bytes."""
        return rules_for(model).encoding in self.heuristics

    def recall(self, keys: Sequence[Key]) -> list[Tokens | None]:
        with self._lock:
            return [self._remembered.use(key) for key in keys]

    def remember(self, key: Key, tokens: Tokens) -> None:
        with self._lock:
            self._remembered.keep(key, tokens)


class _Declaration:
    """What stands beside the messages, and what it costs: that depends on calls, and on the instructions before it."""

    def __init__(
        self,
        estimator: Estimator,
        rules: CountingRules,
        tag: int,
        messages: Sequence[Message],
        declared: bytes,
        read: Callable[[], Declarations],
    ) -> None:
        system = next((message for message in messages if message.kind is Kind.INSTRUCTIONS), None)
        self._system = None if system is None else system_text([system])
        self._holds_calls = any(message.calls for message in messages)
        self._estimator, self._rules = estimator, rules
        self._declared, self._read = declared, read
        digest = blake2b(declared, digest_size=16, person=b"steno-declared").digest()
        self.key: Key = (*_key(tag, [system] if system else []), digest, self._holds_calls)
        self.work = COSTLY if declared else 0
        """Bytes that counting it is as much work as."""

    def count(self) -> Tokens:
        """Tokens of all beside the messages, and what each answer costs more because of it."""
        try:
            declarations, count = self._read(), self._estimator.counter(self._rules)
            fixed = declared_tokens(declarations, self._system, self._holds_calls, self._rules, count)
            tokens = (fixed, answer_tokens(declarations, self._rules, count))
        except Exception:
            log.exception("declarations were counted by bytes")
            return by_bytes(len(self._declared)), 0
        self._estimator.remember(self.key, tokens)
        return tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's messages and declarations; what was not seen before is counted when that is needed."""

    estimator: Estimator
    rules: CountingRules
    count: Count
    units: Sequence[tuple[Sequence[Message], Key, Tokens | None]]
    """Each with its key, and its tokens where they are known."""
    declaration: _Declaration
    beside: Tokens | None
    """What the declaration costs, where that is known."""

    @property
    def bound(self) -> int | None:
        """Tokens that the estimate cannot exceed: by their bytes, where they are not known.

        None where tools or a schema were never counted: a few bytes of references can stand for a long text.
        """
        if self.beside is None and self.declaration.work:
            return None
        fixed, answer = self.beside or self.declaration.count()
        units = sum(byte_bound(unit, self.rules) if known is None else sum(known) for unit, _, known in self.units)
        return fixed + units + answer * len(self.units)

    @property
    def uncounted(self) -> int:
        """Bytes that `costs` has to count, or as much work."""
        beside = self.declaration.work if self.beside is None else 0
        return beside + sum(len(message.raw) for unit, _, known in self.units if known is None for message in unit)

    def costs(self) -> Costs:
        fixed, answer = self.beside or self.declaration.count()
        counted = (self._count(unit, key) if known is None else known for unit, key, known in self.units)
        costs = tuple(chain.from_iterable(counted))
        if answer:
            messages = chain.from_iterable(unit for unit, _, _ in self.units)
            costs = tuple(tokens + answer * is_answer(message) for tokens, message in zip(costs, messages, strict=True))
        return Costs(costs, fixed)

    def pictures(self) -> tuple[int, int] | None:
        """What all pictures cost by the family's rule, and scaled; None where that is not known of all media."""
        messages = [message for unit, _, _ in self.units for message in unit]
        scaled = picture_tokens(messages, self.rules)
        plain = picture_tokens(messages, replace(self.rules, picture_scale=1.0))
        return None if plain is None or scaled is None else (plain, scaled)

    def cost(self, message: Message) -> int:
        """Tokens of a message by itself."""
        return sum(unit_tokens([message], self.rules, self.count))

    def _count(self, unit: Sequence[Message], key: Key) -> Tokens:
        try:
            tokens = unit_tokens(unit, self.rules, self.count)
        except Exception:
            # Whatever a message holds, counting it fails no request.
            log.exception("messages were counted by bytes")
            return tuple(by_bytes(len(message.raw)) for message in unit)
        self.estimator.remember(key, tokens)
        return tokens


def _key(tag: int, unit: Sequence[Message]) -> Key:
    # With the sizes: a digest leaves out volatile text, which costs tokens nevertheless.
    if len(unit) == 1:
        return tag, unit[0].digest, len(unit[0].raw)
    return (tag, *(part for message in unit for part in (message.digest, len(message.raw))))
