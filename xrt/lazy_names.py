"""Names of a package that load on first use, so that a package is imported without all of its modules (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["list_names", "load_lazily"]


def list_names(modules: Mapping[str, Sequence[str]]) -> list[str]:
    """The public names of all modules, sorted: the package's ``__all__``."""
    return sorted(name for names in modules.values() for name in names)


def load_lazily(package: str, modules: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package.

    ``modules`` maps the full name of each module to the public names that it defines. A module is imported when one of its names
    is first read.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})
