"""Long chats: a generator of conversations in which the user says something in passing and the assistant advises.

`python -m lab.replay.long_chats >long-chats.jsonl` writes three chats of 120 turns, each with twenty questions about
what the user said; `steno replay long-chats.jsonl --recall --window 32000` asks them.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

CHATS = 3
TURNS = 120
STATING = 3
"""The user says something that may be asked for in every third turn."""
CORRECTIONS = 10
"""Number of statements that correct an earlier one."""
QUESTIONS = 20
ABOUT_CORRECTIONS = 6
ANSWER_CHARACTERS = 4_900
"""Characters of an answer: about 1,000 tokens."""
LEAST_SAID, MOST_SAID = 150, 250
"""Characters of a user's message."""

WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


class Subject(Struct, frozen=True):
    name: str
    words: list[str]
    facts: list[tuple[str, str, str, str]]
    """Sentence of the user, its correction, the question, and values of it."""


class Statement(Struct, frozen=True):
    subject: Subject
    said: str
    value: str
    question: str
    kind: str


def main() -> None:
    for number in range(1, CHATS + 1):
        sys.stdout.write(f"{msgspec.json.encode(long_chat(number)).decode()}\n")


def long_chat(seed: int) -> dict[str, Any]:
    """Make one chat, always the same for a seed, with its questions and the sentences that answer them."""
    chance = Random(seed)
    subjects = [*_subjects()]
    statements = [*_statements(chance, subjects)]
    messages: list[dict[str, str]] = []
    remarks: dict[str, str] = {}
    answers: dict[str, tuple[Statement, str]] = {}
    for turn in range(TURNS):
        subject, said = chance.choice(subjects), ""
        if turn % STATING == 1:
            statement, place = statements[turn // STATING], str(len(messages))
            subject, said = statement.subject, statement.said
            remarks[place] = said
            answers[statement.question] = statement, place
        messages.append({"role": "user", "content": _message(chance, subject, said)})
        messages.append({"role": "assistant", "content": _advice(chance, subject)})
    asked = [
        {"question": each.question, "answer": each.value, "category": each.kind, "evidence": [place]}
        for each, place in answers.values()
    ]
    corrected = [question for question in asked if question["category"] == "correction"]
    others = [question for question in asked if question["category"] != "correction"]
    chosen = chance.sample(corrected, ABOUT_CORRECTIONS) + chance.sample(others, QUESTIONS - ABOUT_CORRECTIONS)
    return {"id": f"long-chat-{seed}", "messages": messages, "remarks": remarks, "qa": chosen}


def _subjects() -> Iterator[Subject]:
    name, words, facts = "", list[str](), list[Any]()
    for line in (*WORDS["subjects"].splitlines(), ": "):
        if " | " in line:
            facts.append(tuple(line.split(" | ")))
            continue
        if facts:
            yield Subject(name, words, facts)
        name, _, listed = line.partition(": ")
        words, facts = listed.split(", "), []


def _statements(chance: Random, subjects: list[Subject]) -> Iterator[Statement]:
    """Everything that is stated: facts, and between the later ones corrections of early ones."""
    known = [(subject, fact) for subject in subjects for fact in subject.facts]
    facts, corrections = list[Statement](), list[Statement]()
    for subject, (said, corrected, question, listed) in chance.sample(known, TURNS // STATING - CORRECTIONS):
        value, newer = chance.sample(listed.split("; "), 2)
        facts.append(Statement(subject, said.format(value), value, question, "fact"))
        correction = chance.choice(WORDS["correcting"]).format(corrected.format(newer))
        corrections.append(Statement(subject, correction, newer, question, "correction"))
    half = len(facts) // 2
    later = facts[half:] + chance.sample(corrections[:half], CORRECTIONS)
    chance.shuffle(later)
    yield from facts[:half]
    yield from later


def _message(chance: Random, subject: Subject, said: str) -> str:
    """Write what the user says, in passing, between small talk and a request for advice."""
    word = chance.choice(subject.words)
    while True:
        chosen = [chance.choice(WORDS[kind]) for kind in ("openings", "worries", "asking", "asking")]
        opening, *others = dict.fromkeys(each.format(s=subject.name, t=word) for each in chosen)
        sentences = [opening, *([said] if said else []), *others]
        while len(text := " ".join(sentences)) > MOST_SAID:
            sentences.pop()
        if len(text) >= LEAST_SAID and said in text:
            return text


def _advice(chance: Random, subject: Subject) -> str:
    paragraphs: list[str] = []
    while sum(map(len, paragraphs)) < ANSWER_CHARACTERS:
        first, second = chance.sample(subject.words, 2)
        advice = chance.sample(WORDS["advice"], 4)
        said = " ".join(each.format(s=subject.name, t=first, u=second, n=chance.randrange(3, 90)) for each in advice)
        paragraphs.append(f"{len(paragraphs) + 1}. **{first.capitalize()}.** {said}")
    return "\n\n".join(paragraphs)


if __name__ == "__main__":
    main()
