"""What a check sees of arrays on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xrt.runtime.devices.interface import Device

__all__ = ["host_of", "shown"]


def shown(values: Sequence[Any]) -> list[Any]:
    """Return arrays of the host that have the types and shapes of the device's, and no memory to speak of."""
    return [shown(value) if isinstance(value, list) else _stand_in(value) for value in values]


def _stand_in(value: Any) -> Any:
    if not hasattr(value, "dtype"):
        return value
    return np.broadcast_to(np.zeros((), value.dtype), value.shape)


def host_of(values: Sequence[Any], device: Device) -> list[Any]:
    """Return copies on the host, which waits for them."""
    return [
        host_of(value, device) if isinstance(value, list) else device.download(value) if device.owns(value) else value
        for value in values
    ]
