"""The judge of hostile histories: it finds what it is there for, whoever mends what it found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.compaction.user_words import HEADING
from lab.simulator.log import Record
from tests.histories.judge import Judge
from tests.histories.talks import BLOCKS, SENTENCES, traits_of
from tests.histories.wires import Asked, Said

TRAITS = replace(traits_of(1, 0), style="tools")
BLOCK = BLOCKS["claude_md"].format(version="one", text="the shop")
SYSTEM: Any = {"role": "system", "content": "Be brief."}
FIRST: Any = {"role": "user", "content": [{"type": "text", "text": BLOCK}, {"type": "text", "text": "mk1x1z Look."}]}
ANSWER: Any = {"role": "assistant", "content": "mk1x2z It is this: " + SENTENCES[0]}
QUESTION: Any = {"role": "user", "content": "mk1x3z And now?"}
ASKED = Asked(
    (Said(SYSTEM), Said(FIRST, (("mk1x1z", ""),)), Said(ANSWER, (("mk1x2z", ""),)), Said(QUESTION, (("mk1x3z", ""),))),
    QUESTION["content"],
    QUESTION["content"],
    (BLOCK,),
    0,
)
NOTES = "The clerk looked at it."


def sent(*messages: Any, **members: Any) -> Record:
    body = msgspec.json.encode({"messages": messages})
    known = Record(1, 0.0, "POST", "/v1/chat/completions", (), body, "chat", status=200)
    return replace(known, **members)


def summary(*shown: str) -> Record:
    return sent({"role": "user", "content": "\n".join(shown)}, kind="summary", text=NOTES)


def kinds(*records: Record, calls: tuple[Record, ...] = ()) -> list[str]:
    judge = Judge(TRAITS, lambda _: {})
    judge.learn(calls)
    return [violation.kind for violation in judge.judge(1, ASKED, "messages", records)]


NOTED: Any = {"role": "user", "content": f"[Notes]\n{NOTES}\n\n{BLOCK}"}
LAUNDERED: Any = {"role": "user", "content": f"{NOTED['content']}\n{HEADING}\n{SENTENCES[0]}"}


def test_a_summary_stands_for_what_its_call_was_shown() -> None:
    record = sent(SYSTEM, NOTED, QUESTION)
    assert kinds(record, calls=(summary("mk1x1z Look.", "mk1x2z It is"),)) == []
    assert kinds(record, calls=(summary("mk1x1z Look."),)) == ["lost"]
    assert kinds(record) == ["lost", "lost"]


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ((SYSTEM, FIRST, ANSWER, {"role": "user", "content": "mk1x3z And"}), "question"),
        ((SYSTEM, {"role": "user", "content": "mk1x1z Look."}, ANSWER, QUESTION), "block"),
        ((FIRST, ANSWER, QUESTION), "instructions"),
        ((SYSTEM, LAUNDERED, FIRST, ANSWER, QUESTION), "laundered"),
    ],
)
def test_what_is_missing_or_stands_in_anothers_name_is_found(messages: tuple[Any, ...], kind: str) -> None:
    assert kinds(sent(*messages)) == [kind]
