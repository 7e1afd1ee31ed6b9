"""User words: verbatim quotations of the user from summarised or omitted messages. Example of an entry:

    turn 12: My budget is $800. [...] Reply in French only.

If there is not enough room for all words, Steno quotes whole sentences by rank: the conversation's first message, then
sentences that look like instructions, preferences, limits, decisions or facts, the newest first. The rank depends only
on the text and its position, so a fold quotes the same sentences as the folded chunks. Words in `user_words.toml` raise
the rank of a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.chunks import SummaryChunk, UserWords
from app.compaction.view import Conversation, Note, Pruned, View
from app.conversation.authored_text import GAP, authored_text
from app.conversation.messages import Transcript, lazy, own_message
from app.conversation.quoting import fence_of, indented, marked
from app.conversation.wordings import read_wordings
from app.tokens.estimate import Cost, Count

LEAST_ROOM, GAP_TOKENS = 6, 3
"""`LEAST_ROOM`: minimum tokens of room to add a sentence. `GAP_TOKENS`: tokens of an omission mark or a line end."""
FIRST_RANK, WORTH = 40, 4
"""`FIRST_RANK`: rank added to the first sentences of a conversation. `WORTH`: see `fitting_words`."""
MESSAGE_SHARE = 0.25
"""Share of the room that one message gets at most in a first pass. A second pass has no such maximum."""
FIRST_CHARACTERS = 600
"""Sentences within this number of characters at the start of the first message get `FIRST_RANK`."""

HEADING = (
    "[The user said, quoted letter by letter behind the number of the turn; later statements hold over earlier ones:]"
)
CUT = "[...]"

_LONGEST_LIST, _LONGEST_SENTENCE = 500, 600
"""Maximum characters of a list that stays whole, with heading. Characters above which a sentence ranks lower."""
_ITEM = r"[ \t]*(?:[-*•–]|\d{1,2}[.)])[ \t]+"
_LIST = re.compile(rf"^[^\n]{{1,240}}[:：][ \t]*\n(?:[ \t]*\n)?{_ITEM}[^\n]+(?:\n{_ITEM}[^\n]+)*", re.MULTILINE)
_LINE = re.compile(r"(?:[^\n]{55,}(?<![.!?:;。！？…])\n(?=[a-zß-öø-ÿ]))*[^\n]+")
"""Line of text. A long line without an end sign includes the next line, if the next line begins with a small letter."""
_END = re.compile(
    r"[.!?…。！？](?:(?<=[。！？])[。！？]*[”」』）]*|(?<=[.!?…])(?<!\s\d\d\.)(?<![\s(.]\w\.)(?<!\b[A-Z]\w\.)"
    r"(?<!\b(?:Nr|No|vs|ca|zB|eg|ie)\.)(?<!\b(?:Mrs|bzw|etc|Sra|Inc|Ltd)\.)"
    r"[.!?…]*[\"”»')\]*_]*(?=\s|$)(?!\s+[a-zß-öø-ÿ]))"
)
"""End of a sentence. A dot after a short number, a single letter or an abbreviation, or before a small letter, is not
an end. The pattern starts with the set of signs, because this is faster."""

_LABEL = re.compile(r"\W{0,6}([^\W\d_][\w'’/& -]{1,40})[:：](?![/\d])\s*(?=\S)")
_AMOUNT = re.compile(
    r"[$€£¥₹]\s?\d|\d[\d.,']*\s?(?:[$€£¥%₹元円万]|(?:usd|eur|chf|gbp|jpy|dollars?|euros?|francs?|percent|prozent"
    r"|hours?|days?|weeks?|months?|years?|minutes?|people|stunden|tagen?|wochen|jours|heures|días|horas|giorni)\b)",
    re.IGNORECASE,
)
_DATE = re.compile(r"\b\d{1,4}[-/.]\d{1,2}(?:[-/.]\d{1,4})?\b|\b\d{1,2}:\d\d\b|\b\d{1,2}\s?[AaPp][Mm]\b|\d[月日時]")
_IDENTIFIER = re.compile(r"`|@\w|\w://|\b(?=\w*\d)(?=\w*[A-Za-z])\w{3,}\b|\w[-_/.]\w*\d|\b[A-Z]{2,}\b")
_NAME = re.compile(r"[A-ZÀ-Ý](?<=[a-zß-öø-ÿ,;] .)[a-zß-öø-ÿ]+")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_FIRST = re.compile(r"(?:^|[,;:.–—] )\W*(?:(?:please|bitte|por favor|per favore|veuillez)\W+)?([^\W_]+)")
_DENSE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
"""Letters of languages with few or no spaces between words."""

AROUND, TURN_TOKENS = 60, 6
"""`AROUND`: tokens of the note's heading and tags. `TURN_TOKENS`: tokens of the turn's number before an entry."""


class _Unit(Struct, frozen=True):
    """Sentence of an entry, or list with its heading."""

    entry: int
    start: int
    stop: int
    rank: int


@cache
def _words_of(name: str) -> tuple[frozenset[str], tuple[str, ...]]:
    words = " ".join(read_wordings(__package__, "user_words.toml")[name]).split()
    dense = tuple(filter(_DENSE.match, words))
    return frozenset(words).difference(dense), dense


def _has(name: str, words: AbstractSet[str], text: str) -> bool:
    plain, dense = _words_of(name)
    return not plain.isdisjoint(words) or any(map(text.__contains__, dense))


def own_entries(transcript: Transcript, start: int, stop: int) -> list[tuple[int, UserWords]]:
    """Return the user's words in the messages from `start` to before `stop`, each with the message's position."""
    entries = []
    for index, pieces in authored_text(transcript.messages, start, stop):
        text = f" {CUT} ".join(piece.strip() for piece in pieces if piece.strip(GAP).strip())
        if text := f" {CUT} ".join(filter(None, map(str.strip, text.split(GAP)))):
            entries.append((index, UserWords(transcript.turn_at(index + 1), text)))
    return entries


def held_tokens(chunks: Iterable[SummaryChunk]) -> int:
    return sum(chunk.user_words_tokens for chunk in chunks)


def quote_user_words(entries: Iterable[UserWords], fence: str) -> str:
    lines = [*map(line_of, entries)]
    return f"{HEADING}\n{marked('words', chr(10).join(lines), fence)}" if lines else ""


def line_of(entry: UserWords) -> str:
    """Return the entry as text, with all lines but the first indented."""
    text = indented(entry.text)
    return text if entry.turn is None else f"turn {entry.turn}: {text}"


def fitting_words(entries: Sequence[UserWords], room: int, wide: int, count: Count) -> tuple[UserWords, ...]:
    """Return the entries if they fit into `room` tokens. Otherwise keep the best sentences within `room`. Sentences
    with a rank of at least `WORTH` may fill `wide` tokens. Of entries with the same text, keep only the last."""
    newest = dict.fromkeys(reversed([entry.text for entry in entries]))
    entries = [entry for entry in reversed(entries) if newest.pop(entry.text, entry) is None][::-1]
    left = room
    for entry in entries:
        left -= count(line_of(entry)) + 1
        if left < 0:
            break
    else:
        return tuple(entries)
    units = [unit for place, entry in enumerate(entries) for unit in _units(place, entry)]
    by_rank = sorted(range(len(units)), key=lambda place: (-units[place].rank, -place))
    chosen: dict[int, list[_Unit]] = {}
    used: dict[int, int] = {}
    left = wide = max(room, wide)
    for share in (MESSAGE_SHARE, 1.0):
        for unit in map(units.__getitem__, by_rank):
            if left < LEAST_ROOM or (unit.rank < WORTH and left <= wide - room):
                break
            if unit in chosen.get(unit.entry, ()):
                continue
            entry = entries[unit.entry]
            tokens = count(entry.text[unit.start : unit.stop]) + (GAP_TOKENS if unit.stop < len(entry.text) else 0)
            tokens += 0 if unit.entry in used else count(line_of(replace(entry, text=""))) + 1
            if tokens <= left and (unit.entry not in used or used[unit.entry] + tokens <= share * wide):
                chosen.setdefault(unit.entry, []).append(unit)
                used[unit.entry] = used.get(unit.entry, 0) + tokens
                left -= tokens
    return tuple(_cut_to(entries[place], kept) for place, kept in sorted(chosen.items()))


def _cut_to(entry: UserWords, kept: Iterable[_Unit]) -> UserWords:
    text, shown, end = entry.text, "", 0
    for unit in sorted(kept, key=lambda unit: unit.start):
        between = text[end : unit.start]
        shown += (f" {CUT} " if shown else f"{CUT} ") if between.strip() else between
        shown += text[unit.start : unit.stop]
        end = unit.stop
    return replace(entry, text=f"{shown} {CUT}" if text[end:].strip() else shown)


def _units(place: int, entry: UserWords) -> Iterator[_Unit]:
    text, is_first = entry.text, place == 0 and entry.turn == 1
    for start, stop in _spans(text):
        unit = text[start:stop]
        rank = 2 * _rank(unit) + (start == 0)
        if is_first and stop <= FIRST_CHARACTERS:
            rank += FIRST_RANK
        yield _Unit(place, start, stop, rank)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each sentence or list. Skip omission marks from earlier cuts."""
    begin = 0
    for part in text.split(CUT):
        place, end = begin, begin + len(part)
        for listed in _LIST.finditer(text, place, end):
            if listed.end() - listed.start() <= _LONGEST_LIST:
                yield from _sentences(text, begin, listed.start())
                yield listed.span()
                begin = listed.end()
        yield from _sentences(text, begin, end)
        begin = end + len(CUT)


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for line in _LINE.finditer(text, start, end):
        begin = line.start()
        for stop in (*(found.end() for found in _END.finditer(text, begin, line.end())), line.end()):
            if sentence := text[begin:stop].strip():
                begin = text.index(sentence[0], begin)
                yield begin, begin + len(sentence)
            begin = stop


