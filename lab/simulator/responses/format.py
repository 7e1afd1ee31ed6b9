"""Responses among the formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.simulator.format import Accepted, Answer, Content, Json, asked_of, json_content
from lab.simulator.log import Record
from lab.simulator.openai import OpenAI, model_of, posted
from lab.simulator.refusals import refusal
from lab.simulator.responses.answers import compose
from lab.simulator.responses.items import kind_of, opened, said_in
from lab.simulator.responses.judge import check, items_of
from lab.simulator.rules import Model, Rules
from lab.simulator.script import Fault

_STATES = {
    "previous_response_id": "Previous response not found.",
    "conversation": "Conversation not found.",
}
"""Members that name what the provider keeps, of which there is nothing here."""


class Responses(OpenAI):
    """`POST /v1/responses`, and what it would cost. Nothing is stored."""

    path = "/v1/responses"

    def checked(self, record: Record, rules: Rules) -> tuple[Json, Model]:
        request = posted(record)
        check(request, rules.strict_roles)
        for name, text in _STATES.items():
            if request.get(name) is not None:
                raise refusal(text, name, f"{name.removesuffix('_id')}_not_found")
        return request, model_of(request, rules)

    def parts(self, request: Json) -> Sequence[Any]:
        head, items = [request.get("tools"), request.get("instructions")], items_of(request.get("input"))
        # The model reads nothing of what the newest compaction stands for.
        compacted = [place for place, item in enumerate(items) if item.get("type") == "compaction"]
        return [head, *map(_unsealed, items[max(compacted, default=0) :])]

    def conversation(self, request: Json) -> Sequence[Any]:
        """Texts of the history by role."""
        instructions = request.get("instructions")
        said: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
        return [*said, *filter(None, map(said_in, items_of(request.get("input"))))]

    def max_tokens(self, request: Json) -> int | None:
        return request.get("max_output_tokens")

    def check_window(self, request: Json, model: Model, tokens: Sequence[int], rules: Rules) -> int:
        window, total = rules.window_of(model), sum(tokens)
        if total + asked_of(model, self.max_tokens(request), usual=False) > window:
            text = "Your input exceeds the context window of this model. Please adjust your input and try again."
            raise refusal(text, "input", "context_length_exceeded")
        return window - total

    def respond(self, record: Record, rules: Rules) -> Content | None:
        if record.path != f"{self.path}/input_tokens":
            return None
        return json_content({"object": "response.input_tokens", "input_tokens": self.prompt_tokens(record, rules)})

    def answer(self, sequence: int, request: Accepted, fault: Fault, text: str) -> Answer:
        return compose(sequence, request, fault, text, self.count)


def _unsealed(item: Json) -> Json:
    """Item as the provider reads it, with what it sealed as text."""
    sealed = item.get("encrypted_content")
    return item if sealed is None else {"text": opened(kind_of(item), sealed)}
