"""Refusals: what a provider's error says of the prompt's size, of its shape, and of another attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.overflow import CutAnswer, Overflow, overflow_of
from app.formats.refusals import (
    LONGEST_COMPARED,
    LONGEST_PAUSE,
    MOST_PLACES,
    PIECE,
    demands_alternation,
    echoed_in,
    echoes,
    error_body,
    is_repeatable,
    named_pause,
    read_overflow,
    refused_shape,
)
from app.proxy.retries import RetryBudget
from tests.unit.conversations import sure
from tests.unit.refusals import NEGATIVES, OVERFLOWS, Refused


def error(message: str, **members: Any) -> dict[str, Any]:
    """OpenAI's envelope."""
    return {"error": {"message": message, **members}}


def numbers(overflow: Overflow | None) -> tuple[int | None, int | None, int | None] | None:
    return None if overflow is None else (overflow.limit, overflow.prompt, overflow.requested)


# The collection of real bodies


def test_each_overflow_is_known_in_its_providers_words() -> None:
    found = [read_overflow(each.status, each.body, first_frame=each.status == 200) for each in OVERFLOWS]
    assert [told for told in zip(OVERFLOWS, found, strict=True) if not is_as_told(*told)] == []


def is_as_told(refused: Refused, found: Overflow | None) -> bool:
    """Whether this is what is to be read in the body."""
    if found is None or found.kind != refused.kind or found.needs_pressure:
        return False
    over = refused.limit is not None and (refused.requested is None or refused.requested > refused.limit)
    return found.learn_window is (over and refused.kind == "context_window") and numbers(found) == (
        refused.limit,
        refused.prompt,
        refused.requested,
    )


def test_no_refusal_for_another_reason_is_taken_for_an_overflow() -> None:
    for other in NEGATIVES:
        assert read_overflow(other.status, other.body) is None, other
        assert read_overflow(200, other.body, first_frame=True) is None, other


# Where the text is


LONG = "prompt is too long: 210000 tokens > 200000 maximum"


@pytest.mark.parametrize(
    "body",
    [
        LONG,
        {"message": LONG},
        {"error": LONG},
        {"detail": [{"loc": ["body"], "msg": LONG}]},
        {"errors": [{"code": 5, "message": LONG}], "trace": "x"},
        [{"error": {"message": LONG}}],
        error("Upstream said: " + json.dumps(error(LONG))),
        error("Provider returned error", code=400, metadata={"raw": json.dumps(error(LONG))}),
        error(f"OpenAIException - {{'error': '{LONG}'}}"),
        error(f"{LONG}, see https://x.example/rate-limits/billing"),
    ],
)
def test_the_providers_words_are_found_wherever_they_stand(body: object) -> None:
    assert numbers(read_overflow(400, body)) == (200_000, 210_000, 210_000)


def test_an_error_in_the_first_frame_of_a_stream_counts_and_nothing_else_there_does() -> None:
    message = "Your input exceeds the context window of this model."
    assert read_overflow(200, error(message), first_frame=True) is not None
    assert read_overflow(200, {"type": "error", "message": message}, first_frame=True) is not None
    assert read_overflow(200, {"choices": [{"delta": {"content": message}}]}, first_frame=True) is None
    assert read_overflow(200, [message], first_frame=True) is None
    assert read_overflow(200, error(message, code=504), first_frame=True) is None
    assert read_overflow(200, error(message, code="400"), first_frame=True) is not None


# Buckets


@pytest.mark.parametrize("status", [413, 429])
@pytest.mark.parametrize(
    "message",
    [
        "Request too large for m on tokens per min (TPM): Limit 10000, Requested 12000.",
        "Request too large on tokens per min. Limit: 10000 / min. Requested: 12000 / min.",
    ],
)
def test_a_request_larger_than_its_bucket_is_too_large_and_teaches_no_window(status: int, message: str) -> None:
    found = sure(read_overflow(status, error(message, code="rate_limit_exceeded")))
    assert (found.kind, found.limit, found.requested) == ("request_too_large", 10_000, 12_000)
    assert not found.learn_window


