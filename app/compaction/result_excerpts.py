"""Excerpts of tool results by their shape: diff, source code, search hits, listing, page, table, JSON, command output.

An excerpt depends only on the tool result and its call, so it is the same in every payload and every process. Steno
rephrases nothing. For each shape, a function returns the ranked lines of a text, or None if the text has another shape.
Steno takes the best lines until the room is full.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import groupby, islice, pairwise
from math import log, sqrt
from typing import Any, NamedTuple

SHAPES_VERSION = 3
"""Version of the excerpts. Increase it whenever excerpts change: Steno ignores stored mask boundaries of another
version."""
MOST_HEAD, MOST_TAIL = 150_000, 50_000
"""Maximum characters that are read at the beginning and at the end of a text."""
MOST_LINES = 8_000
LONGEST_LINE, LONGEST_PIECE = 400, 120
"""Maximum characters that Steno reads of a line, and maximum characters of a line in an excerpt."""
LONGEST_WORD = 40
LEAST_ROOM = 4

KEY, GOOD, FAIR, FILL = range(4)
"""Ranks, best first: lines that define the shape, other informative lines, less informative lines, all other lines."""

CLOSING = re.compile(r"\s*|</\w+>\s*")
"""Blank line, or closing tag around a tool's output."""
_WORD = re.compile(r"\w[\w./@+-]*+")
_PLAIN = re.compile(r"[A-Za-z]?[a-z]*\.?|\d")


class Piece(NamedTuple):
    rank: float
    text: str


Found = tuple[str, list[Piece]]
"""Size that the notice states, such as "12 paths", and the ranked lines."""


def parsed_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def lines_of(text: str) -> list[str]:
    if len(text) > MOST_HEAD + MOST_TAIL:
        text = f"{text[:MOST_HEAD]}\n{text[-MOST_TAIL:]}"
    lines = [line[:LONGEST_LINE] for line in text.split("\n")]
    return lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES // 2], *lines[-MOST_LINES // 2 :]]


def _identifiers(text: str) -> list[str]:
    """Return the words of a text that are not plain words: paths, symbols, ids, numbers."""
    return [word for word in _WORD.findall(text) if not _PLAIN.fullmatch(word)]


def _filled(pieces: Sequence[Piece], room: int) -> str:
    """Return the best pieces within `room` characters, in their original order, one per line, without duplicates."""
    lines = [piece.text.strip() for piece in pieces]
    lines = [line if len(line) <= LONGEST_PIECE else f"{line[: LONGEST_PIECE - 1]}…" for line in lines]
    ranks = _ranks(pieces, lines)
    taken: dict[str, int] = {}
    for place in sorted(range(len(pieces)), key=ranks.__getitem__):
        text = lines[place]
        if text and text not in taken and len(text) + bool(taken) <= room:
            room -= len(text) + bool(taken)
            taken[text] = place
        if room < LEAST_ROOM:
            break
    return "\n".join(sorted(taken, key=taken.__getitem__))


def _ranks(pieces: Sequence[Piece], lines: Sequence[str]) -> list[float]:
    """Return the ranks of the pieces. A `FILL` piece ranks better if it adds more new identifiers for its length.
    Identifiers that are frequent in the text count more."""
    names = list(map(_identifiers, lines))
    often = Counter(name for found in names for name in found)
    seen = {name for piece, found in zip(pieces, names, strict=True) if piece.rank < FILL for name in found}
    ranks = []
    for piece, line, found in zip(pieces, lines, names, strict=True):
        rank = piece.rank
        if rank >= FILL:
            new = set(found) - seen
            seen |= new
            weight = sum(sqrt(min(len(name), LONGEST_WORD)) * (1 + log(often[name])) for name in sorted(new))
            rank += 1 - weight / (weight + len(line) + 1)
        ranks.append(rank)
    return ranks


