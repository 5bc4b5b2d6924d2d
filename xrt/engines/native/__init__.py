"""Native kernels: kernels written in C or C++ behind the interface of ``include/xrt/kernel.h``.

The path of a shared library goes in; out come kernels that an engine's `OpTable` holds beside its Python kernels, and
tapes that run a whole Function of such kernels in one call. Nothing here knows an engine, and no Python runs per operator.
"""

from xrt.engines.native.alone import compute
from xrt.engines.native.executable import NativeExecutable
from xrt.engines.native.home import SHIPPED, include_dir, needed, opened, shipped, warn_once_of_absence, why_not_shipped
from xrt.engines.native.library import NativeKernel, NativeLibrary, load
from xrt.engines.native.prepared import Prepared
from xrt.engines.native.products import multiply
from xrt.engines.native.tape import NativeTape

__all__ = [
    "SHIPPED",
    "NativeExecutable",
    "NativeKernel",
    "NativeLibrary",
    "NativeTape",
    "Prepared",
    "compute",
    "include_dir",
    "load",
    "multiply",
    "needed",
    "opened",
    "shipped",
    "warn_once_of_absence",
    "why_not_shipped",
]
