"""Overflow: what a provider's error says about the size of the prompt, and what only looks like it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.budget import CutAnswer, Overflow, overflow_of
from app.formats.refusals import classify
from tests.unit.conversations import sure
from tests.unit.refusals import NEGATIVES, OVERFLOWS, Refused


def error(message: str, **members: Any) -> dict[str, Any]:
    """OpenAI's envelope."""
    return {"error": {"message": message, **members}}


def numbers(overflow: Overflow | None) -> tuple[int | None, int | None, int | None] | None:
    return None if overflow is None else (overflow.limit, overflow.prompt, overflow.requested)


# The collection of real bodies


def test_each_overflow_is_known_in_its_providers_words() -> None:
    found = [classify(each.status, each.body, first_frame=each.status == 200) for each in OVERFLOWS]
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
        assert classify(other.status, other.body) is None, other
        assert classify(200, other.body, first_frame=True) is None, other


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
    assert numbers(classify(400, body)) == (200_000, 210_000, 210_000)


def test_an_error_in_the_first_frame_of_a_stream_counts_and_nothing_else_there_does() -> None:
    message = "Your input exceeds the context window of this model."
    assert classify(200, error(message), first_frame=True) is not None
    assert classify(200, {"type": "error", "message": message}, first_frame=True) is not None
    assert classify(200, {"choices": [{"delta": {"content": message}}]}, first_frame=True) is None
    assert classify(200, [message], first_frame=True) is None
    assert classify(200, error(message, code=504), first_frame=True) is None
    assert classify(200, error(message, code="400"), first_frame=True) is not None


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
    found = sure(classify(status, error(message, code="rate_limit_exceeded")))
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
    assert classify(429, error(message)) is None


# Limits of bytes


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"detail": "Request body too large. Maximum size is 10485760 bytes."}, 10_485_760),
        ({"error": "Payload too large: 3 MB > 2.5 MB"}, 2_500_000),
        ({"message": "request entity too large", "expected": 2_000_000, "limit": 102_400}, 102_400),
        ({"message": "Request exceeds the maximum size"}, None),
        ("<html><head><title>413 Request Entity Too Large</title></head><body><hr>nginx/1.27.1</body></html>", None),
    ],
)
def test_a_limit_of_bytes_is_one_with_a_413_alone(body: object, limit: int | None) -> None:
    found = sure(classify(413, body))
    assert (found.kind, found.limit_bytes, found.learn_window) == ("payload", limit, False)
    other = classify(400, body)
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
    found = sure(classify(413, body))
    assert found.needs_pressure
    assert not found.learn_window
    assert classify(422, body) is None


# Hostile bodies


def test_what_nests_too_deeply_or_is_no_json_is_read_as_it_is() -> None:
    deep: Any = "prompt is too long"
    for _ in range(30):
        deep = {"error": deep}
    assert classify(400, deep) == Overflow("context_window", needs_pressure=True)
    quoted = "prompt is too long: 9000 tokens > 8192 maximum"
    for _ in range(7):
        quoted = json.dumps({"message": quoted})
    assert numbers(classify(400, quoted)) is not None
    assert numbers(classify(400, 'prompt is too long {"a": ' + "[" * 20_000)) == (None, None, None)
    assert numbers(classify(400, "prompt is too long: 9000 tokens {not json} > 8192 maximum")) is not None
    assert numbers(classify(400, error('prompt is too long {"a": 1}'))) == (None, None, None)
    assert numbers(classify(400, error("prompt is too long", n_ctx=10**30))) == (None, None, None)
    assert numbers(classify(400, error("prompt is too long", code=7, n_ctx=True))) == (None, None, None)


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
    assert numbers(classify(400, error(message))) == found


@pytest.mark.parametrize("number", ["9" * 10, "9" * 5_000, "\u0669\u0660\u0660\u0660\u0660"])
def test_a_bucket_of_no_plausible_size_is_none(number: str) -> None:
    words = "Request too large on tokens per min (TPM)"
    assert classify(429, error(f"{words}: Limit 8000, Requested {number}.")) is None
    assert classify(429, error(f"{words}: Limit {number}, Requested 9000.")) is None


@pytest.mark.parametrize("status", [10**4_000, 10**30, "\uff14\uff10\uff10", "5\u0660\u0660", True, [400], None])
def test_a_code_that_is_no_status_decides_nothing(status: object) -> None:
    frame = {"error": {"message": "prompt is too long", "code": status}}
    assert classify(200, frame, first_frame=True) == Overflow("context_window")


KEYS = st.sampled_from(["error", "message", "code", "detail", "metadata", "raw", "param", "n_ctx", "type"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


@given(JSON, st.sampled_from([400, 413, 422, 429, 200]), st.booleans())
def test_no_body_breaks_the_classifier(body: object, status: int, first_frame: bool) -> None:
    found = classify(status, body, first_frame=first_frame)
    assert found is None or found.limit is None or found.limit >= 1_000
