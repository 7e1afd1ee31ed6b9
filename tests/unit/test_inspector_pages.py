"""Pages of the inspector: numbers and names, what became of each message, and the reasons of a decision."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from app.compaction.chunks import Outcome
from app.compaction.decision import StepName
from app.compaction.prompts import chunk_text
from app.inspector import pages
from app.inspector.payload import entry_of, explained, folded, message_count, places_of, said_in, stretches_of
from app.store import StoredMessage
from tests.unit.conversations import chunk, conversation, turns

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "written"),
    [
        *((None, "\N{EN DASH}"), (0, "0"), (7, "7"), (999, "999"), (1_000, "1k"), (31_449, "31.4k")),
        *((999_400, "999k"), (999_600, "1M"), (-1_234, "-1.23k"), (2_500_000_000, "2.5B")),
    ],
)
def test_a_number_is_written_in_three_digits(number: int | None, written: str) -> None:
    assert pages.short(number) == written


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        *((None, "\N{EN DASH}"), (0, "0.00"), (0.00123, "0.0012"), (0.5, "0.500"), (12.345, "12.35")),
        *((4_321.9, "4,322"), (-0.5, "-0.500"), (-1e-9, "0.00")),
    ],
)
def test_money_has_two_digits_that_say_something(amount: float | None, written: str) -> None:
    assert pages.money(amount) == written


@pytest.mark.parametrize(
    ("share", "written"), [(None, "\N{EN DASH}"), (0, "0 %"), (0.012, "1.2 %"), (0.0996, "10 %"), (1, "100 %")]
)
def test_a_small_share_has_a_decimal(share: float | None, written: str) -> None:
    assert pages.percent(share) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(-5, "just now"), (59, "just now"), (60, "1 min ago"), (7_200, "2 h ago"), (200_000, "2 d ago")],
)
def test_a_time_is_told_in_its_largest_unit(seconds: int, written: str) -> None:
    assert pages.ago(NOW - timedelta(seconds=seconds), NOW) == written


def test_a_digest_is_shortened_and_a_name_is_not() -> None:
    assert pages.tenant("0123456789abcdef0123456789abcdef") == "key digest …cdef"
    assert pages.tenant("anonymous") == "anonymous"


# The payload

TALK = conversation(*turns(8, size=100))
CHUNK = chunk(TALK, 0, 4)


def stored(index: int, sent: Any, format_: str = "chat_completions") -> StoredMessage:
    text = sent if isinstance(sent, str) else json.dumps(sent)
    return StoredMessage(index, format_, text, 7)


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


PARTS: list[dict[str, Any]] = [
    {"kind": "instructions", "messages": 1, "tools_tokens": 30, "tokens": 40},
    {"kind": "summarized", "first_index": 0, "last_index": 3, "summary_id": CHUNK.id, "tokens": 20},
    {"kind": "recalled", "messages": [1, 2], "tokens": 9},
    {"kind": "pruned", "by": "pruned", "first_index": 4, "last_index": 5, "tokens": 0},
    {"kind": "masked", "first_index": 6, "last_index": 6, "tokens": 90},
    {"kind": "verbatim", "first_index": 7, "last_index": 8, "tokens": 14},
]
ARCHIVED = {
    -1: stored(-1, said("Be brief.", "system")),
    6: stored(6, {"role": "tool", "tool_call_id": "a", "content": "a long table"}),
    7: stored(7, said("yes", "assistant")),
    8: stored(8, said("no")),
}


def test_each_part_is_shown_as_it_went_or_said_to_be_a_shape() -> None:
    entries = [entry_of(place, {CHUNK.id: CHUNK}) for place in places_of(PARTS, ARCHIVED)]
    shown = [(each.kind, each.index, each.said and each.said.text, bool(each.note)) for each in entries]
    assert shown == [
        ("instructions", -1, "Be brief.", False),
        ("tools", None, None, True),
        ("summarized", None, chunk_text(CHUNK), False),
        ("recalled", None, None, True),
        ("pruned", 4, None, True),
        ("masked", 6, "a long table", True),
        ("verbatim", 7, "yes", False),
        ("verbatim", 8, "no", False),
    ]
    assert "about 90 tokens" in (entries[5].note or "")
    assert "#2, #3" in (entries[3].note or "")
    assert "#5 to #6" in (entries[4].note or "")


@pytest.mark.parametrize("sent", ['{"role": 3', "[]", '{"role": "user", "content": 7e999}'])
def test_what_cannot_be_read_is_shown_as_it_is(sent: str) -> None:
    assert said_in(stored(0, sent)).text
    assert said_in(stored(0, sent, format_="of a later release")).text == sent


def part(kind: str, first: int, last: int, tokens: int = 10, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "first_index": first, "last_index": last, "tokens": tokens, **more}


COVERED = [
    {"kind": "instructions", "messages": 1, "tools_tokens": 0, "tokens": 5},
    part("summarized", 0, 9, 60, summary_id="chk_1"),
    part("carried", 4, 4, 12),
    part("pruned", 10, 11, 0, by="pruned"),
    part("pinned", 2, 3, 30),
    {"kind": "recalled", "messages": [7], "tokens": 40},
    part("masked", 12, 12, 8),
    part("verbatim", 13, 20, 300),
]


def test_every_message_has_a_fate() -> None:
    assert message_count(COVERED) == 21
    kinds = [(each.kind, each.count) for each in stretches_of(COVERED)]
    assert kinds == [
        *[("summarized", 2), ("summarized", 2), ("carried", 1), ("summarized", 2), ("summarized", 1)],
        *[("summarized", 2), ("pruned", 2), ("masked", 1), ("verbatim", 8)],
    ]


def test_messages_inside_a_summary_fold_into_one_row_until_one_stands_beside_it() -> None:
    rows = [(group[0].first, group[-1].last) for group in folded(stretches_of(COVERED))]
    assert rows == [(0, 3), (4, 4), (5, 9), (10, 11), (12, 12), (13, 20)]


# The reasons


def step(name: str, outcome: str, tokens: int | None = None, summaries: int = 0) -> Any:
    return {"step": name, "outcome": outcome, "tokens": tokens, "summaries": summaries, "reason": None}


def plan(*steps: Any, **changes: Any) -> dict[str, Any]:
    told = {
        "window": 8_000,
        "window_source": "config",
        "limit": 7_600,
        "trigger": 5_320,
        "target": 3_800,
        "floor": 66,
        "estimated": 6_432,
        "forwarded": 1_585,
        "steps": steps,
    }
    return told | changes


@pytest.mark.parametrize("name", get_args(StepName))
def test_every_step_has_words(name: str) -> None:
    outcomes = {
        "stored": ["fits", "too_large"],
        "mask": ["set", "put_off"],
        "summarise": [each.name.lower() for each in Outcome],
    }
    for outcome in outcomes.get(name, ["sent"] if name == "unchanged" else ["sent", "refused"]):
        (told,) = [*explained(plan(step(name, outcome, 10, 1)), 0)][3:4]
        assert told.title
        assert told.text.endswith(".")
        assert "_" not in told.text
