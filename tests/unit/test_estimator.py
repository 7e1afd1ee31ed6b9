"""The estimator's memory: what was counted before is not counted again, and what is remembered is right."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter as Tally
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.conversation.messages import History, Message
from app.formats.chat_completions import read_message
from app.formats.reader import MessageReader
from app.runtime.caches import Caches
from app.tokens.counting_rules import CountingRules, rules_for
from app.tokens.estimate import Declarations, ResponseFormat, Tool
from app.tokens.estimator import Estimator, Prompt
from app.tokens.tokenizer import Tokenizer
from tests.unit.conversations import IDENTITY, message, sure
from tests.unit.test_tokenizer import FETCHED, needs_tables


class Tables(Tokenizer):
    """Counts a token a word, and keeps what it was asked to count."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.counted: Tally[str] = Tally()

    def counter(self, encoding: str) -> Any:
        tables = self

        class Counting:
            is_ready = True

            def __init__(self) -> None:
                self.encoding = encoding

            def __call__(self, text: str) -> int:
                if "boom" in text:
                    raise ValueError(text)
                tables.counted[text] += 1
                return len(text.split())

        return Counting()


CALL = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "where is it"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "d"}]},
    {"role": "tool", "tool_call_id": "c", "content": "in the attic"},
    {"role": "tool", "tool_call_id": "d", "content": "in the cellar"},
    {"role": "user", "content": "thank you very much"},
]
GIF = b"GIF89a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little") + bytes(40)
TOOLS = Declarations(tools=(Tool("find", "Finds things.", {}),))


IDS = st.sampled_from(["a", "b", "c"])
MESSAGES = st.lists(
    st.one_of(
        st.builds(message, st.sampled_from(["system", "user", "assistant"]), st.text("xy ", max_size=4)),
        st.builds(lambda text: replace(message("assistant", text), bound=True), st.text("xy", max_size=2)),
        st.builds(lambda ids: message("assistant", calls=ids), st.lists(IDS, min_size=1, max_size=2)),
        st.builds(lambda id_: message("tool", "r s", answers=id_), IDS),
    ),
    max_size=5,
)


def read(messages: Sequence[Any]) -> tuple[Message, ...]:
    return MessageReader(IDENTITY, read_message).read([json.dumps(message).encode() for message in messages])


def prompt(
    estimator: Estimator, messages: Sequence[Message], declarations: Declarations = TOOLS, model: str = "gpt-4o"
) -> Prompt:
    return estimator.prompt(model, messages, repr(declarations).encode(), lambda: declarations)


def test_a_turn_costs_only_its_new_messages() -> None:
    tables = Tables()
    estimator = Estimator(tables)
    prompt(estimator, read(TALK)).costs()
    tables.counted.clear()
    prompt(estimator, read([*TALK, {"role": "assistant", "content": "you are welcome"}])).costs()
    assert set(tables.counted) == {"assistant", "you are welcome"}


def test_each_answer_costs_the_name_of_the_response_format() -> None:
    talk, shaped = read(TALK[:1] + TALK[-1:] + [{"role": "assistant", "content": "yes"}]), ResponseFormat("R", "", {})
    costs = [prompt(Estimator(Tables()), talk, Declarations(response_format=each)).costs() for each in (None, shaped)]
    assert [more - less for less, more in zip(*(each.messages for each in costs), strict=True)] == [0, 0, 3]


@pytest.mark.parametrize("change", [{"content": "be kind and brief"}, {"role": "developer"}])
def test_the_instructions_the_tools_stand_behind_are_part_of_what_is_remembered(change: dict[str, Any]) -> None:
    estimator = Estimator(Tables())
    prompt(estimator, read(TALK)).costs()
    changed = read([{**TALK[0], **change}, *TALK[1:]])
    assert prompt(estimator, changed).costs() == prompt(Estimator(Tables()), changed).costs()


def test_the_memory_is_bounded() -> None:
    tables = Tables()
    estimator = Estimator(tables, Caches(1_800))
    messages = read([{"role": "user", "content": f"message number {n}"} for n in range(10)])

    def uncounted(part: Sequence[Message]) -> int:
        return estimator.prompt("gpt-4o", part, b"", Declarations).uncounted

    prompt(estimator, messages).costs()
    assert uncounted(messages[-2:]) == 0
    assert uncounted(messages[:5]) == sum(len(message.raw) for message in messages[:5])


