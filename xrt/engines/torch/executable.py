"""Run a program on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.toolkit.memory import compute_peak_of_values
from xrt.engines.torch.dtypes import make_from_numpy, make_to_numpy
from xrt.engines.torch.program import iter_addresses
from xrt.forking import get_generation
from xrt.graph import OptionalType, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from xrt.graph import Function

_GENERATION = get_generation()
"""The generation of the process that imported this module. A forked child has a later generation, and no OpenMP threads."""


@cache
def _find_thread_setters() -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    """Find the functions that set the thread counts of OpenMP and MKL for the calling thread. MKL's returns the previous count.

    Without the library of OpenMP, PyTorch's setter replaces the first function. Without MKL, the second one does nothing.
    """
    lib = Path(torch.__file__).parent / "lib"
    try:
        path = next(iter(sorted(lib.glob("libgomp*"))))
        omp = ctypes.CDLL(str(path)).omp_set_num_threads
    except (StopIteration, OSError, AttributeError):
        return torch.set_num_threads, lambda count: 0
    try:
        mkl = ctypes.CDLL(str(lib / "libtorch_cpu.so")).MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):  # PyTorch was built with another library than MKL
        return omp, lambda count: 0
    return omp, mkl


def call_with_threads(threads: int, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``call(*arguments)`` with ``threads`` threads, in a forked child with one thread."""
    threads_before = torch.get_num_threads()
    budget = threads if get_generation() == _GENERATION else 1
    if threads_before == budget:
        return call(*arguments)
    # Set for the calling thread only: other threads may be in calls with other thread counts.
    set_omp, set_mkl = _find_thread_setters()
    set_omp(budget)
    mkl_threads_before = set_mkl(budget)
    try:
        return call(*arguments)
    finally:
        set_mkl(mkl_threads_before)
        set_omp(threads_before)


Convert = Callable[[Any], Any]


class TorchExecutable(Executable):
    """Runs a Function on tensors that share memory with the caller's arrays. Calls share no state, so they may be concurrent."""

    outputs_are_fresh = True

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], list[Any]],
        function: Function,
        threads: int,
        constants: frozenset[int] = frozenset(),
        packed_weights: Sequence[torch.Tensor] = (),
    ) -> None:
        """``compute`` returns the outputs of the Function for its inputs, all as tensors. It runs on ``threads`` threads.

        ``constants`` are memory addresses of constants. An output at one of these addresses is copied. ``packed_weights`` are
        copies of constants in another layout, which kernels have made.
        """
        self.function = function
        self._compute_outputs = compute
        self._constants = constants
        self._packed_weights = packed_weights
        self._threads = threads
        self._input_converters = tuple(_make_converter(value.type, make_from_numpy) for value in function.inputs)
        self._output_converters = tuple(_make_converter(value.type, make_to_numpy) for value in function.outputs)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        out = options.host_buffers
        with torch.inference_mode(), use_default_modes():
            tensors = [convert(value) for convert, value in zip(self._input_converters, inputs, strict=True)]
            results = call_with_threads(self._threads, self._compute_unshared, tensors)
            arrays = [convert(result) for convert, result in zip(self._output_converters, results, strict=True)]
        if out is None:
            return arrays
        return [array if buffer is None else fill(buffer, array) for array, buffer in zip(arrays, out, strict=True)]

    def _compute_unshared(self, tensors: list[Any]) -> list[Any]:
        """Compute the outputs, and copy those that share memory with an input, a constant or another output."""
        # Kernels such as Identity and Reshape return their input, but the caller may write to results.
        addresses = {*self._constants, *iter_addresses(tensors)}
        return [_make_unshared(result, addresses) for result in self._compute_outputs(tensors)]

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values, each until its last reader has run; kernels may need more memory while they run"
        workspace = MemoryUse("workspace", compute_peak_of_values(self.function), why, per_call=True)
        packed = sum(tensor.nbytes for tensor in self._packed_weights)
        return (workspace, MemoryUse("packed weights", packed, "gates in PyTorch's order")) if packed else (workspace,)


def _make_converter(type_: Type | None, make_tensor_converter: Callable[[Any], Convert]) -> Convert:
    """Make a function that converts values of a type. ``make_tensor_converter`` makes it for tensors of an element type."""
    if isinstance(type_, SequenceType):
        convert_element = _make_converter(type_.element, make_tensor_converter)
        return lambda values: [convert_element(value) for value in values]
    if isinstance(type_, OptionalType):
        convert_present = _make_converter(type_.element, make_tensor_converter)
        return lambda value: None if value is None else convert_present(value)
    assert isinstance(type_, TensorType)  # checked by `why_not`
    return make_tensor_converter(type_.dtype)


def _make_unshared(value: Any, addresses: set[int]) -> Any:
    """Return a result as contiguous tensors that share no storage; other values are unchanged.

    A tensor is cloned if its storage starts at one of ``addresses`` (inputs, constants, earlier outputs) or is larger than the
    tensor. The address of the returned tensor is added to ``addresses``.
    """
    if isinstance(value, list):
        return [_make_unshared(item, addresses) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.contiguous()
    storage = tensor.untyped_storage()
    # A view of part of a storage would keep the whole storage alive.
    if storage.data_ptr() in addresses or storage.nbytes() > tensor.nbytes:
        tensor = tensor.clone()
    addresses.add(tensor.untyped_storage().data_ptr())
    return tensor


def use_default_modes() -> AbstractContextManager[Any]:
    """A context in which the calling thread's default device and autocast have no effect."""
    has_autocast = torch.is_autocast_enabled("cpu")
    if not has_autocast and not torch._C._len_torch_function_stack():
        return _NO_CONTEXT
    stack = ExitStack()
    stack.enter_context(torch._C.DisableTorchFunction())  # a default device is implemented as a torch function mode
    if has_autocast:
        stack.enter_context(torch.autocast("cpu", enabled=False))
    return stack


_NO_CONTEXT = nullcontext()
