"""Devices by name: ``cpu``, and ``cuda`` with or without a number."""

from __future__ import annotations

import re

__all__ = ["KINDS", "is_device", "normalize_device", "parse_device_index", "parse_device_kind"]

KINDS = ("cpu", "cuda")
"""Kinds of device. The runtime defines what each kind is."""

_FORM = re.compile(r"(cpu|cuda)(?::([0-9]+))?")


def is_device(name: str) -> bool:
    """Whether a device has such a name.

    >>> is_device("cuda:1"), is_device("gpu")
    (True, False)
    """
    return _FORM.fullmatch(name) is not None


def parse_device_kind(device: str) -> str:
    """Return ``cpu`` or ``cuda``.

    >>> parse_device_kind("cuda:1")
    'cuda'
    """
    return device.partition(":")[0]


def parse_device_index(device: str) -> int:
    """Return the number of a device among those of its kind; without one it is the first.

    >>> parse_device_index("cuda"), parse_device_index("cuda:1")
    (0, 1)
    """
    return int(device.partition(":")[2] or 0)


def normalize_device(device: str) -> str:
    """Return the one name of a device that has two, so that names are equal where devices are; nothing stays nothing.

    >>> normalize_device("cuda"), normalize_device("cuda:01"), normalize_device("cpu:0")
    ('cuda:0', 'cuda:1', 'cpu')
    """
    return (
        device if device in ("", "cpu") else "cpu" if parse_device_kind(device) == "cpu" else f"cuda:{parse_device_index(device)}"
    )
