"""The proof of concept of the system that Steno's additive summaries come from, rebuilt.

First five queries with a trigger of three turns: the compaction comes with the fifth, which finds the topics of the
four before it in a summary. Then fifty queries on ten topics, five each, with a trigger of ten turns: when each preset
compacts, the sawtooth of what it forwards, and at some queries which topics are still in the payload.

The provider is the simulator, whose summaries are first sentences and names, at most 400 words. So this shows what the
strategies keep, and not what a model would write.

    python -m lab.benchmarks.poc
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from app.settings import ConfigurationError
from lab.replay.player import Played, Player
from lab.replay.recordings import Recording
from lab.replay.stage import stage
from lab.replay.tally import Tally

MODEL = "gpt-4o"
WINDOW = 16_000
"""Room for everything: what fires here is the number of turns."""
PRESETS = ("rolling", "default")
PROBES = (11, 21, 31, 41, 46, 50)
TOPICS = (
    "Networking", "Storage", "Backups", "Logging", "Billing",
    "Permissions", "Upgrades", "Monitoring", "Certificates", "Scheduling",
)  # fmt: skip
SERVICES = (
    "Alder", "Aspen", "Bamboo", "Banyan", "Beech", "Birch", "Boxwood", "Cedar", "Cherry", "Chestnut",
    "Clover", "Cypress", "Dogwood", "Ebony", "Elder", "Fennel", "Gorse", "Hawthorn", "Hazel", "Heather",
    "Hemlock", "Hickory", "Holly", "Hornbeam", "Ivy", "Jasmine", "Juniper", "Larch", "Laurel", "Lilac",
    "Linden", "Magnolia", "Mahogany", "Maple", "Mulberry", "Myrtle", "Nettle", "Olive", "Palm", "Pine",
    "Poplar", "Privet", "Redwood", "Rowan", "Spruce", "Sumac", "Sycamore", "Tamarind", "Walnut", "Willow",
)  # fmt: skip
"""Services: each query is about one of them, and about no other."""
PEOPLE = (
    "Ada", "Agnes", "Anton", "Astrid", "Bela", "Berta", "Boris", "Carla", "Cosmo", "Dagmar",
    "Dario", "Edith", "Egon", "Elif", "Emil", "Enzo", "Esther", "Fabio", "Felix", "Frida",
    "Georg", "Greta", "Hanna", "Hugo", "Ilona", "Imre", "Ines", "Jakob", "Jonas", "Judith",
    "Karin", "Klara", "Lars", "Leonie", "Lotte", "Magnus", "Marek", "Milan", "Nadia", "Nils",
    "Oskar", "Paula", "Petra", "Quirin", "Ronja", "Selma", "Thea", "Ulrik", "Viggo", "Zeno",
)  # fmt: skip
"""People: each answer names one of them, later in its first sentence: a summary gives that up first."""
ADVICE = (
    "Look at the events of the last hour first, then at the change that went out before them, and keep a note of"
    " both. If the change was yours, roll it back and wait until the graph is flat again. If it was not, ask the"
    " team that made it, because they know which of the settings depend on each other and which can be turned off"
    " without harm. Do not restart anything before the logs are saved: they are lost with the process, and without"
    " them nobody will be able to tell afterwards what happened. When the worst is over, write down in a few lines"
    " what you saw, what you did and when, and what you would like to have known at the beginning. Put a check into"
    " the release that would have caught it, even a crude one, and make somebody responsible for it by name. Then"
    " look for other places where the same setting is used, since what broke here will break there too, most likely"
    " at night. Tell those who were waiting that it works again, and say honestly if you do not yet know why. In a"
    " week, read your lines once more and strike out what turned out to be wrong. What is left is worth a page in"
    " the handbook, with the command that showed the fault first and the one that repaired it, so that whoever is"
    " called next time need not think of it again."
)


@dataclass(frozen=True, slots=True)
class Query:
    topic: str
    service: str
    person: str

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        asked = f"{self.topic} of {self.service}: what went wrong there, and what should I do about it now?"
        blamed = (
            f"{self.topic} of {self.service} broke down when somebody, namely {self.person}, changed settings by hand."
        )
        return {"role": "user", "content": asked}, {"role": "assistant", "content": f"{blamed} {ADVICE}"}


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one query."""

    query: int
    """Number of the query, from 1."""
    tokens: int
    """Tokens forwarded."""
    compacted: bool
    topics: tuple[str, ...]
    """Topics that stand in the payload, in a summary or verbatim."""
    services: int
    people: int