@pytest.mark.parametrize(
    "message",
    [
        "Rate limit reached on tokens per min (TPM): Limit 10000, Used 9000, Requested 4000.",
        "Request too large on tokens per min (TPM): Limit 10000, Requested 10000.",
        "Request too large on tokens per min (TPM): Limit 0, Requested 10000.",
        "prompt is too long: 9000 tokens > 8192 maximum",
    ],
)
def test_a_busy_bucket_or_another_429_is_no_overflow(message: str) -> None:
    assert read_overflow(429, error(message)) is None


# Limits of bytes


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"detail": "Request body too large. Maximum size is 10485760 bytes."}, 10_485_760),
        ({"error": "Payload too large: 3 MB > 2.5 MB"}, 2_500_000),
        ({"message": "request entity too large", "expected": 2_000_000, "limit": 102_400}, 102_400),
        ({"message": "Request exceeds the maximum size"}, None),
        ({"message": f"Request exceeds the maximum size of {10**400} bytes"}, None),
        ("<html><head><title>413 Request Entity Too Large</title></head><body><hr>nginx/1.27.1</body></html>", None),
    ],
)
def test_a_limit_of_bytes_is_one_with_a_413_alone(body: object, limit: int | None) -> None:
    found = sure(read_overflow(413, body))
    assert (found.kind, found.limit_bytes, found.learn_window) == ("payload", limit, False)
    other = read_overflow(400, body)
    assert other is None or other.needs_pressure


# Answers with status 200

EMPTY, FULL = CutAnswer(False, True, 12_000, 0), CutAnswer(True, False, 11_000, 1_000)


@pytest.mark.parametrize(
    ("cut", "cap", "limit"),
    [
        (EMPTY, None, 12_000),
        (EMPTY, 4_000, 12_000),
        (EMPTY, 16, None),  # A cap so low may have ended it.
        (replace(EMPTY, completion=500), None, None),  # A cap of the provider's own, all of it thinking.
        (replace(EMPTY, completion=500), 500, None),
        (replace(EMPTY, prompt=31_000, completion=500), 4_000, 31_500),
        (replace(EMPTY, prompt=None, completion=None), None, 12_500),
        (replace(EMPTY, prompt=None, completion=None), 4_000, None),
        (replace(EMPTY, is_empty=False), None, None),
        (replace(EMPTY, prompt=100), None, None),  # Less than any window.
        (FULL, 4_000, 12_000),
        (replace(FULL, completion=1_600), 4_000, None),  # It had the room that was kept free.
        (replace(FULL, is_empty=True, completion=1_600), 4_000, 12_600),
    ],
)
def test_an_answer_that_ended_for_want_of_room_is_an_overflow(
    cut: CutAnswer, cap: int | None, limit: int | None
) -> None:
    found = overflow_of(cut, 12_500, 32_000, 1_600, cap)
    assert (found.limit if found is not None else None) == limit


# Refusals without a reason


ODD = {"error": {"message": {"no": "text"}}} | {"n": True}


@pytest.mark.parametrize("body", ["", "Bad Request", None, {}, [], error("Provider returned error"), ODD])
def test_a_refusal_without_a_reason_is_one_only_under_pressure(body: object) -> None:
    found = sure(read_overflow(413, body))
    assert found.needs_pressure
    assert not found.learn_window
    assert read_overflow(422, body) is None


# Hostile bodies


