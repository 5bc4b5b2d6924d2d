"""The module: a model and a list of engines, called like a function.

A model of any accepted kind and a list of engines come in; each signature is traced or specialised, simplified,
partitioned and compiled once, and then runs as a straight line. The reference engine is handed to the passes here.
"""

from xrt.module.bound import Bound
from xrt.module.bundle import load
from xrt.module.explain import Explanation, Region
from xrt.module.memory import Memory, RegionMemory
from xrt.module.module import XRTModule
from xrt.module.process import configure
from xrt.module.settings import Settings, checked_budget

__all__ = [
    "Bound",
    "Explanation",
    "Memory",
    "Region",
    "RegionMemory",
    "Settings",
    "XRTModule",
    "checked_budget",
    "configure",
    "load",
]
