"""Thinking that a provider signed, and which of it a changed view sends.

Some providers sign a thought over all that stood before it, and refuse it behind anything else, such as a summary. So:

1. A changed view leaves out the thinking of finished turns. Every provider takes that.
2. The turn under way keeps its own: while a model is to think, providers demand it there.
3. Where that was refused, because something before it changed in the middle of the turn, nothing of the turn up to the
   refused request is sent from then on (`Request.thinking_from`); what was thought later stands behind the new prefix.
4. A model that refused thinking once (`Request.binds_thinking`) gets none behind what a stage shortens or leaves out
   anew for each request of a turn, and none of the turn behind a summary or a mask that was just made: it never stands
   behind the same prefix again.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from app.compaction.select import whole
from app.compaction.view import Alteration, Altered, Carried, Conversation, Pinned, Pruned, Verbatim, View
from app.conversation.messages import Kind
from app.tokens.estimate import Cost

ANEW: frozenset[Alteration] = frozenset({"trimmed", "cleared", "shortened", "faded", "truncated"})
"""Stages that depend on all that was said so far: the next request of a turn has other texts in their place."""


def current_turn(conversation: Conversation) -> int:
    """Position of the message that begins the turn under way, as a provider counts turns; -1 without one.

    A message with results goes on with a turn, whatever else stands in it.
    """
    messages = conversation.transcript.messages
    users = (i for i in reversed(range(len(messages))) if messages[i].kind is Kind.USER or messages[i].is_result_text)
    return next((i for i in users if not messages[i].answers), -1)


def without_thinking(
    conversation: Conversation, view: View | None, start: int, cost: Cost, *, is_bound: bool = False
) -> View | None:
    """The view without the thinking of the messages before `start`; itself where it sends none of it. None is the
    history as it came. `is_bound`: also without the thinking behind what will not be the same in the next request."""
    changed, messages = view or whole(conversation), conversation.transcript.messages
    stop = _first_made_anew(conversation, changed) if is_bound else len(messages)
    sent = (i for i in _sent(changed) if messages[i].signed_thinking)
    left_out = {i for i in sent if i < start or i > stop} - changed.without_thinking
    if not left_out:
        return view
    saved = sum(cost(messages[i]) - cost(replace(messages[i], thoughts=())) for i in left_out)
    return replace(changed, without_thinking=changed.without_thinking | left_out, tokens=changed.tokens - saved)


def turn_digest(conversation: Conversation) -> bytes | None:
    """Digest of the history up to the beginning of the turn under way; None for one that holds no signed thinking."""
    return conversation.chain[current_turn(conversation) + 1] if conversation.history.holds_signed_thinking else None


def lacks_current_thinking(conversation: Conversation, view: View | None) -> bool:
    """Whether a view leaves out thinking of the turn under way."""
    return view is not None and max(view.without_thinking, default=-1) > current_turn(conversation)


def sent_again_from(conversation: Conversation, view: View | None) -> int:
    """Position from which on the requests that follow this view can send the turn's thinking; 0 for all of it. What was
    left out stays so, and the answer to a view that changes with every request is bound to what is not sent again."""
    messages = len(conversation.transcript)
    if view is not None and _first_made_anew(conversation, view) < messages:
        return messages + 1
    return max(view.without_thinking) + 1 if view and lacks_current_thinking(conversation, view) else 0


def _first_made_anew(conversation: Conversation, view: View) -> int:
    """Position of the first message that the next request of the turn may send otherwise; that of the end without one.

    Whole turns that are left out stay so until another turn begins.
    """
    turns = conversation.transcript.turn_starts
    for part in view.parts:
        match part:
            case Altered(index, by=by) if by in ANEW:
                return index
            case Pruned(start, stop, "pruned") if stop not in turns:
                return start
            case _:
                pass
    return len(conversation.transcript)


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
