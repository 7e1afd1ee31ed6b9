"""Altering: what the stages that shorten single messages have in common."""

from __future__ import annotations

import json

from msgspec.structs import replace

from app.compaction.mask import CUT_ARGUMENTS
from app.compaction.select import whole
from app.compaction.tool_output import shorten
from app.compaction.trim import alter, shortened_arguments, shortened_texts, with_text
from app.compaction.view import Altered, Verbatim
from app.conversation.messages import Message, ToolCall
from tests.unit.conversations import conversation, cost, message, words

LONG = words(300)
TALK = conversation(message("user", LONG), message("assistant", LONG), message("user", "q"))


def halved(_: int, message: Message) -> Message:
    return replace(message, texts=tuple(words(len(text.split()) // 2) for text in message.texts))


def test_what_changes_is_counted_again_and_what_does_not_stays_as_it_is() -> None:
    view = alter(TALK, whole(TALK), "shortened", cost, lambda index, m: halved(index, m) if index == 0 else None)
    assert view.parts == (Altered(0, (words(150),), 150, "shortened"), Verbatim(1, 3))
    assert view.tokens == TALK.tokens - 150


def test_a_message_that_would_only_grow_is_left_alone_unless_it_may() -> None:
    longer = message("user", words(400))
    assert alter(TALK, whole(TALK), "shortened", cost, lambda *_: longer) == whole(TALK)
    grown = alter(TALK, whole(TALK), "cleared", cost, lambda *_: longer, may_grow=True)
    assert grown.tokens == TALK.tokens + 200
    assert grown.actions == ("cleared",)


def test_a_later_stage_does_not_bring_back_arguments_that_an_earlier_one_cut() -> None:
    caller = replace(message("assistant", LONG), calls=(ToolCall("c", "tool", json.dumps({"a": LONG})),))
    talk = conversation(caller, message("user", "q"))
    cut = alter(talk, whole(talk), "faded", cost, lambda _, m: shortened_arguments(caller, halved(0, m), 200))
    assert isinstance(cut.parts[0], Altered)
    assert cut.parts[0].calls is not None
    again = alter(talk, cut, "truncated", cost, halved)
    assert isinstance(again.parts[0], Altered)
    assert again.parts[0].calls == cut.parts[0].calls


def test_a_text_that_is_cut_twice_still_tells_its_first_size() -> None:
    original = message("tool", "x" * 5_000)
    once = shortened_texts(original, original, 1_000, {0})
    twice = shortened_texts(original, once, 300, {0})
    assert twice.text == shorten(original.text, 300)
    assert "5000 characters in all" in twice.text
    assert shortened_texts(original, twice, 1_000, {0}) == twice
    assert shortened_texts(original, original, 300, ()) == original


def test_arguments_that_are_cut_stay_an_object_and_are_not_wrapped_twice() -> None:
    held = '{"query": "' + "x" * 5_000 + '"}'
    calls = (ToolCall("a", "tool", held), ToolCall("b", "tool", '{"a": 1}'))
    original = replace(message("assistant"), calls=calls)
    once = shortened_arguments(original, original, 1_000)
    twice = shortened_arguments(original, once, 300)
    for cut, longest in ((once, 1_000), (twice, 300)):
        assert json.loads(cut.calls[0].arguments) == {CUT_ARGUMENTS: shorten(held, longest)}
        assert cut.calls[1] == original.calls[1]


def test_all_text_goes_into_the_first_of_several_parts() -> None:
    parts = replace(message("tool"), texts=("a", "b", "c"))
    assert with_text(parts, "note").texts == ("note", "", "")
