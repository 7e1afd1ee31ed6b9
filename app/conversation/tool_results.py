"""Tool results: recognition of user messages that contain results as text, and pairing of results with calls.

Some clients write calls and results as text, because their API has no role for results. `authored_text` judges a user
message alone. `History` also considers the previous message. The wordings are in `authored_text.toml`.

Rules for pairing (`CallPairing`):

1. A result answers the call with its id. Of several such calls, the first unanswered call of their latest batch counts.
2. A result without an id, or with an unknown id, answers an unanswered call of the same tool. Some adapters send the
   tool's name as the id.
3. If rule 2 finds no call, a result without an id answers the first unanswered call. A result with an unknown id
   answers the first unanswered call without an id.

A batch is all calls without a result or a user message between them: the model made them at once. Rules 2 and 3 use
only the latest batch. If all its calls have results, a result without an id answers the call of the previous result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from app.conversation.wordings import read_wordings

WORDINGS = read_wordings(__package__, "authored_text.toml")
CALL_CHARACTERS = 4_000
"""Number of characters at the end of an assistant message in which Steno searches for a call."""

_CALL = re.compile("|".join(WORDINGS["calls"]), re.MULTILINE)


class ResultConfidence(Enum):
    NONE = auto()
    POSSIBLE = auto()
    """The message reads like a result, but may contain the user's words."""
    LIKELY = auto()
    """The message has words that users also write. It is a result only if the message before it ends with a call."""
    CERTAIN = auto()
    """The message has words that only programs write."""


def calls_in_text(texts: Sequence[str]) -> bool:
    """Return whether an assistant message ends with a tool call that is written as text."""
    return _CALL.search("\n".join(texts)[-CALL_CHARACTERS:]) is not None


class CallPosition(NamedTuple):
    message: int
    """Index of the message that makes the call."""
    call: int
    """Index of the call among the message's calls."""


class _NamedCall(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


class CallPairing:
    """Pairing of a history's calls and results, added in order."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[CallPosition]] = {}
        """Calls by id, from the latest batch with the id. Steno removes answered calls, but leaves one for each id."""
        self._batch_begins = 0
        """Index of the first message of the latest batch."""
        self._unanswered: dict[CallPosition, _NamedCall] = {}
        """Unanswered calls of the latest batch, in order."""
        self._is_closed = True
        """True if the next call begins a new batch."""
        self._latest: CallPosition | None = None
        """Call of the latest result; None after a message without calls and results."""

    def add_calls(self, message: int, calls: Sequence[_NamedCall]) -> None:
        if self._is_closed:
            self._is_closed, self._batch_begins = False, message
            self._unanswered.clear()
        for place, call in enumerate(calls):
            position = CallPosition(message, place)
            self._unanswered[position] = call
            if not call.id:
                continue
            known = self._by_id.get(call.id)
            if known is not None and known[-1].message >= self._batch_begins:
                known.append(position)
            else:
                self._by_id[call.id] = [position]

    def add_other(self, *, is_assistants: bool) -> None:
        """Add a message without calls or results."""
        self._is_closed = self._is_closed or not is_assistants
        self._latest = None

    def find_call(self, id_: str, name: str) -> CallPosition | None:
        self._is_closed = True
        found = self._find(id_, name)
        if found is not None:
            self._unanswered.pop(found, None)
            self._latest = found
        return found

    def _find(self, id_: str, name: str) -> CallPosition | None:
        if id_ and (known := self._by_id.get(id_)):
            return known.pop(0) if len(known) > 1 else known[0]
        same_name = (position for position, call in self._unanswered.items() if call.name in (name, id_) and call.name)
        if (found := next(same_name, None)) is not None:
            return found
        by_place = (position for position, call in self._unanswered.items() if not (id_ and call.id))
        return next(by_place, None if id_ else self._latest)
