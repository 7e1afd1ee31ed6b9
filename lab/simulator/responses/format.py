"""Responses among the formats."""

from __future__ import annotations

from collections.abc import Callable

from app.core.tokens.estimate import Count
from lab.simulator import openai
from lab.simulator.format import Content, json_content
from lab.simulator.log import Record
from lab.simulator.responses.answers import Answer, compose
from lab.simulator.responses.requests import AcceptedRequest, Reader
from lab.simulator.rules import RequestRules
from lab.simulator.script import Fault


class Responses(openai.OpenAI[AcceptedRequest]):
    """`POST /v1/responses`, and what it would cost. Nothing is stored."""

    path = "/v1/responses"
    closing = b""

    def __init__(self, count: Count) -> None:
        self._reader = Reader(count)

    def read(self, record: Record, rules: RequestRules, counted: Callable[[int], None]) -> AcceptedRequest:
        return self._reader.read(record, rules, counted)

    def answer(self, sequence: int, request: AcceptedRequest, fault: Fault, text: str, count: Count) -> Answer:
        return compose(sequence, request, fault, text, count)

    def respond(self, record: Record, rules: RequestRules) -> Content | None:
        if record.path != f"{self.path}/input_tokens":
            return None
        tokens = self._reader.count(record, rules)
        return json_content({"object": "response.input_tokens", "input_tokens": tokens})
