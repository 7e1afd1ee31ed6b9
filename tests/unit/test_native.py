"""Native compaction in each format: which refusals say that a provider has none, and what is asked and taken away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.wire.messages.format import MESSAGES
from app.wire.responses.format import RESPONSES
from app.wire.types import CompactionAsk, Place

MISSING = b'{"error":{"message":"Invalid URL (POST /v1/responses/compact)"}}'


@pytest.mark.parametrize(
    "message",
    [
        "Unknown parameter: 'context_management'.",
        "Invalid value: 'compaction_trigger'. Supported values are: 'message' and 'reasoning'.",
        "context_management: Extra inputs are not permitted",
        "context_management.edits.0: Input tag 'compact_20260112' found using 'type' does not match any of those",
        "Unexpected value(s) `compact-2026-01-12` for the `anthropic-beta` header.",
    ],
)
def test_a_provider_without_compaction_is_known_by_its_refusal(message: str) -> None:
    body = json.dumps({"error": {"message": message}}).encode()
    for spoken in (RESPONSES, MESSAGES):
        assert spoken.native is not None
        assert spoken.native.refused_in(400, body, spoken.path)
        assert not spoken.native.refused_in(500, body, spoken.path)


@pytest.mark.parametrize(
    "message",
    [
        "Unknown parameter: 'temperature'.",
        "Invalid 'context_management[0].compact_threshold': integer below minimum value.",
        "prompt is too long: 250000 tokens > 200000 maximum",
        "compaction_incomplete_turn",
    ],
)
def test_another_refusal_teaches_nothing_of_it(message: str) -> None:
    body = json.dumps({"error": {"message": message}}).encode()
    for spoken in (RESPONSES, MESSAGES):
        assert spoken.native is not None
        assert not spoken.native.refused_in(400, body, spoken.path)


def test_a_missing_path_is_about_compaction_only_where_that_is_the_path() -> None:
    assert RESPONSES.native is not None
    assert RESPONSES.native.path is not None
    assert RESPONSES.native.refused_in(404, MISSING, RESPONSES.native.path)
    assert not RESPONSES.native.refused_in(404, MISSING, RESPONSES.path)


def responses(**members: Any) -> Any:
    return RESPONSES.read(json.dumps({"model": "m", "input": "Hello", **members}).encode())


def messages(**members: Any) -> Any:
    said = [{"role": "user", "content": "Hello"}]
    return MESSAGES.read(json.dumps({"model": "m", "max_tokens": 5, "messages": said, **members}).encode())


TRIGGER = {"type": "compaction_trigger"}
ENTRY = {"type": "compaction", "compact_threshold": 9}
CLEAR = {"type": "clear_thinking_20251015", "keep": "all"}
EDIT = {"type": "compact_20260112", "instructions": " the dates "}


@pytest.mark.parametrize(
    ("request_", "asks"),
    [
        (responses(), None),
        (responses(input=[TRIGGER]), CompactionAsk(Place.ALONE, always=True)),
        (responses(context_management=[ENTRY]), CompactionAsk(Place.LAST, 9)),
        (responses(context_management=[{"type": "compaction"}]), CompactionAsk(Place.LAST)),
        (responses(context_management=[ENTRY], previous_response_id="resp_1"), None),
        (messages(), None),
        (messages(context_management={"edits": [CLEAR]}), None),
        (messages(compaction={"type": "summarize"}), CompactionAsk(Place.ALONE, always=True)),
        (messages(context_management={"edits": [CLEAR, EDIT]}), CompactionAsk(Place.FIRST, 150_000, focus="the dates")),
        (
            messages(context_management={"edits": [{**EDIT, "pause_after_compaction": True}]}),
            CompactionAsk(Place.ALONE, 150_000, focus="the dates"),
        ),
    ],
)
def test_what_is_asked(request_: Any, asks: CompactionAsk | None) -> None:
    assert request_.asks == asks


def test_only_what_asks_for_it_is_taken_away() -> None:
    assert RESPONSES.native is not None
    assert MESSAGES.native is not None
    other = {"type": "other"}
    sent = responses(input=[{"role": "user", "content": "Hi"}, TRIGGER], context_management=[ENTRY, other], store=False)
    left = json.loads(RESPONSES.native.unasked(sent))
    assert left == {
        "model": "m",
        "input": [{"role": "user", "content": "Hi"}],
        "context_management": [other],
        "store": False,
    }
    both = messages(context_management={"edits": [CLEAR, EDIT]}, compaction=None)
    assert json.loads(MESSAGES.native.unasked(both))["context_management"] == {"edits": [CLEAR]}
    assert "context_management" not in json.loads(
        MESSAGES.native.unasked(messages(context_management={"edits": [EDIT]}))
    )
    betas = [
        (b"anthropic-beta", b"compact-2026-01-12, wide-1"),
        (b"anthropic-beta", b"compact-2026-09-04"),
        (b"x", b"y"),
    ]
    assert MESSAGES.native.headers(betas) == [(b"anthropic-beta", b"wide-1"), (b"x", b"y")]


SAME = {"role": "user", "content": "Yes."}
RULE = {"role": "system", "content": "Be brief."}


def test_a_pin_names_the_same_messages_behind_a_reference() -> None:
    """It counts the client's own, which we put fewer in place of."""
    block = {"type": "compaction", "encrypted_content": "stn1.abc"}
    answer = {"role": "assistant", "content": [block, {"type": "text", "text": "Well."}]}
    history = [RULE, SAME, SAME, answer, SAME, SAME]
    request = MESSAGES.read(json.dumps({"model": "m", "messages": history, "context": {"pin": [1, 3, 5]}}).encode())
    assert MESSAGES.native is not None
    resolved = json.loads(MESSAGES.native.resolved(request, "What was said."))
    assert [resolved["messages"][pin] for pin in resolved["context"]["pin"]] == [
        {"role": "assistant", "content": [{"type": "text", "text": "Well."}]},
        SAME,
    ]
    assert resolved["context"]["pin"][-1] == len(resolved["messages"]) - 1
    kept = json.loads(MESSAGES.native.compacted(request, "What was said."))
    assert kept["context"] == {"pin": []}


def test_a_pin_names_the_same_items_behind_a_reference() -> None:
    history = [RULE, SAME, {"type": "compaction", "encrypted_content": "stn1.abc"}, SAME, SAME]
    request = responses(input=history, context={"pin": [0, 1, 4], "instructions": "Orders."})
    assert RESPONSES.native is not None
    resolved = json.loads(RESPONSES.native.resolved(request, "What was said."))
    assert resolved["input"][0] == RULE
    assert (len(resolved["input"]), resolved["context"]) == (4, {"pin": [0, 3], "instructions": "Orders."})


def test_a_pin_names_the_same_items_without_a_trigger_among_them() -> None:
    trigger = {"type": "compaction_trigger"}
    request = responses(input=[SAME, trigger, SAME], context={"pin": [2]}, context_management=[{"type": "compaction"}])
    assert RESPONSES.native is not None
    assert json.loads(RESPONSES.native.unasked(request)) == {
        "model": "m",
        "input": [SAME, SAME],
        "context": {"pin": [1]},
    }
