"""Answers: what the model says, as OpenAI writes a response, whole or in events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.tokens.estimate import Count
from lab.simulator.format import Frame
from lab.simulator.replies import EPOCH, pieces, spoken, summary_of
from lab.simulator.responses.items import item_id
from lab.simulator.responses.refusals import OVERFLOW
from lab.simulator.responses.requests import AcceptedRequest, users_of
from lab.simulator.responses.sealing import seal
from lab.simulator.script import Fault, ScriptedCall

Json = Mapping[str, Any]

THOUGHT = "Let me think about what is asked here."
SUMMARY_WORDS = 200
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Members of a response that repeat the request's, with what stands for one left out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, before it is written."""

    sequence: int
    request: AcceptedRequest
    fault: Fault
    text: str | None
    output: Sequence[Json]
    status: str
    incomplete: str | None
    usage: Json | None

    @property
    def response_id(self) -> str:
        return f"resp_{self.sequence:024x}"

    @property
    def in_background(self) -> bool:
        return bool(self.request.request.get("background"))

    def whole(self) -> Json:
        return self.queued() if self.in_background else self.finished()

    def finished(self) -> Json:
        usage = {} if self.usage is None else {"usage": self.usage}
        return {**self._response(self.status, self.output), **usage, **self.fault.extra}

    def queued(self) -> Json:
        """Answer that comes at once; the rest is to be asked for."""
        return {**self._response("queued", ()), **self.fault.extra}

    def frames(self) -> Iterator[Frame]:
        for number, event in enumerate(self._events()):
            yield Frame(event["type"], {"type": event["type"], "sequence_number": number, **event, **self.fault.extra})

    def _events(self) -> Iterator[dict[str, Any]]:
        begun = self._response("in_progress", ())
        yield {"type": "response.created", "response": begun}
        if self.in_background:
            yield {"type": "response.queued", "response": self._response("queued", ())}
        yield {"type": "response.in_progress", "response": begun}
        if self.request.overflows:
            yield {"type": "error", "error": OVERFLOW.body["error"]}
            return
        for index, item in enumerate(self.output):
            for event in _item_events(item, self.fault.chunk_size):
                yield {**event, "output_index": index}
        usage = {} if self.usage is None else {"usage": self.usage}
        yield {"type": f"response.{self.status}", "response": {**self._response(self.status, self.output), **usage}}

    def _response(self, status: str, output: Sequence[Json]) -> dict[str, Any]:
        given = self.request.request
        conversation = self.request.conversation_id
        done = status == self.status
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": EPOCH + self.sequence,
            "status": status,
            "background": self.in_background,
            "error": None,
            "incomplete_details": {"reason": self.incomplete} if done and self.incomplete else None,
            "model": self.request.model,
            "output": list(output),
            "service_tier": "default",
            **{name: usual if given.get(name) is None else given[name] for name, usual in _ECHOED.items()},
            **({"conversation": {"id": conversation}} if conversation is not None else {}),
            "usage": None,
        }


def compose(sequence: int, request: AcceptedRequest, fault: Fault, text: str, count: Count) -> Answer:
    """The answer with this text, as the fault wants it and within the caller's token limit."""
    if request.compaction == "alone":
        output: list[Json] = [compaction_item(sequence, 0, request, count)]
        usage = usage_of(request, count(str(output[0])), 0)
        return Answer(sequence, request, fault, None, output, "completed", None, usage)
    said, cut = spoken(fault, text, request.max_tokens, count)
    output = _reasoning(sequence, request, fault)
    thought = count(fault.thinking or THOUGHT) if output else 0
    if said is not None or fault.refusal is not None:
        output.append(_message(_next_id("message", sequence, output), said, fault.refusal, cut))
    for call in fault.tool_calls:
        output.append(_call(sequence, call, request, output))
    if request.compaction == "behind":
        output.append(compaction_item(sequence, len(output), request, count))
    spent = count("".join((said or "", fault.refusal or ""))) + sum(
        count(part) for call in fault.tool_calls for part in (call.name, call.arguments)
    )
    usage = {**usage_of(request, spent + thought, thought), **(fault.usage or {})}
    incomplete = fault.finish_reason or ("max_output_tokens" if cut else None)
    status = "incomplete" if incomplete else "completed"
    return Answer(sequence, request, fault, said, output, status, incomplete, None if fault.omit_usage else usage)


def compaction_item(sequence: int, place: int, request: AcceptedRequest, count: Count) -> Json:
    """The provider's own summary of all that came."""
    said = [*request.conversation, {"role": "user", "content": ""}]
    sealed = seal("compaction", summary_of(said, SUMMARY_WORDS, None, count))
    own = item_id("compaction", sequence, place, bound=False)
    return {"id": own, "type": "compaction", "encrypted_content": sealed}


