"""Missing paths: whether a refusal says that there is no such path, and not that something named in it is missing."""

from __future__ import annotations

import re
from typing import Any

from app.formats.refusals import decoded

STATUSES = frozenset({404, 405, 501})
_NO_PATH = re.compile(
    r"(the )?(requested )?(\d{3} )?(page|file|path|route|url|uri|endpoint|resource)?( was)? ?not found\.?"
    r"|method not allowed|not implemented"
    r"|.*\b(invalid|unknown|unrecognized|unsupported|unexpected)( request| api)? (url|path|route|endpoint)\b.*"
    r"|.*\bno (such )?(url|path|route|endpoint|handler)\b.*"
    r"|.*\bcannot post /.*"
    r"|.*\b(url|path|route|endpoint)\b.*\b(not found|does not exist|is not supported|not supported)\b.*",
    re.IGNORECASE | re.DOTALL,
)
"""Answers of servers about a path they do not have. All else names something: a model, a deployment, an answer's id."""
LONGEST_MESSAGE = 1_000


def says_no_such_path(status: int, body: bytes) -> bool:
    """`body`: its beginning is enough, where it is not JSON."""
    if status not in STATUSES:
        return False
    content = decoded(body)
    if isinstance(content, str):
        return "model" not in content.lower()  # A web server's own page.
    return isinstance(content, dict) and _NO_PATH.fullmatch(_message(content)[:LONGEST_MESSAGE].strip()) is not None


def _message(content: dict[str, Any]) -> str:
    error = content.get("error")
    inner = error if isinstance(error, dict) else content
    said = inner.get("message") or inner.get("detail") or error
    return said if isinstance(said, str) else ""
