"""The judge of a request: what OpenAI would refuse in it, but for its size. Pure: tests judge with it."""

from __future__ import annotations

from typing import Any

from lab.simulator.chat_completions.arguments import check_arguments
from lab.simulator.chat_completions.messages import check_alternation, check_array, check_message, check_tool_pairs
from lab.simulator.refusals import Refusal, Refused, missing, unreadable


def refusal_of(request: Any, alternating: bool = False) -> Refusal | None:
    """Refusal of a request; None where it is acceptable. `alternating`: to a provider that wants users and assistants
    in turn."""
    try:
        _check(request, alternating)
    except Refused as refused:
        refusal: Refusal = refused.refusal
        return refusal
    return None


def _check(request: Any, alternating: bool) -> None:
    if not isinstance(request, dict):
        raise Refused(unreadable())
    for name in ("model", "messages"):
        if name not in request:
            raise Refused(missing(name))
    check_arguments({**request, "messages": None})
    check_array("messages", request["messages"])
    for index, message in enumerate(request["messages"]):
        try:
            check_message(message, lenient=False)
        except Refused as refused:
            raise Refused(refused.refusal.at(index)) from None
    check_tool_pairs(request["messages"])
    if alternating:
        check_alternation(request["messages"])
