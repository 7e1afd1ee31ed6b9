"""Paths: whose API an address is, what is posted there, and what says that it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.formats.paths import COUNTS, FORMAT_NAMES, FORMATS, format_at, key_headers
from app.formats.refusals import says_no_such_path

CASES: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("paths.yaml").read_text("utf-8"))
BEARER, OWN = (b"authorization", b"Bearer sk"), (b"x-api-key", b"sk")


@pytest.mark.parametrize(("target", "expected"), CASES["addresses"])
def test_each_address_is_of_one_api_or_of_none(target: str, expected: str | None) -> None:
    assert format_at(target.encode()) == expected


def test_every_format_has_a_name_and_its_own_path_among_its_paths() -> None:
    assert {format_.name for format_ in FORMATS} <= set(FORMAT_NAMES)
    assert all(format_at(format_.path) == format_.name for format_ in FORMATS)
    assert all(format_at(path) == name for path, name in COUNTS.items())


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


@pytest.mark.parametrize(("status", "body"), CASES["missing_path"])
def test_a_server_that_has_no_such_path_is_recognised(status: int, body: str) -> None:
    assert says_no_such_path(status, body.encode())


@pytest.mark.parametrize(("status", "body"), CASES["missing_other"])
def test_something_else_that_is_missing_says_nothing_of_the_path(status: int, body: str) -> None:
    assert not says_no_such_path(status, body.encode())
