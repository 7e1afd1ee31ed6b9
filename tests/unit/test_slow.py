"""What the slow-summariser run makes of a provider's log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.benchmarks.slow import LINES, Course, Turn, prefix_kept, scale_of
from lab.replay.recordings import Recording
from lab.simulator import Record
from lab.simulator.log import Kind

SCALE = 10.0
"""So a summary takes two seconds of the run."""


def record(
    at: float, kind: Kind = "chat", talk: str = "a", status: int = 200, finished_at: float | None = None
) -> Record:
    headers = ((b"Authorization", f"Bearer sk-{talk}".encode()),)
    return Record(1, at, "POST", "/", headers, b"{}", kind, prompt_tokens=100, status=status, finished_at=finished_at)


def bodies(*histories: str) -> list[bytes]:
    return [b'{"model":"m","messages":[%b]}' % history.encode() for history in histories]


def line(course: Course, name: str) -> str:
    return dict(zip(LINES, course.lines(), strict=True))[name]


def test_a_turn_waited_if_its_stream_said_that_a_compaction_started() -> None:
    course = Course([Turn(0.1, 200), Turn(3.0, 504, waited=True), Turn(1.0, 200, waited=True)], [record(0.1)], SCALE)
    told = [line(course, name) for name in ("turns that waited", "longest wait, seconds", "all waiting, seconds")]
    assert told == ["2", "30", "40"]
    assert line(course, "errors") == "1"


def test_a_summary_is_used_if_a_later_payload_of_its_conversation_holds_it() -> None:
    made = [
        replace(record(at, "summary", talk=talk), text="Notes.") for at, talk in ((1.0, "a"), (3.0, "a"), (1.0, "b"))
    ]
    used = replace(record(2.0), body=b'{"messages":[{"role":"user","content":"Before: Notes."},{"role":"tool"}]}')
    assert line(Course([Turn(2.1, 200)], [*made, used], SCALE), "of which never used") == "2"


def test_summaries_and_refusals_are_counted_at_the_provider() -> None:
    records = [record(0.1, "summary"), record(0.2, status=400), record(0.3)]
    course = Course([Turn(1.0, 200)], records, SCALE)
    shown = [line(course, name) for name in ("summary calls", "tokens of summary calls", "refused by the provider")]
    assert shown == ["1", "100", "1"]


def test_the_prefix_kept_is_the_share_of_the_payload_before() -> None:
    assert prefix_kept([bodies('"aaaa"', '"aaaa","bb"')]) == 1.0
    assert prefix_kept([bodies('"aaaa"', '"aabb"')]) == pytest.approx(4 / 7)  # of ["aaaa"


def test_prefixes_of_different_conversations_are_not_compared() -> None:
    assert prefix_kept([bodies('"aaaa"'), bodies('"bbbb"')]) == 1.0


def test_the_longest_conversation_sets_the_pace() -> None:
    turn = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"})
    assert scale_of([Recording("a", turn * 10), Recording("b", turn * 100)], 70.0) == pytest.approx(10.0)
