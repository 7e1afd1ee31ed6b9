"""Items that need each other: calls and outputs by their ids, reasoning and what was said after it by their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from lab.formats.responses import kind_of
from lab.simulator.refusals import Refused, roles_do_not_alternate
from lab.simulator.responses.items import CALLS, OUTPUTS, SAID, is_own, required_reasoning
from lab.simulator.responses.refusals import no_call, no_following, no_output, no_reasoning

Json = Mapping[str, Any]


def check_pairs(items: Sequence[Json]) -> None:
    """Every output has its call before it, and every call its output behind it; not necessarily next to it."""
    opened: dict[str, str] = {}
    answered: set[str] = set()
    asked: set[Any] = set()
    for item in items:
        kind = kind_of(item)
        if kind == "mcp_approval_request":
            asked.add(item["id"])
        elif kind == "mcp_approval_response" and item["approval_request_id"] not in asked:
            raise Refused(no_call("mcp approval", item["approval_request_id"]))
        elif kind in CALLS and item.get("call_id") is not None:
            opened[item["call_id"]] = kind
        elif kind in OUTPUTS and (answers := _answers(kind, item, items)) is not None:
            if opened.get(answers) not in OUTPUTS[kind]:
                raise Refused(no_call(CALLS[OUTPUTS[kind][0]], answers))
            answered.add(answers)
    for call_id, kind in opened.items():
        if call_id not in answered:
            raise Refused(no_output(CALLS[kind], call_id))


def _answers(kind: str, output: Json, items: Sequence[Json]) -> str | None:
    """The call's id; None: what the provider ran itself, or an output that only has a name."""
    if kind != "local_shell_call_output":
        answers = output.get("call_id")
        return None if answers is None else str(answers)
    # It is named by its call: by the item's id, or by the call's.
    calls = (item for item in items if kind_of(item) == "local_shell_call")
    named = next((call for call in calls if output["id"] in (call.get("id"), call["call_id"])), None)
    return str(output["id"] if named is None else named["call_id"])


def check_bonds(items: Sequence[Json]) -> None:
    """Reasoning stands directly before what was said after it; neither goes without the other."""
    for index, item in enumerate(items):
        before = items[index - 1] if index else None
        after = items[index + 1] if index + 1 < len(items) else None
        if kind_of(item) == "reasoning" and not _follows(item, after):
            raise Refused(no_following(str(item.get("id"))))
        needed = required_reasoning(item.get("id"))
        if needed is not None and (before is None or before.get("id") != needed):
            raise Refused(no_reasoning(str(item["id"]), kind_of(item), needed))


def check_alternation(items: Sequence[Json]) -> None:
    """Refuse two messages of the user in a row, for models whose template demands it."""
    for before, after in pairwise(items):
        if all(kind_of(item) == "message" and item["role"] == "user" for item in (before, after)):
            raise Refused(roles_do_not_alternate())


def _follows(reasoning: Json, item: Json | None) -> bool:
    if item is None:
        return False
    kind = kind_of(item)
    if kind == "reasoning":
        return True  # several in a row: the last of them is asked
    if kind not in SAID and not (kind == "message" and item["role"] == "assistant"):
        return False
    return not is_own(item.get("id")) or required_reasoning(item["id"]) == reasoning.get("id")
