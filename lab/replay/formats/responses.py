"""Responses, as the judge reads them: an item is a message, a call or a result, and instructions stand beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lab.replay.formats.format import Element, dicts, elements_of, member_of, object_of, written
from lab.replay.sent import SentMessage

SEALED = frozenset({"reasoning", "compaction"})
CALLS = frozenset(
    {
        "function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call",
        "program", "tool_search_call", "mcp_approval_request",
    }
)  # fmt: skip
"""Those that an item of the client's answers."""
PLACED = frozenset({"additional_tools", "configuration_update"})
CALLED_WITH = ("arguments", "input", "action", "operation", "code")
ANSWERED_WITH = ("output", "result", "reason")
TEXTS = ("text", "refusal", "stdout", "stderr")
TIED = ("id", "status")
"""Members that name an item where it was made."""
IDS = ("id", "call_id", "approval_request_id")


class Responses:
    name = "responses"
    path = "/v1/responses"
    history = "input"
    beside: Sequence[str] = ("instructions", "tools")
    begins_with_user = False

    def raw_messages(self, body: bytes) -> list[bytes]:
        instructions, given = member_of(body, "instructions"), member_of(body, self.history)
        first = [_said("developer", instructions)] if instructions not in (b"", b"null") else []
        return [*first, *([_said("user", given)] if given.startswith(b'"') else elements_of(given))]

    def prompt_of(self, body: bytes) -> bytes:
        return member_of(body, "instructions") + member_of(body, self.history)

    def message(self, raw: bytes) -> SentMessage:
        item = object_of(raw)
        type_ = str(item.get("type", "message"))
        is_call, is_result = type_ in CALLS, _is_result(type_)
        content = next((item[name] for name in ("content", *ANSWERED_WITH) if name in item), None)
        texts = list(_texts(content)) if type_ == "message" or is_result else []
        held = next((item[name] for name in CALLED_WITH if name in item), None)
        called = [str(item.get("name") or ""), written(held)] if is_call else []
        return SentMessage(
            raw=raw,
            role=_role(type_, item),
            pieces=(*texts, *called),
            texts=len(texts),
            plain=not is_call and (isinstance(content, str) or all(map(_is_text, dicts(content)))),
            calls=(_id(type_, item),) if is_call else (),
            answers=(_id(type_, item),) if is_result and _id(type_, item) else (),
            frame=_frame(item, is_call=is_call),
            anywhere=True,
            sealed=type_ in SEALED,
            opaque=type_ != "message" and not is_call and not is_result,
            tied=any(name in item for name in TIED),
        )

    def is_answer(self, elements: Sequence[Element], place: int) -> bool:
        return place > 0 and _is_models(elements[place]) and not _is_models(elements[place - 1])

    def is_instruction(self, element: Element) -> bool:  # noqa: ARG002 - it stands beside them
        return False

    def renamed(self, elements: Sequence[Element], number: int) -> list[Element]:
        return [
            {key: f"{inner}_{number}" if key in IDS and inner else inner for key, inner in element.items()}
            for element in elements
        ]


def _said(role: str, text: bytes) -> bytes:
    """What is no item, as one."""
    return b'{"role":"%b","content":%b}' % (role.encode(), text)


def _role(type_: str, item: Element) -> str:
    if type_ == "message":
        return str(item.get("role"))
    if type_ in PLACED:
        return "developer"
    return "tool" if _is_result(type_) else "assistant"


def _is_result(type_: str) -> bool:
    return type_.endswith("_output") or type_ == "mcp_approval_response"


def _is_models(item: Element) -> bool:
    return _role(str(item.get("type", "message")), item) == "assistant" and item.get("type") != "compaction"


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