def compacted(sequence: int, request: AcceptedRequest, count: Count) -> Json:
    """The answer of `/responses/compact`: the user's messages, and one item for all else."""
    kept = [_as_output(sequence, place, item) for place, item in enumerate(users_of(request.items))]
    item = compaction_item(sequence, len(kept), request, count)
    return {
        "id": f"resp_{sequence:024x}",
        "object": "response.compaction",
        "created_at": EPOCH + sequence,
        "output": [*kept, item],
        "usage": usage_of(request, count(item["encrypted_content"]), 0),
    }


def usage_of(request: AcceptedRequest, output: int, reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": request.prompt_tokens,
        "input_tokens_details": {"cached_tokens": request.cached_tokens, "cache_write_tokens": request.written_tokens},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": request.prompt_tokens + output,
    }


def _as_output(sequence: int, place: int, item: Json) -> Json:
    content = item["content"]
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    own = item.get("id") or item_id("message", sequence, place, bound=False)
    return {"id": own, "type": "message", "role": "user", "status": "completed", "content": parts}


def _next_id(kind: str, sequence: int, output: Sequence[Json]) -> str:
    bound = bool(output) and output[-1]["type"] == "reasoning"
    return item_id(kind, sequence, len(output), bound)


def _reasoning(sequence: int, request: AcceptedRequest, fault: Fault) -> list[Json]:
    if fault.thinking is None and "-think" not in request.model:
        return []
    given = request.request
    text = fault.thinking or THOUGHT
    summary = (given.get("reasoning") or {}).get("summary")
    item = {
        "id": item_id("reasoning", sequence, 0, bound=False),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}] if summary else [],
    }
    if "reasoning.encrypted_content" in (given.get("include") or ()):
        item["encrypted_content"] = seal("reasoning", text)
    return [item]


def _message(own_id: str, text: str | None, refusal: str | None, cut: bool) -> Json:
    part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": own_id,
        "type": "message",
        "status": "incomplete" if cut else "completed",
        "role": "assistant",
        "content": [part if refusal is None else {"type": "refusal", "refusal": refusal}],
    }


def _call(sequence: int, call: ScriptedCall, request: AcceptedRequest, output: Sequence[Json]) -> Json:
    """Call of the tool as it was declared: a function, or a custom tool with text for input."""
    tools = request.request.get("tools") or ()
    declared = {tool.get("name"): tool["type"] for tool in tools}
    spaces = {held["name"]: tool["name"] for tool in tools if tool["type"] == "namespace" for held in tool["tools"]}
    custom = declared.get(call.name) == "custom"
    kind = "custom_tool_call" if custom else "function_call"
    return {
        "id": _next_id(kind, sequence, output),
        "type": kind,
        "status": "completed",
        "call_id": call.id or f"call_{sequence:06d}{len(output)}",
        "name": call.name,
        **({"namespace": spaces[call.name]} if call.name in spaces else {}),
        ("input" if custom else "arguments"): call.arguments,
    }


def _item_events(item: Json, size: int) -> Iterator[dict[str, Any]]:
    match item["type"]:
        case "message":
            yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", "content": []}}
            yield from _part_events(item["id"], item["content"][0], size)
        case "reasoning":
            yield {"type": "response.output_item.added", "item": {**item, "summary": []}}
            for index, part in enumerate(item["summary"]):
                yield from _summary_events({"item_id": item["id"], "summary_index": index}, part, size)
        case "compaction":
            yield {"type": "response.output_item.added", "item": {**item, "encrypted_content": ""}}
        case kind:
            yield from _call_events(kind, item, size)
    yield {"type": "response.output_item.done", "item": item}


def _part_events(own_id: str, part: Json, size: int) -> Iterator[dict[str, Any]]:
    member = "text" if part["type"] == "output_text" else "refusal"
    logprobs: Json = {"logprobs": []} if member == "text" else {}
    place = {"item_id": own_id, "content_index": 0}
    kind = f"response.{part['type']}"
    yield {"type": "response.content_part.added", **place, "part": {**part, member: ""}}
    for piece in pieces(part[member], size):
        yield {"type": f"{kind}.delta", **place, "delta": piece, **logprobs}
    yield {"type": f"{kind}.done", **place, member: part[member], **logprobs}
    yield {"type": "response.content_part.done", **place, "part": part}


def _summary_events(place: Json, part: Json, size: int) -> Iterator[dict[str, Any]]:
    kind = "response.reasoning_summary"
    yield {"type": f"{kind}_part.added", **place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"], size):
        yield {"type": f"{kind}_text.delta", **place, "delta": piece}
    yield {"type": f"{kind}_text.done", **place, "text": part["text"]}
    yield {"type": f"{kind}_part.done", **place, "part": part}


def _call_events(kind: str, item: Json, size: int) -> Iterator[dict[str, Any]]:
    member = "input" if kind == "custom_tool_call" else "arguments"
    name = f"response.{kind}_{member}"
    yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", member: ""}}
    for piece in pieces(item[member], size):
        yield {"type": f"{name}.delta", "item_id": item["id"], "delta": piece}
    done = {"name": item["name"]} if kind == "function_call" else {}
    yield {"type": f"{name}.done", "item_id": item["id"], **done, member: item[member]}
