"""Which histories keep changing, and which only look alike: conversations that grow turn by turn, played in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

import pytest

from app.compaction.chunks import FirstChunk
from app.compaction.planning_state import Succession, changes_every_turn, successions
from app.compaction.view import Conversation
from app.conversation.identity import Head, heads_of, possible_heads, recognise
from app.conversation.messages import Message
from tests.unit.conversations import IDENTITY, conversation, message, turns

DUE = 12
"""Turns from which on a compaction is due."""
LAST = 20
TAIL = 5
"""Messages: two turns and the last user message."""
PEOPLE = ("Ann", "Bob", "Cyd", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon")


@dataclass(frozen=True)
class Asked:
    """One request."""

    messages: list[Message]
    name: str | None = None


@dataclass
class Played:
    """What the proxy would do, request by request; in `spared` and `summarised` by their number."""

    again_after: int | None = None
    """Messages after which a summary is made anew from the root, as cumulative strategies do; None: never."""
    chunks: list[FirstChunk] = field(default_factory=list)
    heads: dict[bytes, Head] = field(default_factory=dict)
    tips: dict[str, int] = field(default_factory=dict)
    spared: list[int] = field(default_factory=list)
    summarised: list[int] = field(default_factory=list)
    requests: int = 0

    def play(self, requests: Iterable[Asked]) -> Played:
        for asked in requests:
            self._ask(conversation(*asked.messages), asked.name)
            self.requests += 1
        return self

    def _ask(self, talk: Conversation, name: str | None) -> None:
        transcript, chain = talk.transcript, talk.chain
        own = name or self._recognised(talk)
        if len(transcript) > 2 * DUE and not self._is_served(talk):
            # In any order: that they were made one after the other is told by their time.
            found = successions(talk, reversed(self.chunks), own, named=name is not None)
            seen = [digest for digest in possible_heads(transcript, chain) if digest in self.heads]
            if changes_every_turn(talk, found, seen):
                self.spared.append(self.requests)
            else:
                self.summarised.append(self.requests)
                self.chunks.append(first_chunk(talk, own, made_at=self.requests))
        self.tips[own] = max(self.tips.get(own, 0), len(transcript.turn_starts))
        for digest, turn in heads_of(transcript, chain):
            self.heads[digest] = Head(digest, own, turn, 0)

    def _recognised(self, talk: Conversation) -> str:
        known = [self.heads[digest] for digest in possible_heads(talk.transcript, talk.chain) if digest in self.heads]
        with_tips = [Head(h.digest, h.conversation_id, h.turn, self.tips[h.conversation_id]) for h in known]
        fresh = partial(self.requests.to_bytes, 4, "big")
        return recognise(talk.chain, with_tips, IDENTITY, fresh).conversation_id

    def _is_served(self, talk: Conversation) -> bool:
        covered = [c.last_index + 1 for c in self.chunks if c.through_digest in talk.chain.positions]
        if not covered:
            return False
        return self.again_after is None or len(talk.transcript) - TAIL - max(covered) < self.again_after


def first_chunk(talk: Conversation, conversation_id: str, made_at: int) -> FirstChunk:
    cut = max(cut for cut in talk.transcript.cuts if cut <= len(talk.transcript) - TAIL)
    last = talk.transcript.messages[cut - 1]
    return FirstChunk(conversation_id, cut - 1, last.digest, talk.chain[cut], len(talk.transcript), made_at)


def spoken(beginning: str, length: int) -> list[Message]:
    """So many turns, of which the last waits for its answer, after a beginning of its own."""
    return [message("user", beginning), message("assistant", "Welcome."), *turns(length)[:-1]]


def told(person: str, name: str | None, lengths: Iterable[int] = range(1, LAST)) -> Iterator[Asked]:
    """A conversation of a template, turn by turn: only who speaks is another."""
    return (Asked(spoken(f"Hello, I am {person}.", length), name) for length in lengths)


def one_after_the_other(talks: list[Iterator[Asked]]) -> Iterator[Asked]:
    return (asked for talk in talks for asked in talk)


def interleaved(talks: list[Iterator[Asked]]) -> Iterator[Asked]:
    return (asked for turn in zip_longest(*talks) for asked in turn if asked is not None)


@pytest.mark.parametrize("again_after", [None, 2, 4, 10], ids=lambda after: f"anew-after-{after}")
@pytest.mark.parametrize("order", [one_after_the_other, interleaved])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("number", [3, 10])
def test_conversations_that_go_on_alike_after_different_beginnings_are_all_summarised(
    number: int, named: bool, order: Callable[[list[Iterator[Asked]]], Iterator[Asked]], again_after: int | None
) -> None:
    played = Played(again_after).play(order([told(each, each if named else None) for each in PEOPLE[:number]]))
    assert played.spared == []
    assert len(played.summarised) >= number


@pytest.mark.parametrize("name", [None, "evaluation"])
def test_long_histories_that_are_asked_once_each_are_all_summarised(name: str | None) -> None:
    """An evaluation: one history, a different beginning, nothing seen of them before."""
    assert Played().play(one_after_the_other([told(each, name, [LAST]) for each in PEOPLE])).spared == []


@pytest.mark.parametrize("again_after", [None, 4], ids=["once", "anew"])
@pytest.mark.parametrize("name", ["one", None])
@pytest.mark.parametrize("lengths", [range(1, LAST), range(DUE, LAST)], ids=["from-the-start", "first-seen-long"])
def test_a_date_in_the_first_message_costs_two_summaries(
    lengths: range, name: str | None, again_after: int | None
) -> None:
    dated = (Asked(spoken(f"It is 09:{length:02}.", length), name) for length in lengths)
    played = Played(again_after).play(dated)
    assert len(played.summarised) == 2
    assert len(played.spared) == LAST - DUE - 2


@pytest.mark.parametrize("name", ["one", None])
def test_a_client_that_clears_old_messages_as_it_goes_is_noticed(name: str | None) -> None:
    """What changes moves with the conversation: each turn one more of its messages loses its text."""

    def requests() -> Iterator[Asked]:
        for length in range(1, LAST):
            said = spoken("Hello.", length)
            cleared = [message("assistant", "Old answer cleared.") for _ in said[3:-10:2]]
            said[3 : 3 + 2 * len(cleared) : 2] = cleared
            yield Asked(said, name)

    assert Played().play(requests()).spared


@pytest.mark.parametrize("steps_a_minute", [1, 3])
@pytest.mark.parametrize("name", ["one", None])
def test_an_agent_whose_history_changes_every_few_steps_is_noticed(name: str | None, steps_a_minute: int) -> None:
    """Within one turn: the history grows by a call and its result, the user says nothing new."""

    def requests() -> Iterator[Asked]:
        for step in range(1, 30):
            steps: list[Message] = []
            for done in range(step + 10):
                result = message("tool", f"result {done} " + "w " * 40, answers=f"c{done}")
                steps += [message("assistant", calls=[f"c{done}"]), result]
            clock = message("user", f"It is 09:{step // steps_a_minute:02}.")
            yield Asked([clock, *turns(2), message("user", "Look."), *steps], name)

    played = Played().play(requests())
    assert len(played.summarised) == 2
    assert played.spared[-1] == 28


def test_a_single_change_ends_no_summaries() -> None:
    """An edit of the first message, in a conversation whose summaries are made anew again and again."""
    before, after = range(1, 30), range(30, 40)
    edited = [*told("Ann", "one", before), *told("Anne", "one", after)]
    played = Played(again_after=4).play(edited)
    assert len([request for request in played.spared if request > 32]) == 0
    assert [request for request in played.summarised if request >= 30]


def test_only_what_this_history_was_before_it_changed_is_evidence() -> None:
    talks = [conversation(*spoken(f"It is 09:0{turn}.", DUE + turn)) for turn in range(2)]
    made = [first_chunk(talk, "one", turn) for turn, talk in enumerate(talks)]
    now = spoken("It is 09:02.", DUE + 2)
    assert successions(conversation(*now), made, "one", named=True)
    last = now[made[1].last_index]
    now[made[1].last_index] = message("assistant", f"{last.text} or not")
    assert successions(conversation(*now), made, "one", named=True) == []
    same = [conversation(*spoken("It is 09:02.", DUE + turn)) for turn in range(3)]
    own = [first_chunk(talk, "one", turn) for turn, talk in enumerate(same[:2])]
    assert successions(same[2], own, "one", named=True) == []


def test_only_the_latest_are_compared() -> None:
    """A message that thousands of histories hold at the same place costs no more than a hundred of them."""
    said = [conversation(*spoken(f"It is 09:{turn:02}.", DUE + turn)) for turn in range(2)]
    early = [first_chunk(talk, "one", turn) for turn, talk in enumerate(said)]
    others = [
        first_chunk(conversation(*spoken(f"Hello, I am number {number}.", DUE)), "one", 10 + number)
        for number in range(100)
    ]
    now = conversation(*spoken("It is 09:02.", DUE + 2))
    assert successions(now, early, "one", named=True)
    assert successions(now, [*early, *others], "one", named=True) == []


def test_what_stands_before_an_agents_turn_does_not_tell_when_its_steps_were_seen() -> None:
    """Every step leaves it, the latest too."""
    steps = [message("assistant", calls=["c"]), message("tool", "result", answers="c")] * 5
    talk = conversation(*turns(5), message("user", "Look."), *steps)
    succession = Succession(known_beyond=8, length=15, lasted=4)
    before_the_turn, at_a_step = talk.chain[10], talk.chain[19]
    assert changes_every_turn(talk, [succession], [])
    assert changes_every_turn(talk, [succession], [at_a_step])
    assert changes_every_turn(talk, [succession], [before_the_turn, at_a_step])
    assert not changes_every_turn(talk, [succession], [before_the_turn])
