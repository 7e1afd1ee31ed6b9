"""The estimator: the core's formula with a memory, so that a turn counts only what is new in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, pairwise
from operator import add
from threading import Lock
from typing import Protocol

import structlog

from app.core.history.messages import History, Message
from app.core.tokens.declarations import Declarations
from app.core.tokens.estimate import (
    FORMULA_VERSION,
    Count,
    answer_tokens,
    byte_bound,
    declared_tokens,
    is_answer,
    latest_turn,
    passing_tokens,
    picture_tokens,
    system_text,
    unit_tokens,
    utf8_length,
)
from app.core.tokens.rules import CountingRules, rules_for
from app.core.values import value
from app.core.view.view import Costs
from app.memory.bounded import BoundedMap
from app.tokens.tokenizer import by_bytes

log = structlog.get_logger("steno.estimator")

MOST_REMEMBERED = 50_000
"""Units of which the tokens are remembered, in addition to those of the histories read recently: about 15 MB."""
MOST_MODELS = 1_000
DECLARED_REMEMBERED = 16
"""Declarations of tools whose digest is remembered: the latest, with their bytes."""

COSTLY = 1 << 20
"""Bytes that tools or a schema stand for until they were counted once: with them the instructions are, twice."""

Tokens = tuple[int, ...]
Key = bytes

TokenRules = Callable[[str, str], CountingRules]
"""By what a model at a host counts: each format says it of its own prompts, and one value for all that count alike."""


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
        self._loaded: dict[str, Count] = {}
        """By encoding."""
        self._tags: dict[tuple[TokenRules, CountingRules], int] = {}
        """A number for each set of rules and the format they are of: what is remembered holds for one."""
        self._rules: BoundedMap[tuple[str, str, float, TokenRules], tuple[CountingRules, int]] = BoundedMap(MOST_MODELS)
        """With their numbers."""
        self._lock = Lock()

    def prompt(
        self,
        model: str,
        messages: Sequence[Message],
        declared: bytes,
        read: Callable[[], Declarations],
        host: str = "",
        picture_scale: float = 1.0,
        token_rules: TokenRules = rules_for,
    ) -> Prompt:
        """What is to be counted. `declared` stands for what `read` returns: equal bytes, equal declarations."""
        rules, tag = self._rules_of(model, host, picture_scale, token_rules)
        history = History.of(messages)
        whose, counted = history.kept.get(self, (tag, ()))
        starts = history.unit_starts
        first = bisect_left(starts, len(counted))
        # A result that came late joins what was counted as several units.
        if whose != tag or starts[first : first + 1] != (len(counted),):
            counted, first = (), 0
        bounds = (*starts[first:], len(history))
        units = [history[start:stop] for start, stop in pairwise(bounds)]
        keys = [_key(tag, unit) for unit in units]
        known = self.recall(keys)
        declaration = _Declaration(self, rules, tag, history, declared, read)
        (beside,) = self.recall([declaration.key])
        uncertain = list(zip(units, keys, known, strict=True))
        return Prompt(self, rules, tag, self.counter(rules), history, counted, uncertain, declaration, beside)

    def _rules_of(
        self, model: str, host: str, picture_scale: float, token_rules: TokenRules
    ) -> tuple[CountingRules, int]:
        asked = model, host, picture_scale, token_rules
        with self._lock:
            if (found := self._rules.get(asked)) is None:
                rules = replace(token_rules(model, host), picture_scale=picture_scale)
                found = rules, self._tags.setdefault((token_rules, rules), len(self._tags))
                self._rules.keep(asked, found)
        return found

    @property
    def heuristics(self) -> Sequence[str]:
        """Encodings whose tables are missing."""
        return self._counters.missing

    def counter(self, rules: CountingRules) -> Count:
        """Loads its table when it is asked for the first time: that takes a quarter of a second, and 40 MB that a
        process which counts nothing does not need."""
        encoding = rules.encoding

        def count(text: str) -> int:
            return self._load(encoding)(text)

        return self._loaded.get(encoding, count)

    def _load(self, encoding: str) -> Count:
        counter = self._loaded.get(encoding)
        if counter is None:
            counter = self._loaded[encoding] = self._counters.counter(encoding)
        return counter

    def has_loaded(self, encoding: str) -> bool:
        return encoding in self._loaded

    def formula(self, model: str, token_rules: TokenRules = rules_for) -> str:
        """Names what a model is counted with: what a calibration learnt holds for this alone."""
        rules = token_rules(model, "")
        encoding = "bytes" if self.heuristic(model, token_rules) else rules.encoding
        return f"{FORMULA_VERSION}/{encoding}" + (f"/{rules.variant}" if rules.variant else "")

    def heuristic(self, model: str, token_rules: TokenRules = rules_for) -> bool:
        """Whether the model's table is missing, so that its tokens are only estimated by bytes."""
        return token_rules(model, "").encoding in self.heuristics

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
        history: History,
        declared: bytes,
        read: Callable[[], Declarations],
    ) -> None:
        place = history.first_instruction
        self._system = history[place : place + 1]
        self._holds_calls = history.holds_calls
        self._estimator, self._rules = estimator, rules
        self._declared, self._read = declared, read
        self.key = b"%b%b%d" % (_key(tag, self._system), _declared_digest(declared), self._holds_calls)
        self.work = COSTLY if declared else 0
        """Bytes that counting it is as much work as."""

    def count(self) -> Tokens:
        """Tokens of all beside the messages, and what each answer costs more because of it."""
        try:
            declarations, count = self._read(), self._estimator.counter(self._rules)
            system = system_text(self._system)
            fixed = declared_tokens(declarations, system, self._holds_calls, self._rules, count)
            tokens = (fixed, answer_tokens(declarations, self._rules, count))
        except Exception:
            log.exception("declarations were counted by bytes")
            return by_bytes(len(self._declared)), 0
        self._estimator.remember(self.key, tokens)
        return tokens


