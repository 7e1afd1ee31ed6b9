"""Paths: whose API an address is, what is posted there, and what says that it is missing."""

from __future__ import annotations

import pytest

from app.wire.formats import FORMATS
from app.wire.missing_paths import says_no_such_path
from app.wire.paths import COUNTS, FORMAT_NAMES, UNCOMPACTED, format_at, key_headers, uncompacted

VERSION = ((b"anthropic-version", b"2023-06-01"),)
BEARER, OWN = (b"authorization", b"Bearer sk"), (b"x-api-key", b"sk")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/v1/chat/completions", "chat_completions"),
        (b"/v1/chat/completions/c_1?a=b", "chat_completions"),
        (b"/v1/responses/r_1/input_items", "responses"),
        (b"/v1/conversations/", "responses"),
        (b"/v1/messages?beta=true", "messages"),
        (b"/v1/messages/batches/b_1", "messages"),
        (b"/v1/complete", "messages"),
        (b"/v1/completions", None),
        (b"/v1/messages-of-another-kind", None),
        (b"/v1/models", None),
        (b"/v1/threads/t_1/messages", None),
        (b"/openai/responses", None),
    ],
)
def test_each_address_is_of_one_api_or_of_none(target: bytes, expected: str | None) -> None:
    assert format_at(target) == expected


def test_a_header_tells_the_api_of_what_several_have_and_not_of_what_is_anothers() -> None:
    assert format_at(b"/v1/models", VERSION) == "messages"
    assert format_at(b"/v1/files", VERSION) == "messages"
    assert format_at(b"/v1/responses", VERSION) == "responses"


def test_every_format_has_a_name_and_its_own_path_among_its_paths() -> None:
    assert {format_.name for format_ in FORMATS} <= set(FORMAT_NAMES)
    assert all(format_at(format_.path) == format_.name for format_ in FORMATS)
    assert all(format_at(path) == name for path, name in COUNTS.items())


def test_each_path_is_listed_once_and_found_with_slashes_and_query() -> None:
    assert len({entry.name for entry in UNCOMPACTED}) == len(UNCOMPACTED)
    found = uncompacted("POST", b"/v1/messages/count_tokens//?beta=true")
    assert found is not None
    assert found.name == "/v1/messages/count_tokens"
    assert uncompacted("GET", b"/v1/messages/batches") is None
    assert uncompacted("POST", b"/v1/messages/batches/b_1/cancel") is None


@pytest.mark.parametrize(
    ("speaks", "target", "expected"),
    [
        ({"messages"}, b"/v1/messages", [OWN]),
        ({"messages"}, b"/v1/models", [OWN]),
        ({"chat_completions", "responses"}, b"/v1/models", [BEARER]),
        (set(FORMAT_NAMES), b"/v1/messages", [OWN, BEARER]),
        (set(FORMAT_NAMES), b"/v1/chat/completions", [BEARER]),
        (set(FORMAT_NAMES), b"/v1/models", [BEARER]),
        ({"chat_completions"}, b"/v1beta/models?pageSize=1000", [(b"x-goog-api-key", b"sk")]),
    ],
)
def test_a_key_stands_where_the_upstream_wants_it(
    speaks: set[str], target: bytes, expected: list[tuple[bytes, bytes]]
) -> None:
    assert key_headers(b"sk", frozenset(speaks), target) == expected


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"detail":"Not Found"}'),
        (404, b'{"error":{"message":"Invalid URL (POST /v1/messages)","type":"invalid_request_error"}}'),
        (404, b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}'),
        (404, b'{"error":{"message":"Unknown request URL: POST /v1/responses. Please check the URL for typos."}}'),
        (404, b'{"message":"The requested resource was not found."}'),
        (404, b'{"message":"Route POST:/v1/messages not found","error":"Not Found","statusCode":404}'),
        (404, b'{"error":"Unexpected endpoint or method. (POST /v1/messages)"}'),
        (404, b"404 page not found"),
        (404, b"<html><body><h1>404 Not Found</h1></body></html>"),
        (404, b""),
        (405, b'{"detail":"Method Not Allowed"}'),
        (501, b'{"error":{"message":"Not implemented"}}'),
    ],
)
def test_a_server_that_has_no_such_path_is_recognised(status: int, body: bytes) -> None:
    assert says_no_such_path(status, body)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error":{"message":"The model `gpt-9` does not exist or you do not have access to it."}}'),
        (404, b'{"type":"error","error":{"type":"not_found_error","message":"model: claude-9"}}'),
        (404, b'{"error":"model \\"llama9\\" not found, try pulling it first"}'),
        (
            404,
            b'{"error":{"code":"DeploymentNotFound","message":"The deployment for this resource does not exist."}}',
        ),
        (404, b'{"error":{"message":"Previous response with id \'resp_1\' not found."}}'),
        (404, b'{"error":{"message":"No endpoints found that support tool use."}}'),
        (404, b"404: no such model"),
        (404, b"[]"),
        (400, b'{"detail":"Not Found"}'),
        (200, b"404 page not found"),
    ],
)
def test_something_else_that_is_missing_says_nothing_of_the_path(status: int, body: bytes) -> None:
    assert not says_no_such_path(status, body)
