"""Devices by name."""

from __future__ import annotations

from xrt.errors import DeviceError, did_you_mean
from xrt.graph.device_names import KINDS, is_device, normalize_device, parse_device_index, parse_device_kind

__all__ = ["check_device", "normalize_device", "parse_device_index", "parse_device_kind"]

_OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda", "host": "cpu"}
"""What other libraries call the kinds of device."""


def check_device(device: object) -> str:
    """Return the device's name as given; raises DeviceError unless it is ``cpu``, ``cuda`` or ``cuda:N``."""
    if not isinstance(device, str) or not is_device(device) or device.startswith("cpu:"):
        kind = str(device).partition(":")[0].lower()
        near = did_you_mean(_OTHER_NAMES.get(kind, kind), KINDS)
        raise DeviceError(f"unknown device {device!r}; a device is 'cpu', 'cuda' or 'cuda:N'.{near}")
    return device
