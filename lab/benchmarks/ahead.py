"""Waits for a slow summariser, with and without background compaction, and their cost.

Recorded conversations are played by a clock that is only reckoned: each request comes so many seconds after the last
answer, each summary takes so many seconds, answers take none. What is decided is decided by core itself, with windows,
masks and all; a summary is as long as it was asked to be. So the figures hold for any machine.

    python -m lab.benchmarks.ahead locomo.jsonl
    python -m lab.benchmarks.ahead --chained 10 tau-airline.jsonl
    python -m lab.benchmarks.ahead --windows 8000,32000 --summary 20 --every 7 locomo.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from app.compaction.paces import LIKELY_REQUESTS
from app.core.history.identity import Identity
from app.core.limits.ahead import budget_ahead, most_without, requests_meanwhile
from app.core.limits.budget import Budget, Shares, Window, budget_for
from app.core.stages.case import Case, case_of
from app.core.stages.ladder import settle
from app.core.stages.masking import due_mask, without_summary
from app.core.stages.policy import Policy
from app.core.summary.brief import SummaryBrief
from app.core.summary.compaction import compact
from app.core.summary.flow import Compaction, Effect, Flow, Reply, StoreChunk, Summarise, Together, drive
from app.core.summary.gate import SummaryAnswer
from app.core.summary.plan import Plan, plan_compaction
from app.core.summary.prompts import SUMMARY_PROMPT
from app.core.tokens.declarations import Declarations
from app.core.view.chunks import SummaryChunk
from app.core.view.mask import Boundary
from app.core.view.reading import whole
from app.core.view.view import Altered, Carried, Conversation, Pins, Summary, Verbatim, View
from app.runtime.caches import Caches
from app.settings import load
from app.tokens.estimator import Estimator, Prompt
from app.tokens.tokenizer import Tokenizer
from app.wire.chat_completions.messages import read_message
from app.wire.reader import MessageReader
from lab.replay.recordings import Recording, chain, read_recordings

MODEL, SERIES = "gpt-4o", "additive"
WINDOWS = (8_000, 32_000)
SHARES, POLICY = Shares(), Policy()
IDENTITY = Identity(b"benchmark")
INPUT_SHARE, PART_SHARE = 0.85, 0.50
"""Shares as in `compaction/writing`."""


@dataclass
class Course:
    """Results of one run's requests."""

    requests: int = 0
    waited: int = 0
    went_on: int = 0
    """Requests over the trigger, without the summary that was due."""
    shortened: int = 0
    """Requests of `went_on` with something masked or cut."""
    found: int = 0
    """Times that a summary was used first by the request that fired the trigger."""
    calls: int = 0
    summary_tokens: int = 0
    """Tokens of the summary calls, prompt and completion."""
    breaks: int = 0
    """Payloads that do not extend the one before."""
    sent: int = 0
    """Tokens of all payloads that another one followed."""
    kept: int = 0
    """Tokens of `sent` with which the next payload began, too."""

    @property
    def prefix_kept(self) -> float:
        return self.kept / self.sent if self.sent else 1.0


