"""The modules of the package that can be imported wherever the tests run."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import xrt

ROOT = Path(xrt.__file__).parent


def modules() -> list[str]:
    """Return the names of the package's modules, generated ones and the command's entry apart."""
    found = (info.name for info in pkgutil.walk_packages([str(ROOT)], "xrt."))
    return ["xrt", *(name for name in found if not name.endswith(("__main__", "_pb2")))]


def files() -> dict[str, Path]:
    """Return the source file of each module of the package, generated ones apart, by the module's name."""
    found = (path for path in sorted(ROOT.rglob("*.py")) if "_pb2" not in path.name)
    return {".".join(("xrt", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path for path in found}
