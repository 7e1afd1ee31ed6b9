"""Wires: talks as the clients of each format write them, request by request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.histories.talks import Step, Talk, Traits, Turn

Json = dict[str, Any]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
NAMES = ("read_file", "write_file")
BETAS = "context-management-2025-06-27,interleaved-thinking-2025-05-14"


@dataclass(frozen=True, slots=True)
class Said:
    """An element of a history, and by what it is known again in a payload."""

    element: Json
    marks: tuple[tuple[str, str], ...] = ()
    """Words in its texts; each with the id of the call that it answers, or with an empty one."""
    is_result_text: bool = False
    """True for results of tools that the client writes into a message of the user."""

    @property
    def is_result(self) -> bool:
        return self.is_result_text or any(call for _, call in self.marks)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a talk."""

    history: tuple[Said, ...]
    task: str
    """The text that the turn began with, as it stands in the history."""
    question: str
    """The text with the newest words of the user's own: it, or what he said since."""
    blocks: tuple[str, ...]
    """The newest instructions of each kind that the client put into the user's messages."""
    calls: int
    """How many tools the model is to call now, where the talk goes on from what it answers."""


@dataclass(frozen=True, slots=True)
class Wire:
    """How clients of a format write a talk."""

    traits: Traits
    path: ClassVar[str]
    member: ClassVar[str]
    """Where the history stands."""

    def beside(self) -> Json:
        """The other members of a request."""
        raise NotImplementedError

    def headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    def opening(self) -> list[Said]:
        return []

    def asked(self, turn: Turn) -> list[Said]:
        raise NotImplementedError

    def called(self, step: Step) -> list[Said]:
        raise NotImplementedError

    def came(self, step: Step, ids: Sequence[str]) -> list[Said]:
        """`ids`: of the calls that are answered."""
        raise NotImplementedError

    def answered(self, turn: Turn) -> list[Said]:
        raise NotImplementedError

    def taken(self, answer: Mapping[str, Any]) -> tuple[list[Said], list[str]]:
        """A real answer as the client sends it back, and the ids of the calls in it."""
        raise NotImplementedError(f"Nothing in this format is bound to what was answered: {answer}")

    def whole(self, stream: str) -> Json:
        """The answer that a stream tells; raises `AssertionError` where it does not end well."""
        raise NotImplementedError


@dataclass
class Client:
    """A client's loop over one talk: what it asks, one request after the other."""

    talk: Talk
    wire: Wire
    answer: Json = field(default_factory=dict)
    """What the last request was answered with: to be set before the next one is asked for."""

    def requests(self) -> Iterator[Asked]:
        wire, live = self.wire, self.talk.traits.style == "thinking"
        history = wire.opening()
        blocks: dict[str, str] = {}
        for turn in self.talk.turns:
            blocks |= turn.blocks
            history += wire.asked(turn)
            question = turn.question
            for step in turn.steps:
                yield Asked(tuple(history), turn.question, question, tuple(blocks.values()), len(step.calls))
                ids = [call.id for call in step.calls]
                if live:
                    taken, ids = wire.taken(self.answer)
                    history += taken
                else:
                    history += wire.called(step)
                history += wire.came(step, ids)
                question = step.interjected or question
            yield Asked(tuple(history), turn.question, question, tuple(blocks.values()), 0)
            history += wire.taken(self.answer)[0] if live else wire.answered(turn)


def _text(text: str, kind: str = "text") -> Json:
    return {"type": kind, "text": text}


def _mark(text: str) -> tuple[tuple[str, str], ...]:
    first = text.split(" ", 1)[0]
    return ((first, ""),) if first.startswith("mk") else ()


