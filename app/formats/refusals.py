"""Refusals: what a provider's error says was wrong with a request, and which numbers of it are the provider's own.

1. Overflow (`classify`): only errors; the provider's own words, never the caller's; vetoes for what merely looks like
   it; then a structured code, or the grammar *something that is input - is over - a measure of tokens or context*.
2. Shape (`refused_shape`): messages do not stand as their format demands. Such a refusal of a changed payload is a
   fault of Steno's. That thoughts are bound to another prompt is none of it, nor a size.
3. Missing path (`says_no_such_path`): there is no such path, and not that something named in it is missing.
4. Echo (`echoes`): a number in an error may be the client's own, because the error quotes the request. Numbers are
   compared by value, however they are written. The words beside a number are looked for too: it may be changed.

The tables are the whole data; `PATTERNS` changes with those of overflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import Any

import msgspec

from app.compaction.budget import MIN_LIMIT, Overflow
from app.formats.raw_json import decoded
from app.tokens.usage import MOST_TOKENS

PATTERNS = 4
"""Version of the tables."""

DEEPEST = 4
"""Depth to which JSON inside a string is looked into."""
LONGEST_TEXT = 20_000
"""Characters of a message that are read."""


def decoded_body(body: bytes) -> object:
    """The body that a provider sent: parsed JSON, or the text where it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")


