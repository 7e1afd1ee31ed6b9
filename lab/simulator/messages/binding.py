"""Thinking bound to its prefix: a block is sealed over system, tools and every block before it.

A prefix is a chain of digests, one link for each block with the role that says it: so neighbours of one role are one
message, and a string is one text block. What marks the cache is no part of it.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from lab.simulator.messages.blocks import CACHED, THINKING, blocks_of
from lab.simulator.messages.refusals import (
    bound_elsewhere,
    changed_thinking,
    no_thinking_first,
    refusal,
    wrong_signature,
)

_KEY = b"the simulator signs"
_MARK = "sim1."
_DIGEST, _MAC = 16, 12
"""Bytes of a prefix, and of each of two signatures behind it: of the prefix, and of prefix and text."""

Json = Mapping[str, Any]


def prefix_of(request: Json) -> bytes:
    return _digest([unmarked(blocks_of(request.get("system"))), unmarked(request.get("tools") or [])])


def _then(prefix: bytes, role: str, block: Json) -> bytes:
    return _digest([prefix.hex(), role, unmarked(block)])


def whole_prefix(request: Json) -> bytes:
    prefix = prefix_of(request)
    for message in request.get("messages", ()):
        for block in blocks_of(message["content"]):
            prefix = _then(prefix, message["role"], block)
    return prefix


def seal(prefix: bytes, text: str) -> str:
    """The signature of thinking, or the data of redacted thinking, whose text is then empty."""
    return _MARK + base64.b64encode(prefix + _mac(prefix) + _mac(prefix + text.encode())).decode()


def opened(sealed: str, text: str) -> tuple[bytes | None, bool]:
    """The prefix that it was sealed over, None if the provider never sealed it, and whether this is its text."""
    try:
        raw = base64.b64decode(sealed.removeprefix(_MARK).encode("ascii", "strict"), validate=True)
    except ValueError:
        return None, False
    prefix, first, second = raw[:_DIGEST], raw[_DIGEST : _DIGEST + _MAC], raw[_DIGEST + _MAC :]
    if not sealed.startswith(_MARK) or not hmac.compare_digest(first, _mac(prefix)):
        return None, False
    return prefix, hmac.compare_digest(second, _mac(prefix + text.encode()))


def unmarked(value: Any) -> Any:
    """Value without the marks of the cache; a result's string is one text block too."""
    if isinstance(value, list):
        return [unmarked(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: unmarked(each) for key, each in value.items() if key != CACHED}
    if kept.get("type") == "tool_result" and isinstance(kept.get("content"), str):
        kept["content"] = blocks_of(kept["content"])
    return kept


def _digest(value: Any) -> bytes:
    return blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=_DIGEST).digest()


def _mac(data: bytes) -> bytes:
    return blake2b(data, key=_KEY, digest_size=_MAC).digest()


# What is refused


def is_bound(model: str) -> bool:
    """Whether a model reads its thinking only behind the prefix it was made behind."""
    return "-bind" in model


def check_thinking(request: Json) -> None:
    """Thinking is never last, first where a call was just answered, as it was sealed, and behind what it was sealed
    over."""
    messages: Sequence[Json] = request["messages"]
    latest = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    for index, message in enumerate(messages):
        blocks = blocks_of(message["content"])
        if blocks and blocks[-1]["type"] in THINKING:
            raise refusal(f"messages.{index}: The final block in an assistant message cannot be `thinking`.")
    if (request.get("thinking") or {}).get("type") == "enabled":
        _check_open_turn(messages)
    prefix = prefix_of(request)
    for index, message in enumerate(messages):
        for place, block in enumerate(blocks_of(message["content"])):
            if block["type"] in THINKING:
                path = f"messages.{index}.content.{place}"
                sealed_over = _checked_seal(path, block, is_latest=index == latest)
                if is_bound(str(request["model"])) and sealed_over != prefix:
                    raise bound_elsewhere(path, block["type"])
            prefix = _then(prefix, message["role"], block)


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
        raise no_thinking_first(start, first)


def _checked_seal(path: str, block: Json, *, is_latest: bool) -> bytes:
    """The prefix that a block was sealed over."""
    kind = str(block["type"])
    sealed, text = (block["data"], "") if kind == "redacted_thinking" else (block["signature"], block["thinking"])
    prefix, whole = opened(str(sealed), str(text))
    if prefix is None or (not whole and not is_latest):
        raise wrong_signature(path, kind)
    if not whole:
        raise changed_thinking(path)
    return prefix