class ChatCompletions(Wire):
    __slots__ = ()
    path = "/v1/chat/completions"
    member = "messages"

    def beside(self) -> Json:
        functions = [
            {"type": "function", "function": {"name": name, "description": name, "parameters": _SCHEMA}}
            for name in NAMES
        ]
        return {"max_tokens": self.traits.output, **({"tools": functions} if self.traits.style == "tools" else {})}

    def opening(self) -> list[Said]:
        return [Said({"role": "system", "content": f"You are agent {self.traits.number}."})]

    def asked(self, turn: Turn) -> list[Said]:
        before = [text for _, text in turn.blocks] + ([turn.reminder] if turn.reminder else [])
        parts = [*map(_text, [*before, turn.question])]
        if turn.picture:
            parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}})
        marks = ((turn.mark, ""),)
        if self.traits.alternating or turn.picture:
            said = [Said({"role": "user", "content": parts}, marks)]
        else:
            said = [Said({"role": "user", "content": text}) for text in before]
            said.append(Said({"role": "user", "content": turn.question}, marks))
        return said + ([Said({"role": "system", "content": turn.placed})] if turn.placed else [])

    def called(self, step: Step) -> list[Said]:
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
            for c in step.calls
        ]
        made = {"tool_calls": calls} if calls else {}
        return [Said({"role": "assistant", "content": step.said or None, **made}, _mark(step.said))]

    def came(self, step: Step, ids: Sequence[str]) -> list[Said]:
        if step.told:
            content = step.told[0] if len(step.told) == 1 else [*map(_text, step.told)]
            return [Said({"role": "user", "content": content}, ((step.mark, ""),), is_result_text=True)]
        said = [
            Said(
                {"role": "tool", "tool_call_id": ids[place], "content": step.results[place].text},
                ((step.results[place].mark, ids[place]),),
            )
            for place in step.order
        ]
        beside = [text for text in (step.reminder, step.interjected) if text]
        if self.traits.alternating and len(beside) > 1:
            return [*said, Said({"role": "user", "content": [*map(_text, beside)]}, _mark(step.interjected))]
        return [*said, *(Said({"role": "user", "content": text}, _mark(text)) for text in beside)]

    def answered(self, turn: Turn) -> list[Said]:
        return [Said({"role": "assistant", "content": turn.answer}, _mark(turn.answer))]

    def whole(self, stream: str) -> Json:
        assert '"error"' not in stream, stream[-500:]
        assert stream.rstrip().endswith("data: [DONE]"), stream[-500:]
        return {}


class Messages(Wire):
    __slots__ = ()
    path = "/v1/messages"
    member = "messages"

    def beside(self) -> Json:
        tools = [{"name": name, "description": name, "input_schema": _SCHEMA} for name in NAMES]
        thinking: Json = {"type": "adaptive"}
        if self.traits.number % 2 and self.traits.output > 1_100:
            thinking = {"type": "enabled", "budget_tokens": 1_024}
        return {
            "max_tokens": self.traits.output,
            "system": f"You are agent {self.traits.number}.",
            **({"tools": tools} if self.traits.style in ("tools", "thinking") else {}),
            **({"thinking": thinking} if self.traits.style == "thinking" else {}),
        }

    def headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": "2023-06-01", "anthropic-beta": BETAS}

    def asked(self, turn: Turn) -> list[Said]:
        before = [text for _, text in turn.blocks] + ([turn.reminder] if turn.reminder else [])
        blocks = [*map(_text, [*before, turn.question])]
        if turn.picture:
            blocks.append({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}})
        content = blocks if len(blocks) > 1 else turn.question
        said = [Said({"role": "user", "content": content}, ((turn.mark, ""),))]
        return said + ([Said({"role": "system", "content": turn.placed})] if turn.placed else [])

    def called(self, step: Step) -> list[Said]:
        uses = [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in step.calls]
        said = [_text(step.said)] if step.said else []
        return [Said({"role": "assistant", "content": [*said, *uses]}, _mark(step.said))]

    def came(self, step: Step, ids: Sequence[str]) -> list[Said]:
        if step.told:
            content = step.told[0] if len(step.told) == 1 else [*map(_text, step.told)]
            return [Said({"role": "user", "content": content}, ((step.mark, ""),), is_result_text=True)]
        blocks: list[Json] = []
        marks: list[tuple[str, str]] = []
        for place in step.order if len(ids) == len(step.order) else range(len(ids)):
            result = step.results[place]
            held: Any = result.text
            if result.picture:
                picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
                held = [_text(result.text), picture]
            block = {"type": "tool_result", "tool_use_id": ids[place]}
            blocks.append({**block, "content": held} if held else block)
            marks.append((result.mark, ids[place]))
        texts = [text for text in (step.reminder, step.interjected) if text]
        if not blocks:  # The model called nothing, and the turn goes on.
            texts = texts or ["Go on."]
        return [Said({"role": "user", "content": [*blocks, *map(_text, texts)]}, (*marks, *_mark(step.interjected)))]

    def answered(self, turn: Turn) -> list[Said]:
        served: list[Json] = []
        if turn.served:
            id_ = f"srvtoolu_{turn.mark}"
            found = {"type": "web_search_result", "title": "t", "url": "https://x.example", "encrypted_content": "e"}
            served = [
                {"type": "server_tool_use", "id": id_, "name": "web_search", "input": {"query": turn.served[:80]}},
                {"type": "web_search_tool_result", "tool_use_id": id_, "content": [found]},
                _text(turn.served),
            ]
        return [Said({"role": "assistant", "content": [*served, _text(turn.answer)]}, _mark(turn.answer))]

    def taken(self, answer: Mapping[str, Any]) -> tuple[list[Said], list[str]]:
        uses = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        return [Said({"role": "assistant", "content": answer["content"]})], uses

    def whole(self, stream: str) -> Json:
        answer = message_of(events_in(stream))
        assert "event: message_stop" in stream, stream[-500:]
        return answer


