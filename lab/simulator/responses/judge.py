"""The judge of a request: what OpenAI would refuse in it, but for its size. Pure: tests judge with it, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.simulator.refusals import Refused, Rejection
from lab.simulator.responses.arguments import check_arguments
from lab.simulator.responses.pairs import check_alternation, check_bonds, check_pairs
from lab.simulator.responses.shapes import check_items

Json = Mapping[str, Any]
NOTHING: Json = {}


def refusal_of(
    request: Any, stored: Mapping[str, Json] = NOTHING, earlier: Sequence[Json] = (), alternating: bool = False
) -> Rejection | None:
    """Rejection of a request; None where it is acceptable. `stored`: the items that the provider keeps, by id;
    `earlier`: those it goes on from.

    `alternating`: to a model whose template wants users and assistants in turn.
    """
    try:
        check(request, stored, earlier, alternating)
    except Refused as refused:
        rejection: Rejection = refused.refusal
        return rejection
    return None


def check(request: Any, stored: Mapping[str, Json], earlier: Sequence[Json], alternating: bool = False) -> list[Json]:
    """The items that the model reads, from the first that the provider keeps; or raise what it would say."""
    given = check_arguments(request)
    items = items_of(given.get("input"))
    check_items(items, stored)
    whole = [*earlier, *(expanded(item, stored) for item in items)]
    check_pairs(whole)
    check_bonds(whole)
    if alternating:
        check_alternation(whole)
    return whole


def items_of(given: Any) -> list[Json]:
    """Items of an input; a string is one message of the user."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given or [])


def expanded(item: Json, stored: Mapping[str, Json]) -> Json:
    """Item that a reference stands for."""
    return stored[item["id"]] if item.get("type") == "item_reference" else item
