"""Fading: the fuller the window, the less is left of tool results, the oldest first."""

from __future__ import annotations

import re

import pytest

from app.compaction.select import whole
from app.compaction.trim import fade, pressure
from app.compaction.view import Altered, Conversation
from app.conversation.messages import Message
from tests.unit.conversations import conversation, cost, message

LIMIT = 20_000
INSTRUCTIONS = 1_000
EFFECTIVE = LIMIT - INSTRUCTIONS
NOTICE = re.compile(r"\n\[\.\.\. \d+ characters in all, shortened \.\.\.\]\n")


def results(tokens: int, number: int = 3) -> Conversation:
    """Results whose messages have so many tokens in all, eight characters each."""
    share, rest = divmod(tokens - 1, number)
    steps: list[Message] = []
    for index in range(number):
        steps.append(message("assistant", calls=[f"c{index}"], tokens=0))
        steps.append(message("tool", "abcdefg " * (share + rest * (index == 0)), answers=f"c{index}"))
    return conversation(*steps, message("user", "q"), fixed=INSTRUCTIONS)


def sizes(talk: Conversation) -> list[int]:
    """Characters that are left of the results that have faded."""
    view = fade(talk, whole(talk), LIMIT, cost)
    return [len(NOTICE.sub("", part.texts[0])) for part in view.parts if isinstance(part, Altered)]


@pytest.mark.parametrize(("band", "factor"), [(0.80, 1.0), (0.85, 0.5), (0.90, 0.2), (0.99, 0.05)])
def test_each_band_counts_its_share_of_the_room(band: float, factor: float) -> None:
    longest = int(0.30 * max(1_024, int(EFFECTIVE * factor))) * 4
    expected = [int(longest * weight) for weight in (0.2, 0.6, 1.0)]
    assert sizes(results(int(band * LIMIT))) == [pytest.approx(size, abs=1) for size in expected]


@pytest.mark.parametrize("band", [0.80, 0.85, 0.90, 0.99])
def test_a_band_begins_where_it_says(band: float) -> None:
    below, at = (sizes(results(int(band * LIMIT) - less)) for less in (1, 0))
    assert below == [] if band == 0.80 else below[-1] > at[-1]


def test_the_room_is_never_taken_for_less_than_1024_tokens() -> None:
    longest = int(0.30 * 1_024) * 4
    left = sizes(results(int(0.99 * LIMIT), number=30))
    assert (left[0], left[-1]) == (int(0.2 * longest), longest)


def test_older_documents_of_the_user_do_not_fade() -> None:
    talk = conversation(message("user", "w " * 30_000), message("assistant", "ok"), message("user", "q"))
    assert fade(talk, whole(talk), LIMIT, cost) == whole(talk)


def test_without_any_room_the_window_is_full() -> None:
    talk = results(100)
    assert pressure(talk, whole(talk), 0) == 1.0
    assert pressure(talk, whole(talk), 200) == 0.5
