"""The player: holds a recorded conversation again, turn by turn, as a client does, and judges each turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
import msgspec

from lab.replay.evidence import Report, SentMessages
from lab.replay.judge import Judge, SummaryCalls, Violation
from lab.replay.recordings import Recording
from lab.replay.sent import Message, SentMessage, answered, answers_in
from lab.replay.tally import Tally
from lab.simulator import Simulator

CREDENTIAL = {"authorization": "Bearer sk-replay"}
ANSWER_SECONDS = 600.0
LONGEST_ERROR = 300
"""Characters of an error's body that a failure quotes."""
MESSAGE_TOKENS = 4
"""A message beside its texts: 3 and its role."""
COVERAGE_SECONDS = 10.0
"""Steno stores what was done to a request shortly after it has answered."""
COVERAGE_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Answer:
    sent: bytes
    failure: str | None = None
    """Reason why the client got no answer."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Member `context` of the answer."""


@dataclass
class Player:
    """Plays against a Steno, every other request as a stream, and judges by the log of the provider behind it."""

    base_url: str
    provider: Simulator
    model: str
    count: Callable[[str], int]

    def __post_init__(self) -> None:
        self._calls, self._reader = SummaryCalls(), SentMessages()
        self._tokens: dict[bytes, int] = {}
        self._http: httpx2.Client

    def play(self, recordings: Sequence[Recording], tally: Tally) -> Tally:
        """Plays all of them, one after the other."""
        with httpx2.Client(trust_env=False) as self._http:
            for recording in recordings:
                judge = Judge(recording.name, self._calls, self._reader)
                for number, end in enumerate(recording.requests, 1):
                    self._ask(number, recording, recording.messages[:end], judge, tally)
        return tally

    def _ask(self, number: int, recording: Recording, messages: Sequence[Message], judge: Judge, tally: Tally) -> None:
        self.provider.clear_log()
        answer = self._sent(messages, stream=number % 2 == 0)
        records = self.provider.log
        history = self._reader.split(answer.sent)
        verdict = judge.judge(number, answer.sent, records, self._report(answer, len(history)))
        direct, forwarded = self._prompt_tokens(history), self._prompt_tokens(verdict.payload)
        tally.add(
            verdict, direct, forwarded, sum(record.prompt_tokens or 0 for record in records if record.kind == "summary")
        )
        tally.object(verdict.violations)
        if answer.failure:
            tally.errors += 1
            tally.object([Violation(recording.name, number, "no_answer", answer.failure)])

    def _sent(self, messages: Sequence[Message], *, stream: bool) -> Answer:
        """Times out after `ANSWER_SECONDS` without a byte."""
        body = {"model": self.model, **({"stream": True} if stream else {}), "messages": messages}
        sent = msgspec.json.encode(body)
        headers = {"content-type": "application/json", **CREDENTIAL}
        try:
            answer = self._http.post(
                f"{self.base_url}/chat/completions", content=sent, headers=headers, timeout=ANSWER_SECONDS
            )
        except httpx2.HTTPError as error:
            return Answer(sent, f"The client got an error: {error!r}")
        if answer.status_code >= 300:
            return Answer(sent, f"The client got an error: {answer.status_code} {answer.text[:LONGEST_ERROR]}")
        told = (each["context"] for each in answers_in(answer.content) if each.get("context"))
        is_whole = answered(answer.content) is not None
        return Answer(sent, None if is_whole else "The answer ended without a reason to finish.", next(told, {}))

    def _report(self, answer: Answer, messages: int) -> Report:
        actions = frozenset(map(str, answer.context.get("actions") or ()))
        conversation = answer.context.get("conversation_id")
        if not conversation:
            return Report()
        return Report(actions, partial(self._coverage, conversation, messages), answer.context.get("status"))

    def _coverage(self, conversation: str, messages: int) -> Sequence[Mapping[str, Any]]:
        """The parts of the payload, once they are those of a request with so many messages; none if they never are."""
        root = self.base_url.removesuffix("/v1")
        deadline = time.monotonic() + COVERAGE_SECONDS
        while time.monotonic() < deadline:
            answer = self._http.get(
                f"{root}/context/conversations/{conversation}/coverage",
                headers=CREDENTIAL,
            )
            parts: Sequence[Mapping[str, Any]] = answer.json()["parts"] if answer.status_code == 200 else ()
            if parts and _messages_in(parts) == messages:
                return parts
            time.sleep(COVERAGE_PAUSE)
        return ()

    def _prompt_tokens(self, messages: Sequence[SentMessage]) -> int:
        return sum(map(self._message_tokens, messages))

    def _message_tokens(self, message: SentMessage) -> int:
        if message.raw not in self._tokens:
            self._tokens[message.raw] = MESSAGE_TOKENS + sum(map(self.count, message.pieces))
        return self._tokens[message.raw]


def _messages_in(parts: Sequence[Mapping[str, Any]]) -> int:
    instructions = next((part["messages"] for part in parts if part["kind"] == "instructions"), 0)
    return int(instructions) + max((part.get("last_index", -1) for part in parts), default=-1) + 1
