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
    from xrt.module.explain import Explanation as Explanation
    from xrt.module.explain import RegionReport as RegionReport
    from xrt.module.html import Memory as Memory
    from xrt.module.html import RegionMemory as RegionMemory
    from xrt.module.module import XRTModule as XRTModule
    from xrt.module.options import ModuleOptions as ModuleOptions
    from xrt.module.options import configure as configure
    from xrt.module.options import validate_budget as validate_budget
    from xrt.module.state import Session as Session
    from xrt.module.state import stateful as stateful
    from xrt.module.verification import ModuleCalibration as ModuleCalibration
    from xrt.module.verification import calibrate as calibrate

_MODULES = {
    "ModuleCalibration": "xrt.module.verification",
    "Explanation": "xrt.module.explain",
    "IOBinding": "xrt.module.dispatch",
    "Memory": "xrt.module.html",
    "ModuleOptions": "xrt.module.options",
    "RegionMemory": "xrt.module.html",
    "RegionReport": "xrt.module.explain",
    "Session": "xrt.module.state",
    "XRTModule": "xrt.module.module",
    "calibrate": "xrt.module.verification",
    "configure": "xrt.module.options",
    "load": "xrt.module.bundle",
    "stateful": "xrt.module.state",
    "validate_budget": "xrt.module.options",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
