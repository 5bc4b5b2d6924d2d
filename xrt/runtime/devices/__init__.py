"""Devices: names, memory, copies, streams.

A name comes in (``cuda:1``), and a `Device` goes out, opened when it is first needed: its memory, copies to and from the
host, streams and events. Nothing here knows a plan; what runs a plan over several devices is `xrt.runtime.placed`.
"""

from xrt.runtime.devices.interface import Device, MemoryInfo, Recording, Sent
from xrt.runtime.devices.names import check_device, kind_of, one_name
from xrt.runtime.devices.registry import beside, device, plugged, to_host

__all__ = [
    "Device",
    "MemoryInfo",
    "Recording",
    "Sent",
    "beside",
    "check_device",
    "device",
    "kind_of",
    "one_name",
    "plugged",
    "to_host",
]
