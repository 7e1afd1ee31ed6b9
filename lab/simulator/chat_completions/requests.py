"""Reading a chat request: parse, check, count. Messages seen before cost a look-up: replays resend them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from app.core.tokens.estimate import Count
from lab.simulator.chat_completions.counting import ChatCounting
from lab.simulator.chat_completions.judge import check_arguments, check_message, check_order
from lab.simulator.log import NOT_JSON
from lab.simulator.prompt_cache import BreakpointCache, PromptCache, blocks_at_breakpoints, has_breakpoints
from lab.simulator.refusals import (
    Refusal,
    Refused,
    empty_array,
    long_array,
    missing,
    unreadable,
    wrong_type,
)
from lab.simulator.replies import texts_of
from lab.simulator.rules import RequestRules, model_of

_CACHED_MESSAGES = 50_000


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """An acceptable request."""

    model: str
    messages: Sequence[Any]
    arguments: Mapping[str, Any]
    """Members of the request, without its messages."""
    prompt_tokens: int
    cached_tokens: int
    written_tokens: int = 0
    """Tokens that a model which matches at breakpoints writes to the cache."""

    @property
    def conversation(self) -> Sequence[Any]:
        return self.messages

    @property
    def stream(self) -> bool:
        return bool(self.arguments.get("stream"))

    @property
    def include_usage(self) -> bool:
        return bool((self.arguments.get("stream_options") or {}).get("include_usage"))

    @property
    def choices(self) -> int:
        return self.arguments.get("n") or 1

    @property
    def max_tokens(self) -> int | None:
        return _max_tokens(self.arguments)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A message once parsed and checked."""

    value: Any
    refusal: Refusal | None


class Reader:
    """Turns bodies into requests. Not for several threads."""

    def __init__(self, count: Count) -> None:
        self._counting = ChatCounting(count)
        self._recent = PromptCache()
        self._marked = BreakpointCache()
        self._inspect = lru_cache(_CACHED_MESSAGES)(self._inspect_afresh)

    def read(self, body: bytes, rules: RequestRules, counted: Callable[[int], None]) -> AcceptedRequest:
        """Raise `Refused` as the provider would; `counted` is given the prompt tokens before the window is checked."""
        raw = _decode(body, dict[str, msgspec.Raw])
        arguments = {name: _decode(value) for name, value in raw.items() if name != "messages"}
        model = model_of(arguments, rules)
        check_arguments({**arguments, "messages": None}, model.unsupported)
        parts = [bytes(part) for part in _message_parts(raw, rules)]
        seen = [self._inspect(part, rules.lenient_messages) for part in parts]
        messages = _accepted(seen)
        _check_sequence(messages, arguments, rules)

        costs = self._counting.costs(model.name, parts, raw)
        extras = costs.fixed - self._counting.costs(model.name, (), {}).fixed
        total = rules.scaled(sum(costs.messages) + costs.fixed)
        counted(total)
        asked = rules.asked_of(model, _max_tokens(arguments), usual=True)
        _check_window(total, round(rules.skew * extras), asked or None, rules.window_of(model))
        head = msgspec.json.encode([model.name, arguments.get("tools"), arguments.get("functions")])
        written = 0
        if has_breakpoints(model.name):
            tokens = [round(rules.skew * cost) for cost in (extras, *costs.messages)]
            blocks = blocks_at_breakpoints(head, messages, tokens, arguments.get("prompt_cache_options"))
            cached, written = self._marked.look_up(blocks)
        else:
            shared = self._recent.shared_parts([head, *parts])
            cached = round(rules.skew * (extras + sum(costs.messages[: shared - 1]))) if shared > 1 else 0
        return AcceptedRequest(model.name, messages, arguments, total, min(total, cached), written)

    def _inspect_afresh(self, raw: bytes, lenient: bool) -> _Seen:
        value = _decode(raw)
        try:
            check_message(value, lenient)
        except Refused as refused:
            return _Seen(value, refused.refusal)
        return _Seen(value, None)


def _decode(body: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except NOT_JSON:
        raise Refused(unreadable()) from None


def _message_parts(raw: Mapping[str, msgspec.Raw], rules: RequestRules) -> list[msgspec.Raw]:
    if "messages" not in raw:
        raise Refused(missing("messages"))
    try:
        parts = msgspec.json.decode(raw["messages"], type=list[msgspec.Raw])
    except msgspec.ValidationError:
        raise Refused(wrong_type("messages", "an array of objects", _decode(raw["messages"]))) from None
    if not parts:
        raise Refused(empty_array("messages"))
    if rules.max_messages is not None and len(parts) > rules.max_messages:
        raise Refused(long_array("messages", rules.max_messages, len(parts)))
    return parts


def _accepted(seen: Iterable[_Seen]) -> list[Any]:
    messages = []
    for index, item in enumerate(seen):
        if item.refusal:
            raise Refused(item.refusal.at(index))
        messages.append(item.value)
    return messages


def _check_sequence(messages: Sequence[Any], arguments: Mapping[str, Any], rules: RequestRules) -> None:
    check_order(messages, rules.strict_roles)
    wanted = arguments.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_object":
        texts = (text for message in messages for text in texts_of(message))
        if not any("json" in text.lower() for text in texts):
            text = "'messages' must contain the word 'json' in some form, to use 'response_format' of type"
            raise Refused(Refusal(f"{text} 'json_object'.", "messages"))


def _check_window(total: int, functions: int, completion: int | None, window: int) -> None:
    if total + (completion or 0) > window:
        raise Refused(_over_the_window(window, total - functions, functions, completion))


def _over_the_window(window: int, messages: int, functions: int, completion: int | None) -> Refusal:
    """The prompt, or the prompt and the completion asked for, exceed the context window."""
    parts = [f"{messages} in the messages"]
    nouns = ["messages"]
    if functions:
        parts.append(f"{functions} in the functions")
        nouns.append("functions")
    if completion is None:
        detail = f" ({', '.join(parts)})" if functions else ""
        demand = f"your messages resulted in {messages + functions} tokens{detail}"
    else:
        parts.append(f"{completion} in the completion")
        nouns.append("completion")
        demand = f"you requested {messages + functions + completion} tokens ({_series(parts, 'and')})"
    return Refusal(
        f"This model's maximum context length is {window} tokens. However, {demand}. "
        f"Please reduce the length of the {_series(nouns, 'or')}.",
        "messages",
        "context_length_exceeded",
    )


def _series(words: list[str], conjunction: str) -> str:
    """a; a or b; a, b, or c. OpenAI writes no conjunction between two counts."""
    if len(words) == 1:
        return words[0]
    if len(words) == 2:
        return f"{words[0]}, {words[1]}" if conjunction == "and" else f"{words[0]} {conjunction} {words[1]}"
    return f"{', '.join(words[:-1])}, {conjunction} {words[-1]}"


def _max_tokens(arguments: Mapping[str, Any]) -> int | None:
    return arguments.get("max_completion_tokens") or arguments.get("max_tokens")
