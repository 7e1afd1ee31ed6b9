"""The judge of a request: what Anthropic would refuse in it, but for its size. Pure: tests judge with it, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lab.simulator.messages import arguments, order, pairs, thoughts
from lab.simulator.refusals import Refused, Rejection


def refusal_of(
    request: Any,
    betas: Collection[str] = (),
    required: Collection[str] = ("max_tokens",),
    alternating: bool = False,
) -> Rejection | None:
    """Rejection of a request; None where it is acceptable. `betas` are the values of the `anthropic-beta` header.

    `alternating`: to a provider that wants users and assistants in turn.
    """
    try:
        check(request, betas, required, alternating)
    except Refused as refused:
        rejection: Rejection = refused.refusal
        return rejection
    return None


def check(
    request: Any, betas: Collection[str], required: Collection[str] = ("max_tokens",), alternating: bool = False
) -> None:
    """Raise what the provider would say. `required`: what a request needs beside model and messages."""
    given = arguments.check_arguments(request, betas, required)
    messages: list[Mapping[str, Any]] = given["messages"]
    order.check_order(messages, str(given["model"]))
    if alternating:
        order.check_alternation(messages)
    order.check_cache_marks(given)
    order.check_compaction(messages)
    pairs.check_tools(given)
    pairs.check_pairs(messages)
    pairs.check_server_pairs(messages)
    thoughts.check_thinking(given, betas)
