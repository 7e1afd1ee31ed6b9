"""The shape of items: known types and members, ids, content by role, and what only the provider can have sealed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lab.formats.responses import kind_of
from lab.simulator.refusals import Refused, missing, unknown, wrong_type, wrong_value
from lab.simulator.responses.items import (
    IN_OUTPUTS,
    MEMBERS,
    PART_MEMBERS,
    PARTS,
    PREFIXES,
    REQUIRED,
    ROLES,
)
from lab.simulator.responses.refusals import duplicate, no_such_item, not_verified, trigger_not_last, wrong_prefix
from lab.simulator.responses.sealing import opened

Json = Mapping[str, Any]


def check_items(items: Sequence[Any], stored: Collection[str]) -> None:
    """`stored`: ids of the items that the provider keeps."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        path = f"input[{index}]"
        if not isinstance(item, dict):
            raise Refused(wrong_type(path, "an object", item))
        kind = _check_members(path, item)
        _check_id(path, kind, item, seen)
        if kind == "message":
            _check_message(path, item)
        elif "output" in item:
            _check_output(f"{path}.output", kind, item["output"])
        if kind == "compaction_trigger" and index < len(items) - 1:
            raise Refused(trigger_not_last(path))
        _check_kept(kind, item, stored)


def _check_members(path: str, item: Json) -> str:
    kind = kind_of(item)
    if kind not in MEMBERS:
        raise Refused(wrong_value(path, kind, tuple(MEMBERS)))
    for name in REQUIRED.get(kind, ()):
        if item.get(name) is None:
            raise Refused(missing(f"{path}.{name}"))
    for name in item:
        if name not in MEMBERS[kind]:
            raise Refused(unknown(f"{path}.{name}"))
    if kind == "function_call_output" and item.get("call_id") is None and item.get("name") is None:
        raise Refused(missing(f"{path}.call_id"))
    for name in ("call_id", "arguments"):
        value = item.get(name)
        if value is not None and not isinstance(value, str) and kind != "tool_search_call":
            raise Refused(wrong_type(f"{path}.{name}", "a string", value))
    return kind


def _check_id(path: str, kind: str, item: Json, seen: set[str]) -> None:
    own = item.get("id")
    if own is None:
        return
    if not isinstance(own, str):
        raise Refused(wrong_type(f"{path}.id", "a string", own))
    prefix = PREFIXES.get(kind)
    if prefix is not None and not own.startswith(prefix):
        raise Refused(wrong_prefix(f"{path}.id", own, prefix))
    # A shell's output is named by its call.
    if kind != "local_shell_call_output":
        if own in seen:
            raise Refused(duplicate(own))
        seen.add(own)


def _check_message(path: str, item: Json) -> None:
    role, content = item["role"], item["content"]
    if role not in ROLES:
        raise Refused(wrong_value(f"{path}.role", str(role), ROLES))
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Refused(wrong_type(f"{path}.content", "one of an array of objects or string", content))
    for index, part in enumerate(content):
        _check_part(f"{path}.content[{index}]", part, PARTS[role])


def _check_output(path: str, kind: str, output: Any) -> None:
    if kind not in ("function_call_output", "custom_tool_call_output") or isinstance(output, str):
        return
    if not isinstance(output, list):
        raise Refused(wrong_type(path, "one of an array of objects or string", output))
    for index, part in enumerate(output):
        _check_part(f"{path}[{index}]", part, IN_OUTPUTS)


def _check_part(path: str, part: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(part, dict):
        raise Refused(wrong_type(path, "an object", part))
    kind = part.get("type")
    if kind is None:
        raise Refused(missing(f"{path}.type"))
    if kind not in allowed:
        raise Refused(wrong_value(path, str(kind), allowed))
    for name in part:
        if name not in PART_MEMBERS[kind]:
            raise Refused(unknown(f"{path}.{name}"))
    text = {"input_text": "text", "output_text": "text", "refusal": "refusal"}.get(kind)
    if text is not None and not isinstance(part.get(text), str):
        value, inside = part.get(text), f"{path}.{text}"
        wrong = missing(inside) if value is None else wrong_type(inside, "a string", value)
        raise Refused(wrong)


def _check_kept(kind: str, item: Json, stored: Collection[str]) -> None:
    """Check references to the provider's store, and what it sealed."""
    if kind == "item_reference" and item["id"] not in stored:
        raise Refused(no_such_item(item["id"]))
    if kind not in ("reasoning", "compaction"):
        return
    sealed = item.get("encrypted_content")
    if sealed is None:
        if item.get("id") not in stored:
            raise Refused(no_such_item(str(item.get("id"))))
    elif not isinstance(sealed, str) or opened(kind, sealed) is None:
        raise Refused(not_verified(str(sealed)))
