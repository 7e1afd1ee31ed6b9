"""Shapes: what providers say of messages that do not stand as their format demands, and what else they refuse."""

from __future__ import annotations

import json

import pytest

from app.wire.shapes import demands_alternation, refused_shape

MISSHAPEN = [
    (
        "messages.7: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. Each "
        "`tool_use` block must have a corresponding `tool_result` block in the next message."
    ),
    "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1.",
    "messages.7.content.0: unexpected `tool_use_id` found in `advisor_tool_result` blocks: srvtoolu_1.",
    "each tool_use must have a single result. Found multiple `tool_result` blocks with id: toolu_1",
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    "messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
    (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        "The following tool_call_ids did not have response messages: call_1"
    ),
    'An assistant message with "tool_calls" must be followed by tool messages responding to each "tool_call_id".',
    "No tool output found for function call call_1.",
    "No tool call found for custom tool call output with call_id call_1.",
    "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    "Item 'msg_1' of type 'message' was provided without its required 'reasoning' item: 'rs_2'.",
    (
        "messages.51.content.22: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
        "modified. These blocks must remain as they were in the original response."
    ),
    "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
    "messages.3: The final block in an assistant message cannot be `thinking`.",
    "messages: final assistant content cannot end with trailing whitespace",
    "messages.3: all messages must have non-empty content except for the optional final assistant message",
    "This model does not support assistant message prefill. The conversation must end with a user message.",
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
]
ALTERNATION = [
    "Conversation roles must alternate user/assistant/user/assistant/...",
    (
        "------------ While executing CallExpression at line 47, column 32 in source: Error: Jinja Exception: After "
        "the optional system message, conversation roles must alternate user and assistant roles except for tool calls "
        "and results."
    ),
    'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
    'messages: first message must use the "user" role',
    "After the (optional) system message(s), user or tool message(s) should alternate with assistant message(s).",
    "After the (optional) system message(s), user and assistant roles should be alternating.",
    "Please ensure that multiturn requests alternate between user and model.",
    "Messages must alternate between human and assistant.",
    "Unexpected role 'user' after role 'tool'",
    "Consecutive user messages are not allowed.",
]
OTHERS = [
    "prompt is too long: 274468 tokens > 200000 maximum",
    "This model's maximum context length is 8000 tokens. However, your messages resulted in 9100 tokens.",
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.",
    "max_tokens: Field required",
    "context: Extra inputs are not permitted",
    "Invalid value: 'tool'. Supported values are: 'assistant', 'system', 'developer', and 'user'.",
    "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    "",
]


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
