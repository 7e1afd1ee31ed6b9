"""Written headers: the lines of an answer. Nothing that a header says may begin another one."""

from __future__ import annotations

from collections.abc import Collection

from app.edge.relayed import Headers

FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection"))
"""Headers that say where an answer ends, or that the connection ends with it."""
MOST_WORDS = 1_000
LONGEST_WORD = 100
_WORDS: set[bytes] = set()
"""Names that were found to be words: nearly all answers have the same few."""
_IN_NAMES = bytes(set(range(0x100)) - {*range(0x21), 0x7F, *b'()<>@,;:[]={}\\"'})
_IN_VALUES = bytes(set(range(0x100)) - {*range(0x20), 0x7F} | {0x09})


def written(headers: Headers, names: Collection[bytes]) -> bytes:
    """Their lines; `names`: all of theirs. Raises `RuntimeError` for bytes that end a line or a word."""
    lines = b"\r\n".join([*map(b": ".join, headers), b""])
    if lines.translate(None, _IN_VALUES) != b"\r\n" * len(headers) or not (
        _WORDS.issuperset(names) or _are_words(names)
    ):
        raise RuntimeError("A header holds bytes that end a line or a word.")
    return lines


def _are_words(names: Collection[bytes]) -> bool:
    if any(name.translate(None, _IN_NAMES) for name in names):
        return False
    if len(_WORDS) < MOST_WORDS:
        _WORDS.update(name for name in names if len(name) <= LONGEST_WORD)
    return True
