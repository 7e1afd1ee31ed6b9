"""The estimate: what each part of a prompt costs, by rules measured on providers' own counts.

The rules are tested with a token a character, so that each expected number can be read off the texts it is made of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.conversation.messages import History, Kind, Media, Message, ToolCall, unit_starts
from app.formats.chat_completions import SPEC
from app.tokens.counting_rules import (
    CLAUDE,
    GPT_4,
    GPT_4O,
    GPT_5,
    GPT_5_4,
    GPT_5_6,
    GUIDED,
    HIDING,
    O_SERIES,
    CountingRules,
)
from app.tokens.estimate import (
    LONGEST_COMPACTED,
    Declarations,
    ResponseFormat,
    Tool,
    answer_tokens,
    byte_bound,
    declared_tokens,
    is_answer,
    picture_tokens,
    system_text,
    unit_tokens,
    utf8_length,
)
from app.tokens.tokenizer import TABLES, Tokenizer

NOTHING = Declarations()
TOOL = Tool("look_up", "Look it up.", {})
TOOLS = Declarations(tools=(TOOL,))
TOOLS_TEXT = (
    "# Tools\n\n## functions\n\nnamespace functions {\n\n"
    "// Look it up.\ntype look_up = () => any;\n\n} // namespace functions"
)
FORMAT = Declarations(response_format=ResponseFormat("Reply", "How to.", {"type": "object", "title": "Caf\u00e9"}))
BOTH = replace(TOOLS, response_format=FORMAT.response_format)
FORMAT_TEXT = '# Response Formats\n\n## Reply\n\n// How to.\n{"type":"object","title":"Caf\\u00e9"}'

n = len
"""Tokens of a text in these tests."""


def message(role: str, *texts: str, **members: Any) -> Message:
    kind = SPEC.roles[role]
    answered = {"answers": ("",) if kind is Kind.RESULT else ()}
    return Message(kind, role, texts, b"", b"", **{**answered, **members})


def cost(*unit: Message, rules: CountingRules = GPT_4O) -> tuple[int, ...]:
    return unit_tokens(History(unit), rules, n)


# Messages


def test_media_cost_by_the_models_rules_wherever_they_stand() -> None:
    small = Media("image", 10, "low", 1, 1)
    assert cost(message("user", media=(small, small))) == (3 + n("user") + 2 * 85,)
    assert cost(message("user", media=(small,)), rules=GPT_5) == (3 + n("user") + 70,)
    caller = message("assistant", calls=(ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}")))
    plain = message("tool", "x", answers=("1",))
    assert sum(cost(caller, message("tool", "x", answers=("1",), media=(small,)))) == sum(cost(caller, plain)) + 85


# Calls


def test_very_long_arguments_are_counted_with_their_space() -> None:
    long, short = (ToolCall("1", "f", f"[{' ' * spaces}]") for spaces in (LONGEST_COMPACTED, LONGEST_COMPACTED - 10))
    assert cost(message("assistant", calls=(long,)))[0] > LONGEST_COMPACTED
    assert cost(message("assistant", calls=(short,)))[0] < 100


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"a" : 1e15}', '{"a":1e15}'),
        (r'{"a": "caf\u00e9\/\u0041"}', '{"a":"caf\u00e9/A"}'),
        (r'{"a": "\ud83d\ude00 \\u00e9 \n \u0001 \""}', '{"a":"\U0001f600 \\\\u00e9 \\n \\u0001 \\""}'),
        ('{"a": 1', '{"a": 1'),
        ("", ""),
        ('{"a": "\ud800"}', '{"a": "\ud800"}'),
        (r'{"a": "\ud800"}', r'{"a": "\ud800"}'),
        ("[" * 9_000 + " ]", "[" * 9_000 + " ]"),
    ],
)
def test_arguments_are_written_without_whitespace_and_escapes_unless_they_are_no_json(
    arguments: str, written: str
) -> None:
    caller = message("assistant", calls=(ToolCall("1", "f", arguments),))
    assert cost(caller) == (3 + n("assistant") + n("functions.f") + n(written) + 2,)


def test_a_results_share_is_never_more_than_there_is() -> None:
    """Texts may cost less together than apart."""

    def merging(text: str) -> int:
        return min(30, len(text))

    calls = (ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}"))
    results = [message("tool", "x" * 40, answers=("1",)) for _ in range(9)]
    tokens = unit_tokens(History([message("assistant", calls=calls), *results]), GPT_4O, merging)
    # 12 for the message; 30 for the calls, 30 for the results and 16 around them are shared out.
    assert tokens == (3 + 9, 30, 30, 16, 0, 0, 0, 0, 0, 0)


# Declarations


def declared(declarations: Declarations, system: str | None = None, rules: CountingRules = GPT_4O) -> int:
    return declared_tokens(declarations, system, False, rules, n)


NONE, SILENT = replace(TOOLS, choice="none"), Declarations(tools=(Tool("look_up", "", {}),))
FORCED, LEGACY = replace(TOOLS, forced="look_up"), replace(TOOLS, legacy=True, forced="look_up")
ALONE, FORMAT_ALONE = 3 + n(TOOLS_TEXT) + 3, 3 + n(FORMAT_TEXT) + 4 + 2 + n("Reply")
BEHIND = 3 + n("\n\n") + n(TOOLS_TEXT) - 1
ON_GPT_5 = 2 + n(TOOLS_TEXT) + 85
DECLARED: dict[str, list[tuple[Declarations, str | None, CountingRules, int]]] = {
    "without declarations only what opens the reply is paid": [
        *((NOTHING, None, rules, tokens) for rules, tokens in ((GPT_4, 3), (GPT_4O, 3), (O_SERIES, 2), (GPT_5, 2))),
    ],
    "tools follow the system message or stand alone": [
        (TOOLS, "Be kind.", GPT_4O, BEHIND),
        (TOOLS, None, GPT_4O, ALONE),
        (TOOLS, None, O_SERIES, 2 + n(TOOLS_TEXT) + 4),
    ],
    "gpt-5 has a preamble to its tools": [
        (TOOLS, None, GPT_5, ON_GPT_5),
        (TOOLS, "Be kind.", GPT_5, ON_GPT_5),
        (SILENT, None, GPT_5, ON_GPT_5 - n("// Look it up.\n") - 1),
    ],
    "a tool choice costs what it names but nothing on gpt-5": [
        *((replace(TOOLS, choice=choice), None, GPT_4O, ALONE) for choice in ("auto", "required")),
        (NONE, None, GPT_4O, ALONE + 1),
        (FORCED, None, GPT_4O, ALONE + 7 + n("look_up")),
        (LEGACY, None, GPT_4O, ALONE + 4 + n("look_up")),
        (FORCED, None, GPT_5, ON_GPT_5),
    ],
    "a response format costs its schema and names itself in the reply": [
        (FORMAT, "Be kind.", GPT_4O, 3 + n("\n\n") + n(FORMAT_TEXT) + 2 + n("Reply")),
        (FORMAT, None, GPT_4O, FORMAT_ALONE),
    ],
    "beside tools it is not named, as a call may follow": [(BOTH, "Be kind.", GPT_4O, BEHIND + n(FORMAT_TEXT) + 1)],
    "gpt-5 is not told its name": [
        (FORMAT, None, GPT_5, 2 + n(FORMAT_TEXT) + 4),
        (FORMAT, "Be kind.", GPT_5, 2 + n("\n\n") + n(FORMAT_TEXT)),
    ],
    "a schema that only guides the answer costs nothing": [(FORMAT, None, GUIDED, GUIDED.reply_prime)],
    "claude is told more about a schema": [
        (FORMAT, None, CLAUDE, FORMAT_ALONE + CLAUDE.schema_extra),
        (BOTH, None, CLAUDE, ALONE + n(FORMAT_TEXT) + 1 + CLAUDE.schema_extra),
    ],
    "tools that may not be called cost nothing where the model is not shown them": [
        (NONE, None, HIDING, HIDING.reply_prime),
        (TOOLS, None, HIDING, ALONE),
        (NONE, None, GPT_5, ON_GPT_5),
        (replace(BOTH, choice="none"), None, replace(GPT_4O, hides_tools=True), FORMAT_ALONE),
    ],
    "tools that are no functions cost their JSON": [
        (Declarations(others=('{"type":"web"}',)), None, GPT_4O, 3 + n('{"type":"web"}')),
    ],
}


@pytest.mark.parametrize("cases", DECLARED.values(), ids=DECLARED)
def test_of_declarations(cases: list[tuple[Declarations, str | None, CountingRules, int]]) -> None:
    for declarations, system, rules, tokens in cases:
        assert declared(declarations, system, rules=rules) == tokens


def test_a_call_in_the_history_costs_gpt_5_one_more_behind_a_system_message() -> None:
    for system, more in (("Be kind.", 1), (None, 0)):
        assert declared_tokens(TOOLS, system, True, GPT_5, n) == ON_GPT_5 + more


def test_tokens_that_merge_with_the_system_message_are_paid_once() -> None:
    def count(text: str) -> int:
        return len(text.replace(".\n\n", "."))

    assert declared_tokens(TOOLS, "Be kind.", False, GPT_4O, count) == declared(TOOLS, "Be kind.") - 2


def test_earlier_answers_name_the_response_format_too() -> None:
    assert answer_tokens(NOTHING, GPT_4O, n) == 0
    assert answer_tokens(FORMAT, GPT_4O, n) == 2 + n("Reply")
    assert answer_tokens(FORMAT, GPT_5, n) == answer_tokens(FORMAT, GUIDED, n) == 0
    talk = [message("user", "hi"), message("assistant", "yes"), message("assistant"), message("user", "and?")]
    assert [*map(is_answer, talk)] == [False, True, False, False]


def test_gpt_5_is_told_the_channel_of_an_assistants_text() -> None:
    for said, more in ((message("assistant", "aye", "aye"), 2), (message("assistant"), 0), (message("user", "aye"), 0)):
        assert cost(said, rules=GPT_5) == (cost(said)[0] + more,)


def test_keys_that_only_limit_a_value_are_not_shown_but_properties_of_that_name_are() -> None:
    schema = {
        "properties": {"default": {"type": "array", "minItems": 1, "default": []}, "required": {"minimum": 0}},
        "required": ["default"],
        "additionalProperties": False,
        "anyOf": [{"maximum": 9, "title": "T"}],
    }
    shown = '{"properties":{"default":{"type":"array"},"required":{}},"anyOf":[{"title":"T"}]}'
    tokens = declared(Declarations(response_format=ResponseFormat("R", "", schema)))
    assert tokens == 3 + n(f"# Response Formats\n\n## R\n\n{shown}") + 4 + 2 + n("R")


def test_a_schema_without_end_is_counted_as_far_as_it_can_be_read() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"not": schema}
    assert declared(Declarations(response_format=ResponseFormat("R", "", schema))) > 100


# Whole requests


def test_declarations_follow_the_first_system_or_developer_message() -> None:
    assert system_text([message("user", "a"), message("developer", "b", "c"), message("system", "d")]) == "bc"
    assert system_text([message("user", "a")]) is None


def test_bytes_of_a_text_are_those_of_utf_8_also_where_it_has_none() -> None:
    assert [utf8_length(text) for text in ("", "abc", "\u00e9", "\u4e2d", "\U0001f600", "\ud800")] == [0, 3, 2, 3, 4, 3]


PHOTO = Media("image", 9_000, "", 640, 480)


def test_the_pictures_of_a_request_cost_their_sum() -> None:
    talk = [replace(message("user", "see"), media=(PHOTO, PHOTO)), message("user", "and"), message("assistant", "aye")]
    assert picture_tokens(talk, GPT_4O) == 2 * 425
    assert picture_tokens(talk, replace(GPT_4O, picture_scale=0.5)) == 2 * 212
    scaled = unit_tokens(talk[:1], replace(GPT_4O, picture_scale=0.5), n)
    assert scaled[0] == cost(message("user", "see"))[0] + 2 * 212


@pytest.mark.parametrize(
    "odd", [Media("image", 9), Media("image", 9, "", 640, 0), Media("audio", 9, seconds=1.0), Media("file", 9)]
)
def test_what_pictures_cost_is_not_known_beside_media_of_no_known_size(odd: Media) -> None:
    assert picture_tokens([message("user", "see")], GPT_4O) is None
    assert picture_tokens([replace(message("user", "see"), media=(PHOTO, odd))], GPT_4O) is None


# Whatever a client sends


TABLES_FOLDER = Path(__file__).parents[2] / ".tables"
COUNTS: list[Callable[[str], int]] = [utf8_length]
if (TABLES_FOLDER / TABLES["o200k_base"][0]).is_file():
    COUNTS += [Tokenizer(TABLES_FOLDER).counter(encoding) for encoding in TABLES]

TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
IDS = st.sampled_from(["", "1", "2"])
ARGUMENTS = TEXT | st.builds(
    json.dumps,
    st.recursive(
        st.floats() | TEXT | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=4
    ),
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 2]),
)


def said(role: str, texts: tuple[str, ...], answers: str, **members: Any) -> Message:
    kind = SPEC.roles.get(role, Kind.OTHER)
    answered = (answers,) if kind is Kind.RESULT else ()
    return Message(kind, role, texts, b"", b"", answers=answered, **members)


MESSAGES = st.lists(
    st.builds(
        said,
        role=st.sampled_from(["system", "user", "assistant", "tool", "function"]) | TEXT,
        texts=st.lists(TEXT, max_size=2).map(tuple),
        name=TEXT | st.just("user"),
        calls=st.lists(st.builds(ToolCall, IDS, TEXT, ARGUMENTS, st.booleans()), max_size=3).map(tuple),
        answers=IDS,
        media=st.lists(
            st.builds(
                Media,
                st.sampled_from(["image", "audio", "file", "odd"]),
                st.integers(0, 10**9),
                st.sampled_from(["", "low", "high"]),
                st.integers(0, 10**9),
                st.integers(0, 10**9),
                st.floats(0, 10**9),
            ),
            max_size=2,
        ).map(tuple),
        thoughts=st.lists(TEXT, max_size=2).map(tuple),
    ),
    max_size=8,
)
DECLARATIONS = st.builds(
    Declarations,
    st.lists(st.builds(Tool, TEXT, TEXT, st.just({"properties": {"a": {"$ref": "#"}}})), max_size=2).map(tuple),
    st.booleans(),
    st.sampled_from(["", "none", "auto"]),
    TEXT,
    st.none() | st.builds(ResponseFormat, TEXT, TEXT, st.just({"properties": {"default": {"default": "\ud800"}}})),
)
RULES = st.sampled_from([GPT_4, GPT_4O, O_SERIES, GPT_5, GPT_5_4, GPT_5_6, CLAUDE, HIDING])


def units(messages: Sequence[Message]) -> list[Sequence[Message]]:
    return [messages[start:stop] for start, stop in pairwise((*unit_starts(messages), len(messages)))]


@given(MESSAGES, DECLARATIONS, RULES, st.sampled_from(COUNTS))
def test_the_parts_of_an_estimate_never_exceed_their_bytes(
    said: list[Message], declarations: Declarations, rules: CountingRules, count: Callable[[str], int]
) -> None:
    messages = History(said)
    parts = [unit_tokens(unit, rules, count) for unit in units(messages)]
    holds_calls = any(message.calls for message in messages)
    fixed = declared_tokens(declarations, system_text(messages), holds_calls, rules, count)
    assert fixed == declared_tokens(declarations, system_text(messages), holds_calls, rules, count)
    assert sum(map(sum, parts)) <= sum(byte_bound(unit, rules) for unit in units(messages))
    assert sum(map(len, parts)) == len(messages)
    assert all(tokens >= 0 for part in parts for tokens in part)
