"""`steno demo` as a newcomer runs it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e import commands

TURN = re.compile(r" *(\d+) +([\d,]+|refused|-) +([\d,]+) +(full|trimmed|summarized)(?:  (.+))?")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_demo_goes_on_where_the_direct_client_ends(tmp_path: Path) -> None:
    ended = commands.run(["demo"], tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    # Turn, direct, Steno, status and what happened, of each line that tells of a turn.
    lines = map(TURN.fullmatch, ended.stdout.splitlines())
    turns = [match.groups(default="") for match in lines if match]
    assert [turn for turn, *_ in turns] == [str(turn) for turn in range(1, 61)]
    # Over the trigger a turn goes on while its summary is made, but not over the limit.
    assert max(number(steno) for _, _, steno, _, _ in turns) <= 7_600
    assert max(map(len, ended.stdout.splitlines())) <= 80

    direct = [direct for _, direct, _, _, _ in turns]
    end = direct.index("refused")
    assert 7_000 < number(direct[end - 1]) <= 8_000
    assert set(direct[end + 1 :]) == {"-"}
    assert turns[end][4] == "direct: context_length_exceeded"
    assert ended.stdout.count("direct: context_length_exceeded") == 1

    statuses = [status for _, _, _, status, _ in turns]
    assert statuses == sorted(statuses)  # First full, then summarized.
    assert sum("of older turns" in event for _, _, _, _, event in turns) >= 3
    assert "60 of 60 turns" in ended.stdout
    assert "It was booked under BTH-0148." in ended.stdout
