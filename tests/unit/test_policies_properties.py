"""What holds for every preset and every conversation, however odd: 300 random ones, 100,000 by `make properties`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.budget import Budget, Window, budget_for
from app.compaction.chunks import Compaction, SummaryChunk
from app.compaction.compactor import Stored
from app.compaction.decision import Decision
from app.compaction.mask import MaskBoundary
from app.compaction.planning_state import Policy
from app.compaction.recall import Recollection, with_recalled
from app.compaction.verify import problems
from app.compaction.view import Conversation, Pruned, Summary, View
from app.conversation.identity import Identity
from app.conversation.messages import Kind
from app.formats.chat_completions import read_message, render
from app.formats.reader import MessageReader
from app.formats.spec import SummaryAnswer
from app.settings import load, presets
from app.settings.compaction import apply_preset
from app.settings.presets import PRESET_NAMES, PresetName
from app.tokens.estimate import Declarations
from app.tokens.estimator import Estimator, Prompt
from app.tokens.tokenizer import Tokenizer
from tests.unit.conversations import SETTINGS, count, play
from tests.unit.worlds import World
from tests.unit.worlds import asked as request_of

IDENTITY = Identity(b"a secret for the properties")
EXAMPLES = (20_000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 150) // len(PRESET_NAMES)
WINDOW = 2_000
RECALLED = 0.25
"""Of the limit: in less of so small a window nothing would be recalled."""
PRESETS = pytest.mark.parametrize("preset", PRESET_NAMES)
CASES = settings(max_examples=EXAMPLES, deadline=None)
SEEDS = st.integers(0, 2**32)


class Words(Tokenizer):
    """A token a word."""

    def counter(self, _: str) -> Any:
        return count


READER, ESTIMATOR = MessageReader(IDENTITY, read_message), Estimator(Words())


class Steno(World):
    """Decides as Steno does, without waiting: with one conversation's chunks and masks."""

    def __init__(
        self, preset: PresetName, input_tokens: int = 1_500, *, alternates: bool = False, recalls: bool = False
    ) -> None:
        """`input_tokens`: what one summary call can read. `recalls`: quotations and exact values are added."""
        loaded = load(compaction={"preset": preset})
        self.enabled = loaded.compaction.enabled
        applied = apply_preset(loaded.compaction, loaded.summary)
        recall = RECALLED if recalls and applied.shares.recall else 0.0
        self.policy: Policy = replace(applied.policy, alternates=alternates)
        self.budget: Budget = budget_for(Window(WINDOW, "config"), 200, replace(applied.shares, recall=recall))
        brief = replace(
            SETTINGS,
            input_tokens=input_tokens,
            shown_tokens=1_800,
            part_tokens=700,
            strategy=self.policy.strategy,
            style="prefix" if presets.PRESETS[preset].style == "prefix" else "transcript",
            failed_results=self.policy.failed_results,
        )
        super().__init__(
            {"summary_options": brief, "read_prefix": self._held, "make": self._made, "recall": self._recalled}
        )
        self.chunks: dict[str, SummaryChunk] = {}
        self.boundaries: set[tuple[bytes, bytes]] = set()
        self.summary_calls = 0

    def decided(self, asked: Asked) -> Decision:
        self.calls.clear()
        self.request = request_of(
            asked.talk,
            tenant="t",
            conversation_id="c",
            policy=self.policy,
            budget=self.budget,
            series=self.policy.strategy,
            count=count,
            cost=asked.prompt.cost,
            may_compact=self.enabled,
            recalls=True,
            pins=asked.pins,
        )
        return self.decide(self.request)

    @property
    def _talk(self) -> Conversation:
        return self.request.conversation

    def _held(self, _: Any) -> Stored:
        positions = self._talk.chain.positions
        held = (
            MaskBoundary(positions[place], positions[start])
            for place, start in self.boundaries
            if place in positions and start in positions
        )
        chunks = tuple(self.chunks.values()) if self.policy.summarises else ()
        return Stored(chunks=chunks, boundaries=tuple(sorted(held)))

    def _keep_mask(self, call: Any) -> None:
        chain, boundary = self._talk.chain, call.boundary
        self.boundaries.add((chain[boundary.position], chain[boundary.start]))

    def _made(self, call: Any) -> Compaction:
        note = SummaryAnswer(" ".join(["note"] * 25))
        _, compaction = play(call.job.builder, *[note] * 200)
        self.summary_calls += 1
        self.chunks |= {chunk.id: chunk for chunk in compaction.made}
        return compaction

    def _recalled(self, call: Any) -> View:
        request = self.request
        talk, budget = request.conversation, request.budget
        found = with_recalled(talk, call.view, Recollection(talk), budget, request.cost)
        assert problems(talk, found, budget.limit) == []
        return found


