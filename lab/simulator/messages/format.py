"""Messages among the formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.core.tokens.estimate import Count
from lab.simulator.format import Content, Format, json_content
from lab.simulator.log import Record
from lab.simulator.messages.answers import Answer, compose
from lab.simulator.messages.refusals import no_such_model
from lab.simulator.messages.requests import AcceptedRequest, Reader, betas_of, window_of
from lab.simulator.refusals import Refused
from lab.simulator.rules import Model, RequestRules
from lab.simulator.script import Fault

VERSION_HEADER = "anthropic-version"
_ERRORS: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request_error", "Bad Request"),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "Not Found"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your organization's rate limit."),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}
_MODELS = "/v1/models/"


class Messages(Format[AcceptedRequest]):
    """`POST /v1/messages`, what it would cost, and a model's window."""

    path = "/v1/messages"
    counting_path = "/v1/messages/count_tokens"
    closing = b""

    def __init__(self, count: Count) -> None:
        self._reader = Reader(count)

    def read(self, record: Record, rules: RequestRules, counted: Callable[[int], None]) -> AcceptedRequest:
        return self._reader.read(record, rules, counted)

    def answer(self, sequence: int, request: AcceptedRequest, fault: Fault, text: str, count: Count) -> Answer:
        return compose(sequence, request, fault, text, count)

    def owns(self, record: Record) -> bool:
        asks_here = record.path.startswith("/v1/models") and record.header(VERSION_HEADER) is not None
        return asks_here or record.path in (self.path, self.counting_path)

    def respond(self, record: Record, rules: RequestRules) -> Content | None:
        if record.path == self.counting_path:
            return json_content({"input_tokens": self._reader.count(record, rules)})
        if self.owns(record) and record.path.startswith(_MODELS):
            name = record.path.removeprefix(_MODELS)
            if (model := rules.model(name)) is None:
                raise Refused(no_such_model(name))
            return json_content(_told(model, window_of(model, betas_of(record), rules)))
        return None

    def error(self, fault: Fault) -> Mapping[str, Any]:
        usual = "invalid_request_error" if fault.status < 500 else "api_error"
        kind, message = _ERRORS.get(fault.status, (usual, "The request failed."))
        return {"type": "error", "error": fault.error or {"type": kind, "message": message}}

    def identified(self, error: Mapping[str, Any], request_id: str) -> Mapping[str, Any]:
        return {**error, "request_id": request_id}

    def headers(self, request_id: str, status: int) -> Mapping[str, str]:
        return {
            "request-id": request_id,
            "anthropic-organization-id": "org-simulator",
            "anthropic-ratelimit-requests-limit": "10000",
            "anthropic-ratelimit-requests-remaining": "0" if status == 429 else "9999",
        }


def _told(model: Model, window: int) -> Mapping[str, Any]:
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": window,
        "max_tokens": window,
    }
