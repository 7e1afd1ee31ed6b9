"""Refusals: classify a provider's error, and recognise numbers that the error quotes from the request.

1. Overflow (`read_overflow`): the prompt is too large. Steno first excludes similar errors. Then a structured code
   decides, or a sentence that names an input, an excess, and a measure of tokens or context.
2. Shape (`refused_shape`): the order or the form of messages is wrong, maybe because Steno changed the history. Errors
   about signed thinking or sizes do not count.
3. Missing path (`says_no_such_path`): the provider lacks the path. A missing model or another resource does not count.
4. Echo (`echoes`): a number in an error may be a quotation from the request. Steno looks for the number's digits, and
   for the words next to the number, because the error may show the number in another form.
5. Retry (`is_repeatable`, `named_pause`): whether and when a client may send the same request again.
6. Relay (`provider_error`): the error object at the end of a stream that has begun.

The wordings, and the meaning of the numbers in them, are in `refusals.toml`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from itertools import chain, islice
from typing import Any

import msgspec

from app.compaction.overflow import MIN_LIMIT, Overflow
from app.conversation.wordings import read_wordings
from app.formats.raw_json import as_text, decoded
from app.tokens.costs import MOST_TOKENS

OVERFLOW_STATUSES = frozenset({400, 413, 422, 429, 500, 502, 503})
"""Statuses of refusals of a prompt that is too large. Some servers answer with 500 or more."""
SHAPE_STATUSES = frozenset({400, 422, 500, 502, 503})
"""Statuses for a wrong order or form of messages. llama.cpp answers 500 in this case, and proxies change statuses."""
MISSING_PATH_STATUSES = frozenset({404, 405, 501})
_OTHER_STATUSES = frozenset({401, 402, 403, 404})
"""Statuses in an error body that exclude an overflow, whatever the HTTP status is."""

_WORDINGS = read_wordings(__package__, "refusals.toml")
_MEMBERS, _STATUSES = _WORDINGS["body"], _WORDINGS["statuses"]
_PATTERNS = {name: re.compile("|".join(words), re.DOTALL) for name, words in _WORDINGS["patterns"].items()}
_NUMBERS = {name: tuple(map(re.compile, patterns)) for name, patterns in _WORDINGS["numbers"].items()}
_SENTENCES = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff1b])")
_SEPARATOR = re.compile(r"(?<=[0-9])[,_'](?=[0-9]{3}(?![0-9]))")
_UNITS = {"b": 1, "k": 1_000, "m": 1_000_000}
_QUOTES = re.compile(r"[\\`'\"\u2018\u2019\u201c\u201d]")
_DECODER = json.JSONDecoder()
DEEPEST = 8
"""Greatest depth of an error that Steno reads. Levels of JSON inside of strings count, too."""
LONGEST_TEXT = 20_000
_LONGEST_SHAPE, _LONGEST_PATH = 8_000, 1_000
"""Searched part of errors: `_LONGEST_SHAPE` bytes for a wrong shape, `_LONGEST_PATH` characters for a missing path."""


def _says(name: str, text: str) -> bool:
    return _PATTERNS[name].search(text) is not None


def decoded_body(body: bytes) -> object:
    """Return a provider's body as parsed JSON, or as text if it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")


def read_overflow(status: int, body: object, *, first_frame: bool = False) -> Overflow | None:
    """Return the overflow that an answer reports; None if there is none.

    `body` is from `decoded_body`. `first_frame`: the body is the first data frame of a stream with status 200.
    """
    error = _read_error(body)
    if first_frame and _is_error_frame(body):
        status = error.status or 400
    if status not in OVERFLOW_STATUSES or error.status in _OTHER_STATUSES:
        return None
    message = _plain(". ".join(error.messages)[:LONGEST_TEXT])
    text = ". ".join((message, *error.codes))[: 2 * LONGEST_TEXT]
    if _says("per_time", message) and (bucket := _PATTERNS["bucket"].search(message)):
        limit, requested = int(bucket[1]), int(bucket[2])
        # A request within the limit succeeds after a wait.
        return Overflow("request_too_large", limit, None, requested) if requested > limit >= MIN_LIMIT else None
    if status == 429 or _says("other_reasons", text) or not _says("prompt_params", error.param.lower()):
        return None
    found = _measured(message, error.numbers)
    is_over = (found.requested or 0) > (found.limit or MOST_TOKENS)
    is_excess = is_over or (_says("tokens", text) and _says("excess", text))
    if (
        (_says("tokens", message) or not _says("other_measures", message))
        and (status < 500 or (is_excess and not _says("server_trouble", text)))
        and (_speaks_of_overflow(text) or (is_over and _says("context_size", message)))
    ):
        return None if found.limit is not None and found.limit < MIN_LIMIT else found
    if status == 413 and _says("payload", text):
        sizes = [int(float(number) * _UNITS[unit[0]]) for number, unit in _NUMBERS["bytes"][0].findall(message)]
        return Overflow("payload", limit_bytes=error.numbers.get("limit") or min(sizes, default=None))
    is_reasonless = status in (400, 413) and not error.numbers and _PATTERNS["reasonless"].fullmatch(message)
    return Overflow("context_window", needs_pressure=True) if is_reasonless else None


