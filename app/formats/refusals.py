"""Refusals: classify a provider's error, and recognise numbers that the error quotes from the request.

1. Overflow (`classify`): the prompt is too large. Steno first excludes similar errors (vetoes). Then a structured code
   decides, or a sentence that names an input, an excess, and a measure of tokens or context.
2. Shape (`refused_shape`): the order or the form of messages is wrong, maybe because Steno changed the history. Errors
   about signed thinking or sizes do not count.
3. Missing path (`says_no_such_path`): the path is unknown, rather than a resource that the path names.
4. Echo (`echoes`): a number in an error may be a quotation from the request. Steno looks for the number's digits and
   for the words next to the number, because the error may have changed the number.
5. Retry (`is_repeatable`, `named_pause`): whether and when a client may send the same request again.
6. Relay (`provider_error`): the error object at the end of a stream that has begun.

The wordings are in `refusals.toml`. Increase `PATTERNS` with every change of the wordings for overflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from itertools import islice
from typing import Any

import msgspec

from app.compaction.budget import MIN_LIMIT, Overflow
from app.conversation.wordings import read_wordings
from app.formats.raw_json import as_text, decoded, object_of
from app.tokens.costs import MOST_TOKENS

PATTERNS = 4
OVERFLOW_STATUSES = frozenset({400, 413, 422, 429, 500, 502, 503})
"""Statuses of refusals of a prompt that is too large. Some servers answer with 500 or more."""
SHAPE_STATUSES = frozenset({400, 422, 500, 502, 503})
"""Statuses of refused shapes. llama.cpp answers 500 if a chat template refuses the order. Proxies change statuses."""
MISSING_PATH_STATUSES = frozenset({404, 405, 501})
_REASONLESS_STATUSES = frozenset({400, 413})
_OTHER_REASONS = frozenset({401, 402, 403, 404})
"""Statuses in an error body that exclude an overflow, whatever the HTTP status is."""
_STATUSES = {
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "service_unavailable": 503,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Status for each error code in a stream that began with status 200."""
CUT_WORDS = (b'length"', b'"max_tokens"', b'"incomplete"', b"context")
"""Words in answers that ended at a length limit. Steno does not parse an answer without one of them."""

_WORDINGS = read_wordings(__package__, "refusals.toml")
_MEMBERS = _WORDINGS["body"]
_PATTERNS = {name: re.compile("|".join(words), re.DOTALL) for name, words in _WORDINGS["patterns"].items()}
_NUMBERS = {name: tuple(map(re.compile, patterns)) for name, patterns in _WORDINGS["numbers"].items()}
_SENTENCES = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff1b])")
_BUCKET = re.compile(r"limit:? ([0-9]{1,9})\b.{0,60}?requested:? ([0-9]{1,9})\b")
_PER_TIME = re.compile(r"\btp[mhd]\b|tokens? per|per.(?:minute|hour|day)\b")
_BYTES = re.compile(r"(?<![0-9.])([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(bytes?\b|[km]i?b\b)")
_UNITS = {"b": 1, "k": 1_000, "m": 1_000_000}
_QUOTES = re.compile(r"[\\`'\"\u2018\u2019\u201c\u201d]")
DEEPEST, _DEEPEST_BODY = 4, 8
"""Greatest depth that Steno reads: of JSON inside of strings, and of objects in a body."""
LONGEST_TEXT = 20_000
_LONGEST_CODE, _LONGEST_SHAPE, _LONGEST_PATH = 100, 8_000, 1_000
"""Most characters that Steno reads: of a code, of a refusal of a shape, of a message about a missing path."""


def _says(name: str, text: str) -> bool:
    return _PATTERNS[name].search(text) is not None


