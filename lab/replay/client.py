"""The client: posts a request of any format, and reads whether its answer is whole and what it says of the context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec

from lab.formats.format import ReplayFormat, events_of, whole_of

ANSWER_SECONDS = 600.0
LONGEST_ERROR = 300
"""Characters of an error's body that a failure quotes."""


@dataclass(frozen=True, slots=True)
class Answer:
    sent: bytes
    failure: str | None = None
    """Reason why the client got no answer."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Members of the answer about the context."""


def ask(
    http: httpx2.Client,
    written: ReplayFormat,
    url: str,
    api_key: str,
    model: str,
    body: Mapping[str, Any],
    stream: bool,
) -> Answer:
    """`url` has no version. Times out after `ANSWER_SECONDS` without a byte."""
    path, members = written.posted(model, stream)
    sent = msgspec.json.encode({**members, **body})
    headers = {"content-type": "application/json", **written.key_headers(api_key)}
    try:
        answer = http.post(f"{url}{path}", content=sent, headers=headers, timeout=ANSWER_SECONDS)
    except httpx2.HTTPError as error:
        return Answer(sent, f"The client got an error: {error!r}")
    if answer.status_code >= 300:
        return Answer(sent, f"The client got an error: {answer.status_code} {answer.text[:LONGEST_ERROR]}")
    events = events_of(answer.content) or [whole_of(answer.content)]
    holders = (holder for event in events for holder in (event, event.get("response") or {}))
    context: Mapping[str, Any] = next((holder["context"] for holder in holders if holder.get("context")), {})
    is_whole = written.answered(answer.content) is not None
    return Answer(sent, None if is_whole else "The answer ended without a reason to finish.", context)
