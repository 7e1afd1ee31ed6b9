"""Reading a request to Responses: judge, count, compare with the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.core.tokens.estimate import Count
from lab.formats.known import RESPONSES
from lab.formats.responses import kind_of
from lab.simulator.counting import OF_A_PROMPT, Counting
from lab.simulator.log import Record
from lab.simulator.prompt_cache import BreakpointCache, PromptCache, blocks_at_breakpoints, has_breakpoints
from lab.simulator.refusals import Refusal, Refused, no_such_method, unreadable
from lab.simulator.responses.items import opened
from lab.simulator.responses.judge import check
from lab.simulator.rules import RequestRules, model_of

Json = Mapping[str, Any]

OVERFLOW = Refusal(
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "input",
    "context_length_exceeded",
)


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """An acceptable request."""

    request: Json
    items: Sequence[Json]
    prompt_tokens: int
    cached_tokens: int
    written_tokens: int
    """Tokens that a model which matches at breakpoints writes to the cache."""
    overflows: bool
    """The stream begins, and then says that the prompt was too long."""

    @property
    def model(self) -> str:
        return str(self.request["model"])

    @property
    def stream(self) -> bool:
        return bool(self.request.get("stream"))

    @property
    def max_tokens(self) -> int | None:
        return self.request.get("max_output_tokens")

    @property
    def conversation(self) -> Sequence[Any]:
        """Texts of the history by role."""
        instructions = self.request.get("instructions")
        said: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
        for item in self.items:
            read = RESPONSES.reading(dict(item))
            if kind_of(item) == "message" or read.calls or read.answers:
                said.append({"role": read.role, "content": read.text})
        return said


class Reader:
    """Turns bodies into requests. Not for several threads."""

    def __init__(self, count: Count) -> None:
        self._counting = Counting(count)
        self._recent = PromptCache()
        self._marked = BreakpointCache()

    def read(self, record: Record, rules: RequestRules, counted: Callable[[int], None]) -> AcceptedRequest:
        """Raise `Refused` as the provider would; `counted` is given the prompt tokens before the window is checked."""
        request = _object(record)
        items = check(request, rules.strict_roles)
        for name, text in _STATES.items():
            if request.get(name) is not None:
                raise Refused(Refusal(text, name, f"{name.removesuffix('_id')}_not_found"))
        model = model_of(request, rules)
        parts, tokens = self._parts(request, items, rules)
        total = sum(tokens)
        counted(total)
        asked = rules.asked_of(model, request.get("max_output_tokens"), usual=False)
        overflows = total + asked > rules.window_of(model)
        if overflows and not (rules.late_overflow and request.get("stream")):
            raise Refused(OVERFLOW)
        cached, written = self._cached(request, parts, tokens)
        return AcceptedRequest(request, items, total, cached, written, overflows)

    def _cached(self, request: Json, parts: Sequence[Any], tokens: Sequence[int]) -> tuple[int, int]:
        """Tokens read from the cache and written to it, as far as that is told."""
        if has_breakpoints(str(request["model"])):
            head = msgspec.json.encode(parts[0])
            return self._marked.look_up(
                blocks_at_breakpoints(head, parts[1:], tokens, request.get("prompt_cache_options"))
            )
        shared = self._recent.shared_parts(msgspec.json.encode(part) for part in parts)
        return sum(tokens[:shared]) if shared > 1 else 0, 0

    def count(self, record: Record, rules: RequestRules) -> int:
        """Tokens that `/responses/input_tokens` answers, whatever the window is."""
        request = _object(record)
        items = check(request)
        model_of(request, rules)
        return sum(self._parts(request, items, rules)[1])

    def _parts(self, request: Json, items: Sequence[Json], rules: RequestRules) -> tuple[list[Any], list[int]]:
        """Tools and instructions, then each item; and the tokens of each."""
        head = [request["model"], request.get("tools"), request.get("instructions")]
        costs = [OF_A_PROMPT + sum(self._counting.texts(each) for each in head[1:])]
        costs += [self._counting.part(_unsealed(item)) for item in items]
        scaled = [round(rules.skew * cost) for cost in costs]
        return [head, *items], [scaled[0] + rules.offset, *scaled[1:]]


_STATES = {
    "previous_response_id": "Previous response not found.",
    "conversation": "Conversation not found.",
}
"""Members that name what the provider keeps, of which there is nothing here."""


def _object(record: Record) -> Json:
    if record.method != "POST":
        raise Refused(no_such_method(record.method, record.path))
    if not isinstance(record.payload, dict):
        raise Refused(unreadable())
    return record.payload


def _unsealed(item: Json) -> Json:
    """Item as the provider reads it, with what it sealed as text."""
    sealed = item.get("encrypted_content")
    return item if sealed is None else {"text": opened(kind_of(item), sealed)}
