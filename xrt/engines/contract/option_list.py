"""The options of an engine, or of any dataclass of options, with their types, defaults and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xrt.graph import FrozenDict

__all__ = ["OptionEntry", "list_options"]


@dataclass(frozen=True, slots=True)
class OptionEntry:
    """One option as documentation shows it."""

    name: str
    type: str
    """The annotation as it is written."""
    default: str
    """The default as Python writes it; ``required`` where there is none."""
    meaning: str
    """The docstring below the field, on one line; empty where there is none."""


def list_options(cls: type) -> tuple[OptionEntry, ...]:
    """Return the fields of a dataclass that its constructor takes, in the order of their declaration.

    Types and docstrings come from the source of the class and its bases; a class without a source has empty meanings.
    """
    written = {name: entry for base in reversed(cls.__mro__) for name, entry in _read_fields(base)}
    return tuple(OptionEntry(field.name, *_describe(field, written)) for field in dataclasses.fields(cls) if field.init)


def _describe(field: dataclasses.Field[Any], written: Mapping[str, tuple[str, str]]) -> tuple[str, str, str]:
    kind, meaning = written.get(field.name, (str(field.type), ""))
    return kind, _spell_default(field), meaning


def _read_fields(cls: type) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield name, annotation and docstring of each annotated name in the body of the class."""
    if not dataclasses.is_dataclass(cls):
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # made at run time, or shipped without its source
        return
    body = getattr(tree.body[0], "body", [])
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, (ast.unparse(statement.annotation), _docstring(following))


def _docstring(statement: ast.stmt | None) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else None
    return " ".join(text.split()) if isinstance(text, str) else ""


def _spell_default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return _spell(field.default_factory())
    return "required" if field.default is dataclasses.MISSING else _spell(field.default)


def _spell(value: Any) -> str:
    if value == FrozenDict():
        return "{}"
    return f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else repr(value)