@value
class Prompt:
    """One request's messages and declarations; what was not seen before is counted when that is needed."""

    estimator: Estimator
    rules: CountingRules
    tag: int
    """The rules' number."""
    count: Count
    history: History
    counted: Tokens
    """Of the messages that it begins with, which were counted as part of a shorter history."""
    units: Sequence[tuple[Sequence[Message], Key, Tokens | None]]
    """The others. Each with its key, and its tokens where they are known."""
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
        if self.rules.forgets:
            latest = self.history[latest_turn(self.history) :]
            units += sum(passing_tokens(message, self.rules, utf8_length) for message in latest)
        return fixed + sum(self.counted) + units + answer * len(self.history.unit_starts)

    @property
    def is_ready(self) -> bool:
        """Whether the model's table is in memory: loading one takes a quarter of a second."""
        return self.estimator.has_loaded(self.rules.encoding)

    @property
    def uncounted(self) -> int:
        """Bytes that `costs` has to count, or as much work."""
        beside = self.declaration.work if self.beside is None else 0
        return beside + sum(len(message.raw) for unit, _, known in self.units if known is None for message in unit)

    def costs(self) -> Costs:
        fixed, answer = self.beside or self.declaration.count()
        counted = (self._count(unit, key) if known is None else known for unit, key, known in self.units)
        costs = (*self.counted, *chain.from_iterable(counted))
        starts = self.history.unit_starts
        # Results may still be added to the last unit, and then it costs something else.
        self.history.kept[self.estimator] = self.tag, costs[: starts[-1] if starts else 0]
        if (shorter := self.history.shorter) is not None and (last := shorter.unit_starts[-1]) in starts:
            shorter.kept[self.estimator] = self.tag, costs[:last]
        if self.rules.forgets:
            latest = latest_turn(self.history)
            costs = (*costs[:latest], *map(add, costs[latest:], map(self._thoughts, self.history[latest:])))
        if answer:
            costs = tuple(
                tokens + answer * is_answer(message) for tokens, message in zip(costs, self.history, strict=True)
            )
        return Costs(costs, fixed)

    def pictures(self) -> tuple[int, int] | None:
        """What all pictures cost by the family's rule, and scaled; None where that is not known of all media."""
        scaled = picture_tokens(self.history, self.rules)
        plain = picture_tokens(self.history, replace(self.rules, picture_scale=1.0))
        return None if plain is None or scaled is None else (plain, scaled)

    def cost(self, message: Message) -> int:
        """Tokens of a message by itself."""
        return sum(unit_tokens([message], self.rules, self.count))

    def _thoughts(self, message: Message) -> int:
        """What its reasoning costs, which is not remembered with it: in a later turn it costs nothing."""
        if not (message.thoughts or message.encrypted):
            return 0
        key = b"%bthoughts" % _key(self.tag, [message])
        (known,) = self.estimator.recall([key])
        if known is None:
            known = (passing_tokens(message, self.rules, self.count),)
            self.estimator.remember(key, known)
        return known[0]

    def _count(self, unit: Sequence[Message], key: Key) -> Tokens:
        try:
            tokens = unit_tokens(unit, self.rules, self.count)
        except Exception:
            # Whatever a message holds, counting it fails no request.
            log.exception("messages were counted by bytes")
            return tuple(by_bytes(len(message.raw)) for message in unit)
        self.estimator.remember(key, tokens)
        return tokens


@lru_cache(DECLARED_REMEMBERED)
def _declared_digest(declared: bytes) -> bytes:
    return blake2b(declared, digest_size=16, person=b"steno-declared").digest() if declared else b""


def _key(tag: int, unit: Sequence[Message]) -> Key:
    # With the sizes: a digest leaves out volatile text, which costs tokens nevertheless.
    parts = [message.digest + len(message.raw).to_bytes(5, "big") for message in unit]
    return b"".join([tag.to_bytes(2, "big"), *parts])
