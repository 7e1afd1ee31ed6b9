"""Shapes: what is left of a tool's result, by what it looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.shapes.pieces import MOST_HEAD, MOST_LINES, MOST_TAIL, lines_of
from app.core.shapes.shape import shape_of, shaped, shorten

ROOM = 300


def lines(*written: str) -> str:
    return "\n".join(written)


SOURCE = lines(
    "import os",
    "",
    "MAX_BYTES = 4_096",
    "",
    "",
    "class Reader:",
    '    """Reads parcels from a socket until it has a whole one of them."""',
    "",
    "    def __init__(self, socket, timeout=None):",
    "        # It is not ours: whoever opened it closes it again.",
    "        self._socket = socket",
    "        self._timeout = timeout",
    "",
    "    def read(self, size):",
    "        return self._socket.recv(min(size, MAX_BYTES))",
    "",
    "",
    "def open_reader(path):",
    "    return Reader(connect(path), timeout=30)",
)
NUMBERED = lines(*(f"{number:6}\t{line}" for number, line in enumerate(SOURCE.split("\n"), 120)))
JAVA = lines(
    "public class Parcels {",
    "    private final List<Parcel> parcels = new ArrayList<>();",
    "    public Parcel find(String id, int weight) {",
    "        for (Parcel parcel : parcels) {",
    "            if (parcel.getId().equals(id)) {",
    "                return parcel;",
    "            }",
    "        }",
    "        throw new NoSuchElementException(id);",
    "    }",
    "    static void send(Parcel parcel) throws IOException {",
    "        connection.write(parcel.getBytes());",
    "    }",
    "}",
)
TESTS = lines(
    "<returncode>1</returncode>",
    "<output>",
    "============ test session starts ============",
    "platform linux -- Python 3.11.4, pytest-8.2.0, pluggy-1.5.0",
    "rootdir: /srv/parcels",
    "collected 48 items",
    "",
    *(
        f"tests/test_area_{number}.py ..........                                [ {number * 20}%]"
        for number in range(5)
    ),
    "Traceback (most recent call last):",
    '  File "/srv/parcels/reader.py", line 31, in read',
    "    return self._socket.recv(size)",
    "E   OSError: [Errno 9] Bad file descriptor",
    "FAILED tests/test_reader.py::test_reads_after_close - OSError",
    "============ 1 failed, 47 passed in 2.31s ============",
    "</output>",
)
SEARCH = lines(
    *(
        f"src/parcels/reader.py:{number}:    self._socket.recv({number}, flags=MSG_WAITALL)"
        for number in (12, 45, 90, 91)
    ),
    "src/parcels/writer.py:7:from parcels.reader import Reader, open_reader",
    "src/parcels/sender.py:88:    reader = open_reader(self.path)",
    "--",
    "src/parcels/index.py-3-# nothing but names",
    "docs/reading.md:A parcel is read by a Reader.",
)
LISTING = lines(
    ".:",
    "total 12",
    *(f"-rw-r--r-- 1 root root {size} Oct 24  2024 module_{size}.py" for size in range(1_000, 1_008)),
    "drwxr-xr-x 2 root root 4096 Oct 24  2024 ..",
    "lrwxrwxrwx 1 root root 9 Oct 24  2024 latest -> module_1.py",
    "",
    "./parcels:",
    *(f"parcel_{number}.json" for number in range(12)),
)
DIFF = lines(
    "diff --git a/parcels/reader.py b/parcels/reader.py",
    "index 17da3cfd2c..2b855acaa2 100644",
    "--- a/parcels/reader.py",
    "+++ b/parcels/reader.py",
    "@@ -85,5 +85,11 @@ class Reader:",
    "     def read(self, size):",
    "-        return self._socket.recv(size)",
    "+        if self._closed:",
    "+            raise ReaderClosed(self._path)",
    "+        return self._socket.recv(size)",
    "     # and so on, as it was before this change, with a few more words here",
    "@@ -120,2 +126,2 @@ def open_reader(path):",
    "     # and so on, as it was before this change, with a few more words here",
    "     # and so on, as it was before this change, with a few more words here",
)
PAGE = lines(
    "# Reading parcels",
    "",
    "A reader waits until a whole parcel is there, and gives it to whoever asked for it first.",
    "",
    "## Time limits",
    "",
    "Thirty seconds, unless somebody says otherwise in the settings of the depot; after them the reader gives up.",
    "",
    "## Errors",
    "",
    "Whoever reads from a closed reader gets an error that says so, and nothing is lost by it, since parcels are kept.",
)
TABLE = lines(
    "parcel,weight,depot,arrived",
    *(f"P{number:04},{number * 3},depot-{number % 7},2024-05-{number:02}" for number in range(1, 31)),
)
RECORDS: dict[str, Any] = {
    "reservation_id": "VA5SGQ",
    "user_id": "raj_brown_5782",
    "note": "The customer asked twice whether the seat at the window can be kept for the way back: it can.",
    "empty": None,
    "flights": [
        {"flight_number": "HAT035", "origin": "DTW", "date": "2024-05-17", "price": 152, "seats": []},
        {"flight_number": "HAT211", "origin": "LGA", "date": "2024-05-19", "price": 103, "seats": []},
        {"flight_number": "HAT138"},
    ],
    "payments": {"credit_card_8003957": {"id": "credit_card_8003957"}, "gift_card_77": {"id": "gift_card_77"}},
    "tags": ["late", "window"],
}

SHAPES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "source, with the numbers that it has": (
        NUMBERED,
        "nl -ba parcels/reader.py | sed -n '120,138p'",
        "source, lines 120-138",
        ("125 class Reader:", "128 def __init__(self, socket, timeout=None):", "137 def open_reader(path):"),
    ),
    "source, with numbers from the call": (
        SOURCE,
        'bash {"command": "sed -n \'40,58p\' parcels/reader.py"}',
        "source, lines 40-58",
        ("45 class Reader:", "53 def read(self, size):", "42 MAX_BYTES = 4_096"),
    ),
    "a whole file from its first line": (
        SOURCE,
        "I read it.\n\n```bash\ncat parcels/reader.py\n```",
        "source, lines 1-19",
        ("6 class Reader:",),
    ),
    "source of which nobody knows the numbers": (
        SOURCE,
        'read_file {"path": "parcels/reader.py", "offset": 7}',
        "source, 19 lines",
        ("class Reader:", "def open_reader(path):"),
    ),
    "source of which nobody says so": (SOURCE, 'fetch {"nr": 7}', "source, 19 lines", ("class Reader:",)),
    "methods in braces": (
        JAVA,
        "cat Parcels.java",
        "source, lines 1-14",
        ("3 public Parcel find(String id, int weight) {", "11 static void send(Parcel parcel) throws IOException {"),
    ),
    "output: status, failure, and the last line": (
        TESTS,
        "pytest tests",
        "output, 17 lines",
        (
            "<returncode>1</returncode>",
            "E   OSError: [Errno 9] Bad file descriptor",
            "FAILED tests/test_reader.py::test_reads_after_close - OSError",
            "============ 1 failed, 47 passed in 2.31s ============",
        ),
    ),
    "output: tests that failed, then errors, before warnings": (
        lines(
            "<returncode>1</returncode>",
            *(f"src/parcels/old_{n}.py:{n}: DeprecationWarning: form {n} is deprecated" for n in range(1, 9)),
            "SomeWarning: the first of all",
            "sorter - 10:45 : WARNING : no scale",
            *(f"E   AssertionError: {n} parcels were expected at the counter of the office" for n in range(1, 9)),
            "FAILED tests/test_counter.py::test_parcels_are_counted_at_the_office - Assert...",
            "============ 1 failed, 47 passed in 2.31s ============",
        ),
        "pytest tests",
        "output, 21 lines",
        (
            "E   AssertionError: 1 parcels were expected at the counter of the office",
            "FAILED tests/test_counter.py::test_parcels_are_counted_at_the_office - Assert...",
        ),
    ),
    "output: tests that failed, whatever code their traces show": (
        lines(
            "<returncode>1</returncode>",
            "<output_head>",
            *(f"def test_parcel_{n}():\n    class Office:\n        def counted(self):" for n in range(30)),
            "src/office.py:12: in counted",
            "FAILED tests/test_office.py::test_parcel_0 - AssertionError",
            "============ 1 failed, 47 passed in 2.31s ============",
            "",
            "</output_tail>",
        ),
        "pytest tests",
        "output, 94 lines",
        (
            "<returncode>1</returncode>",
            "FAILED tests/test_office.py::test_parcel_0 - AssertionError",
            "============ 1 failed, 47 passed in 2.31s ============",
        ),
    ),
    "output that tells no failure": (
        lines(*(f"step {number}: copied parcel_{number}.json" for number in range(40)), "done"),
        '{"command": "make copies"}',
        "output, 41 lines",
        ("done",),
    ),
    "a search: each path with its lines, and how many": (
        SEARCH,
        "grep -rn Reader .",
        "search, 8 in 5 files",
        ("src/parcels/reader.py:12,45,90,91 (4)", "src/parcels/sender.py:88: reader = open_reader(self.path)"),
    ),
    "a search in one file": (
        lines(*(f"{number}:    self.recv_{number}(parcel, flags)" for number in range(3, 400, 40))),
        "grep -n recv reader.py",
        "search, 10 lines",
        ("43: self.recv_43(parcel, flags)",),
    ),
    "a listing: folders with their numbers, and paths": (
        LISTING,
        "ls -lR",
        "listing, 21 paths",
        ("parcels/ (12)", "module_1000.py", "latest"),
    ),
    "a diff: files and heads of hunks": (
        DIFF,
        "git diff",
        "diff, 2 hunks",
        ("+++ b/parcels/reader.py", "@@ -85,5 +85,11 @@ class Reader:", "@@ -120,2 +126,2 @@ def open_reader(path):"),
    ),
    "a page: its headings": (PAGE, "fetch", "page, 11 lines", ("# Reading parcels", "## Time limits", "## Errors")),
    "a table: its header, its size and its first rows": (
        TABLE,
        "query",
        "table, 30 rows",
        ("parcel,weight,depot,arrived", "P0001,3,depot-1,2024-05-01", "P0002,6,depot-2,2024-05-02"),
    ),
    "JSON: keys with what identifies, and how many": (
        json.dumps(RECORDS),
        "get_reservation {}",
        "JSON, 16 values",
        (
            (
                "reservation_id: VA5SGQ, user_id: raj_brown_5782, flights[3]: flight_number, date, origin, price:"
                " HAT035, 2024-05-17, DTW, 152; HAT211, 2024-05-19, LGA, 103 | {flight_number: HAT138}, payments:"
                " {credit_card_8003957, gift_card_77}, tags[2]: late; window"
            ),
        ),
    ),
}


PLAIN: dict[str, tuple[str, str]] = {
    "prose": ("The reader waits for a parcel, and goes on. " * 20, "think"),
    "one long line": (" ".join(map(str, range(500))), "count"),
    "JSON in which nothing stands": (json.dumps([[], {}, None, "", *[[]] * 100]), "list"),
    "JSON that is cut": (json.dumps(RECORDS)[:-40] + "x" * 100, "get"),
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


@pytest.mark.parametrize(("text", "call", "shape", "kept"), SHAPES.values(), ids=SHAPES)
def test_of_a_result_its_shape_is_left(text: str, call: str, shape: str, kept: tuple[str, ...]) -> None:
    left = shaped(text, call, ROOM).split("\n")
    assert shaped(text, call, ROOM).split("\n") == left
    assert left[0] == f"[... {len(text)} characters in all, shortened: {shape} ...]"
    assert [line for line in kept if line not in left] == []


def test_a_short_result_is_whole() -> None:
    assert shaped("x" * ROOM, "", ROOM) == "x" * ROOM


def test_a_call_decides_how_a_result_is_read() -> None:
    assert shaped(SOURCE, "cat <<EOF > reader.py", ROOM) == shorten(SOURCE, ROOM)
    assert shaped(SOURCE, '{"command": ["cat", "reader.py"]}', ROOM).startswith(
        "[... 438 characters in all, shortened: s"
    )


WRITTEN = st.lists(
    st.sampled_from(lines(SOURCE, TESTS, SEARCH, DIFF, TABLE, PAGE).split("\n")) | st.text(), max_size=60
)


@given(WRITTEN, st.sampled_from([call for _, call, _, _ in SHAPES.values()]), st.integers(100, 400))
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
