"""How much of what questions are about a model gets when it asks for it: in its own words, up to three times.

    python -m lab.benchmarks.asked FILE [--window 8000] [--calls 0,1,2,3] [--limit 2] [--questions 40]

Long dialogues with questions, such as LoCoMo's, are held through the whole proxy. Then each question is asked, and the
simulator's model calls `recall_search`: with the question, with the best words of the answer, and with both. A question
counts where every remark that holds its answer stands in the last payload letter by letter. The calls are scripted, so
this measures what asking can bring, not whether a model does ask.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any, cast

import httpx2

from lab.replay.clients import ANSWER_SECONDS
from lab.replay.player import Player
from lab.replay.recall import UNTELLING
from lab.replay.recordings import Question, Recording, read_recordings
from lab.replay.stage import Stage, stage
from lab.replay.tables import Grid
from lab.replay.tally import Tally
from lab.simulator import Fault, Record, ScriptedCall, Simulator
from lab.simulator.script import Script

MODEL = "gpt-4o"
SEARCH = "recall_search"
LIMIT = 20
"""Passages that each search may give."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, asked with some number of calls."""

    found: bool
    calls: int
    tokens: int
    """Tokens of what the calls got."""
    seconds: float


class Asker(Script):
    """Script of a model that searches for what a question is about."""

    def __init__(self) -> None:
        super().__init__()
        self.question: Question | None = None
        self.calls = 0

    def take(self, record: Record) -> Fault | None:
        """The next search, as long as there is one to make."""
        question, messages = self.question, record.messages
        if question is not None and record.kind == "chat" and messages and _offers(record):
            made = sum(message["role"] == "tool" for message in messages[_last_user(messages) :])
            if made < self.calls:
                arguments = json.dumps({"query": _queries(question)[made], "limit": LIMIT})
                return Fault(tool_calls=[ScriptedCall(name=SEARCH, arguments=arguments)])
        return super().take(record)


def _offers(record: Record) -> bool:
    return any(tool["function"]["name"] == SEARCH for tool in record.payload.get("tools") or ())


def _last_user(messages: Sequence[Mapping[str, Any]]) -> int:
    return max(place for place, message in enumerate(messages) if message["role"] == "user")


def _queries(question: Question) -> tuple[str, str, str]:
    answer = str(question.answer)
    telling = " ".join(word for word in answer.split() if word.lower() not in UNTELLING)
    return question.text, telling or question.text, f"{question.text} {answer}"


def measure(recording: Recording, set_up: Stage, asker: Asker, calls: Sequence[int], most: int | None) -> list[Asked]:
    """Ask each question of a conversation that was played, with each number of calls."""
    found = []
    with httpx2.Client(trust_env=False, timeout=ANSWER_SECONDS) as client:
        for question in recording.questions[:most]:
            for number in calls:
                asker.question, asker.calls = question, number
                set_up.provider.clear_log()
                body = {**recording.beside, "model": MODEL, "messages": recording.asked(question)}
                began = monotonic()
                answered = client.post(
                    f"{set_up.base_url}/chat/completions", json=body, headers={"authorization": "Bearer sk-replay"}
                )
                seconds = monotonic() - began
                answered.raise_for_status()
                told = answered.json().get("context", {}).get("asked", {})
                last = [record for record in set_up.provider.log if record.kind == "chat"][-1]
                held = "\n".join(str(message.get("content")) for message in last.messages or ())
                remarks = [recording.remarks[name].text for name in question.evidence]
                found.append(Asked(all(remark in held for remark in remarks), number, told.get("tokens", 0), seconds))
    asker.question = None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--window", type=int, default=8_000)
    parser.add_argument("--calls", default="0,1,2,3")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--questions", type=int)
    options = parser.parse_args()
    calls = [int(number) for number in options.calls.split(",")]
    asked: list[Asked] = []
    tally = Tally("asked", options.window)
    for recording in read_recordings(options.file)[: options.limit]:
        with stage(MODEL, options.window, compaction={"ask": "on"}) as set_up:
            player = Player(set_up.base_url, set_up.provider, MODEL, set_up.count)
            whole = recording.followed_by_a_question()
            player.play([whole], tally)
            asker = Asker()
            cast("Simulator", set_up.provider).script = asker
            asked += measure(whole, set_up, asker, calls, options.questions)
    by_calls = {number: [each for each in asked if each.calls == number] for number in calls}
    lines = [
        (
            str(number),
            f"{fmean(each.found for each in made):.1%}",
            f"{fmean(each.tokens for each in made) / max(1, number):,.0f}",
            f"{fmean(each.seconds for each in made):.3f}",
        )
        for number, made in by_calls.items()
    ]
    heads = ("calls", "all evidence in the payload", "tokens a call", "seconds")
    grid = Grid(f"{len(asked) // len(calls)} questions, window {options.window:,}", heads, lines)
    grid.show()
    print(f"prompt prefix kept while the conversations were held: {tally.prefix_kept:.3f}")
    for violation in tally.violations[:10]:
        print(violation)


if __name__ == "__main__":
    main()
