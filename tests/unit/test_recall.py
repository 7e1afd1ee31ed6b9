"""Recall: what counts as reachable, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.replay.evidence import SentMessages
from lab.replay.judge import Verdict
from lab.replay.player import Played
from lab.replay.recordings import Recording, read_recordings
from lab.replay.tables import ALL_KINDS, SEVERAL, Outcome, Recall, Way, shares_by_kind

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


def found(played: Played) -> list[Outcome]:
    """With all questions of a conversation asked in the same payload."""
    recall = Recall()
    for question in played.recording.questions:
        recall.see(question, played)
    return recall.outcomes


def ways(played: Played) -> list[Way | None]:
    return [outcome.way for outcome in found(played)]


# Questions


def test_questions_without_evidence_in_the_conversation_are_left_out(tmp_path: Path) -> None:
    questions = recording(tmp_path).questions
    assert [question.answer for question in questions] == ["near Turku", "7", "Yes"]
    assert questions[1].evidence == ("D1:4", "D1:5")


# Found


def test_of_several_remarks_all_have_to_be_there(tmp_path: Path) -> None:
    assert ways(payload(recording(tmp_path), 2, 3, 4)) == ["verbatim", "verbatim", None]
    assert ways(payload(recording(tmp_path), 4)) == [None, None, None]


def test_evidence_that_is_recalled_is_found_letter_by_letter(tmp_path: Path) -> None:
    passages = {2: (SAID[2],), 3: ("How many hives?",), 4: (SAID[4],)}
    outcomes = found(payload(recording(tmp_path), passages=passages, tokens=30))
    assert [outcome.way for outcome in outcomes] == ["recalled", "recalled", None]
    assert [outcome.tokens for outcome in outcomes] == [30, 30, 30]
    assert ways(payload(recording(tmp_path), 3, passages={4: (SAID[4],)})) == [None, "recalled", None]


def test_nothing_is_found_in_a_payload_that_was_refused(tmp_path: Path) -> None:
    assert not any(ways(payload(recording(tmp_path), 0, 1, 2, 3, 4, accepted=False)))


# Kinds


def test_shares_by_kind_have_the_names_of_the_data_set(tmp_path: Path) -> None:
    shares = shares_by_kind(found(payload(recording(tmp_path), 3, 4)))
    assert shares == {
        ALL_KINDS: (3, pytest.approx(1 / 3)),
        "single-hop": (1, 0),
        "multi-hop": (1, 1),
        "plain": (1, 0),
        SEVERAL: (1, 1),
    }
