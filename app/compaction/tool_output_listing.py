"""Searches and listings: paths, with the lines and the number of what was found in each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from app.compaction.tool_output_pieces import FAIR, FILL, GOOD, KEY, Found, Piece, found

MOST_NUMBERS = 12
"""Numbers of lines that are told of one path."""
MOST_FOLDERS = 4

_HIT = re.compile(r"([\w.@+~/-]{1,300}?)[:-](\d{1,7})[:-](.*)|([\w.@+~/-]{1,300}+):(.*)")
_LINE = re.compile(r"(\d{1,7})[:-](.*)")
_PATH = re.compile(r"[\w.@+~/\[\]-]{1,300}+[*@]?")
_LONG = re.compile(r"[bcdlps-][rwxsStT-]{9}[.+@]?\s.{10,60}?\s([^\s/]\S*|/\S*)(?: -> \S+)?")
_FOLDER = re.compile(r"([\w.@+~/-]{1,300}+):")


def hits(lines: Sequence[str], _: str) -> Found | None:
    """A line for each path, with the numbers of its lines, then what stands in these; for a single file the lines."""
    by_path: dict[str, list[tuple[str, str]]] = {}
    written = [line for line in lines if line.strip() and line != "--"]
    for line in written:
        if match := _LINE.fullmatch(line):
            by_path.setdefault("", []).append((match[1], match[2]))
        elif (match := _HIT.fullmatch(line)) and ("/" in (path := match[1] or match[4]) or "." in path):
            by_path.setdefault(path, []).append((match[2] or "", match[3] or match[5] or ""))
    count = sum(map(len, by_path.values()))
    if count < 3 or count < 0.7 * len(written):
        return None
    pieces = []
    for path, places in by_path.items():
        if not path or len(places) == 1:
            pieces += [Piece(FILL if path == "" else GOOD, _hit(path, *place)) for place in places]
            continue
        numbers = ",".join(number for number, _ in places[:MOST_NUMBERS] if number)
        pieces.append(Piece(KEY, f"{path}{numbers and f':{numbers}'} ({len(places)})"))
        pieces += [Piece(FILL, _hit("", *place)) for place in places]
    size = f"{count} in {len(by_path)} files" if len(by_path) > 1 else f"{count} lines"
    return found(size, pieces)


def _hit(path: str, number: str, text: str) -> str:
    return ":".join(part for part in (path, number, f" {text.strip()}") if part)


def files(lines: Sequence[str], _: str) -> Found | None:
    """Folders that have most, with their numbers, then paths."""
    folder, paths, written = "", list[str](), 0
    for line in map(str.rstrip, lines):
        if not line or line.startswith("total "):
            continue
        written += 1
        if match := _FOLDER.fullmatch(line):
            folder = "" if match[1] == "." else f"{match[1].removeprefix('./')}/"
        elif match := _LONG.fullmatch(line):
            paths += [] if match[1] in (".", "..") else [folder + match[1]]
        elif _PATH.fullmatch(line):
            paths.append(folder + line.removeprefix("./"))
        else:
            written += 9
    if len(paths) < 5 or len(paths) < 0.6 * written:
        return None
    counts = Counter(path.rpartition("/")[0] for path in paths)
    counts.pop("", None)
    most = [Piece(FAIR, f"{name}/ ({count})") for name, count in counts.most_common(MOST_FOLDERS) if count > 2]
    return found(f"{len(paths)} paths", [*most, *(Piece(FILL, path) for path in paths)])
