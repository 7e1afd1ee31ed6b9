"""Sentences of somebody's words, one by one, lists with their headings: letter by letter, and ready for patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from app.core.history.own_words import GAP

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
_DECORATION = "*_¿¡( "
_END = re.compile(r"[.!?…]+[\"”»')\]*_]*(?=\s)|[。！？]+[”」』）]*")
_BEFORE_DOT = re.compile(r"(?:^|[\s(.])(\w+)\.$")
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
        if found[0] != "." or not _is_abbreviated(read[max(start, found.end() - 20) : found.end()]):
            yield found.end()


def _is_abbreviated(before: str) -> bool:
    """Whether the dot at the end of this belongs to its last word."""
    last = _BEFORE_DOT.search(before)
    return last is not None and (len(last[1]) == 1 or last[1].isdigit() or last[1].lower() in _ABBREVIATIONS)


def _sentence(own: str, read: str, start: int, end: int) -> Sentence | None:
    marker = _MARKER.match(read, start, end)
    begin = marker.end() if marker else start
    text = own[begin:end].rstrip()
    if not text or len(text) > LONGEST_SENTENCE or GAP in text:
        return None
    return Sentence(text, read[begin : begin + len(text)].lstrip(_DECORATION))
