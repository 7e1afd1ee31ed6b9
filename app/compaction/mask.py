"""Masks: short texts in place of tool results that the assistant has used. A masked result stays masked.

A boundary is a position in the history. Steno masks a tool result if the boundary comes after one of these:

- the next text of the assistant, which shows that the model has read the result;
- the next assistant message, even without text, and then ten more results.

New messages change no mask until the boundary moves. So between two moves, each message keeps its bytes in the payload.

If a request has more bytes than its provider accepts, `drop_media` also masks images, audio and files, the oldest
first. It masks media of finished turns, and of tool results before an assistant message. Steno does not store these
masks. While the history grows, the masks stay the same until Steno must mask more media.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Budget
from app.compaction.result_excerpts import SHAPES_VERSION, shaped, shorten
from app.compaction.view import Altered, Conversation, View, standing, with_changes
from app.conversation.messages import Kind, Media, Message, Transcript, lazy, tool_name
from app.conversation.quoting import word
from app.tokens.estimate import Cost

BYTES_OF_BASE64 = 0.75
"""Bytes per base64 character."""
MEDIA_TARGET_SHARE = 0.6
"""Share of the byte limit to which Steno shrinks the messages if it must mask media. The share is low, so that masks
change rarely: each change breaks the provider's prompt cache."""
LONGEST_ADDRESS = 1_000
"""A media part with more characters than this contains the media itself. A shorter part may be only a URL."""
MASKED_MEDIA = frozenset({"image", "audio", "file"})
_SENT = frozenset({Kind.USER, Kind.RESULT})

MINIMUM_GAIN = 0.10
"""Minimum share of the view that a move of the boundary must free. Each move breaks the provider's prompt cache."""


class MaskPolicy(Struct, frozen=True):
    characters: int = 300
    """Maximum characters of a masked text, without the notice that states the size of the original."""
    shapes: bool = True
    """True to shorten texts by `result_excerpts.shaped`; False to keep their start (70 % of `characters`) and end."""
    deny: tuple[str, ...] = ()
    """Glob patterns of the tools whose results are never masked."""

    pressure: float | None = None
    """Share of the limit. If the messages without the instructions reach this share, Steno masks all maskable results
    before the last unit (see `Transcript`). None: set a mask only if it makes a summary unnecessary."""
    later: int | None = 10
    """Number of later results after which a result is masked even without assistant text; None to require text."""

    @property
    def key(self) -> str:
        """Digest of the settings. A boundary is valid only for the settings with which it was set."""
        # The keys of stored boundaries contain the empty tuple. Without it, these boundaries would become invalid.
        how: tuple[object, ...] = (self.characters, (), self.deny)
        how += () if self.later is None else (self.later,)
        how += (SHAPES_VERSION, "shapes") if self.shapes else ()
        written = repr(how).encode("utf-8", "surrogatepass")
        return blake2b(written, digest_size=8, person=b"steno-mask").hexdigest()


def is_allowed(tool: str, deny: Sequence[str]) -> bool:
    return not any(fnmatchcase(tool, pattern) for pattern in deny)


class MaskBoundary(Struct, frozen=True, order=True):
    position: int
    start: int
    """Number of messages that summaries covered when the boundary was set. Views other than `bare_view` use this
    boundary only if their summaries cover at least as many messages: otherwise the prompt's prefix would change."""


class Masks:
    def __init__(
        self, transcript: Transcript, settings: MaskPolicy, cost: Cost, untouchable: Collection[int] = ()
    ) -> None:
        """`untouchable`: positions of messages that are not masked, such as pinned messages."""
        self._transcript = transcript
        self._untouchable = untouchable
        self._settings = settings
        self._cost = cost
        self._saved: dict[int, tuple[int, ...]] = {}
        """`_saved[start][boundary]`: tokens that the masks from `start` up to `boundary` save."""

    def between(self, start: int, boundary: int) -> Iterator[tuple[int, Altered]]:
        for index in range(start, boundary):
            if self._used_at.get(index, boundary + 1) <= boundary:
                yield index, self._masks[index]

    def in_words(self, index: int) -> tuple[int, Altered] | None:
        """Return a pair: the length that the history must reach before `drop_media` may use the mask, and the mask of
        the message's media. Return None if the message has no maskable media."""
        mask = self._masks.get(index)
        if mask is None or not mask.media:
            return None
        messages, at = self._transcript.messages, self._next_turn(index)
        if messages[index].kind is Kind.RESULT:
            later = (place + 1 for place in range(index + 1, at - 1) if messages[place].kind is Kind.ASSISTANT)
            at = next(later, at)
        return at, mask

    def saved(self, start: int, boundary: int) -> int:
        if start not in self._saved:
            more = [0] * (len(self._transcript) + 2)
            for index, at in self._used_at.items():
                if index >= start:
                    more[at] += self._transcript.tokens_of(index) - self._masks[index].tokens
            self._saved[start] = tuple(accumulate(more))
        return self._saved[start][boundary]

    @lazy
    def _used_at(self) -> dict[int, int]:
        """Map the position of each result to the smallest boundary that masks the result."""
        messages, later, found = self._transcript.messages, self._settings.later, dict[int, int]()
        said = never = len(messages) + 1
        results: list[int] = []  # Positions of the results after the current message, the last one first.
        behind = 0  # Number of these results that follow the assistant's next message.
        for index in reversed(range(len(messages))):
            message = messages[index]
            if message.kind is Kind.ASSISTANT:
                said = index + 1 if any(text.strip() for text in message.texts) else said
                behind = len(results)
            if (mask := self._masks.get(index)) is not None:
                aged = results[behind - later] + 1 if later is not None and behind >= later else never
                # Media stay until the next turn begins, because the current turn may refer to them.
                at = max(said, self._next_turn(index)) if mask.media else min(said, aged)
                if at < never:
                    found[index] = at
            results += [index] * (len(message.answers) or message.is_result_text)  # Once for each call.
        return found

    @lazy
    def _masks(self) -> dict[int, Altered]:
        found: dict[int, Altered] = {}
        for index, message in enumerate(self._transcript.messages):
            is_result = message.kind is Kind.RESULT or bool(message.answers)
            if index in self._untouchable or message.sealed or not (is_result or _may_lose_media(message)):
                continue
            if not is_allowed(tool_name(self._transcript.messages, index), self._settings.deny):
                continue
            mask = self._mask(index)
            if (mask.texts != message.texts or mask.media) and mask.tokens < self._transcript.tokens_of(index):
                found[index] = mask
        return found

    def _next_turn(self, index: int) -> int:
        starts = self._transcript.turn_starts
        after = bisect_right(starts, index)
        return starts[after] + 1 if after < len(starts) else len(self._transcript) + 1

    def _mask(self, index: int) -> Altered:
        message = self._transcript.messages[index]
        places, call = message.result_places, self._transcript.call_text(index)
        texts = tuple(self._left(text, call) if place in places else text for place, text in enumerate(message.texts))
        # Count a few tokens too many for the result of one of several parallel calls.
        name = tool_name(self._transcript.messages, index) if message.kind is Kind.RESULT else message.name
        media = tuple(map(in_words, message.media)) if self._settings.shapes and _may_lose_media(message) else ()
        left = replace(message, texts=(*texts, *media), media=() if media else message.media, name=name)
        return Altered(index, texts, self._cost(left), "masked", media=media)

    def _left(self, text: str, call: str) -> str:
        longest = self._settings.characters
        return shaped(text, call, longest) if self._settings.shapes else shorten(text, longest)


