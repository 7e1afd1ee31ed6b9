"""What stands beside a summary's text: lists that are merged without a model, up to their room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.history.exact_values import kept_share
from app.core.history.records import Record, fit_records, join_parts, merge_ranked, parse_record
from app.core.stages.policy import Strategy
from app.core.summary.beside import fitting, merged_rules
from app.core.summary.brief import SummaryBrief
from app.core.summary.compaction import compact
from app.core.summary.flow import Summarise
from app.core.summary.prompts import chunk_beside, chunk_text
from app.core.view.chunks import SummaryChunk
from app.core.view.view import Conversation
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
    words,
)

BUDGET = budget(2_000, summary=100, fold=150)
KEEPING = replace(SETTINGS, values_share=0.2, rules_share=0.05, folds_in=False)


def records(*lines: str) -> list[Record]:
    return [*map(parse_record, lines)]


def merged(*lists: tuple[str, ...]) -> list[str]:
    return [record.line for record in merge_ranked([records(*lines) for lines in lists])]


def test_the_first_of_each_list_come_first_and_what_two_hold_before_what_one_holds() -> None:
    assert merged(("a", "b", "c"), ("d", "b", "e")) == ["d", "b", "a", "e", "c"]
    assert merged(("a", "b"), ("b", "a"), ("b",)) == ["b", "a"]
    assert merged() == []


def test_thing_that_several_hold_is_one_record_brought_up_to_date_a_field_each() -> None:
    older = ("order W500: status open; item A-1", "item B-2")
    assert merged(older, ("order W500: parcel P-9; status paid",)) == [
        "order W500: parcel P-9",
        "order W500: status paid (before: open)",
        "order W500: item A-1",
        "item B-2",
    ]


def test_a_rule_that_is_set_again_is_as_new_as_its_last_time() -> None:
    assert merged_rules([("b", "a"), ("a", "c")]) == ["a", "c", "b"]


def test_what_does_not_fit_is_left_out_and_what_is_smaller_may_follow() -> None:
    assert fitting(["one two", "three four five six", "seven"], 5, count) == ("one two", "seven")
    assert fitting(["one"], 1, count) == ()


def test_the_share_of_values_that_a_text_holds() -> None:
    assert kept_share((), "text") is None
    assert kept_share(("ORD-1", "a.py"), "Order ORD-1.") == 0.5
    assert kept_share(("order ORD-1: due 2024-05-01",), "ORD-1 on 2024-05-01") == 1
    assert kept_share(("order ORD-1: due 2024-05-01",), "ORD-1") == 0.5


def with_chunks(*made: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[Conversation, list[SummaryChunk]]:
    """A conversation whose chunks are due to be folded, with these values and rules."""
    talk = conversation(*turns(len(made) + 8, size=100))
    return talk, [
        chunk(talk, 2 * n, 2 * n + 2, id=f"c{n}", tokens=90, values=values, rules=rules)
        for n, (values, rules) in enumerate(made)
    ]


def folded(talk: Conversation, stored: list[SummaryChunk], settings: SummaryBrief = KEEPING) -> SummaryChunk:
    plan = sure(plan_compaction(talk, stored, BUDGET, settings, "additive"))
    _, done = play(compact(talk, "conv", plan, BUDGET, settings, count), *[notes(30)] * 9)
    return next(made for made in done.made if made.level)


def test_a_fold_holds_the_values_and_the_rules_of_its_chunks() -> None:
    talk, stored = with_chunks((("A-1", "A-2"), ("Never A.",)), (("B-1",), ()), ((), ("Always C.",)), ((), ()))
    fold = folded(talk, stored)
    assert fold.values == ("B-1", "A-1", "A-2")
    assert fold.rules == ("Always C.", "Never A.")
    assert fold.values_kept == 0
    assert fold.tokens > 30


def test_rules_without_room_are_counted_through_every_fold() -> None:
    long = tuple(f"Never {n} {'x ' * 40}" for n in range(6))
    talk, stored = with_chunks(((), long[:3]), ((), long[3:]), ((), ()), ((), ()))
    stored[0] = replace(stored[0], rules_left_out=2)
    fold = folded(talk, stored)
    assert fold.rules == long[3:][: len(fold.rules)]
    assert 0 < len(fold.rules) < 6
    assert fold.rules_left_out == 2 + 6 - len(fold.rules)


def test_values_and_rules_are_part_of_a_chunks_address_and_their_absence_is_not() -> None:
    ids = [
        folded(*with_chunks((values, rules), *[((), ())] * 3)).id
        for values, rules in (((), ()), (("A-1",), ()), ((), ("Never A.",)))
    ]
    assert len(set(ids)) == 3
    assert ids[0] == "chk_9898401b8b1b90611aec0afad687654c"  # The same on every replica and in every release.


def test_a_chunk_of_messages_holds_their_values_within_its_share_and_its_cap() -> None:
    said = [message("user", " ".join(f"ORD-{turn}{n}" for n in range(40)) + f" {turn}") for turn in range(20)]
    talk = conversation(*said, message("user", "and now?"))
    plan = sure(plan_compaction(talk, (), BUDGET, KEEPING, "additive"))
    effects, done = play(compact(talk, "conv", plan, BUDGET, KEEPING, count), *[notes(30)] * 9)
    asked = [effect for effect in effects if isinstance(effect, Summarise)]
    assert [effect.values for effect in asked] == [made.values for made in done.made]
    for made, effect in zip(done.made, asked, strict=True):
        assert 0 < sum(count(value) + 1 for value in made.values) <= BUDGET.summary // 5
        assert made.tokens == note_tokens(chunk_text(made), count)
        assert effect.request.max_tokens + count(chunk_beside(made)) <= BUDGET.summary
    without = replace(KEEPING, values_share=0.0)
    _, done = play(compact(talk, "conv", plan, BUDGET, without, count), *[notes(30)] * 9)
    assert {made.values for made in done.made} == {()}


@pytest.mark.parametrize("strategy", ["rolling", "full", "checkpoint"])
def test_a_summary_that_goes_on_holds_the_values_of_the_one_before_and_of_what_followed(strategy: Strategy) -> None:
    said = [message("user", f"ORD-{n} {words(60)}") for n in range(20)]
    talk = conversation(*said, message("user", "and now?"))
    settings, limits = replace(KEEPING, strategy=strategy), budget(1_000, summary=200)
    before = chunk(talk, 0, 4, series=strategy, tokens=60, values=("OLD-1",), rules=("Never push.",))
    plan = sure(plan_compaction(talk, [before], limits, settings, strategy))
    _, done = play(compact(talk, "conv", plan, limits, settings, count), *[notes(30)] * 9)
    made = done.made[-1]
    assert {"OLD-1", "identifier ORD-5"} <= {*made.values}
    assert made.rules == ("Never push.",)


def test_rules_of_chunks_that_stay_take_room_but_never_more_than_half() -> None:
    long = tuple(f"Never {n} {words(10)}" for n in range(8))
    talk, stored = with_chunks(*[((), long[2 * n : 2 * n + 2]) for n in range(4)])
    in_pairs = replace(KEEPING, input_tokens=200, source_tokens=None)
    assert len(folded(talk, stored, in_pairs).rules) == 3
    alone = [*stored[:2], *(replace(each, rules=()) for each in stored[2:])]
    assert len(folded(talk, alone, in_pairs).rules) == 4


def test_what_a_fold_of_folds_stands_for_takes_no_room_from_it() -> None:
    long = tuple(f"Never {n} {words(10)}" for n in range(7))
    talk, stored = with_chunks(*[((), (rule,)) for rule in long], ((), ()))
    in_pairs = replace(KEEPING, input_tokens=200, source_tokens=None)
    plan = sure(plan_compaction(talk, stored, BUDGET, in_pairs, "additive"))
    _, done = play(compact(talk, "conv", plan, BUDGET, in_pairs, count), *[notes(35)] * 20)
    widest = max(done.made, key=lambda made: made.last_index - made.first_index)
    assert widest.level > 1
    assert sum(count(rule) + 1 for rule in widest.rules) > int(KEEPING.rules_share * BUDGET.window) // 2


VALUES = st.lists(st.text("ABCDEF-0123456789", min_size=3, max_size=8), max_size=12).map(tuple)
RULES = st.lists(st.text("abc XYZ", min_size=4, max_size=30), max_size=4).map(tuple)


@given(st.lists(st.tuples(VALUES, RULES), min_size=2, max_size=8), st.data())
def test_values_and_rules_survive_any_sequence_of_folds_up_to_their_room(
    leaves: list[tuple[tuple[str, ...], tuple[str, ...]]], data: st.DataObject
) -> None:
    """Whatever is folded with what, nothing is lost while there is room, and nothing but the last in order without."""
    room = data.draw(st.integers(0, 200))
    level = list(leaves)
    while len(level) > 1:
        at = data.draw(st.integers(0, len(level) - 2))
        merged_by_worth = merge_ranked([records(*level[at][0]), records(*level[at + 1][0])])
        newest_first = merged_rules([level[at][1], level[at + 1][1]])
        values, rules = fit_records(merged_by_worth, room, len), fitting(newest_first, room, len)
        assert sum(len(value) + 1 for value in values) <= room
        assert sum(len(rule) + 1 for rule in rules) <= room
        level[at : at + 2] = [(values, rules)]
    values, rules = level[0]
    said = {value for leaf, _ in leaves for value in leaf}
    assert {*values} <= said
    if sum(len(value) + 1 for value in said) <= room:
        assert {*values} == {*join_parts(records(*said))}
    set_once = list(dict.fromkeys(rule for _, leaf in reversed(leaves) for rule in leaf))
    if sum(len(rule) + 1 for rule in set_once) <= room:
        assert list(rules) == set_once
