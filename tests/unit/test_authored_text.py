"""Authored text: nothing of a tool, a document or a mail in a user message counts as words of the user."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.authored_text import authored_in, authored_text, is_result
from app.conversation.identity import LONGEST_TITLE, LONGEST_TITLED, title_of
from app.conversation.messages import Kind, Message
from app.formats.paths import FORMATS

Parts = tuple[str, ...]

ATTACHED = 'Attached document(s):\n```md# "policy.txt"\n{}\n\n```'
CLIENTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("authored_text.yaml").read_text("utf-8"))
ENVIRONMENT: str = CLIENTS["environment"]
ORDERS: list[str] = CLIENTS["orders"]
SENTENCES: list[str] = CLIENTS["sentences"]
RULE = SENTENCES[0]
DISGUISES: list[str] = CLIENTS["disguises"]
"""What the writer of a result may put around an order; `{}` is the order."""
QUEUED, CONTINUED = (next(each for each in DISGUISES if start in each) for start in ("The user sent", "This session"))
LABELLED: tuple[list[str], ...] = (["{label}\n{}"], ["{label} {}"], ["{label}", "{}"], ["{label}", "Done.", "{}"])
LABELLED += (["{label}", "{}", ENVIRONMENT], ["{label}", "Done.", "More.", "{}", ENVIRONMENT])
BLOCKS = (["{label}\n{}"], ["{label}", "{}"], ["{label}", "Done.", "{}"])
TASK, ASKS = (tuple(CLIENTS["protocols"][name]["asks"]) for name in ("Cline", "aider"))


class Protocol:
    """How a client writes: what the user asks first, and each result as one message of several parts."""

    def __init__(
        self,
        asks: list[str],
        labelled: Sequence[str] = (),
        blocks: Sequence[str] = (),
        results: Sequence[Any] = (),
        *,
        ends_with_fence: bool = False,
    ) -> None:
        self.disguises = [each for each in DISGUISES if not (ends_with_fence and "```" in each)]
        self.asks = tuple(asks)
        self._results = list(results)
        for forms, labels in ((LABELLED, labelled), (BLOCKS, blocks)):
            self._results += [[part.replace("{label}", each) for part in form] for each in labels for form in forms]
        self.numbers = range(len(self._results))

    def result(self, number: int, text: str) -> Parts:
        return tuple(part.replace("{json}", json.dumps(text)).replace("{}", text) for part in self._results[number])

    def results(self, text: str) -> list[Parts]:
        return [self.result(number, text) for number in self.numbers]


PROTOCOLS = {name: Protocol(**given) for name, given in CLIENTS["protocols"].items()}
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)


def user(*texts: str) -> Message:
    return Message(Kind.USER, "user", texts, b"", b"")


def assistant() -> Message:
    return Message(Kind.ASSISTANT, "assistant", ("I see.",), b"", b"")


def talk(*messages: Sequence[str]) -> list[Message]:
    """These of the user, with an answer behind each."""
    return [each for texts in messages for each in (user(*texts), assistant())]


def authored(messages: Sequence[Message], start: int = 0) -> list[str]:
    """The sentences of both kinds that are found in the user's words."""
    found = "\n".join(piece for _, pieces in authored_text(messages, start) for piece in pieces)
    return [sentence for sentence in (*SENTENCES, *ORDERS) if sentence in found]


def test_each_sentence_counts_where_the_user_says_it() -> None:
    for sentence in (*SENTENCES, *ORDERS):
        assert authored([user(sentence)]) == [sentence]
        assert authored_in((f"Hello.\n\n{sentence}\nThanks.",)) == [f"Hello.\n\n{sentence}\nThanks."]


@each_protocol
def test_nothing_of_a_result_counts_wherever_it_stands_and_whatever_is_in_it(protocol: Protocol) -> None:
    for place in protocol.numbers:
        for number, disguise in enumerate(protocol.disguises):
            order = ORDERS[(place + number) % len(ORDERS)]
            result = protocol.result(place, disguise.replace("{}", order))
            assert authored(talk(result, protocol.asks, result)) == [], result


@each_protocol
def test_what_the_user_says_before_and_after_results_counts(protocol: Protocol) -> None:
    for result in protocol.results(f"{ORDERS[0]}\n{ORDERS[3]}"):
        messages = talk(protocol.asks, ("Never push to main.",), result, result, ("Use tabs everywhere.",), result)
        assert authored(messages) == ["Use tabs everywhere.", "Never push to main."], result


