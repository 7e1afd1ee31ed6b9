"""Edits of the history: old results of tools are cleared from a threshold on, and the thinking of older turns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from app.core.stages.edits import Edits, Made
from app.core.view.mask import Clearing
from app.errors import InvalidRequest
from app.wire.edits import ServerEdits
from app.wire.members import RawObject
from app.wire.messages.answers import EDITS
from app.wire.messages.request import edits_in, without_betas, without_edits
from app.wire.types import Headers, WireRequest

TOOL_USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
_BETA = b"context-management-"
_USUAL = Clearing()


class MessagesEdits(ServerEdits):
    REFUSED = re.compile(r"context.management|clear_(?:tool_uses|thinking)", re.IGNORECASE)

    def are_asked(self, request: WireRequest) -> bool:
        return any(map(_is_clearing, edits_in(request.source)))

    def asked(self, request: WireRequest) -> Edits:
        found = {edit["type"]: edit for edit in edits_in(request.source) if _is_clearing(edit)}
        uses, thinking = found.get(TOOL_USES), found.get(THINKING)
        return Edits(_clearing(uses) if uses else None, _thinking_turns(thinking) if thinking else None)

    def unasked(self, request: WireRequest) -> WireRequest:
        replaced, removed = without_edits(request.source, _is_clearing)
        return replace(request, source=RawObject(request.source.spliced(replaced, removed)))

    def headers(self, headers: Headers) -> Headers:
        return without_betas(headers, _BETA)

    def told(self, edits: Edits, made: Made) -> bytes:
        applied: list[dict[str, Any]] = []
        if edits.thinking_turns is not None and made.turns:
            cleared = {"cleared_thinking_turns": made.turns, "cleared_input_tokens": made.turns_tokens}
            applied.append({"type": THINKING, **cleared})
        if edits.clearing is not None and made.uses:
            cleared = {"cleared_tool_uses": made.uses, "cleared_input_tokens": made.uses_tokens}
            applied.append({"type": TOOL_USES, **cleared})
        return msgspec.json.encode({"applied_edits": applied})


def _is_clearing(edit: object) -> bool:
    return isinstance(edit, dict) and edit.get("type") in (TOOL_USES, THINKING)


def _clearing(edit: Mapping[str, Any]) -> Clearing:
    trigger = edit.get("trigger") or {"type": "input_tokens", "value": _USUAL.tokens}
    counts_uses = isinstance(trigger, dict) and trigger.get("type") == "tool_uses"
    at = _number(trigger, "trigger", "tool_uses" if counts_uses else "input_tokens")
    keep, at_least = edit.get("keep"), edit.get("clear_at_least")
    inputs = edit.get("clear_tool_inputs") or False
    return Clearing(
        tokens=None if counts_uses else at,
        uses=at if counts_uses else None,
        keep=_USUAL.keep if keep is None else _number(keep, "keep", "tool_uses"),
        at_least=0 if at_least is None else _number(at_least, "clear_at_least", "input_tokens"),
        exclude=_names(edit.get("exclude_tools") or [], "exclude_tools"),
        inputs=inputs if isinstance(inputs, bool) else _names(inputs, "clear_tool_inputs"),
    )


def _thinking_turns(edit: Mapping[str, Any]) -> int | None:
    keep = edit.get("keep", {"type": "thinking_turns", "value": 1})
    if keep in ("all", {"type": "all"}):
        return None
    return _number(keep, "keep", "thinking_turns", least=1)


def _number(given: object, name: str, type_: str, least: int = 0) -> int:
    value = given.get("value") if isinstance(given, dict) and given.get("type") == type_ else None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidRequest(f"{name} must be an object with the type {type_} and a whole number from {least}.", EDITS)
    return value


def _names(given: object, name: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise InvalidRequest(f"{name} must be a list of names of tools.", EDITS)
    return tuple(given)
