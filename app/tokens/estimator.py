"""Estimator: the formula of `estimate` with caches, so that each turn counts only its new messages."""

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

from app.conversation.messages import History, Message
from app.runtime.caches import BoundedMap, Cache, Caches
from app.tokens.counting_rules import CountingRules, rules_for
from app.tokens.estimate import (
    FORMULA_VERSION,
    Costs,
    Declarations,
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
from app.tokens.tokenizer import Counter, Tokenizer, by_bytes

log = structlog.get_logger("steno.estimator")

INTEGER_BYTES = 32
MOST_MODELS = 1_000
DECLARED_REMEMBERED = 16
"""Maximum number of tool declarations whose digests are cached."""

COSTLY = 1 << 20
"""Assumed work, in bytes of messages: for loading a table, and for counting tools or schemas."""

Tokens = tuple[int, ...]
_Declares = tuple[bytes, bool, Sequence[Message]]
"""Cache key of the declarations' tokens: their digest, whether the history has calls, the preceding instructions."""

TokenRules = Callable[[str, str], CountingRules]
"""A format's function that returns the rules for a model and a host. Models with the same costs have equal rules."""


class Estimator:
    """Token counter of all prompts. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, caches: Caches | None = None) -> None:
        self.counter = tokenizer.counter
        """Function that returns the counter of an encoding."""
        self.heuristics = tokenizer.missing
        """Encodings whose tables are missing: see `Tokenizer.missing`."""
        self._remembered: Cache[bytes, Tokens] = Cache(
            caches or Caches(),
            "tokens",
            lambda key, tokens: getsizeof(key) + getsizeof(tokens) + INTEGER_BYTES * len(tokens),
        )
        """Tokens of units by digest. The tokens may stay in memory longer than the histories."""
        self._ways: dict[tuple[TokenRules, CountingRules], _Way] = {}
        self._asked: BoundedMap[tuple[str, str, float, TokenRules], _Way] = BoundedMap(MOST_MODELS)
        """Counting rules by model, host, picture scale and format."""
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
        """Return a prompt that is counted on demand. `read` parses the declarations; `declared` is their cache key."""
        asked = model, host, picture_scale, token_rules
        way = self._asked.get(asked) or self._found(*asked)
        history = messages if isinstance(messages, History) else History(messages)
        rest = history.rest
        place = 0 if history.instructions else history.first_instruction
        declares = _declared_digest(declared), history.holds_calls, history[place : place + 1]
        kept: _Counted | None = rest.counted
        if kept is None or kept.way is not way:
            kept = _Counted(way, (), None, ())
        counted, units = _split(history.instructions, rest, kept.tokens)
        beside = kept.beside if kept.declares == declares else way.remembered.use(_declared_key(way, declares))
        uncertain = [(unit, key := _key(way, unit), way.remembered.use(key)) for unit in units]
        return Prompt(way, history, counted, uncertain, declared, read, declares, beside)

    def _found(self, model: str, host: str, picture_scale: float, token_rules: TokenRules) -> _Way:
        rules = replace(token_rules(model, host), picture_scale=picture_scale)
        with self._lock:
            if (way := self._ways.get((token_rules, rules))) is None:
                way = _Way(rules, self.counter(rules.encoding), self._remembered, len(self._ways))
                self._ways[token_rules, rules] = way
            self._asked.keep((model, host, picture_scale, token_rules), way)
        return way

    def formula(self, rules: CountingRules) -> str:
        """Return the name of a model's formula. Each calibration is for one formula."""
        encoding = "bytes" if rules.encoding in self.heuristics else rules.encoding
        return f"{FORMULA_VERSION}/{encoding}" + (f"/{rules.variant}" if rules.variant else "")


class _Way(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """Counting rules with their counter and cache. Each combination of a format and rules has one object."""

    rules: CountingRules
    count: Counter
    remembered: Cache[bytes, Tokens]
    tag: int
    """Number that identifies these rules in cache keys."""


class _Counted(Struct, frozen=True):
    """Counted tokens of a history. A longer history that begins with this history reuses them."""

    way: _Way
    tokens: Tokens
    """Tokens of each message, beginning with the leading instructions."""
    declares: _Declares | None
    beside: Tokens
    """Tokens of the declarations: see `Prompt.beside`."""


class Prompt(Struct, frozen=True):
    """Messages and declarations of one request. New parts are counted on demand."""

    way: _Way
    history: History
    counted: Tokens
    """Tokens of the first messages, counted earlier as part of a shorter history."""
    units: Sequence[tuple[Sequence[Message], bytes, Tokens | None]]
    """Units after the counted messages, each with its cache key and, if known, its tokens."""
    declared: bytes
    read: Callable[[], Declarations]
    declares: _Declares
    beside: Tokens | None
    """Tokens of the declarations, and the additional tokens that they cause in each assistant text; None if unknown."""

    @property
    def bound(self) -> int | None:
        """Upper bound of the estimate. Each byte of a new message's text counts as one token.

        None if tools or a schema are uncounted: in a schema, a reference of a few bytes may expand to a long text.
        """
        if self.beside is None and self.declared:
            return None
        fixed, answer = self.beside or self._count_declared()
        tokens, rules, history = fixed + sum(self.counted), self.way.rules, self.history
        for unit, _, known in self.units:
            tokens += byte_bound(unit, rules) if known is None else sum(known)
        if rules.drops_reasoning:
            current = history[latest_turn(history) :]
            tokens += sum(turn_reasoning_tokens(message, rules, utf8_length) for message in current)
        return tokens + answer * len(history) if answer else tokens

    @property
    def uncounted(self) -> int:
        """Bytes that `costs` must count. Uncounted tools or schemas add `COSTLY` bytes, and so does a table to load."""
        size = COSTLY if self.beside is None and self.declared else 0
        size += sum([len(message.raw) for unit, _, known in self.units if known is None for message in unit])
        return size + COSTLY if size and not self.way.count.is_ready else size

    def costs(self) -> Costs:
        beside = self.beside or self._count_declared()
        history, rest, rules = self.history, self.history.rest, self.way.rules
        new: list[int] = []
        for unit, key, known in self.units:
            new += self._count(unit, key) if known is None else known
        costs = (*self.counted, *new)
        if new or self.beside is None:  # Cache for longer histories.
            rest.counted = _Counted(self.way, costs, self.declares, beside)
            if (shorter := rest.shorter) is not None:
                sure = len(costs) - len(rest) + _sure(rest, len(shorter))
                shorter.counted = _Counted(self.way, costs[:sure], self.declares, beside)
        fixed, answer = beside
        if rules.drops_reasoning:
            latest = latest_turn(history)
            costs = (*costs[:latest], *map(add, costs[latest:], map(self._thoughts, history[latest:])))
        if answer:
            costs = tuple(tokens + answer * is_answer(message) for tokens, message in zip(costs, history, strict=True))
        last = rest[rest.user_places[-1]] if rest.user_places else None
        question = self.cost(last.without_results) if last is not None and last.result_places else None
        return Costs(costs, fixed, question)

    def pictures(self) -> tuple[int, int] | None:
        """Return the tokens of all pictures, without and with learnt scale; None if `picture_tokens` returns None."""
        rules = self.way.rules
        scaled = picture_tokens(self.history, rules)
        plain = picture_tokens(self.history, replace(rules, picture_scale=1.0))
        return None if plain is None or scaled is None else (plain, scaled)

    def cost(self, message: Message) -> int:
        return sum(unit_tokens([message], self.way.rules, self.way.count))

    def _thoughts(self, message: Message) -> int:
        """Return the tokens of a message's reasoning, cached separately because it costs nothing in later turns."""
        if not (message.thoughts or message.encrypted):
            return 0
        key = b"%bthoughts" % _key(self.way, [message])
        if (known := self.way.remembered.use(key)) is None:
            known = (turn_reasoning_tokens(message, self.way.rules, self.way.count),)
            self.way.remembered.keep(key, known)
        return known[0]

    def _count(self, unit: Sequence[Message], key: bytes) -> Tokens:
        try:
            tokens = unit_tokens(unit, self.way.rules, self.way.count)
        except Exception:
            # Counting must never fail a request.
            log.exception("messages were counted by bytes")
            return tuple(by_bytes(len(message.raw)) for message in unit)
        self.way.remembered.keep(key, tokens)
        return tokens

    def _count_declared(self) -> Tokens:
        rules, count = self.way.rules, self.way.count
        _, holds_calls, system = self.declares
        try:
            declarations = self.read()
            fixed = declared_tokens(declarations, system_text(system), holds_calls, rules, count)
            tokens = (fixed, answer_tokens(declarations, rules, count))
        except Exception:
            log.exception("declarations were counted by bytes")
            return by_bytes(len(self.declared)), 0
        self.way.remembered.keep(_declared_key(self.way, self.declares), tokens)
        return tokens


def _split(leading: Sequence[Message], rest: History, counted: Tokens) -> tuple[Tokens, list[Sequence[Message]]]:
    """Return the tokens of a shorter history that are still valid, and the units that must be counted."""
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
    """Return how many of the first `known` messages keep their tokens. A new result changes its whole unit's tokens."""
    starts = history.unit_starts
    return starts[bisect_right(starts, known) - 1] if starts else 0


@lru_cache(DECLARED_REMEMBERED)
def _declared_digest(declared: bytes) -> bytes:
    return blake2b(declared, digest_size=16, person=b"steno-declared").digest() if declared else b""


def _declared_key(way: _Way, declares: _Declares) -> bytes:
    digest, holds_calls, system = declares
    return b"declared %b %b%d" % (_key(way, system), digest, holds_calls)


def _key(way: _Way, unit: Sequence[Message]) -> bytes:
    key = b"%d" % way.tag
    for message in unit:  # Digests leave out volatile text, so the key also has sizes: this text costs tokens, too.
        key = b"%b %b%d" % (key, message.digest, len(message.raw))
    return key