def status_named(body: object) -> int | None:
    """Return the status that an error frame states as a number or as a code; None if it states no status."""
    error = _read_error(body)
    return error.status or next((int(_STATUSES[code]) for code in error.codes if code in _STATUSES), None)


@dataclass(slots=True)
class _Error:
    """Members of an error, from all of its levels."""

    messages: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    """Codes and types in lower case."""
    param: str = ""
    status: int | None = None
    """HTTP status in the body."""
    numbers: dict[str, int] = field(default_factory=dict)


def is_error(body: object) -> bool:
    """Return whether an unstreamed answer with status 200 is only an error."""
    return isinstance(body, Mapping) and _is_error_frame(body) and not any(map(body.get, _MEMBERS["contents"]))


def _is_error_frame(body: object) -> bool:
    """Return whether a mapping contains an error, or has the type of an error."""
    return isinstance(body, Mapping) and bool(
        body.get("error") or body.get("error_msg") or body.get("type") in ("error", "response.failed")
    )


def _read_error(value: object, error: _Error | None = None, depth: int = 0) -> _Error:
    """Add the members of a body, or of a part of the body, to the error. Only the first element of a list counts."""
    error = error or _Error()
    if isinstance(value, str) and value:
        text = value[:LONGEST_TEXT]
        if (start := text.find("{")) >= 0:
            with suppress(ValueError, RecursionError):
                inner, _ = _DECODER.raw_decode(text, start)
                if len(error.messages) < len(_read_error(inner, error, depth + 1).messages):
                    return error
        error.messages.append(text)
    elif isinstance(value, list) and value and depth < DEEPEST:
        _read_error(value[0], error, depth + 1)
    elif isinstance(value, Mapping) and depth <= DEEPEST:
        members = {str(key).lower(): member for key, member in value.items()}
        # Objects come first, because the innermost message says most.
        for member in sorted(map(members.get, _MEMBERS["messages"]), key=lambda each: not isinstance(each, Mapping)):
            _read_error(member, error, depth + 1)
        error.param = error.param or as_text(members.get("param"))
        for name in _MEMBERS["codes"]:
            code = members.get(name)
            if isinstance(code, str):
                error.codes.append(code.lower())
            else:
                _read_error(code, error, depth + 1)
            if error.status is None and re.fullmatch(r"[45][0-9][0-9]", str(code)):
                error.status = int(str(code))
        numbers = {name: member for name, member in members.items() if type(member) is int and member > 0}
        error.numbers = numbers | error.numbers
    return error


def _plain(message: str) -> str:
    """Return a message in lower case, on one line, without URLs and thousands separators."""
    text = _SEPARATOR.sub("", re.sub(r"https?://\S+|<[^<>]{1,200}>", " ", message.lower()))
    return " ".join(text.replace("\u2019", "'").split()).strip(" .:!")


def _speaks_of_overflow(text: str) -> bool:
    """Return whether a sentence reports an overflow: by a fixed wording, or by words for input, excess and measure."""

    def says_so(sentence: str) -> bool:
        if _says("output", sentence) and not _says("input_beside_output", sentence):
            return False
        return _says("too_long", sentence) or all(_says(name, sentence) for name in ("input", "oversize", "measure"))

    return any(map(says_so, _SENTENCES.split(text)))


