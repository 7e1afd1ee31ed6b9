"""Pictures, sounds and files of turns that are over: what stands in their place, and when."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.compaction.mask import MaskPolicy, Masks, in_words
from app.compaction.planning_state import Path, build_view
from app.compaction.trim import alter
from app.compaction.verify import problems
from app.compaction.view import Altered, Conversation
from app.conversation.messages import Media, Message
from tests.unit.conversations import conversation, message, words

SHAPED = MaskPolicy()
PICTURE = Media("image", 4_000_000, width=1_920, height=1_080)
SHOWN = replace(message("user", "What is in it?", tokens=1_500), media=(PICTURE,))
TURN = (SHOWN, message("assistant", "A heron."))
NEXT = (message("user", "And now?"), message("assistant", "Nothing."))


def cost(left: Message) -> int:
    return 1_500 if left.media else sum(len(text.split()) for text in left.texts)


def masks(talk: Conversation, policy: MaskPolicy = SHAPED) -> Masks:
    return Masks(talk.transcript, policy, cost)


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
    cut = alter(talk, view, "shortened", cost, lambda index, m: replace(m, texts=("What?",)) if not index else None)
    assert cut.parts[0] == Altered(0, ("What?",), 17, "shortened", media=(in_words(PICTURE),))