MOST_LEAVES = 1_000
DEEPEST_VALUE = 12
LONGEST_VALUE, LONGEST_NAME = 100, 40
"""Maximum characters of a shown value, and of a value that does not count as prose."""
IDENTIFIES, TELLS, IS_SHORT, IS_PROSE = 0.0, 0.2, 1.0, 2.0
"""Ranks of a value, the lowest shown first: a value with a telling key such as `id` or `status`; a string with a digit;
any other short value; a value longer than `LONGEST_NAME`, whatever its key."""
EACH, MOST_EACH = 0.02, 1.0
"""Number added to a value's rank for each earlier element of the enclosing arrays, and maximum of the sum."""

_Path = tuple[str | int, ...]
_Leaf = tuple[float, _Path, str]
"""Rank, path and text of a value."""
_TELLING_KEY = re.compile(
    r"(?:^|_|-)(?:id|number|name|key|code|email|path|url|uri|sha|ref|title|status|state|date|type|error|message)s?$"
    r"|[a-z]I[dD]s?$",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"\d")


def _json(text: str) -> tuple[Any, list[_Leaf]] | None:
    """Return the value of a JSON text and the ranked values in it; None for other texts."""
    if text.lstrip()[:1] not in ("{", "[") or len(text) > MOST_HEAD:
        return None
    value = parsed_json(text)
    leaves = list(islice(_leaves(value, "", (), 0), MOST_LEAVES))
    return (value, leaves) if leaves else None


def _leaves(value: Any, key: str, place: _Path, nth: int) -> Iterator[_Leaf]:
    """Yield the ranked values in a JSON value. `nth`: number of earlier elements, summed over all enclosing arrays."""
    if len(place) > DEEPEST_VALUE:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, name, (*place, name), nth)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, key, (*place, number), nth + number)
    elif value not in (None, ""):
        text = " ".join((value if isinstance(value, str) else json.dumps(value))[:LONGEST_VALUE].split())
        yield _value_rank(key, value, text) + min(EACH * nth, MOST_EACH), place, text


def _value_rank(key: str, value: Any, text: str) -> float:
    if len(text) > LONGEST_NAME:
        return IS_PROSE
    if _TELLING_KEY.search(key):
        return IDENTIFIES
    return TELLS if isinstance(value, str) and _DIGIT.search(value) else IS_SHORT


def _fitting(value: Any, leaves: Sequence[_Leaf], room: int) -> str:
    """Return the best values that fit into `room` characters, in a compact form of the JSON's structure."""
    ranked = sorted(leaves, key=lambda leaf: leaf[0])[:room]
    best, low, high = "", 0, len(ranked)
    while low < high:
        middle = (low + high + 1) // 2
        shown = _shown(value, _tree(ranked[:middle]))
        if len(shown) <= room:
            best, low = shown, middle
        else:
            high = middle - 1
    return best


def _tree(leaves: Sequence[_Leaf]) -> Any:
    tree: dict[Any, Any] = {}
    for _, place, text in leaves:
        node = tree
        for step in place[:-1]:
            node = node.setdefault(step, {})
        node[place[-1]] = text
    return tree


def _shown(value: Any, tree: Any) -> str:
    if isinstance(tree, str):
        return tree
    if isinstance(value, dict):
        return ", ".join(_member(name, value[name], tree[name]) for name in value if name in tree)
    elements = [(value[number], tree[number]) for number in range(len(value)) if number in tree]
    return " | ".join(_elements(*group) for group in groupby(elements, lambda element: _keys(element[1])))


def _elements(keys: tuple[str, ...], group: Iterator[tuple[Any, Any]]) -> str:
    """Return array elements as text, separated by semicolons. Objects with the same keys become a table."""
    elements = list(group)
    if not keys or len(elements) == 1:
        return "; ".join(_inside(*element) for element in elements)
    return f"{', '.join(keys)}: {'; '.join(', '.join(tree.values()) for _, tree in elements)}"


def _member(name: str, value: Any, tree: Any) -> str:
    if isinstance(tree, dict) and [*tree.values()] == [name]:
        return name  # The only shown value of the object equals its key.
    return f"{name}{f'[{len(value)}]' if isinstance(value, list) else ''}: {_inside(value, tree)}"


def _keys(tree: Any) -> tuple[str, ...]:
    """Return the keys of an object that may be a table row, because all its values are plain; otherwise empty."""
    return tuple(tree) if isinstance(tree, dict) and all(isinstance(inner, str) for inner in tree.values()) else ()


