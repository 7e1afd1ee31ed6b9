"""Exact values: ids, paths, links, dates and amounts in a text, recognised by their form.

Passwords, keys and payment card numbers are excluded. Patterns read each run of characters once, and Steno reads a
limited part of a text. So a hostile text takes no longer than other long texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from app.conversation.quoting import MARKS
from app.conversation.secrets import without_secrets
from app.conversation.wordings import read_wordings

LONGEST_VALUE = 120
LONGEST_TEXT = 1 << 16
"""Maximum characters read of one text, half at its start and half at its end."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Characters of scripts without spaces between words. An identifier ends before such a character."""
_LETTER = rf"[^\W{_UNSPACED}]"
_WORDS = re.compile(
    rf"(?:https?|ftp|ssh|git|s3)://[^\s<>\"'`\\^{{}}|{_UNSPACED}]++"
    rf"|[A-Za-z]:\\(?:{_LETTER}|[\\.$~-])++"
    # An escape sequence in JSON, such as a line end.
    r"|\\(?:u[0-9a-fA-F]{4}|.)"
    rf"|(?:{_LETTER}|[~/.$#@+:%-])++",
    re.DOTALL,
)
_MARK = re.compile(rf"</?(?:{'|'.join(MARKS)})(?:\s+[0-9a-f]{{8}})?\s*>", re.IGNORECASE)
"""Tags of Steno's own notes, which a client may send back."""
_AFTER_MEMBER_NAME = ('":', '" :', '\\":')
_LISTS = read_wordings(__package__, "exact_values.toml")
_BLANK = r"[ \u00a0\u202f]"
_NUMBER = r"\d[\d,.']{0,20}+"
_CURRENCY, _UNIT, _MONTH = (f"(?:{_LISTS[name]})" for name in ("currencies", "units", "months"))
_PHRASES = re.compile(
    rf"(?<![\w.])(?:"
    rf"(?P<amount>[-+]?[$€£¥₹]{_BLANK}?{_NUMBER}|{_CURRENCY}{_BLANK}{_NUMBER}"
    rf"|{_NUMBER}{_BLANK}?(?:[€£¥₹]|(?:{_CURRENCY}|{_UNIT})(?!\w)))"
    rf"|(?P<date>{_MONTH}\.?{_BLANK}\d{{1,2}}(?:[a-z]{{2}})?(?:,?{_BLANK}\d{{4}})?(?!\w)"
    rf"|\d{{1,2}}\.?{_BLANK}{_MONTH}\.?(?:{_BLANK}\d{{4}})?(?!\w)"
    rf"|\d{{4}}年\d{{1,2}}月(?:\d{{1,2}}日)?)"
    rf"|(?P<time>\d{{1,2}}:\d\d(?::\d\d)?{_BLANK}[ap]\.?m(?!\w))"
    rf")"
)
_FORMS = {
    "link": r"\w{2,5}://[^\s/]{3,}.*|(?:mailto:)?[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}",
    "date": r"\d{4}-\d\d(?:-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)?"
    r"|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{4}/\d\d?/\d\d?",
    "time": r"\d{1,2}:\d\d(?::\d\d)?(?:[ap]m)?",
    "version": r"v?\d+(?:\.\d+){2,4}(?:[-+.][\w.]+)?(?::\d+)?|v\d+(?:\.\d+)*",
    "path": r"(?:(?:[A-Za-z]:\\|[~.]{0,2}/)(?=.*[^\W\d_])(?:[\w.@+~$#%-]+[/\\])*[\w.@+~$#%-]+[/\\]?"
    r"|(?=.*[^\W\d_])(?=.*[\d_.-]|[^/]*/[^/]+/)[\w.@+~$#%-]+(?:/[\w.@+~$#%-]+)+/?"
    rf"|[\w.@+-]*\w\.(?:{_LISTS['file_endings']}))(?:::?\w+)*",
    "amount": r"\d+(?:[.,]\d+)*(?:[ap]m|[kKMGT]i?B|kg|km|cm|mm|ms|[hmsx])|\d+x\d+",
    # Letters and digits, or a number with so many digits that it is probably an id.
    "identifier": r"(?=.*[^\W\d_])(?=.*\d)(?!\d+(?:[a-z]{2}|(?:-[a-z]+)+)$)\w[\w.#:+-]{2,}|[#№]\w*\d\w*(?:-\w+)*"
    r"|\+?\d{7,}|\d{2,}(?:-\d{2,})+",
}
_FORM = re.compile("|".join(f"(?P<{kind}>{form})" for kind, form in _FORMS.items()))
_CARD = re.compile(r"\d[\d -]{11,21}\d")
_SECRET = re.compile(_LISTS["secrets"])
NAMES_SECRET = re.compile(_LISTS["names_of_secrets"], re.IGNORECASE)
_BEFORE_SECRET = re.compile(rf"(?:{_LISTS['words_before_secrets']})\W{{1,4}}(?:is\W{{1,3}})?$", re.IGNORECASE)


