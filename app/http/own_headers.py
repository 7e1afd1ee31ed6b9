"""Names of Steno's own headers, `x-context-*`. Only `CALL` is sent to providers."""

PREFIX = b"x-context-"

# Headers of requests.
CONVERSATION_ID = b"x-context-conversation-id"
"""Header of requests and answers with the conversation's name, percent-encoded."""
COMPACTION = b"x-context-compaction"
PRESET = b"x-context-preset"
RECALL = b"x-context-recall"
EVENTS = b"x-context-events"

# Headers of answers.
STATUS = b"x-context-status"
ACTIONS = b"x-context-actions"
REQUEST_ID = b"x-context-request-id"
TOKENS_BEFORE = b"x-context-tokens-before"
TOKENS_AFTER = b"x-context-tokens-after"
WINDOW = b"x-context-window"
REASON = b"x-context-reason"

# Header between Stenos.
CALL = b"x-context-call"
"""Header that marks a summary call, so that another Steno does not compact it."""
