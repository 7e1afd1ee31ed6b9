"""The order of messages, the marks of the cache, and where a compaction may stand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lab.formats.messages import blocks_of
from lab.simulator.messages.binding import behind_compaction, is_signed_compaction
from lab.simulator.messages.blocks import CACHED
from lab.simulator.messages.refusals import Refusal
from lab.simulator.refusals import Refused

MOST_MARKS = 4
_OLD = re.compile(r"claude-(2|3|instant|(opus|sonnet|haiku)-4(-[0-5])?(-\d{8})?$)")


def is_old(model: str) -> bool:
    """True for models up to Claude 4.5, which go on with an assistant's message, and refuse what prompt and answer
    cannot fit in."""
    return bool(_OLD.match(model))


def check_order(messages: Sequence[Mapping[str, Any]], model: str) -> None:
    last = len(messages) - 1
    for index, message in enumerate(messages):
        if not message["content"] and not (index == last and message["role"] == "assistant"):
            text = f"messages.{index}: all messages must have non-empty content"
            raise Refused(Refusal(f"{text} except for the optional final assistant message"))
    if messages[0]["role"] != "user" and not _begins_compacted(messages[0]):
        raise Refused(Refusal('messages: first message must use the "user" role'))
    _check_system_messages(messages)
    if messages[-1]["role"] == "assistant" and not _is_open(messages[-1]):
        _check_prefill(messages[-1], model)


def check_alternation(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse neighbours of one role for providers that join none, as the API itself did until 2024. Instructions among
    them do not count."""
    roles = [message["role"] for message in messages if message["role"] != "system"]
    for before, after in pairwise(roles):
        if before == after:
            text = f'messages: roles must alternate between "user" and "assistant", but found multiple "{after}" roles'
            raise Refused(Refusal(f"{text} in a row"))


def _begins_compacted(message: Mapping[str, Any]) -> bool:
    blocks = blocks_of(message["content"])
    return message["role"] == "assistant" and bool(blocks) and blocks[0]["type"] == "compaction"


def _check_system_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """The rules are documented; their wording here is the simulator's own."""
    roles = [message["role"] for message in messages]
    for index, role in enumerate(roles):
        if role != "system":
            continue
        before = next((each for each in reversed(roles[:index]) if each != "system"), None)
        after = next((each for each in roles[index:] if each != "system"), None)
        if before != "user":
            text = f"messages.{index}: a `system` message must directly follow a user turn"
            raise Refused(Refusal(text))
        if after == "user":
            text = f"messages.{index}: a `system` message must be last or be followed by an assistant turn"
            raise Refused(Refusal(text))


def _is_open(message: Mapping[str, Any]) -> bool:
    """True for a turn that the provider paused in the middle of a server's tool: it goes on from there."""
    blocks = blocks_of(message["content"])
    return bool(blocks) and blocks[-1]["type"] in ("server_tool_use", "mcp_tool_use", "compaction")


def _check_prefill(message: Mapping[str, Any], model: str) -> None:
    blocks = blocks_of(message["content"])
    if blocks and blocks[-1]["type"] == "tool_use":
        return  # its pairs are refused with words of their own
    if not is_old(model):
        text = "This model does not support assistant message prefill. The conversation must end with a user message."
        raise Refused(Refusal(text))
    if blocks and blocks[-1]["type"] == "text" and blocks[-1]["text"] != blocks[-1]["text"].rstrip():
        raise Refused(Refusal("messages: final assistant content cannot end with trailing whitespace"))


def check_cache_marks(request: Mapping[str, Any]) -> None:
    marks = list(_marks(request))
    if len(marks) > MOST_MARKS:
        text = f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}."
        raise Refused(Refusal(text))
    short = False
    for path, mark in marks:
        if mark.get("ttl") == "1h" and short:
            raise Refused(
                Refusal(
                    f"{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
                    "cache_control block. Note that blocks are processed in the following order: `tools`, `system`, "
                    "`messages`."
                )
            )
        short = short or mark.get("ttl") != "1h"


def _marks(request: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Marks in the order they are processed; one on the whole request stands for one on its last block."""
    for index, tool in enumerate(request.get("tools") or ()):
        yield from _marks_of(f"tools.{index}", tool)
    for index, block in enumerate(blocks_of(request.get("system"))):
        yield from _marks_of(f"system.{index}", block)
    for index, message in enumerate(request["messages"]):
        for place, block in enumerate(blocks_of(message["content"])):
            path = f"messages.{index}.content.{place}"
            inner = block.get("content") if block["type"] == "tool_result" else None
            for inside, part in enumerate(inner if isinstance(inner, list) else ()):
                yield from _marks_of(f"{path}.content.{inside}", part)
            yield from _marks_of(path, block)
    yield from _marks_of("cache_control", request)


def _marks_of(path: str, holder: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if (mark := holder.get(CACHED)) is not None:
        yield path, mark


def check_compaction(messages: Sequence[Mapping[str, Any]]) -> None:
    """A signed block stands first in what is still read; a block that only has a text may stand anywhere."""
    for index, message in enumerate(messages):
        for place, block in enumerate(blocks_of(message["content"])):
            if block["type"] != "compaction" or block.get("signature") is None:
                continue
            path = f"messages.{index}.content.{place}"
            if not is_signed_compaction(block):
                text = f"{path}: Invalid `signature` in `compaction` block"
                raise Refused(Refusal(text, error_code="compaction_signature_invalid"))
            if (index, place) != (0, 0):
                text = f"{path}: a signed `compaction` block must be the first block in `messages`"
                raise Refused(Refusal(text, error_code="compaction_block_misplaced"))
    if not any(blocks_of(message["content"]) for message in behind_compaction(messages)):
        raise Refused(Refusal("messages: at least one message is required"))
