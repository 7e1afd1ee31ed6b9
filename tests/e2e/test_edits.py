"""Edits of the history that clients ask their provider for: made by Steno where the provider does not know them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from lab.simulator import Simulator
from tests.e2e.compactions import statuses
from tests.e2e.conftest import TABLES
from tests.e2e.running import StartSteno, Steno

WINDOW = 32_000
WIDE: dict[str, Any] = {"models": [{"match": "*", "context_window": WINDOW}]}
BETA = "context-management-2025-06-27"
LACKING, DEAF, KNOWING = "claude-opus-5-noedits", "claude-opus-5-deaf", "claude-opus-5"
RESULT = "The order left the harbour in the morning, and the driver signed for every parcel on board. " * 20
"""About 400 tokens."""
THINKING = {"type": "enabled", "budget_tokens": 1_024}
TOOLS: list[Any] = [
    {"name": name, "description": "Looks an order up.", "input_schema": {"type": "object", "properties": {}}}
    for name in ("get_order", "get_rule")
]
CLEAR: dict[str, Any] = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "input_tokens", "value": 1_500},
    "keep": {"type": "tool_uses", "value": 2},
}
ALL: dict[str, Any] = {"type": "clear_thinking_20251015", "keep": "all"}


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(models="any", window=WINDOW, tables=TABLES)


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    return steno(**WIDE)


@pytest.fixture
def claude(running: Steno) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=running.url, api_key="sk-test", max_retries=0, timeout=30.0) as sdk:
        yield sdk


def used(number: int, tool: str = "get_order", note: str = "") -> list[Any]:
    """A use of a tool, and its result."""
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": {"id": f"{number}{note}"}}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"{number}. {RESULT}"}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def history(uses: int, **members: Any) -> list[Any]:
    begun = {"role": "user", "content": "Find my orders."}
    return [begun, *(message for number in range(uses) for message in used(number, **members))]


def ask(claude: anthropic.Anthropic, messages: list[Any], *edits: Any, stream: bool = False, **members: Any) -> Any:
    given: dict[str, Any] = {"model": LACKING, "max_tokens": 1_500, "tools": TOOLS, "messages": messages, **members}
    given |= {"betas": [BETA], "context_management": {"edits": list(edits)}}
    if not stream:
        return claude.beta.messages.create(**given)
    with claude.beta.messages.stream(**given) as events:
        return events.get_final_message()


def applied(message: Any) -> list[dict[str, Any]]:
    return [edit.to_dict() for edit in message.context_management.applied_edits]


def sent(simulator: Simulator) -> dict[str, Any]:
    """The latest payload that the provider took."""
    payload: dict[str, Any] = simulator.chats[-1].payload
    return payload


def results(payload: dict[str, Any]) -> list[str]:
    """Numbers of the results that are whole in a payload."""
    blocks = [block for message in payload["messages"] for block in message["content"] if isinstance(block, dict)]
    held = [str(block["content"]) for block in blocks if block["type"] == "tool_result"]
    return [text.partition(".")[0] for text in held if RESULT.strip() in text]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_old_results_are_cleared_where_the_provider_does_not_know_how(
    claude: anthropic.Anthropic, simulator: Simulator, stream: bool
) -> None:
    """Already with the first request, which the provider refuses as it came."""
    plain: Any = {"extra_body": {"context": {"recall": False}}}
    answer = ask(claude, history(8), CLEAR, ALL, stream=stream, **plain)
    [edit] = applied(answer)
    assert (edit["type"], edit["cleared_tool_uses"]) == (CLEAR["type"], 6)
    assert results(sent(simulator)) == ["6", "7"]
    assert "context_management" not in sent(simulator)
    assert BETA not in str(simulator.chats[-1].headers)
    if not stream:
        assert edit["cleared_input_tokens"] == pytest.approx(answer.context["tokens"]["saved"], abs=2)
    ask(claude, history(8), CLEAR, stream=stream)
    assert [record.status for record in simulator.log] == [400, 200, 200], "it is not asked again"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_is_under_the_trigger_stays_and_the_answer_says_so(
    claude: anthropic.Anthropic, simulator: Simulator, stream: bool
) -> None:
    answer = ask(claude, history(2), CLEAR, ALL, stream=stream)
    assert applied(answer) == []
    assert results(sent(simulator)) == ["0", "1"]


def test_what_was_cleared_stays_so_until_there_is_too_much_again(
    claude: anthropic.Anthropic, simulator: Simulator
) -> None:
    """Between two clearings every prompt goes on where the one before ended, as its provider's cache needs it."""
    moves, before = 0, list[Any]()
    later = {**CLEAR, "trigger": {"type": "input_tokens", "value": 4_000}}
    for uses in range(1, 20):
        ask(claude, history(uses), later)
        messages = sent(simulator)["messages"]
        moves += messages[: len(before)] != before
        before = messages
        assert {"get_order"} >= {block["name"] for m in messages for block in m["content"] if "name" in block}
    assert moves == 2
    assert set(results(sent(simulator))) >= {"17", "18"}


