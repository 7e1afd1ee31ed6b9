"""Provider errors: whether a request may be sent again and when, and the error object that a begun stream ends with."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec

REPEATABLE = frozenset({408, 409, 429})
"""Below 500; from there on SDKs repeat every status."""
LONGEST_DATE = 100
LONGEST_PAUSE = 31_536_000.0
"""A year, in seconds: a longer one says that there is no use in waiting."""


def is_repeatable(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether an SDK would send the same request again. What the provider says of that counts first."""
    asked = dict(headers).get(b"x-should-retry")
    if asked in (b"true", b"false"):
        return asked == b"true"
    return status in REPEATABLE or status >= 500


def named_pause(headers: Iterable[tuple[bytes, bytes]], now: float) -> float | None:
    """The pause that the provider asks for, in seconds; None if it names nothing. `now` in Unix seconds."""
    named = dict(headers)
    for name, unit in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        said = named.get(name, b"").strip()
        if said.replace(b".", b"", 1).isdigit():
            return min(float(said) * unit, LONGEST_PAUSE)
    try:
        date = parsedate_to_datetime(named.get(b"retry-after", b"")[:LONGEST_DATE].decode("latin-1")).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):  # The parser's own, where it was not written for it.
        return None
    return min(max(0.0, date - now), LONGEST_PAUSE)


CODES = {401: "invalid_api_key", 413: "request_too_large", 429: "rate_limit_exceeded"}
"""OpenAI's own; the other statuses are given by their names."""
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
REQUEST_ID = (b"x-request-id", b"request-id", b"apim-request-id")
"""Headers in which providers name a request, the first found counts."""
MESSAGES = ("message", "detail", "error", "msg", "error_message")
LONGEST_QUOTE = 500


def error_body(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, now: float) -> bytes:
    return msgspec.json.encode({"error": provider_error(status, headers, body, now)})


def provider_error(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, now: float) -> dict[str, Any]:
    """Members of a refusal's error: the provider's own, and those that only its status and headers give.

    Of OpenAI's four members those that it left out are filled in; what it said itself is never changed. `now` in Unix
    seconds.
    """
    headers = list(headers)
    values = dict(headers)
    quoted = body.decode("utf-8", "replace").strip()[:LONGEST_QUOTE]
    is_known = status >= 400 and status in set(HTTPStatus)
    usual = {
        "message": f"The provider answered with status {status}" + (f": {quoted}" if quoted else "."),
        "type": TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "server_error"),
        "param": None,
        "code": CODES.get(status) or (HTTPStatus(status).name.lower() if is_known else f"status_{status}"),
    }
    if status < 400:
        usual["code"] = None
    request_id = next((values[name].decode("latin-1") for name in REQUEST_ID if values.get(name)), None)
    known = {
        "status": status if status >= 400 else None,
        "request_id": request_id,
        "retry_after": named_pause(headers, now),
    }
    return usual | {name: value for name, value in known.items() if value is not None} | _error_in(body)


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
