"""Devices: names, memory, copies, streams.

A name comes in (``cuda:1``), and a `Device` goes out, opened when it is first needed: its memory, copies to and from the
host, streams and events. Nothing here knows a plan; what runs a plan over several devices is `xrt.runtime.multi_device`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.runtime.devices.interface import Device as Device
    from xrt.runtime.devices.interface import GraphCapture as GraphCapture
    from xrt.runtime.devices.interface import MemoryInfo as MemoryInfo
    from xrt.runtime.devices.interface import PendingCopy as PendingCopy
    from xrt.runtime.devices.registry import check_device as check_device
    from xrt.runtime.devices.registry import device as device
    from xrt.runtime.devices.registry import normalize_device as normalize_device
    from xrt.runtime.devices.registry import override_devices as override_devices
    from xrt.runtime.devices.registry import parse_device_kind as parse_device_kind
    from xrt.runtime.devices.registry import to_host as to_host
    from xrt.runtime.devices.registry import use_array_device as use_array_device

_MODULES = {
    "Device": "xrt.runtime.devices.interface",
    "GraphCapture": "xrt.runtime.devices.interface",
    "MemoryInfo": "xrt.runtime.devices.interface",
    "PendingCopy": "xrt.runtime.devices.interface",
    "check_device": "xrt.runtime.devices.registry",
    "device": "xrt.runtime.devices.registry",
    "normalize_device": "xrt.runtime.devices.registry",
    "override_devices": "xrt.runtime.devices.registry",
    "parse_device_kind": "xrt.runtime.devices.registry",
    "to_host": "xrt.runtime.devices.registry",
    "use_array_device": "xrt.runtime.devices.registry",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
