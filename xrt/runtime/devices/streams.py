"""The streams of a module: one on each device that it uses."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from xrt.forking import renew_after_fork
from xrt.runtime.devices.registry import device

if TYPE_CHECKING:
    from xrt.runtime.devices.interface import Stream

__all__ = ["Streams"]


class Streams:
    """One stream per device, made when it is first needed; all programs of a module share them."""

    def __init__(self) -> None:
        self._made: dict[str, Stream] = {}
        self._lock = renew_after_fork(threading.Lock())

    def made(self, name: str) -> Stream | None:
        """Return the stream on a device, if there is one yet."""
        return self._made.get(name)

    def on(self, name: str) -> Stream:
        """Return the stream on the device of that name."""
        stream = self._made.get(name)
        if stream is None:
            with self._lock:
                stream = self._made.setdefault(name, device(name).new_stream())
        return stream
