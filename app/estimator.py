"""The estimator: the core's formula with a memory, so that a turn counts only what is new in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, pairwise
from threading import Lock
from typing import Protocol

import structlog

from app.core.declarations import Declarations
from app.core.estimate import (
    FORMULA_VERSION,
    Count,
    answer_tokens,
    byte_bound,
    declared_tokens,
    is_answer,
    system_text,
    unit_tokens,
)
from app.core.messages import INSTRUCTION_ROLES, Message, unit_starts
from app.core.rules import Rules, rules_for
from app.core.view import Costs
from app.tokenizer import by_bytes

log = structlog.get_logger("steno.estimator")

MOST_REMEMBERED = 100_000
"""Units of which the tokens are remembered: about 20 MB."""

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
        self._most_remembered = most_remembered
        self._remembered: OrderedDict[Key, Tokens] = OrderedDict()
        self._tags: dict[Rules, int] = {}
        """A number for each set of rules: what is remembered holds for one."""
        self._lock = Lock()

    def prompt(
        self, model: str, messages: Sequence[Message], declared: bytes, read: Callable[[], Declarations]
    ) -> Prompt:
        """What is to be counted. `declared` stands for what `read` returns: equal bytes, equal declarations."""
        rules = rules_for(model)
        tag = self._tags.setdefault(rules, len(self._tags))
        bounds = (*unit_starts(messages), len(messages))
        units = [messages[start:stop] for start, stop in pairwise(bounds)]
        keys = [_key(tag, unit) for unit in units]
        known = self.recall(keys)
        fixed, answer = self._declared(rules, tag, messages, declared, read)
        return Prompt(self, rules, self.counter(rules), list(zip(units, keys, known, strict=True)), fixed, answer)

    @property
    def heuristics(self) -> Sequence[str]:
        """Encodings whose tables are missing."""
        return self._counters.missing

    def counter(self, rules: Rules) -> Count:
        return self._counters.counter(rules.encoding)

    def formula(self, model: str) -> str:
        """Names what a model is counted with: what a calibration learnt holds for this alone."""
        encoding = "bytes" if self.heuristic(model) else rules_for(model).encoding
        return f"{FORMULA_VERSION}/{encoding}"

    def heuristic(self, model: str) -> bool:
        """Whether the model's table is missing, so that its tokens are only estimated by bytes."""
        return rules_for(model).encoding in self.heuristics

    def recall(self, keys: Sequence[Key]) -> list[Tokens | None]:
        remembered = self._remembered
        with self._lock:
            found = [remembered.get(key) for key in keys]
            for key, tokens in zip(keys, found, strict=True):
                if tokens is not None:
                    remembered.move_to_end(key)
        return found

    def remember(self, key: Key, tokens: Tokens) -> None:
        with self._lock:
            self._remembered[key] = tokens
            if len(self._remembered) > self._most_remembered:
                self._remembered.popitem(last=False)

    def _declared(
        self, rules: Rules, tag: int, messages: Sequence[Message], declared: bytes, read: Callable[[], Declarations]
    ) -> Tokens:
        """Tokens of all beside the messages, and what each answer costs more because of it.

        They depend on whether calls stand in the conversation, and on the instructions the tools stand behind.
        """
        system = next((message for message in messages if message.role in INSTRUCTION_ROLES), None)
        holds_calls = any(message.calls for message in messages)
        digest = blake2b(declared, digest_size=16, person=b"steno-declared").digest()
        key = (*_key(tag, [system] if system else []), digest, holds_calls)
        (known,) = self.recall([key])
        if known is None:
            try:
                declarations, count = read(), self.counter(rules)
                fixed = declared_tokens(declarations, system_text(messages), holds_calls, rules, count)
                known = (fixed, answer_tokens(declarations, count))
            except Exception:
                log.exception("declarations were counted by bytes")
                return by_bytes(len(declared)), 0
            self.remember(key, known)
        return known


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's messages and declarations; what was not seen before is counted when that is needed."""

    estimator: Estimator
    rules: Rules
    count: Count
    units: Sequence[tuple[Sequence[Message], Key, Tokens | None]]
    """Each with its key, and its tokens where they are known."""
    fixed: int
    """Tokens of all beside the messages."""
    answer: int
    """Tokens that each assistant message of text costs more: the name of the response format it follows."""

    @property
    def bound(self) -> int:
        """Tokens that the estimate cannot exceed: by their bytes, where they are not known."""
        units = sum(byte_bound(unit, self.rules) if known is None else sum(known) for unit, _, known in self.units)
        return self.fixed + units + self.answer * len(self.units)

    @property
    def uncounted(self) -> int:
        """Bytes that `costs` has to count."""
        return sum(len(message.raw) for unit, _, known in self.units if known is None for message in unit)

    def costs(self) -> Costs:
        counted = (self._count(unit, key) if known is None else known for unit, key, known in self.units)
        costs = tuple(chain.from_iterable(counted))
        if self.answer:
            messages = chain.from_iterable(unit for unit, _, _ in self.units)
            costs = tuple(
                tokens + self.answer * is_answer(message) for tokens, message in zip(costs, messages, strict=True)
            )
        return Costs(costs, self.fixed)

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
