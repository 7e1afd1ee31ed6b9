"""Thinking bound to its prefix: a block is sealed over system, tools and every block before it.

A prefix is a chain of digests, one link for each block with the role that says it: so neighbours of one role are one
message, and a string is one text block. What marks the cache is no part of it. A compaction block that the provider
signed carries the state of the chain behind what it stands for, so that thinking goes on being valid behind it.
"""

from __future__ import annotations

import base64
import hmac
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import msgspec

from lab.formats.messages import THINKING, blocks_of
from lab.simulator.messages.blocks import CACHED

_KEY = b"the simulator signs"
_HEAD = struct.Struct("8s8s16sH")
_BOUND = _HEAD.size - 2
"""Bytes of the head that have to be the same: all but the number of thoughts."""
_MARK = "sim1."
_MAC = 12

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prefix:
    """Prefix of a block: what stands before it."""

    system: bytes
    tools: bytes
    state: bytes = bytes(16)
    thoughts: int = 0
    """Number of thinking blocks in the prefix."""

    def then(self, role: str, block: Json) -> Prefix:
        if block.get("type") == "compaction":
            return replace(self, state=_compacted(block), thoughts=0)
        link = _digest(self.state + msgspec.json.encode([role, unmarked(block)], order="deterministic"), 16)
        return replace(self, state=link, thoughts=self.thoughts + (block.get("type") in THINKING))

    @property
    def packed(self) -> bytes:
        return _HEAD.pack(self.system, self.tools, self.state, self.thoughts)

    def matches(self, packed: bytes) -> bool:
        """Whether another is the same; a compaction forgets how many thoughts it stands for."""
        return packed[:_BOUND] == self.packed[:_BOUND]

    def difference(self, packed: bytes) -> str:
        """Sentence about why another prefix is not this one, as far as that is known."""
        system, _, _, thoughts = _HEAD.unpack(packed)
        if system != self.system:
            return "The `system` prompt differs from the one this block was created with."
        if thoughts > self.thoughts:
            return "The `thinking` block that preceded this one when it was created is missing from this request."
        return ""


def prefix_of(request: Json) -> Prefix:
    """Prefix at which a request's messages begin."""
    system, tools = unmarked(blocks_of(request.get("system"))), unmarked(request.get("tools") or [])
    heads = [_digest(msgspec.json.encode(each, order="deterministic"), 8) for each in (system, tools)]
    return Prefix(heads[0], heads[1])


def whole_prefix(request: Json) -> Prefix:
    """Prefix of the answer to a request."""
    prefix = prefix_of(request)
    for message in request.get("messages", ()):
        for block in blocks_of(message["content"]):
            prefix = prefix.then(message["role"], block)
    return prefix


def seal(prefix: Prefix, text: str) -> str:
    """The signature of thinking, or the data of redacted thinking, whose text is then empty."""
    head = prefix.packed
    return _MARK + base64.b64encode(head + _mac(head) + _mac(head + text.encode())).decode()


def opened(sealed: str, text: str) -> tuple[bytes | None, bool]:
    """The prefix that it was sealed over, None if the provider never sealed it, and whether this is its text."""
    try:
        raw = base64.b64decode(sealed.removeprefix(_MARK).encode("ascii", "strict"), validate=True)
    except ValueError:
        return None, False
    head, first, second = raw[: _HEAD.size], raw[_HEAD.size : _HEAD.size + _MAC], raw[_HEAD.size + _MAC :]
    if not sealed.startswith(_MARK) or not hmac.compare_digest(first, _mac(head)):
        return None, False
    return head, hmac.compare_digest(second, _mac(head + text.encode()))


def sign_compaction(prefix: Prefix, summary: str) -> str:
    """The signature of a compaction block: it keeps what the chain had come to."""
    return _MARK + base64.b64encode(prefix.state + _mac(prefix.state + summary.encode())).decode()


def is_signed_compaction(block: Json) -> bool:
    return _compaction_state(block) is not None


def _compacted(block: Json) -> bytes:
    kept = _compaction_state(block)
    return kept if kept is not None else _digest(str(block.get("content")).encode(), 16)


def _compaction_state(block: Json) -> bytes | None:
    signature = block.get("signature")
    if not isinstance(signature, str) or not signature.startswith(_MARK):
        return None
    try:
        raw = base64.b64decode(signature.removeprefix(_MARK).encode("ascii", "strict"), validate=True)
    except ValueError:
        return None
    signed = hmac.compare_digest(raw[16:], _mac(raw[:16] + str(block.get("content")).encode()))
    return raw[:16] if signed else None


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


def behind_compaction(messages: Sequence[Json]) -> Iterator[Json]:
    """Messages that the model still reads: the last compaction block that says anything, and all behind it."""
    start, first = 0, 0
    for index, message in enumerate(messages):
        for place, block in enumerate(blocks_of(message["content"])):
            if block.get("type") == "compaction" and block.get("content") is not None:
                start, first = index, place
    for index, message in enumerate(messages[start:]):
        yield {**message, "content": blocks_of(message["content"])[first:]} if first and not index else message


def _digest(data: bytes, size: int) -> bytes:
    return blake2b(data, digest_size=size).digest()


def _mac(data: bytes) -> bytes:
    return blake2b(data, key=_KEY, digest_size=_MAC).digest()
