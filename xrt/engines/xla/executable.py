"""Running compiled code on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xrt.engines.contract import Executable, fill
from xrt.engines.memory import MemoryUse
from xrt.engines.options import RunOptions
from xrt.engines.xla.client import tracing
from xrt.engines.xla.program import Program
from xrt.engines.xla.reasons import shortened
from xrt.errors import RunFailed
from xrt.graph import Function

__all__ = ["XlaExecutable"]

Array = np.ndarray[Any, Any]

COPIED = 32 * 1024
"""Bytes up to which a result is copied out of XLA's memory; a larger one keeps it, which is quicker than the copy."""


class XlaExecutable(Executable):
    """Compiled code. It keeps nothing of a call, so threads may share it."""

    outputs_are_fresh = True

    def __init__(self, program: Program, function: Function) -> None:
        self.program = program
        self.function = function
        self._call, self._constants = program.call, program.arguments.arrays
        self._name = function.name
        self.saved: memoryview | None = None
        """What it was loaded from, where it was not compiled."""

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        try:
            results = self._call(*inputs, *self._constants)
        except Exception as cause:  # noqa: BLE001  # as below
            results = self._again(inputs, cause)
        if options.out is None:
            return [_owned(result) for result in results]
        return [_placed(result, buffer) for result, buffer in zip(results, options.out, strict=True)]

    def direct(self) -> Callable[..., Sequence[Any]]:
        call, constants, again = self._call, self._constants, self._again

        def run(*inputs: Any) -> Sequence[Any]:
            try:
                results = call(*inputs, *constants)
            except Exception as cause:  # noqa: BLE001  # raised anew, unless it was the user's settings
                results = again(inputs, cause)
            return [_owned(result) for result in results]

        return run

    def _again(self, inputs: Sequence[Any], cause: Exception) -> Sequence[Any]:
        """Call once more without what a user may have set (NaN is an error, no compiled code); raises RunFailed if that fails."""
        try:
            with tracing(self.program.device):
                return self._call(*inputs, *self._constants)
        except Exception:  # noqa: BLE001  # the first one tells more
            raise RunFailed(f"XLA failed while it ran {self._name!r}: {shortened(cause)}") from cause

    def memory(self) -> tuple[MemoryUse, ...]:
        program = self.program
        why = "weights that do not lie at a multiple of 64 bytes are copied, as XLA wants them there"
        copies = (MemoryUse("copied weights", program.arguments.copied, why),) if program.arguments.copied else ()
        return *copies, MemoryUse("workspace", program.workspace, "inner values, as planned by the compiler", per_call=True)

    def close(self) -> None:
        self._constants = ()


class _Memory:
    """XLA's memory of a result, which says that it may be written to: nobody else has it, though JAX knows only constants."""

    def __init__(self, result: Any, view: Array) -> None:
        self._owner = result
        self.__array_interface__ = {**view.__array_interface__, "data": (view.__array_interface__["data"][0], False)}


def _owned(result: Any) -> Array:
    """Return a result as an array of the caller's: a copy of a small one, the memory itself of a large one."""
    view = np.asarray(result)
    if view.nbytes <= COPIED:
        return view.copy()
    if view.dtype.isbuiltin == 1:
        return np.asarray(_Memory(result, view))
    return np.asarray(_Memory(result, view.view(np.uint8))).view(view.dtype)


def _placed(result: Any, buffer: Array | None) -> Array:
    if buffer is None:
        return _owned(result)
    fill(buffer, np.asarray(result))
    return buffer
