"""Shaped: what is left of a tool's result, by what it looks like.

It is a function of the result and of its call, so the same in every payload and every process. Each line of it is of
the result: nothing is put into other words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

from app.compaction.tool_output_data import members
from app.compaction.tool_output_listing import files, hits
from app.compaction.tool_output_pieces import CLOSING, Found, identifiers, lines_of
from app.compaction.tool_output_source import outline
from app.compaction.tool_output_text import ended, tests_failed
from app.compaction.tool_output_texts import changes, headings, rows

_SHAPES: Mapping[str, Callable[[Sequence[str], str], Found | None]] = {
    "diff": changes,
    "source": outline,
    "search": hits,
    "listing": files,
    "page": headings,
    "table": rows,
    "output": ended,
}
"""Shapes in order: a text may look like several."""

LONGEST_CALL = 4_000
"""Characters of a call that are read."""
ENOUGH = 0.75
"""Share of the identifiers in head and tail that a shape has to have."""
LEAST_LINES = 3
"""Lines of a text that has a shape: of fewer, head and tail say more."""
MOST_OPENING = 12
REMEMBERED = 8_192
"""Results of which this process keeps what is left, at about 600 bytes each: they come again with every request."""

_OPENING = re.compile(r"<(?:output|output_head|stdout|result)>\s*")


def shorten(text: str, longest: int) -> str:
    """Head (70 %) and tail of a text, with a notice of the original size in characters; itself if it is no longer."""
    if len(text) <= longest:
        return text
    head = longest * 7 // 10
    return f"{text[:head]}\n[... {len(text)} characters in all, shortened ...]\n{text[len(text) - (longest - head) :]}"


def shaped(text: str, call: str, longest: int) -> str:
    """Text that the shape of a result leaves, under a notice of the original size; head and tail where that does not
    say enough. It takes no more room than `shorten`, and less than the text."""
    if len(text) <= longest:
        return text
    call = call[:LONGEST_CALL]
    key = blake2b(f"{longest} {len(call)} {call}{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
    kept = _kept(key)
    if not kept:
        kept.append(shape_of(text, call, longest)[1])
    return kept[0]


@lru_cache(REMEMBERED)
def _kept(_: bytes) -> list[str]:
    """List that holds what is left of the result with this digest, once that is worked out."""
    return []


def shape_of(text: str, call: str, longest: int) -> tuple[str, str]:
    """Name of a result's shape, and what that leaves of it."""
    plain = shorten(text, longest)
    least = ENOUGH * (len(set(identifiers(plain))) - 1)  # The notice has one.
    for name, found in _found(text, call):
        notice = f"[... {len(text)} characters in all, shortened: {name}, {found.size} ...]"
        left = found.fitting(min(len(plain), len(text) - 1) - len(notice) - 1)
        if left and len(set(identifiers(left))) >= least:
            return name, f"{notice}\n{left}"
    return "text", plain


def _found(text: str, call: str) -> Iterator[tuple[str, Found]]:
    if data := members(text):
        yield "JSON", data
        return
    lines = lines_of(text)
    start = next((n + 1 for n, line in enumerate(lines[:MOST_OPENING]) if _OPENING.fullmatch(line)), 0)
    while lines and CLOSING.fullmatch(lines[-1]):
        lines.pop()
    head, body = lines[: max(0, start - 1)], lines[start:]
    if len(body) < LEAST_LINES:
        return
    shapes = {"output": ended} if tests_failed(body) else _SHAPES
    for name, find in shapes.items():
        # What stands before the output of a command tells how that ended.
        if found := find([*head, *body] if find is ended else body, call):
            yield name, found
