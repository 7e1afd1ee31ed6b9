"""The player: holds a recorded conversation again, turn by turn, through the official SDK."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from app.replay.evidence import Message, MessageReader
from app.replay.judge import Judge, SummaryCalls, Violation
from app.replay.recordings import Recording
from app.replay.stage import Provider
from app.replay.tally import Tally

MESSAGE_TOKENS = 4
"""A message beside its texts: 3 and its role."""
ANSWER_SECONDS = 600.0


def _nobody() -> None:
    """For callers who show no progress."""


@dataclass
class Player:
    """Plays against a Steno and judges by the log of the provider behind it."""

    base_url: str
    provider: Provider
    model: str
    count: Callable[[str], int]
    stream: bool | None = None
    """None: every other request."""
    api_key: str = "sk-replay"
    calls: SummaryCalls = field(default_factory=SummaryCalls)
    """Kept over several replays where they share a database."""

    def __post_init__(self) -> None:
        self._sent = b""
        self._reader = MessageReader()
        self._tokens: dict[bytes, int] = {}

    def play(self, recordings: Sequence[Recording], tally: Tally, answered: Callable[[], None] = _nobody) -> Tally:
        """Plays all of them, one after the other; `answered` is called after each request."""
        began = time.monotonic()

        def keep(request: httpx2.Request) -> None:
            self._sent = request.content

        http = openai.DefaultHttpxClient(event_hooks={"request": [keep]}, trust_env=False, timeout=ANSWER_SECONDS)
        with openai.OpenAI(base_url=self.base_url, api_key=self.api_key, max_retries=0, http_client=http) as client:
            for recording in recordings:
                judge = Judge(recording.name, self.calls, self._reader)
                tally.conversations += 1
                for number, end in enumerate(recording.requests, 1):
                    self._ask(client, recording, number, end, judge, tally)
                    answered()
        tally.seconds += time.monotonic() - began
        return tally

    def _ask(
        self, client: openai.OpenAI, recording: Recording, number: int, end: int, judge: Judge, tally: Tally
    ) -> None:
        self.provider.clear_log()
        failure = self._answer(client, recording.messages[:end], number)
        records = self.provider.log
        verdict = judge.judge(number, self._sent, records)
        direct = self._prompt_tokens(self._reader.split(self._sent))
        summaries = sum(record.prompt_tokens or 0 for record in records if record.kind == "summary")
        tally.add(verdict, direct, self._prompt_tokens(verdict.payload), summaries)
        if failure:
            tally.violations.append(Violation(recording.name, number, "no_answer", failure))

    def _answer(self, client: openai.OpenAI, history: Sequence[Any], number: int) -> str | None:
        """Why the client got no answer, or None."""
        create: Any = client.chat.completions.create
        streaming = number % 2 == 0 if self.stream is None else self.stream
        # As extra_body: for `messages` the SDK looks up the type of every value again, most of a long replay's time.
        body = {"model": self.model, "messages": [], "extra_body": {"messages": list(history)}}
        try:
            if streaming:
                reasons = [c.choices[0].finish_reason for c in create(**body, stream=True) if c.choices]
                return None if any(reasons) else "The stream ended without a reason to finish."
            create(**body)
        except openai.OpenAIError as error:
            return f"The client got an error: {error}"
        return None

    def _prompt_tokens(self, messages: Sequence[Message]) -> int:
        return sum(map(self._message_tokens, messages))

    def _message_tokens(self, message: Message) -> int:
        if message.raw not in self._tokens:
            self._tokens[message.raw] = MESSAGE_TOKENS + sum(map(self.count, message.pieces))
        return self._tokens[message.raw]
