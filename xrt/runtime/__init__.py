"""Compile a Plan to a Program, and run Programs.

Each launch node is compiled to an executable, through the cache. A Program runs the launches one after the other. The runtime
does not choose engines, and does not know them by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.runtime.compile import (
        Refusal as Refusal,
        RegionToCompile as RegionToCompile,
        compile_plan as compile_plan,
        list_regions as list_regions,
    )
    from xrt.runtime.devices import (
        device as device,
        parse_device_kind as parse_device_kind,
        to_host as to_host,
    )
    from xrt.runtime.devices.registry import Streams as Streams
    from xrt.runtime.host_adapter import (
        adapt_to_host as adapt_to_host,
        make_timed_call as make_timed_call,
        on_device as on_device,
    )
    from xrt.runtime.profile import LaunchTime as LaunchTime, Profile as Profile
    from xrt.runtime.program import (
        OutputInspector as OutputInspector,
        Program as Program,
        find_type_mismatch as find_type_mismatch,
        list_inplace_updates as list_inplace_updates,
        to_run_failed as to_run_failed,
    )
    from xrt.runtime.threads import (
        count_available_cores as count_available_cores,
        find_granted_threads as find_granted_threads,
        get_default_budget as get_default_budget,
        resolve_thread_budget as resolve_thread_budget,
        set_budget_source as set_budget_source,
        set_default_budget as set_default_budget,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