def _may_lose_media(message: Message) -> bool:
    """Return True for a user or tool message with media that text may replace: only images, audio and files."""
    replaceable = (media.kind in MASKED_MEDIA and not media.bound for media in message.media)
    return bool(message.media) and message.kind in _SENT and all(replaceable)


def in_words(media: Media) -> str:
    """Return the line that replaces a media part: its kind, size and other known properties."""
    known = [f"{int(media.size * BYTES_OF_BASE64):,} bytes"] if media.size > LONGEST_ADDRESS else []
    if media.width and media.height:
        known.append(f"{media.width} x {media.height}")
    if media.pages:
        known.append(f"{media.pages} pages")
    if media.seconds:
        known.append(f"{media.seconds:.0f} seconds")
    name = f" {word(media.name)}" if media.name else ""
    return f"[{', '.join((f'{media.kind}{name}', *known))}: you have seen it, and it is left out now]"


class Masking(Struct, frozen=True):
    """Masks of a conversation, and its known boundaries, ascending."""

    masks: Masks
    boundaries: tuple[MaskBoundary, ...] = ()

    def usable(self, covered: int) -> list[int]:
        """Return the positions of the boundaries that a view may use if its summaries cover `covered` messages."""
        return [boundary.position for boundary in self.boundaries if boundary.position > covered >= boundary.start]


def plan_mask(
    conversation: Conversation, covered: int, unmasked: int, budget: Budget, masking: Masking, settings: MaskPolicy
) -> MaskBoundary | None:
    """Return the new boundary if it makes a summary unnecessary for now, or if `pressure` is reached; otherwise None.

    `covered`: number of messages that summaries cover. `unmasked`: tokens of the view without masks. The boundary moves
    only until the view meets its target, so that the latest results stay whole. With a `pressure` setting the boundary
    moves to the last unit.
    """
    cuts, last = conversation.transcript.cuts, max(masking.usable(covered), default=covered)
    ahead = cuts[bisect_right(cuts, last) :]
    if not ahead:
        return None

    def masked(position: int) -> int:
        return unmasked - masking.masks.saved(covered, position)

    before = masked(last)
    pressed = settings.pressure is not None and (
        before - conversation.instruction_tokens >= settings.pressure * budget.limit
    )
    enough = bisect_left(ahead, -budget.target, key=lambda position: -masked(position))
    if enough == len(ahead) and not pressed:
        return None
    position = ahead[enough] if settings.pressure is None else ahead[-1]
    if before - masked(position) < max(1, MINIMUM_GAIN * before):
        return None
    return MaskBoundary(position, covered)


def exceeds(conversation: Conversation, settings: MaskPolicy, most: int) -> bool:
    """Return whether Steno must mask media, because the messages have more than `most` bytes. `most` 0: no limit."""
    return bool(most) and settings.shapes and conversation.history.holds_media and conversation.message_bytes > most


def drop_media(conversation: Conversation, view: View, masks: Masks, most: int) -> View:
    """If the view has more than `most` bytes, mask its oldest media until it has `MEDIA_TARGET_SHARE` of `most`."""
    messages = conversation.transcript.messages
    size = sum(len(message.raw) for message in conversation.instructions)
    # For each message with maskable media: bytes of media, number of messages before they may be masked, mask.
    waiting: list[tuple[int, int, Altered]] = []
    gone: dict[int, Altered] = {}
    for index, part in standing(view):
        if index is None or isinstance(part, Altered):
            continue
        size += len(messages[index].raw)
        freed = sum(media.size for media in messages[index].media)
        if freed > LONGEST_ADDRESS and (found := masks.in_words(index)) is not None:
            waiting.append((freed, *found))
        for each in tuple(waiting) if size > most else ():
            freed, at, mask = each
            if size > MEDIA_TARGET_SHARE * most and at <= index + 1:
                gone[mask.index] = mask
                waiting.remove(each)
                size -= freed
    return with_changes(conversation, view, gone.get)
