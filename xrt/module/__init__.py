"""The module: a model and a list of engines, called like a function.

A model of any accepted kind and a list of engines come in; each signature is traced or specialised, simplified,
partitioned and compiled once, and then runs as a straight line. The reference engine is handed to the passes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.module.bundle import load as load
    from xrt.module.calibration import ModuleCalibration as ModuleCalibration
    from xrt.module.calibration import calibrate as calibrate
    from xrt.module.configuration import configure as configure
    from xrt.module.explain import Explanation as Explanation
    from xrt.module.explain import RegionReport as RegionReport
    from xrt.module.io_binding import IOBinding as IOBinding
    from xrt.module.memory import Memory as Memory
    from xrt.module.memory import RegionMemory as RegionMemory
    from xrt.module.module import XRTModule as XRTModule
    from xrt.module.options import ModuleOptions as ModuleOptions
    from xrt.module.options import validate_budget as validate_budget
    from xrt.module.session import Session as Session
    from xrt.module.state import stateful as stateful

_MODULES = {
    "ModuleCalibration": "xrt.module.calibration",
    "Explanation": "xrt.module.explain",
    "IOBinding": "xrt.module.io_binding",
    "Memory": "xrt.module.memory",
    "ModuleOptions": "xrt.module.options",
    "RegionMemory": "xrt.module.memory",
    "RegionReport": "xrt.module.explain",
    "Session": "xrt.module.session",
    "XRTModule": "xrt.module.module",
    "calibrate": "xrt.module.calibration",
    "configure": "xrt.module.configuration",
    "load": "xrt.module.bundle",
    "stateful": "xrt.module.state",
    "validate_budget": "xrt.module.options",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
