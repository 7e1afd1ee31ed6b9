"""Arms: rules and proxies that may stand between an agent and its provider, each before a simulator of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import msgspec

from lab.benchmarks.relay.environments import Missing, python_environment
from lab.benchmarks.relay.processes import Running, free_port, two_cores
from lab.benchmarks.relay.subjects import Command, Place, Subject, context_guardian
from lab.replay.sent import INSTRUCTION_ROLES, Message
from lab.replay.stage import counter, stage
from lab.simulator import Record, Simulator
from lab.simulator.counting import Counting
from lab.simulator.replies import summary_of, texts_of

MODEL = "agent-model"
"""A name that no table of prices or windows knows."""
CACHED, COMPLETION = 0.1, 5.0
"""Prices of a cached token and of one of an answer; one of a prompt costs 1."""
UNLIMITED = 100_000_000
ENVIRONMENTS = Path(".bench").absolute()
ANSWER_SECONDS = 600.0
SUMMARY = {"x-context-call": "summary"}
SUMMARY_WORDS = 400
ANSWER = "I see."
"""Every answer but a summary: what the agent says costs the same behind each arm."""

PRICES = {"prices": [{"match": "*", "prompt": 1.0, "completion": COMPLETION, "cached": CACHED}]}
NO_RECALL = {"recall": {"max_ratio": 0}}


@dataclass(slots=True)
class Arm:
    """One that stands there now, before a simulator that knows what it is asked."""

    simulator: Simulator
    url: str
    client: httpx2.Client
    rule: Rule | None = None
    asked: str = ""
    """Last message of the request: what does not end with it asks for a summary."""

    def __post_init__(self) -> None:
        self.simulator.reply = self._say

    def _say(self, messages: list[Any]) -> str:
        if "\n".join(texts_of(messages[-1])) == self.asked:
            return ANSWER
        return summary_of(messages, SUMMARY_WORDS, None, self.simulator.count)

    def desk(self) -> Desk:
        counting = Counting(self.simulator.count)
        return Desk(self.simulator.window, lambda messages: sum(map(counting.part, messages)), self._summarised)

    def send(self, history: Sequence[Message], desk: Desk, *, aside: bool = False) -> Sequence[Record]:
        """Everything that the provider received while the request was answered."""
        self.simulator.clear_log()
        self.asked = "\n".join(texts_of(history[-1]))
        given = desk if not aside else replace(desk)
        payload = history if self.rule is None else self.rule(history, given)
        if self.rule is not None:  # It may have put a summary in the place of everything.
            self.asked = "\n".join(texts_of(payload[-1]))
        self._post(payload, {})
        return self.simulator.log

    def is_answer(self, record: Record) -> bool:
        """Whether a request that the provider received is the agent's own, and not made for a summary."""
        messages: Sequence[Message] = record.messages or ({},)
        return record.kind == "chat" and "\n".join(texts_of(messages[-1])) == self.asked

    def _summarised(self, messages: Sequence[Message]) -> str | None:
        return self._post(messages, SUMMARY)

    def _post(self, messages: Sequence[Message], headers: Mapping[str, str]) -> str | None:
        body = b'{"model":"%b","messages":[%b]}' % (MODEL.encode(), b",".join(map(_written, messages)))
        answered = self.client.post(f"{self.url}/chat/completions", content=body, headers=dict(headers))
        if answered.status_code != 200:
            return None
        return str(answered.json()["choices"][0]["message"]["content"])


@contextmanager
def arm(name: str, window: int) -> Iterator[Arm]:
    """The arm of that name: a rule, another's proxy, or a preset of Steno, with `+prices` or `+no-recall` or both.
    Raises `Missing`
    where it is not installed, and `ConfigurationError`."""
    headers = {"authorization": "Bearer sk-rivals", "content-type": "application/json"}
    with httpx2.Client(trust_env=False, timeout=ANSWER_SECONDS, headers=headers) as client:
        if name in RULES or name in PROXIES:
            with _other(name, window, client) as other:
                yield other
            return
        preset, *added = name.split("+")
        compaction = {"preset": preset, **(NO_RECALL if "no-recall" in added else {})}
        with stage(MODEL, window, compaction=compaction, settings=PRICES if "prices" in added else None) as set_up:
            yield Arm(set_up.provider, set_up.base_url, client)


@contextmanager
def _other(name: str, window: int, client: httpx2.Client) -> Iterator[Arm]:
    room = UNLIMITED if name == "never" else window
    simulator = Simulator(window=room, models="any", count=counter(MODEL), max_messages=None)
    with simulator.serve() as behind, TemporaryDirectory() as folder:
        if name in RULES:
            yield Arm(simulator, f"{behind.url}/v1", client, RULES[name])
            return
        place = Place(ENVIRONMENTS, Path(folder), free_port(), behind.port, window)
        command = PROXIES[name](place)
        running = Running(command.arguments, place.folder, command.environment, two_cores().subject)
        try:
            running.wait_until_it_listens(place.port, command.start_seconds)
            yield Arm(simulator, f"http://127.0.0.1:{place.port}/v1", client)
        finally:
            running.stop()


