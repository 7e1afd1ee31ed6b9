"""Shapes: what providers say of messages that do not stand as their format demands, and what else they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from app.formats.refusals import demands_alternation, refused_shape

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
