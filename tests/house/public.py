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