def decoded_body(body: bytes) -> object:
    """Return a provider's body as parsed JSON, or as text if it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")


def classify(status: int, body: object, *, first_frame: bool = False) -> Overflow | None:
    """Return the overflow that an answer reports; None if there is none.

    `body` is from `decoded_body`. `first_frame`: the body is the first data frame of a stream with status 200.
    """
    if first_frame:
        if not _is_error_frame(body):
            return None
        status = HTTPStatus.BAD_REQUEST
    said = _said(body)
    if first_frame and said.status is not None:
        status = said.status
    if status not in OVERFLOW_STATUSES or said.status in _OTHER_REASONS:
        return None
    text = _plain(said.message)
    bucket = _BUCKET.search(text) if _PER_TIME.search(text) else None  # Tokens per minute, hour or day.
    if bucket is not None or status == HTTPStatus.TOO_MANY_REQUESTS:
        limit, requested = (int(bucket[1]), int(bucket[2])) if bucket else (0, 0)
        # A request within the limit succeeds after a wait.
        return Overflow("request_too_large", limit, None, requested) if requested > limit >= MIN_LIMIT else None
    codes = " ".join(said.codes)
    is_too_large = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if (
        (said.param and not _says("prompt_params", said.param.lower()))
        or _says("veto_codes", codes)
        or _says("veto_words", text)
        or (_says("other_measures", text) and not _says("tokens", text))
    ):
        return _payload(text, codes, said.fields) if is_too_large else None
    found = _measured(text, said.fields)
    is_over = found.limit is not None and found.requested is not None and found.requested > found.limit
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not _says("overflow_codes", codes):
        # With these statuses, the error must report too many tokens, and no fault of the server.
        is_excess = is_over or (_says("tokens", text) and _says("excess", text))
        if not is_excess or _says("server_trouble", text):
            return None
    if not (_speaks_of_overflow(text) or _says("overflow_codes", codes) or (is_over and _says("context_size", text))):
        if is_too_large and (payload := _payload(text, codes, said.fields)) is not None:
            return payload
        no_reason = status in _REASONLESS_STATUSES and not said.fields and _PATTERNS["reasonless"].fullmatch(text)
        return Overflow("context_window", needs_pressure=True) if no_reason else None
    return None if found.limit is not None and found.limit < MIN_LIMIT else found


def status_named(body: object) -> int | None:
    """Return the status of an error frame, from its number or its code; None without both."""
    said = _said(body)
    return said.status or next((_STATUSES[code] for code in said.codes if code in _STATUSES), None)


@dataclass(slots=True)
class _Said:
    message: str = ""
    codes: list[str] = field(default_factory=list)
    """Codes and types in lower case, with `_` for spaces and hyphens."""
    param: str = ""
    status: int | None = None
    """HTTP status in the body."""
    fields: dict[str, int] = field(default_factory=dict)


def is_error(body: object) -> bool:
    """Return whether an unstreamed answer with status 200 is only an error."""
    return isinstance(body, Mapping) and _is_error_frame(body) and not any(map(body.get, _CONTENTS))


_CONTENTS = ("choices", "content", "output", "candidates")


def _is_error_frame(body: object) -> bool:
    if not isinstance(body, Mapping):
        return False
    return bool(body.get("error") or body.get("error_msg")) or body.get("type") in ("error", "response.failed")


def _said(body: object, depth: int = 0) -> _Said:
    """Parse an error: the innermost message, and the codes and numbers of all levels."""
    if isinstance(body, str):
        return _in_string(body[:LONGEST_TEXT], depth)
    if isinstance(body, list) and body and depth <= _DEEPEST_BODY:
        return _said(body[0], depth + 1)
    if not isinstance(body, Mapping) or depth > _DEEPEST_BODY:
        return _Said()
    body = {str(key).lower(): value for key, value in body.items()}
    metadata = object_of(body.get("metadata"))
    said = _inner(body, metadata, depth)
    for reason in (as_text(holder.get("reason"))[:LONGEST_TEXT] for holder in (body, metadata)):
        if " " in reason:  # A sentence; a single word is a code.
            said.message = f"{said.message.rstrip('.')}. {reason}" if said.message else reason
        elif reason:
            said.codes.append(reason[:_LONGEST_CODE].lower())
    said.param = said.param or as_text(body.get("param"))
    for key in _MEMBERS["codes"]:
        value = body.get(key)
        if isinstance(value, str):
            said.codes.append(re.sub(r"[\s-]+", "_", value[:_LONGEST_CODE].lower()))
        if key != "type" and said.status is None and re.fullmatch(r"[45][0-9][0-9]", str(value)):
            said.status = int(str(value))
    numbers = {key: value for key, value in body.items() if isinstance(value, int) and not isinstance(value, bool)}
    said.fields = {**numbers, **said.fields}
    return said


def _inner(body: Mapping[str, Any], metadata: Mapping[str, Any], depth: int) -> _Said:
    """Parse the first member that has a message. A router quotes its provider's error in `metadata.raw`."""
    # An `error` that is an object comes before other members; an `error` that is a text does not.
    keys = sorted(_MEMBERS["messages"], key=lambda key: key != "error" or not isinstance(body.get(key), Mapping))
    around = (object_of(body.get(key)) for key in _MEMBERS["around"])
    held = (as_text(metadata.get("raw")), *map(body.get, keys), *around)
    found = [_said(each, depth + 1) for each in held if each]
    return next((said for said in found if said.message), found[0] if found else _Said())