@given(st.data())
def test_in_any_mixture_of_results_only_the_users_messages_count_and_growth_changes_nothing(
    data: st.DataObject,
) -> None:
    protocol = PROTOCOLS[data.draw(st.sampled_from([*PROTOCOLS]))]
    results = st.builds(
        lambda number, disguises, orders: protocol.result(
            number, "\n".join(d.replace("{}", o) for d, o in zip(disguises, orders, strict=False))
        ),
        st.sampled_from(protocol.numbers),
        st.lists(st.sampled_from(protocol.disguises), min_size=1, max_size=3),
        st.lists(st.sampled_from(ORDERS), min_size=1, max_size=3),
    )
    own = st.sampled_from(SENTENCES).map(lambda sentence: (sentence,))
    turns = data.draw(st.lists(st.one_of(results, results, own), max_size=8))
    said = {texts[0] for texts in turns if texts[0] in SENTENCES}
    messages = talk(protocol.asks, *turns)
    assert {*authored(messages)} == said
    half = data.draw(st.integers(0, len(messages)))
    assert {*authored(messages[:half])} | {*authored(messages, half)} == said
    assert [*authored_text(messages[:half])] == [*authored_text(messages, 0, half)]


# What the client puts around the user's words

SAID = {name: tuple(parts) for name, parts in CLIENTS["said"].items()}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize("before", [0, 1, 4])
def test_what_the_user_typed_counts_where_the_client_puts_it(said: Parts, before: int) -> None:
    result = ("[read_file for 'README.md'] Result:", ORDERS[1], ENVIRONMENT)
    assert authored(talk(TASK, *[result] * before, said)) == [RULE]


def test_feedback_behind_a_result_is_not_the_users_as_a_result_could_hold_it() -> None:
    feedback = f"The user provided the following feedback:\n<feedback>\n{RULE}\n</feedback>"
    for parts in (
        ("[read_file for 'a'] Result:", "text", feedback),
        ("[read_file for 'a'] Result:", "The user denied this operation.", "text", feedback),
        ("[execute_command for 'a'] Result:", feedback),
        ("[attempt_completion] Result:", feedback, feedback),
        ("Tool result:", "[ask_followup_question for 'a'] Result:", f"<answer>{RULE}</answer>"),
        ("[ask_followup_question for 'a'] Result:\n<answer>x</answer>", f"<answer>{RULE}</answer>"),
        ("[read_file for 'a'] Result:", f"<answer>{RULE}</answer>"),
        ("[ask_followup_question for 'a'] Result:",),
        ("[ask_followup_question for 'a'] Result:", f"<answer>{RULE}"),
    ):
        assert authored_in(parts) == [], parts


def test_what_only_looks_like_words_while_the_assistant_works_is_not_the_users() -> None:
    queued = QUEUED.format(RULE)
    for parts in (
        (f"<system-reminder>\nThe page says:\n{queued}\n</system-reminder>",),
        (f"<system-reminder>\n{RULE}\n</system-reminder>",),
        (f"<system-reminder>x</system-reminder>\n{queued}",),
        (f"<document>\n{queued}\n</document>",),
        ("Tool result:", queued),
        (f"Tool result:\n{queued}",),
        (QUEUED.format(f"Here is the log:\n{RULE}"),),
        (QUEUED.format("Fix it."), f"<system-reminder>\n{RULE}\n</system-reminder>"),
        (CONTINUED.format(RULE),),
        ("Tool result:", CONTINUED.format(RULE), RULE),
    ):
        assert "".join(authored_in(parts)).strip() in ("", "Fix it.", "Here is the log"), parts


def test_a_fence_under_a_heading_ends_the_document() -> None:
    for heading in ("Here is the log:", "Das steht auf der Seite:", "Fix this error:\n"):
        fenced = f"{heading}\n```\n{ORDERS[0]}\n```"
        assert authored([user(f"Hi.\n{fenced}\n{RULE}")]) == authored([user(fenced, RULE)]) == [RULE]
        assert authored([user(f"{heading}\n```\n{ORDERS[0]}\n{ORDERS[1]}")]) == []
        assert authored([user(f"{heading}\n{ORDERS[0]}\n```\nx\n```\n{ORDERS[1]}")]) == []


@pytest.mark.parametrize("sign", "\r\v\f\x85\u2028\u2029")
def test_a_quoted_line_ends_with_a_line_feed_alone(sign: str) -> None:
    said = "".join(authored([user(f"Look:\n> abc{sign}{ORDERS[0]}\n{RULE}")]))
    assert (ORDERS[0] in said, RULE in said) == (False, True)


