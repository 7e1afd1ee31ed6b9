"""Records: how they are written and read back, and what becomes of a thing that is met again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.chunk_builder import ChunkBuilder
from app.compaction.chunks import SummaryChunk, UserWords
from app.compaction.plan import SummaryOptions
from app.compaction.prompts import SummaryRequest, chunk_beside, chunk_text
from app.compaction.records import Field, Record, fit_records, merge_ranked, merge_records, parse_record, rank
from app.compaction.view import Conversation
from app.tokens.estimate import note_tokens
from tests.unit.conversations import (
    SETTINGS,
    budget,
    chunk,
    conversation,
    count,
    message,
    notes,
    plan_compaction,
    play,
    sure,
    turns,
)

TRIP = "reservation VA5SGQ: user raj_brown_5782; flights HAT035, HAT102 (2024-05-17); status open"


def updated(older: str, newer: str, *, lists: bool = False) -> str:
    return parse_record(older).updated(parse_record(newer), lists=lists).line


def test_record_is_one_line_that_says_labels_and_notes_once() -> None:
    flights = [Field("flights", f"HAT{number}", "2024-05-17") for number in (1, 2)]
    record = Record(
        "trip V500", (Field("user", "mia_1"), flights[0], Field("status", "paid", "", ("open",), 41), flights[1])
    )
    assert record.line == "trip V500: user mia_1; flights HAT1, HAT2 (2024-05-17); status paid (before turn 41: open)"
    assert parse_record(record.line).line == record.line
    assert Record("order W5").line == "order W5"


@pytest.mark.parametrize(
    "line",
    [
        "ORD-4711",
        "get_order(order_id=ORD-4712)",
        "deadline March 3rd, 2026",
        "ticket AB-2: also AB-3; leaves March 3rd, 2026",
        "订单 W5: 状态 paid",
        "https://example.org/a;b: c",
        "a: ",
        "a: b",
        TRIP,
        "",
    ],
)
def test_line_is_what_its_record_is_written_as(line: str) -> None:
    """Those of earlier releases, which listed bare values, too."""
    assert parse_record(line).line == line


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (TRIP, "VA5SGQ"),
        ("file src/app.py: changed 3", "src/app.py"),
        ("ORD-4711", "ORD-4711"),
        ("user 17: status new", "user 17"),
        ("deadline 2026-03-03", "deadline 2026-03-03"),
        ("search_flights(DEN, HAT001): flight HAT002", "search_flights(DEN, HAT001)"),
    ],
)
def test_thing_is_known_by_its_identifier_whatever_it_is_called(line: str, key: str) -> None:
    assert parse_record(line).key == key


def test_latest_value_holds_and_says_what_it_replaced() -> None:
    assert updated(TRIP, "VA5SGQ: status paid; pays_with gift_1") == f"{TRIP[:-4]}paid (before: open); pays_with gift_1"
    assert updated("VA5SGQ: status paid", "reservation VA5SGQ: status paid") == "reservation VA5SGQ: status paid"
    again = updated("a X500: status paid (before: open)", "a X500: status closed")
    assert again == "a X500: status closed (before: paid)"
    assert updated("a X500: seat A1 (front)", "a X500: seat B2 (rear)") == "a X500: seat B2 (rear, before: A1)"


def test_of_several_nothing_goes_but_what_is_said_to_be_gone() -> None:
    assert updated("a X500: item A-1, A-2", "a X500: item A-3") == "a X500: item A-1, A-2, A-3"
    newer = "a X500: item A-3 (before turn 9: A-1)"
    assert updated("a X500: item A-1, A-2", newer) == "a X500: item A-3 (before turn 9: A-1), A-2"


def test_whole_list_takes_the_place_of_the_one_before() -> None:
    older = "a X500: item A-1, A-2, A-3, A-4; status open"
    assert (
        updated(older, "a X500: item A-4, A-5", lists=True) == "a X500: item A-5 (before: A-1, A-2), A-4; status open"
    )


def test_same_again_is_no_news_and_keeps_what_belongs_to_it() -> None:
    assert updated(TRIP, TRIP) == TRIP
    assert updated(TRIP, "reservation VA5SGQ: flights HAT035", lists=True).count("2024-05-17") == 1


def test_things_are_brought_up_to_date_in_order_of_time_and_parts_are_joined_at_one_time() -> None:
    parts = [parse_record(line) for line in ("order W5: item A-1", "item B-2: price 5", "order W5: item A-2")]
    assert [record.line for record in merge_records(parts).values()] == [
        "order W5: item A-2 (before: A-1)",
        "item B-2: price 5",
    ]
    assert merge_records(parts, Record.joined)["order W5"].line == "order W5: item A-1, A-2"
    assert merge_records(parse_record(TRIP).parts, Record.joined)["VA5SGQ"].line == TRIP
    assert parse_record("ORD-4711").parts == [Record("ORD-4711")]


def test_as_many_parts_as_fit_are_kept_and_smaller_ones_may_follow() -> None:
    parts = [parse_record(line) for line in ("a W5: b 1", "c X6: d 22222222", "a W5: e 3", "f")]
    assert fit_records(parts, 20, len) == ("a W5: b 1; e 3", "f")
    assert fit_records(parts, 1, len) == ()


def ranked(worth: dict[str, float], *lines: str) -> list[str]:
    return [part.line for part in rank(map(parse_record, lines), worth)]


def test_worthiest_part_for_its_size_comes_first_and_the_rest_of_its_thing_is_cheaper_then() -> None:
    worth = {"W500": 3.0, "AB-1": 1.0, "AB-2": 1.0, "XY-9": 0.5}
    assert ranked(worth, "order W500: item AB-1; item_of_it AB-2; state open", "ticket XY-9") == [
        "order W500: item AB-1",
        "order W500: item_of_it AB-2",
        "ticket XY-9",
        "order W500: state open",
    ]
    worth = {"W500": 3.0, "AB-1": 1.0, "C-1": 0.5}
    lines = ("order W500: item AB-1", "ticket X-900: item AB-1", "ticket Y-900: item C-1")
    assert ranked(worth, *lines) == [lines[0], lines[2], lines[1]], "a value that was said before adds little"


WORDS = st.text("abz09W-/.", min_size=1, max_size=8)
FIELDS = st.builds(Field, st.sampled_from(["status", "paid_with"]), WORDS, st.sampled_from(["", "A-1", "front, A-1"]))
RECORDS = st.builds(Record, WORDS.map("thing {}".format), st.lists(FIELDS, max_size=5).map(tuple))


@given(RECORDS, RECORDS, st.booleans())
def test_lines_are_stable_and_what_is_new_stands_in_the_record(older: Record, newer: Record, lists: bool) -> None:
    assert parse_record(older.line).line == older.line
    once = older.updated(newer, lists=lists)
    assert {field.value for field in newer.fields} <= {field.value for field in once.fields}
    assert len(once.line.splitlines()) == 1


# Records of a chunk and of folds

BUDGET = budget(2_000, summary=100, fold=150)
KEEPING = replace(SETTINGS, values_share=0.2, user_words=True, folds_in=False)


def records(*lines: str) -> list[Record]:
    return [*map(parse_record, lines)]


def merged(*lists: tuple[str, ...]) -> list[str]:
    return [record.line for record in merge_ranked([records(*lines) for lines in lists])]


def test_thing_that_several_hold_is_one_record_brought_up_to_date_a_field_each() -> None:
    older = ("order W500: status open; item A-1", "item B-2")
    assert merged(older, ("order W500: parcel P-9; status paid",)) == [
        "order W500: parcel P-9",
        "order W500: status paid (before: open)",
        "order W500: item A-1",
        "item B-2",
    ]


def with_chunks(*made: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[Conversation, list[SummaryChunk]]:
    """A conversation whose chunks are due to be folded, with these values and words of the user."""
    talk = conversation(*turns(len(made) + 8, size=100))
    return talk, [
        chunk(talk, 2 * n, 2 * n + 2, id=f"c{n}", tokens=90, values=values, user_words=entries(n, *said))
        for n, (values, said) in enumerate(made)
    ]


def entries(turn: int, *said: str) -> tuple[UserWords, ...]:
    return tuple(UserWords(turn, text) for text in said)


def folded(talk: Conversation, stored: list[SummaryChunk], settings: SummaryOptions = KEEPING) -> SummaryChunk:
    plan = sure(plan_compaction(talk, stored, BUDGET, settings, "additive"))
    _, done = play(ChunkBuilder(talk, "conv", plan, BUDGET, settings, count), *[notes(30)] * 9)
    return next(made for made in done.made if made.level)


def test_values_and_words_are_part_of_a_chunks_address_and_their_absence_is_not() -> None:
    ids = [
        folded(*with_chunks((values, said), *[((), ())] * 3), replace(KEEPING, user_words=bool(said))).id
        for values, said in (((), ()), (("A-1",), ()), ((), ("Never A.",)))
    ]
    assert len(set(ids)) == 3
    assert ids[0] == "chk_9898401b8b1b90611aec0afad687654c"  # The same on every replica and in every release.


def test_a_chunk_of_messages_holds_their_values_within_its_share_and_its_cap() -> None:
    said = [message("user", " ".join(f"ORD-{turn}{n}" for n in range(40)) + f" {turn}") for turn in range(20)]
    talk = conversation(*said, message("user", "and now?"))
    plan = sure(plan_compaction(talk, (), BUDGET, KEEPING, "additive"))
    effects, done = play(ChunkBuilder(talk, "conv", plan, BUDGET, KEEPING, count), *[notes(30)] * 9)
    asked = [effect for effect in effects if isinstance(effect, SummaryRequest)]
    for made, effect in zip(done.made, asked, strict=True):
        assert 0 < sum(count(value) + 1 for value in made.values) <= BUDGET.summary // 5
        assert made.tokens == note_tokens(chunk_text(made), count)
        assert effect.max_tokens + count(chunk_beside(replace(made, user_words=()))) <= BUDGET.summary
    without = replace(KEEPING, values_share=0.0)
    _, done = play(ChunkBuilder(talk, "conv", plan, BUDGET, without, count), *[notes(30)] * 9)
    assert {made.values for made in done.made} == {()}


VALUES = st.lists(st.text("ABCDEF-0123456789", min_size=3, max_size=8), max_size=12).map(tuple)


@given(st.lists(VALUES, min_size=2, max_size=8), st.data())
def test_values_survive_any_sequence_of_folds_up_to_their_room(
    leaves: list[tuple[str, ...]], data: st.DataObject
) -> None:
    """Whatever is folded with what, nothing is lost while there is room."""
    room = data.draw(st.integers(0, 200))
    level = list(leaves)
    while len(level) > 1:
        at = data.draw(st.integers(0, len(level) - 2))
        values = fit_records(merge_ranked([records(*level[at]), records(*level[at + 1])]), room, len)
        assert sum(len(value) + 1 for value in values) <= room
        level[at : at + 2] = [values]
    said = {value for leaf in leaves for value in leaf}
    assert {*level[0]} <= said
    if sum(len(value) + 1 for value in said) <= room:
        assert {*level[0]} == {*merge_records(records(*said), Record.joined)}
