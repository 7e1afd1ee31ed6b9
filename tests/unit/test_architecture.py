"""The layers of the design, as the import contracts in pyproject.toml hold them, and one estimate of tokens only."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.formats.paths import FORMATS

APP = Path(__file__).parents[2] / "app"

FORMULA = {"declared_tokens", "unit_tokens", "answer_tokens", "picture_tokens", "byte_bound"}
COUNT = "app.tokens.estimate.Count"
COUNTING = {"tiktoken", "Tokenizer", "by_bytes", COUNT, "note_tokens", "media_tokens"} | FORMULA
MAY_COUNT = {
    "tokens/tokenizer.py": {"tiktoken", "Tokenizer", "by_bytes"},
    "tokens/estimate.py": FORMULA | {"note_tokens", "media_tokens"},
    "tokens/counting_rules.py": {"media_tokens"},
    "tokens/estimator.py": FORMULA | {"by_bytes", "Tokenizer"},
    # It makes the tokenizer and hands it to the estimate.
    "main.py": {"Tokenizer"},
    # It tells which tables are missing.
    "cli/doctor.py": {"Tokenizer"},
    # What was answered, where the provider does not tell its size: an upper bound, from which a window is learnt.
    "proxy/learn.py": {"by_bytes"},
    # They count texts of our own making: summaries, the simulator's answers.
    "compaction/user_words.py": {COUNT},
    "compaction/chunk_builder.py": {COUNT, "note_tokens"},
    # They only pass the counter on.
    "compaction/request.py": {COUNT},
    "proxy/request.py": {COUNT},
}


MAY_READ_ALL_SETTINGS = {"main.py", "checks.py", "cli", "settings"}
"""They load the settings, check them, or put parts together from them; everything else is given what it needs."""


@pytest.fixture(scope="module")
def trees() -> Mapping[str, ast.AST]:
    """Every file of the application, parsed once."""
    return {path.relative_to(APP).as_posix(): ast.parse(path.read_text()) for path in APP.rglob("*.py")}


def test_all_settings_are_read_only_where_parts_are_put_together(trees: Mapping[str, ast.AST]) -> None:
    """Who had all of them could read any: what a part depends on is then visible only in its whole text."""
    readers = {file.partition("/")[0] for file, tree in trees.items() if reads_all_settings(tree)}
    assert readers == MAY_READ_ALL_SETTINGS


def reads_all_settings(tree: ast.AST) -> bool:
    return any(
        {"Settings", "load"} & {alias.name for alias in node.names}
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("app.settings")
    )


def test_the_names_of_stenos_own_headers_stand_in_one_place(trees: Mapping[str, ast.AST]) -> None:
    name = re.compile(r"b?'x-context-[a-z-]+'")
    writers = {
        file
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and name.fullmatch(repr(node.value))
    }
    assert writers == {"http/headers.py"}


def test_nothing_but_the_formats_asks_which_one_it_is(trees: Mapping[str, ast.AST]) -> None:
    names = {each.name for each in FORMATS}
    asking = {
        file
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and {each.attr for each in (node.left, *node.comparators) if isinstance(each, ast.Attribute)} & {"name"}
        and {each.value for each in (node.left, *node.comparators) if isinstance(each, ast.Constant)} & names
    }
    assert asking == set()


# One estimate: text becomes tokens in one place


def counting(tree: ast.AST) -> set[str]:
    """What turns text into tokens, wherever it is imported, used or defined."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=imported):
                names |= {alias.name.partition(".")[0] for alias in imported}
            case ast.ImportFrom(module=str(module), names=imported):
                names.add(module.partition(".")[0])
                names.update(*((alias.name, f"{module}.{alias.name}") for alias in imported))
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case _:
                pass
    return names & COUNTING


def test_no_second_estimate_of_tokens(trees: Mapping[str, ast.AST]) -> None:
    """A file beside the list has a second estimate, or has to be given its reason there."""
    assert {file: names for file, tree in trees.items() if (names := counting(tree))} == MAY_COUNT