def test_uses_can_be_counted_in_place_of_tokens(claude: anthropic.Anthropic, simulator: Simulator) -> None:
    counted = {**CLEAR, "trigger": {"type": "tool_uses", "value": 4}}
    assert applied(ask(claude, history(4), counted)) == []
    [edit] = applied(ask(claude, history(5), counted))
    assert edit["cleared_tool_uses"] == 3
    assert results(sent(simulator)) == ["3", "4"]


def test_nothing_is_cleared_where_that_would_free_too_little(claude: anthropic.Anthropic, simulator: Simulator) -> None:
    least = {**CLEAR, "clear_at_least": {"type": "input_tokens", "value": 1_000}}
    assert applied(ask(claude, history(4), least)) == []
    assert len(applied(ask(claude, history(6), least))) == 1
    assert results(sent(simulator)) == ["4", "5"]


def test_the_uses_of_excluded_tools_stay(claude: anthropic.Anthropic, simulator: Simulator) -> None:
    asked = [{"role": "user", "content": "Find my orders."}, *used(0, "get_rule"), *history(6)[3:]]
    ask(claude, asked, {**CLEAR, "exclude_tools": ["get_rule"]})
    assert results(sent(simulator)) == ["0", "4", "5"]


@pytest.mark.parametrize(("inputs", "cut"), [(True, 4), (["get_order"], 4), (["get_rule"], 0), (False, 0), (None, 0)])
def test_arguments_are_cleared_where_the_client_says_so(
    claude: anthropic.Anthropic, simulator: Simulator, inputs: Any, cut: int
) -> None:
    ask(claude, history(6, note=" long" * 200), {**CLEAR, "clear_tool_inputs": inputs})
    calls = [block for m in sent(simulator)["messages"] for block in m["content"] if "input" in block]
    assert ["_shortened" in call["input"] for call in calls] == [True] * cut + [False] * (6 - cut)


def test_the_thinking_of_older_turns_is_left_out(claude: anthropic.Anthropic, simulator: Simulator) -> None:
    simulator.script.clear()
    talk: list[Any] = []
    model = "claude-opus-5-think-noedits"
    for number in range(4):
        talk.append({"role": "user", "content": f"Question {number}?"})
        answer = ask(claude, talk, ALL, model=model, thinking=THINKING)
        assert applied(answer) == []
        talk.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
    talk.append({"role": "user", "content": "And now?"})
    two = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}
    for edit, kept in ((two, 2), ({"type": two["type"]}, 1)):
        [told] = applied(ask(claude, talk, edit, model=model, thinking=THINKING))
        assert (told["type"], told["cleared_thinking_turns"]) == (two["type"], 4 - kept)
        assert told["cleared_input_tokens"] > 0
        said = [message["content"] for message in sent(simulator)["messages"] if message["role"] == "assistant"]
        thinks = [any(block["type"] == "thinking" for block in content) for content in said]
        assert thinks == [False] * (4 - kept) + [True] * kept


def test_a_provider_that_knows_them_is_left_to_it(claude: anthropic.Anthropic, simulator: Simulator) -> None:
    for _ in range(2):
        assert applied(ask(claude, history(8), CLEAR, model=KNOWING)) == []
        assert sent(simulator)["context_management"] == {"edits": [CLEAR]}
    assert len(results(sent(simulator))) == 8


def test_a_provider_that_says_nothing_of_them_does_not_know_them(
    claude: anthropic.Anthropic, simulator: Simulator
) -> None:
    assert ask(claude, history(8), CLEAR, model=DEAF).context_management is None
    [edit] = applied(ask(claude, history(8), CLEAR, model=DEAF))
    assert edit["cleared_tool_uses"] == 6
    assert "context_management" not in sent(simulator)