def _inside(value: Any, tree: Any) -> str:
    return f"{{{_shown(value, tree)}}}" if isinstance(value, dict) else _shown(value, tree)


MOST_NUMBERS, MOST_FOLDERS = 12, 4
"""Maximum number of line numbers listed for a path, and of folders listed with the number of their paths."""
_HIT = re.compile(r"([\w.@+~/-]{1,300}?)[:-](\d{1,7})[:-](.*)|([\w.@+~/-]{1,300}+):(.*)")
_LINE_HIT = re.compile(r"(\d{1,7})[:-](.*)")
_LISTED_PATH = re.compile(r"[\w.@+~/\[\]-]{1,300}+[*@]?")
_LONG_LISTING = re.compile(r"[bcdlps-][rwxsStT-]{9}[.+@]?\s.{10,60}?\s([^\s/]\S*|/\S*)(?: -> \S+)?")
_FOLDER = re.compile(r"([\w.@+~/-]{1,300}+):")


def _search_hits(lines: Sequence[str], _: str) -> Found | None:
    """Match search hits. Best lines: each path with its line numbers, then hits; for a single file only hits."""
    by_path: dict[str, list[tuple[str, str]]] = {}
    written = [line for line in lines if line.strip() and line != "--"]
    for line in written:
        if match := _LINE_HIT.fullmatch(line):
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
    return (size, pieces)


def _hit(path: str, number: str, text: str) -> str:
    return ":".join(part for part in (path, number, f" {text.strip()}") if part)


def _listed_paths(lines: Sequence[str], _: str) -> Found | None:
    """Match a listing of paths. Best lines: the folders with the most paths, with the number of paths, then paths."""
    folder, paths, written = "", list[str](), 0
    for line in map(str.rstrip, lines):
        if not line or line.startswith("total "):
            continue
        written += 1
        if match := _FOLDER.fullmatch(line):
            folder = "" if match[1] == "." else f"{match[1].removeprefix('./')}/"
        elif match := _LONG_LISTING.fullmatch(line):
            paths += [] if match[1] in (".", "..") else [folder + match[1]]
        elif _LISTED_PATH.fullmatch(line):
            paths.append(folder + line.removeprefix("./"))
        else:
            written += 9
    if len(paths) < 5 or len(paths) < 0.6 * written:
        return None
    counts = Counter(path.rpartition("/")[0] for path in paths)
    counts.pop("", None)
    most = [Piece(FAIR, f"{name}/ ({count})") for name, count in counts.most_common(MOST_FOLDERS) if count > 2]
    return (f"{len(paths)} paths", [*most, *(Piece(FILL, path) for path in paths)])


_NumberedLines = Sequence[tuple[str, str]]
"""Pairs of a line number, empty if unknown, and a line."""
DEEPER, DEEPEST_SIGNATURE = 0.01, 40
"""Rank added to a signature per column of indentation: outer signatures come first. Maximum columns that count."""
_NUMBERED = re.compile(r"\s{0,8}(\d{1,7})(?:(?:\t|→|: ?| ?\| ?| {1,2}(?=\S))(.*)|\s*)")
_SOURCE_FILE = (
    r"\.(?:pyi?|[cm]?jsx?|tsx?|vue|java|kts?|scala|go|rs|cc|[ch]pp|[ch]|cs|rb|php|swift|sh|lua|pl|exs?"
    r"|sql|r|jl|dart)\b"
)
_READS = re.compile(
    rf"(?:^|[;&|(\n\"])\s*(?:cat|sed -n|nl|head|tail|less|bat)\b[^;&<>\n]{{0,300}}?{_SOURCE_FILE}"
    rf"|^\w*(?:read|view|open|file|editor)\w*\b.{{0,300}}?{_SOURCE_FILE}",
    re.IGNORECASE,
)
_WRITES = re.compile(r"<<|sed -i|>")
_READS_FROM = re.compile(r"\s*sed -n ['\"]?(\d{1,7}),\d+p['\"]? [\w./-]+\s*")
_READS_WHOLE = re.compile(r"\s*(?:cat|head(?: -n? ?\d+)?) [\w./-]+\s*")

