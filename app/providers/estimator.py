"""The estimator: the core's formula with a memory, so that a turn counts only what is new in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from operator import add
from sys import getsizeof
from threading import Lock

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.view import Costs
from app.conversation.messages import History, Message
from app.providers.tokenizer import Tokenizer, by_bytes
from app.runtime.bounded import BoundedMap
from app.runtime.caches import Cache, Caches
from app.tokens.declarations import Declarations
from app.tokens.estimate import (
    FORMULA_VERSION,
    Count,
    answer_tokens,
    byte_bound,
    declared_tokens,
    is_answer,
    latest_turn,
    picture_tokens,
    system_text,
    turn_reasoning_tokens,
    unit_tokens,
    utf8_length,
)
from app.tokens.rules import CountingRules, rules_for

log = structlog.get_logger("steno.estimator")

INTEGER_BYTES = 32
MOST_MODELS = 1_000
DECLARED_REMEMBERED = 16
"""Declarations of tools whose digest is remembered: the latest, with their bytes."""

COSTLY = 1 << 20
"""Bytes that tools or a schema stand for until they have been counted: the instructions are counted twice with them."""

Tokens = tuple[int, ...]
_Declares = tuple[bytes, bool, Sequence[Message]]
"""Key of the tokens of a declaration: its digest, whether there are calls, the instructions before it."""
Key = bytes

TokenRules = Callable[[str, str], CountingRules]
"""Rules by which a model at a host counts: each format says it of its own prompts, and one value for all that count
alike."""


class Estimator:
    """Counts every prompt, by whatever rules its model has. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, caches: Caches | None = None) -> None:
        self._tokenizer = tokenizer
        self._remembered: Cache[Key, Tokens] = (caches or Caches()).cache(
            "tokens", lambda key, tokens: getsizeof(key) + getsizeof(tokens) + INTEGER_BYTES * len(tokens)
        )
        """Tokens of units of histories that are not in memory any more."""
        self._loaded: dict[str, Count] = {}
        """Tokenizers by encoding."""
        self._ways: dict[tuple[TokenRules, CountingRules], _Way] = {}
        self._asked: BoundedMap[tuple[str, str, float, TokenRules], _Way] = BoundedMap(MOST_MODELS)
        """How each model is counted, by model, host and rules."""
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
        """A prompt to be counted. `declared` stands for what `read` returns: equal bytes, equal declarations."""
        asked = model, host, picture_scale, token_rules
        way = self._asked.get(asked) or self._found(*asked)
        history = messages if isinstance(messages, History) else History(messages)
        rest = history.rest
        place = 0 if history.instructions else history.first_instruction
        declares = _declared_digest(declared), history.holds_calls, history[place : place + 1]
        declaration = _Declaration(way, declared, read, declares)
        kept: _Counted | None = rest.counted
        if kept is None or kept.way is not way:
            kept = _Counted(way, (), None, ())
        counted, units = _split(history.instructions, rest, kept.tokens)
        beside = kept.beside if kept.declares == declares else self.recall([declaration.key])[0]
        keys = [_key(way.tag, unit) for unit in units]
        uncertain = list(zip(units, keys, self.recall(keys), strict=True)) if keys else []
        return Prompt(way, history, counted, uncertain, declaration, beside)

    def _found(self, model: str, host: str, picture_scale: float, token_rules: TokenRules) -> _Way:
        rules = replace(token_rules(model, host), picture_scale=picture_scale)
        with self._lock:
            way = self._ways.setdefault((token_rules, rules), _Way(self, rules, len(self._ways)))
            self._asked.keep((model, host, picture_scale, token_rules), way)
        return way

    @property
    def heuristics(self) -> Sequence[str]:
        """Encodings whose tables are missing."""
        return self._tokenizer.missing

    def counter(self, rules: CountingRules) -> Count:
        """Loads its table when it is asked for the first time: that takes a quarter of a second, and 40 MB that a
        process which counts nothing does not need."""
        encoding = rules.encoding
        if (loaded := self._loaded.get(encoding)) is not None:
            return loaded

        def count(text: str) -> int:
            return self._load(encoding)(text)

        return count

    def _load(self, encoding: str) -> Count:
        counter = self._loaded.get(encoding)
        if counter is None:
            counter = self._loaded[encoding] = self._tokenizer.counter(encoding)
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
        return list(map(self._remembered.use, keys))

    def remember(self, key: Key, tokens: Tokens) -> None:
        self._remembered.keep(key, tokens)


