"""The module: a model and a list of engines, called like a function.

A model of any accepted kind and a list of engines come in; each signature is traced or specialised, simplified,
partitioned and compiled once, and then runs as a straight line. The reference engine is handed to the passes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.module.bundle import load as load
    from xrt.module.dispatch import IOBinding as IOBinding
    from xrt.module.engines import configure as configure, validate_budget as validate_budget
    from xrt.module.explain import Explanation as Explanation, RegionReport as RegionReport
    from xrt.module.memory import Memory as Memory, RegionMemory as RegionMemory
    from xrt.module.module import XRTModule as XRTModule
    from xrt.module.options import Isolation as Isolation, ModuleOptions as ModuleOptions
    from xrt.module.sizes import Buckets as Buckets
    from xrt.module.state import Session as Session, stateful as stateful
    from xrt.module.verification import calibrate as calibrate

__all__, __getattr__, __dir__ = load_lazily(__name__)
