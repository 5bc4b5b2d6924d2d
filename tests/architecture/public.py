"""The modules of the package, by name and as trees: each source is read, parsed and walked once, when a test first needs it."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

import xrt

ROOT = Path(xrt.__file__).parent


@cache
def modules() -> tuple[str, ...]:
    """Return the names of the package's modules that can be imported, generated ones and the command's entry apart."""
    return tuple(name for name in files() if not name.endswith("__main__"))


def packages() -> list[str]:
    """Return the names of the modules that are packages."""
    return [name for name, path in files().items() if path.name == "__init__.py"]


@cache
def files() -> dict[str, Path]:
    """Return the source file of each module of the package, generated ones apart, by the module's name."""
    result = (path for path in sorted(ROOT.rglob("*.py")) if "_pb2" not in path.name)
    return {".".join(("xrt", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path for path in result}


@cache
def read(path: Path) -> str:
    """Return the text of a source."""
    return path.read_text(encoding="utf-8")


@cache
def parse(path: Path) -> ast.Module:
    """Return the tree of a source, which is kept, and left out of later collections of garbage."""
    tree = ast.parse(read(path))
    gc.freeze()
    return tree


@cache
def walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return every node of a tree."""
    return tuple(ast.walk(tree))
