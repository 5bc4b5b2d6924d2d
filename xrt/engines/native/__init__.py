"""Native kernels: kernels written in C or C++ behind the interface of ``include/xrt/kernel.h``.

`load` opens a shared library, whose kernels join the Python ones in an engine's `OpTable`; a `NativeTape` runs a whole Function
of such kernels in one call. Nothing here depends on an engine, and no Python runs per operator.
"""

from xrt.engines.native.bindings import (
    SHIPPED,
    find_library,
    include_dir,
    multiply,
    open_bundled,
    requires_native,
    warn_once_of_absence,
    why_not_shipped,
)
from xrt.engines.native.library import NativeKernel, NativeLibrary, load
from xrt.engines.native.tape import NativeExecutable, NativeTape, PreparedKernel, run_kernel

__all__ = [
    "SHIPPED",
    "NativeExecutable",
    "NativeKernel",
    "NativeLibrary",
    "NativeTape",
    "PreparedKernel",
    "find_library",
    "include_dir",
    "load",
    "multiply",
    "open_bundled",
    "requires_native",
    "run_kernel",
    "warn_once_of_absence",
    "why_not_shipped",
]
