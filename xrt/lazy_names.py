"""Lazy loading of a package's public names (PEP 562), so that importing it does not import all of its modules."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_IMPORT = re.compile(r"^    from ([\w.]+) import (\(.*?\)|.*?)$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"(\w+) as (\w+)")


def load_lazily(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Create ``__all__``, ``__getattr__`` and ``__dir__`` for a package.

    Its public names are those that its source imports for type checkers with ``as``, so that each is declared once. A name is
    imported on first access.
    """
    module = sys.modules[package]
    # The source is parsed instead of executed: the imports of the block are exactly what must not happen yet.
    source: str = module.__loader__.get_source(package)  # type: ignore[union-attr]  # every loader of source files has it
    block = re.split(r"\n(?=\S)", source.partition("\nif TYPE_CHECKING:\n")[2], maxsplit=1)[0]
    homes = {alias: (home, name) for home, names in _IMPORT.findall(block) for name, alias in _NAME.findall(names)}

    def load(public: str) -> Any:
        if public not in homes:
            raise AttributeError(f"module {package!r} has no attribute {public!r}")
        home, name = homes[public]
        owner = import_module(home)
        # ``from xrt import errors`` names a submodule, which is no attribute before its import.
        is_module = owner is module or not hasattr(owner, name)
        value = import_module(f"{home}.{name}") if is_module else getattr(owner, name)
        # Cache it, so that further reads do not call __getattr__.
        setattr(module, public, value)
        return value

    return sorted(homes), load, lambda: sorted({*vars(module), *homes})
