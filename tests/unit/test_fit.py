"""Fit: the mechanical step, where no summary can be had."""

import json
import re

from msgspec.structs import replace

from app.compaction.mask import CUT_ARGUMENTS
from app.compaction.select import whole
from app.compaction.trim import fit, truncations
from app.compaction.view import Altered, Conversation, Verbatim, View
from app.conversation.messages import Message, ToolCall
from tests.unit.conversations import conversation, cost, message


def result(number: int, characters: int) -> list[Message]:
    return [
        message("assistant", calls=[f"c{number}"], tokens=10),
        message("tool", "w " * (characters // 2), answers=f"c{number}"),
    ]


def shortened(talk: Conversation, at_most: int) -> dict[int, int]:
    view = fit(talk, whole(talk), at_most, cost)
    return {part.index: len(part.texts[0]) for part in view.parts if isinstance(part, Altered)}


def test_large_results_are_cut_the_older_the_shorter() -> None:
    talk = conversation(*result(0, 20_000), *result(1, 20_000), *result(2, 20_000), message("user", "q"))
    sizes = shortened(talk, 2_000)
    assert list(sizes) == [1, 3, 5]
    assert sizes[1] < sizes[3] < sizes[5]
    notice = len("\n[... 20000 characters in all, shortened ...]\n")
    assert [size - notice for size in sizes.values()] == [480, 1_440, 2_400]  # 0.2, 0.6 and 1.0 of 0.3 x 2,000 x 4


def test_the_tokens_of_the_view_are_those_of_what_is_left() -> None:
    talk = conversation(*result(0, 20_000), message("user", "q"))
    view = fit(talk, whole(talk), 2_000, cost)
    cut = next(part for part in view.parts if isinstance(part, Altered))
    assert view.tokens == 10 + cut.tokens + 1
    assert view.actions == ("shortened",)


def test_small_messages_the_assistant_and_the_last_user_message_stay() -> None:
    talk = conversation(message("assistant", "w " * 5_000), message("user", "small"), message("user", "w " * 5_000))
    assert fit(talk, whole(talk), 2_000, cost) == whole(talk)


def test_an_earlier_document_of_the_user_is_cut() -> None:
    talk = conversation(message("user", "w " * 5_000), message("assistant", "ok"), message("user", "q"))
    view = fit(talk, whole(talk), 2_000, cost)
    assert [type(part) for part in view.parts] == [Altered, Verbatim]
    assert view.parts[1] == Verbatim(1, 3)


def test_a_text_is_not_cut_where_that_would_make_it_longer() -> None:
    talk = conversation(message("user", "w" * 210), message("user", "q"))
    assert fit(talk, whole(talk), 1, cost) == whole(talk)


def test_a_text_that_was_masked_is_cut_from_the_original_if_at_all() -> None:
    talk = conversation(*result(0, 20_000), message("user", "q"))
    masked = Altered(1, ("w " * 5_000,), 5_000, "masked")
    view = fit(talk, View((Verbatim(0, 1), masked, Verbatim(2, 3)), 5_011), 2_000, cost)
    assert isinstance(view.parts[1], Altered)
    assert "20000 characters in all" in view.parts[1].texts[0]


def test_in_an_emergency_every_result_and_all_arguments_are_truncated_further_and_further() -> None:
    calls = tuple(ToolCall(f"c{number}", "tool", "w " * 10_000) for number in range(8))
    caller = replace(message("assistant", "I look. " * 500, tokens=90_000), calls=calls)
    held = [message("tool", "w " * 10_000, answers=call.id) for call in calls]
    talk = conversation(message("user", "q"), caller, *held)
    views = list(truncations(talk, whole(talk), 7_000, cost))
    assert [lengths(view) for view in views] == [{size} for size in (2_800, 1_400, 700, 350, 200)]
    assert all(view.actions == ("truncated",) for view in views)
    said = next(part for part in views[-1].parts if isinstance(part, Altered) and part.index == 1)
    assert said.texts == caller.texts


def test_without_room_the_truncation_is_the_shortest() -> None:
    talk = conversation(*result(0, 2_000), message("user", "q"), fixed=5_000)
    assert [lengths(view) for view in truncations(talk, whole(talk), 2_000, cost)] == [{200}]


def lengths(view: View) -> set[int]:
    """Characters that are left of the results and of arguments."""
    parts = [part for part in view.parts if isinstance(part, Altered)]
    texts = [part.texts[0] for part in parts if part.calls is None]
    texts += [json.loads(arguments)[CUT_ARGUMENTS] for part in parts for _, arguments in part.calls or ()]
    return {len(re.sub(r"\n\[.*\]\n", "", text)) for text in texts}


def test_without_messages_there_is_nothing_to_cut() -> None:
    talk = conversation()
    assert {view.parts for view in truncations(talk, whole(talk), 2_000, cost)} == {()}
