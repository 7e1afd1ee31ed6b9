"""Meaning: what a conversation says that an identifier is and belongs to, and which lines of a payload say so, too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.formats.sent import SentMessage
from lab.replay.evidence import SentMessages
from lab.replay.judge import Verdict
from lab.replay.player import Played
from lab.replay.recordings import Recording
from lab.replay.survival import Meaning, Meanings, Needed, Survival, Value

RESERVATION = {
    "reservation_id": "4WQ150",
    "user": {"last_name": "Kovacs"},
    "flights": [{"flight_number": "HAT021", "date": "2024-05-20"}, {"flight_number": "HAT170", "date": "2024-05-22"}],
    "payments": [{"source": "gift_card", "code": "gc_771"}],
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"member": "mia_4711"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def result(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(content)}


def read(*messages: dict[str, Any]) -> Meanings:
    meanings = Meanings()
    for message in messages:
        meanings.read(sent(message))
    return meanings


def sent(message: dict[str, Any]) -> SentMessage:
    return SentMessages().read(json.dumps(message).encode())


# What is said


def test_json_labels_a_value_by_the_members_that_lead_to_it() -> None:
    found = read(CALLED, result(RESERVATION))
    assert found.of("4WQ150").labels == {"reservation"}
    assert found.of("HAT021").labels == {"flights", "flight"}
    assert found.of("2024-05-20").labels == {"flights", "date"}


def test_json_labels_a_value_by_what_its_object_says_it_is() -> None:
    assert read(result(RESERVATION)).of("gc_771").labels == {"payments", "gift", "card", "code"}


def test_json_gives_a_value_to_the_identifiers_around_it_and_beside_it() -> None:
    found = read(result(RESERVATION))
    assert found.of("HAT021").owners == {"4WQ150"}
    assert found.of("2024-05-20").owners == {"HAT021", "4WQ150"}
    assert found.of("4WQ150").owners == set()


def test_result_belongs_to_what_its_call_asked_for() -> None:
    assert read(CALLED, result({"booking": "4WQ150"})).of("4WQ150").owners == {"mia_4711"}
    assert read(result({"booking": "4WQ150"})).of("4WQ150").owners == set()


def test_prose_labels_a_value_by_the_words_before_it_in_its_clause() -> None:
    text = (
        "I asked about it once. My brother will take the early flight HAT021 of booking 4WQ150. Good luck to PCL-204."
    )
    found = read(said("user", text))
    assert found.of("HAT021").labels == {"take", "early", "flight"}
    assert found.of("HAT021").owners == {"4WQ150"}
    assert found.of("PCL-204").labels == {"good", "luck"}
    assert found.of("PCL-204").owners == set()


def test_structure_says_more_than_prose_whichever_came_first() -> None:
    prose = said("user", "Take plane HAT021 or 4WQ150.")
    for order in ((prose, result(RESERVATION)), (result(RESERVATION), prose)):
        assert read(*order).of("HAT021").labels == {"flights", "flight"}
        assert read(*order).of("HAT021").owners == {"4WQ150"}


# Whether a line says it, too


@pytest.mark.parametrize(
    ("line", "labelled", "owned"),
    [
        ("flight: ; date: 2024-05-20", True, False),
        ("Flights  of 4WQ150", True, True),
        ("HAT170, , 2024-05-20", False, False),
        ("reservation 5XR261: ", False, False),
        ("preflight  of 4WQ1500", False, False),
        ("", False, False),
    ],
)
def test_line_labels_by_whole_words_and_owns_by_whole_identifiers(line: str, labelled: bool, owned: bool) -> None:
    meaning = Meaning({"flight", "flights"}, {"4WQ150"}, is_structured=True)
    assert (meaning.is_labelled_by(line), meaning.is_owned_by(line)) == (labelled, owned)


# What an answer needs


def needed(payload: str, *, answer: str = "It is HAT021.", whole: tuple[int, ...] = ()) -> list[Needed]:
    """By an answer to a payload of this text, and of the messages that are whole in it."""
    messages = [CALLED, result(RESERVATION), said("user", "Well?"), said("assistant", answer)]
    recording = Recording("talk", (said("user", "Where?"), *messages))
    places = {index: sent(recording.messages[index]) for index in whole}
    request = len(recording.requests)
    end = recording.requests[-1]
    verdict = Verdict(
        accepted=True, messages=end, places=places, payload=(sent(said("user", payload)), *places.values())
    )
    survival = Survival()
    survival.see(Played(recording, request, verdict, 1))
    return survival.needed


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ("Nothing.", (False, False, False)),
        ("HAT021, HAT170, HAT300", (True, False, False)),
        ("Flights and 4WQ150 are here:\nHAT021", (True, False, False)),
        ("flight HAT021", (True, True, False)),
        ("5XR261: flight HAT021", (True, True, False)),
        ("4WQ150: flight HAT021", (True, True, True)),
        ("flight HAT0210 of 4WQ150", (False, False, False)),
    ],
)
def test_needed_identifier_is_looked_for_on_each_line(payload: str, found: tuple[bool, bool, bool]) -> None:
    [each] = needed(payload)
    assert each.value == Value("ids", "HAT021")
    assert (each.stands, each.labelled, each.owned) == found


def test_what_a_whole_message_has_is_not_needed() -> None:
    assert needed("flight HAT021", whole=(2,)) == []
