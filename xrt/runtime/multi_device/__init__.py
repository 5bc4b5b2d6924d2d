"""Programs on devices: a Plan whose launches run elsewhere than on the CPU alone.

A Plan and executables come in; what goes out runs as a `Program` does. Each value has a place on each device that reads it,
and crosses once; work is put on one stream per device, and the host waits where it reads, and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.runtime.multi_device.host_adapter import adapt_to_host as adapt_to_host
    from xrt.runtime.multi_device.host_adapter import make_timed_call as make_timed_call
    from xrt.runtime.multi_device.host_adapter import on_device as on_device
    from xrt.runtime.multi_device.program import MultiDeviceProgram as MultiDeviceProgram

_MODULES = {
    "MultiDeviceProgram": "xrt.runtime.multi_device.program",
    "adapt_to_host": "xrt.runtime.multi_device.host_adapter",
    "make_timed_call": "xrt.runtime.multi_device.host_adapter",
    "on_device": "xrt.runtime.multi_device.host_adapter",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
