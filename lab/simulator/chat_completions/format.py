"""Chat Completions among the formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.simulator.chat_completions.answers import compose
from lab.simulator.chat_completions.judge import check, check_model
from lab.simulator.counting import OF_A_PROMPT
from lab.simulator.format import Accepted, Answer, Json, asked_of
from lab.simulator.log import Record
from lab.simulator.openai import OpenAI, model_of, posted
from lab.simulator.refusals import Refused, refusal
from lab.simulator.rules import Model, Rules
from lab.simulator.script import Fault


class ChatCompletions(OpenAI):
    path = "/v1/chat/completions"
    closing = b"[DONE]"

    def checked(self, record: Record, rules: Rules) -> tuple[Json, Model]:
        request = posted(record)
        check(request, rules.strict_roles, rules.max_messages)
        model = model_of(request, rules)
        check_model(request, model.unsupported)
        return request, model

    def parts(self, request: Json) -> Sequence[Any]:
        declared = [request.get(name) for name in ("tools", "functions", "response_format")]
        return [declared, *request["messages"]]

    def conversation(self, request: Json) -> Sequence[Any]:
        messages: Sequence[Any] = request["messages"]
        return messages

    def max_tokens(self, request: Json) -> int | None:
        return request.get("max_completion_tokens") or request.get("max_tokens")

    def check_window(self, request: Json, model: Model, tokens: Sequence[int], rules: Rules) -> int:
        window, total = rules.window_of(model), sum(tokens)
        asked = asked_of(model, self.max_tokens(request), usual=True)
        if total + asked > window:
            functions = max(0, tokens[0] - OF_A_PROMPT)
            raise _over_the_window(window, total - functions, functions, asked)
        return window - total

    def answer(self, sequence: int, request: Accepted, fault: Fault, text: str) -> Answer:
        return compose(sequence, request, fault, text, self.count)


def _over_the_window(window: int, messages: int, functions: int, completion: int) -> Refused:
    """The prompt, or the prompt and the completion asked for, exceed the context window."""
    counts = {"messages": messages, "functions": functions, "completion": completion}
    given = [name for name, tokens in counts.items() if tokens or name == "messages"]
    parts = ", ".join(f"{counts[name]} in the {name}" for name in given)
    total = messages + functions + completion
    if completion:
        demand = f"you requested {total} tokens ({parts})"
    else:
        demand = f"your messages resulted in {total} tokens" + (f" ({parts})" if functions else "")
    return refusal(
        f"This model's maximum context length is {window} tokens. However, {demand}. "
        f"Please reduce the length of the {_either(given)}.",
        "messages",
        "context_length_exceeded",
    )


def _either(words: Sequence[str]) -> str:
    """a; a or b; a, b, or c."""
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])}, or {words[-1]}"