def classify(status: int, body: object, *, first_frame: bool = False) -> Overflow | None:
    """The verdict on an answer; None: no overflow.

    `body` is parsed JSON, or the text where it is none. `first_frame` says that it is the first data frame of a stream
    that began with status 200; later frames and ordinary answers are never asked about.
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
    if (bucket := _bucket(text)) is not None or status == HTTPStatus.TOO_MANY_REQUESTS:
        return bucket if bucket and _over(bucket) else None
    codes = " ".join(said.codes)
    if _vetoed(text, codes, said.param):
        return _payload(text, codes, said.fields) if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else None
    found = _measured(text, said.fields)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not (_CODE.search(codes) or _is_excess(text, found)):
        return None
    if not (_speaks_of_overflow(text) or _CODE.search(codes) or _passes_context(text, found)):
        if (
            status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            and (payload := _payload(text, codes, said.fields)) is not None
        ):
            return payload
        no_reason = status in _REASONLESS_STATUSES and not said.fields and _REASONLESS.fullmatch(text)
        return Overflow("context_window", needs_pressure=True) if no_reason else None
    return None if found.limit is not None and found.limit < MIN_LIMIT else found


# What the provider says


@dataclass(slots=True)
class _Said:
    message: str = ""
    codes: list[str] = field(default_factory=list)
    """Codes and types that are words, in lower case, with `_` between their parts."""
    param: str = ""
    status: int | None = None
    """The HTTP status that an error frame names."""
    fields: dict[str, int] = field(default_factory=dict)
    """Whole numbers beside the message."""


_MESSAGE_KEYS = (
    "message",
    "detail",
    "details",
    "error",
    "errors",
    "error_message",
    "error_msg",
    "error_description",
    "description",
    "msg",
    "status_msg",
    "raw",
)
_AROUND = ("response", "base_resp", "status")
"""Objects that hold the error where nothing beside them says anything."""
_CODE_KEYS = ("code", "type", "error_type", "error_code", "status")
_DEEPEST_BODY = 8
_LONGEST_CODE = 100


def is_error(body: object) -> bool:
    """Whether a whole answer with status 200 is an error and nothing else."""
    return isinstance(body, Mapping) and _is_error_frame(body) and not any(map(body.get, _CONTENTS))


_CONTENTS = ("choices", "content", "output")


def _is_error_frame(body: object) -> bool:
    if not isinstance(body, Mapping):
        return False
    return bool(body.get("error") or body.get("error_msg")) or body.get("type") in ("error", "response.failed")


def _said(body: object, depth: int = 0) -> _Said:
    """The innermost message, with the codes and numbers on the way to it."""
    if isinstance(body, str):
        return _in_string(body[:LONGEST_TEXT], depth)
    if depth > _DEEPEST_BODY or not body:
        return _Said()
    if isinstance(body, list):
        return _said(body[0], depth + 1)
    if not isinstance(body, Mapping):
        return _Said()
    body = {str(key).lower(): value for key, value in body.items()}
    said = _inner(body, depth)
    _add_reason(said, body)
    said.param = said.param or _word(body.get("param"))
    for key in _CODE_KEYS:
        value = body.get(key)
        if isinstance(value, str):
            said.codes.append(re.sub(r"[\s-]+", "_", value[:_LONGEST_CODE].lower()))
        if key != "type" and said.status is None:
            said.status = _http_status(value)
    for key, value in body.items():
        if isinstance(value, int) and not isinstance(value, bool):
            said.fields.setdefault(key, value)
    return said


def _add_reason(said: _Said, body: Mapping[str, Any]) -> None:
    """Add what stands beside a message that says little: a word that names the error, or the sentence with the
    numbers."""
    metadata = body.get("metadata")
    for holder in (body, metadata if isinstance(metadata, Mapping) else {}):
        reason = _word(holder.get("reason"))[:LONGEST_TEXT]
        if " " in reason:
            said.message = f"{said.message.rstrip('.')}. {reason}" if said.message else reason
        elif reason:
            said.codes.append(reason[:_LONGEST_CODE].lower())


def _inner(body: Mapping[Any, Any], depth: int) -> _Said:
    """Text of the first member that says something; an `error` object goes before all."""
    keys: Iterable[str] = _MESSAGE_KEYS
    if isinstance(body.get("error"), Mapping):
        keys = dict.fromkeys(("error", *_MESSAGE_KEYS))  # Each once: twice at every depth would be often.
    found = [_said(body[key], depth + 1) for key in keys if body.get(key)]
    found += [_said(body[key], depth + 1) for key in _AROUND if isinstance(body.get(key), Mapping)]
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("raw"), str):
        found.insert(0, _said(metadata["raw"], depth + 1))  # A router quotes the provider behind it.
    return next((said for said in found if said.message), found[0] if found else _Said())


def _in_string(text: str, depth: int) -> _Said:
    """JSON inside a string says more than the words around it."""
    starts, end = [at for at in (text.find("{"), text.find("[")) if at >= 0], max(text.rfind("}"), text.rfind("]"))
    if starts and depth < DEEPEST:
        try:
            said = _said(json.loads(text[min(starts) : end + 1]), depth + 1)
        except (ValueError, RecursionError):
            said = _Said()
        if said.message or said.codes:
            return said
    return _Said(message=text)


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _http_status(value: object) -> int | None:
    number = str(value)
    return int(number) if re.fullmatch(r"[45][0-9][0-9]", number) else None


def _plain(message: str) -> str:
    """Lower case, on one line, without addresses and thousands separators."""
    text = re.sub(r"https?://\S+|<[^<>]{1,200}>", " ", message.lower())
    text = re.sub(r"(?<=[0-9])[,_'](?=[0-9]{3}(?![0-9]))", "", text)
    return _SERVERS_PREFIX.sub("", " ".join(text.replace("\u2019", "'").split()).strip(" .:!"))


# Vetoes and verdicts

OVERFLOW_STATUSES = frozenset({400, 413, 422, 429, 500, 502, 503})
"""Statuses with which a prompt that is too large is refused: some servers fail where they meet it."""
CUT_WORDS = (b'length"', b'"max_tokens"', b'"incomplete"', b"context")
"""Words of answers that ended at a bound; without any of these an answer need not be looked into."""
_OTHER_REASONS = frozenset({401, 402, 403, 404})
"""Statuses that a body names where the answer itself has another one."""
_SERVERS_PREFIX = re.compile(r"\b(?:input validation error: |invalid input argument\b)")
"""Beginning of every complaint of some servers, be it about the input or not."""
_EXCESS = re.compile(
    r"too (?:long|large|many|big)|exceed|longer|larger|greater|overflow|surpass|(?:not|n't) fit\b|[0-9] > [0-9]"
)
_SERVER_TROUBLE = re.compile(r"timed? ?out|\bmemory\b|connection|\bcapacity\b")
"""Words of servers that failed for a reason of their own."""
_REASONLESS_STATUSES = frozenset({400, 413})
_REASONLESS = re.compile(
    r"(?:error|http|status|code|4[0-9][0-9]|bad request|invalid request|payload too large|request entity too large|"
    r"content too large|provider returned error|upstream error|no body|nginx(?:/[0-9.]++)?+|[\s:().,/-])*+"
)
"""Possessive: a version could be read in several ways, and many of them one after another in all their combinations."""
_CODE = re.compile(
    r"(?:context|prompt|input|token)s?_?\w*(?:exceed|too_(?:long|large)|overflow|limit_reached)|"
    r"exceed\w*_(?:context|prompt|input|token)|contextwindowexceeded"
)
_ALLOWED_PARAM = re.compile(r"message|input|prompt|token|context|content")
_VETOED_CODES = re.compile(
    r"(?:string|array)_(?:above|below)|quota|credit|auth|api_key|permission|content_(?:filter|policy)|not_found|throttl|"
    r"max_tokens_per_request"
)
# In Chinese: rate, frequency, quota, balance, arrears, concurrency, sensitive, picture; then characters and bytes; then
# context; then output; then input, context, conversation.
_VETOES = re.compile(
    r"\b(?:string|array) too (?:long|short)|maxlength|rate.?limit|requests per|per.(?:minute|hour|day)|per min\b|"
    r"\bquota\b|to increase,? visit|paid account|free.tier|\b[rt]p[mhd]\b|"
    r"your (?:account|subscription|workspace|organi[sz]ation|team|plan)\b|\boverloaded\b|retry later|\bin flight\b|"
    r"\b(?:hourly|daily|weekly|monthly)\b|array length|(?<!physical )\bbatch(?:es)?\b|^malformed\b|"
    r"\u901f\u7387|\u9891\u7387|\u989d\u5ea6|\u4f59\u989d|\u6b20\u8d39|\u5e76\u53d1|\u654f\u611f|\u56fe[\u7247\u50cf]|"
    r"\bcredits?\b|\bbilling\b|api.key|unauthori[sz]ed|authenti|permission|content.(?:filter|management|policy)|safety|"
    r"minimum (?:token|number|cache)|start caching|throttl|too many requests|please wait|try again (?:in|later)|"
    r"\binput should be (?:an?\b|one of|finite|none|'|\"|(?:greater|less) than (?:or equal to )?-?[0-9.]+(?! ?tokens))|"
    r"too many inputs\b|number of (?:inputs|items|texts|documents|prompts|requests|images|tools)\b|inputs per request|"
    r"[0-9] (?:inputs|items|texts|documents|prompts)\b(?! tokens)|"
    r"truncate_prompt_tokens|context (?:deadline|cancel)|"
    r"does not exist|not found|^(?:invalid (?:value|type|schema|json)\b|unknown |unrecogni[sz]ed |unsupported )"
)
_NO_TOKENS = re.compile(
    r"\bbytes?\b|\bcharacters?\b|\bchars\b|\b[kmg]i?b\b|megabytes?|\bseconds?\b|\bminutes?\b|\bpixels?\b|\bpages?\b|"
    r"\u5b57\u7b26|\u5b57\u8282|\u4e2a\u5b57"
)
_TOKENS = re.compile(r"token|context|n_ctx|max_seq_len|max_model_len|\u4e0a\u4e0b\u6587")
_OUTPUT = re.compile(
    r"max_?(?:(?:completion|output|new)_?)?tokens|(?:output|completion|new|generated) tokens?\b|max(?:imum)? output|"
    r"max(?:imum)? tokens (?:you requested|value|must)|tokens of output|\u8f93\u51fa"
)
_NAMES_OUTPUT = re.compile(rf"{_OUTPUT.pattern}|\bcompletions?\b|\boutputs?\b")
_INPUT_BESIDE_OUTPUT = re.compile(
    r"\bprompt|\binputs?\b|\binput_tokens|\bmessages\b|in the messages|\u8f93\u5165|\u4e0a\u4e0b\u6587|\u5bf9\u8bdd"
)
_INPUT = re.compile(
    r"\bprompts?\b|\b(?:prompt|input)_tokens|\binputs?\b|\bmessages\b|message (?:size|length)|\bcontexts?\b|context_|"
    r"\bconversation\b|token (?:count|limit)|total tokens|number of tokens|tokens? in\b|\bsequence\b|n_ctx|"
    r"max_seq_len|max_model_len"
)
_REQUEST = re.compile(r"\brequest(?:ed|s|'s)?\b")
"""Input only where the measure is tokens: requests have other limits of length too."""
_OVERSIZE = re.compile(
    r"too (?:long|large|many|big)|exceed|longer|larger|greater|bigger|\bmax(?:imum)?\b|max_|\blimit|range|at most|"
    r"less than|no more than|cannot be more|only supports|must be <=|overflow|n_ctx|surpass|\b(?:over|above|beyond)\b|"
    r"(?:not|n't) fit\b"
)
_MEASURE = re.compile(
    r"tokens?\b|\bcontext\b|context_|\bwindow\b|\blength\b|n_ctx|max_seq_len|max_model_len|"
    r"for (?:the |this )?(?:requested )?model"
)
# In Chinese: prompt, input, context, conversation, message, tokens; what is too long, or over a length, context, limit,
# window, bound.
_CHINESE_INPUT = (
    r"(?:prompt|messages|(?<!max_)(?<!max)\btokens?|"
    r"\u63d0\u793a\u8bcd|\u8f93\u5165|\u4e0a\u4e0b\u6587|\u5bf9\u8bdd|\u6d88\u606f)"
)
_TOO_LONG = re.compile(
    r"\btoo many (?:input |prompt )?tokens\b|"
    rf"{_CHINESE_INPUT}[^\u3002\uff1b]{{0,30}}?(?:[\u8d85\u8fc7\u592a]\u957f|\u8d85\u9650)|"
    rf"{_CHINESE_INPUT}[^\u3002\uff1b]{{0,30}}?\u8d85[\u8fc7\u51fa][^\u3002\uff1b]{{0,30}}?"
    r"(?:\u957f\u5ea6|\u4e0a\u4e0b\u6587|\u9650\u5236|\u7a97\u53e3|\u4e0a\u9650|token)|"
    r"\b(?:prompt|input|messages|context|conversation)\b[^.]{0,40}?\btoo (?:long|large|big)|"
    r"context (?:window|length|size) (?:is|of) [0-9]+k? tokens?,? (?:but|however|and|you)\b|"
    r"\b(?:prompt|input|request|messages|conversation)\b[^.]{0,40}?[0-9]k? tokens?\b[^.]{0,40}?"
    r"\bcontext (?:window|length|size|limit)\b[^.]{0,12}[0-9]|"
    r"(?:reduce|shorten) (?:the )?(?:length|size) of (?:the |your )?(?:input )?(?:messages|prompt|input|conversation)"
)
_NEGATIVE_OUTPUT = re.compile(
    r"default_max_tokens\W{1,5}-[0-9]|max_(?:completion_|output_|new_)?tokens`?"
    r"(?: must be (?:at least|greater than) [0-9]+, got -(?!1\b)[0-9]| \(-[0-9]+\) must be greater than 0)"
)
"""vLLM and TensorRT-LLM subtract the prompt from the window before they look at what is left. -1 is the client's own:
elsewhere it means that there is no limit."""
_CONTEXT_SIZE = re.compile(r"\bcontext (?:window|length|size|limit)\b")
_SENTENCES = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff1b])")


_PAYLOAD = re.compile(
    r"(?:payload|body|entity|content|request)(?: (?:size|length))?(?: is)?[ _](?:too[ _](?:large|big|long)|exceed)|"
    r"(?:max(?:imum)?|allowed) (?:allowed )?(?:request |payload |body )?(?:size|bytes)\b"
)
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(bytes?\b|[km]i?b\b)")
_UNITS = {"b": 1, "k": 1_000, "m": 1_000_000}


def _payload(text: str, codes: str, fields: Mapping[str, int]) -> Overflow | None:
    """A limit of bytes, with the lowest number of them that is named."""
    if _VETOES.search(text) or _VETOED_CODES.search(codes):
        return None
    if not (_PAYLOAD.search(text) or _PAYLOAD.search(codes)):
        return None
    sizes = [int(float(number) * _UNITS[unit[0]]) for number, unit in _BYTES.findall(text)]
    return Overflow("payload", limit_bytes=fields.get("limit") or min(sizes, default=None))


def _is_excess(text: str, found: Overflow) -> bool:
    """Whether a server that failed says that tokens were too many, and no trouble of its own."""
    says_so = bool(_TOKENS.search(text) and _EXCESS.search(text)) or _is_over(found)
    return says_so and not _SERVER_TROUBLE.search(text)


def _is_over(found: Overflow) -> bool:
    return found.limit is not None and found.requested is not None and found.requested > found.limit


def _vetoed(text: str, codes: str, param: str) -> bool:
    if param and not _ALLOWED_PARAM.search(param.lower()):
        return True
    if _VETOED_CODES.search(codes) or _VETOES.search(text):
        return True
    return bool(_NO_TOKENS.search(text) and not _TOKENS.search(text))


def _speaks_of_overflow(text: str) -> bool:
    if _NEGATIVE_OUTPUT.search(text):
        return True
    return any(
        _TOO_LONG.search(sentence)
        or (_names_input(sentence) and _OVERSIZE.search(sentence) and _MEASURE.search(sentence))
        for sentence in _SENTENCES.split(text)
        if not (_OUTPUT.search(sentence) and not _INPUT_BESIDE_OUTPUT.search(sentence))
    )


def _passes_context(text: str, found: Overflow) -> bool:
    """Whether two sentences together say it: how large a context is, and that more was sent."""
    return _is_over(found) and bool(_CONTEXT_SIZE.search(text))


def _names_input(sentence: str) -> bool:
    return bool(_INPUT.search(sentence) or (_REQUEST.search(sentence) and _TOKENS.search(sentence)))


_BUCKET = re.compile(r"limit:? ([0-9]{1,9})\b.{0,60}?requested:? ([0-9]{1,9})\b")
_PER_TIME = re.compile(r"\btp[mhd]\b|tokens? per|per.(?:minute|hour|day)\b")


def _bucket(text: str) -> Overflow | None:
    """A bucket of tokens per minute, hour or day, with what was asked of it."""
    found = _BUCKET.search(text) if _PER_TIME.search(text) else None
    return Overflow("request_too_large", int(found[1]), None, int(found[2])) if found else None


def _over(bucket: Overflow) -> bool:
    """A request that fits the empty bucket only has to wait."""
    limit, requested = bucket.limit or 0, bucket.requested or 0
    return requested > limit >= MIN_LIMIT


# Numbers

_N = r"(?<![0-9])([0-9]{1,9})\b(?! ?(?:bytes|char|[kmg]i?b\b|seconds|pixels|pages))"
_LIMIT_FIELDS = ("n_ctx", "max_context_length", "max_model_len", "context_length", "context_window", "max_input_tokens")
_PROMPT_FIELDS = ("n_prompt_tokens", "prompt_tokens", "input_tokens", "num_prompt_tokens", "num_input_tokens")


def _patterns(*sources: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(source.replace("{N}", _N)) for source in sources)


_BEYOND = r"(?:exceeds?|exceeded|(?:larger|longer|greater|more) than|over|above|beyond)(?: (?!by )[a-z_'-]{1,30}){1,6}?"
_LIMITS = _patterns(
    r"n_ctx\W{1,3}{N}",
    r"\bmax_(?!(?:(?:completion|output|new|total)_)?tokens?\b)\w{1,40}\W{1,3}{N}",
    r"=> [0-9]+ >=? {N}",
    r"range[^0-9]{0,60}\[\s*[0-9]+\s*,\s*{N}\s*\]",
    r"[0-9] \+ [0-9]+ > {N}",
    r"context (?:length|size|window|limit)(?: limit)?(?: is)?(?: of)?(?: only)?(?: of)?[:\s(]+{N}",
    r"max(?:imum)? context(?: tokens)?(?: is)?(?: of)?[:\s(]+{N}",
    r"[(,;] ?context: {N}",
    r"context (?:length|size|window|limit) (?:of|for) \S{1,200} is {N}",
    r"max(?:imum)? (?:allowed |supported )?(?:(?:model|prompt|input|sequence) )?(?:length|size|window)(?: is)?"
    r"(?: only| just)?(?: of)?[:\s(]+{N}",
    r"max(?:imum)? (?:input|prompt) tokens(?: is)?(?: of)?[:\s(=]+{N}",
    r"limit for (?:this|the) model is {N}",
    r"maximum number of (?:input |total |prompt )?tokens(?: allowed)?(?: for (?:this|the) model)?(?: is)?(?: of)?"
    r"[:\s(]+{N}",
    r"maximum allowed \({N}",
    r"token limit(?: is)?(?: of)?[:\s(]+{N}",
    r"tokens limit(?: is)?(?: of)?[:\s(]+{N}",
    r"supports? (?:at most|up to) {N}",
    r"only supports? {N}",
    r"limited to {N}",
    r"(?:limit|maximum|max|max size|max length|maximum length)(?: allowed)?(?: is)?(?: of)?:? {N}",
    r"\bthe (?:limit|maximum) \({N}",
    r"> {N} (?:maximum|max|limit)",
    r"(?:cannot exceed|must not exceed|exceeds?|exceeding|exceeded|at most|up to|no more than|less than|<=|>=?|"
    r"larger than|longer than|greater than)(?: the| a| its)?(?: model's| model)?(?: maximum| max| limit)?(?: of)? {N}",
    r"{N}[- ]token (?:context|limit|window|maximum)",
    r"{N} tokens? (?:maximum|max|limit|allowed)",
    r"{N} (?:maximum|max) (?:context|input|prompt)",
    r"[0-9] > {N}",
    rf"{_BEYOND}:? {{N}}",
    rf"{_BEYOND} \({{N}}(?= tokens)",  # A number alone in brackets may be a code.
    r"(?:\u6700\u5927|\u4e0a\u9650|\u9650\u5236)[^0-9\u3002]{0,20}{N}",  # at most, limit
)
_TOTALS = _patterns(
    r"requested (?:about |a total of |up to )?{N}",
    r"requested:? {N}",
    r"requested tokens \({N}",
    r"(?:will|would) take {N} tokens",
    r"max_total_tokens \({N}",
    r"input and (?:maximum )?output tokens \(?{N}",
    r"\bsum of [^0-9.]{1,60}?\bis {N}",
    r"{N} tokens context requested",
)
_PROMPTS = _patterns(
    r"(?:messages|prompt|input)s?(?: tokens)? (?:resulted in|contains?|requires?|has|have|is|are|was|were|used|of)"
    r"(?: about)? {N}",
    r"(?:prompt|input) token count(?: of| is)?[:\s(]+{N}",
    r"{N} tokens? (?:in|of|from) (?:the |your )?(?:text |input )?(?:messages|prompt|inputs?)",
    r"{N} (?:in|of|from) (?:the |your )?(?:text |input )?(?:messages|prompt|inputs?)",
    r"{N} `?(?:inputs?|prompt|text)`? tokens?",
    r"{N} `inputs`",
    r"(?:prompt|input|request)(?: length)? ?\((?:length )?{N}",
    r"(?:prompt|input|context) (?:is )?too (?:long|large)[:\s(]+{N}",
    r"(?:prompt|input|current) (?:token )?length(?: is| of)?:? {N}",
    r"[(,;] ?(?:prompt|input): {N}",
    r"number of (?:input|prompt) tokens(?: is)?[:\s(]+{N}",
    r"(?:(?:input|prompt) tokens:?|prompt) \(?{N}",
    r"sequence length[:\s(]+{N}",
    r"n_keep\W{1,3}{N}",
    r"keep the first {N} tokens",
    r"prompt_(?:len|tokens)\W{1,3}{N}",
    r"=> {N} >",
    r"{N} \+ [0-9]",
    r"{N}(?: tokens?)? > [0-9]",
)
_UNSPLIT = _patterns(
    r"request(?: has| contains| is| of|ed)? {N} tokens",
    r"request (?:needs|requires|uses) {N}",
    r"(?:token count|number of tokens|total tokens)(?: of| is)?[:\s(]+{N}",
    r"(?:received|got|given|actual|but was|supplied|provided|sent)[:=]? ?{N}",
)
_OUTPUTS = _patterns(
    r"{N}(?: tokens?)? (?:in|for|of) (?:the )?(?:completion|output)",
    r"{N} [`']?(?:output|completion|max_new_tokens|max_tokens|new)[`']?(?: tokens)?",
    r"(?:\+|and) max_(?:completion_|output_|new_)?tokens`?[\s(]+{N}",
    r"[0-9] \+ {N}",
    r"\+ (?:completion|output)(?: tokens)? {N}",
    r"max_(?:completion_|output_|new_)?tokens'? is too large: {N}",
)


def _measured(text: str, fields: Mapping[str, int]) -> Overflow:
    limit = _named(_LIMIT_FIELDS, fields) or _first(_LIMITS, text)
    prompt = _named(_PROMPT_FIELDS, fields) or _first(_PROMPTS, text, limit)
    output = _first(_OUTPUTS, text)
    total = _first(_TOTALS, text, limit)
    if total is None and prompt is None:
        total = _first(_UNSPLIT, text, limit)
    if total is not None and prompt is not None and total < prompt + (output or 0):
        total = None  # What was requested is the output.
    if total is None and prompt is not None:
        total = prompt + (output or 0)
    return Overflow("context_window", limit, prompt, total, names_output=bool(_NAMES_OUTPUT.search(text)))


def _named(names: Sequence[str], fields: Mapping[str, int]) -> int | None:
    return next((fields[name] for name in names if 0 < fields.get(name, 0) <= MOST_TOKENS), None)


def _first(patterns: Sequence[re.Pattern[str]], text: str, other_than: int | None = None) -> int | None:
    """The first number that a pattern finds; `other_than` is a number with a role of its own."""
    return next((number for number in _numbers(patterns, text) if number != other_than), None)


def _numbers(patterns: Sequence[re.Pattern[str]], text: str) -> Iterator[int]:
    for pattern in patterns:
        yield from (number for found in pattern.finditer(text) if (number := int(found[1])) <= MOST_TOKENS)


_SHAPE_STATUSES = frozenset({400, 422, 500, 502, 503})
"""Statuses of such refusals: where a chat template refuses the order, llama.cpp answers 500, and proxies wrap that."""
LONGEST_ERROR = 8_000
"""Characters of a refusal that are read."""
_QUOTES = re.compile(r"[\\`'\"\u2018\u2019\u201c\u201d]")
_ROLES = re.compile(
    r"(?:roles?|user|assistant|messages|requests|turns?)\b.{0,40}\balternat(?:e|es|ed|ing|ion)\b"
    r"|\balternat(?:e|es|ed|ing|ion)\b.{0,40}\b(?:roles?|user|assistant)\b"
    r"|(?:consecutive|successive) (?:user|assistant|messages?)\b"
    r"|unexpected role [\w.]{1,20} after role"
    r"|first message must use the user role"
    r"|conversation must start with a user message"
)
"""Refusals of two messages of one role in a row, or of the assistant's at the beginning."""
_SHAPES = re.compile(
    # Calls and their results
    r"tool_use ids were found without tool_result blocks"
    r"|unexpected tool_use_id found in \w{1,40} blocks"
    r"|each tool_use must have a single result"
    r"|tool_use ids must be unique"
    r"|was found without a corresponding \w{1,60} block"
    r"|messages? with role tool must be a response to a prece?eding message"
    r"|tool_calls must be followed by tool messages"
    r"|tool_call_ids did not have response messages"
    r"|insufficient tool messages following tool_calls"
    r"|no tool output found for [\w ]{1,40} call"
    r"|no tool call found for [\w ]{1,40} call output"
    r"|not the same number of function calls and responses"
    r"|function call turn comes immediately after"
    r"|number of function response parts is equal to the number of function call parts"
    r"|number of toolresult blocks at \S{1,80} exceeds the number of tooluse blocks"
    r"|expected toolresult blocks at"
    # Their order
    r"|expected last role"
    r"|conversation must end with a user message"
    r"|at least one message is required"
    r"|a system message must (?:directly follow|be last|be at the)"
    r"|system message must be at the beginning"
    # What they hold
    r"|text content blocks must (?:be non-empty|contain non-whitespace)"
    r"|all messages must have non-empty content"
    r"|final assistant content cannot end with trailing whitespace"
    r"|a maximum of \d{1,2} blocks with cache_control may be provided"
    r"|cache_control block must not come after a ttl"
    # Thoughts
    r"|thinking or redacted_thinking blocks in the latest assistant message cannot be modified"
    r"|expected thinking or redacted_thinking, but found"
    r"|final block in an assistant message cannot be thinking"
    r"|provided without its required [\w ]{1,40} item"
    r"|duplicate item found with id"
)


