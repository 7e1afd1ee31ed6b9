"""Shapes: what is left of a tool's result, by what it looks like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.result_excerpts import MOST_HEAD, MOST_LINES, MOST_TAIL, lines_of, shape_of, shaped, shorten

ROOM = 300


def lines(*written: str) -> str:
    return "\n".join(written)


CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("result_shapes.yaml").read_text("utf-8"))["shapes"]
SHAPES = {name: {"text": CASES[case.get("text_of", name)]["text"], **case} for name, case in CASES.items()}
SOURCE, TESTS, SEARCH, DIFF, TABLE, PAGE, RECORDS = (
    next(case["text"] for name, case in CASES.items() if name.startswith(start))
    for start in ("source, with numbers", "output: status", "a search: ", "a diff", "a table", "a page", "JSON")
)


PLAIN: dict[str, tuple[str, str]] = {
    "prose": ("The reader waits for a parcel, and goes on. " * 20, "think"),
    "one long line": (" ".join(map(str, range(500))), "count"),
    "JSON in which nothing stands": (json.dumps([[], {}, None, "", *[[]] * 100]), "list"),
    "JSON that is cut": (RECORDS[:-40] + "x" * 100, "get"),
    "JSON that is too deep": ("[" * 100_000, "get"),
    "JSON with more in a value than there is room for": (json.dumps({"k" * 400: 1}), "get"),
    "JSON that is deep": ("[" * 200 + "1" + "]" * 200, "get"),
    "uneven columns": (lines(*("a,b,c" + "," * (number % 3) + " and so on" for number in range(40))), "query"),
    "numbers that do not ascend": (lines(*(f"{number * 7 % 41} parcels came in" for number in range(40))), "count"),
    "a few paths among words": (
        lines("a/b.py", "c/d.py", *(f"and then {'so ' * number}on" for number in range(20))),
        "ls",
    ),
    "a shape that says less": (
        lines(
            " ".join(f"a.b{number}" for number in range(40)), *(f"## {word * 80}" for word in ("one ", "two ", "six "))
        ),
        "fetch",
    ),
}


@pytest.mark.parametrize(("text", "call"), PLAIN.values(), ids=PLAIN)
def test_of_anything_else_head_and_tail_are_left(text: str, call: str) -> None:
    assert shaped(text, call, ROOM) == shorten(text, ROOM)


@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_of_a_result_its_shape_is_left(case: dict[str, Any]) -> None:
    left = shaped(case["text"], case["call"], ROOM).split("\n")
    assert left[0] == f"[... {len(case['text'])} characters in all, shortened: {case['shape']} ...]"
    assert [line for line in case["kept"] if line not in left] == []


def test_a_call_decides_how_a_result_is_read() -> None:
    assert shaped(SOURCE, "cat <<EOF > reader.py", ROOM) == shorten(SOURCE, ROOM)
    assert shaped(SOURCE, '{"command": ["cat", "reader.py"]}', ROOM).startswith(
        "[... 438 characters in all, shortened: s"
    )


WRITTEN = st.lists(
    st.sampled_from(lines(SOURCE, TESTS, SEARCH, DIFF, TABLE, PAGE).split("\n")) | st.text(), max_size=60
)


@given(WRITTEN, st.sampled_from([case["call"] for case in SHAPES.values()]), st.integers(100, 400))
def test_what_is_left_takes_no_more_room_than_head_and_tail_and_adds_no_word(
    written: list[str], call: str, longest: int
) -> None:
    text = lines(*written)
    left = shaped(text, call, longest)
    assert left == text or left == shape_of(text, call, longest)[1]
    assert len(left) <= len(shorten(text, longest))
    assert left in (text, shorten(text, longest)) or len(left) < len(text)
    words = left.partition("...]\n")[2].split()
    assert left == shorten(text, longest) or all(word.strip("0123456789:,()…") in text for word in words)


def test_a_result_that_is_hardly_too_long_is_not_told_in_more_room_than_it_takes() -> None:
    seats = {"basic_economy": 9, "economy": 2, "business": 1}
    flight = {"flight_number": "HAT023", "origin": "JFK", "destination": "SFO", "status": "available"}
    times = {"scheduled_departure_time_est": "14:00:00", "scheduled_arrival_time_est": "20:00:00"}
    text = json.dumps([{**flight, **times, "available_seats": seats, "prices": seats}])
    assert 300 < len(text) < 320
    assert len(shaped(text, "", 300)) < len(text)


def test_of_a_large_result_a_bounded_part_is_read() -> None:
    assert sum(map(len, lines_of(f"{'x' * 99}\n" * 50_000))) < MOST_HEAD + MOST_TAIL
    assert len(lines_of("\n" * 1_000_000)) == MOST_LINES
    assert "lines 1-" in shaped(f"{SOURCE}\n" * 2_000, "cat reader.py", ROOM)
