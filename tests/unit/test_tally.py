"""Tallies: what is added up, and which refusals are violations."""

from __future__ import annotations

from lab.replay.judge import Verdict, Violation
from lab.replay.tally import Tally

REFUSED = Violation("one", 2, "refused", "Too large.")
LOST = Violation("one", 2, "lost", "Gone.")
NO_ANSWER = Violation("one", 2, "no_answer", "An error.")
ANSWERED = Verdict(accepted=True, messages=10, verbatim=3, summarised=4, shortened=1, pruned=1, lost=1)


def tally(*verdicts: Verdict, may_refuse: bool = False) -> Tally:
    added = Tally("test", 8_000, may_refuse)
    for verdict in verdicts:
        added.add(verdict, direct=9_000, forwarded=500, summary_tokens=0)
    return added


def test_shares_of_the_messages_add_up_to_the_whole() -> None:
    added = tally(ANSWERED, Verdict(messages=30, verbatim=30))
    parts = added.verbatim, added.summarised, added.shortened, added.pruned, added.lost, added.refused
    assert parts == (3, 4, 1, 1, 1, 30)
    assert sum(map(added.share, parts)) == 1
    assert added.as_json()["messages"] == 40


def test_refusal_is_a_violation_where_every_request_has_to_fit() -> None:
    added = tally()
    added.object((REFUSED, LOST, NO_ANSWER))
    assert added.violations == [REFUSED, LOST, NO_ANSWER]


def test_refusal_is_counted_where_it_is_promised_to_nobody_that_requests_fit() -> None:
    added = tally(may_refuse=True)
    added.object((REFUSED, LOST, NO_ANSWER))
    assert added.violations == [LOST]
