"""Run a CUDA program on device arrays, on the caller's stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.runtime import Tensor

from xrt.engines.contract.graph_compiler import Executable, MemoryUse
from xrt.engines.contract.options import RunOptions
from xrt.engines.tvm.executable import summarize_error
from xrt.errors import RunFailed

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator
    from xrt.engines.tvm.cuda.codegen import DeviceProgram
    from xrt.graph import Function


ALIGNMENT = 64
"""In bytes. TVM's code expects every array at a multiple of it."""
_NO_WAIT = -1
"""DLPack's value for a stream without synchronization: the runtime has ordered the work already."""


class TvmOnDevice(Executable):
    """Launches one program on memory of the device's pool, with a virtual machine per concurrent call."""

    outputs_are_fresh: ClassVar[bool] = True

    def __init__(self, program: DeviceProgram, function: Function, accelerator: Accelerator, device: Any) -> None:
        """`device` is TVM's handle of the accelerator's device."""
        self.program = program
        self.function = function
        self.saved: memoryview | None = None
        """The saved form, if it was loaded."""
        self._accelerator = accelerator
        self._device = device
        self._stream = accelerator.new_stream()
        self._constants: list[Any] = []
        self._idle: list[Callable[..., Any]] = []
        self._closed = False

    def prepare(self) -> None:
        """Upload the constants to the device."""
        accelerator = self._accelerator
        with accelerator.activate(self._stream):
            self._constants = [accelerator.upload(constant.array) for constant in self.program.constants]
        accelerator.wait([self._stream])
        self._idle.append(self._make_machine())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        """Enqueue the work on the stream of the options, which is the thread's current one; without one, wait for the results."""
        if options.stream is not None:
            return self._launch(inputs, options.stream)
        with self._accelerator.activate(self._stream):
            results = self._launch(inputs, self._stream)
        self._accelerator.wait([self._stream])
        return results

    def _launch(self, inputs: Sequence[Any], stream: Any) -> list[Any]:
        if self._closed:
            raise RunFailed(f"the executable of {self.function.name!r} is closed")
        program, empty = self.program, self._accelerator.xp.empty
        arrays = [*map(self._align, inputs), *self._constants]
        arrays += [empty((nbytes,), np.dtype(np.uint8)) for nbytes in program.workspace]
        first_result = len(arrays)
        arrays += [empty(type_.shape, type_.dtype.numpy) for type_ in program.result_types]
        main = self._acquire_machine()
        try:
            with self._use_stream(stream):
                main(*map(share_program, arrays))
        except Exception as cause:
            raise RunFailed(f"TVM failed while it ran {self.function.name!r}: {summarize_error(cause)}") from cause
        self._idle.append(main)
        return _collect_results(arrays, program.results, first_result)

    def _use_stream(self, stream: Any) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = tvm_ffi.use_raw_stream(self._device, self._accelerator.address(stream))
        return context

    def _align(self, array: Any) -> Any:
        """Make the array C-contiguous and aligned as TVM's code expects; copies only if necessary."""
        if array.flags.c_contiguous and not self._accelerator.address(array) % ALIGNMENT:
            return array
        return array.copy(order="C")

    def _acquire_machine(self) -> Callable[..., Any]:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make_machine()

    def _make_machine(self) -> Callable[..., Any]:
        machine: Callable[..., Any] = relax.VirtualMachine(self.program.code, self._device)["main"]
        return machine

    def why_not_capturable(self) -> str | None:
        """None: a run only launches kernels."""
        return None

    def memory(self) -> tuple[MemoryUse, ...]:
        weights = sum(constant.nbytes for constant in self.program.constants)
        return (
            MemoryUse("weights on the device", weights, "a copy of the constants in the device's own memory"),
            MemoryUse(
                "workspace on the device", sum(self.program.workspace), "inner values, as planned by the compiler", per_call=True
            ),
        )

    def close(self) -> None:
        self._closed = True
        self._idle.clear()
        self._constants = []


def share_program(array: Any) -> Tensor:
    """View the array as a TVM tensor; types that DLPack may not support on the other side are passed as raw bits."""
    if array.dtype.kind in "biuf":
        return tvm_ffi.from_dlpack(array.__dlpack__(stream=_NO_WAIT))
    bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return _view(tvm_ffi.from_dlpack(bits.__dlpack__(stream=_NO_WAIT)), array.shape, tvm.DataType(array.dtype.name), 0)


_view = tvm.get_global_func("runtime.TVMTensorCreateView")


def _collect_results(arrays: Sequence[Any], results: Sequence[int], first_result: int) -> list[Any]:
    """Return one array per result; copy inputs, and arrays that were returned before."""
    seen: set[int] = set()
    returned = []
    for position in results:
        new = position >= first_result and position not in seen
        seen.add(position)
        returned.append(arrays[position] if new else arrays[position].copy())
    return returned