def test_the_operators_word_counts_for_more_than_what_is_seen(steno: StartSteno, simulator: Simulator) -> None:
    for knows in (True, False):
        running = steno(upstream={"native_compaction": knows}, **WIDE)
        with anthropic.Anthropic(base_url=running.url, api_key="sk-test", max_retries=0) as claude:
            if knows:
                with pytest.raises(anthropic.BadRequestError, match="context_management"):
                    ask(claude, history(8), CLEAR)
            else:
                assert len(applied(ask(claude, history(8), CLEAR, model=KNOWING))) == 1
    assert statuses(simulator) == {400, 200}


def test_who_wants_nothing_of_steno_has_the_providers_word(claude: anthropic.Anthropic) -> None:
    for _ in range(2):
        with pytest.raises(anthropic.BadRequestError, match="context_management"):
            ask(claude, history(8), CLEAR, extra_headers={"x-context-compaction": "off"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep": {"type": "tool_uses", "value": -1}},
        {"keep": 3},
        {"trigger": {"type": "input_tokens", "value": "many"}},
        {"clear_at_least": {"type": "tool_uses", "value": 1}},
        {"exclude_tools": "get_order"},
        {"clear_tool_inputs": 7},
    ],
)
def test_a_parameter_that_is_none_is_refused(claude: anthropic.Anthropic, wrong: dict[str, Any]) -> None:
    with pytest.raises(anthropic.BadRequestError, match=next(iter(wrong))):
        ask(claude, history(2), {**CLEAR, **wrong})


def test_a_summary_is_made_where_clearing_is_not_enough(claude: anthropic.Anthropic, simulator: Simulator) -> None:
    said = [{"role": "user", "content": RESULT}, {"role": "assistant", "content": "Noted."}]
    asked = [*(said * 60), *history(6)]
    answer = ask(claude, asked, CLEAR)
    assert answer.context_status == "summarized"
    assert answer.stop_reason == "end_turn"
    assert set(results(sent(simulator))) <= {"4", "5"}


# Truncation


def items(count: int) -> list[Any]:
    said = {"user": "input_text", "assistant": "output_text"}
    roles = ("user", "assistant")
    return [
        {"type": "message", "role": role, "content": [{"type": said[role], "text": f"{number}. {RESULT}"}]}
        for number in range(count)
        for role in roles
    ] + [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]}]


def respond(client: openai.OpenAI, model: str, count: int, *, stream: bool) -> Any:
    given: dict[str, Any] = {"model": model, "input": items(count), "truncation": "auto", "store": False}
    if not stream:
        return client.responses.create(**given)
    events = list(client.responses.create(**given, stream=True))
    begun = [event.response.truncation for event in events if event.type == "response.created"]
    assert begun == ["auto"]
    return events[-1].response


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_is_too_long_is_left_out_where_the_provider_does_not_know_how(
    steno: StartSteno, simulator: Simulator, stream: bool
) -> None:
    """By a policy that would leave it as it is: truncation is asked for."""
    leaves = {"strategy": "none", "mask": {"enabled": False}, "prune": {"enabled": False}}
    client = steno(compaction=leaves, **WIDE).sdk()
    answer = respond(client, "gpt-5-noedits", 60, stream=stream)
    assert (answer.status, answer.truncation) == ("completed", "auto")
    payload = sent(simulator)
    assert "truncation" not in payload
    assert 1 < len(payload["input"]) < 121
    assert payload["input"][-1]["content"][0]["text"] == "And now?"


@pytest.mark.slow
def test_a_provider_that_leaves_out_by_itself_is_left_to_it(running: Steno, simulator: Simulator) -> None:
    for _ in range(2):
        assert respond(running.sdk(), "gpt-5", 2, stream=False).truncation == "auto"
        assert sent(simulator)["truncation"] == "auto"


def test_a_provider_that_takes_truncation_for_nothing_is_not_asked_again(running: Steno, simulator: Simulator) -> None:
    assert respond(running.sdk(), "gpt-5-deaf", 2, stream=False).truncation == "disabled"
    assert respond(running.sdk(), "gpt-5-deaf", 2, stream=True).truncation == "auto"
    assert "truncation" not in json.dumps(sent(simulator))
