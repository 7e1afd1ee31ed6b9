"""Reading a request to Responses: judge, count, compare with the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from app.core.tokens.estimate import Count
from lab.formats.known import RESPONSES
from lab.formats.responses import kind_of
from lab.simulator.counting import OF_A_PROMPT, Counting
from lab.simulator.log import Record
from lab.simulator.prompt_cache import BreakpointCache, PromptCache, blocks_at_breakpoints, has_breakpoints
from lab.simulator.refusals import Refused, no_such_method, unreadable
from lab.simulator.responses.judge import check
from lab.simulator.responses.refusals import OVERFLOW, no_such_conversation, no_such_response
from lab.simulator.responses.sealing import opened
from lab.simulator.responses.store import Store
from lab.simulator.rules import RequestRules, model_of

Json = Mapping[str, Any]
_FOR_COMPACTING = frozenset({"model", "input", "instructions", "previous_response_id", "prompt_cache_key"})


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """An acceptable request."""

    request: Json
    items: Sequence[Json]
    """All of them, also those that the provider kept."""
    conversation_id: str | None
    prompt_tokens: int
    cached_tokens: int
    written_tokens: int
    """Tokens that a model which matches at breakpoints writes to the cache."""
    compaction: Literal["alone", "behind"] | None
    """The provider's own: in place of an answer, or after it."""
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
    def stores(self) -> bool:
        return self.request.get("store") is not False

    @property
    def conversation(self) -> Sequence[Any]:
        return conversation_of(self.request.get("instructions"), self.items)


def conversation_of(instructions: Any, items: Sequence[Json]) -> Sequence[Any]:
    """Texts of a history by role."""
    said: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        kind, read = kind_of(item), RESPONSES.reading(dict(item))
        if kind == "compaction":
            said.append({"role": "system", "content": opened("compaction", item["encrypted_content"])})
        elif kind == "message" or read.calls or read.answers:
            said.append({"role": read.role, "content": read.text})
    return said


class Reader:
    """Turns bodies into requests. Not for several threads."""

    def __init__(self, count: Count, store: Store) -> None:
        self._counting = Counting(count)
        self._recent = PromptCache()
        self._marked = BreakpointCache()
        self._store = store

    def read(self, record: Record, rules: RequestRules, counted: Callable[[int], None]) -> AcceptedRequest:
        """Raise `Refused` as the provider would; `counted` is given the prompt tokens before the window is checked."""
        request = _object(record)
        items, conversation = self._items(request, rules.strict_roles)
        triggered = bool(items) and kind_of(items[-1]) == "compaction_trigger"
        items = items[:-1] if triggered else items
        model = model_of(request, rules)
        window = rules.window_of(model)
        parts, tokens = self._parts(request, items, rules)
        if request.get("truncation") == "auto":
            while sum(tokens) > window and len(tokens) > 2:
                del parts[1], tokens[1]
        total = sum(tokens)
        counted(total)
        late = rules.late_overflow and bool(request.get("stream"))
        overflows = total + rules.asked_of(model, request.get("max_output_tokens"), usual=False) > window
        if overflows and not late:
            raise Refused(OVERFLOW)
        cached, written = self._cached(request, parts, tokens)
        return AcceptedRequest(
            request=request,
            items=items,
            conversation_id=conversation,
            prompt_tokens=total,
            cached_tokens=cached,
            written_tokens=written,
            compaction="alone" if triggered else "behind" if _is_due(request, total) else None,
            overflows=overflows,
        )

    def _cached(self, request: Json, parts: Sequence[Any], tokens: Sequence[int]) -> tuple[int, int]:
        """Tokens read from the cache and written to it, as far as that is told."""
        if has_breakpoints(str(request["model"])):
            head = msgspec.json.encode(parts[0])
            return self._marked.look_up(
                blocks_at_breakpoints(head, parts[1:], tokens, request.get("prompt_cache_options"))
            )
        shared = self._recent.shared_parts(msgspec.json.encode(part) for part in parts)
        return sum(tokens[:shared]) if shared > 1 else 0, 0

    def compact(self, record: Record, rules: RequestRules) -> AcceptedRequest:
        """A request to `/responses/compact`."""
        request = _object(record)
        items, _ = self._items({name: value for name, value in request.items() if name in _FOR_COMPACTING})
        window = rules.window_of(model_of(request, rules))
        _, tokens = self._parts(request, items, rules)
        if sum(tokens) > window:
            raise Refused(OVERFLOW)
        return AcceptedRequest(request, items, None, sum(tokens), 0, 0, "alone", overflows=False)

    def count(self, record: Record, rules: RequestRules) -> int:
        """Tokens that `/responses/input_tokens` answers, whatever the window is."""
        request = _object(record)
        items, _ = self._items(request)
        model_of(request, rules)
        return sum(self._parts(request, items, rules)[1])

    def _items(self, request: Json, alternating: bool = False) -> tuple[list[Json], str | None]:
        """Items with those that the provider kept, and the conversation's id."""
        earlier: Sequence[Json] = ()
        if (before := request.get("previous_response_id")) is not None:
            kept = self._store.response(str(before))
            if kept is None:
                raise Refused(no_such_response(str(before)))
            earlier = kept.items
        named = request.get("conversation")
        conversation = named.get("id") if isinstance(named, dict) else named
        if conversation is not None:
            found = self._store.conversation(conversation)
            if found is None:
                raise Refused(no_such_conversation(str(conversation)))
            earlier = found
        return check(request, self._store.items, earlier, alternating), conversation

    def _parts(self, request: Json, items: Sequence[Json], rules: RequestRules) -> tuple[list[Any], list[int]]:
        """Tools and instructions, then each item that the model still reads; and the tokens of each."""
        head = [request["model"], request.get("tools"), request.get("instructions")]
        start = max((index for index, item in enumerate(items) if kind_of(item) == "compaction"), default=0)
        read = [_unsealed(item) for item in items[start:]]
        costs = [OF_A_PROMPT + sum(self._counting.texts(each) for each in head[1:])]
        costs += [self._counting.part(item) for item in read]
        scaled = [round(rules.skew * cost) for cost in costs]
        return [head, *items[start:]], [scaled[0] + rules.offset, *scaled[1:]]


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


def _is_due(request: Json, tokens: int) -> bool:
    return any(
        entry.get("compact_threshold") is not None and tokens > entry["compact_threshold"]
        for entry in request.get("context_management") or ()
    )


def users_of(items: Sequence[Json]) -> list[Json]:
    """The user's messages, whole: they stay beside a compaction."""
    return [item for item in items if kind_of(item) == "message" and item["role"] == "user"]
