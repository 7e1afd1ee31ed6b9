"""Recall: what counts as reachable, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.replay.evidence import SentMessages
from lab.replay.judge import Verdict
from lab.replay.player import Played
from lab.replay.recall import (
    ALL_KINDS,
    NO_KIND,
    SEVERAL,
    Distribution,
    Outcome,
    Reached,
    Recall,
    answered_in,
    shares_by_kind,
)
from lab.replay.recordings import ONE_MORE, Question, Recording, read_recordings
from lab.replay.tables import by_kind
from lab.replay.tally import Tally

SAID = ("Ada keeps bees.", "Where?", "Near Turku, since May 2021.", "How many hives?", "Seven of them.")
QUESTIONS = [
    {"question": "Where are the bees?", "answer": "near Turku", "evidence": ["D1:3"], "category": 4},
    {"question": "How many hives?", "answer": 7, "evidence": ["D1:4; D1:5"], "category": 1},
    {"question": "Does she keep bees?", "answer": "Yes", "evidence": ["D1:1"], "category": "plain"},
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


def payload(recording: Recording, *shown: int, accepted: bool = True, tokens: int = 0, **found: Any) -> Played:
    """One in which these messages of the conversation stood, and what else was found."""
    reader = SentMessages()
    places = {index: reader.read(json.dumps(recording.messages[index]).encode()) for index in shown}
    return Played(recording, 1, Verdict(accepted=accepted, places=places, **found), 100, recalled=tokens)


def reached(*played: Played) -> list[Reached]:
    """With all questions of a conversation asked in the same payload."""
    recall = Recall()
    for each in played:
        for question in each.recording.questions:
            recall.see(question, each)
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


def test_each_question_is_asked_at_the_end_as_the_next_user_message(tmp_path: Path) -> None:
    talk = recording(tmp_path).followed_by_a_question()
    recall = Recall()
    assert not list(recall.asides(Played(talk, 1, Verdict(), 1)))
    asked = [aside.messages for aside in recall.asides(Played(talk, len(talk.requests), Verdict(), 1))]
    assert [messages[-1] for messages in asked] == [
        {"role": "user", "content": text} for text in ("Where are the bees?", "How many hives?", "Does she keep bees?")
    ]
    assert all(messages[:-1] == talk.messages for messages in asked)


def test_what_the_assistant_said_last_is_the_questions_own(tmp_path: Path) -> None:
    qa = [{"question": "Yes, there.", "answer": "", "evidence": ["D1:3"], "before": "You mean Turku?"}]
    talk = recording(tmp_path, qa=qa).followed_by_a_question()
    [aside] = Recall().asides(Played(talk, len(talk.requests), Verdict(), 1))
    said = {"role": "assistant", "content": "You mean Turku?"}, {"role": "user", "content": "Yes, there."}
    assert aside.messages == (*talk.messages[:-1], *said)


# Reachable


def test_evidence_in_the_payload_is_reachable(tmp_path: Path) -> None:
    [found] = reached(payload(recording(tmp_path), 2, 3, 4))
    assert [outcome.way for outcome in found.outcomes] == ["verbatim", "verbatim", None]
    assert (found.questions, found.by("verbatim"), found.reachable, found.by_chance) == (3, 2, 2, None)


def test_of_several_remarks_all_have_to_be_there(tmp_path: Path) -> None:
    assert reached(payload(recording(tmp_path), 4))[0].reachable == 0


def test_evidence_that_is_recalled_is_reachable_letter_by_letter(tmp_path: Path) -> None:
    passages = {2: (SAID[2],), 3: ("How many hives?",), 4: (SAID[4],)}
    [found] = reached(payload(recording(tmp_path), passages=passages, tokens=30))
    assert [outcome.way for outcome in found.outcomes] == ["recalled", "recalled", None]
    assert [outcome.tokens for outcome in found.outcomes] == [30, 30, 30]


def test_evidence_may_be_in_a_message_and_in_a_passage(tmp_path: Path) -> None:
    [found] = reached(payload(recording(tmp_path), 3, passages={4: (SAID[4],)}))
    assert [outcome.way for outcome in found.outcomes] == [None, "recalled", None]


@pytest.mark.parametrize("passages", [{2: ("Near Turku",)}, {1: (SAID[2],)}, {4: (SAID[2],)}])
def test_part_of_a_remark_or_another_messages_passage_is_not_enough(
    tmp_path: Path, passages: dict[int, tuple[str, ...]]
) -> None:
    assert reached(payload(recording(tmp_path), passages=passages))[0].reachable == 0


def test_answer_in_a_summary_is_reachable_once(tmp_path: Path) -> None:
    notes = ("Bees stand near the city of Turku.",)
    [hidden] = reached(payload(recording(tmp_path), summaries=notes))
    assert (hidden.by("verbatim"), hidden.by("summarised")) == (0, 1)
    assert hidden.share == pytest.approx(1 / 3)
    [shown] = reached(payload(recording(tmp_path), 2, summaries=notes))
    assert (shown.by("verbatim"), shown.by("summarised")) == (1, 0)


def test_nothing_is_reachable_in_a_payload_that_was_refused(tmp_path: Path) -> None:
    [found] = reached(payload(recording(tmp_path), 0, 1, 2, 3, 4, summaries=("near Turku",), accepted=False))
    assert found.share == 0


def test_remark_that_was_cut_out_of_its_message_is_not_reachable(tmp_path: Path) -> None:
    talk = recording(tmp_path)
    reader = SentMessages()
    cut = {2: reader.read(b'{"role": "user", "content": "Near Tu[27]"}')}
    [found] = reached(Played(talk, 1, Verdict(accepted=True, places=cut), 1))
    assert found.outcomes[0].way is None


def test_each_question_counts_in_the_payload_that_asked_it(tmp_path: Path) -> None:
    talk = recording(tmp_path)
    recall = Recall()
    for question, shown in zip(talk.questions, ((2,), (0, 1, 2), ()), strict=True):
        recall.see(question, payload(talk, *shown))
    assert [outcome.way for outcome in recall.reached()[0].outcomes] == ["verbatim", None, None]


def test_summaries_of_another_conversation_show_what_is_found_by_chance(tmp_path: Path) -> None:
    here = payload(recording(tmp_path), summaries=("Nothing.",))
    there = payload(recording(tmp_path, "other"), summaries=("They met near Turku and went on.",))
    found = reached(here, there)
    assert [each.by_chance for each in found] == [1, 0]
    assert [each.by("summarised") for each in found] == [0, 1]


# Kinds


def test_shares_by_kind_have_the_names_of_the_data_set(tmp_path: Path) -> None:
    shares = shares_by_kind(reached(payload(recording(tmp_path), 3, 4, summaries=("near Turku",))))
    assert shares == {
        ALL_KINDS: (3, pytest.approx(1 / 3)),
        "single-hop": (1, 0),
        "multi-hop": (1, 1),
        "plain": (1, 0),
        SEVERAL: (1, 1),
    }


def test_a_remark_named_twice_is_one(tmp_path: Path) -> None:
    qa = [{"question": "?", "answer": "", "evidence": ["D1:3", "D1:3"]}]
    assert shares_by_kind(reached(payload(recording(tmp_path, qa=qa)))) == {ALL_KINDS: (1, 0), NO_KIND: (1, 0)}


def test_table_says_what_it_cost(tmp_path: Path) -> None:
    tally = Tally("talk", 8_000, requests=4, recalled_tokens=100, previous_bytes=200, kept_bytes=190)
    found = reached(payload(recording(tmp_path), passages={2: (SAID[2],)}, tokens=30))
    grid = by_kind([("default", found, tally)], (8_000,), "talk.jsonl")
    row = dict(zip(grid.header, grid.rows[0], strict=True))
    assert row["all questions (3)"] == "33.3%"
    assert row["recalled tokens per question"] == "30"
    assert row["recalled tokens per request"] == "25"
    assert row["prefix kept"] == "95.0%"


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


def share_of(name: str, part: int, whole: int) -> Reached:
    question = Question("", ("D1:1",))
    return Reached(name, [Outcome(question, "verbatim" if number < part else None) for number in range(whole)])


def test_distribution_over_conversations() -> None:
    spread = Distribution.of([share_of(str(part), part, 10) for part in (1, 2, 3, 4, 10)])
    assert spread.mean == pytest.approx(0.4)
    assert spread.five == (0.1, 0.2, 0.3, 0.4, 1.0)


def test_distribution_of_one_conversation_is_that_one() -> None:
    assert Distribution.of([share_of("one", 2, 4)]).five == (0.5,) * 5
