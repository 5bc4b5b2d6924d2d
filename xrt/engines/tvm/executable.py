"""Running a compiled Relax program on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.runtime import Tensor

from xrt.engines.contract import Executable, fill
from xrt.engines.memory import MemoryUse
from xrt.engines.options import RunOptions
from xrt.engines.tvm.host import called
from xrt.engines.tvm.pipeline import Program
from xrt.engines.tvm.reasons import shortened
from xrt.errors import RunFailed
from xrt.graph import Function

__all__ = ["RelaxExecutable", "to_tensor"]

Array = np.ndarray[Any, Any]


class RelaxExecutable(Executable):
    """A compiled program, with one virtual machine per concurrent call: a machine mixes up its registers if two share it."""

    outputs_are_fresh = True

    def __init__(self, program: Program, threads: int, function: Function) -> None:
        self.program = program
        self.function = function
        self.saved: memoryview | None = None
        """What it was loaded from, where it was not compiled."""
        self._constants = [to_tensor(constant.array) for constant in program.constants]
        self._copied = sum(constant.nbytes for constant in program.constants if not _is_shared(constant.array))
        self._threads = threads
        self._name = function.name
        self._idle: list[Callable[..., Any]] = []

    def prepare(self) -> None:
        self._idle.append(self._machine())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        try:
            main = self._idle.pop()
        except IndexError:
            main = self._machine()
        try:
            returned = called(main, [*map(to_tensor, inputs), *self._constants], self._threads)
        except Exception as cause:
            raise self._failed(cause) from cause
        self._idle.append(main)
        results = self._arrays(returned)
        return results if options.out is None else _placed(results, options.out)

    def direct(self) -> Callable[..., Sequence[Any]]:
        if self.program.fresh != (True,):
            return super().direct()
        idle, threads, machine, failed, constants = self._idle, self._threads, self._machine, self._failed, self._constants

        def run(*inputs: Any) -> Sequence[Any]:
            try:
                main = idle.pop()
            except IndexError:
                main = machine()
            try:
                returned = called(main, [*map(to_tensor, inputs), *constants], threads)
            except Exception as cause:
                raise failed(cause) from cause
            idle.append(main)
            return [_to_array(returned if type(returned) is Tensor else returned[0])]

        return run

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Return a call over prepared tensors; TVM allocates what it computes, so each output is then copied to its buffer."""
        if not all(_is_shared(array) for array in inputs):
            return super().bind(inputs, outputs)
        tensors, main = [*map(to_tensor, inputs), *self._constants], self._machine()

        def run() -> None:
            try:
                returned = called(main, tensors, self._threads)
            except Exception as cause:
                raise self._failed(cause) from cause
            for result, buffer in zip(self._views(returned), outputs, strict=True):
                fill(buffer, result)

        return run

    def _failed(self, cause: Exception) -> RunFailed:
        return RunFailed(f"TVM failed while it ran {self._name!r}: {shortened(cause)}")

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "weights of types that DLPack and NumPy do not share, or that do not lie in order, are copied"
        copies = (MemoryUse("copied weights", self._copied, why),) if self._copied else ()
        return *copies, MemoryUse("workspace", self.program.workspace, "inner values, as planned by the compiler", per_call=True)

    def close(self) -> None:
        self._idle.clear()

    def _machine(self) -> Callable[..., Any]:
        machine: Callable[..., Any] = relax.VirtualMachine(self.program.code, tvm.cpu())["main"]
        return machine

    def _arrays(self, returned: Any) -> list[Array]:
        pairs = zip(self._views(returned), self.program.fresh, strict=True)
        return [array if fresh else array.copy() for array, fresh in pairs]

    def _views(self, returned: Any) -> list[Array]:
        """Return what the machine gave as arrays over the same memory."""
        return [_to_array(tensor) for tensor in ((returned,) if isinstance(returned, Tensor) else returned)]


def _is_shared(array: Any) -> bool:
    """Whether `to_tensor` gives the array's own memory, so that the tensor shows what is written there later."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and array.flags.c_contiguous and array.flags.aligned


def to_tensor(array: Array) -> Any:
    """Return the array as a TVM tensor: the same memory where it is contiguous and DLPack has its type, else a copy."""
    flags = array.flags
    if array.dtype.kind in "biuf":
        if flags.carray:
            return tvm_ffi.from_dlpack(array)
        if flags.c_contiguous and flags.aligned:
            return tvm_ffi.from_dlpack(_writable_alias(array))
    return tvm.runtime.tensor(np.asarray(array, order="C"))  # ascontiguousarray would make a 0-d array 1-d


def _to_array(tensor: Any) -> Array:
    """Return the tensor's memory as an array, a copy for the types that DLPack and NumPy do not share."""
    try:
        return np.from_dlpack(tensor)
    except RuntimeError:
        return np.asarray(tensor.numpy())


class _Memory:
    """Memory that says it may be written to. NumPy exports nothing else by DLPack; TVM only reads its arguments."""

    def __init__(self, array: Array) -> None:
        self._owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _writable_alias(array: Array) -> Array:
    return np.asarray(_Memory(array))


def _placed(results: Sequence[Array], out: Sequence[Any]) -> list[Array]:
    """Copy each result into the buffer that the caller gave for it."""
    placed = []
    for result, buffer in zip(results, out, strict=True):
        if buffer is not None:
            np.copyto(buffer, result)
        placed.append(result if buffer is None else buffer)
    return placed
