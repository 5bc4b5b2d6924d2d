"""What a check sees of arrays on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from xrt.runtime.devices.interface import Device

__all__ = ["copy_to_host", "describe_arrays"]


def describe_arrays(values: Sequence[Any]) -> list[Any]:
    """Return arrays of the host that have the types and shapes of the device's, and no memory to speak of."""
    return [describe_arrays(value) if isinstance(value, list) else _stand_in(value) for value in values]


def _stand_in(value: Any) -> Any:
    if not hasattr(value, "dtype"):
        return value
    return np.broadcast_to(np.zeros((), value.dtype), value.shape)


def copy_to_host(values: Sequence[Any], device: Device) -> list[Any]:
    """Return copies on the host, which waits for them."""
    return [
        copy_to_host(value, device) if isinstance(value, list) else device.download(value) if device.owns(value) else value
        for value in values
    ]
