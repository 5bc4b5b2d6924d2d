"""Device names: ``cpu``, and ``cuda`` with an optional index."""

from __future__ import annotations

import re

from xrt.errors import DeviceError, did_you_mean

KINDS = ("cpu", "cuda")
"""The kinds of device that the runtime implements."""

_SYNTAX = re.compile(r"(cpu|cuda)(?::([0-9]+))?")


def is_device(name: str) -> bool:
    """Whether ``name`` is a valid device name.

    >>> is_device("cuda:1"), is_device("gpu")
    (True, False)
    """
    return _SYNTAX.fullmatch(name) is not None


def parse_device_kind(device: str) -> str:
    """The kind of a device: ``cpu`` or ``cuda``.

    >>> parse_device_kind("cuda:1")
    'cuda'
    """
    return device.partition(":")[0]


def parse_device_index(device: str) -> int:
    """The index in a device name; 0 if it has none.

    >>> parse_device_index("cuda"), parse_device_index("cuda:1")
    (0, 1)
    """
    return int(device.partition(":")[2] or 0)


def normalize_device(device: str) -> str:
    """Normalize a device name, so that equal devices have equal names; the empty string is unchanged.

    >>> normalize_device("cuda"), normalize_device("cuda:01"), normalize_device("cpu:0")
    ('cuda:0', 'cuda:1', 'cpu')
    """
    if not device:
        return ""
    # There is one CPU device, whatever index a name has; "cuda" is the first GPU.
    return "cpu" if parse_device_kind(device) == "cpu" else f"cuda:{parse_device_index(device)}"


_KIND_ALIASES = {"gpu": "cuda", "nvidia": "cuda", "host": "cpu"}
"""Other names that users may try for a kind of device, for hints in error messages."""


def check_device(device: object) -> str:
    """Return a device name if it is ``cpu``, ``cuda`` or ``cuda:N``; raise DeviceError otherwise."""
    if not isinstance(device, str) or not is_device(device) or device.startswith("cpu:"):
        kind = str(device).partition(":")[0].lower()
        hint = did_you_mean(_KIND_ALIASES.get(kind, kind), KINDS)
        raise DeviceError(f"unknown device {device!r}; a device is 'cpu', 'cuda' or 'cuda:N'.{hint}")
    return device
