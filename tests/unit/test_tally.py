"""Tallies: what is added up, and which refusals are violations."""

from __future__ import annotations

from lab.replay.judge import Verdict, Violation
from lab.replay.presets import MAY_REFUSE
from lab.replay.tables import compared
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
    assert added.as_json()["messages"]["all"] == 40


def test_refused_request_forwards_nothing() -> None:
    added = tally(ANSWERED, Verdict(messages=30, broke=True, previous_bytes=10))
    assert (added.requests, added.tokens_forwarded, added.prefix_breaks, added.previous_bytes) == (2, 500, 0, 0)
    assert added.too_large == 2


def test_refusal_is_a_violation_where_every_request_has_to_fit() -> None:
    added = tally()
    added.object((REFUSED, LOST, NO_ANSWER))
    assert added.violations == [REFUSED, LOST, NO_ANSWER]


def test_refusal_is_counted_where_it_is_promised_to_nobody_that_requests_fit() -> None:
    added = tally(may_refuse=True)
    added.object((REFUSED, LOST, NO_ANSWER))
    assert added.violations == [LOST]


def test_recalled_tokens_count_in_payloads_that_were_accepted() -> None:
    added = Tally("test", 8_000)
    for verdict in (ANSWERED, Verdict(messages=1)):
        added.add(verdict, direct=9_000, forwarded=500, summary_tokens=0, recalled=40)
    assert added.recalled_tokens == added.as_json()["tokens"]["recalled"] == 40


def test_only_presets_that_shrink_nothing_but_results_may_refuse() -> None:
    assert {"off", "openclaw-adaptive", "openclaw-aggressive"} == MAY_REFUSE


def test_table_has_a_line_for_each_preset_with_a_cell_for_each_column() -> None:
    grid = compared([("default", tally(ANSWERED)), ("off", tally())], (8_000,), "talks.jsonl")
    assert [row[0] for row in grid.rows] == ["default", "off"]
    assert {len(row) for row in grid.rows} == {len(grid.header)}
    first = dict(zip(grid.header, grid.rows[0], strict=True))
    assert (first["verbatim"], first["summarised"], first["lost"], first["violations"]) == (
        "30.0%",
        "40.0%",
        "10.0%",
        "0",
    )


def test_markdown_is_a_table() -> None:
    lines = compared([("default", tally(ANSWERED))], (8_000, 16_000), "talks.jsonl").markdown().splitlines()
    assert lines[0] == "talks.jsonl, windows 8,000, 16,000."
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 3
    assert len({line.count("|") for line in table}) == 1
