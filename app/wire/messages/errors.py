"""Errors: our own refusals and the provider's, in the shape that clients of the format read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from app.errors import StenoError
from app.wire.provider_errors import error_body
from app.wire.sse import event

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types by status; below 500 the others are faults of the request, and from there on of the server."""

DETAILS = {
    "invalid_encrypted_content": "compaction_signature_invalid",
    "nothing_to_compact": "compaction_nothing_to_summarize",
    "compaction_unavailable": "compaction_unavailable",
}
"""The provider's own codes for these, by which clients tell them."""


def type_of(status: int) -> str:
    return TYPES.get(status) or ("invalid_request_error" if 400 <= status < 500 else "api_error")


def own_error(error: StenoError) -> bytes:
    """Body of a refusal of our own, with our code: the types are fewer."""
    members: dict[str, Any] = {"type": type_of(error.status), "message": error.message, "code": error.code}
    if error.code in DETAILS:
        members["details"] = {"error_code": DETAILS[error.code]}
    return _envelope(members if error.param is None else {**members, "param": error.param})


def refusal_frame(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, now: float) -> bytes:
    """Frame with the provider's refusal; of its words nothing is changed, as clients recover by them."""
    members: dict[str, Any] = msgspec.json.decode(error_body(status, headers, body, now))["error"]
    # What it left out was filled in as another format has it.
    given = b'"type"' in body
    left = {name: value for name, value in members.items() if value is not None}
    return event(_envelope(left if given else {**left, "type": type_of(status)}), "error")


def _envelope(details: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": "error", "error": details})
