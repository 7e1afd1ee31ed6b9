"""Standing rules through compactions: what the user once set stands word for word in every payload after it.

`make rules` plays 40 of its 500 conversations this way, `make test-all` some."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from typing import Any

import pytest

from lab.simulator import Fault, Simulator
from lab.simulator.log import Record
from tests.e2e.conftest import TABLES
from tests.e2e.histories import chat, turns
from tests.e2e.raw import post, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.unit.rule_talks import WINDOWS, Talk

CONVERSATIONS = int(os.environ.get("CONVERSATIONS", "6"))
SEED = int(os.environ.get("SEED", "0"))
CYCLES = 5
MOST_REQUESTS = 400
TENANTS = 7
NOTES = re.compile(r"<notes ([0-9a-f]{8})>")
SECTION = re.compile(r"\[[^\]\n]+\]\n<rules ([0-9a-f]{8})>\n(.*?)\n</rules \1>", re.DOTALL)


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(models="any", window=1_000_000, tables=TABLES, log_limit=50)


def started(steno: StartSteno) -> Steno:
    return steno(
        models=[{"match": f"*-{size}", "context_window": window} for size, window in WINDOWS.items()],
        upstream={"formats": ["chat_completions", "messages", "responses"]},
        compaction={"background": {"enabled": False}},
    )


def test_where_no_summary_can_be_made_each_tenant_keeps_its_own_rules(simulator: Simulator, steno: StartSteno) -> None:
    """What is left out for good are the messages alone, as far as rules are kept."""
    simulator.summary_default = Fault(status=503)
    running = steno(models=[{"match": "*", "context_window": 8_000}])
    for tenant, rule in (("one", "Never push to main."), ("two", "Always answer in French."), ("three", "Hello.")):
        asked = chat([{"role": "user", "content": rule}, {"role": "assistant", "content": "Yes."}, *turns(30)])
        key = f"authorization: Bearer sk-{tenant}".encode()
        answered = send(running.url, request_bytes(asked, b"content-type: application/json", key, usual=False))
        assert {"pruned", "stub"} <= {*answered.json["context"]["actions"]}, answered.body
        texts = "\n".join(texts_of(simulator.chats[-1].payload))
        kept = [rule] if rule != "Hello." else []
        assert [found[2] for found in SECTION.finditer(texts)] == kept


@pytest.mark.release
def test_a_rule_stands_in_every_payload_through_five_compactions_and_nothing_else_does(
    simulator: Simulator, steno: StartSteno
) -> None:
    running, told = started(steno), Counter[str]()
    spent: Counter[int] = Counter()
    sent: Counter[int] = Counter()
    for seed in range(SEED, SEED + CONVERSATIONS):
        talk = Talk(seed)
        for record in played(running, simulator, talk):
            texts = "\n".join(texts_of(record.payload))
            sections = [found[2] for found in SECTION.finditer(texts)]
            where = (seed, talk.preset, talk.form.path, talk.rule)
            assert talk.rule in texts, where
            assert {line for section in sections for line in section.split("\n")} <= {talk.rule}, where
            spent[talk.window] += sum(simulator.count(found[0]) for found in SECTION.finditer(texts))
            sent[talk.window] += record.prompt_tokens or 0
            told["payloads with summaries"] += bool(NOTES.search(texts))
            told["payloads with the rule beside a summary"] += bool(sections)
        told.update({"conversations": 1, talk.preset: 1, talk.form.path: 1, talk.language: 1})
    assert told["payloads with the rule beside a summary"] > CYCLES * CONVERSATIONS / 2
    assert spent.total() < 0.005 * sent.total()
    for label, number in sorted(told.items()):
        sys.stdout.write(f"{number:8,} {label}\n")
    for window in WINDOWS.values():
        if sent[window]:
            sys.stdout.write(f"{spent[window] / sent[window]:8.2%} of all prompt tokens in a window of {window:,}\n")
    sys.stdout.write(f"{spent.total() / sent.total():8.2%} of all prompt tokens\n")


def played(running: Steno, simulator: Simulator, talk: Talk) -> list[Record]:
    """Its payloads, from the first one that the rule is in, until it was compacted often enough."""
    key = f"authorization: Bearer sk-{talk.seed % TENANTS}".encode()
    preset = f"x-context-preset: {talk.preset}".encode()
    records: list[Record] = []
    cycles, notes = 0, None
    for number, items in enumerate(talk.requests()):
        answered = post(
            running.url, talk.form.body(items, talk.model), key, preset, target=talk.form.path, timeout=60.0
        )
        assert answered.status == 200, (talk.seed, answered.body)
        record = simulator.chats[-1]
        if talk.rule in json.dumps(items, ensure_ascii=False).replace('\\"', '"'):
            records.append(record)
        found = NOTES.findall("\n".join(texts_of(record.payload)))
        cycles += bool(found) and found != notes
        notes = found or notes
        if cycles > CYCLES:
            return records
        assert number < MOST_REQUESTS, (talk.seed, talk.preset, cycles)
    raise AssertionError("it never ends")


def texts_of(value: Any) -> list[str]:
    """All texts in a payload."""
    if isinstance(value, str):
        return [value]
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in held for text in texts_of(each)]
