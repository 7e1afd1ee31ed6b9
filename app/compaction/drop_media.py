"""Lighten: pictures, sounds and files give way where a request has more bytes than its provider takes.

The oldest go first, of turns that are over; and of results those that the assistant has gone on from. What is left of
one is what a mask leaves. It follows from the messages of the view alone, read from the first one on: when they exceed
the bound, as many give way as bring them under the target. So a view that grows keeps its bytes until that is due
again, and nothing has to be stored.
"""

from __future__ import annotations

from msgspec.structs import replace

from app.compaction.alter import append, standing
from app.compaction.mask import LONGEST_ADDRESS, Mask, MaskPolicy, Masks
from app.compaction.view import Altered, Conversation, Part, View

TARGET_SHARE = 0.6
"""Share of the bound that messages are brought under: each time the provider's prompt cache breaks."""


def exceeds(conversation: Conversation, settings: MaskPolicy, most: int) -> bool:
    """Whether something has to give way for the messages to have at most so many bytes."""
    return bool(most) and settings.shapes and conversation.holds_media and conversation.message_bytes > most


def lighten(conversation: Conversation, view: View, masks: Masks, most: int) -> View:
    """The view with as much of its media in words as its messages must lose to have at most so many bytes."""
    gone = _give_way(conversation, view, masks, most)
    if not gone:
        return view
    parts: list[Part] = []
    tokens = view.tokens
    for index, part in standing(view):
        mask = gone.get(index) if index is not None else None
        if index is None or mask is None:
            append(parts, part)
            continue
        parts.append(Altered(index, mask.texts, mask.tokens, "masked", media=mask.media))
        tokens -= conversation.transcript.tokens_of(index) - mask.tokens
    return replace(view, parts=tuple(parts), tokens=tokens)


def _give_way(conversation: Conversation, view: View, masks: Masks, most: int) -> dict[int, Mask]:
    messages = conversation.transcript.messages
    size = sum(len(message.raw) for message in conversation.instructions)
    # Message, bytes of its media, length of the history from which they may go, and what is left.
    waiting: list[tuple[int, int, int, Mask]] = []
    gone: dict[int, Mask] = {}
    for index, part in standing(view):
        if index is None or isinstance(part, Altered):
            continue
        size += len(messages[index].raw)
        freed = sum(media.size for media in messages[index].media)
        if freed > LONGEST_ADDRESS and (found := masks.in_words(index)) is not None:
            waiting.append((index, freed, *found))
        if size <= most:
            continue
        for each in tuple(waiting):
            place, freed, at, mask = each
            if size > TARGET_SHARE * most and at <= index + 1:
                gone[place] = mask
                waiting.remove(each)
                size -= freed
    return gone
