"""generateContent among the formats: `models/{model}:generateContent`, streamed with and without `alt=sse`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from app.tokens.estimate import Count
from lab.simulator.counting import Cached, PromptCache
from lab.simulator.format import JSON, Accepted, Answer, Content, Format, Frame, Json, Stream, asked_of, json_content
from lab.simulator.gemini.answers import compose
from lab.simulator.gemini.contents import POSTED, camel_case, role_of, speaker_of, texts_in
from lab.simulator.gemini.judge import check, check_members, read_contents, refusal
from lab.simulator.log import Record
from lab.simulator.rules import Model, Rules
from lab.simulator.script import Fault

KEY_HEADER = "x-goog-api-key"
LEAST_CACHED = 1_024
MOST_BYTES = 20_971_520
MOST_OUTPUT = 65_536
EVENT_STREAM = "text/event-stream"
_COUNTED = re.compile(r"/(v1|v1beta)/models/([^/:]+):(countTokens)")
_MODELS = re.compile(r"/(v1|v1beta)/models(?:/([^/:]+))?")
_METHODS = ["generateContent", "countTokens"]
_ERRORS: Mapping[int, tuple[str, str]] = {
    400: ("INVALID_ARGUMENT", "Request contains an invalid argument."),
    401: ("UNAUTHENTICATED", "Request had invalid authentication credentials."),
    403: ("PERMISSION_DENIED", "The caller does not have permission"),
    404: ("NOT_FOUND", "Requested entity was not found."),
    429: ("RESOURCE_EXHAUSTED", "You exceeded your current quota, please check your plan and billing details."),
    500: ("INTERNAL", "An internal error has occurred. Please retry or report in the API's troubleshooting guide."),
    503: ("UNAVAILABLE", "The model is overloaded. Please try again later."),
}
_QUOTA = "generativelanguage.googleapis.com/generate_content_paid_tier_input_token_count"
_TYPE = "type.googleapis.com/google.rpc."


class Gemini(Format):
    """`POST /v1beta/models/{model}:generateContent` and its neighbours, on v1 as well."""

    path = "/v1beta/models/gemini-2.5-pro:generateContent"
    has_retry_header = False

    def __init__(self, count: Count) -> None:
        super().__init__(count)
        self._recent = PromptCache()

    def is_posted(self, path: str) -> bool:
        return POSTED.fullmatch(path) is not None

    def owns(self, record: Record) -> bool:
        path = record.path
        of_models = _MODELS.fullmatch(path) is not None
        has_key = record.header(KEY_HEADER) is not None or "key" in _query(record)
        return self.is_posted(path) or bool(_COUNTED.fullmatch(path)) or (of_models and (has_key or "beta" in path))

    def checked(self, record: Record, rules: Rules) -> tuple[Json, Model]:
        """The request with the model and the streaming that its path says."""
        version, name, method = _read_path(record)
        if record.method != "POST":
            raise refusal("The requested method is not allowed.", 405, "METHOD_NOT_ALLOWED")
        if len(record.body) > MOST_BYTES:
            raise refusal(f"Request payload size exceeds the limit: {MOST_BYTES} bytes.")
        if not isinstance(record.payload, dict):
            raise refusal("Invalid JSON payload received. Unexpected token.\n")
        model = rules.model(name)
        if model is None:
            text = f"models/{name} is not found for API version {version}, or is not supported for {method}."
            more = "Call ListModels to see the list of available models and their supported methods."
            raise refusal(f"{text} {more}", 404, "NOT_FOUND")
        request = camel_case(record.payload)
        if method == "countTokens":
            # Bare contents are counted alone.
            whole = request.get("generateContentRequest")
            request = {"contents": request.get("contents")} if whole is None else whole
            check_members(request)
        else:
            check(request, name)
        return {**request, "model": name, "stream": method == "streamGenerateContent"}, model

    def parts(self, request: Json) -> Sequence[Any]:
        head = [request.get("tools"), (request.get("systemInstruction") or {}).get("parts")]
        return [head, *read_contents(request["contents"], request["model"])]

    def conversation(self, request: Json) -> Sequence[Any]:
        system = request.get("systemInstruction")
        contents = [*([{**system, "role": "system"}] if system else []), *request["contents"]]
        return [{"role": speaker_of(each), "content": "\n".join(filter(None, texts_in(each)))} for each in contents]

    def max_tokens(self, request: Json) -> int | None:
        return (request.get("generationConfig") or {}).get("maxOutputTokens")

    def check_window(self, request: Json, model: Model, tokens: Sequence[int], rules: Rules) -> int:
        """The window is the prompt's alone; the output has its own."""
        window, total = rules.window_of(model), sum(tokens)
        if total + asked_of(model, self.max_tokens(request), usual=False) > window:
            text = f"The input token count ({total}) exceeds the maximum number of tokens allowed ({window})."
            raise refusal(text)
        return MOST_OUTPUT

    def cached(self, request: Json, parts: Sequence[Any], tokens: Sequence[int]) -> Cached:
        """Tokens of whole leading contents that a recent prompt had."""
        head = msgspec.json.encode([request["model"], parts[0]])
        roles = map(role_of, request["contents"])
        said = [msgspec.json.encode([role, part]) for role, part in zip(roles, parts[1:], strict=True)]
        shared = sum(tokens[: self._recent.shared_parts((head, *said))])
        return Cached(shared if shared >= LEAST_CACHED else 0, 0)

    def answer(self, sequence: int, request: Accepted, fault: Fault, text: str) -> Answer:
        return compose(sequence, request, fault, text, self.count)

    def stream(self, record: Record, frames: Iterable[Frame]) -> Stream:
        """Events without names, comments and an end; without `alt=sse` one array."""
        if _is_sse(record):
            return Stream(EVENT_STREAM, (b"data: %b\r\n\r\n" % msgspec.json.encode(frame.data) for frame in frames))
        return Stream(JSON, _array(frames), b"\n]")

    def respond(self, record: Record, rules: Rules) -> Content | None:
        if not self.owns(record):
            return None
        if _COUNTED.fullmatch(record.path):
            return json_content({"totalTokens": self.prompt_tokens(record, rules)})
        found = _MODELS.fullmatch(record.path)
        name = found[2] if found else None
        if name is None:
            offered = [] if rules.models == "any" else rules.models.values()
            return json_content({"models": [_shown(model, rules) for model in offered]})
        model = rules.model(name)
        if model is None:
            raise refusal(f"Model not found: models/{name}", 404, "NOT_FOUND")
        return json_content(_shown(model, rules))

    def error(self, fault: Fault) -> Json:
        name, message = _ERRORS.get(fault.status, ("INVALID_ARGUMENT" if fault.status < 500 else "INTERNAL", "Failed."))
        error: dict[str, Any] = {"code": fault.status, "message": message, "status": name}
        if fault.status == 429:
            # A bucket of a minute, which says nothing of a window; the pause stands in no header.
            pause = fault.retry_after or 48.9
            error["message"] += f"\n* Quota exceeded for metric: {_QUOTA}, limit: 1000000\nPlease retry in {pause}s."
            quota = {"@type": f"{_TYPE}QuotaFailure", "violations": [{"quotaMetric": _QUOTA, "quotaValue": "1000000"}]}
            error["details"] = [quota, {"@type": f"{_TYPE}RetryInfo", "retryDelay": f"{int(pause)}s"}]
        return {"error": fault.error or error}

    def error_content(self, record: Record, error: Json, status: int) -> Content:
        """Before a stream an error has the stream's type, and stands in an array where that is one."""
        found = POSTED.fullmatch(record.path)
        if found is None or found[3] != "streamGenerateContent":
            return json_content(error, status)
        if _is_sse(record):
            return Content(msgspec.json.encode(error), EVENT_STREAM, status)
        return json_content([error], status)

    def headers(self, request_id: str, status: int) -> Mapping[str, str]:
        return {"server-timing": "gfet4t7; dur=12", "x-content-type-options": "nosniff"}


def _query(record: Record) -> Mapping[str, list[str]]:
    return parse_qs(urlsplit(record.target).query)


def _is_sse(record: Record) -> bool:
    return _query(record).get("alt") == ["sse"]


def _read_path(record: Record) -> tuple[str, str, str]:
    found = POSTED.fullmatch(record.path) or _COUNTED.fullmatch(record.path)
    if found is None:
        raise refusal("Not Found", 404, "NOT_FOUND")
    return found[1], found[2], found[3]


def _array(frames: Iterable[Frame]) -> Iterator[bytes]:
    for index, frame in enumerate(frames):
        yield (b",\r\n" if index else b"[") + msgspec.json.encode(frame.data)


def _shown(model: Model, rules: Rules) -> Json:
    sizes = {"inputTokenLimit": rules.window_of(model), "outputTokenLimit": MOST_OUTPUT}
    shown = {"name": f"models/{model.name}", "version": "001", "displayName": model.name, **sizes}
    return {**shown, "supportedGenerationMethods": _METHODS}
