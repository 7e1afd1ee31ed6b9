"""The summariser's call: to the same provider, with the caller's key."""

from __future__ import annotations

import asyncio
from typing import Any

from app.core.compaction import Failure
from app.core.gate import Answer
from app.core.prompts import SummaryRequest
from app.errors import StenoError
from app.upstream import Completed, Headers, Upstream
from app.wire.chat_completions import REASONING_MODELS, read_answer, summary_body

LONGEST_WAIT_SECONDS = 5.0
"""A provider that asks for a longer pause is not waited for: the client is waiting too."""
CAPS = ("max_tokens", "max_completion_tokens")


class Summariser:
    """Asks for summaries, and remembers how each model wants its answers capped."""

    def __init__(self, upstream: Upstream, timeout_seconds: float, reasoning_allowance: int) -> None:
        self._upstream = upstream
        self._timeout_seconds = timeout_seconds
        self._reasoning_allowance = reasoning_allowance
        self._cap_of: dict[str, str] = {}
        self._without_effort: set[str] = set()

    async def ask(self, request: SummaryRequest, model: str, headers: Headers) -> Answer | Failure:
        """One summary. Whatever goes wrong is a reply, never an exception."""
        try:
            completed = await self._call(request, model, headers)
            if self._learnt_from(completed, model) or await _waited_for(completed):
                completed = await self._call(request, model, headers)
        except StenoError as error:
            return Failure(f"summariser_{error.code}")
        if completed.status != 200:
            return Failure(f"summariser_status_{completed.status}", overflow=_is_overflow(completed))
        return read_answer(completed.body) or Failure("summariser_answer_unreadable")

    def _learnt_from(self, completed: Completed, model: str) -> bool:
        """Whether the provider refused a parameter that can be sent otherwise, or not at all. Remembered."""
        if completed.status == 400 and b"reasoning_effort" in completed.body and model not in self._without_effort:
            self._without_effort.add(model)
            return True
        other = _refused_cap(completed)
        if other is None or other == self._cap(model):
            return False
        self._cap_of[model] = other
        return True

    async def _call(self, request: SummaryRequest, model: str, headers: Headers) -> Completed:
        body = summary_body(request, model, self._members(request, model))
        return await self._upstream.complete(body, headers, self._timeout_seconds)

    def _cap(self, model: str) -> str:
        return self._cap_of.get(model, CAPS[1] if REASONING_MODELS.search(model) else CAPS[0])

    def _members(self, request: SummaryRequest, model: str) -> dict[str, Any]:
        if not REASONING_MODELS.search(model):
            return {self._cap(model): request.max_tokens}
        effort = {} if model in self._without_effort else {"reasoning_effort": "low"}
        return {self._cap(model): request.max_tokens + self._reasoning_allowance, **effort}


async def _waited_for(completed: Completed) -> bool:
    """Whether the provider is busy and says that it will soon not be: then that long was waited."""
    if completed.status not in (429, 503):
        return False
    said = next((value for name, value in completed.headers if name.lower() == b"retry-after"), b"")
    seconds = float(said) if said.replace(b".", b"", 1).isdigit() else LONGEST_WAIT_SECONDS + 1
    if seconds > LONGEST_WAIT_SECONDS:
        return False
    await asyncio.sleep(seconds)
    return True


def _refused_cap(completed: Completed) -> str | None:
    """The cap to use instead, where the provider refused the one that was sent."""
    if completed.status != 400:
        return None
    text = completed.body
    if b"'max_tokens'" in text and b"max_completion_tokens" in text:
        return CAPS[1]
    return CAPS[0] if b"max_completion_tokens" in text and b"context_length_exceeded" not in text else None


def _is_overflow(completed: Completed) -> bool:
    return completed.status in (400, 413, 422) and b"context_length_exceeded" in completed.body
