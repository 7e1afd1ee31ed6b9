"""Thinking: never last, first where a call is open, as it was sealed, and behind what it was sealed over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.formats.messages import THINKING, blocks_of
from lab.simulator.messages.arguments import has_beta
from lab.simulator.messages.binding import opened, prefix_of
from lab.simulator.messages.refusals import (
    Refusal,
    bound_elsewhere,
    changed_thinking,
    no_thinking_first,
    unknown,
    wrong_signature,
)
from lab.simulator.refusals import Refused

BINDING = "thinking-binding-controls-2026-08-01"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A thinking block that stands behind another prefix than it was made behind."""

    message: int
    block: int
    kind: str
    difference: str

    @property
    def path(self) -> str:
        return f"messages.{self.message}.content.{self.block}"


def check_thinking(request: Json, betas: Collection[str]) -> None:
    messages: Sequence[Json] = request["messages"]
    thinking = request.get("thinking") or {}
    if "block_binding" in thinking and not has_beta(betas, (BINDING,)):
        raise Refused(unknown(f"thinking.{thinking['type']}.block_binding"))
    for index, message in enumerate(messages):
        blocks = blocks_of(message["content"])
        if blocks and blocks[-1]["type"] in THINKING:
            raise Refused(Refusal(f"messages.{index}: The final block in an assistant message cannot be `thinking`."))
    if thinking.get("type") == "enabled":
        _check_open_turn(messages)
    _check_seals(messages)
    for wrong in misplaced(request):
        raise Refused(bound_elsewhere(wrong.path, wrong.kind, wrong.difference))


def is_bound(model: str) -> bool:
    """Whether a model reads its thinking only behind the prefix it was made behind."""
    return "-bind" in model


def misplaced(request: Json) -> Iterator[Misplaced]:
    """Misplaced thinking in order; what follows one is read as if it were not there."""
    if not is_bound(str(request["model"])):
        return
    prefix = prefix_of(request)
    for index, message in enumerate(request["messages"]):
        for place, block in enumerate(blocks_of(message["content"])):
            if block["type"] in THINKING:
                packed, _ = opened(*_sealed(block))
                if packed is not None and not prefix.matches(packed):
                    yield Misplaced(index, place, block["type"], prefix.difference(packed))
                    continue
            prefix = prefix.then(message["role"], block)


def _check_open_turn(messages: Sequence[Json]) -> None:
    """A turn whose calls were just answered is given with the thinking that it began with."""
    if not any(block["type"] == "tool_result" for block in blocks_of(messages[-1]["content"])):
        return
    spoken = [
        index
        for index, message in enumerate(messages[:-1])
        if message["role"] == "user" and any(block["type"] != "tool_result" for block in blocks_of(message["content"]))
    ]
    start = next(
        index
        for index, message in enumerate(messages)
        if message["role"] == "assistant" and index > max(spoken, default=-1)
    )
    first = blocks_of(messages[start]["content"])[0]["type"]
    if first not in THINKING | {"compaction"}:
        raise Refused(no_thinking_first(start, first))


def _check_seals(messages: Sequence[Json]) -> None:
    latest = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    for index, message in enumerate(messages):
        for place, block in enumerate(blocks_of(message["content"])):
            if block["type"] not in THINKING:
                continue
            path = f"messages.{index}.content.{place}"
            packed, whole = opened(*_sealed(block))
            if packed is None or (not whole and index != latest):
                raise Refused(wrong_signature(path, block["type"]))
            if not whole:
                raise Refused(changed_thinking(path))


def _sealed(block: Json) -> tuple[str, str]:
    if block["type"] == "redacted_thinking":
        return str(block["data"]), ""
    return str(block["signature"]), str(block["thinking"])
