"""Recall: what counts as reachable, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.replay.evidence import SentMessages
from app.replay.judge import Verdict
from app.replay.player import Played
from app.replay.recall import Distribution, Reached, Recall, answered_in
from app.replay.recordings import ONE_MORE, Recording, read_recordings

SAID = ("Ada keeps bees.", "Where?", "Near Turku, since May 2021.", "How many hives?", "Seven of them.")
QUESTIONS = [
    {"question": "Where are the bees?", "answer": "near Turku", "evidence": ["D1:3"]},
    {"question": "How many hives?", "answer": 7, "evidence": ["D1:4; D1:5"]},
    {"question": "Does she keep bees?", "answer": "Yes", "evidence": ["D1:1"]},
    {"question": "Who is Ben?", "answer": "a bee-keeper", "evidence": ["D9:9"]},
    {"question": "What does nobody know?", "answer": "that", "evidence": []},
]


def recording(folder: Path, name: str = "talk", qa: Any = None) -> Recording:
    turns = [{"id": f"D1:{n}", "speaker": ("Ada", "Ben")[(n - 1) % 2], "text": text} for n, text in enumerate(SAID, 1)]
    sessions = [{"date_time": "1 May", "turns": turns}]
    talk = {"id": name, "speakers": ["Ada", "Ben"], "sessions": sessions, "qa": QUESTIONS if qa is None else qa}
    path = folder / f"{name}.jsonl"
    path.write_text(json.dumps(talk) + "\n")
    return read_recordings(path)[0]


def last(recording: Recording, *shown: int, summaries: tuple[str, ...] = (), accepted: bool = True) -> Played:
    """The conversation's last request: these of its messages were in the payload, and these summaries."""
    reader = SentMessages()
    places = {index: reader.read(json.dumps(recording.messages[index]).encode()) for index in shown}
    verdict = Verdict(accepted=accepted, places=places, summaries=summaries)
    return Played(recording, 1, verdict, 100)


def reached(*played: Played) -> list[Reached]:
    recall = Recall()
    for each in played:
        recall.see(each)
    return recall.reached()


# Questions


def test_questions_without_evidence_in_the_conversation_are_left_out(tmp_path: Path) -> None:
    questions = recording(tmp_path).questions
    assert [question.answer for question in questions] == ["near Turku", "7", "Yes"]
    assert questions[1].evidence == ("D1:4", "D1:5")


def test_last_request_has_everything_that_was_said_as_history(tmp_path: Path) -> None:
    talk = recording(tmp_path)
    asked = talk.followed_by_a_question()
    assert asked.messages[: asked.requests[-1]] == talk.messages  # It ends with a user's message as it is.
    shorter = Recording("shorter", talk.messages[:2]).followed_by_a_question()
    assert shorter.messages[: shorter.requests[-1]] == (*talk.messages[:2], {"role": "user", "content": ONE_MORE})


# Reachable


def test_evidence_in_the_payload_is_reachable(tmp_path: Path) -> None:
    [found] = reached(last(recording(tmp_path), 2, 3, 4))
    assert (found.questions, found.verbatim, found.summarised, found.by_chance) == (3, 2, 0, None)


def test_of_several_remarks_all_have_to_be_there(tmp_path: Path) -> None:
    assert reached(last(recording(tmp_path), 4))[0].verbatim == 0


def test_answer_in_a_summary_is_reachable_once(tmp_path: Path) -> None:
    notes = ("Bees stand near the city of Turku.",)
    [hidden] = reached(last(recording(tmp_path), summaries=notes))
    assert (hidden.verbatim, hidden.summarised) == (0, 1)
    assert hidden.share == pytest.approx(1 / 3)
    [shown] = reached(last(recording(tmp_path), 2, summaries=notes))
    assert (shown.verbatim, shown.summarised) == (1, 0)


def test_nothing_is_reachable_in_a_payload_that_was_refused(tmp_path: Path) -> None:
    [found] = reached(last(recording(tmp_path), 0, 1, 2, 3, 4, summaries=("near Turku",), accepted=False))
    assert found.share == 0


def test_remark_that_was_cut_out_of_its_message_is_not_reachable(tmp_path: Path) -> None:
    talk = recording(tmp_path)
    reader = SentMessages()
    cut = {2: reader.read(b'{"role": "user", "content": "Near Tu[27]"}')}
    assert reached(Played(talk, 1, Verdict(accepted=True, places=cut), 1))[0].verbatim == 0


def test_only_the_last_request_counts(tmp_path: Path) -> None:
    talk = recording(tmp_path)
    assert reached(last(talk, 0, 1, 2, 3, 4), last(talk))[0].share == 0


def test_summaries_of_another_conversation_show_what_is_found_by_chance(tmp_path: Path) -> None:
    here = last(recording(tmp_path), summaries=("Nothing.",))
    there = last(recording(tmp_path, "other"), summaries=("They met near Turku and went on.",))
    found = reached(here, there)
    assert [each.by_chance for each in found] == [1, 0]
    assert [each.summarised for each in found] == [0, 1]


# Answers


@pytest.mark.parametrize(
    ("answer", "summary", "found"),
    [
        ("7 May 2023", "On May 7, 2023 she went there.", True),
        ("7 May 2023", "On May 8, 2023 she went there.", False),
        ("near Turku", "NEAR TURKU", True),
        ("a café", "They sat in a Cafe.", True),
        ("bees", "beeswax", False),
        ("Yes", "Yes, she said.", False),
        ("", "anything", False),
        ("red hat", f"A red{' one' * 38} hat.", True),
        ("red hat", f"A red{' one' * 39} hat.", False),
        ("red hat", f"red {'one ' * 50} hat red", True),
    ],
)
def test_telling_words_of_an_answer_stand_close_together(answer: str, summary: str, found: bool) -> None:
    assert answered_in(answer, summary) is found


# Distribution


def test_distribution_over_conversations() -> None:
    spread = Distribution.of([Reached(str(share), 10, share) for share in (1, 2, 3, 4, 10)])
    assert spread.mean == pytest.approx(0.4)
    assert spread.five == (0.1, 0.2, 0.3, 0.4, 1.0)


def test_distribution_of_one_conversation_is_that_one() -> None:
    assert Distribution.of([Reached("one", 4, 1, 1)]).five == (0.5,) * 5