_MODIFIERS = (
    r"(?:(?:export|default|public|private|protected|internal|static|async|abstract|final|sealed|inline|virtual|override"
    r"|unsafe|pub(?:\(\w+\))?|const|extern|open|data|partial|declare|suspend)\s++)*+"
)
_SIGNATURE = re.compile(
    rf"(\s*+){_MODIFIERS}(?:class|def|function\*?|func|fn|interface|trait|struct|enum|impl|module|namespace|protocol"
    r"|record|object|macro_rules!|type(?=\s++\w++\s*+[=<{]))\s++[\w$(&<:@~]"
)
_METHOD = re.compile(
    r"(\s{0,8}+)(?!(?:if|for|while|switch|catch|return|else|elif|with|do|throw|new|await|assert)\b)"
    r"[\w$<>\[\]*&:,?~ ]{1,120}+\(.*\)[^;=)]{0,60}+"
)
_CONSTANT = re.compile(
    r"(?:(?:export |const |let |var |static |final )*+[A-Z][A-Z0-9_]{2,}+|(?:export )?const \w++)[^=(]{0,60}+=(?!=)"
)
_FENCED = re.compile(r"```\w*+\n(.*?)\n```\s*", re.DOTALL)
_ASIDE = re.compile(r'\s*+(?:#|//|\*|"""|\'\'\'|<!--|--|[\W_]*$)')


def _outline(lines: Sequence[str], call: str) -> Found | None:
    """Match source code. Best lines: signatures, the outer before the inner, then constants."""
    call = _command(call)
    numbered = _numbered(lines)
    signatures = sum(_SIGNATURE.match(line) is not None for line in lines)
    is_read = _READS.search(call) is not None and _WRITES.search(call) is None
    if not (numbered or is_read or (signatures >= 2 and signatures * 60 >= len(lines) and not _WRITES.search(call))):
        return None
    listed = numbered or _counted(lines, call)
    pieces = [Piece(_source_rank(line), f"{number} {line.strip()}" if line.strip() else "") for number, line in listed]
    known = [number for number, _ in listed if number]
    return (f"lines {known[0]}-{known[-1]}" if known else f"{len(lines)} lines", pieces)


def _source_rank(line: str) -> float:
    signature = _SIGNATURE.match(line) or (line.rstrip().endswith("{") and _METHOD.fullmatch(line))
    if signature:
        return KEY + DEEPER * min(len(signature[1].expandtabs(4)), DEEPEST_SIGNATURE)
    if _CONSTANT.match(line):
        return GOOD
    return FILL + 1 if _ASIDE.match(line) else FILL


def _numbered(lines: Sequence[str]) -> _NumberedLines | None:
    matches = [_NUMBERED.fullmatch(line) for line in lines]
    values = [int(match[1]) for match in matches if match]
    if len(values) < 3 or len(values) < 0.8 * sum(map(bool, lines)):
        return None
    steps = sum(after == before + 1 for before, after in pairwise(values))
    if steps < 0.9 * (len(values) - 1):
        return None
    pairs = zip(matches, lines, strict=True)
    return [(match[1], match[2] or "") if match else ("", line) for match, line in pairs]


def _command(call: str) -> str:
    if fenced := _FENCED.findall(call):
        return str(fenced[-1])
    arguments = parsed_json(call[call.find("{") :])
    command = arguments.get("command", arguments.get("cmd")) if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else call


def _counted(lines: Sequence[str], call: str) -> _NumberedLines:
    """Number the lines if the call shows the number of the first line. Otherwise all numbers are empty."""
    begins = _READS_FROM.fullmatch(call)
    if begins is None and not _READS_WHOLE.fullmatch(call):
        return [("", line) for line in lines]
    return [(str(number), line) for number, line in enumerate(lines, int(begins[1]) if begins else 1)]