def _measured(text: str, numbers: Mapping[str, int]) -> Overflow:
    """Return an overflow with the numbers from the error. A number with an unclear meaning is None."""

    def number(kind: str, other_than: int | None = None) -> int | None:
        """Return the first number of this kind. Skip numbers equal to `other_than`, which was already
        read as another kind."""
        beside = (numbers[name] for name in _MEMBERS.get(kind, ()) if name in numbers)
        found = (int(match[1]) for pattern in _NUMBERS[kind] for match in pattern.finditer(text))
        return next((each for each in chain(beside, found) if each <= MOST_TOKENS and each != other_than), None)

    limit = number("limits")
    prompt, output, total = number("prompts", limit), number("outputs"), number("totals", limit)
    if prompt is not None:  # A total below the sum is the output.
        total = max(total or 0, prompt + (output or 0))
    elif total is None:
        total = number("unsplit", limit)
    return Overflow("context_window", limit, prompt, total, names_output=_says("names_output", text))


def refused_shape(status: int, body: bytes, *, first_frame: bool = False) -> str | None:
    """Return the provider's words about a wrong order or form of messages; None for any other refusal. `first_frame`:
    the error is the first frame of a stream with status 200."""
    if status not in SHAPE_STATUSES and not first_frame:
        return None
    text = body[:_LONGEST_SHAPE].decode("utf-8", "replace").lower()
    words = " ".join(_QUOTES.sub("", text).split())
    found = _PATTERNS["roles"].search(words) or _PATTERNS["shapes"].search(words)
    return found[0] if found else None


def demands_alternation(said: str) -> bool:
    """Return whether words from `refused_shape` demand that roles alternate."""
    return _PATTERNS["roles"].fullmatch(said) is not None


def says_no_such_path(status: int, body: bytes) -> bool:
    """Return whether the provider does not have the path. `body` may be cut off, unless it is JSON."""
    if status not in MISSING_PATH_STATUSES:
        return False
    content = decoded_body(body)
    if isinstance(content, str):
        return "model" not in content.lower()  # This is a web server's own page.
    message = next(iter(_read_error(content).messages), "")[:_LONGEST_PATH].strip().lower()
    return _PATTERNS["missing_path"].fullmatch(message) is not None


WORDS = 3
"""Number of words on each side of an error's number. Steno searches the request for these words next to any digit."""
MOST_PLACES = 8
"""Maximum occurrences of a number in an error. If there are more, Steno assumes that the error quotes the number."""
PIECE = 65_536
"""Characters of a request that are searched in one step. Each step blocks all other requests."""
LONGEST_FOUND = 1_000
"""Characters by which successive pieces of a request overlap, because a match may cross their border."""
LONGEST_COMPARED = 1 << 20
"""Maximum bytes of a request that Steno compares with its refusal. If the request is longer, Steno learns no limit."""

_ESCAPED = re.compile(r"(?:\\u00|\\x|&#x0{0,4}|%)3([0-9]);?|&#0{0,4}(4[89]|5[0-7]);?")
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_WORD = re.compile(r"[^\W_]+")
_BESIDE = r"[\W_]{1,20}"


def echoed_in(error: str, number: int, body: bytes) -> bool:
    """Return whether an error may quote this number from the request. Return True if Steno cannot find out."""
    if len(body) > LONGEST_COMPARED:
        return True
    try:
        written = msgspec.json.encode(decoded(body, msgspec.json.decode)).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return echoes(error, number, written)


def echoes(error: str, number: int, request: str) -> bool:
    """Return whether the request contains the number, or the words that stand next to the number in the error."""
    beside = set(islice(_beside(_comparable(error), number), 2 * MOST_PLACES + 1))
    if len(beside) > 2 * MOST_PLACES:
        return True
    digits = "[^0-9a-z]{0,3}".join(str(number))
    patterns = [re.compile(pattern) for pattern in (rf"(?<![0-9])0*{digits}(?![0-9])", *beside)]
    text = _comparable(request)
    # The pieces overlap. A number that is cut in two may match by mistake, and then counts as quoted.
    pieces = (text[start : start + PIECE + LONGEST_FOUND] for start in range(0, len(text), PIECE))
    return any(pattern.search(piece) for piece in pieces for pattern in patterns)


def _comparable(text: str) -> str:
    text = text.casefold()
    if "\\" in text or "&#" in text or "%" in text:
        text = _ESCAPED.sub(lambda found: found[1] or chr(int(found[2])), text)
    return text if text.isascii() else _FOREIGN_DIGIT.sub(lambda found: str(int(found[0])), text)


