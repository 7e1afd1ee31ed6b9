"""Errors of estimates against the prompt sizes that providers reported, by format and family of models.

    python -m lab.benchmarks.accuracy FORMAT ROWS

ROWS are recorded requests of that format, a JSON object a line: `model`, `host`, `request` and
`expected_prompt_tokens` (docs/estimates.md). An estimate is what is expected of a model that nothing was learnt of:
counted, and brought into the model's own tokens by its family's prior. Requests are told apart by what is known of
their prompts: all of it; all but what a schema costs, or pictures or files; or too little, as the provider keeps a part
of the history or adds to it what its own tools found. Of the last nothing is expected, so they are only numbered.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from app.conversation.identity import Identity
from app.conversation.messages import Message
from app.formats.chat_completions import CHAT_COMPLETIONS
from app.formats.format import WireFormat
from app.formats.paths import FORMATS
from app.formats.raw_json import Unreadable
from app.formats.reader import MessageReader
from app.formats.requests import WireRequest
from app.tokens.calibration import claude_version, prior_for
from app.tokens.estimator import Estimator
from app.tokens.tokenizer import Tokenizer

IDENTITY = Identity(b"benchmark")
KNOWN, SCHEMA, MEDIA = "known", "with a schema", "with pictures or files"
CLOSE = (0.05, 0.1)


def steno(request: dict[str, Any]) -> int:
    """Steno's estimate of a Chat Completions request, from the bytes it would receive."""
    return _chat_completions().count(request, request["model"], "")[2]


@cache
def _chat_completions() -> Scorer:
    return Scorer(CHAT_COMPLETIONS)


class Scored(NamedTuple):
    family: str
    sort: str
    """Empty for a request of whose prompt too little is known."""
    estimate: int
    reported: int

    @property
    def error(self) -> float:
        return abs(self.estimate - self.reported) / self.reported


class Scorer:
    def __init__(self, wire: WireFormat) -> None:
        self._wire = wire
        self._estimator = Estimator(Tokenizer())
        self._reader = MessageReader(IDENTITY, wire.message)

    def count(self, body: dict[str, Any], model: str, host: str) -> tuple[WireRequest, Sequence[Message], int]:
        """The request, its messages and their estimate, without a prior. Raises `Unreadable`."""
        request = self._wire.read(msgspec.json.encode(body))
        messages, rules = self._reader.read(request.raw_messages), self._wire.token_rules
        asked = model, messages, request.declared, request.declarations
        costs = self._estimator.prompt(*asked, host, token_rules=rules).costs()
        return request, messages, sum(costs.messages) + costs.fixed

    def score(self, row: dict[str, Any]) -> Scored | None:
        """A request's estimate beside its size; None for a request that Steno cannot read."""
        model = row["model"]
        try:
            request, messages, counted = self.count(row["request"] | {"model": model}, model, row["host"])
        except Unreadable:
            return None
        prior = prior_for(model, self._estimator.formula(self._wire.token_rules(model)), request.has_tools)
        told = round(prior.offset + prior.ratio * counted)
        holds_media = any(message.media for message in messages)
        return Scored(family(model, row["host"]), sort_of(request, holds_media), told, row["expected_prompt_tokens"])


def sort_of(request: WireRequest, holds_media: bool) -> str:
    declared = request.declarations()
    if request.hands_off is not None or declared.others:
        return ""
    if holds_media:
        return MEDIA
    if declared.response_format is not None:
        return SCHEMA
    return KNOWN if request.is_typical else ""


def family(model: str, host: str) -> str:
    name = model.lower().rsplit("/", 1)[-1].removeprefix("openai.")
    if name.startswith("gemini"):
        return "Gemini 2.0 and Vertex" if "-2.0" in name or host.startswith("aiplatform") else "Gemini from 2.5 on"
    if (version := claude_version(name)) is not None:
        return "Claude from 4.7 on" if version >= (4, 7) else "Claude up to 4.6"
    if name.startswith(("gpt-3", "gpt-4")):
        return "gpt-4 and before"
    if name.startswith(("gpt-5", "gpt-oss")):
        return "gpt-5" if name.startswith("gpt-5") else "gpt-oss"
    return "o-series" if name[:1] == "o" and name[1:2].isdigit() else name.partition("-")[0]


def lines(scored: Iterable[Scored]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for one in scored:
        groups[one.sort, one.family].append(one)
    yield "| requests | family | rows | exact | mean error | within 5 % | within 10 % |"
    yield "|---|---|---|---|---|---|---|"
    for sort in (KNOWN, SCHEMA, MEDIA):
        for (own, name), group in sorted(groups.items()):
            if own == sort:
                exact = share(one.error == 0 for one in group)
                close = " | ".join(share(one.error <= bound for one in group) for bound in CLOSE)
                off = f"{100 * mean(one.error for one in group):.1f}"
                yield f"| {sort} | {name} | {len(group)} | {exact} | {off} | {close} |"


def share(holds: Iterable[bool]) -> str:
    return f"{100 * mean(map(float, holds)):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Score estimates on recorded requests of a format.")
    parser.add_argument("format", choices=[wire.name for wire in FORMATS])
    parser.add_argument("rows", type=Path)
    asked = parser.parse_args()
    scorer = Scorer(next(wire for wire in FORMATS if wire.name == asked.format))
    rows = [json.loads(line) for line in asked.rows.read_text().splitlines()]
    scored = [one for row in rows if (one := scorer.score(row))]
    print("\n".join(lines(scored)))
    little = sum(not one.sort for one in scored)
    print(f"\n{len(rows)} rows; of {little} too little is known, {len(rows) - len(scored)} could not be read")


if __name__ == "__main__":
    main()
