"""Devices by name: ``cpu``, and ``cuda`` with or without a number."""

from __future__ import annotations

import re

__all__ = ["KINDS", "index_of", "is_device", "kind_of", "one_name"]

KINDS = ("cpu", "cuda")
"""Kinds of device. What stands behind a kind is the runtime's to know."""

_FORM = re.compile(r"(cpu|cuda)(?::([0-9]+))?")


def is_device(name: str) -> bool:
    """Whether a device has such a name.

    >>> is_device("cuda:1"), is_device("gpu")
    (True, False)
    """
    return _FORM.fullmatch(name) is not None


def kind_of(device: str) -> str:
    """Return ``cpu`` or ``cuda``.

    >>> kind_of("cuda:1")
    'cuda'
    """
    return device.partition(":")[0]


def index_of(device: str) -> int:
    """Return the number of a device among those of its kind; without one it is the first.

    >>> index_of("cuda"), index_of("cuda:1")
    (0, 1)
    """
    return int(device.partition(":")[2] or 0)


def one_name(device: str) -> str:
    """Return the one name of a device that has two, so that names are equal where devices are; nothing stays nothing.

    >>> one_name("cuda"), one_name("cuda:01"), one_name("cpu:0")
    ('cuda:0', 'cuda:1', 'cpu')
    """
    return device if device in ("", "cpu") else "cpu" if kind_of(device) == "cpu" else f"cuda:{index_of(device)}"