def _beside(error: str, number: int) -> Iterator[str]:
    """Yield patterns of the words before or after each occurrence of a number, with any digit in the number's place."""
    words = _WORD.findall(_SEPARATOR.sub("", error))
    for place, word in enumerate(words):
        if not word.isdecimal() or word.lstrip("0") != str(number):
            continue
        before, behind = words[max(0, place - WORDS) : place], words[place + 1 : place + 1 + WORDS]
        if len(before) == WORDS:
            yield _BESIDE.join((*map(re.escape, before), r"[0-9]"))
        if len(behind) == WORDS:
            yield _BESIDE.join((r"[0-9]", *map(re.escape, behind))) + r"(?![^\W_])"


REPEATABLE = frozenset({408, 409, 429})
"""Statuses below 500 after which SDKs retry. They also retry after every status from 500 on."""
LONGEST_DATE = 100
LONGEST_PAUSE = 31_536_000.0
"""Maximum pause in seconds: one year. Steno shortens a longer pause to this maximum."""


def is_repeatable(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether an SDK would retry the request. The provider's header `x-should-retry` has precedence."""
    asked = dict(headers).get(b"x-should-retry")
    if asked in (b"true", b"false"):
        return asked == b"true"
    return status in REPEATABLE or status >= 500


def named_pause(headers: Iterable[tuple[bytes, bytes]], now: float) -> float | None:
    """Return the pause in seconds from `retry-after`; None without this header. `now` is in Unix seconds."""
    named = dict(headers)
    for name, unit in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        said = named.get(name, b"").strip()
        if said.replace(b".", b"", 1).isdigit():
            return min(float(said) * unit, LONGEST_PAUSE)
    try:
        date = parsedate_to_datetime(named.get(b"retry-after", b"")[:LONGEST_DATE].decode("latin-1")).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):  # The parser raises any of these for invalid dates.
        return None
    return min(max(0.0, date - now), LONGEST_PAUSE)


CODES = {401: "invalid_api_key", 413: "request_too_large", 429: "rate_limit_exceeded"}
"""OpenAI's error codes by status. For any other status, the code is the name of the status."""
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
REQUEST_ID = (b"x-request-id", b"request-id", b"apim-request-id")
"""Headers with a provider's request id; the first one present counts."""
LONGEST_QUOTE = 500


def error_body(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, now: float) -> bytes:
    return msgspec.json.encode({"error": provider_error(status, headers, body, now)})


def provider_error(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, now: float) -> dict[str, Any]:
    """Return the members of an error for the client: the provider's members, the status, the request id, the pause.

    Steno adds OpenAI's four members (message, type, param, code) if they are missing. `now` is in Unix seconds.
    """
    headers = list(headers)
    values = dict(headers)
    quoted = body.decode("utf-8", "replace").strip()[:LONGEST_QUOTE]
    is_known = status >= 400 and status in set(HTTPStatus)
    usual = {
        "message": f"The provider answered with status {status}" + (f": {quoted}" if quoted else "."),
        "type": TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "server_error"),
        "param": None,
        "code": CODES.get(status) or (HTTPStatus(status).name.lower() if is_known else f"status_{status}"),
    }
    if status < 400:
        usual["code"] = None
    request_id = next((values[name].decode("latin-1") for name in REQUEST_ID if values.get(name)), None)
    known = {
        "status": status if status >= 400 else None,
        "request_id": request_id,
        "retry_after": named_pause(headers, now),
    }
    return usual | {name: value for name, value in known.items() if value is not None} | _error_in(body)


def _error_in(body: bytes) -> dict[str, Any]:
    """Return the members of the body's `error` object; if it is missing, the body's message, type, param and code."""
    value = decoded_body(body)
    value = value[0] if isinstance(value, list) and value else value  # Google sends errors in a list.
    if isinstance(value, dict) and isinstance(error := value.get("error"), dict):
        return {name: said for name, said in error.items() if said is not None or name != "message"}
    if not isinstance(value, dict):
        return {"message": value} if isinstance(value, str) and body[:1] == b'"' else {}
    named = {name: said for name in ("type", "param", "code") if isinstance(said := value.get(name), str)}
    return {"message": messages[0], **named} if (messages := _read_error(value).messages) else {}
