"""Native kernels: kernels in C or C++ that implement the interface of ``include/xrt/kernel.h``.

`load` opens a shared library. An engine can register its kernels in an `OpTable` beside Python kernels. A `NativeTape` runs a
Function whose kernels are all native in one call, without Python code for each node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.engines.native.bindings import (
        SHIPPED as SHIPPED,
        find_library as find_library,
        include_dir as include_dir,
        multiply as multiply,
        open_bundled as open_bundled,
        require_native_library as require_native_library,
        warn_once_of_absence as warn_once_of_absence,
        why_not_shipped as why_not_shipped,
    )
    from xrt.engines.native.library import NativeKernel as NativeKernel, NativeLibrary as NativeLibrary, load as load
    from xrt.engines.native.tape import (
        NativeExecutable as NativeExecutable,
        NativeTape as NativeTape,
        PreparedKernel as PreparedKernel,
        run_kernel as run_kernel,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
