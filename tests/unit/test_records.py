"""Records: how they are written and read back, and what becomes of a thing that is met again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.history.records import (
    Field,
    Record,
    brought_together,
    fitting_records,
    merged,
    parts_of,
    put_together,
    record_of,
    said_once,
)

TRIP = "reservation VA5SGQ: user raj_brown_5782, flights HAT035 2024-05-17, HAT102 2024-05-19, status open"


def test_record_is_one_line_whose_labels_are_said_once() -> None:
    flights = (Field("flights", "HAT035 2024-05-17"), Field("flights", "HAT102 2024-05-19"))
    record = Record("reservation VA5SGQ", (Field("user", "raj_brown_5782"), *flights, Field("status", "paid", "open")))
    assert record.line == TRIP.replace("open", "paid (was open)")
    assert record_of(record.line) == record
    assert Record("order W5").line == "order W5"


def test_what_neighbours_have_in_common_is_said_behind_the_last_of_them() -> None:
    flights = [Field("flights", f"HAT{number} 2024-05-17") for number in (1, 2, 3)]
    assert Record("trip V5", tuple(flights)).line == "trip V5: flights HAT1, HAT2, HAT3 2024-05-17"
    apart = Record("trip V5").joined([flights[0], Field("flights", "HAT9 2024-05-19"), flights[1]])
    assert apart.line == "trip V5: flights HAT1, HAT2 2024-05-17, HAT9 2024-05-19"


@pytest.mark.parametrize(
    "line",
    [
        "ORD-4711",
        "get_order(order_id=ORD-4712)",
        "The deadline is March 3rd, 2026",
        "ticket AB-2: AB-3, leaves on March 3rd, 2026",
        "订单 W5: 状态 paid",
        TRIP,
        "",
    ],
)
def test_line_is_what_its_record_is_written_as(line: str) -> None:
    """Those of earlier releases, which listed bare values, too."""
    assert record_of(line).line == line


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("reservation VA5SGQ: status open", "VA5SGQ"),
        ("file src/app.py: changed 3", "src/app.py"),
        ("ORD-4711", "ORD-4711"),
        ("user 17: status new", "user 17"),
        ("The deadline is 2026-03-03", "The deadline is 2026-03-03"),
        ("search_flights: origin DEN", "search_flights"),
    ],
)
def test_thing_is_known_by_its_identifier_whatever_it_is_called(line: str, key: str) -> None:
    assert record_of(line).key == key


def test_latest_value_holds_and_says_what_it_replaced() -> None:
    older, newer = record_of(TRIP), record_of("VA5SGQ: status paid, payment gift_card_17")
    assert merged(older, newer).line == TRIP.replace("open", "paid (was open)") + ", payment gift_card_17"
    assert merged(newer, older).name == "reservation VA5SGQ"
    again = merged(merged(older, newer), record_of("VA5SGQ: status closed"))
    assert again.line.endswith("status closed (was paid)")


def test_part_of_what_is_known_is_no_news() -> None:
    older = record_of(TRIP)
    assert merged(older, record_of("VA5SGQ: flights HAT102 2024-05-19")) == older
    assert merged(older, older) == older


def test_of_several_with_one_label_only_those_that_are_gone_are_replaced() -> None:
    newer = record_of("VA5SGQ: flights HAT035 2024-05-17, HAT104 2024-05-20")
    assert "HAT035 2024-05-17, HAT104 2024-05-20 (was HAT102 2024-05-19)" in merged(record_of(TRIP), newer).line
    fuller = record_of("VA5SGQ: flights HAT035 2024-05-17 at 10:00")
    assert merged(record_of("VA5SGQ: flights HAT035 2024-05-17"), fuller).line == fuller.line


def test_what_nothing_says_the_name_of_replaces_nothing() -> None:
    assert merged(record_of("order W5: AB-1"), record_of("order W5: AB-2")).line == "order W5: AB-1, AB-2"


def test_things_are_brought_up_to_date_in_order_of_time_and_put_together_at_one_time() -> None:
    parts = [record_of("order W5: item A-1"), record_of("item B-2: price 5"), record_of("order W5: item A-2")]
    assert [record.line for record in brought_together(parts).values()] == [
        "order W5: item A-2 (was A-1)",
        "item B-2: price 5",
    ]
    assert put_together(parts)["W5"].line == "order W5: item A-1, A-2"
    assert put_together(parts_of(record_of(TRIP)))["VA5SGQ"].line == TRIP
    assert parts_of(record_of("ORD-4711")) == [Record("ORD-4711")]


def test_thing_stands_once_where_a_newer_line_has_all_of_it() -> None:
    older, newer = ("order W500: status open", "item B-2222"), ("order W500: status paid (was open)", "item C-3")
    assert said_once([older, newer]) == [("item B-2222",), newer]
    assert said_once([("order W500: item A-1",), ("order W500: status paid",)])[0] == ("order W500: item A-1",)
    assert said_once([("ORD-4711",), ("order ORD-4711: status paid",)])[0] == ()
    assert said_once([older, newer, ("order W500: status sent",)])[1] == ("item C-3",)
    assert said_once([]) == []


def test_as_many_parts_as_fit_are_kept_and_smaller_ones_may_follow() -> None:
    parts = [record_of(line) for line in ("a W5: b 1", "c X6: d 22222222", "a W5: e 3", "f")]
    assert fitting_records(parts, 22, len) == ("a W5: b 1, e 3", "f")
    assert fitting_records(parts, 1, len) == ()


def test_line_that_gives_way_leaves_its_room() -> None:
    parts = [record_of("a W500: b 1, c 2")]
    freed = {"W500": record_of("a W500: b 1")}
    assert fitting_records(parts, 5, len, freed) == ("a W500: b 1, c 2",)
    assert fitting_records(parts, 4, len, freed) == ()


WORDS = st.text("abz09W-/.", min_size=1, max_size=8).filter(str.strip)
FIELDS = st.builds(Field, st.sampled_from(["", "status", "paid with"]), WORDS, st.sampled_from(["", "A-1"]))
RECORDS = st.builds(
    lambda name, fields: Record(name).joined(fields), WORDS.map("thing {}".format), st.lists(FIELDS, max_size=5)
)


@given(RECORDS, RECORDS)
def test_lines_are_stable_and_merging_once_is_merging_twice(older: Record, newer: Record) -> None:
    line = record_of(older.line).line
    assert record_of(line).line == line
    assert len(line.splitlines()) == 1
    once = merged(older, newer)
    assert merged(once, newer) == once
    assert {field.value for field in newer.fields} <= {field.value for field in once.fields}
