"""Reading a request to Messages: judge, count, compare with the window."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec

from app.core.tokens.estimate import Count
from lab.formats.known import MESSAGES
from lab.formats.messages import blocks_of
from lab.simulator.counting import OF_A_PROMPT, Counting
from lab.simulator.log import Record
from lab.simulator.messages.binding import is_bound, unmarked
from lab.simulator.messages.blocks import CACHED
from lab.simulator.messages.judge import check, has_beta, is_old
from lab.simulator.messages.refusals import (
    answer_too_long,
    no_such_method,
    no_such_model,
    prompt_too_long,
    too_many_bytes,
    unreadable,
)
from lab.simulator.prompt_cache import LOOKBACK, Block, BreakpointCache, Cached
from lab.simulator.refusals import Refused
from lab.simulator.rules import Model, RequestRules

MOST_BYTES = 32 * 1024 * 1024
LONG_WINDOW = 1_000_000
LONG_WINDOW_BETA = "context-1m-"
STOPS_AT_WINDOW_BETA = "model-context-window-exceeded-"


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """An acceptable request."""

    request: Mapping[str, Any]
    room: int
    """Tokens that the window leaves for the answer."""
    prompt_tokens: int
    cache_read: int
    cache_written: int
    cache_written_hour: int
    """Tokens of those written that are kept for an hour."""

    @property
    def model(self) -> str:
        return str(self.request["model"])

    @property
    def stream(self) -> bool:
        return bool(self.request.get("stream"))

    @property
    def max_tokens(self) -> int | None:
        return int(self.request["max_tokens"])

    @property
    def conversation(self) -> Sequence[Any]:
        return conversation_of(self.request)

    @property
    def thinks(self) -> bool:
        asked = (self.request.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        return asked and ("-think" in self.model or is_bound(self.model))


def betas_of(record: Record) -> Collection[str]:
    return [beta.strip() for beta in (record.header("anthropic-beta") or "").split(",")]


def conversation_of(request: Mapping[str, Any]) -> Sequence[Any]:
    """Texts of a history by role; what only holds results is no user's."""
    system = [{"role": "system", "content": request["system"]}] if request.get("system") else []
    read = [MESSAGES.reading(_unsealed(message)) for message in (*system, *request["messages"])]
    return [{"role": each.role, "content": each.text} for each in read]