def test_a_text_that_cannot_be_counted_is_estimated_by_its_bytes() -> None:
    messages = read([{"role": "user", "content": "boom " * 100}])
    assert prompt(Estimator(Tables()), messages).costs().messages == (-(-len(messages[0].raw) * 10 // 33),)


def test_tools_that_cannot_be_counted_are_estimated_by_their_bytes() -> None:
    declarations = Declarations(tools=(Tool("boom", "", {}),))
    costs = prompt(Estimator(Tables()), read(TALK), declarations).costs()
    assert costs.fixed == -(-len(repr(declarations)) * 10 // 33)


def test_tools_that_were_never_counted_have_no_bound_and_are_much_work() -> None:
    estimator = Estimator(Tables())
    first = prompt(estimator, read(TALK))
    assert first.bound is None
    assert first.uncounted > 1 << 20
    first.costs()
    again = prompt(estimator, read(TALK))
    assert again.bound is not None
    assert again.uncounted == 0


def forgetting(model: str, host: str = "") -> CountingRules:
    return replace(rules_for(model, host), drops_reasoning=True, variant="forgetting")


THINKING: list[dict[str, Any]] = [
    {"role": "user", "content": "where is it"},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "let us see"}, {"type": "text", "text": "here"}],
    },
]


def test_reasoning_is_counted_in_its_own_turn_only_and_once() -> None:
    tables = Tables()
    estimator, history = Estimator(tables), History(read(THINKING))

    def costs(history: History) -> Sequence[int]:
        made = estimator.prompt("gpt-4o", history, b"", Declarations, token_rules=forgetting)
        assert (made.bound or 0) >= sum(made.costs().messages)
        return made.costs().messages

    open_turn = costs(history)
    assert costs(history) == open_turn
    assert tables.counted["let us see"] == 1
    later = costs(history.grown(read([{"role": "user", "content": "thanks"}])))
    assert (later[0], later[1]) == (open_turn[0], open_turn[1] - 3)
    assert costs(History(read(THINKING))) == open_turn


def test_pictures_are_told_by_rule_and_as_they_are_scaled() -> None:
    estimator = Estimator(Tables())
    shown = {"type": "image_url", "image_url": {"url": "data:image/gif;base64," + b64encode(GIF).decode()}}
    messages = read([{"role": "user", "content": [{"type": "text", "text": "see this"}, shown]}])

    def prompt_of(scale: float) -> Prompt:
        return estimator.prompt("gpt-4o", messages, b"", Declarations, picture_scale=scale)

    plain, scaled = prompt_of(1.0), prompt_of(2.0)
    assert plain.pictures() == (425, 425)
    assert scaled.pictures() == (425, 850)
    assert sum(scaled.costs().messages) == sum(plain.costs().messages) + 425
    assert sum(prompt_of(1.0).costs().messages) == sum(plain.costs().messages)
    assert prompt(estimator, read(TALK)).pictures() is None


@needs_tables
def test_a_table_is_loaded_when_the_first_text_is_counted_and_not_before() -> None:
    one = Estimator(Tokenizer(FETCHED)).prompt("gpt-4o", read(TALK), b"", Declarations)
    assert one.bound is not None
    assert not one.way.count.is_ready
    one.costs()
    assert one.way.count.is_ready


@given(st.lists(MESSAGES, min_size=1, max_size=4), MESSAGES, st.sampled_from(["gpt-4o", "gpt-5"]))
def test_a_history_that_grew_costs_what_one_costs_that_came_at_once(
    steps: list[list[Message]], other: list[Message], model: str
) -> None:
    """Whoever grows out of it, whether or not it was counted itself, and whatever a result that came late joins."""
    estimator, history, said = Estimator(Tables()), History(), list[Message]()
    for new in steps:
        longer = history
        for fork in ([*new, *other], new):
            grown = prompt(estimator, longer := history.grown(fork), model=model)
            assert grown.costs() == prompt(Estimator(Tables()), [*said, *fork], model=model).costs()
            bound = sure(prompt(estimator, longer, model=model).bound)
            assert bound >= sum(grown.costs().messages) + grown.costs().fixed
        history, said = longer, [*said, *new]
