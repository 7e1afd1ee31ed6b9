"""The changes that `make mutants` makes, and which tests it asks about one."""

from pathlib import Path

import pytest
from coverage import CoverageData

from lab.benchmarks.mutants.changes import changes, compiles
from lab.benchmarks.mutants.suspects import Suspects, recording

ROOT = Path(__file__).parents[2]


def made(source: str) -> set[str]:
    """What each mutant of this source says where the source says something else."""
    return {change.applied(source.encode()).decode() for change in changes(source.encode())}


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("if a < b: c()", {"if a <= b: c()", "if a < b: pass"}),
        ("if (a) is not (b): c = 0", {"if (a) is (b): c = 0", "if (a) is not (b): c = 1", "if (a) is not (b): c = -1"}),
        ("a = b and c", {"a = b or c", "a = True and c", "a = b and True"}),
        ("a = not b", {"a =  b"}),
        ("a = b if c else d", {"a = b if not (c) else d"}),
        ("a = [b for b in c if d]", {"a = [b for b in c if not (d)]"}),
        ("a = b[c:d]", {"a = b[:d]", "a = b[c:]"}),
        ("a = b - (c)", {"a = b + (c)"}),
        ("a += b", {"a -= b", "pass"}),
        ("a.b = c", {"pass"}),
        ("a: int = True", {"a: int = False"}),
        ("a = max(b)", {"a = min(b)"}),
        ("def a() -> bool: return b", {"def a() -> bool: return not (b)"}),
        ("def a() -> int: return b", {"def a() -> int: return (b) + 1"}),
        ("def a() -> str: return b", {"def a() -> str: return None"}),
        ("raise a", {"pass"}),
        # What is there for a reader, or for the checker of types, is no code.
        ('"""Text."""', set()),
        ("import a", set()),
        ("@a(b=True)\ndef c(d: e | f): pass", set()),
        ("if TYPE_CHECKING: import a", set()),
    ],
)
def test_each_change_is_made_where_it_can_be(source: str, mutants: set[str]) -> None:
    assert made(source) == mutants


def test_a_change_says_where_it_is() -> None:
    (change,) = changes("class Ä:\n    def b(self):\n        return (\n            self.c\n        )\n".encode())
    assert (change.function, change.line, change.last_line, change.what) == ("Ä.b", 4, 4, "self.c -> None")


@pytest.mark.slow
def test_nearly_every_change_of_a_real_module_compiles() -> None:
    source = (ROOT / "app/core/view/reading.py").read_bytes()
    compiling = [change for change in changes(source) if compiles(change.applied(source))]
    assert len(compiling) >= 0.95 * len(changes(source)) > 100


def test_tests_that_ran_a_line_are_asked_and_the_most_special_one_first(tmp_path: Path) -> None:
    recorded = recording(tmp_path, "unit")
    data = CoverageData(str(recorded))
    for test, lines in {"": [1, 2], "wide|run": [3, 4, 5], "narrow|setup": [4], "other|run": [5]}.items():
        data.set_context(test)
        data.add_lines({"/tree/app/a.py": lines, "/tree/app/b.py": lines})
    data.write()
    suspects = Suspects([recorded], Path("/tree"))
    assert suspects.of("app/a.py", [3, 4]) == [["narrow", "wide"]]
    assert suspects.of("app/a.py", [1, 2]) == [[]]
    assert suspects.of("app/a.py", []) == [["narrow", "other", "wide"]]
