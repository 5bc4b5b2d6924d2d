"""Devices by name."""

from __future__ import annotations

import re

from xrt.errors import DeviceError, did_you_mean

__all__ = ["check_device", "kind_of"]

_KINDS = ("cpu", "cuda")
_FORM = re.compile(r"cpu|cuda(:\d+)?")


def check_device(device: object) -> str:
    """Return the device's name as given; raises DeviceError unless it is ``cpu``, ``cuda`` or ``cuda:N``."""
    if not isinstance(device, str) or not _FORM.fullmatch(device):
        near = did_you_mean(str(device).partition(":")[0], _KINDS)
        raise DeviceError(f"unknown device {device!r}; a device is 'cpu', 'cuda' or 'cuda:N'.{near}")
    return device


def kind_of(device: str) -> str:
    """Return ``cpu`` or ``cuda``.

    >>> kind_of("cuda:1")
    'cuda'
    """
    return device.partition(":")[0]
