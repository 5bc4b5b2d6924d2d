"""A native tape as an executable: for toy, and for any engine that has made one of its own kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.contract.graph_compiler import Executable
from xrt.engines.contract.memory_use import MemoryUse
from xrt.engines.contract.options import RunOptions
from xrt.errors import InputError
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.engines.native.tape import NativeTape

__all__ = ["NativeExecutable"]

FILLED_FROM = 1 << 12
"""Bytes from which writing to a given buffer is worth handing it down: below, allocating an array costs less."""


class NativeExecutable(Executable):
    """One native call per run."""

    outputs_are_fresh = True

    def __init__(self, name: str, tape: NativeTape, outputs: Sequence[str]) -> None:
        """Take a tape whose outputs have those names; ``name`` is the Function's, for errors."""
        self.tape = tape
        self._name = name
        self._outputs = tuple(outputs)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> list[Any]:
        if len(inputs) != len(self.tape.inputs):
            raise InputError(f"function {self._name!r} takes {len(self.tape.inputs)} inputs; got {len(inputs)}")
        if options.out is not None:
            self._check(options.out)
        return self.tape.run(inputs, options.out)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        run = self.tape.run
        return lambda *inputs: run(inputs)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        return self.tape.bound(inputs, outputs) or super().bind(inputs, outputs)

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        run, buffers = self.tape.run, tuple(outputs)

        def call(*inputs: Any) -> None:
            run(inputs, buffers)

        return call

    def supports_io_binding(self) -> bool:
        return True

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [FILLED_FROM] * len(self._outputs)

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self.tape.in_place

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values and what kernels need to compute, planned once; a block is kept for each call that was ever under way"
        return (MemoryUse("workspace", self.tape.workspace, why, per_call=True),)

    def _check(self, out: Sequence[Any]) -> None:
        if len(out) != len(self._outputs):
            raise InputError(f"function {self._name!r} has {len(self._outputs)} outputs; out= holds {len(out)} buffers")
        for name, (shape, dtype), buffer in zip(self._outputs, self.tape.outputs, out, strict=True):
            if buffer is not None and (reason := _misfit(shape, dtype, buffer)):
                raise InputError(
                    f"out= for output {name!r}: {reason}; give a writable C-contiguous array, or None for a fresh one"
                )


def _misfit(shape: tuple[int, ...], dtype: np.dtype[Any], buffer: Any) -> str | None:
    """Return why kernels cannot write an output of that type to a buffer; None when they can."""
    due = TensorType(DType.of(np.empty(0, dtype)), shape)
    if not isinstance(buffer, np.ndarray):
        return f"the output is {due}, the buffer {type(buffer).__name__}"
    if buffer.dtype != dtype or buffer.shape != shape:
        return f"the output is {due}, the buffer {buffer.dtype}[{','.join(map(str, buffer.shape))}]"
    if not buffer.flags.carray:
        return "the buffer is " + ("not C-contiguous" if not buffer.flags.c_contiguous else "read-only")
    return None
