"""Native kernels: kernels in C or C++ that implement the interface of ``include/xrt/kernel.h``.

`load` opens a shared library, whose kernels an engine can register in its `OpTable` beside its Python kernels. A `NativeTape`
runs a whole Function of native kernels in one call, without running Python for each node. Nothing here depends on an engine.
"""

from xrt.engines.native.bindings import (
    SHIPPED,
    find_library,
    include_dir,
    multiply,
    open_bundled,
    require_native_library,
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
    "require_native_library",
    "run_kernel",
    "warn_once_of_absence",
    "why_not_shipped",
]
