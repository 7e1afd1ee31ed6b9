"""What the simulated Responses API refuses, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lab.simulator.refusals import Refusal
from lab.simulator.responses.items import CALLS, MEMBERS, OUTPUTS, item_id, seal
from lab.simulator.responses.judge import refusal_of

USER: Any = {"role": "user", "content": "Hello"}
CALL: Any = {"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": "{}"}
OUTPUT: Any = {"type": "function_call_output", "call_id": "call_1", "output": "found"}
REASONING: Any = {
    "type": "reasoning",
    "id": item_id("reasoning", 7, 0, bound=False),
    "summary": [],
    "encrypted_content": seal("reasoning", "Hm."),
}
SAID: Any = {
    "type": "message",
    "id": item_id("message", 7, 1, bound=True),
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Well.", "annotations": [], "logprobs": []}],
}
COMPACTION: Any = {"type": "compaction", "encrypted_content": seal("compaction", "All of it.")}
TRIGGER: Any = {"type": "compaction_trigger"}


def request(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-x", "input": list(items) or "Hello", **more}


def refusal(asked: Any) -> Refusal:
    found = refusal_of(asked)
    assert found is not None
    return found


def missing(param: str) -> Refusal:
    return Refusal(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def unknown(param: str) -> Refusal:
    return Refusal(f"Unknown parameter: '{param}'.", param, "unknown_parameter")


def invalid(message: str, param: str) -> Refusal:
    return Refusal(message, param, "invalid_value")


def unmatched(message: str) -> Refusal:
    """An item without another that belongs to it."""
    return Refusal(message, "input", None)


def undecipherable(sealed: str) -> Refusal:
    return Refusal(
        f"The encrypted content gAAA...{sealed[-4:]} could not be verified. "
        "Reason: Encrypted content could not be decrypted or parsed.",
        None,
        "invalid_encrypted_content",
    )


ALONE = unmatched(f"Item '{REASONING['id']}' of type 'reasoning' was provided without its required following item.")
REFUSED: Mapping[str, tuple[Any, Refusal]] = {
    "unknown parameter": (request(context={}), unknown("context")),
    "unknown member of an item": (request({**USER, "x": 1}), unknown("input[0].x")),
    "no model": ({"input": "x"}, missing("model")),
    "no call_id": (
        request(USER, {"type": "function_call", "name": "f", "arguments": "{}"}),
        missing("input[1].call_id"),
    ),
    "no summary": (request({"type": "reasoning", "encrypted_content": "x"}), missing("input[0].summary")),
    "too few tokens": (
        request(max_output_tokens=5),
        Refusal(
            "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 5 instead.",
            "max_output_tokens",
            "integer_below_min_value",
        ),
    ),
    "wrong role": (
        request({"role": "tool", "content": "x"}),
        invalid(
            "Invalid value: 'tool'. Supported values are: 'assistant', 'system', 'developer', and 'user'.",
            "input[0].role",
        ),
    ),
    "wrong part for a role": (
        request(USER, {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}),
        invalid(
            "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.", "input[1].content[0]"
        ),
    ),
    "id of another type": (
        request({**CALL, "id": "x"}, OUTPUT),
        invalid("Invalid 'input[0].id': 'x'. Expected an ID that begins with 'fc'.", "input[0].id"),
    ),
    "duplicate": (
        request(REASONING, SAID, REASONING, SAID),
        unmatched(
            f"Duplicate item found with id {REASONING['id']}. Remove duplicate items from your input and try again."
        ),
    ),
    "call without output": (request(CALL), unmatched("No tool output found for function call call_1.")),
    "output before its call": (
        request(OUTPUT, CALL),
        unmatched("No tool call found for function call output with call_id call_1."),
    ),
    "output of another family": (
        request(CALL, {**OUTPUT, "type": "custom_tool_call_output"}),
        unmatched("No tool call found for custom tool call output with call_id call_1."),
    ),
    "reasoning alone": (request(USER, REASONING), ALONE),
    "reasoning before a user": (request(REASONING, USER), ALONE),
    "message without its reasoning": (
        request(USER, SAID),
        unmatched(
            f"Item '{SAID['id']}' of type 'message' was provided without its required 'reasoning' item: "
            f"'{REASONING['id']}'."
        ),
    ),
    "altered reasoning": (
        request({**REASONING, "encrypted_content": REASONING["encrypted_content"][:-4] + "AAA="}, SAID),
        undecipherable("AAA="),
    ),
    "trigger in the middle": (
        request(TRIGGER, USER),
        invalid("A 'compaction_trigger' item must be the last item in 'input'.", "input[0]"),
    ),
}


@pytest.mark.parametrize(("asked", "expected"), REFUSED.values(), ids=REFUSED)
def test_request_is_refused_in_openais_words(asked: Any, expected: Refusal) -> None:
    assert refusal(asked) == expected


@pytest.mark.parametrize("item", [{"type": "item_reference", "id": REASONING["id"]}, {"id": REASONING["id"]}])
def test_nothing_is_stored(item: Any) -> None:
    assert refusal(request(item, SAID)).status == 404


ACCEPTED: Mapping[str, Any] = {
    "string": request(),
    "reasoning and what followed": request(USER, REASONING, SAID, USER),
    "what followed, its id taken away": request(USER, {name: SAID[name] for name in SAID if name != "id"}),
    "interleaved calls": request(
        CALL, {**CALL, "call_id": "call_2"}, OUTPUT, USER, {**OUTPUT, "call_id": "call_2", "output": "x"}
    ),
    "output with a name only": request({"type": "function_call_output", "name": "clock", "output": "noon"}),
    "shell answered by its id": request(
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "action": {"type": "exec"}},
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "x"},
    ),
    "search that the provider ran": request({"type": "tool_search_call", "arguments": {}}),
    "compaction": request(COMPACTION, USER, TRIGGER),
}


@pytest.mark.parametrize("asked", ACCEPTED.values(), ids=ACCEPTED)
def test_request_is_accepted(asked: Any) -> None:
    assert refusal_of(asked) is None


MORE: Mapping[str, Mapping[str, Any]] = {
    "function_call": {"name": "f", "arguments": "{}"},
    "custom_tool_call": {"name": "f", "input": "x"},
    "shell_call": {"action": {}},
    "local_shell_call": {"action": {}},
    "apply_patch_call": {"operation": {}, "status": "completed"},
    "computer_call": {},
    "tool_search_call": {"arguments": {}},
    "program": {"id": "p", "code": "x", "fingerprint": "y"},
}
ANSWERS: Mapping[str, Any] = {
    "id": "o",
    "call_id": "c",
    "output": "x",
    "status": "completed",
    "tools": [],
    "result": "x",
}


@pytest.mark.parametrize(("output", "call"), [(output, calls[0]) for output, calls in OUTPUTS.items()])
def test_calls_of_every_family_need_their_outputs_and_outputs_their_calls(output: str, call: str) -> None:
    called = {"type": call, "call_id": "c", **MORE[call]}
    answer = {"type": output, **{name: value for name, value in ANSWERS.items() if name in MEMBERS[output]}}
    if output == "local_shell_call_output":
        answer["id"] = "c"
    assert refusal_of(request(called, answer)) is None
    assert refusal(request(called)).message == f"No tool output found for {CALLS[call]} c."
    assert refusal(request(answer)).message == f"No tool call found for {CALLS[call]} output with call_id c."