@dataclass
class Talk:
    """One conversation on its way."""

    course: Course
    background: bool
    summary_seconds: float
    every: float
    now: float = 0.0
    chunks: list[SummaryChunk] = field(default_factory=list)
    boundaries: list[Boundary] = field(default_factory=list)
    making: list[SummaryChunk] = field(default_factory=list)
    ready_at: float = 0.0
    before: list[tuple[object, int]] = field(default_factory=list)
    """The last payload: what it held, and the tokens of each."""
    used: tuple[SummaryChunk, ...] = ()
    missed: bool = False
    """True if the last request went on without a summary."""

    def ask(self, number: int, prompt: Prompt, conversation: Conversation, budget: Budget) -> None:
        """The request of that number, from 1."""
        course, comes_back = self.course, self.background and number > LIKELY_REQUESTS
        course.requests += 1
        waited, missed, shortened = False, False, False
        case = self._case(prompt, conversation, budget)
        while (plan := self._due(case)) is not None:
            at_most = most_without(budget)
            if comes_back and (without := without_summary(case, at_most, shortens=True)) is not None:
                missed, shortened = True, without is not case
                self.boundaries += without.boundaries
                case = without
                break
            waited = True
            if not self.making:
                self._begin(case, plan, prompt)
            self.now = self.ready_at
            case = self._case(prompt, conversation, budget)
        over = conversation.tokens > budget.trigger.tokens
        view = settle(case).view if over else None
        view = view or whole(conversation)
        course.waited += waited
        course.went_on += missed
        course.shortened += shortened
        course.found += view.chunks != self.used and not (waited or self.missed)
        self._compare(conversation, view)
        self.used, self.missed = view.chunks, missed
        if self.background and number >= LIKELY_REQUESTS:
            self._look_ahead(view, missed, prompt, conversation, budget)
        self.now += self.every

    def _case(self, prompt: Prompt, conversation: Conversation, budget: Budget) -> Case:
        if self.making and self.ready_at <= self.now:
            self.chunks, self.making = [*self.chunks, *self.making], []
        case = case_of(conversation, POLICY, budget, prompt.cost, Pins())
        return case.with_chunks(self.chunks).with_boundaries(self.boundaries)

    def _due(self, case: Case) -> Plan | None:
        if case.conversation.tokens <= case.budget.trigger.tokens:
            return None
        if (boundary := due_mask(case)) is not None:
            self.boundaries.append(boundary)
            case = case.with_boundaries([boundary])
        return None if case.is_settled else _plan(case)

    def _look_ahead(self, view: View, missed: bool, prompt: Prompt, conversation: Conversation, budget: Budget) -> None:
        meanwhile = requests_meanwhile(self.summary_seconds, self.every)
        ahead = budget_ahead(budget, conversation.transcript, meanwhile)
        if self.making or not (missed or view.tokens > ahead.trigger.tokens):
            return
        case = self._case(prompt, conversation, ahead)
        if not case.is_settled and due_mask(case) is None and (plan := _plan(case)) is not None:
            self._begin(case, plan, prompt)

    def _begin(self, case: Case, plan: Plan, prompt: Prompt) -> None:
        flow = compact(case.conversation, "c", plan, case.budget, _brief(case.budget), prompt.count)
        self.making, self.ready_at = [*self._made(flow, prompt).made], self.now + self.summary_seconds

    def _made(self, flow: Flow, prompt: Prompt) -> Compaction:
        def perform(effect: Effect) -> Reply:
            match effect:
                case Summarise(request):
                    text = " a" * (request.max_tokens // 2)
                    self.course.calls += 1
                    self.course.summary_tokens += sum(
                        map(prompt.count, (request.instructions, request.transcript, text))
                    )
                    return SummaryAnswer(text)
                case Together(flows):
                    return tuple(self._made(each, prompt) for each in flows)
                case StoreChunk(chunk):
                    return chunk
                case _:
                    return None

        return drive(flow, perform)

    def _compare(self, conversation: Conversation, view: View) -> None:
        now = _pieces(conversation, view)
        same = next((n for n, (a, b) in enumerate(zip(self.before, now, strict=False)) if a != b), len(self.before))
        self.course.breaks += same < len(self.before)
        self.course.sent += sum(tokens for _, tokens in self.before)
        self.course.kept += sum(tokens for _, tokens in self.before[:same])
        self.before = now


def _plan(case: Case) -> Plan | None:
    return plan_compaction(case.conversation, case.widest_path, case.budget, _brief(case.budget), SERIES)


def _brief(budget: Budget) -> SummaryBrief:
    room = budget.window - budget.summary
    return SummaryBrief(
        model=MODEL,
        prompt=SUMMARY_PROMPT,
        input_tokens=int(INPUT_SHARE * room) - len(SUMMARY_PROMPT) // 2,
        part_tokens=int(PART_SHARE * room),
        source_tokens=16_384,
    )


def _pieces(conversation: Conversation, view: View) -> list[tuple[object, int]]:
    """Parts of a payload, in order, each with its tokens."""
    size = conversation.transcript.tokens_of
    pieces: list[tuple[object, int]] = [("instructions", conversation.instruction_tokens)]
    for part in view.parts:
        match part:
            case Verbatim(start, stop):
                pieces += ((index, size(index)) for index in range(start, stop))
            case Carried(index):
                pieces.append((("carried", index), size(index)))
            case Altered():
                pieces.append((part, part.tokens))
            case Summary(chunk):
                pieces.append((chunk.id, chunk.tokens))
            case _:
                pieces.append((part, 0))
    return pieces


def play(recordings: Sequence[Recording], window: int, summary_seconds: float, every: float, *, ahead: bool) -> Course:
    estimator = Estimator(Tokenizer(load().tokenizer.folder))
    reader, course = MessageReader(IDENTITY, read_message, caches=Caches(1 << 30)), Course()
    budget = budget_for(Window(window, "config"), None, SHARES)
    for recording in recordings:
        raw = [msgspec.json.encode(message) for message in recording.messages]
        talk = Talk(course, ahead, summary_seconds, every)
        for number, end in enumerate(recording.requests, 1):
            messages = reader.read(raw[:end])
            prompt = estimator.prompt(MODEL, messages, b"", Declarations)
            talk.ask(number, prompt, Conversation(messages, IDENTITY, "t", prompt.costs, prompt.bound), budget)
    return course


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m lab.benchmarks.ahead", description="Who waits for a summary.")
    arguments.add_argument("files", nargs="+", type=Path)
    arguments.add_argument("--windows", default=",".join(map(str, WINDOWS)))
    arguments.add_argument("--chained", type=int, default=1, help="so many recordings as one conversation")
    arguments.add_argument("--summary", type=float, default=20.0, help="seconds that a summary takes")
    arguments.add_argument("--every", type=float, default=7.0, help="seconds between an answer and the next request")
    given = arguments.parse_args()
    columns = ("requests", "waited", "went on", "shortened", "found", "calls", "tokens", "breaks", "prefix kept")
    print(f"{'':<34}" + "".join(f"{name:>12}" for name in columns))
    for file in given.files:
        recordings = chain(read_recordings(file), given.chained)
        for window in map(int, given.windows.split(",")):
            for name, ahead in (("waiting", False), ("in the background", True)):
                course = play(recordings, window, given.summary, given.every, ahead=ahead)
                cells = (course.requests, course.waited, course.went_on, course.shortened, course.found, course.calls)
                told = "".join(f"{cell:>12,}" for cell in (*cells, course.summary_tokens, course.breaks))
                print(f"{file.stem:<10} {window:>6,} {name:<16}{told}{course.prefix_kept:>12.2%}", flush=True)


if __name__ == "__main__":
    main()