def refused_shape(status: int, body: bytes, *, first_frame: bool = False) -> str | None:
    """The provider's words for what is wrong with the shape; None where it refused something else.

    `first_frame`: the error came as the first frame of a stream that began with status 200.
    """
    if status not in _SHAPE_STATUSES and not first_frame:
        return None
    content = decoded_body(body)
    text = content if isinstance(content, str) else body.decode("utf-8", "replace")
    words = " ".join(_QUOTES.sub("", text[:LONGEST_ERROR].lower()).split())
    found = _ROLES.search(words) or _SHAPES.search(words)
    return found[0] if found else None


def demands_alternation(said: str) -> bool:
    """Whether these words of a refusal, as `refused_shape` returns them, demand that roles alternate."""
    return _ROLES.fullmatch(said) is not None


MISSING_PATH_STATUSES = frozenset({404, 405, 501})
_NO_PATH = re.compile(
    r"(the )?(requested )?(\d{3} )?(page|file|path|route|url|uri|endpoint|resource)?( was)? ?not found\.?"
    r"|method not allowed|not implemented"
    r"|.*\b(invalid|unknown|unrecognized|unsupported|unexpected)( request| api)? (url|path|route|endpoint)\b.*"
    r"|.*\bno (such )?(url|path|route|endpoint|handler)\b.*"
    r"|.*\bcannot post /.*"
    r"|.*\b(url|path|route|endpoint)\b.*\b(not found|does not exist|is not supported|not supported)\b.*",
    re.IGNORECASE | re.DOTALL,
)
"""Answers of servers about a path they do not have. All else names something: a model, a deployment, an answer's id."""
LONGEST_MESSAGE = 1_000


