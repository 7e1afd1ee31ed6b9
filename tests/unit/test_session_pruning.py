"""Session pruning: old results are trimmed and cleared as the window fills, as OpenClaw does it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.compaction.mask import MaskPolicy, Masks
from app.compaction.select import Path, build_view, whole
from app.compaction.trim import SessionPruning, is_quiet, prune_session
from app.compaction.view import Altered, Conversation, Pins, View
from app.conversation.messages import Media, Message
from tests.unit.conversations import chunk, conversation, cost, message

ADAPTIVE = SessionPruning()
AGGRESSIVE = SessionPruning(mode="aggressive")
CLEARED = "[Old tool result content cleared]"
QUESTION = message("user", "the last question")


def text(characters: int, word: str = "lorem ") -> str:
    return (word * (characters // len(word) + 1))[:characters]


def used(name: str, result: str, **changes: object) -> list[Message]:
    return [message("assistant", calls=[name]), replace(message("tool", result, answers=name), **changes)]


def talk_of(*steps: list[Message]) -> Conversation:
    """A question, the steps, and three messages of the assistant after them."""
    said = [message("assistant", f"it is {word}") for word in ("fine", "good", "done")]
    return conversation(message("user", "look"), *(m for step in steps for m in step), *said, QUESTION)


def pruned(
    talk: Conversation, settings: SessionPruning = ADAPTIVE, fill: float = 0.3, view: View | None = None
) -> View:
    """With a window that is that full."""
    size = sum(len(t) for m in talk.transcript.messages for t in (*m.texts, *(c.arguments for c in m.calls)))
    return prune_session(talk, view or whole(talk), settings, round(size / 4 / fill), cost)


def altered(view: View) -> dict[int, str]:
    return {part.index: "\n".join(part.texts) for part in view.parts if isinstance(part, Altered)}


def test_a_large_result_is_head_tail_and_its_size_from_the_fill_on() -> None:
    talk = talk_of(used("a", text(10_000)), used("b", text(4_000)))
    assert pruned(talk, fill=0.29) == whole(talk)
    view = pruned(talk, fill=0.31)
    assert view.actions == ("trimmed",)
    assert list(altered(view)) == [2]
    left = altered(view)[2]
    assert left.startswith(text(10_000)[:1_500] + "\n...\n" + text(10_000)[-1_500:])
    assert "10000 chars" in left
    assert view.tokens < whole(talk).tokens


def test_from_half_on_the_oldest_are_cleared_until_it_is_less() -> None:
    steps = [used(f"c{number}", text(4_000)) for number in range(13)]
    view = pruned(talk_of(*steps), fill=0.56)
    assert list(altered(view).items()) == [(2, CLEARED), (4, CLEARED)]
    assert view.actions == ("cleared",)
    assert altered(pruned(talk_of(*steps), fill=0.49)) == {}


def test_what_could_be_pruned_has_to_be_worth_it() -> None:
    steps = [used(f"c{number}", text(4_000)) for number in range(12)]
    assert altered(pruned(talk_of(*steps, used("last", text(1_999))), fill=0.9)) == {}
    assert altered(pruned(talk_of(*steps, used("last", text(2_000))), fill=0.9)) != {}


def test_what_was_trimmed_is_cleared_too_where_that_is_not_enough() -> None:
    steps = [used(f"c{number}", text(40_000)) for number in range(20)]
    view = pruned(talk_of(*steps), fill=8.0)
    assert view.actions == ("trimmed", "cleared")
    assert set(altered(view)) == set(range(2, 41, 2))


def test_a_result_shorter_than_the_placeholder_is_not_cleared_to_gain_room() -> None:
    steps = [used("short", "ten chars."), *(used(f"c{number}", text(4_000)) for number in range(13))]
    assert altered(pruned(talk_of(*steps), fill=0.51)) == {4: CLEARED}


def test_aggressive_clears_every_old_result_whatever_the_fill() -> None:
    talk = talk_of(used("a", "ten chars."), used("b", text(200)))
    view = prune_session(talk, whole(talk), AGGRESSIVE, 1 << 30, cost)
    assert altered(view) == {2: CLEARED, 4: CLEARED}
    assert view.actions == ("cleared",)


def test_a_result_without_text_is_left_as_it_is() -> None:
    talk = talk_of(used("a", ""))
    assert pruned(talk, AGGRESSIVE) == whole(talk)


@pytest.mark.parametrize("settings", [ADAPTIVE, AGGRESSIVE])
def test_results_after_the_third_last_message_of_the_assistant_stay(settings: SessionPruning) -> None:
    steps = [m for number in range(5) for m in used(f"c{number}", text(10_000))]
    talk = conversation(message("user", "look"), *steps)
    assert set(altered(pruned(talk, settings))) == {2, 4}
    assert altered(pruned(conversation(message("user", "look"), *steps[:4]), settings)) == {}


def test_how_many_messages_protect_can_be_set_down_to_none() -> None:
    talk = conversation(message("user", "look"), *used("a", text(10_000)), *used("b", text(10_000)))
    assert set(altered(pruned(talk, SessionPruning(keep_last_assistants=1)))) == {2}
    assert set(altered(pruned(talk, SessionPruning(keep_last_assistants=0)))) == {2, 4}


@pytest.mark.parametrize("settings", [ADAPTIVE, AGGRESSIVE])
def test_a_result_with_an_image_stays(settings: SessionPruning) -> None:
    picture = used("a", text(10_000), media=(Media("image", 90),))
    assert set(altered(pruned(talk_of(picture, used("b", text(10_000))), settings))) == {4}


def test_none_of_a_tool_that_is_denied() -> None:
    talk = talk_of(*(used(name, text(10_000)) for name in ("bash", "web", "read", "read_image")))
    settings = replace(AGGRESSIVE, deny=("*image*", "tool_web"))
    assert set(altered(pruned(talk, settings))) == {2, 6}


def test_pinned_results_stay() -> None:
    talk = talk_of(used("a", text(10_000)), used("b", text(10_000)))
    talk = talk.with_pins(Pins((2,)))
    assert set(altered(pruned(talk, AGGRESSIVE))) == {4}


def test_what_a_summary_stands_for_fills_no_window() -> None:
    """Half of a history was summarised: what is left is under the ratio, and nothing of it is trimmed."""
    old = [message("user", text(30_000)), message("assistant", "fine")]
    talk = conversation(*old, *talk_of(used("a", text(10_000))).transcript.messages)
    made = chunk(talk, 0, 2, text="notes", carried=())
    view = build_view(talk, Path((made,), 2, 20))
    assert altered(pruned(talk, fill=0.5)) != {}
    assert pruned(talk, fill=0.5, view=view) == view
    carried = build_view(talk, Path((replace(made, carried=(0,)),), 2, 20))
    assert altered(pruned(talk, fill=0.5, view=carried)) != {}


def test_pinned_copies_are_passed_over() -> None:
    talk = conversation(*talk_of(used("a", text(10_000))).transcript.messages)
    talk = talk.with_pins(Pins((0,)))
    made = chunk(talk, 0, 1)
    assert set(altered(pruned(talk, fill=0.9, view=build_view(talk, Path((made,), 1, 20))))) == {2}


def test_what_is_masked_already_is_taken_as_it_is() -> None:
    """By its own size it would be trimmed, which gives back most of what the mask took, and then cleared."""
    talk = talk_of(*(used(f"c{number}", text(10_000)) for number in range(20)))
    masked = build_view(talk, Path(), Masks(talk.transcript, MaskPolicy(), cost), len(talk.transcript) - 1)
    assert masked.actions == ("masked",)
    assert pruned(talk, fill=20.0, view=masked) == masked


def test_instructions_fill_the_window_too() -> None:
    talk = conversation(message("system", text(20_000)), *talk_of(used("a", text(10_000))).transcript.messages)
    window = round(30_000 / 4 / 0.31)
    assert not is_quiet(talk, ADAPTIVE, window)
    assert set(altered(prune_session(talk, whole(talk), ADAPTIVE, window, cost))) == {2}


def test_quiet_is_what_surely_changes_nothing() -> None:
    talk = talk_of(used("a", text(1_000)))
    assert is_quiet(talk, ADAPTIVE, 10_000)
    assert not is_quiet(talk, ADAPTIVE, 500)
    assert not is_quiet(talk, AGGRESSIVE, 10_000)
    assert is_quiet(conversation(QUESTION), AGGRESSIVE, 10)
