"""Thinking that a provider signed, and which of it a changed view sends.

Some providers sign a thought over all that stood before it, and refuse it behind anything else, such as a summary. So:

1. A changed view leaves out the thinking of finished turns. Every provider takes that.
2. The turn under way keeps its own: while a model is to think, providers demand it there.
3. Where that was refused, because something before it changed in the middle of the turn, nothing of the turn up to the
   refused request is sent from then on (`Request.thinking_from`); what was thought later stands behind the new prefix.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from app.core.history.messages import Kind
from app.core.view.reading import whole
from app.core.view.view import Altered, Carried, Conversation, Pinned, Verbatim, View
from app.tokens.estimate import Cost


def current_turn(conversation: Conversation) -> int:
    """Position of the message that begins the turn under way, as a provider counts turns; -1 without one.

    A message with results goes on with a turn, whatever else stands in it.
    """
    messages = conversation.transcript.messages
    users = (i for i in reversed(range(len(messages))) if messages[i].kind is Kind.USER or messages[i].is_result_text)
    return next((i for i in users if not messages[i].answers), -1)


def without_thinking(conversation: Conversation, view: View | None, start: int, cost: Cost) -> View | None:
    """The view without the thinking of the messages before `start`; itself where it sends none of it. None is the
    history as it came."""
    changed, messages = view or whole(conversation), conversation.transcript.messages
    left_out = {i for i in _sent(changed) if i < start and messages[i].signed_thinking} - changed.without_thinking
    if not left_out:
        return view
    saved = sum(cost(messages[i]) - cost(replace(messages[i], thoughts=())) for i in left_out)
    return replace(changed, without_thinking=changed.without_thinking | left_out, tokens=changed.tokens - saved)


def _sent(view: View) -> Iterator[int]:
    """Positions of the messages that a view sends."""
    for part in view.parts:
        match part:
            case Verbatim(start, stop) | Pinned(start, stop):
                yield from range(start, stop)
            case Carried(index) | Altered(index):
                yield index
            case _:
                pass
