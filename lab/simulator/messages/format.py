"""Messages among the formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from app.tokens.estimate import Count
from lab.simulator.counting import Block, BreakpointCache, Cached
from lab.simulator.format import Accepted, Answer, Content, Format, Json, asked_of, json_content
from lab.simulator.log import Record
from lab.simulator.messages.answers import compose
from lab.simulator.messages.binding import unmarked
from lab.simulator.messages.blocks import CACHED, blocks_of, role_of, texts_in
from lab.simulator.messages.judge import check, is_old
from lab.simulator.messages.refusals import refusal, unreadable
from lab.simulator.rules import Model, Rules
from lab.simulator.script import Fault

VERSION_HEADER = "anthropic-version"
MOST_BYTES = 32 * 1024 * 1024
_ERRORS: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request_error", "Bad Request"),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "Not Found"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your organization's rate limit."),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}
_MODELS = "/v1/models/"


class Messages(Format):
    """`POST /v1/messages`, what it would cost, and a model's window."""

    path = "/v1/messages"
    counting_path = "/v1/messages/count_tokens"

    def __init__(self, count: Count) -> None:
        super().__init__(count)
        self._recent = BreakpointCache()

    def checked(self, record: Record, rules: Rules) -> tuple[Json, Model]:
        if record.method != "POST":
            raise refusal("Method Not Allowed", status=405)
        if len(record.body) > MOST_BYTES:
            raise refusal(_ERRORS[413][1], _ERRORS[413][0], 413)
        request = record.payload
        if not isinstance(request, dict):
            raise unreadable()
        betas = [beta.strip() for beta in (record.header("anthropic-beta") or "").split(",")]
        check(request, betas, ("max_tokens",) if record.path == self.path else (), rules.strict_roles)
        return request, _model_of(request["model"], rules)

    def parts(self, request: Json) -> Sequence[Any]:
        head = [request.get("tools"), request.get("system")]
        return [head, *request["messages"]]

    def conversation(self, request: Json) -> Sequence[Any]:
        system = [{"role": "system", "content": request["system"]}] if request.get("system") else []
        return [
            {"role": role_of(message), "content": "\n".join(filter(None, texts_in(blocks_of(message["content"]))))}
            for message in (*system, *request["messages"])
        ]

    def max_tokens(self, request: Json) -> int | None:
        return int(request["max_tokens"])

    def check_window(self, request: Json, model: Model, tokens: Sequence[int], rules: Rules) -> int:
        """Newer models begin whatever room is left, and stop where the window ends."""
        window, total = rules.window_of(model), sum(tokens)
        asked = asked_of(model, self.max_tokens(request), usual=is_old(request["model"]))
        if total > window:
            raise refusal(f"prompt is too long: {total} tokens > {window} maximum")
        if total + asked > window:
            text = f"input length and `max_tokens` exceed context limit: {total} + {asked} > {window}, "
            raise refusal(f"{text}decrease input length or `max_tokens` and try again")
        return window - total

    def cached(self, request: Json, parts: Sequence[Any], tokens: Sequence[int]) -> Cached:
        """Tokens read from the cache and written to it; what is written for an hour the last mark says."""
        blocks, last = self._blocks(request, parts, tokens)
        found = self._recent.look_up(blocks)
        is_hour = isinstance(last, dict) and last.get("ttl") == "1h"
        return found._replace(hour=found.written) if is_hour else found

    def _blocks(self, request: Json, parts: Sequence[Any], tokens: Sequence[int]) -> tuple[list[Block], Any]:
        """Blocks of a prompt in order, and its last mark. A mark on the whole request stands on the last block."""
        (tools, system), *messages = parts
        head = [*(("tools", tool) for tool in tools or ()), *(("system", block) for block in blocks_of(system))]
        said = [[(message["role"], block) for block in blocks_of(message["content"])] for message in messages]
        blocks, marks = [Block(msgspec.json.encode(request["model"]), 0, is_marked=False)], []
        for held, whole in zip((head, *said), tokens, strict=True):
            sums = [*accumulate((self.counting.texts(block) for _, block in held), initial=0)]
            scale = whole / sums[-1] if sums[-1] else 0
            for (role, block), before, after in zip(held, sums, sums[1:], strict=False):
                found = [mark for mark in _marks_of(block) if mark is not None]
                marks += found
                cost = round(scale * after) - round(scale * before)
                blocks.append(Block(msgspec.json.encode([role, unmarked(block)]), cost, bool(found)))
        if (mark := request.get(CACHED)) is not None:
            marks.append(mark)
            blocks[-1] = blocks[-1]._replace(is_marked=True)
        return blocks, marks[-1] if marks else None

    def answer(self, sequence: int, request: Accepted, fault: Fault, text: str) -> Answer:
        return compose(sequence, request, fault, text, self.count)

    def owns(self, record: Record) -> bool:
        asks_here = record.path.startswith("/v1/models") and record.header(VERSION_HEADER) is not None
        return asks_here or record.path in (self.path, self.counting_path)

    def respond(self, record: Record, rules: Rules) -> Content | None:
        if record.path == self.counting_path:
            return json_content({"input_tokens": self.prompt_tokens(record, rules)})
        if self.owns(record) and record.path.startswith(_MODELS):
            model = _model_of(record.path.removeprefix(_MODELS), rules)
            window = rules.window_of(model)
            told = {"type": "model", "id": model.name, "display_name": model.name, "lifecycle": "active"}
            sizes = {"max_input_tokens": window, "max_tokens": window}
            return json_content({**told, "created_at": "2026-01-01T00:00:00Z", **sizes})
        return None

    def error(self, fault: Fault) -> Json:
        usual = "invalid_request_error" if fault.status < 500 else "api_error"
        kind, message = _ERRORS.get(fault.status, (usual, "The request failed."))
        return {"type": "error", "error": fault.error or {"type": kind, "message": message}}

    def error_content(self, record: Record, error: Json, status: int) -> Content:
        return json_content({**error, "request_id": record.request_id}, status)

    def headers(self, request_id: str, status: int) -> Mapping[str, str]:
        return {
            "request-id": request_id,
            "anthropic-organization-id": "org-simulator",
            "anthropic-ratelimit-requests-limit": "10000",
            "anthropic-ratelimit-requests-remaining": "0" if status == 429 else "9999",
        }


def _marks_of(block: Json) -> Iterator[Any]:
    """Marks on a block, those inside of a result first."""
    if isinstance(inner := block.get("content"), list):
        for each in inner:
            yield from _marks_of(each)
    yield block.get(CACHED)


def _model_of(name: str, rules: Rules) -> Model:
    if (model := rules.model(name)) is None:
        raise refusal(f"model: {name}", "not_found_error", 404)
    return model
