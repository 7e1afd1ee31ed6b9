"""Sentences of somebody's words, one by one, lists with their headings: letter by letter, and ready for patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from app.core.history.authored_text import GAP

LONGEST_SENTENCE = 500
"""Characters. What is longer is no rule in a sentence, but a document."""

_HIDDEN = "\ue000"
"""Sign in place of each character of a quotation, so that nothing in it is found and all places stay the same."""
_QUOTATION = re.compile(
    r'(?<!\w)"(?=\S)[^"]*(?<=\S)"(?!\w)|“[^“”]*”|„[^„“”]*[“”]|«[^«»]*»|「[^「」]*」|『[^『』]*』|《[^《》]*》|`[^`\n]*`'
)

_ITEM = r"[ \t]*(?:[-*•–]|\d{1,2}[.)])[ \t]+"
_LISTED = re.compile(rf"^[^\n]{{1,240}}[:：][ \t]*\n(?:[ \t]*\n)?{_ITEM}[^\n]+(?:\n{_ITEM}[^\n]+)*", re.MULTILINE)
_LINES = re.compile(r"(?:[^\n]{55,}(?<![.!?:;。！？…])\n(?=[a-zß-öø-ÿ]))*[^\n]+")
"""A line, and long ones before it whose sentence it goes on with."""
_MARKER = re.compile(r"\s*(?:(?:[-•–—#]+|\*|\d{1,2}[.)])\s+)?")
_DECORATION = re.compile("^[*_¿¡( \u203c\u2600-\u26ff\u2705\u274c\u2753-\u2757\ufe0f\U0001f300-\U0001faff]+")
"""Signs before the first word, pictures among them, but none that terminals or programs write there."""
_EMPHASIS = re.compile(r"(?<!\w)[*_]{1,3}(?=\w)|(?<=[^\s*_])[*_]{1,3}(?!\w)")
_END = re.compile(r"[.!?…]+[\"”»')\]*_]*(?=\s)|[。！？]+[”」』）]*")
_BEFORE_DOT = re.compile(r"(?:^|[\s(.])(\w+)\.$")
_BEFORE_ORDINAL = (
    "ab|als|am|an|auf|beim?|bis|das|dem|den|der|des|die|diese[mnrs]?|eine?[mnr]?|i[mn]|jede[mnrs]?|meine?|oder|seit|und"
    "|unsere?|vo[mnr]|zu[mr]?"
)
_MONTH = "januar|jänner|februar|märz|april|mai|juni|juli|august|september|oktober|november|dezember"
_COUNTED = re.compile(rf"(?<![\w'])(?!(?:{_BEFORE_ORDINAL})\b)[^\W\d_]+[*_]* +[*_]*\d+(?:\.\d+)*\.$", re.IGNORECASE)
"""A number behind the word that it belongs to, such as "option 2.", and not "am 2."."""
_NEXT_WORD = re.compile(rf"\s{{1,4}}(?!(?:{_MONTH})\b)\W{{0,8}}(\w)", re.IGNORECASE)
_ABBREVIATIONS = frozenset(
    "approx bzw ca dr etc ex inkl incl mr mrs ms nr no prof sig sr sra st usw vgl vs".split()  # noqa: SIM905
)
_SAME_SIGN = {ord("’"): "'", ord("ʼ"): "'", ord("\u00a0"): " ", ord("\u202f"): " "}


class Sentence(Struct, frozen=True):
    """A sentence, or a heading with the list under it."""

    text: str
    """Letter by letter."""
    read: str
    """Text without what is quoted in it, for patterns; it begins with a word."""
    items: tuple[Sentence, ...] = ()
    """Items of a list, one by one."""

    @property
    def is_question(self) -> bool:
        return self.read.rstrip(" \"'”»)*_").endswith(("?", "？"))


def sentences_in(pieces: Iterable[str]) -> Iterator[Sentence]:
    """The sentences of these pieces of text, in order, but for those that are too long."""
    for piece in pieces:
        read = _QUOTATION.sub(_hidden, piece).translate(_SAME_SIGN)
        place = 0
        for listed in _LISTED.finditer(read):
            yield from _in_lines(piece, read, place, listed.start())
            yield from _in_list(piece, read, listed.start(), listed.end())
            place = listed.end()
        yield from _in_lines(piece, read, place, len(piece))


def _hidden(quotation: re.Match[str]) -> str:
    return f"{quotation[0][0]}{_HIDDEN * (len(quotation[0]) - 2)}{quotation[0][-1]}"


def _in_list(own: str, read: str, start: int, end: int) -> Iterator[Sentence]:
    """A heading with all that is listed under it; where that is too long, what is listed, one by one."""
    line = read.index("\n", start)
    sentences = [*_in_lines(own, read, start, line)]
    items = tuple(_in_lines(own, read, line, end))
    yield from sentences[:-1]
    for heading in sentences[-1:]:
        whole = own[own.rindex(heading.text, start, line) : end].rstrip()
        if len(whole) <= LONGEST_SENTENCE:
            yield Sentence(whole, heading.read, items)
            return
    yield from items


def _in_lines(own: str, read: str, start: int, end: int) -> Iterator[Sentence]:
    for lines in _LINES.finditer(read, start, end):
        place = lines.start()
        for stop in (*_ends(read, lines.start(), lines.end()), lines.end()):
            sentence = _sentence(own, read, place, stop)
            if sentence is not None:
                yield sentence
            place = stop


def _ends(read: str, start: int, end: int) -> Iterator[int]:
    for found in _END.finditer(read, start, end):
        if found[0] != "." or not _is_abbreviated(read, max(start, found.end() - 40), found.end()):
            yield found.end()


def _is_abbreviated(read: str, start: int, end: int) -> bool:
    """Whether the dot that this ends with belongs to its last word."""
    last = _BEFORE_DOT.search(read[start:end])
    if last is None or (last[1].isdigit() and _is_counted(read, start, end)):
        return False
    return len(last[1]) == 1 or last[1].isdigit() or last[1].lower() in _ABBREVIATIONS


def _is_counted(read: str, start: int, end: int) -> bool:
    """Whether the number before a dot is no ordinal: it belongs to a word before it, and another sentence begins."""
    word = _NEXT_WORD.match(read, end)
    return word is not None and word[1].isupper() and _COUNTED.search(read[start:end]) is not None


def _sentence(own: str, read: str, start: int, end: int) -> Sentence | None:
    marker = _MARKER.match(read, start, end)
    begin = marker.end() if marker else start
    text = own[begin:end].rstrip()
    if not text or len(text) > LONGEST_SENTENCE or GAP in text:
        return None
    return Sentence(text, _DECORATION.sub("", _EMPHASIS.sub("", read[begin : begin + len(text)])))
