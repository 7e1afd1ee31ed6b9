"""The timeline: what became of each message of the latest request.

The coverage says it of every message, in runs; where messages are kept, each message's kind, size and text are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct

WORDS: Mapping[str, str] = {
    "verbatim": "verbatim",
    "summarized": "in a summary",
    "carried": "carried",
    "pinned": "pinned",
    "pruned": "left out",
    "masked": "masked",
}
"""Words for fates whose name in the coverage is not what a person would say."""


class Fate(NamedTuple):
    """Fate of a message: what stands for it in the payload."""

    kind: str
    """Kind of the part, as in the coverage."""
    tokens: int | None
    """Tokens that the message takes by itself; None where it shares them with others."""
    summary_id: str | None
    """Id of the summary that stands for the message."""
    pinned: bool
    """True where a verbatim copy is in the payload, too."""
    recalled: bool
    """True where passages of the message are quoted."""

    @property
    def word(self) -> str:
        return WORDS.get(self.kind, self.kind)


class Stretch(Struct, frozen=True):
    """Messages in a row with the same fate."""

    first: int
    last: int
    fate: Fate
    tokens: int
    """Tokens of all of them in the payload."""

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class Fates(Struct, frozen=True):
    """Fates of the messages after the leading instructions."""

    parts: Sequence[Mapping[str, Any]]

    @property
    def number(self) -> int:
        """Number of messages."""
        return 1 + max((part["last_index"] for part in self.parts if "last_index" in part), default=-1)

    @property
    def stretches(self) -> list[Stretch]:
        """Stretches of all messages, in order. A message that stays beside its summary, or is cut, is one by itself."""
        found = []
        for first, last in self._runs():
            fate = self.of(first)
            tokens = self._tokens(first, last)
            found.append(Stretch(first, last, fate, tokens))
        return found

    def of(self, index: int) -> Fate:
        """Fate of a message; where it is shown beside its summary, that counts."""
        standing = [part for part in self.parts if _holds(part, index)]
        pinned = any(part["kind"] == "pinned" for part in standing)
        recalled = any(part["kind"] == "recalled" and index in part["messages"] for part in self.parts)
        summary = next((part["summary_id"] for part in standing if part["kind"] == "summarized"), None)
        own = [part for part in standing if part["kind"] != "pinned"]
        shown = next((part for part in own if part["kind"] not in ("summarized", "pruned")), None)
        part = shown or (own[0] if own else {"kind": "unknown", "tokens": 0})
        alone = part.get("first_index") == part.get("last_index") and part["kind"] != "summarized"
        return Fate(part["kind"], part["tokens"] if alone else None, summary, pinned, recalled)

    def _runs(self) -> list[tuple[int, int]]:
        """Indexes at which fates change: at the ends of parts, and at messages that are quoted."""
        count = self.number
        edges = {0, count}
        for part in self.parts:
            if "first_index" in part:
                edges |= {part["first_index"], part["last_index"] + 1}
            elif part["kind"] == "recalled":
                edges |= {edge for index in part["messages"] for edge in (index, index + 1)}
        ordered = sorted(edge for edge in edges if 0 <= edge <= count)
        return [(start, stop - 1) for start, stop in pairwise(ordered)]

    def _tokens(self, first: int, last: int) -> int:
        """Tokens of the parts that lie within; a summary's stand with its first message."""
        return sum(
            part["tokens"]
            for part in self.parts
            if part["kind"] not in ("pinned", "recalled") and first <= part.get("first_index", -1) <= last
        )


def _holds(part: Mapping[str, Any], index: int) -> bool:
    return bool(part.get("first_index", index + 1) <= index <= part.get("last_index", -1))
