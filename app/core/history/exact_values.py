"""Exact values: what has to be said letter by letter, found by its form: ids, paths, dates, amounts.

Texts are anybody's. Every pattern reads a run of characters once, what is read is bounded, and so is what is found.
Nothing is found that looks like a password or a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from app.core.history.secrets import without_secrets
from app.core.quoting import MARKS

LONGEST_VALUE = 120
"""Characters. What is longer is text, or nothing that anybody repeats."""
LONGEST_TEXT = 1 << 16
"""Characters of one text that are read: half of them at its start, half at its end."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Scripts without spaces: an identifier in such a text ends where they go on."""
_LETTER = rf"[^\W{_UNSPACED}]"
_WORDS = re.compile(
    rf"(?:https?|ftp|ssh|git|s3)://[^\s<>\"'`\\^{{}}|{_UNSPACED}]++"
    rf"|[A-Za-z]:\\(?:{_LETTER}|[\\.$~-])++"
    # What stands for a line end and the like, in the text of a JSON document.
    r"|\\(?:u[0-9a-fA-F]{4}|.)"
    rf"|(?:{_LETTER}|[~/.$#@+:%-])++",
    re.DOTALL,
)
_MARK = re.compile(rf"</?(?:{'|'.join(MARKS)})(?:\s+[0-9a-f]{{8}})?\s*>", re.IGNORECASE)
"""Marks of our own notes, where somebody sends them back."""
_NAME_OF_A_MEMBER = ('":', '" :', '\\":')
"""Signs that follow the name of a member."""
_MONTHS = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    "|Nov(?:ember)?|Dec(?:ember)?"
)
_CURRENCIES = "USD|EUR|GBP|JPY|CNY|CHF|CAD|AUD|INR|BRL|MXN|SEK|NOK|DKK|PLN|KRW|BTC|ETH|euros?|dollars?|pounds?|yen"
_UNITS = (
    "%|kg|mg|lbs?|oz|km|cm|mm|miles?|ft|GB|MB|KB|TB|GiB|MiB|KiB|kB|ms|GHz|MHz|kWh|kW|°C|°F|ml|bps|"
    "seconds?|minutes?|hours?|days?|weeks?|months?|years?|tokens?"
)
_NUMBER = r"\d[\d,.']{0,20}+"
_PHRASES = re.compile(
    rf"(?<![\w.])(?:"
    rf"(?P<amount>[-+]?[$€£¥₹][^\S\r\n]?{_NUMBER}|(?:{_CURRENCIES})[^\S\r\n]{_NUMBER}|{_NUMBER}[^\S\r\n]?(?:[€£¥₹]|(?:{_CURRENCIES}|{_UNITS})(?!\w)))"
    rf"|(?P<date>(?:{_MONTHS})\.?[^\S\r\n]\d{{1,2}}(?:[a-z]{{2}})?(?:,?[^\S\r\n]\d{{4}})?(?!\w)"
    rf"|\d{{1,2}}\.?[^\S\r\n](?:{_MONTHS})\.?(?:[^\S\r\n]\d{{4}})?(?!\w)"
    rf"|\d{{4}}年\d{{1,2}}月(?:\d{{1,2}}日)?)"
    rf"|(?P<time>\d{{1,2}}:\d\d(?::\d\d)?[^\S\r\n][ap]\.?m(?!\w))"
    rf")"
)
_SHAPES = (
    ("link", re.compile(r"\w{2,5}://[^\s/]{3,}.*")),
    ("link", re.compile(r"(?:mailto:)?[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}")),
    (
        "date",
        re.compile(
            r"\d{4}-\d\d(?:-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)?"
            r"|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{4}/\d\d?/\d\d?"
        ),
    ),
    ("time", re.compile(r"\d{1,2}:\d\d(?::\d\d)?(?:[ap]m)?")),
    ("version", re.compile(r"v?\d+(?:\.\d+){2,4}(?:[-+.][\w.]+)?(?::\d+)?|v\d+(?:\.\d+)*")),
    (
        "path",
        re.compile(r"(?:[A-Za-z]:\\|[~.]{0,2}/)(?=.*[^\W\d_])(?:[\w.@+~$#%-]+[/\\])*[\w.@+~$#%-]+[/\\]?(?:::?\w+)*"),
    ),
    ("path", re.compile(r"(?=.*[^\W\d_])(?=.*[\d_.-]|[^/]*/[^/]+/)[\w.@+~$#%-]+(?:/[\w.@+~$#%-]+)+/?(?:::?\w+)*")),
    (
        "path",
        re.compile(
            r"[\w.@+-]*\w\.(?:py|js|ts|tsx|jsx|go|rs|java|kt|c|h|cpp|hpp|cs|rb|php|sh|sql|md|rst|txt|pdf|csv|tsv|json"
            r"|jsonl|ya?ml|toml|ini|cfg|conf|xml|html?|css|scss|lock|log|env|docx?|xlsx?|pptx?|png|jpe?g|gif|svg|zip"
            r"|gz|tar|ipynb|parquet|db|sqlite|proto|tf|vue|swift|ps1|bat)(?:::?\w+)*"
        ),
    ),
    ("amount", re.compile(r"\d+(?:[.,]\d+)*(?:[ap]m|[kKMGT]i?B|kg|km|cm|mm|ms|[hmsx])|\d+x\d+")),
    # Letters and digits, or digits enough for a number that somebody gave out.
    (
        "identifier",
        re.compile(
            r"(?=.*[^\W\d_])(?=.*\d)(?!\d+(?:[a-z]{2}|(?:-[a-z]+)+)$)\w[\w.#:+-]{2,}|[#№]\w*\d\w*(?:-\w+)*"
            r"|\+?\d{7,}|\d{2,}(?:-\d{2,})+"
        ),
    ),
    ("symbol", re.compile(r"(?=_*[^\W\d_]\w*_\w)\w+|(?=[A-Za-z]*[a-z][A-Z])\w+|[a-z_]{2,}(?:\.[a-z_]{2,})+")),
)
_CHECKED = re.compile(r"\d[\d -]{11,21}\d")
_SECRET = re.compile(r"(?:sk|pk|rk)[-_]\w|gh[opsu]_|github_pat_|xox[abprs]-|AKIA|ASIA|AIza|ey[JK]\w+\.|glpat-|hf_[A-Z]")
OF_A_SECRET = re.compile(
    r"pass(?:word|wd|phrase|code)?$|secret|token$|api_?key|credential|authorization|cvv|cvc|\bpin$", re.IGNORECASE
)
_TELLS_SECRET = re.compile(
    r"(?:password|passwd|passphrase|passcode|secret|api[ _]?key|(?:access|auth|bearer|refresh)[ _]?token"
    r"|\bcvv|\bcvc|\bpin)\W{1,4}(?:is\W{1,3})?$",
    re.IGNORECASE,
)
IDENTIFIES = re.compile(
    r"(?:^|_|[a-z](?=[A-Z]))(?:id|key|name|path|file|url|uri|email|number|code|date|query|ref)s?$", re.IGNORECASE
)


