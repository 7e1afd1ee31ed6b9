"""Parts that OpenAI's APIs share beside their refusals: headers, and the errors of each status."""

from __future__ import annotations

import http
from collections.abc import Mapping
from typing import Any, Protocol

from lab.simulator.format import AcceptedT, Format
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


class OpenAI(Format[AcceptedT], Protocol[AcceptedT]):
    """Headers and errors of OpenAI's APIs."""

    def headers(self, request_id: str, status: int) -> Mapping[str, str]:
        return {"x-request-id": request_id, **_USUAL_HEADERS, **(_EXHAUSTED_HEADERS if status == 429 else {})}

    def error(self, fault: Fault) -> Mapping[str, Any]:
        usual = (
            http.HTTPStatus(fault.status).phrase,
            "invalid_request_error" if fault.status < 500 else "server_error",
            None,
        )
        message, kind, code = _ERRORS.get(fault.status, usual)
        return {"error": fault.error or {"message": message, "type": kind, "param": None, "code": code}}
