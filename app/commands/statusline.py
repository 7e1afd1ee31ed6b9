"""Line about a session of Claude Code that `steno statusline` prints: what Steno did to the session that runs it.

Claude Code starts it after each answer, with a JSON object on standard input, and shows what it prints. So it has to be
quick, and where there is nothing to say it says little: an error would stand in the user's terminal all the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

USUAL_URL = "http://127.0.0.1:8080"
ANSWER_SECONDS = 2.0
RECORDS = 20
"""Number of calls searched for the latest one to the session's own model: others write titles and the like."""


def status_line(given: bytes, environment: Mapping[str, str], url: str | None = None) -> str:
    """Return the line to show; empty if `given` names no session, or if the server that answers is no Steno.

    Asks with the key that Claude Code takes from the same environment: a session belongs to whoever holds its key.
    """
    try:
        said = json.loads(given)
        session, model = said["session_id"], said.get("model", {}).get("id", "")
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""
    address = urlsplit(url or environment.get("ANTHROPIC_BASE_URL") or USUAL_URL)
    try:
        status, answer = _ask(address.scheme, address.netloc, str(session), keys_in(environment))
    except (OSError, HTTPException):
        return f"Steno does not answer at {address.netloc}"
    except ValueError:
        return ""
    if status != 200:
        return _REFUSED.get(status, "")
    # A window of 1 M is asked for by a suffix of the name, which is not sent: claude-opus-4-8[1m].
    return ", ".join(_parts(answer, str(model).partition("[")[0]))


_REFUSED = {
    401: "Steno: wants the key of this session (ANTHROPIC_API_KEY)",
    404: "Steno: nothing of this session under this key",
}


def keys_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Headers with the keys that Claude Code sends."""
    headers = {}
    if key := environment.get("ANTHROPIC_API_KEY"):
        headers["x-api-key"] = key
    if token := environment.get("ANTHROPIC_AUTH_TOKEN"):
        headers["authorization"] = f"Bearer {token}"
    return headers


def _ask(scheme: str, address: str, session: str, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Return status and body of the session's usage. Raises `OSError`, `HTTPException` and `ValueError`."""
    kind = HTTPSConnection if scheme == "https" else HTTPConnection
    connection = kind(address, timeout=ANSWER_SECONDS)
    try:
        connection.request(
            "GET", f"/context/conversations/{quote(session, safe='')}/usage?limit={RECORDS}", None, headers
        )
        answered = connection.getresponse()
        body = json.loads(answered.read())
    finally:
        connection.close()
    if not isinstance(body, dict):
        raise ValueError("not an object")  # noqa: TRY004 - as for what is no JSON
    return answered.status, body


def _parts(usage: Mapping[str, Any], model: str) -> Iterator[str]:
    counted = [
        each for each in usage["data"] if each["purpose"] == "message" and each["tokens"]["estimated"] is not None
    ]
    latest = next((each for each in counted if each["model"] == model), counted[0] if counted else None)
    if latest is None:
        yield "Steno: nothing counted yet"
        return
    tokens = latest["tokens"]
    came, forwarded, trigger = tokens["estimated"], tokens["forwarded"], tokens["trigger"]
    if forwarded == came:
        yield f"Steno: {_short(came)} tokens, forwarded whole"
    else:
        yield f"Steno: {_short(forwarded)} of {_short(came)} tokens forwarded"
    if saved := usage["totals"]["saved"]:
        yield f"{_short(saved)} saved in this session"
    if latest["reason"]:
        yield latest["reason"]
    if trigger is not None:
        room = trigger - forwarded
        yield f"compacts in about {_short(room)} tokens" if room > 0 else "compacts next"


def _short(tokens: int) -> str:
    """Write a number of tokens with three or four digits."""
    if tokens < 1_000:
        return str(tokens)
    return f"{tokens / 1_000:.1f}k" if tokens < 999_950 else f"{tokens / 1_000_000:.1f}M"
