"""The changes that make a mutant: each replaces a few bytes of a module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

SWAPPED_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
SWAPPED_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
MOST_SHOWN = 60
"""Characters of the old and the new code that a change shows."""


@dataclass(frozen=True, slots=True)
class Change:
    """A piece of a module's source, and what stands there instead."""

    start: int
    """Offset of its first byte."""
    stop: int
    """Offset behind its last byte."""
    new: str
    function: str
    """Qualified name of the function around it; empty at the level of a module or a class."""
    line: int
    last_line: int
    what: str
    """The old code and the new, for a reader."""

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.stop :]


def changes(source: bytes) -> list[Change]:
    """Every change of this module, by place. A few do not compile: see `compiles`."""
    return sorted(_Finder(source).found(), key=lambda each: (each.start, each.stop))


def compiles(source: bytes) -> bool:
    """Whether this is a module at all: an operand in parentheses may have left them alone."""
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder:
    def __init__(self, source: bytes) -> None:
        self._source = source
        lines = source.splitlines(keepends=True)
        self._offsets = [0]
        for line in lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._names: list[str] = []
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self._made: list[Change] = []

    def found(self) -> list[Change]:
        self._visit(ast.parse(self._source))
        return self._made

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._visit_function(node)
                return
            case ast.ClassDef():
                self._names.append(node.name)
                self._visit_all(node.body)
                self._names.pop()
                return
            case ast.AnnAssign():
                self._statement(node)
                self._visit_all([node.value] if node.value else [])
                return
            # Before Python 3.12 what stands in an f-string has no place of its own.
            case ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
                return
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                return
        if isinstance(node, ast.stmt):
            self._statement(node)
        self._operator(node)
        self._value(node)
        self._visit_all(ast.iter_child_nodes(node))

    def _visit_all(self, nodes: Iterator[ast.AST] | list[ast.stmt] | list[ast.expr]) -> None:
        for node in nodes:
            self._visit(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit a function's defaults and body: neither annotations nor decorators."""
        self._visit_all(node.args.defaults)
        self._visit_all([default for default in node.args.kw_defaults if default])
        self._names.append(node.name)
        self._functions.append(node)
        self._visit_all(node.body)
        self._functions.pop()
        self._names.pop()

    def _statement(self, node: ast.stmt) -> None:
        """Removed, where nothing that follows lacks a name by it; or returning another value."""
        match node:
            case ast.Expr(ast.Constant() | ast.Yield() | ast.YieldFrom()):
                pass
            case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
                self._replace(node, "pass")
            case ast.Return(None):
                self._replace(node, "pass")
            case ast.Return(ast.expr() as value):
                self._another_value(value)
            case ast.Assign(targets) if all(isinstance(each, ast.Attribute | ast.Subscript) for each in targets):
                self._replace(node, "pass")
            case ast.AnnAssign(target=ast.Attribute() | ast.Subscript(), value=ast.expr()):
                self._replace(node, "pass")
            case _:
                pass
        if isinstance(node, ast.AugAssign) and type(node.op) in SWAPPED_OPERATORS:
            old, new = SWAPPED_OPERATORS[type(node.op)]
            self._between(node.target, node.value, f"{old}=", f"{new}=")

    def _another_value(self, value: ast.expr) -> None:
        returned = ast.unparse(self._functions[-1].returns) if self._functions and self._functions[-1].returns else ""
        if isinstance(value, ast.Constant):
            if isinstance(value.value, str):
                self._replace(value, '""' if value.value else '"mutant"')
        elif returned == "bool":
            self._replace(value, f"not ({self._text(value)})")
        elif returned == "int":
            self._replace(value, f"({self._text(value)}) + 1")
        else:
            self._replace(value, "None")

    def _operator(self, node: ast.AST) -> None:
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                    self._between(left, right, *SWAPPED_COMPARISONS[type(operator)])
            case ast.BoolOp():
                old, new, neutral = ("and", "or", "True") if isinstance(node.op, ast.And) else ("or", "and", "False")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    self._between(left, right, old, new)
                for value in node.values:
                    self._replace(value, neutral)
            case ast.UnaryOp(ast.Not(), operand):
                begin = self._start(node)
                self._add(begin, begin + len("not"), "", node, self._text(node), self._text(operand))
            case ast.BinOp() if type(node.op) in SWAPPED_OPERATORS and (
                self._functions or not isinstance(node.op, ast.BitOr)
            ):
                self._between(node.left, node.right, *SWAPPED_OPERATORS[type(node.op)])

    def _value(self, node: ast.AST) -> None:
        match node:
            case ast.Constant(value):
                self._constant(node, value)
            case ast.Slice():
                for bound in (node.lower, node.upper):
                    if bound:
                        self._replace(bound, "", of=node)
            case ast.Call(ast.Name(name) as called) if name in SWAPPED_NAMES:
                self._replace(called, SWAPPED_NAMES[name])
            case ast.If(test) | ast.While(test) | ast.IfExp(test) if not isinstance(test, ast.Constant):
                self._negate(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    self._negate(test)

    def _negate(self, test: ast.expr) -> None:
        """Not where the operator within does the same."""
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            self._replace(test, f"not ({self._text(test)})")

    def _constant(self, node: ast.Constant, value: object) -> None:
        if isinstance(value, bool):
            self._replace(node, str(not value))
        elif isinstance(value, int | float):
            self._replace(node, repr(value + 1))
            self._replace(node, repr(value - 1))

    def _replace(self, node: ast.expr | ast.stmt, new: str, of: ast.expr | None = None) -> None:
        shown = of or node
        start, stop = self._start(node), self._stop(node)
        before, behind = self._source[self._start(shown) : start], self._source[stop : self._stop(shown)]
        self._add(start, stop, new, node, self._text(shown), before.decode() + new + behind.decode())

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """The operator between two operands; parentheses may stand around it."""
        begin, end = self._stop(left), self._start(right)
        gap = self._source[begin:end].decode()
        found = re.search(r"\s+".join(map(re.escape, old.split())), gap)
        if found:
            start = begin + len(gap[: found.start()].encode())
            stop = start + len(found[0].encode())
            self._add(start, stop, new, right, f"{self._text(left)} {old} {self._text(right)}", new)

    def _add(self, start: int, stop: int, new: str, node: ast.expr | ast.stmt, old: str, now: str) -> None:
        function = ".".join(self._names) if self._functions else ""
        line = self._source.count(b"\n", 0, start) + 1
        self._made.append(
            Change(start, stop, new, function, line, node.end_lineno or line, f"{_shown(old)} -> {_shown(now)}")
        )

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._start(node) : self._stop(node)].decode()

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._offsets[node.lineno - 1] + node.col_offset

    def _stop(self, node: ast.expr | ast.stmt) -> int:
        return self._offsets[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def _shown(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 4]} ..."
