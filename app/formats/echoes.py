"""Echoes: whether a number in a provider's error may be the client's own, because the error quotes the request.

Numbers are compared by value, however they are written: with leading zeros, separators, escapes, other scripts' digits,
as 1e3 or 128k. An error may also quote words and change the number in them, so the words beside it are looked for too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from app.formats.surrogates import decoded

WORDS = 3
"""Number of words before or behind the number that, with a number beside them in the request as well, are no
coincidence."""
MOST_PLACES = 8
"""An error that gives its number more often than that is not looked into any further: it may quote anything."""
PIECE = 65_536
"""Characters of a request that are searched at once: a search keeps everybody else from the interpreter."""
LONGEST_FOUND = 1_000
"""Characters by which the pieces overlap."""
LONGEST_COMPARED = 1 << 20
"""Bytes of a request that are compared with an error; nothing is learnt of one that is longer."""

_ESCAPED = re.compile(r"(?:\\u00|\\x|&#x0{0,4}|%)3([0-9]);?|&#0{0,4}(4[89]|5[0-7]);?")
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_SEPARATOR = re.compile(r"(?<=[0-9])[,_'](?=[0-9]{3}(?![0-9]))")
_UNITS = (("k", 1_000), ("k", 1_024), ("thousand", 1_000), ("m", 10**6), ("m", 1 << 20), ("million", 10**6))
_WORD = re.compile(r"[^\W_]+")
_BESIDE = r"[\W_]{1,20}"


def echoed_in(error: str, number: int, body: bytes) -> bool:
    """Whether a number that an error gives may be the client's own; True also if that cannot be known."""
    if len(body) > LONGEST_COMPARED:
        return True
    try:
        written = msgspec.json.encode(decoded(body, msgspec.json.decode)).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return echoes(error, number, written)


def echoes(error: str, number: int, request: str) -> bool:
    """Whether the request holds that number, or the words that stand beside it in the error."""
    beside = set(islice(_beside(_plain(error), number), 2 * MOST_PLACES + 1))
    if len(beside) > 2 * MOST_PLACES:
        return True
    patterns = [re.compile(pattern) for pattern in (_written(number), *beside)]
    return any(pattern.search(piece) for piece in _pieces(_plain(request)) for pattern in patterns)


def _pieces(text: str) -> Iterator[str]:
    """A number that a piece begins in the middle of may be taken for another one: then the request counts as quoted."""
    return (text[start : start + PIECE + LONGEST_FOUND] for start in range(0, len(text), PIECE))


def _plain(text: str) -> str:
    text = text.casefold()
    if "\\" in text or "&#" in text or "%" in text:
        text = _ESCAPED.sub(lambda found: found[1] or chr(int(found[2])), text)
    return text if text.isascii() else _FOREIGN_DIGIT.sub(lambda found: str(int(found[0])), text)


def _written(number: int) -> str:
    return rf"(?<![0-9])0*(?:{'|'.join(_forms(number))})"


def _forms(number: int) -> Iterator[str]:
    """Patterns of how the number may be written."""
    digits = str(number)
    yield "[^0-9a-z]{0,3}".join(digits) + "(?![0-9])"
    for power in range(1, len(digits) + 1):
        yield rf"{_decimal(digits[:-power], digits[-power:])}e\+?0*{power}(?![0-9])"
    for unit, scale in _UNITS:
        whole, rest = divmod(number * 1_000, scale)
        if not rest:  # To three places.
            thousandths = f"{whole:04}"
            yield rf"{_decimal(thousandths[:-3], thousandths[-3:])} ?{unit}\b"


def _decimal(whole: str, rest: str) -> str:
    rest = rest.rstrip("0")
    return (whole or "0") + (rf"[.,]{rest}0*" if rest else "(?:[.,]0+)?")


def _beside(error: str, number: int) -> Iterator[str]:
    """Patterns of the words before and behind each place where the number stands, beside any number at all."""
    words = _WORD.findall(_SEPARATOR.sub("", error))
    for place, word in enumerate(words):
        if not word.isdecimal() or word.lstrip("0") != str(number):
            continue
        before, behind = words[max(0, place - WORDS) : place], words[place + 1 : place + 1 + WORDS]
        if len(before) == WORDS:
            yield _BESIDE.join((*map(re.escape, before), r"[0-9]"))
        if len(behind) == WORDS:
            yield _BESIDE.join((r"[0-9]", *map(re.escape, behind))) + r"(?![^\W_])"
