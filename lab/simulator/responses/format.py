"""Responses among the formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.core.tokens.estimate import Count
from lab.simulator import openai
from lab.simulator.content import Content, json_content
from lab.simulator.format import Frame
from lab.simulator.log import Record
from lab.simulator.refusals import Refused, no_such_method
from lab.simulator.responses.answers import Answer, compacted, compose
from lab.simulator.responses.judge import items_of
from lab.simulator.responses.refusals import unknown_response
from lab.simulator.responses.requests import AcceptedRequest, Reader
from lab.simulator.responses.store import Store
from lab.simulator.rules import RequestRules
from lab.simulator.script import Fault

_CONVERSATIONS = "/v1/conversations"


class Responses(openai.OpenAI[AcceptedRequest]):
    """`POST /v1/responses`, what it keeps, what it would cost, and its compaction."""

    path = "/v1/responses"
    closing = b""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._store = Store()
        self._reader = Reader(count, self._store)

    def read(self, record: Record, rules: RequestRules, counted: Callable[[int], None]) -> AcceptedRequest:
        return self._reader.read(record, rules, counted)

    def answer(self, sequence: int, request: AcceptedRequest, fault: Fault, text: str, count: Count) -> Answer:
        answer = compose(sequence, request, fault, text, count)
        if request.stores and not request.overflows:
            self._store.keep(answer.finished(), [*request.items, *answer.output], request.conversation_id)
        return answer

    def owns(self, record: Record) -> bool:
        return record.path.startswith((self.path, _CONVERSATIONS))

    def respond(self, record: Record, rules: RequestRules) -> Content | None:
        if record.path == f"{self.path}/compact":
            asked = self._reader.compact(record, rules)
            return json_content(compacted(record.sequence, asked, self._count))
        if record.path == f"{self.path}/input_tokens":
            tokens = self._reader.count(record, rules)
            return json_content({"object": "response.input_tokens", "input_tokens": tokens})
        if record.path == _CONVERSATIONS and record.method == "POST":
            return self._begin(record)
        if record.path.startswith(f"{self.path}/"):
            return json_content(self._kept(record))
        return None

    def error_frame(self, error: Mapping[str, Any], sent: int) -> Frame:
        return Frame("error", {"type": "error", "sequence_number": sent, "error": error})

    def _begin(self, record: Record) -> Content:
        """A new conversation, with items that it may begin with."""
        given = record.payload if isinstance(record.payload, dict) else {}
        own_id = f"conv_{record.sequence:024x}"
        self._store.begin(own_id, items_of(given.get("items")))
        return json_content({"id": own_id, "object": "conversation", "created_at": 0, "metadata": {}})

    def _kept(self, record: Record) -> Mapping[str, Any]:
        """A response that was kept. One in the background is done when it is first asked for."""
        response_id, _, action = record.path.removeprefix(f"{self.path}/").partition("/")
        kept = self._store.response(response_id)
        if kept is None:
            raise Refused(unknown_response(response_id))
        match record.method, action:
            case "GET", "":
                return kept.response
            case "DELETE", "":
                self._store.forget(response_id)
                return {"id": response_id, "object": "response", "deleted": True}
            case "POST", "cancel":
                return self._store.change(response_id, {**kept.response, "status": "cancelled"})
            case _:
                raise Refused(no_such_method(record.method, record.path))
