"""A provider's refusal as an error object, and what it says about asking again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.formats.refusals import LONGEST_PAUSE, error_body, is_repeatable, named_pause
from app.proxy.recovery import RetryBudget

NOW = 1_795_257_889.0


def error(status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> Any:
    told = json.loads(error_body(status, headers, body, NOW))
    assert list(told) == ["error"]
    return told["error"]


def test_what_the_provider_said_stands_as_it_is() -> None:
    given = {"message": "No.", "type": "tokens", "param": "model", "code": None, "odd": [1.0], "status": "DENIED"}
    assert error(403, json.dumps({"error": given}).encode()) == given


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
    assert error(status) == {"message": message, "type": kind, "param": None, "code": code, "status": status}


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
    told = error(500, body)
    assert (told["message"], told["code"], told["type"]) == (message, "internal_server_error", "server_error")


def test_names_beside_the_message_count_where_they_are_names() -> None:
    told = error(400, b'{"message":"no","type":"BadRequestError","param":null,"code":"1800"}')
    assert (told["type"], told["param"], told["code"]) == ("BadRequestError", None, "1800")


def test_the_request_and_the_pause_are_told_where_the_provider_named_them() -> None:
    told = error(429, b"{}", (b"request-id", b"req_2"), (b"retry-after", b"3"))
    assert (told["status"], told["request_id"], told["retry_after"]) == (429, "req_2", 3.0)


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