class Responses(Wire):
    __slots__ = ()
    path = "/v1/responses"
    member = "input"

    def beside(self) -> Json:
        tools = [{"type": "function", "name": name, "parameters": _SCHEMA} for name in NAMES]
        return {
            "max_output_tokens": self.traits.output,
            "instructions": f"You are agent {self.traits.number}.",
            "store": False,
            **({"tools": tools} if self.traits.style in ("tools", "thinking") else {}),
            **({"include": ["reasoning.encrypted_content"]} if self.traits.style == "thinking" else {}),
        }

    def opening(self) -> list[Said]:
        text = [_text("Permissions: everything.", "input_text")]
        return [Said({"type": "message", "role": "developer", "content": text})] if self.traits.number % 2 else []

    def asked(self, turn: Turn) -> list[Said]:
        before = [text for _, text in turn.blocks] + ([turn.reminder] if turn.reminder else [])
        parts = [_text(text, "input_text") for text in before]
        own = [_text(turn.question, "input_text")]
        if turn.picture:
            own.append({"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"})
        marks = ((turn.mark, ""),)
        if self.traits.alternating:
            said = [Said({"type": "message", "role": "user", "content": [*parts, *own]}, marks)]
        else:
            said = [Said({"type": "message", "role": "user", "content": parts})] if parts else []
            said.append(Said({"type": "message", "role": "user", "content": own}, marks))
        placed = {"type": "message", "role": "developer", "content": [_text(turn.placed, "input_text")]}
        return said + ([Said(placed)] if turn.placed else [])

    def called(self, step: Step) -> list[Said]:
        made = [
            Said({"type": "function_call", "call_id": c.id, "name": c.name, "arguments": json.dumps(c.arguments)})
            for c in step.calls
        ]
        return [*([self._spoken(step.said)] if step.said else []), *made]

    def _spoken(self, text: str) -> Said:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return Said({"type": "message", "role": "assistant", "content": content}, _mark(text))

    def came(self, step: Step, ids: Sequence[str]) -> list[Said]:
        if step.told:
            content = [_text(text, "input_text") for text in step.told]
            told = {"type": "message", "role": "user", "content": content}
            return [Said(told, ((step.mark, ""),), is_result_text=True)]
        said = []
        for place in step.order if len(ids) == len(step.order) else range(len(ids)):
            result = step.results[place]
            held: Any = result.text
            if result.picture:
                picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
                held = [_text(result.text, "input_text"), picture]
            output = {"type": "function_call_output", "call_id": ids[place], "output": held}
            said.append(Said(output, ((result.mark, ids[place]),)))
        beside = [text for text in (step.reminder, step.interjected) if text]
        if not ids and not beside:
            beside = ["Go on."]
        if self.traits.alternating and len(beside) > 1:
            parts = [_text(text, "input_text") for text in beside]
            return [*said, Said({"role": "user", "content": parts}, _mark(step.interjected))]
        return [*said, *(Said({"role": "user", "content": text}, _mark(text)) for text in beside)]

    def answered(self, turn: Turn) -> list[Said]:
        search = {"type": "search", "query": turn.served[:80]}
        served = {"type": "web_search_call", "id": f"ws_{turn.mark}", "status": "completed", "action": search}
        return [*([Said(served), self._spoken(turn.served)] if turn.served else []), self._spoken(turn.answer)]

    def taken(self, answer: Mapping[str, Any]) -> tuple[list[Said], list[str]]:
        calls = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
        return [Said(item) for item in answer["output"]], calls

    def whole(self, stream: str) -> Json:
        events = events_in(stream)
        assert events, stream
        assert events[-1]["type"] in ("response.completed", "response.incomplete"), events[-1]
        answer: Json = events[-1]["response"]
        return answer


