"""Conversations written down shortly, for tests of the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.compaction import mask as masks
from app.compaction import plan
from app.compaction import planning_state as reading
from app.compaction.budget import Budget, Shares, Trigger
from app.compaction.chunk_builder import ChunkBuilder
from app.compaction.chunks import Compaction, Failure, SummaryChunk
from app.compaction.lease import make_chunks
from app.compaction.mask import MaskBoundary, Masking, MaskPolicy
from app.compaction.plan import SummaryOptions
from app.compaction.planning_state import Path, PlanningState, Policy
from app.compaction.prompts import SummaryRequest
from app.compaction.view import Conversation, View
from app.conversation.identity import Identity
from app.conversation.messages import Kind, Message, ToolCall, Transcript
from app.conversation.reasons import Code, because
from app.formats.chat_completions import SPEC
from app.formats.spec import SummaryAnswer
from app.settings.compaction import CompactionSettings, SummarySettings, apply_preset
from app.tokens.estimate import Costs

T = TypeVar("T")

IDENTITY = Identity(b"a secret for the tests")
TENANT = "tenant"
WHY = because(Code.SUMMARISER_UPSTREAM_TIMEOUT)
TOO_LARGE = because(Code.SUMMARISER_STATUS, "400")
"""Why a summary failed."""
SETTINGS = SummaryOptions(
    model="m",
    prompt="Summarise.",
    input_tokens=10_000,
    part_tokens=5_000,
    source_tokens=None,
    update_prompt="",
    focus="",
    ratio=1.0,
    strategy="additive",
    style="transcript",
    shown_tokens=10_000,
    failed_results=0,
)


SHARES = apply_preset(CompactionSettings(), SummarySettings()).shares


def shares_with(trigger: float | None = SHARES.trigger, **changes: Any) -> Shares:
    return replace(SHARES, trigger=trigger, **changes)


def sure(value: T | None) -> T:
    """This value; the test fails where there is none."""
    assert value is not None
    return value


def count(text: str) -> int:
    """A token a word: sizes in tests can be read off."""
    return len(text.split())


def cost(message: Message) -> int:
    """Of a message that was cut: a token a word of its texts."""
    return sum(map(count, message.texts))


def words(number: int, word: str = "word") -> str:
    return " ".join([word] * number)


def message(
    role: str, text: str = "", *, tokens: int | None = None, calls: Sequence[str] = (), answers: str = ""
) -> Message:
    made = tuple(ToolCall(call, f"tool_{call}", '{"a": 1}') for call in calls)
    cost = count(text) if tokens is None else tokens
    raw = f"{role}|{text}|{','.join(calls)}|{answers}|{cost}".encode()
    kind = SPEC.roles.get(role, Kind.OTHER)
    return Message(
        kind=kind,
        role=role,
        texts=(text,) if text else (),
        raw=raw,
        digest=IDENTITY.digest(raw),
        calls=made,
        answers=(answers,) if kind is Kind.RESULT else (),
    )


def tokens_of(messages: Sequence[Message]) -> list[int]:
    """What each of these costs: `message` wrote it at the end of its bytes; what a format read, a token a word."""
    return [_cost_of(message) for message in messages]


@lru_cache(10_000)
def _cost_of(message: Message) -> int:
    written = message.raw.rpartition(b"|")[2]
    if written.isdigit():
        return int(written)
    return 1 + sum(map(count, (*message.texts, *message.thoughts, *(call.arguments for call in message.calls))))


def transcript_of(messages: Sequence[Message]) -> Transcript:
    return Transcript(messages, lambda: tokens_of(messages))


def conversation(*messages: Message, fixed: int = 0, tenant: str = TENANT) -> Conversation:
    return Conversation(messages, IDENTITY, tenant, lambda: Costs(tokens_of(messages), fixed), 1 << 40)


def turns(number: int, size: int = 50, first: int = 0) -> list[Message]:
    """So many turns of a user and an assistant message, `size` tokens each."""
    return [
        message(role, f"{role} {turn} {words(size - 2)}")
        for turn in range(first, first + number)
        for role in ("user", "assistant")
    ]


def steps(number: int, text: str = "result", *, answer: str = "") -> list[Message]:
    """So many calls `c0`, `c1`, ... of the assistant, each with its result, and with what is said of it."""
    said = [message("assistant", answer)] if answer else []
    return [
        part
        for call in (f"c{place}" for place in range(number))
        for part in (
            message("assistant", calls=[call], tokens=10),
            message("tool", text, answers=call),
            *said,
        )
    ]


def agent(*said: Message) -> Conversation:
    """A question, what was done for it, and what the user says then."""
    return conversation(message("user", "find it"), *said, message("user", "thanks"))


def budget(limit: int = 1_000, **changes: Any) -> Budget:
    shares: dict[str, Any] = {
        "window": limit,
        "limit": limit,
        "trigger": limit * 7 // 10,
        "target": limit // 2,
        "tail_turns": 3,
        "tail": limit * 3 // 10,
        "tail_fill": 0,
        "summary": max(20, limit * 6 // 100),
        "fold": limit * 3 // 10,
        "reported_limit": limit,
    }
    given = shares | changes
    given.setdefault("reported_target", given["target"])
    if isinstance(given["trigger"], int):
        given["trigger"] = Trigger(given["trigger"])
    recall = {name: getattr(SHARES, name) for name in ("recall", "max_recall_tokens")}
    return Budget(**{"room": given["limit"], **recall, **given})


def case(
    talk: Conversation,
    *chunks: SummaryChunk,
    limits: Budget | None = None,
    policy: Policy | None = None,
    masking: Masking | None = None,
) -> PlanningState:
    return PlanningState(talk, policy or Policy(), limits or budget(), cost, chunks, masking)


def least_view(
    talk: Conversation,
    chunks: Iterable[SummaryChunk],
    trigger: Trigger,
    masking: Masking | None = None,
    masked_at_most: int | None = None,
) -> View | None:
    return reading.least_view(talk, reading.paths(talk, chunks), trigger, masking, masked_at_most)


def widest_path(talk: Conversation, chunks: Iterable[SummaryChunk]) -> Path:
    return reading.widest_path(reading.paths(talk, chunks))


def plan_compaction(
    talk: Conversation, chunks: Iterable[SummaryChunk], limits: Budget, summary: SummaryOptions, series: str
) -> plan.Plan | None:
    known = [*chunks]
    return plan.plan_compaction(talk, widest_path(talk, known), limits, summary, series, known=known)


def plan_mask(
    talk: Conversation,
    chunks: Iterable[SummaryChunk],
    limits: Budget,
    found: Masking,
    settings: MaskPolicy | None = None,
) -> MaskBoundary | None:
    base = widest_path(talk, chunks)
    unmasked = reading.unmasked_tokens(talk, base)
    return masks.plan_mask(talk, base.covered, unmasked, limits, found, settings or MaskPolicy())


def chunk(conversation: Conversation, start: int, stop: int, **changes: Any) -> SummaryChunk:
    """A stored chunk over the messages from `start` up to `stop` of this conversation."""
    made = SummaryChunk(
        id=f"c{start}-{stop}",
        conversation_id="conv",
        series="additive",
        level=0,
        from_digest=conversation.chain[start],
        through_digest=conversation.chain[stop],
        last_message_digest=conversation.transcript.messages[stop - 1].digest,
        first_index=start,
        last_index=stop - 1,
        through_turn=conversation.transcript.turn_at(stop),
        carried=(),
        text=f"notes on {start} to {stop}",
        tokens=20,
        model="m",
        prompt_version="p",
    )
    return replace(made, **changes)


class Kept(Struct, frozen=True):
    chunk: SummaryChunk


Effect = SummaryRequest | Kept


class PreparedCalls:
    """Calls with prepared answers, written down in order; chunks are kept as they are."""

    def __init__(self, answers: Iterable[SummaryAnswer | Failure]) -> None:
        self.effects: list[Effect] = []
        self._answers = iter(answers)

    async def ask(self, call: SummaryRequest) -> SummaryAnswer | Failure:
        self.effects.append(call)
        return next(self._answers)

    async def keep(self, chunk: SummaryChunk, _: SummaryAnswer) -> SummaryChunk:
        self.effects.append(Kept(chunk))
        return chunk

    def reject(self, _: SummaryAnswer) -> None:
        """Record nothing."""

    async def compute(self, step: Callable[[], T]) -> T:
        return step()


def play(work: ChunkBuilder, *answers: SummaryAnswer | Failure) -> tuple[list[Effect], Compaction]:
    """Makes a compaction with prepared answers, also where an event loop runs."""
    calls = PreparedCalls(answers)
    with ThreadPoolExecutor(1) as thread:
        return calls.effects, thread.submit(asyncio.run, make_chunks(work, calls)).result()


def notes(size: int = 30) -> SummaryAnswer:
    return SummaryAnswer(words(size, "note"))
