"""Plain English: odd turns of phrase that crept in once stay out, and no docstring is a riddle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
CODE = [path for folder in ("app", "examples", "lab") for path in (ROOT / folder).rglob("*.py")]
TEXTS = [*PAGES, *(ROOT / "config").rglob("*.yaml"), *CODE]

ODD = re.compile(
    r"\bTrap:|\b(of late|all the same|goes by|in force|so-many-th|keeps? \w+ inside)\b"
    r"|\b(refusal|error|answer|provider) told\b"
)
RIDDLES = re.compile(
    r"(Of|By|That|Those|What|With|In|As|Its|For|To|From|Where|Whose|Which|Who|Whom|It|They|Them|This|These|He|She"
    r"|Somebody|Something|After that|Behind it)\b"
)
"""How a docstring begins that cannot be read alone: without a noun or a verb that says what the thing is."""


def test_no_text_has_an_odd_turn_of_phrase() -> None:
    lines = (
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
    )
    assert [line for line in lines if ODD.search(line)] == []


def test_a_docstring_begins_with_what_the_thing_is() -> None:
    riddles = (
        f"{path.relative_to(ROOT)}:{line}: {said.splitlines()[0]}"
        for path in CODE
        for line, said in docstrings(ast.parse(path.read_text()))
        if RIDDLES.match(said)
    )
    assert list(riddles) == []


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string that is a statement: of modules, classes, functions and members."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(lineno=line, value=ast.Constant(value=str(said))):
                yield line, said
            case _:
                pass
