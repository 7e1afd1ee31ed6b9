"""Judging: whether what the provider received still says all that the client said, and nothing in another's name.

The judge knows the talk and reads the provider's log. It knows nothing of views: words that only one message holds, the
summaries that calls returned, and what those calls had been shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.compaction.user_words import HEADING
from lab.simulator import Record
from tests.histories.talks import SENTENCES, Traits, without_halves
from tests.histories.wires import Asked, Json, Said

MARK = re.compile(r"\b(?:mk\d+x\d+z|w\d+)\b")
OVER_THE_WINDOW = re.compile(
    r"context length|context window|prompt is too long|exceed context limit|maximum number of tokens"
)
ALTERNATE = re.compile(r"roles must alternate")
CLEARED = "[Old tool result content cleared]"
SHORTENED = " characters in all, "
"""Part of the note that stands in a result of which only a part is shown, or whose text another result repeats."""
FULL_SHARE = 0.55
"""Share of the limit, by the provider's count, above which the first words of a turn may have given way. Before Steno
has learnt from a model, its estimate may be 1.8 times this count: a new Claude is expected to count 1.4 times as much
as other models, and the simulator counts all models alike."""
BOUND = re.compile(r"messages\.(\d+)\..* is bound to a different conversation")


@dataclass(frozen=True, slots=True)
class Violation:
    request: int
    kind: str
    """`unanswered`, `refused`, `bound`, `lost`, `question`, `task`, `instructions`, `block` or `laundered`."""
    sentence: str


@dataclass
class Judge:
    """Judges the requests of one talk, in order."""

    traits: Traits
    left_out: Callable[[int], Mapping[int, str]]
    """What Steno says it left out of a history with so many elements, by their places: `pruned` whole, or `cleared`."""
    overflows: int = 0
    """Payloads that were too large and were mended before the client heard of it."""
    compacted: int = 0
    """Payloads that are not the history."""
    _reach: dict[str, frozenset[str]] = field(default_factory=dict)
    """By a summary's text the words that its call was shown, itself or in another summary."""
    _shortened: dict[str, int] = field(default_factory=dict)
    """By a summary's text how many shortened results its call was shown, itself or in another summary."""
    _learnt: set[int] = field(default_factory=set)
    _is_alternation_learnt: bool = False
    """True once the provider refused two messages of one role in a row."""
    _refused_behind: bytes | None = None
    """The messages behind which thinking was refused last."""

    def judge(self, number: int, asked: Asked, member: str, records: Sequence[Record]) -> list[Violation]:
        """`records`: what the log gained while the request was answered."""
        return [Violation(number, kind, sentence) for kind, sentence in self._found(asked, member, records)]

    def learn(self, calls: Sequence[Record]) -> None:
        """All summary calls of the talk so far."""
        for call in calls:
            text = (call.text or "").rpartition("</think>")[2].strip()
            if not text or call.sequence in self._learnt or call.status != 200:
                continue
            self._learnt.add(call.sequence)
            held = "\n".join(texts_in(call.payload))
            shown = frozenset(MARK.findall(held))
            shown = shown.union(*(reach for old, reach in self._reach.items() if old in held))
            # Two calls may write the same, and either may be meant.
            self._reach[text] = shown | self._reach.get(text, frozenset())
            shortened = held.count(SHORTENED) + sum(n for old, n in self._shortened.items() if old in held)
            self._shortened[text] = max(shortened, self._shortened.get(text, 0))

    def _found(self, asked: Asked, member: str, records: Sequence[Record]) -> Iterator[tuple[str, str]]:
        sent = [record for record in records if record.kind == "chat"]
        for record in sent:
            yield from self._refusals(record)
        taken = [record for record in sent if record.status == 200]
        if not taken:
            return
        payload: Json = taken[-1].payload
        elements: list[Json] = payload[member]
        texts = [*texts_in(payload)]
        history = [said.element for said in asked.history]
        self.compacted += elements != history
        is_full = (taken[-1].prompt_tokens or 0) > FULL_SHARE * (self.traits.window - self.traits.output)
        yield from self._own_words(asked, elements, texts, is_full)
        yield from self._laundered(texts, history)
        yield from self._lost(asked, taken[-1], texts)

    def _refusals(self, record: Record) -> Iterator[tuple[str, str]]:
        """What was mended before the client heard of it counts, too, but for what nobody can know beforehand."""
        if record.status == 200:
            return
        said = record.refusal or f"status {record.status}"
        if OVER_THE_WINDOW.search(said):
            self.overflows += 1
        elif ALTERNATE.search(said) and not self._is_alternation_learnt:
            self._is_alternation_learnt = True
        elif bound := BOUND.match(said):
            place = int(bound[1])
            before = msgspec.json.encode(record.payload["messages"][:place])
            if before == self._refused_behind:
                yield "bound", f"Thinking was refused once more behind the same messages: {said}"
            self._refused_behind = before
        else:
            yield "refused", said

    def _own_words(
        self, asked: Asked, elements: Sequence[Json], texts: Sequence[str], is_full: bool
    ) -> Iterator[tuple[str, str]]:
        own, task = without_halves(asked.question), without_halves(asked.task)
        may_give_way = is_full and own == task and asked.history[-1].is_result
        if own not in texts and not may_give_way:
            yield "question", f"The newest words of the user's own are not verbatim in the payload: {own[:90]!r}"
        if task != own and task not in texts and not is_full:
            yield "task", f"What the turn began with is not verbatim in the payload: {task[:90]!r}"
        for block in asked.blocks:
            if not any(block in text for text in texts):
                yield "block", f"Instructions of the client's are not in the payload: {block[:60]!r}"
        for said in asked.history:
            if said.element.get("role") in ("system", "developer") and said.element not in elements:
                yield "instructions", f"An instruction is not in the payload: {said.element!r:.90}"

    def _laundered(self, texts: Sequence[str], history: Sequence[Json]) -> Iterator[tuple[str, str]]:
        theirs = set(map(without_halves, texts_in(history)))
        for text in texts:
            words = text.partition(HEADING)[2].partition("</words")[0] if text not in theirs else ""
            yield from (("laundered", f"{s!r} stands as the user's words") for s in SENTENCES if s in words)

    def _lost(self, asked: Asked, record: Record, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Messages of which neither a word nor the call they answer is there, nor a summary that was made from them."""
        there = set(MARK.findall("\n".join(texts)))
        for text, reach in self._reach.items():
            if any(text in held for held in texts):
                there |= reach
        missing = {
            place: mark
            for place, said in enumerate(asked.history)
            for mark, call in said.marks
            if mark and mark not in there and not (call and call.encode() in record.body)
        }
        if missing:
            named = self.left_out(len(asked.history))
            # A result that nothing is left of is known by its call's id; one without a call is only known by its place.
            cleared = texts.count(CLEARED)
            # Of a shortened result the word may be gone: it is known by the note in its place.
            shortened = sum(text.count(SHORTENED) for text in texts)
            shortened += sum(n for text, n in self._shortened.items() if any(text in held for held in texts))
            for place in sorted(missing):
                if named.get(place) == "pruned":
                    continue
                if named.get(place) == "cleared" and cleared:
                    cleared -= 1
                    continue
                if asked.history[place].is_result and shortened:
                    shortened -= 1
                    continue
                element = asked.history[place].element
                yield "lost", f"Message {place + 1} is in no payload and in no summary: {element!r:.120}"


def texts_in(value: Any) -> Iterator[str]:
    """Every string in a value, but for keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from texts_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each)


def leading(history: Sequence[Said]) -> int:
    """What is not counted in what Steno tells of a history: the instructions that it begins with, or all that its
    provider has compacted itself."""
    compacted = [place for place, said in enumerate(history) if said.element.get("type") == "compaction"]
    if compacted:
        return compacted[-1] + 1
    roles = [said.element.get("role") for said in history]
    return next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
