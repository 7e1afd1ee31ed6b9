"""Survival: which values are looked for in which payloads, and when they count as there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lab.formats.known import FORMATS
from lab.replay.converting import converted
from lab.replay.evidence import SentMessages
from lab.replay.judge import Verdict
from lab.replay.player import Played
from lab.replay.recordings import Recording
from lab.replay.survival import FAR, Survival, Used, Value, values_in, without_values

CALL = {"id": "call_1", "type": "function", "function": {"name": "ship", "arguments": '{"parcel": "PCL-204"}'}}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def talk(*first: dict[str, Any], small: int = FAR, last: Sequence[dict[str, Any]] = ()) -> Recording:
    """What is said first, as much small talk of both, and what is said last."""
    chatter = [said(("user", "assistant")[(len(first) + place) % 2], f"Well, well {place}.") for place in range(small)]
    return Recording("talk", (*first, *chatter, *last))


def played(recording: Recording, request: int, *payload: dict[str, Any], verdict: Any = None) -> Played:
    """A request of whose payload this is said."""
    reader = SentMessages()
    read = tuple(reader.read(json.dumps(message).encode()) for message in payload)
    return Played(recording, request, Verdict(accepted=True, payload=read, **(verdict or {})), 1)


def used_in(recording: Recording, *payload: dict[str, Any], **verdict: Any) -> list[Used]:
    """By the last answer, made from that payload; those before it from none."""
    survival = Survival()
    last = len(recording.requests)
    for request in range(1, last):
        survival.see(played(recording, request))
    survival.used.clear()
    survival.see(played(recording, last, *payload, verdict=verdict))
    return survival.used


# Values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("See app/core/view.py and notes.md.", {("files", "app/core/view.py"), ("files", "notes.md")}),
        ("At https://a.example/b?c=1 or a@b.example", {("files", "https://a.example/b?c=1"), ("files", "a@b.example")}),
        ("PCL-204 for credit_card_77, HAT021", {("ids", "PCL-204"), ("ids", "credit_card_77"), ("ids", "HAT021")}),
        ("QWERTZ, but not USA", {("ids", "QWERTZ")}),
        ("sed -n '400,420p' and 12a", {("amounts", "400")}),
        (r'{"command": "EOF\npython3 \tPCL-204"}', {("ids", "python3"), ("ids", "PCL-204")}),
        ("PCL-24, the 24th within a 24-hour day", {("ids", "PCL-24")}),
        ("the 5th of A1", set()),
        ("$1,234.50 or 99.5 or 300, not 12", {("amounts", "1,234.50"), ("amounts", "99.5"), ("amounts", "300")}),
        ("on 2026-11-22T10:00", {("dates", "2026-11-22")}),
        ('{"id": "PCL-204", "again": "PCL-204"}', {("ids", "PCL-204")}),
        ("nothing at all", set()),
    ],
)  # fmt: skip
def test_values_are_told_by_their_form(text: str, values: set[tuple[str, str]]) -> None:
    found = values_in(text)
    assert len(found) == len(set(found))
    assert {(value.kind, value.text) for value in found} == values


@pytest.mark.parametrize(
    ("text", "stands"),
    [("id=PCL-20.", True), ('"PCL-20"', True), ("XPCL-20", False), ("PCL-204", False), ("PCL20", False)],
)
def test_value_stands_letter_by_letter_and_as_a_whole(text: str, stands: bool) -> None:
    assert Value("ids", "PCL-20").stands_in(text) is stands


def test_summary_without_values_has_none() -> None:
    text = "She paid 1,250 for PCL-204 on 2026-11-22, see a/b.py. She was glad."
    assert not values_in(without_values(text))
    assert without_values(text).endswith("She was glad.")


# Used again


ASKED = said("user", "Where is PCL-204? I paid 300.")
ANSWERED = said("assistant", "PCL-204 it is.")


def test_answer_uses_a_value_that_was_said_long_ago() -> None:
    recording = talk(
        ASKED, small=FAR + 1, last=[said("user", "Well?"), said("assistant", "PCL-204 and XYZ-9 are there.")]
    )
    [used] = used_in(recording, said("user", "Nothing."))
    assert (used.value, used.ago, used.stands) == (Value("ids", "PCL-204"), FAR + 3, False)
    [used] = used_in(recording, said("user", "Of PCL-204."))
    assert used.stands


@pytest.mark.parametrize(("small", "uses"), [(FAR - 3, 0), (FAR - 2, 1)])
def test_what_was_said_of_late_is_not_far(small: int, uses: int) -> None:
    recording = talk(ASKED, said("assistant", "Hm."), small=small, last=[said("user", "Well?"), ANSWERED])
    assert len(used_in(recording)) == uses


def test_arguments_of_calls_are_used_and_said() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    recording = talk(ASKED, small=FAR + 1, last=[said("user", "Well?"), called])
    assert [used.value.text for used in used_in(recording)] == ["PCL-204"]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "Done."}
    recording = talk(said("user", "Ship it."), called, result, ANSWERED, last=[said("user", "Well?"), ANSWERED])
    assert [used.value.text for used in used_in(recording)] == ["PCL-204"]


@pytest.mark.parametrize("written", ["messages", "responses"])
def test_values_are_the_same_in_every_format(written: str) -> None:
    called = {"role": "assistant", "content": "I ship it.", "tool_calls": [CALL]}
    recording = talk(said("system", "Be brief."), ASKED, small=FAR + 2, last=[said("user", "Well?"), called])
    other = converted(recording, FORMATS[written])
    assert [used.value for used in used_in(other)] == [used.value for used in used_in(recording)]