def _in_string(text: str, depth: int) -> _Said:
    """Parse JSON inside a string. Without JSON, the string is the message."""
    starts, end = [at for at in (text.find("{"), text.find("[")) if at >= 0], max(text.rfind("}"), text.rfind("]"))
    if starts and depth < DEEPEST:
        try:
            said = _said(json.loads(text[min(starts) : end + 1]), depth + 1)
        except (ValueError, RecursionError):
            said = _Said()
        if said.message or said.codes:
            return said
    return _Said(message=text)


def _plain(message: str) -> str:
    """Return a message in lower case, on one line, without URLs and thousands separators."""
    text = re.sub(r"https?://\S+|<[^<>]{1,200}>", " ", message.lower())
    text = re.sub(r"(?<=[0-9])[,_'](?=[0-9]{3}(?![0-9]))", "", text)
    return _PATTERNS["prefix"].sub("", " ".join(text.replace("\u2019", "'").split()).strip(" .:!"))


def _payload(text: str, codes: str, fields: Mapping[str, int]) -> Overflow | None:
    """Return an overflow if the error says that the body has too many bytes. Its limit is the lowest named size."""
    is_vetoed = _says("veto_words", text) or _says("veto_codes", codes)
    if is_vetoed or not (_says("payload", text) or _says("payload", codes)):
        return None
    sizes = [int(float(number) * _UNITS[unit[0]]) for number, unit in _BYTES.findall(text)]
    return Overflow("payload", limit_bytes=fields.get("limit") or min(sizes, default=None))


def _speaks_of_overflow(text: str) -> bool:
    """Return whether a sentence reports an overflow: by a fixed wording, or with an input, an excess and a measure."""

    def says_so(sentence: str) -> bool:
        if _says("output", sentence) and not _says("input_beside_output", sentence):
            return False
        is_input = _says("input", sentence) or (_says("request", sentence) and _says("tokens", sentence))
        return _says("too_long", sentence) or (is_input and _says("oversize", sentence) and _says("measure", sentence))

    return _says("negative_output", text) or any(map(says_so, _SENTENCES.split(text)))


def _measured(text: str, fields: Mapping[str, int]) -> Overflow:
    """Return an overflow with the numbers from the error. A number with an unclear meaning is None."""

    def number(name: str, other_than: int | None = None) -> int | None:
        """Return the first number of this kind. Skip `other_than`, which has another meaning."""
        beside = (fields[field] for field in _MEMBERS.get(name, ()) if 0 < fields.get(field, 0) <= MOST_TOKENS)
        if (told := next(beside, None)) is not None:
            return told
        found = (int(match[1]) for pattern in _NUMBERS[name] for match in pattern.finditer(text))
        return next((each for each in found if each <= MOST_TOKENS and each != other_than), None)

    limit = number("limits")
    prompt, output, total = number("prompts", limit), number("outputs"), number("totals", limit)
    if total is None and prompt is None:
        total = number("unsplit", limit)
    if total is not None and prompt is not None and total < prompt + (output or 0):
        total = None  # The number is the output, not the total.
    if total is None and prompt is not None:
        total = prompt + (output or 0)
    names_output = _says("output", text) or _says("names_output", text)
    return Overflow("context_window", limit, prompt, total, names_output=names_output)


