"""The runtime: a Plan becomes a Program, and a Program runs.

A Plan and engines come in; the compile (through the cache) turns its launch nodes into executables; the Program is the
straight line of launches over slots. Nothing here decides where a node goes or knows an engine by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.runtime.call_frame import OutputInspector as OutputInspector
    from xrt.runtime.call_frame import find_type_mismatch as find_type_mismatch
    from xrt.runtime.call_frame import list_inplace_updates as list_inplace_updates
    from xrt.runtime.call_frame import to_run_failed as to_run_failed
    from xrt.runtime.compile import Refusal as Refusal
    from xrt.runtime.compile import RegionToCompile as RegionToCompile
    from xrt.runtime.compile import compile_plan as compile_plan
    from xrt.runtime.compile import list_regions as list_regions
    from xrt.runtime.devices import check_device as check_device
    from xrt.runtime.devices import device as device
    from xrt.runtime.devices import parse_device_kind as parse_device_kind
    from xrt.runtime.devices import to_host as to_host
    from xrt.runtime.devices.registry import Streams as Streams
    from xrt.runtime.multi_device import adapt_to_host as adapt_to_host
    from xrt.runtime.multi_device import make_timed_call as make_timed_call
    from xrt.runtime.multi_device import on_device as on_device
    from xrt.runtime.profile import LaunchTime as LaunchTime
    from xrt.runtime.profile import Profile as Profile
    from xrt.runtime.program import Program as Program
    from xrt.runtime.threads import available_cores as available_cores
    from xrt.runtime.threads import default_budget as default_budget
    from xrt.runtime.threads import find_granted_threads as find_granted_threads
    from xrt.runtime.threads import resolve_thread_budget as resolve_thread_budget
    from xrt.runtime.threads import set_budget_source as set_budget_source
    from xrt.runtime.threads import set_default_budget as set_default_budget

_MODULES = {
    "LaunchTime": "xrt.runtime.profile",
    "OutputInspector": "xrt.runtime.call_frame",
    "Profile": "xrt.runtime.profile",
    "Program": "xrt.runtime.program",
    "Refusal": "xrt.runtime.compile",
    "RegionToCompile": "xrt.runtime.compile",
    "Streams": "xrt.runtime.devices.registry",
    "adapt_to_host": "xrt.runtime.multi_device",
    "available_cores": "xrt.runtime.threads",
    "check_device": "xrt.runtime.devices",
    "compile_plan": "xrt.runtime.compile",
    "default_budget": "xrt.runtime.threads",
    "device": "xrt.runtime.devices",
    "find_type_mismatch": "xrt.runtime.call_frame",
    "list_inplace_updates": "xrt.runtime.call_frame",
    "list_regions": "xrt.runtime.compile",
    "make_timed_call": "xrt.runtime.multi_device",
    "on_device": "xrt.runtime.multi_device",
    "parse_device_kind": "xrt.runtime.devices",
    "find_granted_threads": "xrt.runtime.threads",
    "resolve_thread_budget": "xrt.runtime.threads",
    "set_budget_source": "xrt.runtime.threads",
    "set_default_budget": "xrt.runtime.threads",
    "to_host": "xrt.runtime.devices",
    "to_run_failed": "xrt.runtime.call_frame",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
