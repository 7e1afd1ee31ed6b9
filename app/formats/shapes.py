"""Shapes: whether a provider's refusal says that messages do not stand as its format demands.

What is put together from a view is to be acceptable wherever the client's own history is: such a refusal of a changed
payload is a fault of Steno's. That thoughts are bound to another prompt is none of it, nor a size.
"""

from __future__ import annotations

import re

from app.formats.refusals import decoded

STATUSES = frozenset({400, 422, 500, 502, 503})
"""Statuses of such refusals: where a chat template refuses the order, llama.cpp answers 500, and proxies wrap that."""
LONGEST_ERROR = 8_000
"""Characters of a refusal that are read."""
_QUOTES = re.compile(r"[\\`'\"\u2018\u2019\u201c\u201d]")
_ROLES = re.compile(
    r"(?:roles?|user|assistant|messages|requests|turns?)\b.{0,40}\balternat(?:e|es|ed|ing|ion)\b"
    r"|\balternat(?:e|es|ed|ing|ion)\b.{0,40}\b(?:roles?|user|assistant)\b"
    r"|(?:consecutive|successive) (?:user|assistant|messages?)\b"
    r"|unexpected role [\w.]{1,20} after role"
    r"|first message must use the user role"
    r"|conversation must start with a user message"
)
"""Refusals of two messages of one role in a row, or of the assistant's at the beginning."""
_SHAPES = re.compile(
    # Calls and their results
    r"tool_use ids were found without tool_result blocks"
    r"|unexpected tool_use_id found in \w{1,40} blocks"
    r"|each tool_use must have a single result"
    r"|tool_use ids must be unique"
    r"|was found without a corresponding \w{1,60} block"
    r"|messages? with role tool must be a response to a prece?eding message"
    r"|tool_calls must be followed by tool messages"
    r"|tool_call_ids did not have response messages"
    r"|insufficient tool messages following tool_calls"
    r"|no tool output found for [\w ]{1,40} call"
    r"|no tool call found for [\w ]{1,40} call output"
    r"|not the same number of function calls and responses"
    r"|function call turn comes immediately after"
    r"|number of function response parts is equal to the number of function call parts"
    r"|number of toolresult blocks at \S{1,80} exceeds the number of tooluse blocks"
    r"|expected toolresult blocks at"
    # Their order
    r"|expected last role"
    r"|conversation must end with a user message"
    r"|at least one message is required"
    r"|a system message must (?:directly follow|be last|be at the)"
    r"|system message must be at the beginning"
    # What they hold
    r"|text content blocks must (?:be non-empty|contain non-whitespace)"
    r"|all messages must have non-empty content"
    r"|final assistant content cannot end with trailing whitespace"
    r"|a maximum of \d{1,2} blocks with cache_control may be provided"
    r"|cache_control block must not come after a ttl"
    # Thoughts
    r"|thinking or redacted_thinking blocks in the latest assistant message cannot be modified"
    r"|expected thinking or redacted_thinking, but found"
    r"|final block in an assistant message cannot be thinking"
    r"|provided without its required [\w ]{1,40} item"
    r"|duplicate item found with id"
)


def refused_shape(status: int, body: bytes, *, first_frame: bool = False) -> str | None:
    """The provider's words for what is wrong with the shape; None where it refused something else.

    `first_frame`: the error came as the first frame of a stream that began with status 200.
    """
    if status not in STATUSES and not first_frame:
        return None
    content = decoded(body)
    text = content if isinstance(content, str) else body.decode("utf-8", "replace")
    words = " ".join(_QUOTES.sub("", text[:LONGEST_ERROR].lower()).split())
    found = _ROLES.search(words) or _SHAPES.search(words)
    return found[0] if found else None


def demands_alternation(said: str) -> bool:
    """Whether these words of a refusal, as `refused_shape` returns them, demand that roles alternate."""
    return _ROLES.fullmatch(said) is not None