@dataclass
class Asked:
    """A request: its messages as bytes, and as the core sees them."""

    raw: list[bytes]
    talk: Conversation
    prompt: Prompt
    pins: tuple[int, ...] = ()


def asked(messages: Sequence[Any], pins: Sequence[int] = ()) -> Asked:
    raw = [json.dumps(message).encode() for message in messages]
    read = READER.read(raw)
    prompt = ESTIMATOR.prompt("gpt-4o", read, b"", Declarations)
    talk = Conversation(read, IDENTITY, "t", prompt.costs, None)
    return Asked(raw, talk, prompt, tuple(sorted({pin for pin in pins if pin < len(talk.transcript)})))


def words(random: Random, most: int) -> str:
    size = int(most ** random.random())
    return random.choice(["", " ", "\u0000\U0001f642 ", "\u0645\u0631\u062d\u0628\u0627 "]) + " ".join(["w"] * size)


def history(random: Random) -> list[Any]:
    """Mostly sensible, sometimes not: orphans, repeated ids, empty texts, images, odd orders, giants."""
    messages: list[Any] = [{"role": "system", "content": words(random, 60)}] if random.random() < 0.8 else []
    for step in range(random.randint(0, 40)):
        kind = random.random()
        if kind < 0.35:
            messages.append({"role": "user", "content": _content(random)})
        elif kind < 0.60:
            messages.append({"role": "assistant", "content": words(random, 200)})
        elif kind < 0.63:
            messages.append({"role": random.choice(["developer", "system"]), "content": words(random, 20)})
        elif kind < 0.66:
            messages.append({"role": "tool", "tool_call_id": f"stray{step}", "content": words(random, 300)})
        else:
            messages += _calls(random, step)
    return messages


def _content(random: Random) -> Any:
    if random.random() < 0.1:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        return [{"type": "text", "text": words(random, 100)}, image]
    return words(random, random.choice([20, 200, 200, 3_000]))


def _calls(random: Random, step: int) -> list[Any]:
    ids = [f"c{step if random.random() < 0.95 else 0}.{number}" for number in range(random.randint(1, 4))]
    ids += ids[:1] if random.random() < 0.05 else []
    calls = [
        {
            "id": id_,
            "type": "function",
            "function": {"name": "tool", "arguments": json.dumps({"a": words(random, 900)})},
        }
        for id_ in ids
    ]
    answered = [id_ for id_ in ids if random.random() < 0.95]
    results: list[Any] = [
        {"role": "tool", "tool_call_id": id_, "content": _result(random)}
        for id_ in random.sample(answered, len(answered))
    ]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def _result(random: Random) -> Any:
    if random.random() < 0.05:
        return [{"type": "text", "text": words(random, 200)}, {"type": "image_url", "image_url": {"url": "http://x"}}]
    return words(random, random.choice([50, 500, 500, 6_000])) or "Error: empty"


def payload(request: Asked, decision: Decision) -> list[bytes]:
    return request.raw if decision.view is None else render(request.talk, decision.view)


