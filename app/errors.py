"""Errors that Steno itself sends to clients, in OpenAI's error envelope.

    StenoError
      BodyTooLarge            413  request_too_large
      RequestTimedOut         408  request_timeout
      TooManyBytesInFlight    503  overloaded
      TooManyConnections      503  overloaded
      HeadersTooLarge         431  headers_too_large
      HostNotAllowed          421  host_not_allowed
      OriginNotAllowed        403  origin_not_allowed
      UnsupportedMediaType    415  unsupported_media_type
      WebSocketNotSpoken      426  websocket_not_spoken
      BadTarget               400  invalid_target
      MethodNotAllowed        405  method_not_allowed
      MissingCredentials      401  missing_credentials
      InvalidCredentials      401  invalid_credentials
      UnknownPath             404  unknown_path
      UnknownUpstream         404  unknown_upstream
      FormatNotSpoken         404  format_not_spoken
      ConversationNotFound    404  conversation_not_found
      SummaryNotFound         404  summary_not_found
      MessagesNotKept         404  messages_not_kept
      InvalidRequest          400  invalid_request
      StorageUnavailable      503  storage_unavailable
      LoopDetected            508  loop_detected
      UpstreamUnreachable     502  upstream_unreachable
      UpstreamTimedOut        504  upstream_timeout
      UpstreamDisconnected    502  upstream_disconnected
      UpstreamUnreadable      502  upstream_unreadable

Steno relays a provider's error answer, and raises no StenoError for it. A failed summary raises no StenoError either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec


class StenoError(Exception):
    """An error with a message for the user. The message says what is wrong, with numbers, and what to do."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    code: ClassVar[str] = "internal_error"
    repeatable: ClassVar[bool] = False
    """True if the same request may succeed later; otherwise a header asks SDKs not to retry."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def envelope(self) -> bytes:
        body = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": body})

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        advice = (b"retry-after", b"1") if self.repeatable else (b"x-should-retry", b"false")
        return [(b"content-type", b"application/json"), advice]


class _RequestError(StenoError):
    type = "invalid_request_error"


class BodyTooLarge(_RequestError):
    status, code = 413, "request_too_large"


class RequestTimedOut(_RequestError):
    status, code = 408, "request_timeout"


class HeadersTooLarge(_RequestError):
    status, code = 431, "headers_too_large"


class HostNotAllowed(_RequestError):
    status, code = 421, "host_not_allowed"


class OriginNotAllowed(_RequestError):
    status, code = 403, "origin_not_allowed"


class UnsupportedMediaType(_RequestError):
    status, code = 415, "unsupported_media_type"


class WebSocketNotSpoken(_RequestError):
    """Refusal of a WebSocket. Some clients try a WebSocket before HTTP; an immediate 426 makes them use HTTP."""

    status, code = 426, "websocket_not_spoken"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers, (b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")]


class BadTarget(_RequestError):
    status, code = 400, "invalid_target"

    def __init__(self) -> None:
        super().__init__("The path has a '.' or '..' segment, which no provider path needs.")


class MethodNotAllowed(_RequestError):
    """The path does not support the method. `allowed` lists the path's methods, or the methods that Steno relays."""

    status, code = 405, "method_not_allowed"

    def __init__(self, message: str, allowed: Iterable[str]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers, (b"allow", ", ".join(self.allowed).encode())]


class InvalidRequest(_RequestError):
    status, code = 400, "invalid_request"


class MissingCredentials(_RequestError):
    status, type, code = 401, "authentication_error", "missing_credentials"


class InvalidCredentials(_RequestError):
    """The header that names the client is invalid, or was not sent by a trusted proxy."""

    status, type, code = 401, "authentication_error", "invalid_credentials"


class UnknownPath(_RequestError):
    status, code = 404, "unknown_path"


class UnknownUpstream(_RequestError):
    status, code = 404, "unknown_upstream"

    def __init__(self, name: str | None, known: str) -> None:
        super().__init__(f"There is no upstream {name!r} (/u/{{name}}/v1). Known here: {known}.")


class FormatNotSpoken(_RequestError):
    """No upstream for this request supports its wire format."""

    status, code = 404, "format_not_spoken"


class ConversationNotFound(_RequestError):
    status, code = 404, "conversation_not_found"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(f"There is no conversation {conversation_id!r}.")


class SummaryNotFound(_RequestError):
    status, code = 404, "summary_not_found"

    def __init__(self, conversation_id: str, summary_id: str) -> None:
        super().__init__(f"The conversation {conversation_id!r} has no summary {summary_id!r}.")


class MessagesNotKept(_RequestError):
    """The setting `storage.messages` is off."""

    status, code = 404, "messages_not_kept"

    def __init__(self) -> None:
        super().__init__("Steno keeps no messages here: storage.messages is off.")


class TooManyBytesInFlight(StenoError):
    status, type, code, repeatable = 503, "server_error", "overloaded", True

    def __init__(self) -> None:
        super().__init__("Too many request bytes are being served at once. Try again in a second.")


class TooManyConnections(StenoError):
    status, type, code, repeatable = 503, "server_error", "overloaded", True


class StorageUnavailable(StenoError):
    status, type, code, repeatable = 503, "server_error", "storage_unavailable", True

    def __init__(self, reason: str) -> None:
        super().__init__(f"The database cannot be used: {reason}. Requests are still served.")


class LoopDetected(StenoError):
    status, code = 508, "loop_detected"


class UpstreamUnreachable(StenoError):
    status, code, repeatable = 502, "upstream_unreachable", True

    def __init__(self, host_and_port: str) -> None:
        self.what = f"No connection to the provider at {host_and_port} could be made."
        """The message without the advice, for code that gives other advice."""
        super().__init__(
            f"{self.what} Check that it is running, that its base_url in Steno's settings is right, and that Steno's"
            " machine may connect to it; `steno doctor` tries it."
        )


class UpstreamTimedOut(StenoError):
    status, code, repeatable = 504, "upstream_timeout", True


class UpstreamDisconnected(StenoError):
    status, code, repeatable = 502, "upstream_disconnected", True


class UpstreamUnreadable(StenoError):
    status, code = 502, "upstream_unreadable"
