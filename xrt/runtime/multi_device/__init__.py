"""Programs whose launches run on accelerators.

Each value has a place on each device that reads it, and is copied there once. Work is queued on one stream per device, and the
host waits only where it reads a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.runtime.multi_device.host_adapter import (
        adapt_to_host as adapt_to_host,
        make_timed_call as make_timed_call,
        on_device as on_device,
    )
    from xrt.runtime.multi_device.program import MultiDeviceProgram as MultiDeviceProgram

__all__, __getattr__, __dir__ = load_lazily(__name__)
