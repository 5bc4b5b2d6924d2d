"""Where XRT's own native library and the header of its interface lie."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from xrt.engines.native.library import NativeLibrary, load
from xrt.errors import EngineUnavailable

__all__ = ["SHIPPED", "include_dir", "shipped", "why_not_shipped"]

SHIPPED = Path(__file__).parent / "libxrt_native.so"
"""The library that `CMakeLists.txt` builds; it is there where a compiler was at hand when XRT was installed."""


def include_dir() -> str:
    """Return the folder to give a compiler, so that ``#include <xrt/kernel.h>`` finds the interface."""
    return str(Path(__file__).parent / "include")


def shipped() -> NativeLibrary | None:
    """Return XRT's own library of kernels; None where it was not built or does not open: see `why_not_shipped`."""
    return _shipped()[0]


def why_not_shipped() -> str | None:
    """Return why XRT's own native kernels do not serve in this process; None when they do."""
    return _shipped()[1]


@lru_cache(maxsize=1)
def _shipped() -> tuple[NativeLibrary | None, str | None]:
    if not SHIPPED.exists():
        return (
            None,
            "XRT was installed where no C++ compiler was at hand; with one, install it again: pip install --force-reinstall xrt",
        )
    try:
        return load(SHIPPED), None
    except EngineUnavailable as error:
        return None, str(error)
