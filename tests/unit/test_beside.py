"""What stands beside a summary's text: lists that are merged without a model, up to their room."""

from dataclasses import replace

from app.core.summary.beside import fitting, kept_share, merged_rules, merged_values
from app.core.summary.compaction import compact
from app.core.view.chunks import SummaryChunk
from app.core.view.view import Conversation
from tests.unit.conversations import SETTINGS, budget, chunk, conversation, count, notes, plan_compaction, play, turns

BUDGET = budget(2_000, summary=100, fold=150)
KEEPING = replace(SETTINGS, values_share=0.2, rules_share=0.05)


def test_the_first_of_each_list_come_first_and_what_two_hold_before_what_one_holds() -> None:
    assert merged_values([("a", "b", "c"), ("d", "b", "e")]) == ["d", "b", "a", "e", "c"]
    assert merged_values([("a", "b"), ("b", "a"), ("b",)]) == ["b", "a"]
    assert merged_values([]) == []


def test_a_rule_that_is_set_again_is_as_new_as_its_last_time() -> None:
    assert merged_rules([("b", "a"), ("a", "c")]) == ["a", "c", "b"]


def test_what_does_not_fit_is_left_out_and_what_is_smaller_may_follow() -> None:
    assert fitting(["one two", "three four five six", "seven"], 5, count) == ("one two", "seven")
    assert fitting(["one"], 1, count) == ()


def test_the_share_of_values_that_a_text_holds() -> None:
    assert kept_share((), "text") is None
    assert kept_share(("ORD-1", "a.py"), "Order ORD-1.") == 0.5
    assert kept_share(("get(id=ORD-1, day=2024-05-01)",), "ORD-1 on 2024-05-01") == 1
    assert kept_share(("get(id=ORD-1, day=2024-05-01)",), "ORD-1") == 0


def with_chunks(*made: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[Conversation, list[SummaryChunk]]:
    """A conversation whose chunks are due to be folded, with these values and rules."""
    talk = conversation(*turns(len(made) + 8, size=100))
    return talk, [
        chunk(talk, 2 * n, 2 * n + 2, id=f"c{n}", tokens=90, values=values, rules=rules)
        for n, (values, rules) in enumerate(made)
    ]


def folded(talk: Conversation, stored: list[SummaryChunk]) -> SummaryChunk:
    plan = plan_compaction(talk, stored, BUDGET, KEEPING, "additive")
    assert plan is not None
    _, done = play(compact(talk, "conv", plan, BUDGET, KEEPING, count), *[notes(30)] * 9)
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
    assert ids[0] == "chk_db27eeaf72c560a497a9efa77988d7c6"  # As the releases before made it.
