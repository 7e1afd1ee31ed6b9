"""A provider's refusal as an error object, for a stream that has begun and can show no status any more."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from app.formats.retries import named_pause

CODES = {401: "invalid_api_key", 413: "request_too_large", 429: "rate_limit_exceeded"}
"""OpenAI's own; the other statuses are given by their names."""
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
REQUEST_ID = (b"x-request-id", b"request-id", b"apim-request-id")
"""Headers in which providers name a request, the first found counts."""
MESSAGES = ("message", "detail", "error", "msg", "error_message")
LONGEST_QUOTE = 500
"""Characters of a body that is no error object."""


def error_body(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, now: float) -> bytes:
    """`{"error": {...}}` with what the provider said, and with what only its status and headers say.

    Of OpenAI's four members those that it left out are filled in; what it said itself is never changed. `now` in Unix
    seconds.
    """
    headers = list(headers)
    given = _error_in(body)
    usual = {"message": _message(status, body), "type": _type(status), "param": None, "code": _code(status)}
    pause, request_id = named_pause(headers, now), _request_id(headers)
    possible = {"status": status if status >= 400 else None, "request_id": request_id, "retry_after": pause}
    known = {name: value for name, value in possible.items() if value is not None}
    return msgspec.json.encode({"error": usual | known | given})


def _error_in(body: bytes) -> dict[str, Any]:
    """The members of the provider's error, in whichever of the usual shapes it comes."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    value = value[0] if isinstance(value, list) and value else value  # Google's.
    if not isinstance(value, dict):
        return {"message": value} if isinstance(value, str) and value else {}
    if isinstance(error := value.get("error"), dict):
        return {name: said for name, said in error.items() if said is not None or name != "message"}
    message = next((said for name in MESSAGES if (said := value.get(name))), None)
    if message is None:
        return {}
    text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    named = {name: said for name in ("type", "param", "code") if isinstance(said := value.get(name), str)}
    return {"message": text, **named}


def _message(status: int, body: bytes) -> str:
    quoted = body.decode("utf-8", "replace").strip()[:LONGEST_QUOTE]
    return f"The provider answered with status {status}" + (f": {quoted}" if quoted else ".")


def _type(status: int) -> str:
    return TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "server_error")


def _code(status: int) -> str | None:
    if status < 400:
        return None
    try:
        return CODES.get(status) or HTTPStatus(status).name.lower()
    except ValueError:
        return f"status_{status}"


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    values = dict(headers)
    return next((values[name].decode("latin-1") for name in REQUEST_ID if values.get(name)), None)
