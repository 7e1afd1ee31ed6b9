"""Answers: what the model says, as OpenAI writes a response, whole or in events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.tokens.estimate import Count
from lab.simulator.format import Accepted, Answer, Frame, Json
from lab.simulator.replies import EPOCH, THOUGHT, pieces, spoken
from lab.simulator.responses.items import item_id, seal
from lab.simulator.script import Fault, ScriptedCall

_ECHOED: Json = {
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


def compose(sequence: int, accepted: Accepted, fault: Fault, text: str, count: Count) -> Answer:
    """The answer with this text, as the fault wants it and within the caller's token limit."""
    said, cut = spoken(fault, text, accepted.max_tokens, count)
    output = _reasoning(sequence, accepted, fault)
    thought = count(fault.thinking or THOUGHT) if output else 0
    if said is not None:
        output.append(_message(_next_id("message", sequence, output), said, cut))
    for call in fault.tool_calls:
        output.append(_call(sequence, call, accepted.request, output))
    spent = count(said or "") + sum(count(part) for call in fault.tool_calls for part in (call.name, call.arguments))
    usage = {**_usage(accepted, spent + thought, thought), **(fault.usage or {})}
    incomplete = fault.finish_reason or ("max_output_tokens" if cut else None)
    request = accepted.request
    begun = {
        "id": f"resp_{sequence:024x}",
        "object": "response",
        "created_at": EPOCH + sequence,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": accepted.model,
        "output": [],
        "service_tier": "default",
        **{name: usual if request.get(name) is None else request[name] for name, usual in _ECHOED.items()},
        "usage": None,
    }
    whole = {**begun, "status": "incomplete" if incomplete else "completed", "output": output, "usage": usage}
    whole |= {"incomplete_details": {"reason": incomplete}} if incomplete else {}
    frames = (
        Frame(event["type"], {"type": event["type"], "sequence_number": number, **event})
        for number, event in enumerate(_events(begun, whole))
    )
    return Answer(said, usage, whole, frames)


def _events(begun: Json, whole: Json) -> Iterator[Json]:
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        for event in _item_events(item):
            yield {**event, "output_index": index}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _usage(accepted: Accepted, output: int, reasoning: int) -> dict[str, Any]:
    read, written, _ = accepted.cached
    return {
        "input_tokens": accepted.prompt_tokens,
        "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": accepted.prompt_tokens + output,
    }


def _next_id(kind: str, sequence: int, output: Sequence[Json]) -> str:
    bound = bool(output) and output[-1]["type"] == "reasoning"
    return item_id(kind, sequence, len(output), bound)


def _reasoning(sequence: int, accepted: Accepted, fault: Fault) -> list[Json]:
    if fault.thinking is None and "-think" not in accepted.model:
        return []
    text = fault.thinking or THOUGHT
    summary = (accepted.request.get("reasoning") or {}).get("summary")
    item = {
        "id": item_id("reasoning", sequence, 0, bound=False),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}] if summary else [],
    }
    if "reasoning.encrypted_content" in (accepted.request.get("include") or ()):
        item["encrypted_content"] = seal("reasoning", text)
    return [item]


def _message(own_id: str, text: str, cut: bool) -> Json:
    return {
        "id": own_id,
        "type": "message",
        "status": "incomplete" if cut else "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
    }


def _call(sequence: int, call: ScriptedCall, request: Json, output: Sequence[Json]) -> Json:
    """Call of the tool as it was declared: a function, or a custom tool with text for input."""
    tools = request.get("tools") or ()
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


def _item_events(item: Json) -> Iterator[dict[str, Any]]:
    match item["type"]:
        case "message":
            yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", "content": []}}
            yield from _part_events(item["id"], item["content"][0])
        case "reasoning":
            yield {"type": "response.output_item.added", "item": {**item, "summary": []}}
            for index, part in enumerate(item["summary"]):
                yield from _summary_events({"item_id": item["id"], "summary_index": index}, part)
        case kind:
            yield from _call_events(kind, item)
    yield {"type": "response.output_item.done", "item": item}


def _part_events(own_id: str, part: Json) -> Iterator[dict[str, Any]]:
    place = {"item_id": own_id, "content_index": 0}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}


def _summary_events(place: Json, part: Json) -> Iterator[dict[str, Any]]:
    kind = "response.reasoning_summary"
    yield {"type": f"{kind}_part.added", **place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": f"{kind}_text.delta", **place, "delta": piece}
    yield {"type": f"{kind}_text.done", **place, "text": part["text"]}
    yield {"type": f"{kind}_part.done", **place, "part": part}


def _call_events(kind: str, item: Json) -> Iterator[dict[str, Any]]:
    member = "input" if kind == "custom_tool_call" else "arguments"
    name = f"response.{kind}_{member}"
    yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", member: ""}}
    for piece in pieces(item[member]):
        yield {"type": f"{name}.delta", "item_id": item["id"], "delta": piece}
    done = {"name": item["name"]} if kind == "function_call" else {}
    yield {"type": f"{name}.done", "item_id": item["id"], **done, member: item[member]}
