"""Compactions whose summary stands for everything before the tail, and the other ways to ask for one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from app.compaction.chunk_builder import ChunkBuilder, SummaryCall
from app.compaction.chunks import SummaryChunk
from app.compaction.plan import SummaryOptions
from app.compaction.prompts import SummaryRequest
from app.compaction.view import Conversation
from app.conversation.messages import Message
from tests.unit.conversations import (
    SETTINGS,
    Effect,
    budget,
    chunk,
    conversation,
    count,
    message,
    notes,
    plan_compaction,
    play,
    turns,
)

QUESTION = message("user", "the last question")
TALK = conversation(message("system", "rules"), *turns(10, size=40), QUESTION)
ROLLING = replace(SETTINGS, strategy="rolling")


def flow(
    talk: Conversation = TALK,
    stored: tuple[SummaryChunk, ...] = (),
    settings: SummaryOptions = SETTINGS,
    **changes: int,
) -> ChunkBuilder:
    limits = budget(**changes)
    plan = plan_compaction(talk, stored, limits, settings, "s")
    assert plan is not None
    return ChunkBuilder(talk, "conv", plan, limits, settings, count)


def asked(effects: Sequence[Effect]) -> list[SummaryRequest]:
    return [effect.request for effect in effects if isinstance(effect, SummaryCall)]


def holds(text: str, *messages: Message) -> list[bool]:
    return [message.text in text for message in messages]


def test_a_user_message_that_the_last_summary_carried_is_read_once_its_turn_is_over() -> None:
    stored = chunk(TALK, 0, 8, carried=(6,))
    effects, compaction = play(flow(stored=(stored,), settings=ROLLING), notes())
    [request] = asked(effects)
    assert holds(request.transcript, *TALK.transcript.messages[5:9]) == [False, True, False, True]
    assert compaction.made[0].carried == ()


# Failed results


def failing_talk() -> Conversation:
    failing = [
        message("user", "try it " + "w " * 38),
        message("assistant", calls=["c1"]),
        message("tool", "Error: no such shelf", answers="c1"),
        message("assistant", "It failed. " + "w " * 38),
    ]
    return conversation(*failing, *turns(10, size=40), QUESTION)


def test_they_are_listed_once_however_often_the_summary_is_renewed() -> None:
    talk = failing_talk()
    listed = "\n\nTool calls that failed:\n- tool_c1: Error: no such shelf"
    stored = chunk(talk, 0, 8, text=f"what was tried{listed}")
    settings = replace(ROLLING, failed_results=8)
    effects, compaction = play(flow(talk, (stored,), settings), notes())
    assert listed not in asked(effects)[0].transcript
    assert "what was tried" in asked(effects)[0].transcript
    assert compaction.made[0].text == notes().text + listed
