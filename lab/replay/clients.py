"""The official clients, one for each format: a request out, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import openai

from lab.formats.format import ReplayFormat
from lab.formats.known import MESSAGES, RESPONSES

ANSWER_SECONDS = 600.0
MOST_OUTPUT = 1_024
"""Most tokens of an answer, which Messages have to name."""


@dataclass(frozen=True, slots=True)
class Answer:
    failure: str | None = None
    """Reason why the client got no answer."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Members of the answer about the context."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client of one format."""

    create: Callable[..., Any]
    """Sends a request, and returns an answer or its events."""
    required: Mapping[str, Any]
    """Arguments that the signature wants, and the body says otherwise: in `extra_body`, as the SDKs look up the type of
    every value in a history again, which is most of a long replay's time."""
    ended: Callable[[Any], bool]
    """Whether an answer, or an event, is its end."""

    def ask(self, body: Mapping[str, Any], *, stream: bool) -> Answer:
        given = {**self.required, "extra_body": dict(body)}
        try:
            pieces = list(self.create(**given, stream=True)) if stream else [self.create(**given)]
        except (openai.OpenAIError, anthropic.AnthropicError) as error:
            return Answer(f"The client got an error: {error}")
        ended = any(map(self.ended, pieces))
        return Answer(None if ended else "The answer ended without a reason to finish.", self._context(pieces))

    def _context(self, pieces: Iterable[Any]) -> Mapping[str, Any]:
        holders = (holder for piece in pieces for holder in (piece, getattr(piece, "response", None)))
        members = (getattr(holder, "model_extra", None) or {} for holder in holders)
        context: Mapping[str, Any] = next((found for each in members if (found := each.get("context"))), {})
        return context


@contextmanager
def open_client(
    written: ReplayFormat, base_url: str, api_key: str, model: str, sent: Callable[[bytes], None]
) -> Iterator[Client]:
    """`base_url` is Steno's, with its `/v1`; `sent` is given each body as it goes out."""

    def keep(request: httpx2.Request) -> None:
        sent(request.content)

    options: Any = {"event_hooks": {"request": [keep]}, "trust_env": False, "timeout": ANSWER_SECONDS}
    given: dict[str, Any] = {"api_key": api_key, "max_retries": 0}
    if written is MESSAGES:
        http = anthropic.DefaultHttpxClient(**options)
        with anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), http_client=http, **given) as claude:
            yield _client(written, claude, model)
        return
    with openai.OpenAI(base_url=base_url, http_client=openai.DefaultHttpxClient(**options), **given) as client:
        yield _client(written, client, model)


def _client(written: ReplayFormat, sdk: Any, model: str) -> Client:
    if written is MESSAGES:
        return Client(
            sdk.messages.create,
            {"model": model, "max_tokens": MOST_OUTPUT, "messages": []},
            lambda piece: getattr(getattr(piece, "delta", piece), "stop_reason", None) is not None,
        )
    if written is RESPONSES:
        return Client(
            sdk.responses.create,
            {"model": model},
            lambda piece: getattr(getattr(piece, "response", piece), "status", None) in ("completed", "incomplete"),
        )
    return Client(
        sdk.chat.completions.create,
        {"model": model, "messages": []},
        lambda piece: any(choice.finish_reason for choice in piece.choices[:1]),
    )
