"""Exact values: the identifiers in a range of messages, found by code, so that no summary can lose or misspell them.

A value is worth the sum of its uses. Each message that holds it is one use, and counts by where it stands (an argument
of a call 4, the user's words 3, the assistant's 2, a tool's result 1), and half as much at the start of the range as at
its end. The sum is scaled by what the value is (see `_WORTH`), and divided by the fourth root of its length: room is
short, and of two that are used alike the shorter one takes less. So what is passed on from a result to the user, or
into the next call, comes before what stands once in a long table.

Texts are anybody's. Every pattern reads a run of characters once, what is read is bounded, and so is what is found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from app.core.history.messages import Kind, Message, ToolCall
from app.core.history.own_words import before_results
from app.core.quoting import MARKS, word

LONGEST_VALUE = 120
"""Characters. What is longer is text, or nothing that anybody repeats."""
LONGEST_TEXT = 1 << 16
"""Characters of one text that are read: half of them at its start, half at its end."""
MOST_READ = 1 << 18
"""Characters of a whole range that are read, the newest first."""
MOST_FOUND = 4_000
"""Different values of a range that are weighed, the newest first."""
MOST_RANKED = 256
MOST_NAMED = 4
"""Arguments that are shown of one call."""
DEEPEST = 6
"""Levels of an argument that are looked through."""

_WORTH = {
    "identifier": 1.0,
    "path": 1.0,
    "link": 1.0,
    "date": 0.6,
    "version": 0.5,
    "word": 0.3,
    "call": 0.2,
    "time": 0.2,
    "amount": 0.15,
    "symbol": 0.1,
}
_PLACES = {Kind.USER: 3.0, Kind.ASSISTANT: 2.0}
_ARGUMENT, _ELSEWHERE = 4.0, 1.0

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
_OF_A_SECRET = re.compile(
    r"pass(?:word|wd|phrase|code)?$|secret|token$|api_?key|credential|authorization|cvv|cvc|\bpin$", re.IGNORECASE
)
_TELLS_SECRET = re.compile(
    r"(?:password|passwd|passphrase|passcode|secret|api[ _]?key|(?:access|auth|bearer|refresh)[ _]?token"
    r"|\bcvv|\bcvc|\bpin)\W{1,4}(?:is\W{1,3})?$",
    re.IGNORECASE,
)
_IDENTIFIES = re.compile(
    r"(?:^|_|[a-z](?=[A-Z]))(?:id|key|name|path|file|url|uri|email|number|code|date|query|ref)s?$", re.IGNORECASE
)


def values_in(messages: Sequence[Message]) -> list[str]:
    """The exact values of these messages, the worthiest first: at most `MOST_RANKED`, none with a line break.

    Nothing of sealed messages, of reasoning, of instructions, and nothing that looks like a password or a key.
    """
    worth: dict[str, float] = {}
    left = MOST_READ
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message.sealed or message.kind is Kind.INSTRUCTIONS:
            continue
        recent = (len(messages) + index) / (2 * len(messages))
        uses: dict[str, float] = {}
        for place, kind, value in _found(message, left):
            uses[value] = max(uses.get(value, 0.0), place * _WORTH[kind])
        for value, use in uses.items():
            if value in worth or len(worth) < MOST_FOUND:
                worth[value] = worth.get(value, 0.0) + recent * use
        left -= sum(map(len, message.texts)) + sum(len(call.arguments) for call in message.calls)
    return sorted(worth, key=lambda value: -worth[value] / len(value) ** 0.25)[:MOST_RANKED]


def _found(message: Message, left: int) -> Iterator[tuple[float, str, str]]:
    """Place, kind and value of each that a message holds. `left`: characters that may still be read."""
    for call in (*message.calls, *message.settled):
        yield from _of_call(call, left)
        left -= len(call.arguments)
    for place, text in _placed(message):
        for kind, value in _of_text(text, left):
            # What programs call their parts is in every result, and of use where somebody speaks of it.
            if kind != "symbol" or place > _ELSEWHERE:
                yield place, kind, value
        left -= len(text)


def _placed(message: Message) -> Iterator[tuple[float, str]]:
    """A message's texts, each with what a use in it counts: in the user's those that hold results count as results."""
    place = _PLACES.get(message.kind, _ELSEWHERE)
    if message.kind is not Kind.USER:
        yield from ((place, text) for text in message.texts)
        return
    said = iter(before_results(message.own_texts))
    for number, text in enumerate(message.texts):
        own = "" if number in message.passed_on else next(said)
        yield place, own
        yield _ELSEWHERE, text[len(own) :]


def _bounded(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} {text[len(text) - most // 2 :]}" if most > 1 else ""


def _of_text(text: str, left: int) -> Iterator[tuple[str, str]]:
    text = _MARK.sub(" ", _bounded(text, min(left, LONGEST_TEXT)))
    known: dict[str, tuple[str, str] | None] = {}
    for found in _WORDS.finditer(text):
        written = found[0]
        if text.startswith(_NAME_OF_A_MEMBER, found.end()) or _is_end_of_tag(text, found):
            continue
        if written not in known:
            known[written] = _classified(written)
        if (value := known[written]) and not _TELLS_SECRET.search(text, max(0, found.start() - 24), found.start()):
            yield value
    for found in _PHRASES.finditer(text):
        yield str(found.lastgroup), found[0].rstrip(".,'")


def _is_end_of_tag(text: str, found: re.Match[str]) -> bool:
    """Whether this is the name of a tag that ends: `</task>`. It only looks like a path."""
    return found[0].startswith("/") and text[found.start() - 1 : found.start()] == "<"


def _classified(written: str) -> tuple[str, str] | None:
    """Kind of a word, and the word without the punctuation of its sentence; None where it is no value."""
    value = written.rstrip(".:+-%@#$~")
    value = value.lstrip(".:-%@") if "/" not in value else value.lstrip(":-%@")
    if not 3 <= len(value) <= LONGEST_VALUE or _is_secret(value):
        return None
    return next(((kind, value) for kind, shape in _SHAPES if shape.fullmatch(value)), None)


def _is_secret(value: str) -> bool:
    """Whether it looks like a key, or like the number of a payment card."""
    return _SECRET.match(value) is not None or _is_card(value)


def _is_card(value: str) -> bool:
    """Whether it could be the number of a payment card: thirteen digits or more that add up (Luhn)."""
    if not _CHECKED.fullmatch(value):
        return False
    digits = [int(digit) for digit in reversed(value) if digit.isdecimal()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return 13 <= len(digits) <= 19 and (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _of_call(call: ToolCall, left: int) -> Iterator[tuple[float, str, str]]:
    """Values in a call's arguments, and the call itself with those that identify: `get_order(order_id=A-1)`."""
    try:
        arguments = json.loads(call.arguments) if len(call.arguments) <= left else None
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        yield from ((_ARGUMENT, *found) for found in _of_text(call.arguments, left))
        return
    shown, identifies = [], False
    for name, value in arguments.items():
        whole = isinstance(value, float)
        for place, kind, found in _of_argument(name, value, 0):
            yield place, kind, found
            identifies = identifies or found == str(value)
            whole = whole or found == str(value)
        if whole:
            shown.append(f"{word(name)}={value}")
    called = f"{word(call.name)}({', '.join(shown[:MOST_NAMED])})"
    if identifies and len(called) <= LONGEST_VALUE:
        yield _ARGUMENT, "call", called


def _of_argument(name: str, value: Any, depth: int) -> Iterator[tuple[float, str, str]]:
    """Place, kind and value of what an argument, or a part of it, holds."""
    if _OF_A_SECRET.search(name) or depth > DEEPEST:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _of_argument(key, inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _of_argument(name, inner, depth + 1)
    elif isinstance(value, str):
        whole = _classified(value) if _is_word(value) else None
        if whole and whole[1] == value:
            yield _ARGUMENT, *whole
        elif _is_word(value) and (_IDENTIFIES.search(name) or value.isupper()) and not _is_secret(value):
            yield _ARGUMENT, "word", value
        else:
            # A long one is a text that the assistant wrote, such as the content of a file.
            place = _ARGUMENT if len(value) <= LONGEST_VALUE else _PLACES[Kind.ASSISTANT]
            yield from ((place, *found) for found in _of_text(value, LONGEST_TEXT))
    elif type(value) is int and _IDENTIFIES.search(name) and not _is_card(written := str(value)):
        yield _ARGUMENT, "word", written


def _is_word(text: str) -> bool:
    return (
        1 < len(text) <= LONGEST_VALUE
        and text.isprintable()
        and not any(sign.isspace() or sign == "<" for sign in text)
    )
