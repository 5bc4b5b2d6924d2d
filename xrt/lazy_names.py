"""Lazy loading of a package's public names (PEP 562), so that importing it does not import all of its modules."""

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
    """Create ``__getattr__`` and ``__dir__`` for a package.

    ``names`` maps each public name to the full name of its module, which is imported on first access.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        # Cache it, so that further reads do not call __getattr__.
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})
