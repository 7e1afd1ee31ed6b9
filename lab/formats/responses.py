"""Responses: an item is a message, a call or a result, and instructions stand beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lab.formats.format import Called, Element, Reading, ReplayFormat, dicts, events_of, whole_of, written

SEALED = frozenset({"reasoning", "compaction"})
CALLS = frozenset(
    {
        "function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call",
        "program", "tool_search_call", "mcp_approval_request",
    }
)  # fmt: skip
"""Types of calls that an item of the client's answers."""
PLACED = frozenset({"additional_tools", "configuration_update"})
CALLED_WITH = ("arguments", "input", "action", "operation", "code")
ANSWERED_WITH = ("output", "result", "reason")
TEXTS = ("text", "refusal", "stdout", "stderr")
TIED = ("id", "status")
"""Members that name an item where it was made."""


class Responses(ReplayFormat):
    name = "responses"
    path = "/v1/responses"
    history = "input"
    instructions = "instructions"
    instructing_role = "developer"
    beside = ("instructions", "tools")
    ids = ("id", "call_id", "approval_request_id")

    def traits(self, element: Element, read: Reading) -> dict[str, Any]:
        type_, is_call, content = kind_of(element), bool(read.calls), _content(element)
        return {
            "plain": not is_call and (isinstance(content, str) or all(map(_is_text, dicts(content)))),
            "frame": _frame(element, is_call=is_call),
            "anywhere": True,
            "sealed": type_ in SEALED,
            "opaque": type_ != "message" and not is_call and not _is_result(type_),
            "tied": any(name in element for name in TIED),
        }

    def reading(self, element: Element) -> Reading:
        type_ = kind_of(element)
        is_result, id_ = _is_result(type_), _id(type_, element)
        held = next((element[name] for name in CALLED_WITH if name in element), None)
        return Reading(
            role=_role(type_, element),
            texts=tuple(_texts(_content(element))) if type_ == "message" or is_result else (),
            calls=(Called(id_, str(element.get("name") or ""), written(held)),) if type_ in CALLS else (),
            answers=(id_,) if is_result and id_ else (),
        )

    def answered(self, body: bytes) -> str | None:
        ends = [event["response"] for event in events_of(body) if event.get("type") == "response.completed"]
        response = ends[-1] if ends else whole_of(body)
        said = [self.reading(item).text for item in dicts(response.get("output")) if kind_of(item) == "message"]
        return "\n".join(said) if response.get("status") == "completed" else None

    def is_answer(self, elements: Sequence[Element], place: int) -> bool:
        return place > 0 and _is_models(elements[place]) and not _is_models(elements[place - 1])


def kind_of(item: Mapping[str, Any]) -> str:
    """Type of an item; a message need not say that it is one, nor does a reference."""
    kind = item.get("type")
    if kind is None:
        return "item_reference" if set(item) <= {"id", "type"} and "id" in item else "message"
    return str(kind)


def _content(item: Element) -> Any:
    return next((item[name] for name in ("content", *ANSWERED_WITH) if name in item), None)


def _role(type_: str, item: Element) -> str:
    if type_ == "message":
        return str(item.get("role"))
    if type_ in PLACED:
        return "developer"
    return "tool" if _is_result(type_) else "assistant"


def _is_result(type_: str) -> bool:
    return type_.endswith("_output") or type_ == "mcp_approval_response"


def _is_models(item: Element) -> bool:
    return _role(kind_of(item), item) == "assistant" and item.get("type") != "compaction"


def _id(type_: str, item: Element) -> str:
    names = ("id",) if type_ == "mcp_approval_request" else ("call_id", "approval_request_id", "id")
    return next((str(item[name]) for name in names if item.get(name)), "")


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in dicts(content):
        yield from (part[name] for name in TEXTS if isinstance(part.get(name), str))


def _is_text(part: Element) -> bool:
    return any(isinstance(part.get(name), str) for name in TEXTS)


def _frame(item: Element, *, is_call: bool) -> bytes:
    known = ("content", *ANSWERED_WITH, *(CALLED_WITH if is_call else ()))
    parts = [part for name in ("content", *ANSWERED_WITH) for part in dicts(item.get(name)) if not _is_text(part)]
    others = {key: inner for key, inner in item.items() if key not in known and key not in TIED}
    return msgspec.json.encode([others, parts], order="sorted")
