"""Output of tests and commands: how it ended, what failed, and the last lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.compaction.tool_output_pieces import CLOSING, FAIR, FILL, GOOD, KEY, Found, Piece, found

LAST = 2
"""Lines of the end that are kept in any case."""
ENDING = 5
"""Lines of the end that say whether tests failed."""

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


def tests_failed(lines: Sequence[str]) -> bool:
    """Whether it ends with tests that failed: it is an output then, whatever code and paths they show."""
    return any(_TESTS_FAILED.match(line.lstrip()) for line in lines[-ENDING:])


def ended(lines: Sequence[str], call: str) -> Found | None:
    """Status, failures, frames with the innermost first, and the last lines."""
    ranks = [_rank(line, (len(lines) - number) / len(lines)) for number, line in enumerate(lines)]
    if min(ranks, default=FILL) >= FILL and not _RUNS.search(f"{lines[0] if lines else ''}{call}"):
        return None
    written = [number for number, line in enumerate(lines) if line.strip(" -=") and not CLOSING.fullmatch(line)]
    for number in written[-LAST:]:
        ranks[number] = KEY
    return found(f"{len(lines)} lines", [Piece(rank, line) for rank, line in zip(ranks, lines, strict=True)])


def _rank(line: str, early: float) -> float:
    """`early`: 1 for the first line, and nearly 0 for the last."""
    if _STATUS.match(line):
        return KEY + early / 2
    if _FAILED_TEST.match(line):
        return GOOD
    if _WARNING.match(line):  # It comes before what went wrong, and often in numbers.
        return FAIR + (2 - early) / 2
    if _FAILURE.match(line):
        return GOOD + (2 - early) / 2
    return FAIR + early / 2 if _FRAME.match(line) else FILL
