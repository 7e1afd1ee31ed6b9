"""Comparing: two recordings, and where each case first differs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

AROUND = 60
"""Bytes that are shown on either side of where two lines part."""


def differences(one: Path, other: Path) -> Iterator[str]:
    """A paragraph for each case that is not the same in both."""
    here, there = _files(one), _files(other)
    if not here or not there:
        yield f"There is no recording in {other if here else one}."
        return
    for name in sorted(here | there):
        if name not in here or name not in there:
            yield f"{name}: only in {one if name in here else other}"
        elif (told := difference((one / name).read_bytes(), (other / name).read_bytes())) is not None:
            yield f"{name}: {told}"


def difference(one: bytes, other: bytes) -> str | None:
    """The first lines that differ, with the section they stand in; None where all is the same."""
    if one == other:
        return None
    section = b""
    for number, (left, right) in enumerate(zip_longest(one.split(b"\n"), other.split(b"\n")), 1):
        if left != right:
            return f"line {number} in {section.decode()!r}\n  - {_shown(left, right)}\n  + {_shown(right, left)}"
        if left.startswith(b"=== "):
            section = left.strip(b"= ")
    raise AssertionError("Unequal bytes have unequal lines.")


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _shown(line: bytes | None, other: bytes | None) -> str:
    if line is None:
        return "(no more lines)"
    pairs = zip(line, other or b"", strict=False)
    parting = next((at for at, (here, there) in enumerate(pairs) if here != there), min(len(line), len(other or b"")))
    start = max(0, parting - AROUND)
    return f"{'...' if start else ''}{line[start : parting + AROUND]!r}{'...' if parting + AROUND < len(line) else ''}"
