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

    The public names are the names that the package's ``if TYPE_CHECKING`` block imports with ``as``. A name is imported on first
    access.
    """
    module = sys.modules[package]
    # Parse the source instead of executing the block, because its imports must not happen yet.
    source: str = module.__loader__.get_source(package)  # type: ignore[union-attr]  # every loader of source files has it
    _, _, rest = source.partition("\nif TYPE_CHECKING:\n")
    block, *_ = re.split(r"\n(?=\S)", rest, maxsplit=1)  # up to the next line that is not indented
    sources = {alias: (path, name) for path, names in _IMPORT.findall(block) for name, alias in _NAME.findall(names)}

    def load(alias: str) -> Any:
        if alias not in sources:
            raise AttributeError(f"module {package!r} has no attribute {alias!r}")
        path, name = sources[alias]
        source_module = import_module(path)
        # ``from xrt import errors`` imports a submodule, which is not an attribute of the package yet.
        is_submodule = source_module is module or not hasattr(source_module, name)
        value = import_module(f"{path}.{name}") if is_submodule else getattr(source_module, name)
        # Cache the value, so that later reads do not call __getattr__.
        setattr(module, alias, value)
        return value

    return sorted(sources), load, lambda: sorted({*vars(module), *sources})
