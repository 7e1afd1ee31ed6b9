"""What a call cost, to a billionth of a dollar.

A line of `bills.jsonl` is what an answer says of its tokens, written after its provider's documentation, and its amount
by the published prices: in millionths of a US dollar as plain arithmetic, with a fee for searches in thousandths, or in
dollars where the answer says what was `charged`. `priced` is the model whose price it is ("-": none), where that is not
the one that answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.formats.answers import AnswerEditor
from app.formats.paths import FORMATS
from app.main import tariffs_of
from app.providers.ledger import Ledger
from app.settings import load
from app.store import UsageRecord
from app.telemetry.metrics import Metrics
from app.tokens.costs import Bill as Told
from app.tokens.costs import Tokens
from tests.conformance.samples import read_answer

Json = dict[str, Any]


class Bill(msgspec.Struct, forbid_unknown_fields=True):
    """One answer with status 200."""

    format: str
    asked: str
    usage: Json
    answered: str | None = None
    """The model in the answer where it is not the one asked for; empty where it names none."""
    millionths: str = "0"
    fee: float = 0
    charged: float | None = None
    priced: str = ""
    beside: Json = {}
    """What else the answer says at its top level."""
    note: str = ""

    @property
    def model(self) -> str:
        return self.asked if self.answered is None else self.answered

    @property
    def cost(self) -> float:
        if self.charged is not None:
            return self.charged
        return float(eval(self.millionths)) / 1e6 + self.fee / 1e3  # noqa: S307 - our own arithmetic

    def __str__(self) -> str:
        return f"{self.format}-{self.model or self.asked}"


BILLS = msgspec.json.Decoder(Bill).decode_lines(Path(__file__).with_name("bills.jsonl").read_bytes())
TARIFFS = tariffs_of(load(storage={"url": "memory"}))
METRICS = Metrics()
BY_NAME = {each.name: each for each in FORMATS}
TEXT = "A summary of what was said before, which is long enough to be one."
LATE = ("output_tokens", "output_tokens_details", "server_tool_use", "iterations", "cost", "cost_details", "is_byok")
"""What Anthropic's streams say of their usage in the end."""


def whole(bill: Bill) -> Json:
    """The answer in one piece."""
    named = {"id": "x", **({"model": bill.model} if bill.model else {}), "usage": bill.usage}
    said: dict[str, Json] = {
        "chat_completions": {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}]
        },
        "messages": {"type": "message", "content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn"},
        "responses": {"object": "response", "status": "completed", "output": []},
        "gemini": {"candidates": [{"content": {"role": "model", "parts": [{"text": TEXT}]}, "finishReason": "STOP"}]},
    }
    if bill.format == "gemini":
        named = {"modelVersion": bill.model, "usageMetadata": bill.usage}
    return {**said[bill.format], **named, **bill.beside}


def frames(bill: Bill) -> Iterator[Json]:
    """The same as a stream."""
    answer = whole(bill)
    match bill.format:
        case "chat_completions":
            head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
            for delta, finish in (({"role": "assistant", "content": TEXT}, None), ({}, "stop")):
                yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}
            yield {**head, "choices": [], "usage": bill.usage}
        case "messages":
            early = {name: value for name, value in bill.usage.items() if name not in LATE}
            late = {name: value for name, value in bill.usage.items() if name in LATE}
            start = {**answer, "content": [], "stop_reason": None, "usage": {**early, "output_tokens": 1}}
            yield {"type": "message_start", "message": start}
            yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}}
            yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": late}
            yield {"type": "message_stop"}
        case "gemini":
            begun = {"candidates": [{"content": {"role": "model", "parts": [{"text": TEXT}]}}]}
            yield {**answer, **begun, "usageMetadata": {"promptTokenCount": 1, "totalTokenCount": 1}}
            yield {**answer, "candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}
        case _:
            yield {"type": "response.created", "response": {**answer, "output": [], "usage": None}}
            yield {"type": "response.output_text.delta", "delta": TEXT}
            end = "incomplete" if answer["status"] == "incomplete" else "completed"
            yield {"type": f"response.{end}", "response": answer}


def read_whole(bill: Bill) -> tuple[Tokens, Told]:
    editor = BY_NAME[bill.format].editor()
    editor.whole(json.dumps(whole(bill)).encode())
    return told(editor)


def read_stream(bill: Bill) -> tuple[Tokens, Told]:
    editor = BY_NAME[bill.format].editor()
    for frame in frames(bill):
        editor.edit(b"data: " + json.dumps(frame).encode() + b"\n\n")
    return told(editor)


def summary(bill: Bill, body: bytes) -> tuple[Tokens, Told]:
    answer = read_answer(BY_NAME[bill.format].summaries, body)
    assert answer is not None
    return answer.usage, answer.bill


def told(editor: AnswerEditor) -> tuple[Tokens, Told]:
    usage = editor.usage
    assert usage is not None
    return usage.tokens, usage.bill


def booked(bill: Bill, tokens: Tokens, said: Told) -> UsageRecord:
    kept: list[UsageRecord] = []

    class Kept:
        def record_usage(self, record: UsageRecord) -> None:
            kept.append(record)

    store: Any = Kept()
    call = UsageRecord(
        tenant="t",
        conversation_id="c",
        request_id="r",
        turn=1,
        purpose="message",
        upstream="default",
        format=bill.format,
        model=bill.asked,
        status=200,
        tokens=tokens,
    )
    Ledger(store, TARIFFS, METRICS).record(call, said)
    return kept[0]


@pytest.mark.parametrize("read", [read_whole, read_stream], ids=["whole", "streamed"])
def test_a_call_is_booked_at_what_its_provider_charges(read: Callable[[Bill], tuple[Tokens, Told]]) -> None:
    booked_otherwise = []
    for bill in BILLS:
        record = booked(bill, *read(bill))
        model = {"": bill.model, "-": None}.get(bill.priced, bill.priced)
        source = "registry" if bill.charged is None else "provider"
        if not is_cost(record, bill) or (record.price_source, record.priced_model) != (source, model):
            booked_otherwise.append((str(bill), record.cost, record.price_source, record.priced_model))
    assert booked_otherwise == []


def is_cost(record: UsageRecord, bill: Bill) -> bool:
    return bool(record.cost == pytest.approx(bill.cost, rel=0, abs=1e-9))


NO_SUMMARY = ("web_search_call", "-search-", "iterations")
"""What Steno's own calls do not bring about: searches, and a provider's compaction."""


def test_a_summary_is_booked_likewise() -> None:
    for bill in (bill for bill in BILLS if not any(sign in repr(bill) for sign in NO_SUMMARY)):
        streamed = b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in frames(bill))
        for body in (json.dumps(whole(bill)).encode(), streamed):
            assert is_cost(booked(bill, *summary(bill, body)), bill), str(bill)
