"""Headers of Steno's own, `x-context-*`: the one place where their names stand. None goes to a provider but `CALL`."""

from __future__ import annotations

import re
from collections.abc import Iterable

PREFIX = b"x-context-"

# What a client asks for.
CONVERSATION_ID = b"x-context-conversation-id"
"""Name of the conversation, percent-encoded. Answers have it, too."""
COMPACTION = b"x-context-compaction"
PRESET = b"x-context-preset"
RECALL = b"x-context-recall"
EVENTS = b"x-context-events"
COUNT = b"x-context-count"
"""The kind of prompt that a request to count is about."""

# What an answer says.
STATUS = b"x-context-status"
ACTIONS = b"x-context-actions"
REQUEST_ID = b"x-context-request-id"
TOKENS_BEFORE = b"x-context-tokens-before"
TOKENS_AFTER = b"x-context-tokens-after"
WINDOW = b"x-context-window"
REASON = b"x-context-reason"

# What one Steno tells another.
CALL = b"x-context-call"
"""Marks a call of Steno's own, so that another Steno behind this one leaves it alone."""

_REQUEST = re.compile(rb"req_[0-9a-f]{24}")


def are_of_steno(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if another Steno behind this one answered with these headers: it may have done more."""
    for name, value in headers:
        if name == REQUEST_ID:
            return _REQUEST.fullmatch(value) is not None
    return False
