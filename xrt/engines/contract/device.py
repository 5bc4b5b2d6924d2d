"""A device other than the CPU, as an engine sees it: its arrays, its streams, and the way in and out.

The runtime opens devices and hands one to the compile, in `CompileContext.accelerator`. An engine needs nothing else to run
there, so that a simulated device takes the place of a real one without the engine knowing.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

__all__ = ["Accelerator"]


class Accelerator(abc.ABC):
    """A device with its own memory and streams. Work on a stream begins after earlier work there, without blocking a thread."""

    name: str
    """One name of it: ``cuda:0``."""

    @property
    @abc.abstractmethod
    def hardware(self) -> str:
        """Model, capability and versions of what drives it: an ingredient of the signature."""

    @property
    def architecture(self) -> str:
        """What code is compiled for, as the device's compilers call it (``sm_90``); empty where nothing is."""
        return ""

    @property
    @abc.abstractmethod
    def xp(self) -> Any:
        """The array module: NumPy's functions over the device's arrays. They work on the current stream."""

    @property
    @abc.abstractmethod
    def has_addresses(self) -> bool:
        """Whether arrays and streams have addresses that a library can be handed (``__cuda_array_interface__``, ``ptr``)."""

    @abc.abstractmethod
    def address(self, value: Any) -> int:
        """Return the address of an array or a stream, for a library; only if the device `has_addresses`."""

    @abc.abstractmethod
    def at(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Any:
        """Return an array over memory of another owner, which it keeps alive; only where the device `has_addresses`."""

    @abc.abstractmethod
    def upload(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a copy on the device, made on the current stream; the host's array may change once this returns."""

    @abc.abstractmethod
    def download(self, array: Any) -> np.ndarray[Any, Any]:
        """Return a copy on the host, which waits for the current stream."""

    @abc.abstractmethod
    def new_stream(self) -> Any:
        """Return a stream that waits for no other."""

    @abc.abstractmethod
    def activate(self, stream: Any) -> AbstractContextManager[object]:
        """Make the device and the stream current for this thread, as long as the context lasts."""

    @abc.abstractmethod
    def follow(self, later: Any, earlier: Any) -> None:
        """Make later work on one stream wait for the work now on another; no thread blocks. Does nothing for one and the same."""

    @abc.abstractmethod
    def wait(self, streams: Sequence[Any]) -> None:
        """Let the calling thread wait for all that is on the streams by now."""