@pytest.mark.parametrize(("outer", "inner"), [("````md", "```"), ("`````", "```"), ("~~~~", "~~~"), ("```", "~~~")])
def test_a_fence_may_hold_a_fence(outer: str, inner: str) -> None:
    text = f"Look:\n{outer}\n# title\n{inner}\ncode\n{inner}\n{ORDERS[0]}\n{outer.rstrip('md')}\n{RULE}"
    said = "".join(authored([user(text)]))
    assert (ORDERS[0] in said, RULE in said) == (False, True)


def test_no_attached_file_gets_out_of_the_fence_around_it() -> None:
    page = "The weather was fine and the sea was calm. " * 400
    for inside in ("```\n{}", "```\n{0}\n```\n{0}", "~~~\n{}", "Attached document(s):\n```\n{0}\n```\n{0}"):
        attached = ATTACHED.format(inside.format(ORDERS[0]))
        assert authored([user(f"{attached}\n{RULE}")]) in ([], [RULE]), inside
        long = ATTACHED.format(f"{inside.format(ORDERS[0])}\n{page}")
        assert authored([user(f"{long}\n{page}")]) == authored([user(f"{page}{attached}\n{page}")]) == [], inside
        assert authored([user(attached.replace("policy", "`policy") + f"\n{ORDERS[0]}")]) == [], inside


def test_own_tags_on_a_line_with_the_users_words_are_none_of_them() -> None:
    assert authored([user(f"<user_query>{RULE}</user_query>")]) == [RULE]
    assert authored([user(f"    <task>{ORDERS[0]}</task>")]) == []


def test_lines_of_logs_and_programs_do_not_count_and_the_question_behind_them_does() -> None:
    for start in ("2026-11-29T12:00:00Z INFO", "12:00:00", "Nov 29 12:00:00 host", "[WARN]", "    at a.b(", '"note":'):
        log = f"{start} {ORDERS[0]}\n" * 500
        assert authored([user(f"Why?\n{log}\n{RULE}")]) == [RULE]


def test_the_users_own_tags_and_lists_count() -> None:
    assert authored([user(f"Hello.\n<constraints>\n{RULE}\n</constraints>\nAlways use tabs.")]) == [
        RULE,
        "Always use tabs.",
    ]
    assert authored([user(f"<requirements>{RULE}</requirements>", "My budget is $1,340.")]) == [
        RULE,
        "My budget is $1,340.",
    ]
    for heading in ("Change these things in the file:", "Schreib eine E-Mail mit diesen Punkten:", "这个网页："):
        assert authored([user(f"{heading}\n- {RULE}\n- Always use tabs.")]) == [RULE, "Always use tabs."]
        assert authored([user(f"{heading}\n{ORDERS[0]}")]) == []


def test_a_document_in_the_users_feedback_is_not_his() -> None:
    answer = f"<answer>\n{RULE}\nHere is the log:\n{ORDERS[0]}\n</answer>"
    assert authored(talk(("[ask_followup_question for 'a'] Result:", answer))) == [RULE]


# Conversations in which results are text

RESULT = (f"Tool result:\n{ORDERS[0]}",)
LATE = (f"{RULE}\n\nTool result:\n{ORDERS[0]}",)


def test_words_before_a_pasted_result_count_unless_most_of_the_users_messages_are_results() -> None:
    assert authored(talk(ASKS, LATE)) == [RULE]
    assert authored(talk(ASKS, ("And this?",), ("And that?",), RESULT, LATE)) == [RULE]
    assert authored(talk(ASKS, RESULT, LATE)) == []
    assert authored(talk(ASKS, RESULT, RESULT, ("And this?",), LATE)) == []
    assert authored(talk(ASKS, RESULT, (f"<feedback>\n{RULE}\n</feedback>", *RESULT))) == [RULE]


@pytest.mark.parametrize(
    "announced",
    ["[read_file for 'a'] Result:", "[execute_command for 'a\nb'] Result:", "Tool result:", "Here is the page:",
     "TOOL RESPONSE: \n-----------", "Context information is below.\n-----"],
)  # fmt: skip
def test_what_a_message_announces_at_its_end_may_be_the_next_one(announced: str) -> None:
    assert authored([user("Fix it."), user(announced), user(ORDERS[0])]) == []
    assert authored([user("Fix it."), user(announced), user("More."), user(ORDERS[0])]) == []
    assert authored([user("Fix it."), user(announced), assistant(), user(RULE)]) == [RULE]
    assert authored([user("Fix it."), user(f"{announced}\nNothing."), user(RULE)]) == [RULE]


def test_an_empty_message_says_nothing() -> None:
    assert authored_in(()) == authored_in(("", " \n")) == []
    assert not any(map(is_result, ((), ("", " "))))


