"""Canaries: measures which instructions of two public sets are in the payload after five compactions.

    make canaries

installs both packages without what they need for other things, and runs this. compaction-conformance-kit generates
sessions with rules, limits, facts, goals and preferences, of which some are replaced later; conpact has 15
constraints, and words that it puts before them. The summaries of this measure hold no facts, so all that is found was
kept by code.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import httpx2
import structlog

from lab.replay.stage import Stage, stage
from lab.simulator.replies import texts_of

MODEL, WINDOW, COMPACTIONS = "gpt-4o", 8_000, 5
SEEDS = range(1, 7)
LEAST_HELD = 0.8
"""Share of each kind of canary that has to be in the payload."""
MOST_TURNS = 150
SUMMARY = "The work went on as planned in this part. Nothing of note happened there, and nothing was left open."
ANSWER = " ".join(["We can look at this from several sides and weigh them one after the other."] * 25)
FRAMINGS = {"bare": (False, False), "strict": (True, False), "direct": (False, True), "strict and direct": (True, True)}
"""Arguments of conpact's `render_sc`."""
_REPLACED = re.compile(r"\(before[^()]*\)")
"""Values in a record that a newer one replaced."""


def main() -> int:
    if find_spec("compaction_kit") is None or find_spec("conpact") is None:
        sys.exit("The packages compaction-conformance-kit and conpact are missing: run `make canaries`.")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    kit = measure_kit(import_module("compaction_kit.generated").build_generated_session)
    print(f"\n{kit.table()}\n")
    constraints = measure_constraints(_constraints())
    print("| framing | constraints | letter by letter |\n|---|--:|--:|")
    for framing, (held, asked) in constraints.items():
        print(f"| {framing} | {asked} | {held} |")
    return 0 if kit.passed and all(held == asked for held, asked in constraints.values()) else 1


# A conversation


def payload_after(said: Iterable[str]) -> str:
    """Play a conversation in which the user says this, then fillers through five compactions; return its payload."""
    with ExitStack() as opened:
        around = opened.enter_context(stage(MODEL, WINDOW, summary_edit=lambda _: SUMMARY))
        client = opened.enter_context(httpx2.Client(trust_env=False, timeout=60.0))
        around.provider.reply = lambda _: ANSWER
        history: list[dict[str, str]] = [{"role": "system", "content": "You are a coding assistant."}]
        for text in said:
            _ask(client, around, history, text)
        compactions = 0
        for number in range(MOST_TURNS):
            compactions += _ask(client, around, history, f"Walk me through part {number + 1} of the queue, please.")
            if compactions == COMPACTIONS:
                messages: Sequence[Any] = around.provider.chats[-1].messages or ()
                return "\n".join(text for message in messages for text in texts_of(message))
        raise RuntimeError(f"{compactions} compactions in {MOST_TURNS} turns")


def _ask(client: httpx2.Client, around: Stage, history: list[dict[str, str]], text: str) -> bool:
    """Say this and append the answer; whether a summary was made for it."""
    history.append({"role": "user", "content": text})
    around.provider.clear_log()
    client.post(f"{around.base_url}/chat/completions", json={"model": MODEL, "messages": history}).raise_for_status()
    history.append({"role": "assistant", "content": ANSWER})
    return bool(around.provider.summaries)


# compaction-conformance-kit


@dataclass(slots=True)
class Kit:
    """Canaries of the generated sessions that the payloads have, by kind."""

    planted: Counter[str]
    held: Counter[str]
    """The value is, as the kit's own probe reads it."""
    literal: Counter[str]
    """The whole sentence is."""
    updated: int = 0
    stale: int = 0
    """Updated canaries of which the payload has the old value alone."""
    old_last: int = 0
    """Updated canaries of which the old value is the last one in the payload, not counting `(before turn 41: ...)`."""

    @property
    def passed(self) -> bool:
        return not self.stale and all(self.held[kind] >= LEAST_HELD * self.planted[kind] for kind in self.planted)

    def table(self) -> str:
        lines = ["| kind | planted | value | letter by letter |\n|---|--:|--:|--:|"]
        lines += (
            f"| {kind} | {many} | {self.held[kind]} | {self.literal[kind]} |" for kind, many in self.planted.items()
        )
        return "\n".join(
            [*lines, f"\nUpdated: {self.updated}; old value alone: {self.stale}, unmarked and last: {self.old_last}"]
        )


def measure_kit(build_session: Any, seeds: Iterable[int] = SEEDS) -> Kit:
    found = Kit(Counter(), Counter(), Counter())
    for seed in seeds:
        session, canaries = build_session(seed)
        payload = payload_after(turn.text for turn in session.turns if turn.role == "user")
        for line in _look(found, canaries, payload):
            print(f"seed {seed}: {line}", file=sys.stderr)
    return found


def _look(found: Kit, canaries: Iterable[Any], payload: str) -> Iterator[str]:
    """Count the canaries in the payload; a line for each that is lost or whose old value is the last one."""
    lower = payload.lower()
    for canary in canaries:
        kind = canary.type.value.replace("_", " ")
        is_held = all(token.lower() in lower for token in canary.required_tokens)
        found.planted[kind] += 1
        found.held[kind] += is_held
        found.literal[kind] += canary.content in payload
        if not is_held:
            yield f"lost: {canary.content}"
        if canary.superseded_tokens:
            tokens = canary.required_tokens, canary.superseded_tokens
            newest, oldest = (max(_REPLACED.sub("", lower).rfind(token.lower()) for token in each) for each in tokens)
            found.updated += 1
            found.stale += not is_held and oldest >= 0
            if oldest > newest:
                found.old_last += 1
                yield f"old value last: {canary.content}"


# conpact


def measure_constraints(constraints: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Number of constraints that the payload has letter by letter, and of all, by framing. Each framing has one
    conversation, with a constraint in every other turn."""
    found: dict[str, tuple[int, int]] = {}
    for framing, arguments in FRAMINGS.items():
        texts = [constraints["render_sc"](each["sc"], *arguments) for each in constraints["SCS"]]
        said = [line for number, text in enumerate(texts) for line in (f"Let us look at step {number}.", text)]
        payload = payload_after(said)
        found[framing] = sum(text in payload for text in texts), len(texts)
        for text in texts:
            if text not in payload:
                print(f"{framing}: lost: {text}", file=sys.stderr)
    return found


def _constraints() -> Mapping[str, Any]:
    """Names of conpact's module of constraints, without the package, which imports more than is installed."""
    package = find_spec("conpact")
    folder = Path(((package and package.submodule_search_locations) or [""])[0])
    return run_path(str(folder / "constraints.py"))


if __name__ == "__main__":
    sys.exit(main())
