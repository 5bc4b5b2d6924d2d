"""How long functions are, read off the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.architecture.public import walk


@dataclass(frozen=True, slots=True)
class Length:
    """A function and its lines, from ``def`` to the end, without decorators and docstring."""

    where: str
    lines: int

    def __str__(self) -> str:
        return f"{self.where} ({self.lines} lines)"


def functions(tree: ast.Module, name: str) -> Iterator[Length]:
    """Yield the length of every function in a source, methods and inner functions too."""
    for node in walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Length(f"{name}:{node.lineno} {node.name}", _lines(node))


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    whole = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return whole - ((first.end_lineno or 0) - first.lineno + 1 if is_docstring else 0)