@dataclass(frozen=True, slots=True)
class Course:
    preset: str
    steps: tuple[Step, ...]
    violations: int

    @property
    def compactions(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.compacted)

    def at(self, queries: Sequence[int]) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.query in queries)


def blocks(topics: int, each: int) -> list[Query]:
    """Queries on `topics` topics, one after the other, with so many each."""
    return [Query(TOPICS[number // each], SERVICES[number], PEOPLE[number]) for number in range(topics * each)]


def course(preset: str, queries: Sequence[Query], turns: int) -> Course:
    """Holds the conversation with a preset that compacts when more than so many whole turns are not summarised."""
    recording = Recording("poc", tuple(message for query in queries for message in query.messages))
    steps: list[Step] = []
    # The first request of a replay is the first query; the last message of the recording is never sent.
    with stage(MODEL, WINDOW, compaction=settings(preset, turns)) as set_up:
        player = Player(set_up.base_url, set_up.provider, MODEL, set_up.count, stream=False)
        tally = player.play([recording], Tally(preset, WINDOW), lambda played: steps.append(_step(played)))
    return Course(preset, tuple(steps), len(tally.violations))


def settings(preset: str, turns: int) -> Mapping[str, Any]:
    """Settings of the section `compaction`. The tail is one turn and the current one, as in the experiment. Nothing
    is recalled: it is about what summaries keep."""
    bounds = {"trigger": {"turns": turns}, "tail": {"turns": 1, "fill_ratio": 0}, "floor_tokens": 0}
    return {"preset": preset, "recall": {"max_ratio": 0}, **bounds}


def _step(played: Played) -> Step:
    verdict = played.verdict
    text = "\n".join(piece for message in verdict.payload for piece in message.pieces)
    return Step(
        query=played.request,
        tokens=played.forwarded,
        compacted=verdict.compaction,
        topics=tuple(topic for topic in TOPICS if topic in text),
        services=_named(SERVICES, text),
        people=_named(PEOPLE, text),
    )


def _named(names: Sequence[str], text: str) -> int:
    words = frozenset(re.findall(r"\w+", text))
    return len(words.intersection(names))


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        print("Five queries on five topics, a trigger of 3 turns\n")
        for preset in PRESETS:
            _print_small(course(preset, blocks(5, 1), turns=3))
        print("\nFifty queries, ten topics of five, a trigger of 10 turns")
        for preset in PRESETS:
            _print_large(course(preset, blocks(10, 5), turns=10))
    except ConfigurationError as error:
        raise SystemExit(str(error)) from error


def _print_small(small: Course) -> None:
    last = small.steps[-1]
    before = [topic for topic in last.topics if topic != TOPICS[4]]
    turns = ", ".join(str(step.query) for step in small.compactions) or "none"
    print(f"{small.preset}: compaction at query {turns}; topics kept of the queries before: {len(before)}")


def _print_large(large: Course) -> None:
    print(f"\n{large.preset}\n\n| compaction at query | tokens before | tokens after |\n| ---: | ---: | ---: |")
    for step in large.compactions:
        before = large.steps[step.query - 2].tokens if step.query > 1 else 0
        print(f"| {step.query} | {before:,} | {step.tokens:,} |")
    print(
        "\n| probe at query | tokens | topics in the payload | services | people |\n| ---: | ---: | --- | ---: | ---: |"
    )
    for step in large.at(PROBES):
        topics = f"{len(step.topics)}: {', '.join(step.topics)}"
        names = f"{step.services} of {step.query} | {step.people} of {step.query - 1}"
        print(f"| {step.query} | {step.tokens:,} | {topics} | {names} |")
    print("\nTokens forwarded at each query, * with a compaction:")
    print(" ".join(f"{step.tokens}{'*' * step.compacted}" for step in large.steps))
    print(f"Violations: {large.violations}")


if __name__ == "__main__":
    main()
