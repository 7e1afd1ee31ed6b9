"""The sawtooth: where the lines, the marks and the words of the plot stand."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.inspector.sawtooth import LABEL_WIDTH, NARROW, WIDE, MarkedCompaction, Plot, Tooth, plot_of

AT = datetime(2026, 11, 22, tzinfo=UTC)


def tooth(number: int, sent: int, forwarded: int | None = None, **changes: Any) -> Tooth:
    given: dict[str, Any] = {
        "number": number,
        "request_id": f"req_{number}",
        "at": AT,
        "model": "m",
        "sent": sent,
        "forwarded": sent if forwarded is None else forwarded,
        "reported": None,
        "trigger": 5_600,
        "limit": 7_600,
        "window": 8_000,
        "status": 200,
        "context_status": "full",
        "actions": (),
        "reason": None,
        "waited": None,
        "cost": None,
    }
    return Tooth(**(given | changes))


def made(before: int, after: int, **changes: Any) -> MarkedCompaction:
    given: dict[str, Any] = {"replaced": before - after + 500, "summaries": 500, "made": 1, "calls": 1, "ahead": False}
    return MarkedCompaction(before=before, after=after, **(given | {"seconds": 3.2, "cost": None} | changes))


def drawn(*teeth: Tooth, **size: Any) -> Plot:
    plot = plot_of(teeth, **size)
    assert plot is not None
    return plot


def heights(points: str) -> list[float]:
    return [float(point.split(",")[1]) for point in points.split()]


def test_the_mark_of_a_compaction_stands_at_its_request_from_before_to_after() -> None:
    plot = drawn(tooth(1, 3_000), tooth(2, 6_000, 2_500, compactions=(made(6_000, 2_500),)), tooth(3, 6_500, 3_000))
    (mark,) = plot.marks
    assert mark.x == plot.columns[1].x
    assert mark.upper == plot.columns[1].sent_at
    assert mark.lower == plot.columns[1].forwarded_at
    assert mark.label == "6k → 2.5k"


def test_numbers_of_compactions_never_stand_on_each_other() -> None:
    plot = drawn(*(tooth(i, 6_000, 2_500, compactions=(made(6_000, 2_500),)) for i in range(1, 30)))
    assert len(plot.marks) == 29
    labelled = [mark.x for mark in plot.marks if mark.label]
    assert labelled[0] == plot.marks[0].x
    assert min(right - left for left, right in pairwise(labelled)) >= LABEL_WIDTH


def test_summaries_made_ahead_are_marked_where_they_were_made_without_a_fall() -> None:
    ahead = made(3_000, 3_000, ahead=True, replaced=2_000)
    (mark,) = drawn(tooth(1, 3_000, compactions=(ahead,))).marks
    assert (mark.upper, mark.label) == (mark.lower, "2k → 500")


def test_a_trigger_that_changes_is_drawn_in_steps_and_one_that_is_not_known_leaves_a_gap() -> None:
    plot = drawn(tooth(1, 4_000), tooth(2, 4_000, trigger=4_000), tooth(3, 4_000, trigger=None), tooth(4, 4_000))
    assert plot.trigger.count("M") == 2
    assert plot.trigger.count("V") == 1


def test_a_short_conversation_is_not_flattened_by_a_large_window() -> None:
    plot = drawn(tooth(1, 300, window=200_000, trigger=140_000), tooth(2, 600, window=200_000, trigger=140_000))
    assert min(heights(plot.sent)) < WIDE.height / 2
    assert plot.window_label is plot.trigger_label is None
    assert plot.above == ("trigger 140k", "window 200k")


def test_a_history_far_beyond_the_window_breaks_the_axis_and_keeps_its_true_height() -> None:
    plot = drawn(tooth(1, 7_000), tooth(2, 30_000, 6_000), tooth(3, 36_800, 6_500))
    assert plot.broken_at is not None
    assert [tick.label for tick in plot.y_ticks] == ["0", "5k", "10k", "15k", "20k", "36.8k"]
    *_, below, top = plot.y_ticks
    assert top.at == WIDE.top < plot.broken_at < below.at
    first, second, third = heights(plot.sent)
    assert third == top.at < second < plot.broken_at < first, "none is clipped, and none stands for another"
    assert plot.columns[1].forwarded_at < plot.base - WIDE.height / 5, "the rest is not flattened"
    assert all(abs(height - plot.broken_at) <= 2 for height in heights(plot.broken))


def test_the_requests_that_are_shown_are_named() -> None:
    plot = drawn(*(tooth(number, 6_000) for number in range(201, 401)))
    assert (plot.first, plot.last) == (201, 400)
    assert [plot.x_ticks[0].label, plot.x_ticks[-1].label] == ["201", "400"]
    places = [tick.at for tick in plot.x_ticks]
    assert min(right - left for left, right in pairwise(places)) > 25, "no number stands on another"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3_000_000),
            st.integers(0, 3_000_000),
            st.none() | st.integers(1, 2_000_000),
            st.none() | st.integers(1, 2_000_000),
        ),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([WIDE, NARROW]),
)
def test_everything_is_inside_the_plot(requests: list[tuple[int, int, int | None, int | None]], size: Any) -> None:
    teeth = [
        tooth(
            number,
            sent,
            forwarded,
            trigger=trigger,
            window=window,
            compactions=(made(sent + forwarded, forwarded),) if number % 7 == 0 else (),
        )
        for number, (sent, forwarded, trigger, window) in enumerate(requests, 1)
    ]
    plot = drawn(*teeth, size=size)
    at = [float(number) for point in plot.area.split() for number in point.split(",")[1:]]
    at += heights(plot.sent) + [tick.at for tick in plot.y_ticks] + [h for mark in plot.marks for h in mark[1:3]]
    assert all(size.top <= height <= plot.base for height in at)
    assert all(size.left <= column.x <= size.width - size.right for column in plot.columns)
