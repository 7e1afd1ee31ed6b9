"""What the simulated Messages API refuses, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lab.simulator.messages.binding import seal, whole_prefix
from lab.simulator.messages.judge import refusal_of

TOOL = {"name": "look_up", "input_schema": {"type": "object"}}
USER: Any = {"role": "user", "content": "Hello"}
MARK: Any = {"cache_control": {"type": "ephemeral"}}
LONG_MARK: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
BINDING = "thinking-binding-controls-2026-08-01"


def text(words: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def use(call: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": "look_up", "input": {}}


def result(call: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": "found", **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def system(words: str = "Be brief.") -> dict[str, Any]:
    return {"role": "system", "content": words}


def request(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "claude-x", "max_tokens": 100, "messages": list(messages) or [USER], **more}


def with_tools(*messages: Any, **more: Any) -> dict[str, Any]:
    return request(*messages, tools=[TOOL], **more)


def thinking(before: Mapping[str, Any], words: str = "Hm.") -> dict[str, Any]:
    """As the simulator hands it out behind this request."""
    return {"type": "thinking", "thinking": words, "signature": seal(whole_prefix(before), words)}


def refused(asked: Any, *betas: str) -> str:
    rejection = refusal_of(asked, betas)
    return "" if rejection is None else rejection.message


UNANSWERED = (
    "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. "
    "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
)
REFUSED: Mapping[str, tuple[Any, str]] = {
    "no object": ([], "The request body is not valid JSON."),
    "no max_tokens": ({"model": "m", "messages": [USER]}, "max_tokens: Field required"),
    "empty text in a result": (
        with_tools(USER, assistant(use()), user(result(content=[{"type": "text", "text": ""}]))),
        "messages: text content blocks must be non-empty",
    ),
    "unknown member": (request(context={}), "context: Extra inputs are not permitted"),
    "unknown member of a message": (request({**USER, "name": "jo"}), "messages.0.name: Extra inputs are not permitted"),
    "unknown member of a block": (
        request(user(text(foo=1))),
        "messages.0.content.0.text.foo: Extra inputs are not permitted",
    ),
    "member without its beta": (
        request(context_management={"edits": []}),
        "context_management: Extra inputs are not permitted",
    ),
    "no messages": ({"model": "m", "max_tokens": 1, "messages": []}, "messages: at least one message is required"),
    "assistant first": (request(assistant(text()), USER), 'messages: first message must use the "user" role'),
    "empty text": (request(user(text(""))), "messages: text content blocks must be non-empty"),
    "blank text": (request(user(text(" \n"))), "messages: text content blocks must contain non-whitespace text"),
    "empty content": (
        request(USER, assistant(text()), user()),
        "messages.2: all messages must have non-empty content except for the optional final assistant message",
    ),
    "prefill": (
        request(USER, assistant(text())),
        "This model does not support assistant message prefill. The conversation must end with a user message.",
    ),
    "prefill that ends with a space": (
        {**request(USER, assistant(text("So "))), "model": "claude-sonnet-4-5"},
        "messages: final assistant content cannot end with trailing whitespace",
    ),
    "no result": (with_tools(USER, assistant(use()), USER), UNANSWERED),
    "text before the result": (with_tools(USER, assistant(use()), user(text(), result())), UNANSWERED),
    "result a message late": (with_tools(USER, assistant(use()), USER, user(result())), UNANSWERED),
    "system message between call and result": (
        with_tools(USER, assistant(use()), system(), user(result())),
        "messages.2: a `system` message must directly follow a user turn",
    ),
    "stray result": (
        with_tools(user(result())),
        (
            "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1. "
            "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
        ),
    ),
    "two results": (
        with_tools(USER, assistant(use()), user(result(), result())),
        (
            "messages.2.content.1: each tool_use must have a single result. "
            "Found multiple `tool_result` blocks with id: toolu_1"
        ),
    ),
    "one id twice": (
        with_tools(USER, assistant(use()), user(result()), assistant(use()), user(result())),
        "messages: `tool_use` ids must be unique",
    ),
    "a strange id": (
        with_tools(USER, assistant(use("a b")), user(result("a b"))),
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    "calls without tools": (
        request(USER, assistant(use()), user(result())),
        "Requests which include `tool_use` or `tool_result` blocks must define tools.",
    ),
    "call by the user": (with_tools(user(use())), "messages.0: `tool_use` blocks can only be in `assistant` messages"),
    "server's result without its call": (
        request(USER, assistant(text(), {"type": "advisor_tool_result", "tool_use_id": "srvtoolu_1"}), USER),
        (
            "messages.1.content.1: unexpected `tool_use_id` found in `advisor_tool_result` blocks: srvtoolu_1. "
            "Each `advisor_tool_result` block must have a corresponding `server_tool_use` block before it."
        ),
    ),
    "system message first": (request(system(), USER), 'messages: first message must use the "user" role'),
    "system message before a user": (
        request(USER, system(), USER),
        "messages.1: a `system` message must be last or be followed by an assistant turn",
    ),
    "five marks": (
        request(user(*(text(**MARK) for _ in range(4))), system=[text(**MARK)]),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "one hour after five minutes": (
        request(user(text(**LONG_MARK)), system=[text(**MARK)]),
        (
            "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
            "cache_control block. Note that blocks are processed in the following order: `tools`, `system`, `messages`."
        ),
    ),
    "marked thinking": (
        request(USER, assistant({**thinking(request(USER)), **MARK}, text()), USER),
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
    ),
    "thinking last": (
        request(USER, assistant(text(), thinking(request(USER))), USER),
        "messages.1: The final block in an assistant message cannot be `thinking`.",
    ),
    "forged thinking": (
        request(USER, assistant({"type": "thinking", "thinking": "x", "signature": "y"}, text()), USER),
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "thinking altered in the latest answer": (
        request(USER, assistant({**thinking(request(USER)), "thinking": "Ha."}, text()), USER),
        (
            "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
            "modified. These blocks must remain as they were in the original response."
        ),
    ),
    "open turn without its thinking": (
        with_tools(
            USER,
            assistant(use()),
            user(result()),
            max_tokens=2_000,
            thinking={"type": "enabled", "budget_tokens": 1_024},
        ),
        (
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from "
            "previous turns. To avoid this requirement, disable `thinking`."
        ),
    ),
}


@pytest.mark.parametrize(("asked", "message"), REFUSED.values(), ids=REFUSED)
def test_request_is_refused_in_anthropics_words(asked: Any, message: str) -> None:
    assert refused(asked) == message


ACCEPTED: Mapping[str, Any] = {
    "string": request(),
    "users in a row": request(USER, USER, assistant(text()), USER),
    "several results, then text": with_tools(
        USER, assistant(text(), use("a"), use("b")), user(result("b"), result("a"), text())
    ),
    "system messages after a user": request(USER, system(), system(), assistant(text()), USER, system()),
    "paused turn": request(
        USER, assistant({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}})
    ),
    "old thinking while it is off": with_tools(
        USER, assistant(thinking(with_tools(USER)), use()), user(result()), assistant(text()), USER
    ),
    "old model's prefill": {**request(USER, assistant(text("So"))), "model": "claude-3-haiku"},
    "four marks, the long ones first": request(user(text(**MARK), text(**MARK)), system=[text(**LONG_MARK)] * 2),
}


@pytest.mark.parametrize("asked", ACCEPTED.values(), ids=ACCEPTED)
def test_request_is_accepted(asked: Any) -> None:
    assert refused(asked) == ""


# Thinking bound to its prefix

BEFORE = {**request(USER, system="Be kind."), "model": "claude-bind"}


def continued(*more: Any, **changes: Any) -> dict[str, Any]:
    """The request whose answer was thinking and a word, with a turn more."""
    return {**BEFORE, "messages": [USER, assistant(thinking(BEFORE), text()), USER, *more], **changes}


def test_thinking_is_accepted_behind_what_it_was_made_behind() -> None:
    assert refused(continued()) == ""


def test_marks_of_the_cache_and_the_form_of_a_text_are_no_part_of_a_prefix() -> None:
    answer = continued()["messages"][1]
    marked = [user(text("Hello", **MARK)), answer, user(text("And?", **MARK))]
    assert refused(continued(messages=marked, system=[text("Be kind.", **MARK)])) == ""


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"system": "Be cruel."}, "The `system` prompt differs from the one this block was created with."),
        ({"tools": [TOOL]}, ""),
        ({"messages": [user(text("A summary.")), *continued()["messages"][1:]]}, ""),
        ({"messages": [USER, *continued()["messages"]]}, ""),
    ],
    ids=["system", "tools", "replaced", "longer"],
)
def test_thinking_is_refused_behind_any_other_prefix(changes: Any, difference: str) -> None:
    message = refused(continued(**changes))
    assert "The block is bound to a different conversation. Remove the block, or set" in message
    assert message.endswith(difference)


def test_thinking_whose_predecessor_was_left_out_is_told_so() -> None:
    longer = continued()
    longer["messages"] += [assistant(thinking(longer), text()), USER]
    assert refused(longer) == ""
    del longer["messages"][1]["content"][0]
    assert refused(longer).endswith(
        "The `thinking` block that preceded this one when it was created is missing from this request."
    )


def test_other_models_read_thinking_behind_any_prefix() -> None:
    assert refused(continued(system="Be cruel.", model="claude-think")) == ""


def test_what_is_to_become_of_misplaced_thinking_needs_a_beta() -> None:
    asked = continued(thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}})
    assert refused(asked) == "thinking.adaptive.block_binding: Extra inputs are not permitted"
    assert refused(asked, BINDING) == ""
