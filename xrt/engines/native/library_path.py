"""Where XRT's own native library and the header of its interface lie."""

from __future__ import annotations

import threading
import warnings
from functools import cache, lru_cache
from pathlib import Path

from xrt.engines.native.library import NativeLibrary, load
from xrt.errors import EngineUnavailable, NativeWarning

__all__ = ["SHIPPED", "find_library", "include_dir", "open_bundled", "requires_native", "warn_once_of_absence", "why_not_shipped"]

SHIPPED = Path(__file__).parent / "lib" / "libxrt_native.so"
"""The library that `CMakeLists.txt` builds; it exists if a compiler was available when XRT was installed."""


FUNCTIONS = (
    *("xrt_tape_new", "xrt_tape_run", "xrt_tape_said", "xrt_tape_frames", "xrt_tape_delete"),
    *("xrt_run_alone", "xrt_pool_workers", "xrt_multiply"),
)
"""The functions that the library exports in addition to its kernels."""


def include_dir() -> str:
    """Return the folder to give a compiler, so that ``#include <xrt/kernel.h>`` finds the interface."""
    return str(Path(__file__).parent / "include")


def find_library() -> NativeLibrary | None:
    """Return XRT's own library of kernels; None where it was not built or does not open: see `why_not_shipped`."""
    return _shipped()[0]


def requires_native() -> NativeLibrary:
    """Return XRT's own library; raises EngineUnavailable with the reason where it does not serve."""
    library, reason = _shipped()
    if library is None:
        raise EngineUnavailable(f"the native kernels of XRT do not serve: {reason}")
    return library


def why_not_shipped() -> str | None:
    """Return why XRT's own native kernels do not serve in this process; None when they do."""
    return _shipped()[1]


@cache
def open_bundled(paths: tuple[str, ...], *, with_shipped: bool) -> tuple[NativeLibrary, ...]:
    """Return the libraries at those paths, and behind them XRT's own where it is wanted and serves; each is opened once."""
    own = find_library() if with_shipped else None
    return (*(load(path) for path in paths), *([own] if own else []))


def warn_once_of_absence() -> None:
    """Warn, once in a process, where XRT's own native kernels do not serve."""
    reason = why_not_shipped()
    if reason is not None and not _warned.is_set():
        _warned.set()
        warnings.warn(f"the native kernels of XRT do not serve, NumPy's do: {reason}", NativeWarning, stacklevel=2)


_warned = threading.Event()


@lru_cache(maxsize=1)
def _shipped() -> tuple[NativeLibrary | None, str | None]:
    if not SHIPPED.exists():
        return None, (
            f"{SHIPPED.name} was not built when XRT was installed, for want of a C++ compiler as a rule; install one (on Debian: "
            "apt-get install g++) and then XRT again, with -v to see the build: pip install -v --force-reinstall --no-deps xrt"
        )
    try:
        library = load(SHIPPED)
    except EngineUnavailable as error:
        return None, str(error)
    lacking = [name for name in FUNCTIONS if not hasattr(library.handle, name)]
    if lacking:
        return None, (
            f"{SHIPPED.name} was built of other sources than this XRT's: it lacks {', '.join(lacking)}; rebuild it with "
            "`make native`, or install XRT again"
        )
    return library, None