class ExactValue(Struct, frozen=True):
    start: int
    stop: int
    kind: str
    text: str


def readable_part(text: str, most: int) -> str:
    """Return at most `most` characters from both ends of a text, without secrets and tags of Steno's notes."""
    most = min(most, LONGEST_TEXT)
    if len(text) > most:
        text = f"{text[: most // 2]} {text[len(text) - most // 2 :]}" if most > 1 else ""
    return _MARK.sub(" ", without_secrets(text))


def find_values(text: str) -> Sequence[ExactValue]:
    """Return a text's exact values in order. If values overlap, keep the first; if they begin together, the longest."""
    phrases = (ExactValue(p.start(), p.end(), str(p.lastgroup), p[0].rstrip(".,'")) for p in _PHRASES.finditer(text))
    values: list[ExactValue] = []
    for value in sorted((*_words(text), *phrases), key=lambda value: (value.start, -value.stop)):
        if not values or value.start >= values[-1].stop:
            values.append(value)
    return values


def exact_values(text: str) -> list[str]:
    return list(dict.fromkeys(value.text for value in find_values(text)))


def kept_share(lines: Sequence[str], text: str) -> float | None:
    """Return the share of the exact values in `lines` that `text` contains verbatim; None without values."""
    values = dict.fromkeys(value for line in lines for value in exact_values(line))
    return sum(value in text for value in values) / len(values) if values else None


def _words(text: str) -> Iterator[ExactValue]:
    classified: dict[str, tuple[str, str] | None] = {}
    for word in _WORDS.finditer(text):
        is_end_of_tag = word[0].startswith("/") and text[word.start() - 1 : word.start()] == "<"
        if is_end_of_tag or text.startswith(_AFTER_MEMBER_NAME, word.end()):
            continue
        if word[0] not in classified:
            classified[word[0]] = classify(word[0])
        value = classified[word[0]]
        if value and not _BEFORE_SECRET.search(text, max(0, word.start() - 24), word.start()):
            yield ExactValue(word.start(), word.end(), *value)


def classify(word: str) -> tuple[str, str] | None:
    """Return the kind of a value, and the value without surrounding punctuation; None if the word is no value."""
    value = word.rstrip(".:+-%@#$~")
    value = value.lstrip(".:-%@") if "/" not in value else value.lstrip(":-%@")
    if not 3 <= len(value) <= LONGEST_VALUE or is_secret(value):
        return None
    found = _FORM.fullmatch(value)
    return (str(found.lastgroup), value) if found else None


def is_secret(value: str) -> bool:
    return _SECRET.match(value) is not None or is_card_number(value)


def is_card_number(value: str) -> bool:
    """Return True for 13 to 19 digits with a valid check digit (Luhn)."""
    if not _CARD.fullmatch(value):
        return False
    digits = [int(digit) for digit in reversed(value) if digit.isdecimal()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return 13 <= len(digits) <= 19 and (sum(digits[::2]) + sum(doubled)) % 10 == 0
