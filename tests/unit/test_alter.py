"""Altering: what the stages that shorten single messages have in common."""

from __future__ import annotations

import json

from msgspec.structs import replace

from app.core.history.messages import Message, ToolCall
from app.core.stages.alter import (
    CUT_ARGUMENTS,
    alter,
    append,
    message_of,
    shortened_arguments,
    shortened_texts,
    standing,
    trimmed,
    weights,
    with_text,
)
from app.core.view.mask import shorten
from app.core.view.reading import Path, build_view, whole
from app.core.view.view import Altered, Carried, Part, Pins, Summary, Verbatim, View
from tests.unit.conversations import chunk, conversation, cost, message, words

LONG = words(300)
TALK = conversation(message("user", LONG), message("assistant", LONG), message("user", "q"))


def halved(_: int, message: Message) -> Message:
    return replace(message, texts=tuple(words(len(text.split()) // 2) for text in message.texts))


def test_what_changes_is_counted_again_and_what_does_not_stays_as_it_is() -> None:
    view = alter(TALK, whole(TALK), "shortened", cost, lambda index, m: halved(index, m) if index == 0 else None)
    assert view.parts == (Altered(0, (words(150),), 150, "shortened"), Verbatim(1, 3))
    assert view.tokens == TALK.tokens - 150


def test_the_last_user_message_and_what_is_pinned_are_left_alone() -> None:
    talk = conversation(message("user", LONG), message("assistant", LONG), message("user", LONG))
    talk = talk.with_pins(Pins((0,)))
    view = alter(talk, whole(talk), "shortened", cost, halved)
    assert view.parts == (Verbatim(0, 1), Altered(1, (words(150),), 150, "shortened"), Verbatim(2, 3))


def test_a_message_that_would_only_grow_is_left_alone_unless_it_may() -> None:
    longer = message("user", words(400))
    assert alter(TALK, whole(TALK), "shortened", cost, lambda *_: longer) == whole(TALK)
    grown = alter(TALK, whole(TALK), "cleared", cost, lambda *_: longer, may_grow=True)
    assert grown.tokens == TALK.tokens + 200
    assert grown.actions == ("cleared",)


def test_a_later_stage_sees_what_the_ones_before_have_left() -> None:
    once = alter(TALK, whole(TALK), "faded", cost, halved)
    twice = alter(TALK, once, "truncated", cost, halved)
    assert [part.texts[0] for part in twice.parts if isinstance(part, Altered)] == [words(75)] * 2
    assert twice.tokens == 75 * 2 + 1
    assert twice.actions == ("truncated",)


def test_a_later_stage_does_not_bring_back_arguments_that_an_earlier_one_cut() -> None:
    caller = replace(message("assistant", LONG), calls=(ToolCall("c", "tool", json.dumps({"a": LONG})),))
    talk = conversation(caller, message("user", "q"))
    cut = alter(talk, whole(talk), "faded", cost, lambda _, m: shortened_arguments(caller, halved(0, m), 200))
    assert isinstance(cut.parts[0], Altered)
    assert cut.parts[0].calls is not None
    again = alter(talk, cut, "truncated", cost, halved)
    assert isinstance(again.parts[0], Altered)
    assert again.parts[0].calls == cut.parts[0].calls


def test_what_a_summary_carries_is_altered_like_the_rest() -> None:
    made = chunk(TALK, 0, 2, carried=(0,))
    view = build_view(TALK, Path((made,), 2, 20))
    assert [(index, type(part)) for index, part in standing(view)] == [(None, Summary), (0, Carried), (2, Verbatim)]
    left = alter(TALK, view, "shortened", cost, halved)
    assert left.parts == (Summary(made), Altered(0, (words(150),), 150, "shortened"), Verbatim(2, 3))


def test_the_calls_that_are_left_of_a_message_are_told_by_their_positions() -> None:
    talk = conversation(message("assistant", "ok", calls=["a", "b"]), message("user", "q"))
    left = message_of(talk, 0, Altered(0, ("ok",), 1, "repaired", ((1, '{"b": 2}'),)))
    assert [(call.id, call.arguments) for call in left.calls] == [("b", '{"b": 2}')]
    assert message_of(talk, 0, Altered(0, ("so",), 1, "masked")).calls == talk.transcript.messages[0].calls


def test_only_neighbours_are_joined() -> None:
    parts: list[Part] = []
    for part in (Verbatim(0, 1), Verbatim(1, 2), Verbatim(3, 4), Carried(4)):
        append(parts, part)
    assert parts == [Verbatim(0, 2), Verbatim(3, 4), Carried(4)]


def test_recency_grows_from_a_fifth_to_the_whole() -> None:
    assert weights([]) == {}
    assert weights([7]) == {7: 1.0}
    assert [round(weight, 9) for weight in weights([1, 5, 6]).values()] == [0.2, 0.6, 1.0]


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


def test_a_trimmed_result_has_head_tail_and_a_note_of_its_size() -> None:
    large = message("tool", "h" * 3_000 + "t" * 3_000)
    note = "[Tool result trimmed: kept first 10 chars and last 20 chars of 6000 chars.]"
    assert trimmed(large, 4_000, 10, 20).text == f"{'h' * 10}\n...\n{'t' * 20}\n\n{note}"
    assert trimmed(large, 6_000, 10, 20) == large
    assert trimmed(large, 10, 3_000, 3_000) == large


def test_a_view_that_nothing_is_done_to_stays_equal() -> None:
    view = View((Verbatim(0, 3),), TALK.tokens)
    assert alter(TALK, view, "shortened", cost, lambda _, m: m) == view
