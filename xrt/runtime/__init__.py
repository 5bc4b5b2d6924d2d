"""The runtime: a Plan becomes a Program, and a Program runs.

A Plan and engines come in; the compile (through the cache) turns its launch nodes into executables; the Program is the
straight line of launches over slots. Nothing here decides where a node goes or knows an engine by name.
"""

from xrt.runtime.compile import Refusal, RegionToCompile, compile_plan, regions_of
from xrt.runtime.devices import check_device, device, kind_of, to_host
from xrt.runtime.devices.streams import Streams
from xrt.runtime.faults import Inspection, failure, misfit, updated_before
from xrt.runtime.placed import hosted, on_device, repeated
from xrt.runtime.profile import LaunchTime, Profile
from xrt.runtime.program import Program
from xrt.runtime.threads import available_cores, budget_of, default_budget, set_default_budget

__all__ = [
    "Inspection",
    "LaunchTime",
    "Profile",
    "Program",
    "Refusal",
    "RegionToCompile",
    "Streams",
    "available_cores",
    "budget_of",
    "check_device",
    "compile_plan",
    "default_budget",
    "device",
    "failure",
    "hosted",
    "kind_of",
    "misfit",
    "on_device",
    "regions_of",
    "repeated",
    "set_default_budget",
    "to_host",
    "updated_before",
]
