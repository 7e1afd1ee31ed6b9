"""Parts that OpenAI's APIs share beside their refusals: models, the prompt cache, headers, and errors by status."""

from __future__ import annotations

import http
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from app.tokens.estimate import Count
from lab.simulator.counting import Cached, PromptCache
from lab.simulator.format import Content, Format, Json, json_content
from lab.simulator.log import Record
from lab.simulator.refusals import no_such_method, no_such_model, no_such_path, unreadable
from lab.simulator.replies import EPOCH
from lab.simulator.rules import Model, Rules
from lab.simulator.script import Fault

_USUAL_HEADERS = {
    "openai-organization": "org-simulator",
    "openai-processing-ms": "12",
    "openai-version": "2020-10-01",
    "x-ratelimit-limit-requests": "10000",
    "x-ratelimit-limit-tokens": "2000000",
    "x-ratelimit-remaining-requests": "9999",
    "x-ratelimit-remaining-tokens": "1999000",
    "x-ratelimit-reset-requests": "6ms",
    "x-ratelimit-reset-tokens": "30ms",
}
_EXHAUSTED_HEADERS = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-remaining-tokens": "0"}
_ERRORS: Mapping[int, tuple[str, str, str | None]] = {
    401: ("Incorrect API key provided.", "invalid_request_error", "invalid_api_key"),
    403: ("You are not allowed to use this model.", "invalid_request_error", "model_not_allowed"),
    429: ("Rate limit reached for requests. Please try again later.", "requests", "rate_limit_exceeded"),
    500: ("The server had an error while processing your request. Sorry about that!", "server_error", None),
    503: ("The engine is currently overloaded, please try again later.", "server_error", None),
}


class OpenAI(Format):
    def __init__(self, count: Count) -> None:
        super().__init__(count)
        self._recent = PromptCache()

    def cached(self, request: Json, parts: Sequence[Any], tokens: Sequence[int]) -> Cached:
        """Tokens of whole leading parts that a recent prompt had."""
        head = msgspec.json.encode([request["model"], parts[0]])
        shared = self._recent.shared_parts((head, *map(msgspec.json.encode, parts[1:])))
        return Cached(sum(tokens[:shared]) if shared > 1 else 0, 0)

    def headers(self, request_id: str, status: int) -> Mapping[str, str]:
        return {"x-request-id": request_id, **_USUAL_HEADERS, **(_EXHAUSTED_HEADERS if status == 429 else {})}

    def error(self, fault: Fault) -> Json:
        usual = (
            http.HTTPStatus(fault.status).phrase,
            "invalid_request_error" if fault.status < 500 else "server_error",
            None,
        )
        message, kind, code = _ERRORS.get(fault.status, usual)
        return {"error": fault.error or {"message": message, "type": kind, "param": None, "code": code}}


def posted(record: Record) -> Json:
    if record.method != "POST":
        raise no_such_method(record.method, record.path)
    if not isinstance(record.payload, dict):
        raise unreadable()
    return record.payload


def model_of(request: Json, rules: Rules) -> Model:
    if (model := rules.model(request["model"])) is None:
        raise no_such_model(request["model"])
    return model


# The endpoint beside chat


def list_models(record: Record, models: Iterable[Model], window: int) -> Content:
    """The answer on `/v1/models` and below."""
    path = record.path
    if path != "/v1/models" and not path.startswith("/v1/models/"):
        raise no_such_path(record.method, path)
    if record.method != "GET":
        raise no_such_method(record.method, path)
    shared = {"object": "model", "created": EPOCH, "owned_by": "simulator"}
    listed = {each.name: {"id": each.name, **shared, "context_window": each.window or window} for each in models}
    name = path.removeprefix("/v1/models").removeprefix("/")
    if not name:
        return json_content({"object": "list", "data": list(listed.values())})
    if name not in listed:
        raise no_such_model(name)
    return json_content(listed[name])