def test_what_nests_too_deeply_or_is_no_json_is_read_as_it_is() -> None:
    deep: Any = "prompt is too long"
    for _ in range(30):
        deep = {"error": deep}
    assert read_overflow(400, deep) == Overflow("context_window", needs_pressure=True)
    lists: Any = deep
    for _ in range(2_000):
        lists = [lists]
    assert read_overflow(400, lists) == Overflow("context_window", needs_pressure=True)
    quoted = "prompt is too long: 9000 tokens > 8192 maximum"
    for _ in range(7):
        quoted = json.dumps({"message": quoted})
    assert numbers(read_overflow(400, quoted)) is not None
    assert numbers(read_overflow(400, 'prompt is too long {"a": ' + "[" * 20_000)) == (None, None, None)
    assert numbers(read_overflow(400, "prompt is too long: 9000 tokens {not json} > 8192 maximum")) is not None
    assert numbers(read_overflow(400, error('prompt is too long {"a": 1}'))) == (None, None, None)
    assert numbers(read_overflow(400, error("prompt is too long", n_ctx=10**30))) == (None, None, None)
    assert numbers(read_overflow(400, error("prompt is too long", code=7, n_ctx=True))) == (None, None, None)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("prompt is too long: \u0669\u0660\u0660\u0660 tokens > \u0668\u0661\u0669\u0662 maximum", (None, None, None)),
        ("prompt is too long: 9000 tokens > \uff18\uff11\uff19\uff12 maximum", (None, 9_000, 9_000)),
        ("prompt is too long: 1234567890 tokens > 8192 maximum", (8_192, None, None)),
        ("prompt is too long: 9000 tokens > 1234567890 maximum", (None, 9_000, 9_000)),
        ("The prompt exceeds the 1234567890 token limit", (None, None, None)),
        ("The prompt exceeds the 100000000 token limit", (100_000_000, None, None)),
        ("The prompt exceeds the " + "9" * 5_000 + " token limit", (None, None, None)),
    ],
)
def test_a_number_is_written_in_ascii_and_no_larger_than_any_window(
    message: str, found: tuple[int | None, int | None, int | None]
) -> None:
    assert numbers(read_overflow(400, error(message))) == found


@pytest.mark.parametrize("number", ["9" * 10, "9" * 5_000, "\u0669\u0660\u0660\u0660\u0660"])
def test_a_bucket_of_no_plausible_size_is_none(number: str) -> None:
    words = "Request too large on tokens per min (TPM)"
    assert read_overflow(429, error(f"{words}: Limit 8000, Requested {number}.")) is None
    assert read_overflow(429, error(f"{words}: Limit {number}, Requested 9000.")) is None


@pytest.mark.parametrize("status", [10**4_000, 10**30, "\uff14\uff10\uff10", "5\u0660\u0660", True, [400], None])
def test_a_code_that_is_no_status_decides_nothing(status: object) -> None:
    frame = {"error": {"message": "prompt is too long", "code": status}}
    assert read_overflow(200, frame, first_frame=True) == Overflow("context_window")


