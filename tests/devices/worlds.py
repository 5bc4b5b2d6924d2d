"""Where the tests of devices run: simulated ones, in each order of things, and CUDA's where there are any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import xrt
from xrt.cache import CompileCache
from xrt.runtime.devices import Device, device
from xrt.runtime.devices.interface import TransferStats
from xrt.testing.simulated import simulate_devices

TOY = "toy{native=off}"
WORLDS = ["eager", "late", "random", pytest.param("cuda", marks=pytest.mark.cuda)]


@dataclass
class World:
    """Devices to test on."""

    machine: Any
    """The simulated machine; None on real devices."""

    def device(self, name: str = "cuda") -> Device:
        return device(name)

    def module(self, model: Any, engine: Any = TOY, where: str = "cuda", **options: Any) -> xrt.XRTModule:
        return xrt.XRTModule(model, engine, where, cache=CompileCache(), **options)

    def down(self, value: Any) -> Any:
        """Return a result on the host."""
        if isinstance(value, tuple | list):
            return [self.down(item) for item in value]
        return value if isinstance(value, np.ndarray) else value.get()

    def up(self, array: np.ndarray[Any, Any], name: str = "cuda") -> Any:
        """Return a copy on a device, made by the caller."""
        there = self.device(name)
        with there.activate(there.current_stream()):
            return there.upload(array)


@contextmanager
def world(kind: str, **more: Any) -> Iterator[World]:
    if kind == "cuda":
        yield World(None)
        return
    with simulate_devices(order=kind, seed=len(more), **more) as machine:  # type: ignore[arg-type]  # one of the orders
        yield World(machine)


def traffic(module: xrt.XRTModule) -> TransferStats:
    result = module.profile().traffic
    assert result is not None
    return result


def same(world: World, results: Any, expected: Any) -> None:
    """Bit for bit on a simulated device, whose kernels are NumPy's; to rounding on a real one."""
    for got, want in zip(listed(world.down(results)), listed(expected), strict=True):
        if world.machine is not None:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def listed(values: Any) -> Sequence[Any]:
    return list(values) if isinstance(values, tuple | list) else [values]
