"""The module: a model and a list of engines, called like a function.

For each signature, a model is traced or specialized, simplified, partitioned and compiled once; later calls run the compiled
program. This package also passes the reference engine to the graph passes, which use it to fold constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.module.bundle import load as load
    from xrt.module.dispatch import IOBinding as IOBinding
    from xrt.module.engines import configure as configure, validate_budget as validate_budget
    from xrt.module.explain import (
        Explanation as Explanation,
        Memory as Memory,
        RegionMemory as RegionMemory,
        RegionReport as RegionReport,
    )
    from xrt.module.module import XRTModule as XRTModule
    from xrt.module.options import Buckets as Buckets, Isolation as Isolation, ModuleOptions as ModuleOptions
    from xrt.module.precision import calibrate as calibrate
    from xrt.module.state import Session as Session, stateful as stateful

__all__, __getattr__, __dir__ = load_lazily(__name__)