KEYS = st.sampled_from(["error", "message", "code", "detail", "metadata", "raw", "param", "n_ctx", "type"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


@given(JSON, st.sampled_from([400, 413, 422, 429, 200]), st.booleans())
def test_no_body_breaks_the_classifier(body: object, status: int, first_frame: bool) -> None:
    found = read_overflow(status, body, first_frame=first_frame)
    assert found is None or found.limit is None or found.limit >= 1_000


# Numbers that the error quotes from the request

ERROR = "This model's maximum context length is {} tokens. However, your messages resulted in 130,000 tokens."


SAME = (
    *("128000", "000128000", "128,000", "128_000", "128 000", "1 2 8 0 0 0", "0x 128000"),
    *(r"\u0031\u00328000", r"\\u0031\\u00328000", r"\x31\x328000", "&#49;&#50;8000", "&#x31;28000", "%3128000"),
    *("\uff11\uff12\uff18000", "\u0661\u0662\u0668\u0660\u0660\u0660", "a128000b"),
)
ANOTHER = ("1280001", "12800", "28,000", "1128000", "128001", "12.9e4", "128 cats", "", "130,000", "128.5k")


@pytest.mark.parametrize("written", SAME + ANOTHER)
def test_a_number_is_found_however_it_is_written_and_no_other(written: str) -> None:
    assert echoes(ERROR.format(128000), 128_000, f"say {written}") is (written in SAME)


@pytest.mark.parametrize(
    ("request_text", "echoed"),
    [
        ("maximum CONTEXT length is: 4k tokens", True),
        ("that is 99 tokens. However, your turn", True),
        ("the context length is what counts", False),
        ("99 tokens, however yours", False),
        ("99 tokens. However, yourselves", False),
    ],
)
def test_words_beside_the_number_that_stand_beside_one_in_the_request_are_an_echo(
    request_text: str, echoed: bool
) -> None:
    """Whatever the provider made of the number."""
    assert echoes(ERROR.format("128,000"), 128_000, request_text) is echoed


def test_a_number_with_few_words_around_it_is_compared_alone() -> None:
    assert not echoes("limit 128000", 128_000, "limit 5")
    assert not echoes("\u00b2 9", 128_000, "limit 5")


@given(st.integers(1_000, 10**8), st.integers(0, 3), st.sampled_from(["{}", "{:,}", "{:_}", " {} "]))
def test_any_number_is_found_with_leading_zeros_and_separators(number: int, zeros: int, form: str) -> None:
    assert echoes("too long", number, "x" + "0" * zeros + form.format(number).strip() + ".")


@pytest.mark.parametrize("before", [0, PIECE - 3, PIECE - 30, 3 * PIECE - 10])
def test_a_long_request_is_looked_through_wherever_it_is_cut(before: int) -> None:
    filler = " " * before
    assert echoes(ERROR.format(128000), 128_000, filler + "128000 " + "word " * PIECE)
    assert not echoes(ERROR.format(128000), 128_000, filler + "12 8 " + "word " * PIECE)


def test_an_error_full_of_its_number_may_quote_anything() -> None:
    assert not echoes("the limit is 128000 tokens of yours, " * MOST_PLACES, 128_000, "hello")
    numbers = " ".join(f"{word} is at 128000 for {word}" for word in map(str, range(5_000)))
    assert echoes(numbers, 128_000, "hello")


@pytest.mark.parametrize(
    ("body", "echoed"),
    [
        (rb'{"a":"\u0031\u00328000"}', True),
        (b'{"a":"hello"}', False),
        (b'{"a":1e999}', True),
        (b'{"\xff":1}', True),
        (b'"%b"' % (b"x" * LONGEST_COMPARED), True),
    ],
)
def test_a_body_that_cannot_be_compared_may_hold_anything(body: bytes, echoed: bool) -> None:
    assert echoed_in("the limit is 128000", 128_000, body) is echoed


# Shapes

SAID: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text("utf-8"))
MISSHAPEN, ALTERNATION, OTHERS = SAID["misshapen"], SAID["alternation"], SAID["others"]


def anthropic(message: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": message}}).encode()


def openai(message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": "messages", "code": None}
    return json.dumps({"error": error}, indent=2).encode()


def routed(message: str) -> bytes:
    """A router quotes the provider behind it, as JSON in a string."""
    raw = json.dumps({"error": {"message": message}})
    return json.dumps({"error": {"message": "Provider returned error", "metadata": {"raw": raw}}}).encode()


WRITTEN = [anthropic, openai, routed, str.encode]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("message", MISSHAPEN + ALTERNATION)
def test_a_refusal_of_a_shape_is_told_in_the_providers_own_words(message: str, written: object) -> None:
    assert callable(written)
    said = refused_shape(400, written(message))
    assert said
    assert said in message.lower().translate(str.maketrans("", "", "`'\""))
    assert demands_alternation(said) is (message in ALTERNATION)


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("message", OTHERS)
def test_what_else_is_refused_is_no_shape(message: str, written: object) -> None:
    assert callable(written)
    assert refused_shape(400, written(message)) is None


@pytest.mark.parametrize("status", [401, 404, 413, 429, 501])
def test_only_what_the_request_says_is_wrong_with_it(status: int) -> None:
    assert refused_shape(status, anthropic(MISSHAPEN[0])) is None


def test_a_stream_may_begin_with_the_refusal() -> None:
    assert refused_shape(200, openai(MISSHAPEN[0]), first_frame=True)
    for status in (422, 500, 503):
        assert refused_shape(status, openai(MISSHAPEN[0]))


# The error object, and pauses

NOW = 1_795_257_889.0


def error_told(status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> Any:
    told = json.loads(error_body(status, headers, body, NOW))
    assert list(told) == ["error"]
    return told["error"]


def test_what_the_provider_said_stands_as_it_is() -> None:
    given = {"message": "No.", "type": "tokens", "param": "model", "code": None, "odd": [1.0], "status": "DENIED"}
    assert error_told(403, json.dumps({"error": given}).encode()) == given


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", "bad_request"),
        (401, "authentication_error", "invalid_api_key"),
        (403, "permission_error", "forbidden"),
        (404, "invalid_request_error", "not_found"),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (500, "server_error", "internal_server_error"),
        (529, "server_error", "status_529"),
    ],
)
def test_what_it_left_out_is_made_from_its_status(status: int, kind: str, code: str) -> None:
    message = f"The provider answered with status {status}."
    assert error_told(status) == {"message": message, "type": kind, "param": None, "code": code, "status": status}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":"busy"}', "busy"),
        (b'{"detail":"Not authenticated"}', "Not authenticated"),
        (b'{"detail":[{"msg":"Field required"}]}', "Field required"),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'[{"error":{"message":"quota","status":"RESOURCE_EXHAUSTED"}}]', "quota"),
        (b'"busy"', "busy"),
        (b'{"error":{"message":null}}', 'The provider answered with status 500: {"error":{"message":null}}'),
        (b"<html>busy</html>", "The provider answered with status 500: <html>busy</html>"),
        (b'{"a":1}', 'The provider answered with status 500: {"a":1}'),
        (b"[]", "The provider answered with status 500: []"),
        (b"\xff" * 600, "The provider answered with status 500: " + "\N{REPLACEMENT CHARACTER}" * 500),
    ],
)
def test_a_message_is_found_in_every_usual_shape(body: bytes, message: str) -> None:
    told = error_told(500, body)
    assert (told["message"], told["code"], told["type"]) == (message, "internal_server_error", "server_error")


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({b"retry-after-ms": b"250", b"retry-after": b"1"}, 0.25),
        ({b"retry-after": b" 1.5 "}, 1.5),
        ({b"retry-after": b"Sat, 21 Nov 2026 10:44:59 GMT"}, 10.0),
        ({b"retry-after": b"Sat, 21 Nov 2020 10:44:59 GMT"}, 0.0),
        ({b"retry-after": b"soon"}, None),
        ({b"retry-after-ms": b"-1"}, None),
        ({b"retry-after": b"9" * 400}, LONGEST_PAUSE),
        ({b"retry-after": b"Sat, 21 Nov 9999 10:44:59 GMT"}, LONGEST_PAUSE),
        ({b"retry-after": b"Sat, 21 Nov 2026 18446744073709551616:44:59 GMT"}, None),
        ({}, None),
    ],
)
def test_the_pause_is_read_in_milliseconds_in_seconds_or_as_a_date(headers: dict[bytes, bytes], pause: float) -> None:
    assert named_pause(headers.items(), NOW) == pause


def test_what_sdks_repeat_is_repeatable_unless_the_provider_says_otherwise() -> None:
    repeated = {status for status in range(200, 600) if is_repeatable(status, ())}
    assert repeated == {408, 409, 429, *range(500, 600)}
    assert is_repeatable(400, [(b"x-should-retry", b"true")])
    assert not is_repeatable(503, [(b"x-should-retry", b"false")])


def test_patience_is_for_two_repetitions() -> None:
    patience = RetryBudget(60.0)
    first, second = patience.pause() or 0, patience.pause() or 0
    assert 0.375 <= first <= 0.5
    assert 0.75 <= second <= 1.0
    assert patience.pause() is None


def test_patience_is_as_long_as_the_client_waits() -> None:
    headers = [(b"retry-after", b"5")]
    assert RetryBudget(4.0).pause(headers) is None
    patience = RetryBudget(6.0)
    assert patience.pause(headers) == 5.0
    assert patience.pause([(b"retry-after-ms", b"0")]) is not None
