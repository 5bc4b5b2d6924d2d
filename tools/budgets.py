"""How large each package of XRT may be, and which bad habits of today remain: ``tests/architecture/budgets.toml``.

`make budgets` lowers the figures to what is there and drops exceptions that are gone. It never raises one: who adds to a package
removes as much, or changes the file by hand and says in the commit which capability it is for. Without the file, it writes the
figures of today.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

__all__ = ["BUDGETS", "Budgets", "count_private_uses", "find_single_bases", "measure"]

TOP = Path(__file__).parents[1]
BUDGETS = TOP / "tests" / "architecture" / "budgets.toml"
SPLIT = ("engines/", "frontends/", "passes/gradient", "passes/padding", "passes/quantize")
"""Subpackages that have budgets of their own."""

NAMED_TUPLE = ("_asdict", "_fields", "_make", "_replace")
"""Names that are public in spite of the underscore."""

Trees: TypeAlias = Mapping[str, ast.Module]
"""Parsed modules by their paths."""


@dataclass(frozen=True)
class Budgets:
    """What the file says, or what is there."""

    lines: Mapping[str, int]
    modules: Mapping[str, int]
    private_uses: Mapping[str, int]
    """How often a name with an underscore of some module is used in another one."""
    single_bases: frozenset[str]
    """Classes that exist only to be the base of one other class."""

    @classmethod
    def read(cls, path: Path = BUDGETS) -> Budgets:
        """Read the file."""
        held = tomllib.loads(path.read_text(encoding="utf-8"))
        packages = held["packages"]
        return cls(
            {name: size["lines"] for name, size in packages.items()},
            {name: size["modules"] for name, size in packages.items()},
            held["private_uses"],
            frozenset(held["single_bases"]),
        )

    def lowered_to(self, found: Budgets) -> Budgets:
        """Return the smaller of both in each entry; entries of what is gone are dropped, and none is added."""
        return Budgets(
            _lower(self.lines, found.lines),
            _lower(self.modules, found.modules),
            _lower(self.private_uses, found.private_uses),
            self.single_bases & found.single_bases,
        )

    def find_excess(self, found: Budgets) -> list[str]:
        """Name each figure of what is there that is above its budget."""
        return [
            *_find_larger("{name}: {found} lines, the budget is {limit}", found.lines, self.lines),
            *_find_larger("{name}: {found} modules, the budget is {limit}", found.modules, self.modules),
            *_find_larger(
                "{name} is used {found} times outside of its module, {limit} allowed", found.private_uses, self.private_uses
            ),
            *(
                f"class {name} exists only to be a base of one other class"
                for name in sorted(found.single_bases - self.single_bases)
            ),
        ]

    def __str__(self) -> str:
        packages = (
            f'"{name}" = {{ lines = {lines}, modules = {self.modules[name]} }}' for name, lines in sorted(self.lines.items())
        )
        uses = (f"{name} = {count}" for name, count in sorted(self.private_uses.items()))
        bases = (f'    "{name}",' for name in sorted(self.single_bases))
        return "\n".join(
            [
                "# `make budgets` lowers these figures and never raises one; see tools/budgets.py.",
                "single_bases = [",
                *bases,
                "]",
                "",
                "[packages]",
                *packages,
                "",
                "[private_uses]",
                *uses,
                "",
            ]
        )


def _lower(limits: Mapping[str, int], found: Mapping[str, int]) -> dict[str, int]:
    return {name: min(limit, found[name]) for name, limit in limits.items() if name in found}


def _find_larger(text: str, found: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[str]:
    for name, count in sorted(found.items()):
        if count > limits.get(name, 0):
            yield text.format(name=name, found=count, limit=limits.get(name, 0))


def measure(top: Path = TOP) -> Budgets:
    """Return the figures of the tree."""
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    trees = {}
    for path in sorted((top / "xrt").rglob("*.py")):
        if "_pb2" in path.name:
            continue
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(top).as_posix()
        trees[name] = ast.parse(text)
        lines[package_of(name)] += len(text.splitlines())
        modules[package_of(name)] += 1
    for path in (top / "tests").rglob("*.py"):
        lines["tests"] += len(path.read_text(encoding="utf-8").splitlines())
        modules["tests"] += 1
    return Budgets(lines, modules, count_private_uses(trees), find_single_bases(trees))


def package_of(path: str) -> str:
    """Return which budget a file of ``xrt/`` counts for: its package, or ``xrt`` for a module of the top."""
    folders = path.split("/")[1:-1]
    return "/".join(["xrt", *folders[: 1 + "/".join(folders).startswith(SPLIT)]])


# ---------------------------------------------------------------------- privates


def count_private_uses(trees: Trees) -> dict[str, int]:
    """Count, for each ``_name`` of the package, the uses in modules that do not define it.

    A use is ``x._name`` where ``x`` is neither ``self`` nor ``cls``, or an import of the name. A module defines the names of its
    functions, classes and variables, and the attributes that it assigns or annotates.
    """
    defined = {path: set(_list_definitions(tree)) for path, tree in trees.items()}
    everywhere = set[str]().union(*defined.values())
    uses: Counter[str] = Counter()
    for path, tree in trees.items():
        uses.update(name for name in _list_uses(tree) if name in everywhere - defined[path])
    return dict(uses)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ("_", *NAMED_TUPLE)


def _list_definitions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node):
            name = node.attr
        else:
            continue
        if _is_private(name):
            yield name


def _list_uses(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and not _is_own(node):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "xrt":
            yield from (alias.name for alias in node.names if _is_private(alias.name))


def _is_own(node: ast.Attribute) -> bool:
    value = node.value
    is_super = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"
    return is_super or (isinstance(value, ast.Name) and value.id in ("self", "cls"))


# ---------------------------------------------------------------------- bases


def find_single_bases(trees: Trees) -> frozenset[str]:
    """Return the classes that one class alone inherits from and that nothing else names; imports and ``__all__`` do not count."""
    heirs: defaultdict[str, set[str]] = defaultdict(set)
    named: Counter[str] = Counter()
    classes = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.add(node.name)
                for base in node.bases:
                    heirs[_last_name(base)].add(node.name)
            elif isinstance(node, ast.Name):
                named[node.id] += 1
            elif isinstance(node, ast.Attribute):
                named[node.attr] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                named.update([node.value] if node.value not in _listed(tree) else [])
    return frozenset(name for name in classes if len(heirs[name]) == 1 and named[name] == 1)


def _last_name(base: ast.expr) -> str:
    base = base.value if isinstance(base, ast.Subscript) else base
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


@functools.cache
def _listed(tree: ast.Module) -> frozenset[str]:
    """Return the names of a module's ``__all__``, and of the tables by which a package imports lazily."""
    tables = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value)
    return frozenset(
        part.value for node in tables for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def main() -> None:
    """Lower the figures of the file to what is there."""
    found = measure()
    text = str(Budgets.read().lowered_to(found) if BUDGETS.exists() else found)
    BUDGETS.write_text(text, encoding="utf-8")
    print(f"wrote {BUDGETS.relative_to(TOP)}: {sum(found.lines.values()) - found.lines['tests']} lines of xrt/")
    print("\n".join(Budgets.read().find_excess(found)))


if __name__ == "__main__":
    main()
