"""Faults that a person could have written into a module, each a small edit of its text.

None is in a message, an annotation, an assertion or a log line: what only words would show is no fault of the package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from imports import is_typing

COMPARISONS = {
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
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
}
WORDS = re.compile(r"\b(log|logger|logging|warnings?|warn_\w+)\b[\w.]*$")
"""Functions that only say something."""


@dataclass(frozen=True)
class Mutation:
    """An edit: `mutated` instead of what stands from byte `start` to `end`."""

    file: str
    line: int
    operator: str
    start: int
    end: int
    mutated: str

    def applied(self, text: str) -> str:
        whole = text.encode()
        return (whole[: self.start] + self.mutated.encode() + whole[self.end :]).decode()

    def parses(self, text: str) -> bool:
        try:
            ast.parse(self.applied(text))
        except SyntaxError:
            return False
        return True


def mutations(file: str, text: str, defaults: dict[str, set[str]]) -> list[Mutation]:
    """Return the faults for a module, few of which cannot be parsed.

    Args:
        defaults: of functions and classes, the arguments that have a default (defaults_of).
    """
    finder = _Finder(file, text, defaults)
    finder.visit(ast.parse(text))
    return sorted(finder.found, key=lambda each: (each.start, each.operator, each.mutated))


def defaults_of(texts: Iterable[str]) -> dict[str, set[str]]:
    """Return the arguments with a default of all functions and dataclasses, by their names."""
    found: dict[str, set[str]] = {}
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, set()).update(_optional(node.args))
        elif isinstance(node, ast.ClassDef):
            fields = {_name(part.target) for part in node.body if isinstance(part, ast.AnnAssign) and part.value}
            inits = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
            found.setdefault(node.name, set()).update(fields, *(_optional(init.args) for init in inits))
    return found


def _optional(arguments: ast.arguments) -> set[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    positional = positional[len(positional) - len(arguments.defaults) :]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {each.arg for each in positional} | {each.arg for each, default in named if default is not None}


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, text: str, defaults: dict[str, set[str]]) -> None:
        self.found: list[Mutation] = []
        self._file, self._text, self._defaults = file, text.encode(), defaults
        self._lines = [0]
        for line in self._text.split(b"\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)
        self._gives_bool = False

    def _at(self, node: ast.AST) -> tuple[int, int]:
        begin = self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return begin, self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _add(self, operator: str, start: int, end: int, mutated: str) -> None:
        line = self._text[:start].count(b"\n") + 1
        self.found.append(Mutation(self._file, line, operator, start, end, mutated))

    def _swap(self, operator: str, left: ast.AST, right: ast.AST, words: tuple[str, str]) -> None:
        """Replace the operator between two operands, which parentheses may surround."""
        start, end = self._at(left)[1], self._at(right)[0]
        pattern = rb"(?<!\w)" + re.escape(words[0]).encode().replace(rb"\ ", rb"\s+") + rb"(?!\w)"
        if match := re.search(pattern, self._text[start:end]):
            self._add(operator, start + match.start(), start + match.end(), words[1])

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, kind, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._swap("comparison", left, right, COMPARISONS[type(kind)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self._swap("and/or", node.values[0], node.values[1], words)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("not", self._at(node)[0], self._at(node.operand)[0], "")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        concatenates = any(
            isinstance(side, (ast.List, ast.Tuple)) or _is_text(side) for side in (node.left, node.right)
        )
        if type(node.op) in ARITHMETIC and not concatenates:
            self._swap("arithmetic", node.left, node.right, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._add("integer", *self._at(node), str(node.value + 1))

    def visit_Return(self, node: ast.Return) -> None:
        if self._gives_bool and node.value is not None:
            start, end = self._at(node.value)
            self._add("returned bool", start, end, f"not ({self._text[start:end].decode()})")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        if is_typing(node) or (isinstance(node, ast.IfExp) and (_is_text(node.body) or _is_text(node.orelse))):
            return
        for value in ("True", "False"):
            self._add("condition", *self._at(node.test), value)
        self.generic_visit(node)

    visit_IfExp = visit_If  # noqa: N815

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not WORDS.search(ast.unparse(node.value.func)):
            self._add("statement", *self._at(node), "pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("statement", *self._at(node), "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if WORDS.search(ast.unparse(node.func)):
            return
        name = _name(node.func)
        if name in ("min", "max"):
            end = self._at(node.func)[1]
            self._add("min/max", end - 3, end, "max" if name == "min" else "min")
        for keyword in node.keywords:
            if keyword.arg in self._defaults.get(name, ()):
                self._add("argument", *self._with_comma(node, keyword), "")
        self.generic_visit(node)

    def _with_comma(self, call: ast.Call, keyword: ast.keyword) -> tuple[int, int]:
        start, end = self._at(keyword)
        before = re.search(rb",\s*$", self._text[self._at(call.func)[1] : start])
        after = re.match(rb",\s*", self._text[end:])
        return (start - len(before[0]), end) if before else (start, end + len(after[0]) if after else end)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        before = self._gives_bool
        self._gives_bool = node.returns is not None and ast.unparse(node.returns) == "bool"
        self._visit_all([*node.args.defaults, *node.args.kw_defaults, *node.body])
        self._gives_bool = before

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all([node.value])

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _leave_out(self, node: ast.AST) -> None:
        """Its words, and what must hold anyway."""

    visit_Raise = visit_Assert = visit_JoinedStr = _leave_out  # noqa: N815
