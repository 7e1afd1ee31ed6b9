"""Chat Completions among the formats."""

from __future__ import annotations

from collections.abc import Callable

from app.core.tokens.estimate import Count
from lab.simulator import openai
from lab.simulator.chat_completions.answers import Answer, compose
from lab.simulator.chat_completions.requests import AcceptedRequest, Reader
from lab.simulator.log import Record
from lab.simulator.rules import RequestRules
from lab.simulator.script import Fault


class ChatCompletions(openai.OpenAI[AcceptedRequest]):
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"
    closing = b"[DONE]"

    def __init__(self, count: Count) -> None:
        self._reader = Reader(count)

    def read(self, record: Record, rules: RequestRules, counted: Callable[[int], None]) -> AcceptedRequest:
        return self._reader.read(record.body, rules, counted)

    def answer(self, sequence: int, request: AcceptedRequest, fault: Fault, text: str, count: Count) -> Answer:
        return compose(sequence, request, fault, text, count)