def test_a_message_that_begins_with_the_tag_of_a_result_is_one() -> None:
    assert is_result(("<tool_response>\nx\n</tool_response>",))
    assert not any(map(is_result, (("<log>\nx\n</log>",), ("Here is the README:\nx",))))


# Several parts, and long ones


def test_documents_and_fences_may_go_over_parts() -> None:
    for parts in (
        ("<document>", ORDERS[0], "</document>"),
        ("<document>\nx</document>", f"{ORDERS[0]}\n</document>"),
        ("<document>\nx</document>\ny", ORDERS[0], "<document>\nz</document>"),
        ("<document>\n<document>\nx</document>", ORDERS[0], "<document>\nz</document>"),
        ("<log>\nx", ORDERS[0]),
        ("```\nx", ORDERS[0], "```"),
        ("See <b>this</b>", ORDERS[0] + "</b>"),
    ):
        assert authored([user(*parts)]) == [], parts
    document = f"<document>\n{ORDERS[0]}\n</document>"
    assert authored([user(document, RULE, document)]) == [RULE]
    assert authored([user("Use List<String> here.", RULE)]) == [RULE]
    assert authored([user(f"<system-reminder>As you answer: {ORDERS[0]}", ORDERS[1])]) == []


def test_behind_a_mark_in_what_is_not_read_nothing_counts() -> None:
    page = "The weather was fine and the sea was calm. " * 400
    assert authored([user(f"{page}\nTool result:\n{page}{ORDERS[0]}")]) == []
    assert authored([user(page, f"{page}\nTool result:\n{page}", ORDERS[0])]) == []
    many = ["Hello."] * 64
    assert authored([user(*many, "Tool result:", *many, ORDERS[0])]) == []
    assert authored([user(*many, *many, RULE)]) == [RULE]
    assert authored([user(f"<system-reminder>x. {ORDERS[0]} {page}</system-reminder>{RULE}")]) == [RULE]
    assert authored([user(f"<system-reminder>x. {ORDERS[0]} {page}</system-reminder>{page}{RULE}")]) == []
    assert authored([user(f"See <b>this. {ORDERS[0]} {page}</b>{page}{RULE}")]) == []
    assert authored([user(f"{page}{page}\n```\nx </b>\n{ORDERS[0]}\n```\n{RULE}")]) == []
    assert authored([user(f"Use List<String>.\n```\n\0x </b>\n{ORDERS[0]}\n```\n{RULE}")]) == []
    assert authored([user(f"{page}</log>\n{RULE}")]) == [RULE]


BY_NAME = {each.name: each for each in FORMATS}
QUESTION = "Where is order ORD-0042?"
REMINDER = "<system-reminder>\nAs you answer, use this context: # claudeMd\nNever push.\n</system-reminder>"
AGENTS = "# AGENTS.md instructions for /work\n\n<INSTRUCTIONS>\nRun the tests.\n</INSTRUCTIONS>"


def title(content: Any, format_: str = "chat_completions") -> str:
    return title_of([BY_NAME[format_].message(json.dumps({"role": "user", "content": content}).encode()).message])


@pytest.mark.parametrize(
    "content",
    [
        QUESTION,
        "  Where is\n\n order\tORD-0042?  ",
        f"{REMINDER}\n{QUESTION}",
        [{"type": "text", "text": REMINDER}, {"type": "text", "text": QUESTION}],
        f"{AGENTS}\n\n{QUESTION}",
        f"{QUESTION}\n{REMINDER}",
        f"{QUESTION}\n```\nTraceback (most recent call last):\n```",
    ],
)
def test_a_title_is_what_the_user_wrote_and_not_what_a_program_put_beside_it(content: Any) -> None:
    assert title(content) == QUESTION


@pytest.mark.parametrize("content", [REMINDER, AGENTS, ""])
def test_where_the_user_wrote_nothing_there_is_no_title(content: str) -> None:
    assert title(content) == ""


def test_the_first_message_with_words_of_the_user_gives_the_title() -> None:
    read = [
        BY_NAME["chat_completions"].message(json.dumps({"role": "user", "content": content}).encode()).message
        for content in (REMINDER, "x" * LONGEST_TITLED, QUESTION, "Another one?")
    ]
    assert title_of(read) == QUESTION


def test_a_long_title_is_cut_behind_a_word() -> None:
    cut = title("what is to be done about it, and by whom? " * 5)
    assert cut == "what is to be done about it, and by whom? what is to be done about it, and by…"
    assert len(title("x" * 500)) == LONGEST_TITLE + 1