def says_no_such_path(status: int, body: bytes) -> bool:
    """`body`: its beginning is enough, where it is not JSON."""
    if status not in MISSING_PATH_STATUSES:
        return False
    content = decoded_body(body)
    if isinstance(content, str):
        return "model" not in content.lower()  # A web server's own page.
    return (
        isinstance(content, dict) and _NO_PATH.fullmatch(_path_message(content)[:LONGEST_MESSAGE].strip()) is not None
    )


def _path_message(content: dict[str, Any]) -> str:
    error = content.get("error")
    inner = error if isinstance(error, dict) else content
    said = inner.get("message") or inner.get("detail") or error
    return said if isinstance(said, str) else ""


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
_MULTIPLIERS = (("k", 1_000), ("k", 1_024), ("thousand", 1_000), ("m", 10**6), ("m", 1 << 20), ("million", 10**6))
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
    beside = set(islice(_beside(_comparable(error), number), 2 * MOST_PLACES + 1))
    if len(beside) > 2 * MOST_PLACES:
        return True
    patterns = [re.compile(pattern) for pattern in (_written(number), *beside)]
    return any(pattern.search(piece) for piece in _pieces(_comparable(request)) for pattern in patterns)


def _pieces(text: str) -> Iterator[str]:
    """A number that a piece begins in the middle of may be taken for another one: then the request counts as quoted."""
    return (text[start : start + PIECE + LONGEST_FOUND] for start in range(0, len(text), PIECE))


def _comparable(text: str) -> str:
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
    for unit, scale in _MULTIPLIERS:
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