LAST_LINES, LINES_OF_ENDING = 2, 5
"""Number of last lines that rank first, and number of last lines that are searched for failed tests."""
_STATUS = re.compile(
    r"\s*+(?:<(?:returncode|exit_?code)>-?[1-9]|\[?(?:process )?exit(?:ed)?(?: with)?(?: (?:code|status))?:? ?-?\d"
    r"|=+ [^=]{0,100}\b(?:passed|failed|error)|ran \d+ tests?|FAILED \(|tests?:? +\d+ |test result:"
    r"|build (?:failed|succ))",
    re.IGNORECASE,
)
_FAILED_TEST = re.compile(r"FAILED |FAIL: |not ok |--- FAIL")
_TESTS_FAILED = re.compile(
    r"=+ [^=]{0,100}\b\d+ (?:failed|errors?)\b|FAILED\b|FAIL\b|tests?: +\d+ failed|test result: F", re.IGNORECASE
)
_FAILURE = re.compile(
    r"E  |ERROR[ :]|FAIL |\s*+(?:[\w.]{0,80}+(?<=Error|ption|ilure)[:\s]"
    r"|error(?:\[\w+\])?:|fatal:|panic:|thread '.{0,80} panicked)|[\w./-]{1,200}+:\d++:(?:\d++:)?+ "
    r"|[\w./-]{1,200}+: (?:error|cannot|No such|command not)|.{0,100}?(?:✕|✗|❌|: ERROR)"
)
_WARNING = re.compile(r"(?:\s*+|[\w./-]{1,200}+:\d++:(?:\d++:)?+ )[\w.]{0,80}+(?<=rning):|.{0,100}?: WARNING")
_FRAME = re.compile(r'\s*+(?:File "[^"]{1,300}", line \d|at \S{1,200} \(?\S{1,200}:\d)')
_RUNS = re.compile(r'<(?:returncode|exit_?code)>|"(?:command|cmd|script)"|```(?:bash|sh)\b')


def _command_output(lines: Sequence[str], call: str) -> Found | None:
    """Match command output. Best lines: exit status and last lines, then failures, stack frames, warnings."""
    ranks = [_output_rank(line, (len(lines) - number) / len(lines)) for number, line in enumerate(lines)]
    if min(ranks, default=FILL) >= FILL and not _RUNS.search(f"{lines[0] if lines else ''}{call}"):
        return None
    written = [number for number, line in enumerate(lines) if line.strip(" -=") and not CLOSING.fullmatch(line)]
    for number in written[-LAST_LINES:]:
        ranks[number] = KEY
    return (f"{len(lines)} lines", [Piece(rank, line) for rank, line in zip(ranks, lines, strict=True)])


def _output_rank(line: str, early: float) -> float:
    """Return a line's rank. `early`: 1 for the first line, nearly 0 for the last."""
    if _STATUS.match(line):
        return KEY + early / 2
    if _FAILED_TEST.match(line):
        return GOOD
    if _WARNING.match(line):  # Warnings are frequent, so failures and stack frames come first.
        return FAIR + (2 - early) / 2
    if _FAILURE.match(line):
        return GOOD + (2 - early) / 2
    return FAIR + early / 2 if _FRAME.match(line) else FILL


_DIFF_FILE = ("+++ ", "rename to ", "deleted file", "Binary files ")
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
_HEADING = re.compile(r"#{1,6} \S|<(?:title|h[1-6])\b", re.IGNORECASE)
_PAGE = re.compile(r"#{2,6} \S|<(?:title|h[1-6])\b", re.IGNORECASE)
_SIGNS = "\t,;|"


def _diff(lines: Sequence[str], _: str) -> Found | None:
    """Match a diff. Best lines: files, then hunk headers, then changed lines."""
    pieces = []
    for line in lines:
        if line.startswith(_DIFF_FILE):
            pieces.append(Piece(KEY, line))
        elif _HUNK.match(line):
            pieces.append(Piece(GOOD, line))
        elif line.startswith(("+", "-", "@", "r", "d", "B")):
            pieces.append(Piece(FILL if line[0] in "+-" and not line.startswith("--- ") else FILL + 1, line))
    hunks = sum(piece.rank == GOOD for piece in pieces)
    return (f"{hunks} hunks", pieces) if hunks else None


