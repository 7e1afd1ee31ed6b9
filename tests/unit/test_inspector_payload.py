"""What became of each message, and the payload put together again."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from app.compaction.prompts import chunk_text
from app.inspector.payload import (
    Entry,
    entry_of,
    folded,
    message_count,
    places_of,
    said_in,
    stretches_of,
)
from app.store import StoredMessage
from tests.unit.conversations import chunk, conversation, turns

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


def entries_of(parts: Any, archived: Any, chunks: Any) -> list[Entry]:
    return [entry_of(place, chunks) for place in places_of(parts, archived)]


def test_each_part_is_shown_as_it_went_or_said_to_be_a_shape() -> None:
    entries = entries_of(PARTS, ARCHIVED, {CHUNK.id: CHUNK})
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


def test_messages_that_are_not_stored_are_one_entry_a_part() -> None:
    entries = entries_of(PARTS, {}, {})
    assert [(each.kind, each.index, each.tokens) for each in entries] == [
        ("instructions", None, 10),
        ("tools", None, 30),
        ("summarized", None, 20),
        ("recalled", None, 9),
        ("pruned", 4, 0),
        ("masked", 6, 90),
        ("verbatim", 7, 14),
    ]
    assert [entries[number].note for number in (4, 5, 6)] == [
        "Left out: #5 to #6.",
        "Not stored: #7.",
        "Not stored: #8 to #9.",
    ]


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


def test_stretches_join_end_to_end_and_bear_each_token_once() -> None:
    stretches = stretches_of(COVERED)
    assert stretches[0].first == 0
    assert stretches[-1].last == 20
    assert all(after.first == before.last + 1 for before, after in pairwise(stretches))
    assert sum(stretch.tokens for stretch in stretches) == 60 + 12 + 8 + 300


def test_messages_inside_a_summary_fold_into_one_row_until_one_stands_beside_it() -> None:
    rows = [(group[0].first, group[-1].last) for group in folded(stretches_of(COVERED))]
    assert rows == [(0, 3), (4, 4), (5, 9), (10, 11), (12, 12), (13, 20)]