class Gemini(Wire):
    __slots__ = ()
    path = "/v1beta/models/{model}:{method}"
    member = "contents"

    def beside(self) -> Json:
        functions = [{"name": name, "description": name, "parameters": _SCHEMA} for name in NAMES]
        return {
            "systemInstruction": {"parts": [{"text": f"You are agent {self.traits.number}."}]},
            "generationConfig": {"maxOutputTokens": self.traits.output},
            **({"tools": [{"functionDeclarations": functions}]} if self.traits.style == "tools" else {}),
        }

    def headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def asked(self, turn: Turn) -> list[Said]:
        before = [text for _, text in turn.blocks] + ([turn.reminder] if turn.reminder else [])
        parts: list[Json] = [{"text": text} for text in [*before, turn.question]]
        if turn.picture:
            parts.append({"inlineData": {"mimeType": "image/png", "data": PIXEL}})
        return [Said({"role": "user", "parts": parts}, ((turn.mark, ""),))]

    def called(self, step: Step) -> list[Said]:
        said = [{"text": step.said}] if step.said else []
        calls = [{"functionCall": {"id": c.id, "name": c.name, "args": c.arguments}} for c in step.calls]
        return [Said({"role": "model", "parts": [*said, *calls]}, _mark(step.said))]

    def came(self, step: Step, ids: Sequence[str]) -> list[Said]:
        if step.told:
            told = [{"text": text} for text in step.told]
            return [Said({"role": "user", "parts": told}, ((step.mark, ""),), is_result_text=True)]
        results = [
            {"id": ids[place], "name": step.calls[place].name, "response": {"output": step.results[place].text}}
            for place in step.order
        ]
        texts = [{"text": text} for text in (step.reminder, step.interjected) if text]
        marks = ((step.results[place].mark, ids[place]) for place in step.order)
        parts: list[Json] = [*({"functionResponse": result} for result in results), *texts]
        return [Said({"role": "user", "parts": parts}, (*marks, *_mark(step.interjected)))]

    def answered(self, turn: Turn) -> list[Said]:
        return [Said({"role": "model", "parts": [{"text": turn.answer}]}, _mark(turn.answer))]

    def whole(self, stream: str) -> Json:
        frames = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line]
        assert "finishReason" in frames[-1]["candidates"][0], stream[-500:]
        return {}


WIRES: Mapping[str, type[Wire]] = {
    "chat_completions": ChatCompletions,
    "messages": Messages,
    "responses": Responses,
    "gemini": Gemini,
}


def events_in(text: str) -> list[Json]:
    """The data of a stream's frames."""
    found = (frame.partition("data: ")[2] for frame in text.split("\n\n"))
    return [json.loads(data) for data in found if data]


def message_of(events: Iterable[Json]) -> Json:
    """The message that a stream tells, with what its last event says of the context. Raises what an event of an error
    says."""
    message: Json = {}
    blocks: list[Json] = []
    for event in events:
        match event:
            case {"type": "message_start", "message": begun}:
                assert not message, "it began twice"
                message = {**begun, "context_status": event.get("context_status")}
            case {"type": "content_block_start", "content_block": block}:
                blocks.append({**block, "written": ""})
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": piece}}:
                blocks[-1]["written"] += piece
            case {"type": "content_block_delta", "delta": grown}:
                [key] = set(grown) - {"type"}
                blocks[-1][key] += grown[key]
            case {"type": "message_delta", "delta": ended, **members}:
                usage = {**message["usage"], **members.pop("usage", {})}
                message |= {**ended, **members, "usage": usage}
            case {"type": "error", "error": error}:
                raise AssertionError(error)
    for block in blocks:
        written = block.pop("written")
        if block["type"] == "tool_use":
            block["input"] = json.loads(written)
    return {**message, "content": blocks}
