"""Remedies: advice to the operator about a provider that refuses or is away, for the log."""

from __future__ import annotations

from collections.abc import Mapping

from app.errors import StenoError, UpstreamDisconnected, UpstreamTimedOut, UpstreamUnreachable

_STATUSES: Mapping[int, str] = {
    400: "The answer that the client got says what the provider did not accept.",
    401: "Check the key: the client's own, or that of the upstream in the settings.",
    403: "Check what the key may use: the client's own, or that of the upstream in the settings.",
    404: "Check the model's name and the upstream's base URL.",
    413: "The request is larger than the provider accepts.",
    429: "Raise the rate limit or quota at the provider, or send less.",
}
_FAULT = "This is the provider's own trouble; its status page or log says more."
_AWAY: Mapping[type[StenoError], str] = {
    UpstreamUnreachable: "Check the upstream's base URL and whether the provider is running; `steno doctor` tries it.",
    UpstreamTimedOut: "Raise the upstream's first_byte_seconds or between_bytes_seconds if its models need longer.",
    UpstreamDisconnected: "The provider closed the connection; its log says why.",
}


def remedy_for_status(status: int) -> str | None:
    """Return the remedy for a provider's refusal."""
    return _FAULT if status >= 500 else _STATUSES.get(status)


def remedy_for_error(error: StenoError) -> str | None:
    """Return the remedy for a provider that did not answer."""
    return _AWAY.get(type(error))