class _Way(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """A way of counting: the rules of a format's prompts for a model. There is one of each."""

    estimator: Estimator
    rules: CountingRules
    tag: int
    """Number of the rules: what is remembered holds for one."""


class _Counted(Struct, frozen=True):
    """Tokens of a history, to go on from in a longer one that begins with it."""

    way: _Way
    tokens: Tokens
    """Tokens of each message, the leading instructions first."""
    declares: _Declares | None
    beside: Tokens
    """Tokens of the declaration."""


class _Declaration(Struct, frozen=True):
    """A declaration beside the messages, and its costs: that depends on calls, and on the instructions before it."""

    way: _Way
    declared: bytes
    read: Callable[[], Declarations]
    declares: _Declares

    @property
    def key(self) -> Key:
        digest, holds_calls, system = self.declares
        return b"declared %b %b%d" % (_key(self.way.tag, system), digest, holds_calls)

    @property
    def work(self) -> int:
        """Bytes of text that take as long to count as the declaration."""
        return COSTLY if self.declared else 0

    def count(self) -> Tokens:
        """Tokens of all beside the messages, and what each answer costs more because of it."""
        rules, estimator = self.way.rules, self.way.estimator
        _, holds_calls, system = self.declares
        try:
            declarations, count = self.read(), estimator.counter(rules)
            fixed = declared_tokens(declarations, system_text(system), holds_calls, rules, count)
            tokens = (fixed, answer_tokens(declarations, rules, count))
        except Exception:
            log.exception("declarations were counted by bytes")
            return by_bytes(len(self.declared)), 0
        estimator.remember(self.key, tokens)
        return tokens


class Prompt(Struct, frozen=True):
    """One request's messages and declarations; what was not seen before is counted when that is needed."""

    way: _Way
    history: History
    counted: Tokens
    """Tokens of the messages that it begins with, which were counted as part of a shorter history."""
    units: Sequence[tuple[Sequence[Message], Key, Tokens | None]]
    """Units behind the counted messages, each with its key, and its tokens if they are known."""
    declaration: _Declaration
    beside: Tokens | None
    """Tokens of the declaration, where they are known."""

    @property
    def count(self) -> Count:
        """Tokens of a text."""
        return self.way.estimator.counter(self.way.rules)

    @property
    def bound(self) -> int | None:
        """Tokens that the estimate cannot exceed: by their bytes, where they are not known.

        None where tools or a schema were never counted: a few bytes of references can stand for a long text.
        """
        if self.beside is None and self.declaration.work:
            return None
        fixed, answer = self.beside or self.declaration.count()
        tokens, rules, history = fixed + sum(self.counted), self.way.rules, self.history
        for unit, _, known in self.units:
            tokens += byte_bound(unit, rules) if known is None else sum(known)
        if rules.drops_reasoning:
            current = history[latest_turn(history) :]
            tokens += sum(turn_reasoning_tokens(message, rules, utf8_length) for message in current)
        return tokens + answer * len(history) if answer else tokens

    @property
    def is_ready(self) -> bool:
        """Whether the model's table is in memory: loading one takes a quarter of a second."""
        return self.way.estimator.has_loaded(self.way.rules.encoding)

    @property
    def uncounted(self) -> int:
        """Bytes that `costs` has to count, or as much work."""
        size = self.declaration.work if self.beside is None else 0
        for unit, _, known in self.units:
            if known is None:
                for message in unit:
                    size += len(message.raw)
        return size

    def costs(self) -> Costs:
        beside = self.beside or self.declaration.count()
        history, rules = self.history, self.way.rules
        new: list[int] = []
        for unit, key, known in self.units:
            new += self._count(unit, key) if known is None else known
        costs = (*self.counted, *new)
        if new or self.beside is None:
            self._keep(costs, beside)
        fixed, answer = beside
        if rules.drops_reasoning:
            latest = latest_turn(history)
            costs = (*costs[:latest], *map(add, costs[latest:], map(self._thoughts, history[latest:])))
        if answer:
            costs = tuple(tokens + answer * is_answer(message) for tokens, message in zip(costs, history, strict=True))
        return Costs(costs, fixed, self._question())

    def _question(self) -> int | None:
        """Tokens of the last user message without its results; None for a message without results."""
        rest = self.history.rest
        message = rest[rest.user_places[-1]] if rest.user_places else None
        return self.cost(message.without_results) if message is not None and message.result_places else None

    def _keep(self, tokens: Tokens, beside: Tokens) -> None:
        """Keep the counts for longer histories."""
        rest, declares = self.history.rest, self.declaration.declares
        rest.counted = _Counted(self.way, tokens, declares, beside)
        if (shorter := rest.shorter) is not None:
            sure = len(tokens) - len(rest) + _sure(rest, len(shorter))
            shorter.counted = _Counted(self.way, tokens[:sure], declares, beside)

    def pictures(self) -> tuple[int, int] | None:
        """Tokens of all pictures by the family's rule, and scaled; None where that is not known of all media."""
        rules = self.way.rules
        scaled = picture_tokens(self.history, rules)
        plain = picture_tokens(self.history, replace(rules, picture_scale=1.0))
        return None if plain is None or scaled is None else (plain, scaled)

    def cost(self, message: Message) -> int:
        """Tokens of a message by itself."""
        return sum(unit_tokens([message], self.way.rules, self.count))

    def _thoughts(self, message: Message) -> int:
        """Tokens of its reasoning, which are not remembered with it: in a later turn it costs nothing."""
        if not (message.thoughts or message.encrypted):
            return 0
        key = b"%bthoughts" % _key(self.way.tag, [message])
        (known,) = self.way.estimator.recall([key])
        if known is None:
            known = (turn_reasoning_tokens(message, self.way.rules, self.count),)
            self.way.estimator.remember(key, known)
        return known[0]

    def _count(self, unit: Sequence[Message], key: Key) -> Tokens:
        try:
            tokens = unit_tokens(unit, self.way.rules, self.count)
        except Exception:
            # Whatever a message holds, counting it fails no request.
            log.exception("messages were counted by bytes")
            return tuple(by_bytes(len(message.raw)) for message in unit)
        self.way.estimator.remember(key, tokens)
        return tokens


def _split(leading: Sequence[Message], rest: History, counted: Tokens) -> tuple[Tokens, list[Sequence[Message]]]:
    """Tokens of a shorter history that still hold, and the units behind it."""
    units: list[Sequence[Message]] = [] if counted else [(message,) for message in leading]
    known = max(0, len(counted) - len(leading))
    if known == len(rest):
        return counted, units
    sure = _sure(rest, known)
    if sure < known:
        counted = counted[: len(leading) + sure]
    starts = rest.unit_starts
    units += [rest[start:stop] for start, stop in pairwise((*starts[bisect_left(starts, sure) :], len(rest)))]
    return counted, units


def _sure(history: History, known: int) -> int:
    """Number of the first `known` messages that cost what they did: results that were added since change their unit."""
    starts = history.unit_starts
    return starts[bisect_right(starts, known) - 1] if starts else 0


@lru_cache(DECLARED_REMEMBERED)
def _declared_digest(declared: bytes) -> bytes:
    return blake2b(declared, digest_size=16, person=b"steno-declared").digest() if declared else b""


def _key(tag: int, unit: Sequence[Message]) -> Key:
    key = b"%d" % tag
    for message in unit:  # With the sizes: a digest leaves out volatile text, which costs tokens nevertheless.
        key = b"%b %b%d" % (key, message.digest, len(message.raw))
    return key
