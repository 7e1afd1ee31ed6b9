"""Pictures, sounds and files of turns that are over: what stands in their place, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.budget import Window, budget_for
from app.compaction.decision import Decision, settle
from app.compaction.mask import MaskPolicy, Masks, in_words
from app.compaction.planning_state import Path, PlanningState, Policy, build_view, initial_state
from app.compaction.trim import alter
from app.compaction.verify import problems
from app.compaction.view import Altered, Conversation, View
from app.conversation.messages import Media, Message
from app.tokens.calibration import ONE_TO_ONE
from tests.unit.conversations import chunk, conversation, message, shares_with, words
from tests.unit.worlds import asked

SHAPED = MaskPolicy()
PICTURE = Media("image", 4_000_000, width=1_920, height=1_080)
SHOWN = replace(message("user", "What is in it?", tokens=1_500), media=(PICTURE,))
TURN = (SHOWN, message("assistant", "A heron."))
NEXT = (message("user", "And now?"), message("assistant", "Nothing."))


def cost_of_media(left: Message) -> int:
    return 1_500 if left.media else sum(len(text.split()) for text in left.texts)


def masks(talk: Conversation, policy: MaskPolicy = SHAPED) -> Masks:
    return Masks(talk.transcript, policy, cost_of_media)


def masked(talk: Conversation, policy: MaskPolicy = SHAPED) -> list[int]:
    return [index for index, _ in masks(talk, policy).between(0, len(talk.transcript))]


@pytest.mark.parametrize(
    ("media", "said"),
    [
        (PICTURE, "image, 3,000,000 bytes, 1920 x 1080"),
        (Media("file", 4_000, pages=3, name="bill\n.pdf"), "file bill_.pdf, 3,000 bytes, 3 pages"),
        (Media("audio", 4_000, seconds=12.4), "audio, 3,000 bytes, 12 seconds"),
        (Media("image", 60), "image"),
    ],
)
def test_a_line_says_what_it_was(media: Media, said: str) -> None:
    assert in_words(media) == f"[{said}: you have seen it, and it is left out now]"


def test_a_picture_is_masked_once_it_was_answered_and_the_user_has_gone_on() -> None:
    assert masked(conversation(*TURN)) == []
    assert masked(conversation(SHOWN, message("user", "Well?"))) == []
    talk = conversation(*TURN, *NEXT)
    assert masked(talk) == [0]
    assert [index for index, _ in masks(talk).between(0, 2)] == []
    view = build_view(talk, Path(), masks(talk), 3)
    assert view.parts[0] == Altered(0, SHOWN.texts, 20, "masked", media=(in_words(PICTURE),))
    assert problems(talk, view, 10_000) == []


def test_whatever_no_text_may_replace_stays() -> None:
    unknown = replace(SHOWN, media=(PICTURE, Media("x_part", 9)))
    fixed = replace(SHOWN, media=(replace(PICTURE, bound=True),))
    said = replace(message("assistant", "Drawn."), media=(PICTURE,))
    for shown in (unknown, fixed, said, replace(SHOWN, sealed=True)):
        assert masked(conversation(shown, *TURN[1:], *NEXT)) == []
    assert masked(conversation(*TURN, *NEXT), MaskPolicy(shapes=False)) == []


def test_a_picture_in_a_result_goes_with_the_turn_whatever_its_text() -> None:
    call = message("assistant", calls=["a"])
    result = replace(message("tool", words(200), answers="a"), media=(PICTURE,))
    talk = conversation(message("user", "Look."), call, result, message("assistant", "A heron."))
    assert masked(talk) == []
    assert masked(conversation(*talk.transcript.messages, *NEXT)) == [2]


def test_a_stage_behind_the_mask_leaves_the_words_in_place() -> None:
    talk = conversation(*TURN, *NEXT)
    view = build_view(talk, Path(), masks(talk), 3)
    cut = alter(
        talk, view, "shortened", cost_of_media, lambda index, m: replace(m, texts=("What?",)) if not index else None
    )
    assert cut.parts[0] == Altered(0, ("What?",), 17, "shortened", media=(in_words(PICTURE),))


# Pictures that give way to the bytes a provider takes

MOST = 10_000
"""Bytes of the messages over which pictures give way."""


def cost(left: Message) -> int:
    return 1_000 if left.media else 10


def picture(role: str, size: int = 3_000, **said: str) -> Message:
    said_so = message(role, "Look.", tokens=1_000, **said)
    return replace(said_so, media=(Media("image", size),), raw=b"|1000".rjust(size, b"x"))


def turns(number: int, size: int = 3_000) -> list[Message]:
    return [each for _ in range(number) for each in (picture("user", size), message("assistant", "A heron."))]


def case(talk: Conversation, policy: Policy | None = None, most: int = MOST) -> PlanningState:
    budget = budget_for(Window(128_000, "config"), 0, shares_with(), ONE_TO_ONE, body_bytes=most)
    return initial_state(talk, policy or Policy(), budget, cost, ())


def sent(talk: Conversation, policy: Policy | None = None) -> Decision:
    known = case(talk, policy)
    return asked(talk, policy=known.policy, budget=known.budget).decide_early() or settle(known)


def left_in_words(view: View | None) -> list[int]:
    return [part.index for part in view.parts if isinstance(part, Altered) and part.media] if view else []


def test_what_cannot_be_left_out_stays() -> None:
    asked = [*turns(1, 8_000), picture("user", 8_000)]
    assert left_in_words(sent(conversation(*asked)).view) == [0]
    last = picture("user", 2 * MOST)
    assert sent(conversation(last)).view is None
    small = replace(message("user", "Look."), media=(Media("image", 60),))
    held = conversation(small, message("assistant", "a"), *turns(4), message("user", "q"))
    assert left_in_words(sent(held).view) == [2, 4, 6]
    unmasked = conversation(*turns(9), message("user", "q"))
    for policy in (Policy(mask=None), Policy(mask=MaskPolicy(shapes=False))):
        assert sent(unmasked, policy).view is None
        assert case(unmasked, policy).widest_view.actions == ()


def test_what_a_summary_stands_for_has_no_bytes() -> None:
    talk = conversation(*turns(5), message("user", "q"))
    known = case(talk).with_chunks([chunk(talk, 0, 4)])
    assert left_in_words(known.widest_view) == []
    assert left_in_words(known.bare_view) == [0, 2, 4]
    fewer = case(talk, most=8_000).with_chunks([chunk(talk, 0, 4)])
    assert left_in_words(fewer.widest_view) == [4, 6]


def test_of_the_turn_under_way_the_results_go_that_the_assistant_has_gone_on_from() -> None:
    steps = [message("user", "Click.")]
    for number in range(5):
        steps += [message("assistant", calls=[f"c{number}"]), picture("tool", answers=f"c{number}")]
    # The newest one nobody has seen.
    assert left_in_words(sent(conversation(*steps)).view) == [2, 4, 6]
    asked = conversation(picture("user", 8_000), *steps[1:3])
    assert left_in_words(sent(asked).view) == []


@given(st.lists(st.tuples(st.booleans(), st.integers(1_500, 6_000)), min_size=1, max_size=15))
def test_a_payload_extends_the_one_before_it_until_more_has_to_give_way(steps: list[tuple[bool, int]]) -> None:
    said: list[Message] = []
    before: list[int] = []
    for number, (asks, size) in enumerate(steps):
        if asks or not said:
            said += [picture("user", size)]
        else:
            said += [message("assistant", calls=[f"c{number}"]), picture("tool", size, answers=f"c{number}")]
        talk = conversation(*said)
        view = case(talk).widest_view
        now = left_in_words(view)

        def left(gone: list[int], talk: Conversation = talk) -> int:
            return talk.message_bytes - sum(talk.transcript.messages[index].media[0].size for index in gone)

        assert {*now} >= {*before}
        assert now == before or left(before) > MOST
        may_go = {index for index in range(talk.transcript.last_turn) if said[index].media} - {*now}
        assert left(now) <= MOST or not may_go
        before = now
        if asks:
            said.append(message("assistant", "A heron."))