def _page(lines: Sequence[str], _: str) -> Found | None:
    """Match a web or Markdown page. Best lines: title and headings, then the rest."""
    pieces = [Piece(KEY if _HEADING.match(line) else FILL, line) for line in lines]
    return (f"{len(lines)} lines", pieces) if any(map(_PAGE.match, lines)) else None


def _table(lines: Sequence[str], _: str) -> Found | None:
    """Match a table: most rows have as many columns as the first, at least three. Best lines: header, first rows."""
    written = [line for line in lines if line.strip()]
    columns = [[line.count(sign) for line in written] for sign in _SIGNS]
    if len(written) < 4 or not any(c[0] >= 2 and c.count(c[0]) >= 0.9 * len(c) for c in columns):
        return None
    return f"{len(written) - 1} rows", [Piece(KEY + place / len(written), line) for place, line in enumerate(written)]


_SHAPES: Mapping[str, Callable[[Sequence[str], str], Found | None]] = {
    "diff": _diff,
    "source": _outline,
    "search": _search_hits,
    "listing": _listed_paths,
    "page": _page,
    "table": _table,
    "output": _command_output,
}
"""Shapes in order of precedence: a text may match several."""

LONGEST_CALL = 4_000
"""Maximum characters that are read of a call."""
ENOUGH = 0.75
"""Minimum number of identifiers in an excerpt by shape, as a share of those in the output of `shorten`."""
LEAST_LINES = 3
"""Minimum lines of a text with a shape. For a shorter text, head and tail are more informative than an excerpt."""
MOST_OPENING = 12
REMEMBERED = 8_192
"""Number of cached excerpts, about 600 bytes each. The cache helps, because each request repeats earlier results."""
_OPENING = re.compile(r"<(?:output|output_head|stdout|result)>\s*")


def shorten(text: str, longest: int) -> str:
    """Return head (70 %) and tail of a text, with a notice of its size between them; a short text unchanged."""
    if len(text) <= longest:
        return text
    head = longest * 7 // 10
    return f"{text[:head]}\n[... {len(text)} characters in all, shortened ...]\n{text[len(text) - (longest - head) :]}"


def shaped(text: str, call: str, longest: int) -> str:
    """Return a notice of the text's size and the excerpt by the text's shape, together not longer than the output of
    `shorten`. If the excerpt has too few identifiers, return `shorten`'s output. Return a short text unchanged."""
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
    """Return a list, cached by the result's digest, to which the caller appends the excerpt."""
    return []


def shape_of(text: str, call: str, longest: int) -> tuple[str, str]:
    """Return the name of a result's shape, and the excerpt."""
    plain = shorten(text, longest)
    least = ENOUGH * (len(set(_identifiers(plain))) - 1)  # Minus one for the notice.
    for name, size, fitting in _shapes_of(text, call):
        notice = f"[... {len(text)} characters in all, shortened: {name}, {size} ...]"
        left = fitting(min(len(plain), len(text) - 1) - len(notice) - 1)
        if left and len(set(_identifiers(left))) >= least:
            return name, f"{notice}\n{left}"
    return "text", plain


def _shapes_of(text: str, call: str) -> Iterator[tuple[str, str, Callable[[int], str]]]:
    """Yield the name of each matching shape, the text's size, and a function that makes an excerpt of a length."""
    if data := _json(text):
        value, leaves = data
        yield "JSON", f"{len(leaves)} values", partial(_fitting, value, leaves)
        return
    lines = lines_of(text)
    start = next((n + 1 for n, line in enumerate(lines[:MOST_OPENING]) if _OPENING.fullmatch(line)), 0)
    while lines and CLOSING.fullmatch(lines[-1]):
        lines.pop()
    head, body = lines[: max(0, start - 1)], lines[start:]
    if len(body) < LEAST_LINES:
        return
    # A text that ends with failed tests is command output, even if it shows code and paths.
    has_failed = any(_TESTS_FAILED.match(line.lstrip()) for line in body[-LINES_OF_ENDING:])
    shapes = {"output": _command_output} if has_failed else _SHAPES
    for name, find in shapes.items():
        # The lines before a command's output show its exit status.
        if found := find([*head, *body] if find is _command_output else body, call):
            size, pieces = found
            yield name, size, partial(_filled, pieces)