def cliffcompaction(place: Place) -> Command:
    """A threshold of half the window: its documentation's advice for windows of 200,000 to 250,000."""
    program = python_environment(place.environments, "cliffcompaction") / "bin" / "cliff"
    options = ("--threshold", str(place.window // 2), "--openai-upstream", place.upstream_url)
    return Command(
        arguments=(str(program), "serve", "--port", str(place.port), *options),
        version="",
        environment={"CLIFF_ANTHROPIC_UPSTREAM": place.upstream_url},
    )


PROXIES: Mapping[str, Subject] = {"context-guardian": context_guardian, "cliffcompaction": cliffcompaction}


def _written(message: Message) -> bytes:
    return msgspec.json.encode(message)


def install() -> None:
    """Install the proxies of others, where they are not yet: measured they are without a network."""
    for name in PROXIES:
        with suppress(Missing):  # Its row says so.
            python_environment(ENVIRONMENTS, name)


if __name__ == "__main__":
    install()


# Rules by which others fit a history into the window, as plain functions over its messages

LATEST_MESSAGES = 20
LATEST_RESULTS = 10
FULL_RATIO = 0.92
"""Share of the window at which a client such as Claude Code summarises all there is."""
RESERVE_RATIO = 0.05
"""Share of the window that is left for the answer."""
CLEARED = "[Old tool result content cleared]"
ORDER = (
    "Summarise the conversation so far, so that the work can go on from your summary alone: what was asked for, what"
    " was done and found, with all files, names and values, what failed, and what comes next."
)
GOES_ON = "This conversation goes on from an earlier one that was too long. Its summary:"


@dataclass(slots=True)
class Desk:
    """Tools and memory of a rule, for one conversation."""

    window: int
    tokens: Callable[[Sequence[Message]], int]
    """Tokens of a prompt."""
    summarise: Callable[[Sequence[Message]], str | None]
    """Asks the provider; None where it refuses."""
    summary: str = ""
    summarised: int = 0
    """How many messages the summary stands for."""


Rule = Callable[[Sequence[Message], Desk], Sequence[Message]]


def never(history: Sequence[Message], _: Desk) -> Sequence[Message]:
    return history


def keep_last(history: Sequence[Message], _: Desk) -> Sequence[Message]:
    """Instructions and the latest messages, without results whose calls are gone."""
    start = _instructions(history)
    return [*history[:start], *_repaired(history[max(start, len(history) - LATEST_MESSAGES) :])]


def drop_oldest(history: Sequence[Message], desk: Desk) -> Sequence[Message]:
    """Leave out the oldest messages until the window has room for the others."""
    start = first = _instructions(history)
    limit = desk.window * (1 - RESERVE_RATIO)
    left = desk.tokens(history)
    while left > limit and first < len(history) - 1:
        left -= desk.tokens(history[first : first + 1])
        first += 1
    return [*history[:start], *_repaired(history[first:])]


def mask_results(history: Sequence[Message], _: Desk) -> Sequence[Message]:
    """All of it, the results of tools without their content except for the latest."""
    results = [place for place, message in enumerate(history) if message["role"] == "tool"]
    old = frozenset(results[:-LATEST_RESULTS])
    return [{**message, "content": CLEARED} if place in old else message for place, message in enumerate(history)]


def summarise_all(history: Sequence[Message], desk: Desk) -> Sequence[Message]:
    """One summary in the place of everything once the window is nearly full, except for what the user says now. The
    summariser is shown as much as the window has room for."""
    payload = _after_summary(history, desk)
    if desk.tokens(payload) > FULL_RATIO * desk.window:
        stop = len(history) - (history[-1]["role"] == "user")
        order = {"role": "user", "content": ORDER}
        text = desk.summarise(drop_oldest([*payload[: len(payload) - (len(history) - stop)], order], desk))
        if text is not None:
            desk.summary, desk.summarised = text, stop
            return _after_summary(history, desk)
    return payload


RULES: Mapping[str, Rule] = {
    "never": never,
    "keep-last": keep_last,
    "drop-oldest": drop_oldest,
    "full-summary": summarise_all,
    "mask-results": mask_results,
}


def _after_summary(history: Sequence[Message], desk: Desk) -> list[Message]:
    if not desk.summary:
        return list(history)
    told = {"role": "user", "content": f"{GOES_ON}\n\n{desk.summary}"}
    return [*history[: _instructions(history)], told, *history[desk.summarised :]]


def _instructions(history: Sequence[Message]) -> int:
    spoken = (place for place, message in enumerate(history) if message["role"] not in INSTRUCTION_ROLES)
    return next(spoken, len(history))


def _repaired(messages: Sequence[Message]) -> list[Message]:
    """Messages from the first that needs none before it."""
    first = next((place for place, message in enumerate(messages) if message["role"] != "tool"), len(messages))
    return list(messages[first:])