def orphans(messages: Sequence[Any]) -> list[str]:
    """As a strict provider sees it: results directly after their call, every call answered once."""
    found: list[str] = []
    for place, message in enumerate(messages):
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        following = []
        for later in messages[place + 1 :]:
            if later["role"] != "tool":
                break
            following.append(later["tool_call_id"])
        answers = [id_ for id_ in following if id_ in calls]
        if sorted(calls) != sorted(answers):
            found.append(f"calls {calls} answered by {answers}")
        if calls:
            found += [f"result {id_} without a call" for id_ in following if id_ not in calls]
        if message["role"] == "tool" and (
            not place or not (messages[place - 1].get("tool_calls") or messages[place - 1]["role"] == "tool")
        ):
            found.append(f"result {message['tool_call_id']} without a call")
    return found


def just_sent(messages: Sequence[Any]) -> Sequence[Any]:
    """The results at the end, with the calls before them."""
    start = len(messages)
    for role in ("tool", "assistant"):
        while start and messages[start - 1]["role"] == role:
            start -= 1
    return messages[start:]


@PRESETS
@CASES
@given(SEEDS)
def test_every_payload_is_one_that_a_provider_takes_and_accounts_for_every_message(
    preset: PresetName, seed: int
) -> None:
    random = Random(seed)
    steno, messages = Steno(preset), history(random)
    pins = [random.randint(0, 30)] if random.random() < 0.2 else []
    request = asked(messages, pins)
    decision = steno.decided(request)
    sent = payload(request, decision)
    if decision.view is None:
        assert sent == request.raw
        assert decision.reason or request.talk.tokens <= steno.budget.limit
        assert decision.status == "full"
        return
    limits = decision.budget or steno.budget
    assert problems(request.talk, decision.view, limits.limit) == []
    assert limits == steno.budget
    leaves_out = any(isinstance(part, Summary | Pruned) for part in decision.view.parts)
    own = orphans(just_sent(messages) if leaves_out else messages)
    for message in just_sent(messages):
        own += orphans([message]) if message.get("tool_call_id", "").startswith("stray") else []
    assert set(orphans([json.loads(raw) for raw in sent])) <= set(own)
    leading = [message.raw for message in request.talk.instructions]
    assert sent[: len(leading)] == leading
    kept = [m.raw for m in request.talk.transcript.messages if m.kind is Kind.INSTRUCTIONS]
    assert all(raw in sent for raw in kept)
    if request.talk.transcript.last_user >= 0:
        assert request.talk.transcript.messages[request.talk.transcript.last_user].raw in sent
    places = [request.raw.index(raw) for raw in sent if request.raw.count(raw) == 1]
    assert "pinned" in decision.actions or places == sorted(places)
    assert decision.actions
    assert decision.status == ("summarized" if decision.view.chunks else "trimmed")
    if preset != "openclaw-aggressive":  # A placeholder may be longer than what it stands for.
        assert decision.view.tokens <= request.talk.tokens


@PRESETS
@CASES
@given(SEEDS)
def test_the_same_request_again_is_the_same_payload_and_costs_no_call(preset: PresetName, seed: int) -> None:
    random = Random(seed)
    steno, messages = Steno(preset), history(random)
    first, again = asked(messages), asked(messages)
    sent, calls = payload(first, steno.decided(first)), steno.summary_calls
    decided = steno.decided(again)
    assert payload(again, decided) == sent
    if decided.reason is None:
        assert steno.summary_calls == calls


@pytest.mark.parametrize("preset", ["default", "lightspeed", "rolling", "librechat", "librechat-checkpoint"])
@CASES
@given(SEEDS)
def test_between_two_compactions_each_payload_extends_the_one_before(preset: PresetName, seed: int) -> None:
    """In conversations without giants, where nothing has to be cut in haste, and summaries are made in one part."""
    random = Random(seed)
    steno, messages, marks = Steno(preset, input_tokens=10_000), [], (0, 0)
    before: list[bytes] = []
    messages.append({"role": "system", "content": "be brief"})
    for _ in range(random.randint(1, 25)):
        messages.append({"role": "user", "content": words(random, 150)})
        request = asked(messages)
        decision = steno.decided(request)
        sent, now = payload(request, decision), (steno.summary_calls, len(steno.boundaries))
        if now == marks and decision.reason is None:
            assert sent[: len(before)] == before
        before, marks = sent, now
        messages.append({"role": "assistant", "content": words(random, 150)})
