"""An engine whose work on a device takes the time that it is told to, there: whoever does not wait sees nothing of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.placement.uneven import Uneven
from xrt.engines import CompileContext, Executable, RunOptions
from xrt.engines.contract import registry
from xrt.engines.contract.graph_compiler import Accelerator
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.graph import Function
from xrt.testing.simulated.array import SimulatedArray, apply


@dataclass(frozen=True)
class Late(Uneven):
    """The reference, and so many seconds of the device for each node of some operators."""

    name: ClassVar[str] = "late"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return _Late(registry.create(REFERENCE).compile(function, context), self.seconds_of(function), context.accelerator)


@dataclass(frozen=True)
class OnCpu(Late):
    """The same, which has never heard of devices."""

    name: ClassVar[str] = "on_cpu"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)


class _Late(Executable):
    def __init__(self, inner: Executable, seconds: float, accelerator: Accelerator | None) -> None:
        self.inner = inner
        self.seconds = seconds
        self.on_host = accelerator is None

    def prepare(self) -> None:
        self.inner.prepare()

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        results = list(self.inner.run(inputs, options))
        if self.on_host:
            time.sleep(self.seconds)
        elif self.seconds:
            results[0] = _sleep_on_device(self.seconds, results[0])
        return results

    def close(self) -> None:
        self.inner.close()


def _sleep_on_device(seconds: float, x: Any) -> Any:
    """Return the array after so many seconds of a simulated device; on another one at once."""

    def compute(x: Any) -> Any:
        if x.any():  # what only wants to know the type of the result gives zeros
            time.sleep(seconds)
        return x.copy()

    return apply("late", compute, (x,)) if isinstance(x, SimulatedArray) else x.copy()