def _rank(text: str) -> int:
    """Return the rank of a sentence: high for instructions, limits and decisions, lower for facts, lowest otherwise."""
    plain = text.replace("’", "'")
    lower = plain.lower()
    words = frozenset(_WORD.findall(lower))
    orders = _has("orders", words, lower)
    first = any(verb in _words_of("imperatives")[0] for verb in _FIRST.findall(lower))
    label = _LABEL.match(plain) is not None
    counts = any(map(str.isdigit, plain))
    dated = (counts and _DATE.search(plain) is not None) or _has("times", words, lower)
    facts = 2 * dated + counts + 2 * (counts and _AMOUNT.search(plain) is not None)
    facts += (_IDENTIFIER.search(plain) is not None) + (
        _NAME.search(plain) is not None or _DENSE.search(plain) is not None
    )
    rank = 4 * label + 3 * orders + 2 * first + min(4, facts) + _has("own", words, lower)
    return rank - 2 * plain.rstrip(" \"'”»)*_").endswith(("?", "？")) - 2 * (len(text) > _LONGEST_SENTENCE)


class OmittedWords:
    """Source of the user's words in omitted messages. A note after the stub quotes them."""

    def __init__(self, conversation: Conversation, room: int, count: Count) -> None:
        self._conversation = conversation
        self._room = room
        self._count = count

    def tokens_of(self, index: int) -> int:
        return self._count(self._entries[index].text) + TURN_TOKENS if index in self._entries else 0

    def room_for(self, tokens: int) -> int:
        return AROUND + min(tokens, self._room) if tokens else 0

    def text(self, out: AbstractSet[int], room: int) -> str:
        """Return the note of the user's words in the messages at `out`, within `room` tokens; empty without words."""
        said = [self._entries[index] for index in sorted(out) if index in self._entries]
        most = min(self._room, room - AROUND)
        kept = fitting_words(said, most, most, self._count)
        return quote_user_words(kept, fence_of(self._conversation.chain[max(out) + 1])) if kept else ""

    @lazy
    def _entries(self) -> dict[int, UserWords]:
        transcript = self._conversation.transcript
        return dict(own_entries(transcript, 0, len(transcript)))


def with_words(view: View, words: OmittedWords, limit: int, cost: Cost) -> View:
    """Return the view with the user's words of omitted messages after the stub, as far as they fit. Without such
    words, return the same view. This stage is the last, so that the words never make a payload too large."""
    stub = next((part for part in view.parts if isinstance(part, Note) and part.kind == "stub"), None)
    pruned = (part for part in view.parts if isinstance(part, Pruned) and part.by == "pruned")
    out = frozenset(index for part in pruned for index in range(part.start, part.stop))
    if stub is None or not (text := words.text(out, limit - view.tokens)):
        return view
    note = Note("user_words", text, cost(own_message(text)))
    tokens = view.tokens + note.tokens
    place = view.parts.index(stub) + 1
    parts = (*view.parts[:place], note, *view.parts[place:])
    return replace(view, parts=parts, tokens=tokens) if tokens <= limit else view
