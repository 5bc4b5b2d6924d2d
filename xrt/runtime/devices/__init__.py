"""Devices: names, memory, copies, streams.

A device is opened by name (``cuda:1``) on first use. `xrt.runtime.device_program` runs plans on devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.graph.device_names import normalize_device as normalize_device, parse_device_kind as parse_device_kind
    from xrt.runtime.devices.interface import (
        Device as Device,
        GraphCapture as GraphCapture,
        MemoryInfo as MemoryInfo,
        PendingCopy as PendingCopy,
    )
    from xrt.runtime.devices.registry import (
        device as device,
        override_devices as override_devices,
        to_host as to_host,
        use_array_device as use_array_device,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
