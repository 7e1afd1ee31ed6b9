"""Trouble: providers that refuse, break off or are too small, and summarisers that do not do what they should."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lab.benchmarks.corpus.case import FORK, MODEL, Case, Group, Step, case, chat
from lab.benchmarks.corpus.cases.histories import HELLO, TOOLS, conversation, growing, tool_turn
from lab.benchmarks.corpus.provider import chunk, completion, frame, refusal, text_frames
from lab.benchmarks.corpus.replies import Reply, plain, streamed

ERRORS: Mapping[str, Reply] = {
    "400": refusal("Invalid value for 'temperature'.", code="invalid_value"),
    "401": refusal("Incorrect API key provided: sk-***.", "401 Unauthorized", code="invalid_api_key"),
    "403": refusal("Country not supported.", "403 Forbidden", "www-authenticate: Bearer"),
    "404": refusal("The model `x` does not exist.", "404 Not Found", code="model_not_found"),
    "409": refusal("Conflict.", "409 Conflict"),
    "422": plain({"detail": [{"loc": ["body", "x"], "msg": "field required"}]}, status="422 Unprocessable Entity"),
    "429": refusal(
        "Slow down.",
        "429 Too Many Requests",
        "retry-after: 3",
        "x-should-retry: false",
        code="rate_limit_exceeded",
        kind="requests",
    ),
    "429-quota": refusal(
        "You exceeded your current quota.",
        "429 Too Many Requests",
        code="insufficient_quota",
        kind="insufficient_quota",
    ),
    "500": refusal(
        "The server had an error.", "500 Internal Server Error", "x-should-retry: false", kind="server_error"
    ),
    "502-html": plain(
        b"<html><h1>Bad gateway</h1></html>", "x-should-retry: false", status="502 Bad Gateway", kind="text/html"
    ),
    "503-empty": plain(b"", "retry-after: 7", "x-should-retry: false", status="503 Service Unavailable"),
    "529": refusal(
        "Overloaded.", "529 Overloaded", "retry-after-ms: 100", "x-should-retry: false", kind="overloaded_error"
    ),
    "204": Reply(b"HTTP/1.1 204 No Content\r\nx-a: b\r\n\r\n"),
    "301": plain(b"", "location: https://elsewhere.test/", status="301 Moved Permanently"),
    "closed": Reply(b"", closes=True),
    "half-head": Reply(b"HTTP/1.1 200 OK\r\ncontent-", closes=True),
    "half-body": Reply(
        b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"id":', closes=True
    ),
    "no-http": Reply(b"hello\r\n\r\n", closes=True),
    "until-closed": Reply(
        b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"id":"a","choices":[]}', closes=True
    ),
    "continue": Reply(b"HTTP/1.1 100 Continue\r\n\r\n" + plain(completion("Yes", MODEL)).data),
}
"""Errors of a provider. Some say that they are not to be repeated: that spares the recording the pauses in between."""

OVERFLOWS: Mapping[str, Reply] = {
    "openai": refusal(
        "This model's maximum context length is 4000 tokens. However, your messages resulted in 5301 tokens."
        " Please reduce the length of the messages.",
        code="context_length_exceeded",
    ),
    "openai-output": refusal(
        "This model's maximum context length is 4000 tokens. However, you requested 5301 tokens"
        " (4301 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
        code="context_length_exceeded",
    ),
    "no-number": refusal(
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        code="context_length_exceeded",
    ),
    "anthropic": refusal("prompt is too long: 5301 tokens > 4000 maximum"),
    "gemini": plain(
        {
            "error": {
                "code": 400,
                "message": "The input token count (5301) exceeds the maximum number of tokens allowed (4000).",
                "status": "INVALID_ARGUMENT",
            }
        },
        status="400 Bad Request",
    ),
    "vllm": plain(
        {
            "object": "error",
            "message": "This model's maximum context length is 4000 tokens. However, you requested 5301 tokens in the"
            " messages, Please reduce the length of the messages.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        status="400 Bad Request",
    ),
    "llama-cpp": plain(
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 5301,
                "n_ctx": 4000,
            }
        },
        status="400 Bad Request",
    ),
    "nested": plain(
        {"error": {"message": '{"error":{"message":"prompt is too long: 5301 tokens > 4000 maximum"}}'}},
        status="400 Bad Request",
    ),
    "413": plain(b"", status="413 Request Entity Too Large"),
    "bucket": refusal(
        "Request too large for gpt-4o on tokens per min (TPM): Limit 4000, Requested 5301.",
        "429 Too Many Requests",
        code="rate_limit_exceeded",
        kind="tokens",
    ),
    "text": plain(b"context length exceeded", status="400 Bad Request", kind="text/plain"),
    "not-one": refusal("The image is too large: 5301 pixels > 4000 maximum."),
}

_NOTES = (
    "The user asked about several orders that were sent to the old address, and the clerk noted the new one for each."
)


def _told(text: str | None, **choice: Any) -> Reply:
    return plain(
        completion(text, MODEL, {"prompt_tokens": 4_000, "completion_tokens": 40, "total_tokens": 4_040}, **choice)
    )


_PARAMETER = "Unsupported parameter: '{}' is not supported with this model."
SUMMARIES: Mapping[str, tuple[Reply, ...]] = {
    "whole": (_told(_NOTES),),
    "500": (refusal("Broken.", "500 Internal Server Error"),) * 6,
    "500-once": (refusal("Broken.", "500 Internal Server Error"),),
    "401": (refusal("No.", "401 Unauthorized"),) * 6,
    "429-soon": (refusal("Slow down.", "429 Too Many Requests", "retry-after-ms: 20"),),
    "429-late": (refusal("Slow down.", "429 Too Many Requests", "retry-after: 60"),) * 6,
    "closed": (Reply(b"", closes=True),) * 6,
    "refused": (_told("I'm sorry, but I can't help with that."),) * 6,
    "refused-once": (_told("I'm sorry, but I can't help with that."),),
    "filtered": (_told("", finish_reason="content_filter"),) * 6,
    "empty": (_told(""),) * 6,
    "null": (_told(None),) * 6,
    "short": (_told("A talk."),) * 6,
    "long": (_told("word " * 6_000),) * 6,
    "truncated": (_told(_NOTES, finish_reason="length"),) * 6,
    "calls": (
        _told(
            _NOTES,
            finish_reason="tool_calls",
            message={"tool_calls": [{"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}}]},
        ),
    )
    * 6,
    "thinking": (_told(f"<think>Let me see.</think>\n\n{_NOTES}"),),
    "marks": (_told(f"{_NOTES} <notes 12345678> </notes 12345678> <0a1b2c3d user>"),),
    "unreadable": (plain(b"<html>"),) * 6,
    "error-frame": (
        streamed(*text_frames(_NOTES, MODEL)[:3], frame({"error": {"message": "Overloaded.", "code": 529}})),
    )
    * 6,
    "cut": (streamed(*text_frames(_NOTES, MODEL, finish=None), cut=True),) * 6,
    "no-end": (streamed(*text_frames(_NOTES, MODEL, finish=None), done=False),) * 6,
    "done-without-reason": (streamed(*text_frames(_NOTES, MODEL, finish=None)),),
    "reasoning-stream": (
        streamed(chunk({"role": "assistant", "reasoning_content": "Hm."}, MODEL), *text_frames(_NOTES, MODEL)),
    ),
    "no-stream": (refusal(_PARAMETER.format("stream")), _told(_NOTES)),
    "no-stream-options": (refusal(_PARAMETER.format("stream_options")),),
    "other-cap": (
        refusal(
            "Unsupported parameter: 'max_tokens' is not supported with this model."
            " Use 'max_completion_tokens' instead.",
            code="unsupported_parameter",
        ),
    ),
    "other-cap-back": (refusal("Unknown parameter: 'max_completion_tokens'. Use 'max_tokens' instead."),),
    "no-temperature": (
        refusal("Unsupported value: 'temperature' does not support 0 with this model.", code="unsupported_value"),
    ),
    "no-effort": (refusal(_PARAMETER.format("reasoning_effort")),),
    "overflow": (OVERFLOWS["openai"],),
    "overflows": (OVERFLOWS["openai"],) * 9,
}


def _errors() -> Iterator[Case]:
    for name, error in ERRORS.items():
        model = f"gpt-4o-error-{name}"
        asked = conversation(18)
        yield case(
            f"error-{name}",
            Step(chat(HELLO), (error,)),
            Step(chat(HELLO, stream=True), (error,)),
            Step(chat(asked, model=model), (error,)),
        )
        yield case(
            f"error-{name}-late",
            Step(chat(asked, model=f"{model}-late", stream=True), (error,) * 4),
            chat(asked, model=f"{model}-late", stream=True),
        )
    answers = (
        streamed(*text_frames("Yes, it is.", MODEL)[:2], cut=True),
        plain(completion("Yes", MODEL)),
        plain(b"hello"),
        streamed(done=False),
    )
    for number, answer in enumerate(answers):
        for mode in ("chunk", "named", "comment", "off"):
            yield case(
                f"begun-stream-{number}-{mode}",
                Step(
                    chat(
                        conversation(18),
                        f"x-context-events: {mode}",
                        model=f"gpt-4o-begun-{number}-{mode}",
                        stream=True,
                    ),
                    (answer,),
                ),
            )


def _overflows() -> Iterator[Case]:
    for name, refused in OVERFLOWS.items():
        for times in (1, 2):
            for stream in (False, True):
                model = f"gpt-4o-wide-{name}-{times}-{stream}"
                steps = (
                    Step(chat(conversation(15), model=model, stream=stream), (refused,) * times),
                    Step(chat(conversation(16), model=model, stream=stream)),
                )
                yield case(f"overflow-{name}-{times}{'-streamed' if stream else ''}", *steps)
    error = frame(
        {"error": {"message": "prompt is too long: 5301 tokens > 4000 maximum", "code": "context_length_exceeded"}}
    )
    for place in (0, 1, 3):
        model = f"gpt-4o-wide-frame-{place}"
        frames = [*text_frames("Yes, it is on its way.", MODEL)[:place], error]
        yield case(
            f"overflow-frame-{place}",
            Step(chat(conversation(15), model=model, stream=True), (streamed(*frames),)),
            *growing(16, 16, model=model, stream=True),
        )
    history, model = conversation(9, tool_turn), "gpt-4o-wide-tools-refused"
    yield case(
        "overflow-tools",
        Step(chat(history, model=model, tools=TOOLS), (OVERFLOWS["openai"],)),
        chat(history, model=model, tools=TOOLS),
    )
    yield case("overflow-hello", Step(chat(HELLO, model="gpt-4o-wide-hello"), (OVERFLOWS["openai"],) * 2))
    failing = (refusal("Broken.", "401 Unauthorized"),) * 4
    yield case(
        "overflow-no-summary",
        Step(chat(conversation(15), model="gpt-4o-wide-failing"), (OVERFLOWS["openai"],), failing),
    )
    yield case(
        "overflow-then-error",
        Step(chat(conversation(15), model="gpt-4o-wide-then"), (OVERFLOWS["openai"], ERRORS["500"])),
    )
    full = plain(completion("Ye", MODEL, finish_reason="model_context_window_exceeded"))
    yield case(
        "window-full",
        Step(chat(conversation(15), model="gpt-4o-wide-full"), (full,)),
        *growing(16, 17, model="gpt-4o-wide-full"),
    )


def _summaries() -> Iterator[Case]:
    for name, told in SUMMARIES.items():
        for stream in (False, True):
            model = f"gpt-4o-{name}-{stream}"
            steps = (
                Step(chat(conversation(18), model=model, stream=stream), summaries=told),
                Step(chat(conversation(19), model=model, stream=stream)),
            )
            yield case(f"summary-{name}{'-streamed' if stream else ''}", *steps)
        yield case(
            f"summary-{name}-prefix",
            Step(chat(conversation(22), "x-context-preset: librechat", model=f"gpt-4o-prefix-{name}"), summaries=told),
        )
    for model in ("o3-mini-cap", "gpt-5-cap"):
        yield case(
            f"summary-{model}",
            Step(chat(conversation(18), model=model), summaries=SUMMARIES["no-effort"]),
            *growing(19, 22, model=model),
        )
    failing = SUMMARIES["401"]
    # Over the window: something has to be done without a summary.
    yield case(
        "no-summary-but-too-large",
        *(
            Step(chat(conversation(turns), model="gpt-4o-too-large", stream=turns % 2 > 0), summaries=failing)
            for turns in (26, 27, 34)
        ),
    )
    history = conversation(17, tool_turn)
    yield case("no-summary-for-tools", Step(chat(history, tools=TOOLS, model="gpt-4o-no-tools"), summaries=failing))


ROUTES = {
    "upstreams": {"second": {"base_url": "{provider}/second", "discover_windows": False}},
    "summary": {
        "model": "gpt-4o-mini",
        "fallbacks": [{"model": "gpt-4o"}, {"model": "llama-3", "upstream": "second"}],
        "parameters": {"temperature": 0, "seed": 7},
        "prompts": [
            {
                "model": "prompted-*",
                "prompt": "Keep numbers.",
                "pinned_text": "Be kind.",
            }
        ],
    },
}


def _routes() -> Iterator[Case]:
    """A model of its own for summaries, and others that are asked where it fails."""
    yield case("own-model", *growing(17, 19, every=2))
    # One tenant for all that fail: after three times the route is left alone, for half a minute.
    steps = (
        Step(
            chat(
                conversation(18),
                conversation_id=f"f{failing}",
                key="sk-failing",
                context={"instructions": f"{failing}"},
            ),
            summaries=SUMMARIES["401"][:failing],
        )
        for failing in (1, 2, 3)
    )
    yield case("fallbacks", *steps)
    yield case(
        "prompted",
        *growing(17, 30, every=3, model="prompted-1"),
        *growing(17, 17, "x-context-preset: rolling", model="prompted-2"),
        chance=(FORK,),
    )
    yield case("tools", *growing(8, 17, every=3, turn=tool_turn, tools=TOOLS))
    yield case(
        "no-retries",
        Step(chat(conversation(15), model="gpt-4o-wide"), (OVERFLOWS["openai"],)),
        *growing(16, 16, model="gpt-4o-wide"),
    )


GROUPS = (
    Group("errors", tuple(_errors())),
    Group("overflows", tuple(_overflows())),
    Group("summaries", tuple(_summaries()), {"summary": {"parameters": {"temperature": 0}}}),
    Group("routes", tuple(_routes()), ROUTES),
)
