"""What the text of a Python file says of others: the one reader of import statements. tools/closure.py follows them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


class Import(NamedTuple):
    """`import module as bound` or, with a name, `from module import name as bound`."""

    module: str
    name: str
    bound: str


def imports_of(tree: ast.AST, package: str = "", typing: bool = False) -> Iterator[Import]:
    """Yield what a file imports, also within functions.

    Args:
        package: the dotted name of its folder, for relative imports.
        typing: whether imports under `if TYPE_CHECKING:` count.
    """
    for node in ast.walk(tree) if typing else running(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, "", alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (Import(module, alias.name, alias.asname or alias.name) for alias in node.names)


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a file but for what only type checkers read."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.If) and is_typing(node):
            left += node.body if isinstance(node.test, ast.UnaryOp) else node.orelse  # `not TYPE_CHECKING`
        else:
            left += ast.iter_child_nodes(node)


def is_typing(node: ast.If | ast.IfExp) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


def strings(tree: ast.AST) -> list[str]:
    """Return the strings of a file but for docstrings."""
    nodes = list(running(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return [node.value for node in constants if isinstance(node.value, str)]


def attributes(tree: ast.AST, bound: str) -> set[str] | None:
    """Return what a file uses of a module that it calls so; None where it uses the module itself, or nothing of it."""
    bare, found = 0, []
    for node in ast.walk(tree):
        bare += isinstance(node, ast.Name) and node.id == bound
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == bound:
            found.append(node.attr)
    return set(found) if found and len(found) == bare else None


def defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement at the top of a module defines."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def used(statement: ast.AST) -> set[str]:
    """Return the names in a statement."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