def refused_shape(status: int, body: bytes, *, first_frame: bool = False) -> str | None:
    """Return the provider's words about a wrong shape; None for any other refusal.

    `first_frame`: the error is the first frame of a stream with status 200.
    """
    if status not in SHAPE_STATUSES and not first_frame:
        return None
    content = decoded_body(body)
    text = content if isinstance(content, str) else body.decode("utf-8", "replace")
    words = " ".join(_QUOTES.sub("", text[:_LONGEST_SHAPE].lower()).split())
    found = _PATTERNS["roles"].search(words) or _PATTERNS["shapes"].search(words)
    return found[0] if found else None


def demands_alternation(said: str) -> bool:
    """Return whether words from `refused_shape` demand that roles alternate."""
    return _PATTERNS["roles"].fullmatch(said) is not None


def says_no_such_path(status: int, body: bytes) -> bool:
    """Return whether the provider does not have the path. If `body` is no JSON, it may be cut off."""
    if status not in MISSING_PATH_STATUSES:
        return False
    content = decoded_body(body)
    if isinstance(content, str):
        return "model" not in content.lower()  # A web server's own page.
    if not isinstance(content, dict):
        return False
    error = content.get("error")
    inner = error if isinstance(error, dict) else content
    message = as_text(inner.get("message") or inner.get("detail") or error)[:_LONGEST_PATH].strip().lower()
    return _PATTERNS["missing_path"].fullmatch(message) is not None


WORDS = 3
"""Words compared on each side of a number. If they are next to a digit in the request, the number counts as quoted."""
MOST_PLACES = 8
"""Most occurrences of a number in an error. A number with more occurrences counts as quoted."""
PIECE = 65_536
"""Characters of a request that are searched in one step. Each step blocks all other requests."""
LONGEST_FOUND = 1_000
"""Characters by which two pieces overlap."""
LONGEST_COMPARED = 1 << 20
"""Most bytes of a request that is compared with an error. Steno learns no limit from a longer request."""

_ESCAPED = re.compile(r"(?:\\u00|\\x|&#x0{0,4}|%)3([0-9]);?|&#0{0,4}(4[89]|5[0-7]);?")
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_SEPARATOR = re.compile(r"(?<=[0-9])[,_'](?=[0-9]{3}(?![0-9]))")
_WORD = re.compile(r"[^\W_]+")
_BESIDE = r"[\W_]{1,20}"


def echoed_in(error: str, number: int, body: bytes) -> bool:
    """Return whether an error may quote this number from the request. Return True if unknown."""
    if len(body) > LONGEST_COMPARED:
        return True
    try:
        written = msgspec.json.encode(decoded(body, msgspec.json.decode)).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return echoes(error, number, written)


def echoes(error: str, number: int, request: str) -> bool:
    """Return whether the request contains the number, or the words next to it in the error."""
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
    """Yield patterns for the words before or after each occurrence of the number, next to any digit."""
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
"""Statuses below 500 that SDKs retry. They also retry every status from 500 on."""
LONGEST_DATE = 100
LONGEST_PAUSE = 31_536_000.0
"""One year in seconds. Steno shortens longer pauses to this."""


def is_repeatable(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether an SDK would retry the request. The provider's header `x-should-retry` has precedence."""
    asked = dict(headers).get(b"x-should-retry")
    if asked in (b"true", b"false"):
        return asked == b"true"
    return status in REPEATABLE or status >= 500


def named_pause(headers: Iterable[tuple[bytes, bytes]], now: float) -> float | None:
    """Return the pause in seconds from `retry-after`; None if there is none. `now` is in Unix seconds."""
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
    """Return the members of the provider's `error` object, or, without it, at most message, type, param and code."""
    value = decoded_body(body)
    value = value[0] if isinstance(value, list) and value else value  # Google sends errors in a list.
    if isinstance(value, dict) and isinstance(error := value.get("error"), dict):
        return {name: said for name, said in error.items() if said is not None or name != "message"}
    if not isinstance(value, dict):
        return {"message": value} if isinstance(value, str) and body[:1] == b'"' else {}
    named = {name: said for name in ("type", "param", "code") if isinstance(said := value.get(name), str)}
    return {"message": said.message, **named} if (said := _said(value)).message else {}
