"""Rules that are set early, through five compactions each, by the core alone: `make rules` plays 500 conversations.

Messages are read as their formats read them, and presets, budgets, plans and folds are the real ones; what is made up
is the summariser, which never mentions a rule, and the size of a text, four bytes a token. `tests/e2e` plays some of
the same conversations through a server.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from app.core.limits.budget import Window, budget_for
from app.core.summary.brief import SummaryBrief
from app.core.summary.compaction import compact
from app.core.summary.flow import Effect, Reply, StoreChunk, Summarise, Together, drive
from app.core.summary.gate import SummaryAnswer
from app.core.summary.plan import plan_compaction
from app.core.summary.prompts import chunk_text
from app.core.view.chunks import SummaryChunk
from app.core.view.reading import Path, build_view, least_view, paths, widest_path
from app.core.view.view import Conversation, Costs, Verbatim
from app.settings import Settings
from app.settings.policies import Policies
from tests.unit.conversations import IDENTITY
from tests.unit.rule_talks import PRESETS, Talk

CONVERSATIONS = int(os.environ.get("CONVERSATIONS", "4"))
SEED = int(os.environ.get("SEED", "0"))
CYCLES = 5
MOST_REQUESTS = 400
NOTES = SummaryAnswer("The clerk and the customer went through several cases, as was noted for each of them. " * 4)


def count(text: str) -> int:
    return len(text.encode()) // 4 + 1


class Played:
    """One conversation: what is stored of it, and what is sent for each request."""

    def __init__(self, talk: Talk, policies: Policies) -> None:
        self.talk = talk
        name = next(each for each in PRESETS if each == talk.preset)
        applied = policies.of(Settings().upstream, talk.model, name)
        self.budget = budget_for(Window(talk.window, "config"), None, applied.shares)
        self.brief = SummaryBrief(
            model=talk.model,
            prompt=applied.summary.prompt,
            input_tokens=talk.window // 2,
            part_tokens=talk.window // 3,
            source_tokens=applied.source_tokens,
            strategy=applied.policy.strategy,
            values_share=applied.summary.values,
        )
        self.stored: list[SummaryChunk] = []
        self.compactions = 0
        self.folds = 0

    def payloads(self) -> Iterator[tuple[Conversation, Path]]:
        """What each request becomes, until it was compacted often enough."""
        for number, items in enumerate(self.talk.requests()):
            messages = [self.talk.form.message(item) for item in items]
            costs = [4 + sum(map(count, message.texts)) for message in messages]
            talk = Conversation(messages, IDENTITY, "tenant", lambda costs=costs: Costs(costs, 0), 1 << 40)  # type: ignore[misc]
            yield talk, self._path(talk)
            if self.compactions == CYCLES:
                return
            assert number < MOST_REQUESTS, self.talk.seed

    def _path(self, talk: Conversation) -> Path:
        found = paths(talk, self.stored)
        view = least_view(talk, found, self.budget.trigger, None)
        if view is not None:
            covered = max((each.covered for each in found if each.chunks == view.chunks), default=0)
            return Path(view.chunks, covered)
        base = widest_path(found)
        plan = plan_compaction(talk, base, self.budget, self.brief, "series")
        if plan is None:
            return base
        done = drive(compact(talk, "conv", plan, self.budget, self.brief, count), self._perform)
        assert done.is_whole, (self.talk.seed, done.reasons)
        self.stored.extend(done.made)
        self.compactions += 1
        self.folds += any(chunk.level for chunk in done.made)
        return widest_path(paths(talk, self.stored))

    def _perform(self, effect: Effect) -> Reply:
        match effect:
            case Summarise():
                return NOTES
            case StoreChunk(chunk):
                return chunk
            case Together(flows):
                return tuple(drive(flow, self._perform) for flow in flows)
            case _:
                return None


def texts_of(talk: Conversation, path: Path) -> list[str]:
    """What stands in the payload beside summaries."""
    messages = talk.transcript.messages
    verbatim = [part for part in build_view(talk, path).parts if isinstance(part, Verbatim)]
    return [text for part in verbatim for message in messages[part.start : part.stop] for text in message.texts]


@pytest.mark.timeout(7200)
def test_a_rule_is_in_every_payload_through_five_compactions_and_nothing_else_is_taken_for_one() -> None:
    policies, told = Policies(Settings()), Counter[str]()
    spent, sent = Counter[str](), Counter[str]()
    for seed in range(SEED, SEED + CONVERSATIONS):
        talk = Talk(seed)
        played = Played(talk, policies)
        for turn, (conversation, path) in enumerate(played.payloads()):
            quoted = [rule for chunk in path.chunks for rule in chunk.rules]
            where = (seed, turn, talk.preset, talk.form.path, talk.rule)
            assert quoted in ([], [talk.rule]), where
            assert turn < talk.at or quoted or any(talk.rule in text for text in texts_of(conversation, path)), where
            assert not any(chunk.rules_left_out for chunk in path.chunks), where
            told["payloads, of these"] += 1
            told["with summaries"] += bool(path.chunks)
            told["with the rule beside a summary"] += bool(quoted)
            size = f"{talk.window:,}"
            spent[size] += sum(map(rule_tokens, path.chunks))
            sent[size] += build_view(conversation, path).tokens
        told.update({"conversations": 1, "compactions": CYCLES, "with folds": played.folds})
        told.update((talk.preset, talk.form.path, talk.language))
    for label, number in told.items():
        sys.stdout.write(f"{number:8,} {label}\n")
    for size in sent:
        sys.stdout.write(f"{spent[size] / sent[size]:8.2%} of the tokens in windows of {size}\n")
    sys.stdout.write(f"{spent.total() / sent.total():8.2%} of all tokens\n")
    assert spent.total() < 0.005 * sent.total()


def rule_tokens(chunk: SummaryChunk) -> int:
    """What the rules take in a payload, with what stands around them."""
    return count(chunk_text(chunk)) - count(chunk_text(replace(chunk, rules=())))
