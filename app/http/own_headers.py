"""Headers of Steno's own, `x-context-*`: the one place where their names stand. None goes to a provider but `CALL`."""

PREFIX = b"x-context-"

# What a client asks for.
CONVERSATION_ID = b"x-context-conversation-id"
"""Name of the conversation, percent-encoded. Answers have it, too."""
COMPACTION = b"x-context-compaction"
PRESET = b"x-context-preset"
RECALL = b"x-context-recall"
EVENTS = b"x-context-events"

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