class Spotted(Struct, frozen=True):
    """An exact value, and where it stands in a text."""

    start: int
    stop: int
    kind: str
    value: str


def read_of(text: str, most: int) -> str:
    """Text as far as it is read: at most so many characters, without secrets and marks of our own notes."""
    most = min(most, LONGEST_TEXT)
    if len(text) > most:
        text = f"{text[: most // 2]} {text[len(text) - most // 2 :]}" if most > 1 else ""
    return _MARK.sub(" ", without_secrets(text))


def spotted(text: str) -> Sequence[Spotted]:
    """Exact values of a text in order, each place once: of two that begin alike the longer one."""
    found = sorted((*_words(text), *_phrases(text)), key=lambda each: (each.start, -each.stop))
    end, kept = 0, []
    for each in found:
        if each.start >= end:
            kept.append(each)
            end = each.stop
    return kept


def exact_values(text: str) -> list[str]:
    """Exact values of a text but for names from code, each once."""
    return list(dict.fromkeys(each.value for each in spotted(text) if each.kind != "symbol"))


def _words(text: str) -> Iterator[Spotted]:
    known: dict[str, tuple[str, str] | None] = {}
    for found in _WORDS.finditer(text):
        written = found[0]
        if text.startswith(_NAME_OF_A_MEMBER, found.end()) or _is_end_of_tag(text, found):
            continue
        if written not in known:
            known[written] = classified(written)
        if (value := known[written]) and not _TELLS_SECRET.search(text, max(0, found.start() - 24), found.start()):
            yield Spotted(found.start(), found.end(), *value)


def _phrases(text: str) -> Iterator[Spotted]:
    for found in _PHRASES.finditer(text):
        yield Spotted(found.start(), found.end(), str(found.lastgroup), found[0].rstrip(".,'"))


def _is_end_of_tag(text: str, found: re.Match[str]) -> bool:
    """Whether this is the name of a tag that ends: `</task>`. It only looks like a path."""
    return found[0].startswith("/") and text[found.start() - 1 : found.start()] == "<"


def classified(written: str) -> tuple[str, str] | None:
    """Kind of a word, and the word without the punctuation of its sentence; None where it is no value."""
    value = written.rstrip(".:+-%@#$~")
    value = value.lstrip(".:-%@") if "/" not in value else value.lstrip(":-%@")
    if not 3 <= len(value) <= LONGEST_VALUE or is_secret(value):
        return None
    return next(((kind, value) for kind, shape in _SHAPES if shape.fullmatch(value)), None)


def is_secret(value: str) -> bool:
    """Whether it looks like a key, or like the number of a payment card."""
    return _SECRET.match(value) is not None or is_card(value)


def is_card(value: str) -> bool:
    """Whether it could be the number of a payment card: thirteen digits or more that add up (Luhn)."""
    if not _CHECKED.fullmatch(value):
        return False
    digits = [int(digit) for digit in reversed(value) if digit.isdecimal()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return 13 <= len(digits) <= 19 and (sum(digits[::2]) + sum(doubled)) % 10 == 0


def is_word(text: str) -> bool:
    return (
        1 < len(text) <= LONGEST_VALUE
        and text.isprintable()
        and not any(sign.isspace() or sign == "<" for sign in text)
    )
