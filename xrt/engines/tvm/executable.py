"""Run a compiled Relax program on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.runtime import Tensor

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.memory import make_writable_alias
from xrt.engines.tvm.target import call_function
from xrt.errors import RunFailed
from xrt.graph import TensorType

if TYPE_CHECKING:
    from xrt.engines.tvm.pipeline import TvmProgram
    from xrt.graph import Function

Array = np.ndarray[Any, Any]
DESTINATION = "write_results"
"""Name of the compiled function that computes the same as ``main``, but writes the results to its last arguments."""
_clear_pool = tvm.get_global_func("vm.builtin.memory_manager.clear")


class RelaxExecutable(Executable):
    """Runs a compiled program on the CPU. Each concurrent call uses a separate virtual machine, as they are not thread-safe."""

    outputs_are_fresh = True

    def __init__(self, program: TvmProgram, threads: int, function: Function) -> None:
        self.program = program
        self.function = function
        self.saved: memoryview | None = None
        """The serialized program that was loaded; None if the program was compiled."""
        self._constants = [to_tensor(constant.array) for constant in program.constants]
        self._copied_bytes = sum(constant.nbytes for constant in program.constants if not _can_share(constant.array))
        """Bytes of constants that TVM has a second copy of, because `to_tensor` cannot share their memory."""
        self._threads = threads
        self._has_symbolic_dims = program.workspace is None
        types = enumerate(value.type for value in function.inputs)
        self._symbolic_inputs = [k for k, type_ in types if isinstance(type_, TensorType) and not type_.is_static]
        """Indices of inputs with symbolic dims. They may be empty, and the compiled loops cannot run on empty tensors."""
        self._idle: list[dict[str, Callable[..., Any]]] = []

    def prepare(self) -> None:
        self._idle.append(self._make_machine())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        out = options.host_buffers
        if not all(inputs[index].size for index in self._symbolic_inputs):
            raise RunFailed(f"TVM cannot run {self.function.name!r} on an input without elements")
        tensors = [*map(to_tensor, inputs), *self._constants]
        if out is not None and self._can_fill(out, inputs):
            self._call(DESTINATION, [*tensors, *map(to_tensor, out)])
            return out
        # A buffer that the code cannot fill, such as one that overlaps an input, gets a copy of the result.
        results = self._copy_shared_results(self._call("main", tensors))
        if out is None:
            return results
        return [result if buffer is None else fill(buffer, result) for result, buffer in zip(results, out, strict=True)]

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        # Only for the common case, a single result in new memory: there is nothing to copy.
        if self.program.results_are_fresh != (True,) or self._has_symbolic_dims:
            return super().fast_call()
        call, constants = self._call, self._constants

        def run(*inputs: Any) -> Sequence[Any]:
            returned = call("main", [*map(to_tensor, inputs), *constants])
            # Depending on the code, a single result is returned as a tensor or in a tuple.
            return [_to_array(returned if type(returned) is Tensor else returned[0])]

        return run

    def output_buffer_threshold(self) -> Sequence[int | None]:
        # For outputs of every size, computing into a caller's buffer is faster, because it saves an allocation.
        return [0] * len(self.function.outputs) if self.program.has_destination else ()

    def _can_fill(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> bool:
        """Whether `DESTINATION` was compiled and can write to ``outputs``: they are writable arrays that overlap no input."""
        is_writable = all(_can_share(buffer) and buffer.flags.writeable for buffer in outputs)
        overlaps = any(np.may_share_memory(array, buffer) for array in inputs for buffer in outputs)
        return self.program.has_destination and is_writable and not overlaps

    def _call(self, entry: str, tensors: Sequence[Any]) -> Any:
        """Call ``main`` or `DESTINATION` on an idle or new virtual machine. A machine whose call fails is not used again."""
        try:
            machine = self._idle.pop()
        except IndexError:
            machine = self._make_machine()
        try:
            returned = call_function(machine[entry], tensors, self._threads)
        except Exception as cause:
            raise RunFailed(f"TVM failed while it ran {self.function.name!r}: {summarize_error(cause)}") from cause
        self._idle.append(machine)
        return returned

    def memory(self) -> tuple[MemoryUse, ...]:
        copied = "weights that are not contiguous, or whose type DLPack and NumPy do not share, are copied"
        copies = (MemoryUse("copied weights", self._copied_bytes, copied),) if self._copied_bytes else ()
        planned = "inner values, as planned by the compiler"
        if self._has_symbolic_dims:
            return *copies, MemoryUse("workspace", None, planned, per_call=True)
        return *copies, MemoryUse("workspace", self.program.workspace, f"{planned}, in TVM's pool")

    def close(self) -> None:
        self._idle.clear()
        # The pool is global to the process and keeps free blocks of all sizes that were ever used. Freeing them takes 10 us.
        _clear_pool()

    def _make_machine(self) -> dict[str, Callable[..., Any]]:
        # With symbolic dims, the pooling allocator would keep free blocks of every size that was ever used.
        allocator = "naive" if self._has_symbolic_dims else None
        machine = relax.VirtualMachine(self.program.code, tvm.cpu(), memory_cfg=allocator)
        entries = ("main", DESTINATION) if self.program.has_destination else ("main",)
        return {entry: machine[entry] for entry in entries}

    def _copy_shared_results(self, returned: Any) -> list[Array]:
        """Convert the results of ``main`` to arrays. Those that share memory with an input or another result are copied."""
        tensors = (returned,) if isinstance(returned, Tensor) else returned
        pairs = zip(map(_to_array, tensors), self.program.results_are_fresh, strict=True)
        return [array if is_fresh else array.copy() for array, is_fresh in pairs]


def _can_share(array: Any) -> bool:
    """Whether `to_tensor` shares the array's memory instead of copying it."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and array.flags.c_contiguous and array.flags.aligned


def to_tensor(array: Array) -> Any:
    """Convert to a TVM tensor. It shares the array's memory if the array is C-contiguous and DLPack supports its type."""
    flags = array.flags
    if array.dtype.kind in "biuf":
        if flags.carray:
            return tvm_ffi.from_dlpack(array)
        if flags.c_contiguous and flags.aligned:
            return tvm_ffi.from_dlpack(make_writable_alias(array))
    return tvm.runtime.tensor(np.asarray(array, order="C"))  # ascontiguousarray would make a 0-d array 1-d


def _to_array(tensor: Any) -> Array:
    """Convert to an array. Types such as bfloat16, which NumPy does not accept through DLPack, are copied."""
    try:
        return np.from_dlpack(tensor)
    except RuntimeError:
        return np.asarray(tensor.numpy())