def _unsealed(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with the provider's own summary in it as text."""
    blocks = [
        {"type": "text", "text": block.get("content")} if block["type"] == "compaction" else block
        for block in blocks_of(message["content"])
    ]
    return {**message, "content": blocks}


class Reader:
    """Turns bodies into requests. Not for several threads."""

    def __init__(self, count: Count) -> None:
        self._counting = Counting(count)
        self._recent = BreakpointCache(LOOKBACK)

    def read(self, record: Record, rules: RequestRules, counted: Callable[[int], None]) -> AcceptedRequest:
        """Raise `Refused` as the provider would; `counted` is given the prompt tokens before the window is checked."""
        betas = betas_of(record)
        request = self._accepted(record, rules, betas)
        model = _model_of(request, rules)
        parts, tokens = self._parts(request, rules)
        counted(sum(tokens))
        window = window_of(model, betas, rules)
        _check_window(sum(tokens), _asked(model, request, betas, rules), window)
        cached, hour = self._cached(request, parts, tokens)
        return AcceptedRequest(
            request=request,
            room=window - sum(tokens),
            prompt_tokens=sum(tokens),
            cache_read=cached.read,
            cache_written=cached.written,
            cache_written_hour=hour,
        )

    def count(self, record: Record, rules: RequestRules) -> int:
        """Tokens that `count_tokens` answers, whatever the window is."""
        request = self._accepted(record, rules, betas_of(record), required=())
        _model_of(request, rules)
        return sum(self._parts(request, rules)[1])

    def _accepted(
        self,
        record: Record,
        rules: RequestRules,
        betas: Collection[str],
        required: Collection[str] = ("max_tokens",),
    ) -> Mapping[str, Any]:
        if record.method != "POST":
            raise Refused(no_such_method())
        if len(record.body) > MOST_BYTES:
            raise Refused(too_many_bytes())
        request = record.payload
        if not isinstance(request, dict):
            raise Refused(unreadable())
        check(request, betas, required, rules.strict_roles)
        return request

    def _parts(self, request: Mapping[str, Any], rules: RequestRules) -> tuple[list[Any], list[int]]:
        """Tools and system, then each message that the model reads; and the tokens of each."""
        head = [request.get("tools"), request.get("system")]
        messages = list(shown(request["messages"]))
        costs = [OF_A_PROMPT + sum(self._counting.texts(each) for each in head)]
        costs += [self._counting.part(message["content"]) for message in messages]
        scaled = [round(rules.skew * cost) for cost in costs]
        return [head, *messages], [scaled[0] + rules.offset, *scaled[1:]]

    def _cached(self, request: Mapping[str, Any], parts: Sequence[Any], tokens: Sequence[int]) -> tuple[Cached, int]:
        """Tokens read from the cache and written to it, and those of them that are written for an hour, which the last
        mark says."""
        blocks, last = self._blocks(request, parts, tokens)
        cached = self._recent.look_up(blocks)
        return cached, cached.written if isinstance(last, dict) and last.get("ttl") == "1h" else 0

    def _blocks(
        self, request: Mapping[str, Any], parts: Sequence[Any], tokens: Sequence[int]
    ) -> tuple[list[Block], Any]:
        """Blocks of a prompt in order, and its last mark. A mark on the whole request stands on the last block."""
        (tools, system), *messages = parts
        head = [*(("tools", tool) for tool in tools or ()), *(("system", block) for block in blocks_of(system))]
        said = [[(message["role"], block) for block in blocks_of(message["content"])] for message in messages]
        blocks, marks = [Block(_raw(request["model"]), 0, is_marked=False)], []
        for held, whole in zip((head, *said), tokens, strict=True):
            sums = [*accumulate((self._counting.texts(block) for _, block in held), initial=0)]
            scale = whole / sums[-1] if sums[-1] else 0
            for (role, block), before, after in zip(held, sums, sums[1:], strict=False):
                found = [mark for mark in _marks_of(block) if mark is not None]
                marks += found
                cost = round(scale * after) - round(scale * before)
                blocks.append(Block(_raw([role, unmarked(block)]), cost, bool(found)))
        if (mark := request.get(CACHED)) is not None:
            marks.append(mark)
            blocks[-1] = blocks[-1]._replace(is_marked=True)
        return blocks, marks[-1] if marks else None


def _marks_of(block: Mapping[str, Any]) -> Iterator[Any]:
    """Marks on a block, those inside of a result first."""
    if isinstance(inner := block.get("content"), list):
        for each in inner:
            yield from _marks_of(each)
    yield block.get(CACHED)


def shown(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Messages without the instructions that were to go with the next message of the user."""
    last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for place, message in enumerate(messages):
        if message.get("clear_at") != "next_user_message" or place > last:
            yield message


def window_of(model: Model, betas: Collection[str], rules: RequestRules) -> int:
    window = rules.window_of(model)
    return max(window, LONG_WINDOW) if has_beta(betas, (LONG_WINDOW_BETA,)) else window


def _model_of(request: Mapping[str, Any], rules: RequestRules) -> Model:
    model = rules.model(request["model"])
    if model is None:
        raise Refused(no_such_model(request["model"]))
    return model


def _asked(model: Model, request: Mapping[str, Any], betas: Collection[str], rules: RequestRules) -> int:
    """Tokens that the answer asks for. Newer models begin whatever room is left, and stop where the window ends."""
    stops = not is_old(request["model"]) or has_beta(betas, (STOPS_AT_WINDOW_BETA,))
    return rules.asked_of(model, request["max_tokens"], usual=not stops)


def _check_window(tokens: int, asked: int, window: int) -> None:
    if tokens > window:
        raise Refused(prompt_too_long(tokens, window))
    if tokens + asked > window:
        raise Refused(answer_too_long(tokens, asked, window))


def _raw(value: Any) -> bytes:
    return msgspec.json.encode(value)
