"""Playing: talks go turn by turn through a real Steno, in a window that is soon too small, to a strict provider."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx2

from app.tokens.tokenizer import Tokenizer
from lab.simulator import Model, Record, ScriptedCall, Simulator
from tests.e2e.running import start
from tests.histories.items import requests_of_items
from tests.histories.judge import OVER_THE_WINDOW, Judge, Violation, leading
from tests.histories.talks import WINDOWS, Talk, Traits, talk_of
from tests.histories.wires import NAMES, WIRES, Asked, Client, Json

TABLES = Path(__file__).parents[2] / ".tables"
BASES = {"chat_completions": "gpt-4o", "messages": "claude-opus-5", "responses": "gpt-4o", "gemini": "gemini-2.5-flash"}
THINKING = {"messages": "claude-bind", "responses": "gpt-think"}
STRICT = "strict-"
"""What the names of models begin with that refuse two messages of the user in a row."""
WISH = "x-wish"
"""The header by which a client tells the simulator how many tools the model calls."""
STORED_SECONDS = 10.0


@dataclass
class Told:
    """What talks came to."""

    talks: int = 0
    requests: int = 0
    compacted: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    overflows: int = 0
    """Payloads that were too large and were mended before the client heard of it."""
    kinds: Counter[str] = field(default_factory=Counter)
    """In how many talks something went wrong, by what it is."""
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{self.talks} histories, {self.requests} requests, {self.compacted} changed, {self.overflows} mended"
        return f"{counts}; {dict(self.statuses)}; wrong: {dict(self.kinds)}"


def model_of(traits: Traits) -> str:
    base = THINKING[traits.format] if traits.style == "thinking" else BASES[traits.format]
    counts = "sum" if traits.counts_answer else "stop"
    return f"{STRICT if traits.alternating else ''}{base}-{traits.window}-{counts}"


def models() -> Iterator[Model]:
    for base in {*BASES.values(), *THINKING.values()}:
        for window in WINDOWS:
            for counts in (True, False):
                name = f"{base}-{window}-{'sum' if counts else 'stop'}"
                yield Model(name, window, counts_answer=counts)
                yield Model(f"{STRICT}{name}", window, counts_answer=counts)


@dataclass
class Stage:
    """One Steno, and two providers behind it: the other one is strict about who speaks when."""

    url: str
    providers: Sequence[Simulator]


@contextmanager
def stage() -> Iterator[Stage]:
    count = Tokenizer(TABLES).counter("o200k_base")
    usual, strict = (
        Simulator(models=[*models()], count=count, lenient_text=True, strict_roles=alternating)
        for alternating in (False, True)
    )
    for number in (1, 2, 3):
        calls = [ScriptedCall(name=NAMES[0], arguments='{"path": "src/part_1.md"}') for _ in range(number)]
        usual.when(partial(_wishes, number), tool_calls=calls)
    with ExitStack() as opened:
        first, second = (opened.enter_context(provider.serve()) for provider in (usual, strict))
        steno = start(
            first.url,
            {
                "models": [{"match": f"*-{window}-*", "context_window": window} for window in WINDOWS],
                "upstreams": {
                    "strict": {
                        "base_url": f"{second.url}/v1",
                        "models": [f"{STRICT}*"],
                        "discover_windows": False,
                    },
                    "google": {"base_url": first.url, "models": ["gemini-*"], "discover_windows": False},
                },
            },
        )
        opened.callback(steno.stop)
        yield Stage(steno.url, (usual, strict))


def _wishes(number: int, record: Record) -> bool:
    return record.kind == "chat" and record.header(WISH) == str(number)


def play(on: Stage, seed: int, number: int, told: Told) -> None:
    """One talk to its end, or to the first request that is not answered."""
    talk = talk_of(seed, number)
    traits = talk.traits
    provider = on.providers[traits.alternating]
    provider.clear_log()
    key = f"sk-{seed}-{number}"
    told.talks += 1
    with httpx2.Client(trust_env=False, timeout=60.0) as client:
        player = _Player(on, provider, talk, key, client)
        found = [*player.violations()]
    for kind, alike in groupby(sorted(found, key=attrgetter("kind")), key=attrgetter("kind")):
        first, *others = alike
        told.kinds[kind] += 1
        told.failures.append(
            f"{kind}: {first.sentence}\n  in history {number} of seed {seed} ({traits}), request {first.request}"
            f" and {len(others)} times more; again: make histories SEED={seed} ONLY={number}"
        )
    told.requests += player.number
    told.statuses += player.statuses
    told.compacted += player.judge.compacted
    told.overflows += player.judge.overflows


@dataclass
class _Player:
    on: Stage
    provider: Simulator
    talk: Talk
    key: str
    client: httpx2.Client
    number: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    _conversation: str = ""
    _answer: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.judge = Judge(self.talk.traits, self._left_out)
        self._wire = WIRES[self.talk.traits.format](self.talk.traits)
        self._history: Sequence[Any] = ()

    def violations(self) -> Iterator[Violation]:
        traits = self.talk.traits
        conversation = Client(self.talk, self._wire)
        requests = requests_of_items(self.talk.seed) if traits.style == "items" else conversation.requests()
        for asked in requests:
            self.number += 1
            self._history = asked.history
            before = max((record.sequence for record in self.provider.log), default=0)
            failure = self._ask(asked)
            conversation.answer = self._answer
            records = [record for record in self.provider.log if record.sequence > before]
            self.judge.learn([record for record in self.provider.log if record.kind == "summary"])
            chats = [record for record in records if record.kind == "chat"]
            refused = chats[-1].refusal if chats else None
            if failure and traits.may_overflow and OVER_THE_WINDOW.search(refused or ""):
                return  # This preset leaves to the provider what does not fit.
            yield from self.judge.judge(self.number, asked, self._wire.member, records)
            if failure:
                yield Violation(self.number, "unanswered", failure)
                return

    def _ask(self, asked: Asked) -> str:
        """Why there is no answer; empty where there is one."""
        traits, wire = self.talk.traits, self._wire
        stream = bool(self.number % 2)
        body = {**wire.beside(), wire.member: [s.element for s in asked.history]}
        path = wire.path
        if traits.format == "gemini":
            method = "streamGenerateContent?alt=sse" if stream else "generateContent"
            path = path.format(model=model_of(traits), method=method)
        else:
            body |= {"model": model_of(traits)} | ({"stream": True} if stream else {})
        headers = {"content-type": "application/json", "x-context-preset": traits.preset, **wire.headers(self.key)}
        if traits.style == "thinking":
            headers[WISH] = str(asked.calls)
        answer = self.client.post(f"{self.on.url}{path}", content=json.dumps(body).encode(), headers=headers)
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text[:300]}"
        self.statuses[answer.headers.get("x-context-status", "")] += 1
        self._conversation = answer.headers.get("x-context-conversation-id", "")
        try:
            self._answer = wire.whole(answer.text) if stream else answer.json()
        except AssertionError as error:
            return f"The stream does not end well: {error}"[:300]
        return ""

    def _left_out(self, messages: int) -> dict[int, str]:
        """The places that Steno names as left out or cleared, each with which of the two, once it has stored what it
        did to a history of that length."""
        lead = leading(self._history)
        deadline = time.monotonic() + STORED_SECONDS
        while self._conversation and time.monotonic() < deadline:
            found = self.client.get(
                f"{self.on.url}/context/conversations/{self._conversation}/coverage",
                headers={"authorization": f"Bearer {self.key}"},
            )
            parts = found.json()["parts"] if found.status_code == 200 else ()
            if parts and lead + 1 + max(part.get("last_index", -1) for part in parts) == messages:
                return {
                    lead + index: part["kind"]
                    for part in parts
                    if part["kind"] in ("pruned", "cleared")
                    for index in range(part["first_index"], part["last_index"] + 1)
                }
            time.sleep(0.02)
        return {}
