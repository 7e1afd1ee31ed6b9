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
from lab.replay.survival import IDENTIFIERS, OWNERS, Needed, Survival, Value, values_in
from lab.replay.survival_meaning import Meaning, Meanings
from lab.replay.tables import values_needed

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
    meanings = Meanings(
        lambda text: [value.text for value in values_in(text) if value.kind in IDENTIFIERS],
        lambda text: [value.text for value in values_in(text) if value.kind in OWNERS],
    )
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


def test_names_of_members_may_be_values() -> None:
    found = read(result({"holder": "mia_4711", "cards": {"card_771": {"expires": "2024-05-20"}}}))
    assert (found.of("card_771").labels, found.of("card_771").owners) == ({"cards"}, {"mia_4711"})


def test_json_gives_a_value_to_the_identifiers_around_it_and_beside_it() -> None:
    found = read(result(RESERVATION))
    assert found.of("HAT021").owners == {"4WQ150"}
    assert found.of("2024-05-20").owners == {"HAT021", "4WQ150"}
    assert found.of("4WQ150").owners == set()


def test_names_of_people_own_what_stands_in_their_object() -> None:
    assert read(result({"last_name": "Kovacs", "seat": "SEAT-12"})).of("SEAT-12").owners == {"Kovacs"}


def test_result_belongs_to_what_its_call_asked_for() -> None:
    assert read(CALLED, result({"booking": "4WQ150"})).of("4WQ150").owners == {"mia_4711"}
    assert read(result({"booking": "4WQ150"})).of("4WQ150").owners == set()


def test_arguments_of_a_call_label_their_values() -> None:
    assert read(CALLED).of("mia_4711").labels == {"member"}


def test_prose_labels_a_value_by_the_words_before_it_in_its_clause() -> None:
    text = (
        "I asked about it once. My brother will take the early flight HAT021 of booking 4WQ150. Good luck to PCL-204."
    )
    found = read(said("user", text))
    assert found.of("HAT021").labels == {"take", "early", "flight"}
    assert found.of("HAT021").owners == {"4WQ150"}
    assert found.of("PCL-204").labels == {"good", "luck"}
    assert found.of("PCL-204").owners == set()


def test_text_that_a_member_holds_is_prose() -> None:
    found = read(result({"order": "4WQ150", "command": "cat file HAT021 XYZ-9 DEBUG"}))
    assert (found.of("HAT021").labels, found.of("HAT021").owners) == ({"cat", "file"}, {"4WQ150", "XYZ-9"})
    assert found.of("XYZ-9").owners == {"4WQ150", "HAT021"}


def test_bare_list_labels_nothing() -> None:
    found = read(result(["PCL-204", "PCL-205"]), said("user", "XYZ-9"))
    assert [found.of(value) for value in ("PCL-204", "XYZ-9")] == [Meaning(is_structured=True), Meaning()]


def test_structure_says_more_than_prose_whichever_came_first() -> None:
    prose = said("user", "Take plane HAT021 or 4WQ150.")
    for order in ((prose, result(RESERVATION)), (result(RESERVATION), prose)):
        assert read(*order).of("HAT021").labels == {"flights", "flight"}
        assert read(*order).of("HAT021").owners == {"4WQ150"}


def test_what_was_never_said_means_nothing() -> None:
    assert read(said("user", "Hello.")).of("PCL-204") == Meaning()


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


def test_identifier_is_no_label_of_its_own() -> None:
    recording = Recording("talk", (said("user", "See file data/file.py"), said("assistant", "data/file.py")))
    survival = Survival()
    for line, labelled in (("data/file.py", False), ("the file data/file.py", True)):
        survival.see(Played(recording, 1, Verdict(accepted=True, messages=1, payload=(sent(said("user", line)),)), 1))
        assert survival.needed[-1].labelled is labelled


def test_what_a_whole_message_has_is_not_needed() -> None:
    assert needed("flight HAT021", whole=(2,)) == []


def test_amounts_and_what_is_new_are_not_needed() -> None:
    assert needed("Nothing.", answer="That makes 1,250 for NEW-204.") == []


@pytest.mark.parametrize(("member", "count"), [("PUNERT", 1), ("see PUNERT there", 0)])
def test_word_in_capitals_is_needed_where_a_member_of_json_is_that_word(member: str, count: int) -> None:
    messages = (CALLED, result({"booking": member}), said("user", "Well?"), said("assistant", "It is PUNERT."))
    recording = Recording("talk", (said("user", "Where?"), *messages))
    survival = Survival()
    verdict = Verdict(accepted=True, messages=4, payload=(sent(said("user", "booking PUNERT")),))
    survival.see(Played(recording, len(recording.requests), verdict, 1))
    assert len(survival.needed) == count


def test_what_belongs_to_nothing_is_not_counted_as_unowned() -> None:
    recording = Recording("talk", (said("user", "PCL-204"), said("assistant", "PCL-204")))
    survival = Survival()
    survival.see(Played(recording, 1, Verdict(accepted=True, messages=1, payload=(sent(said("user", "PCL-204")),)), 1))
    [each] = survival.needed
    assert (each.stands, each.labelled, each.owned) == (True, None, None)


def test_table_has_shares_of_those_that_mean_something() -> None:
    value = Value("ids", "PCL-204")
    found = [
        Needed("talk", 1, value, stands=True, labelled=True, owned=None),
        Needed("talk", 1, value, stands=False, labelled=False, owned=False),
        Needed("talk", 1, value, stands=True, labelled=None, owned=None),
    ]
    grid = values_needed([("off", []), ("default", found)], (8_000,), "talks.jsonl")
    assert grid.rows == [("off", "0", "-", "-", "-"), ("default", "3", "66.7%", "50.0%", "0.0%")]
