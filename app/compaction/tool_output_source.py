"""Source code as an outline: signatures with the numbers of their lines, then the lines that name most."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

from app.compaction.tool_output_pieces import FILL, GOOD, KEY, Found, Piece, found

Numbered = Sequence[tuple[str, str]]
"""Lines with their numbers, which are empty where they are not known."""

DEEPEST = 40
"""Blanks before a signature that still tell how deep it is."""
DEEPER = 0.01
"""Share of a rank that each blank puts a signature behind the outer ones."""

_NUMBERED = re.compile(r"\s{0,8}(\d{1,7})(?:(?:\t|→|: ?| ?\| ?| {1,2}(?=\S))(.*)|\s*)")
_FILE = (
    r"\.(?:pyi?|[cm]?jsx?|tsx?|vue|java|kts?|scala|go|rs|cc|[ch]pp|[ch]|cs|rb|php|swift|sh|lua|pl|exs?"
    r"|sql|r|jl|dart)\b"
)
_READS = re.compile(
    rf"(?:^|[;&|(\n\"])\s*(?:cat|sed -n|nl|head|tail|less|bat)\b[^;&<>\n]{{0,300}}?{_FILE}"
    rf"|^\w*(?:read|view|open|file|editor)\w*\b.{{0,300}}?{_FILE}",
    re.IGNORECASE,
)
_WRITES = re.compile(r"<<|sed -i|>")
_FROM = re.compile(r"\s*sed -n ['\"]?(\d{1,7}),\d+p['\"]? [\w./-]+\s*")
_WHOLE = re.compile(r"\s*(?:cat|head(?: -n? ?\d+)?) [\w./-]+\s*")

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


def outline(lines: Sequence[str], call: str) -> Found | None:
    """Signatures first, the outer ones before the inner, then constants."""
    call = _command(call)
    numbered = _numbered(lines)
    signatures = sum(_SIGNATURE.match(line) is not None for line in lines)
    is_read = _READS.search(call) is not None and _WRITES.search(call) is None
    if not (numbered or is_read or (signatures >= 2 and signatures * 60 >= len(lines) and not _WRITES.search(call))):
        return None
    listed = numbered or _counted(lines, call)
    pieces = [Piece(_rank(line), f"{number} {line.strip()}" if line.strip() else "") for number, line in listed]
    known = [number for number, _ in listed if number]
    return found(f"lines {known[0]}-{known[-1]}" if known else f"{len(lines)} lines", pieces)


def _rank(line: str) -> float:
    signature = _SIGNATURE.match(line) or (line.rstrip().endswith("{") and _METHOD.fullmatch(line))
    if signature:
        return KEY + DEEPER * min(len(signature[1].expandtabs(4)), DEEPEST)
    if _CONSTANT.match(line):
        return GOOD
    return FILL + 1 if _ASIDE.match(line) else FILL


def _numbered(lines: Sequence[str]) -> Numbered | None:
    """The lines of a listing with their numbers; None for a text whose lines have none."""
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
    """The shell command in a call; the call itself where there is none."""
    if fenced := _FENCED.findall(call):
        return str(fenced[-1])
    try:
        arguments = json.loads(call[call.find("{") :])
    except (ValueError, RecursionError):
        return call
    command = arguments.get("command", arguments.get("cmd")) if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else call


def _counted(lines: Sequence[str], call: str) -> Numbered:
    """The lines with their numbers, if the call says where they begin."""
    begins = _FROM.fullmatch(call)
    if begins is None and not _WHOLE.fullmatch(call):
        return [("", line) for line in lines]
    return [(str(number), line) for number, line in enumerate(lines, int(begins[1]) if begins else 1)]
