"""Run a compiled module on NumPy arrays without copying them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from iree.runtime import (
    BufferUsage,
    HalBufferView,
    MemoryType,
    ParameterIndex,
    VmContext,
    VmInstance,
    VmModule,
    VmVariantList,
    create_hal_module,
    create_io_parameters_module,
)
from iree.runtime._binding import create_hal_driver, parse_flags

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.iree.compiler import ALIGNMENT, LIBRARY
from xrt.engines.iree.export import ELEMENTS, SCOPE, list_parameters
from xrt.engines.toolkit.memory import make_writable_alias, peak_of_values
from xrt.errors import CompileRefused, RunFailed
from xrt.forking import get_generation, leave_to_parent, renew_after_fork, why_left_behind
from xrt.graph import Function, Node, Shape, TensorType, Type

Array: TypeAlias = np.ndarray[Any, Any]
Invoke: TypeAlias = Callable[[Any, Any], None]
"""Calls ``main`` with the lists of arguments and results. The second stays empty: results are written to argument buffers."""
OVERWRITING = frozenset({"Scatter", "ScatterElements", "ScatterND", "TopK"})
"""Operators whose code overwrites its operand, even if that is an input of the Function (IREE 3.13)."""
_MEMORY = int(MemoryType.DEVICE_LOCAL)
_USAGE = int(BufferUsage.DEFAULT | BufferUsage.MAPPING)


@dataclass(frozen=True, slots=True)
class _BufferSpec:
    """Shape and element type of the buffer of an input or output."""

    shape: Shape
    """May contain symbolic dims, which are resolved from the inputs."""
    dtype: np.dtype[Any]
    hal: int
    """The runtime's code of the element type."""
    has_buffer: bool
    """Whether arrays of the type support the buffer protocol; those of ml_dtypes do not."""

    @classmethod
    def of(cls, type_: Type | None) -> _BufferSpec:
        # Only a Function that is compiled without `why_not` gets here with such a type.
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise CompileRefused(f"a value of type {type_} cannot be passed to {LIBRARY}")
        return cls(type_.shape, type_.dtype.numpy, ELEMENTS[type_.dtype].hal, type_.dtype.numpy.isbuiltin == 1)

    @property
    def is_fixed(self) -> bool:
        return all(isinstance(extent, int) for extent in self.shape)


class IreeExecutable(Executable):
    """A compiled module, with one context of the virtual machine per concurrent call."""

    outputs_are_fresh = True

    def __init__(self, code: bytes | memoryview, function: Function, device: IreeDevice) -> None:
        self.code = code
        self.function = function
        self._device = device
        self.survives_fork = device.survives_fork
        self._import = device.allocator.import_host_allocation
        self._outputs = [_BufferSpec.of(function.get_type(value.name)) for value in function.outputs]
        self._inputs = [_BufferSpec.of(value.type) for value in function.inputs]
        self._specs = [*self._inputs, *self._outputs]
        self._static_shapes = [spec.shape if spec.is_fixed else None for spec in self._specs]
        self._is_fixed = None not in self._static_shapes
        self._shapes = [spec.shape for spec in self._outputs]
        constants = [constant.array for constant in list_parameters(function).values()]
        self._weights = [array if _is_readable(array) else _copy(array) for array in constants]
        # Copies of all inputs: which of them the compiled code overwrites is not known.
        self._prepare_input = _copy if any(node.op_type in OVERWRITING for node in function.nodes) else _make_usable
        self._copied = sum(new.nbytes for new, old in zip(self._weights, constants, strict=True) if new is not old)
        self._modules: list[Any] = []
        self._main: Any = None
        self._idle: list[Invoke] = []

    def prepare(self) -> None:
        module = VmModule.copy_buffer(self._device.instance, self.code)
        self._modules = [self._device.module, *self._make_parameters(), module]
        self._main = module.lookup_function("main")
        self._idle.append(self._make_context())

    def _make_parameters(self) -> list[Any]:
        if not self._weights:
            return []
        index = ParameterIndex()
        for number, array in enumerate(self._weights):
            index.add_buffer(str(number), _view_bytes(array), True, False)
        return [create_io_parameters_module(self._device.instance, index.create_provider(SCOPE))]

    def _make_context(self) -> Invoke:
        # A context has the state of one module, so that calls at the same time need one each; the weights are shared.
        context, main = VmContext(self._device.instance, self._modules), self._main
        invoke = context.invoke
        return lambda arguments, results: invoke(main, arguments, results)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        buffers = options.host_buffers or [None] * len(self._outputs)
        shapes = self._resolve_shapes(inputs)
        arrays = [_choose_buffer(buffer, *spec_shape) for buffer, *spec_shape in zip(buffers, self._outputs, shapes, strict=True)]
        self._call([*map(self._prepare_input, inputs), *arrays])
        return [array if buffer is None else _fill(buffer, array) for buffer, array in zip(buffers, arrays, strict=True)]

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [0] * len(self._outputs)

    def _resolve_shapes(self, inputs: Sequence[Array]) -> Sequence[Any]:
        """Shapes of the outputs; raises RunFailed for inputs that do not fit: compiled code would read beyond their end."""
        if self._is_fixed:
            return self._shapes
        sizes: dict[object, int] = {}
        for array, spec in zip(inputs, self._inputs, strict=True):
            fits = len(array.shape) == len(spec.shape)
            for dim, size in zip(spec.shape, array.shape, strict=False):
                fits = fits and (dim == size if isinstance(dim, int) else sizes.setdefault(dim, size) == size > 0)
            if not fits:
                expected = ", ".join(map(str, self.function.inputs))
                raise RunFailed(f"{LIBRARY} takes {expected}, with elements, and is given {list(array.shape)}")
        # `why_not_sized` has declined outputs with other dims than those of the inputs.
        return [tuple(dim if isinstance(dim, int) else sizes[dim] for dim in shape) for shape in self._shapes]

    def _call(self, arrays: Sequence[Array]) -> None:
        """Run on usable arrays, outputs last. Views do not keep arrays alive, so the caller must."""
        # In a forked child the pool has no threads, and a call would wait for them forever.
        if not self.survives_fork and (reason := why_left_behind(self._device.generation)):
            raise RunFailed(f"{LIBRARY} cannot run {self.function.name!r}: {reason}")
        arguments, results = VmVariantList(len(arrays)), VmVariantList(0)
        for array, spec, shape in zip(arrays, self._specs, self._static_shapes, strict=True):
            buffer = self._import(array if spec.has_buffer else _view_bytes(array), _MEMORY, _USAGE)
            arguments.push_ref(HalBufferView(buffer, array.shape if shape is None else shape, spec.hal))
        # A context serves one call at a time; `pop` and `append` are atomic, so no lock is needed.
        try:
            invoke = self._idle.pop()
        except IndexError:
            invoke = self._make_context()
        try:
            invoke(arguments, results)
        except Exception as cause:
            raise RunFailed(f"{LIBRARY} failed while it ran {self.function.name!r}: {_first_line(cause)}") from cause
        self._idle.append(invoke)

    def memory(self) -> tuple[MemoryUse, ...]:
        aligned = f"weights that are not contiguous or not aligned to {ALIGNMENT} bytes are copied"
        copies = (MemoryUse("copied weights", self._copied, aligned),) if self._copied else ()
        why = "the peak of inner values; the compiler fuses most of them away"
        return *copies, MemoryUse("workspace", peak_of_values(self.function), why, per_call=True)

    def close(self) -> None:
        self._idle.clear()
        self._modules.clear()
        self._main = None


def _first_line(cause: BaseException) -> str:
    return next(iter(str(cause).strip().splitlines()), type(cause).__name__)


def _is_usable(array: Any) -> bool:
    """Whether compiled code can read and write the array's memory: C-contiguous, writable, and aligned as NumPy allocates it."""
    flags = array.flags
    return bool(flags.carray) and (flags.owndata or array.ctypes.data % ALIGNMENT == 0)


def _is_readable(array: Array) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned and array.ctypes.data % ALIGNMENT == 0)


def _make_usable(array: Array) -> Array:
    """An input that compiled code can read: the array itself if its memory is suitable, else a copy."""
    if _is_usable(array):
        return array
    # The runtime refuses read-only buffers. Code that does not overwrite operands may get a writable alias of one.
    return (
        _copy(array) if array.flags.writeable or not _is_readable(array) else make_writable_alias(_view_bytes(array), owner=array)
    )


def _choose_buffer(buffer: Any, spec: _BufferSpec, shape: tuple[int, ...]) -> Array:
    """The array to compute an output in: the caller's buffer if compiled code can use it, else a new one."""
    return buffer if buffer is not None and buffer.shape == shape and _is_usable(buffer) else np.empty(shape, spec.dtype)


def _fill(buffer: Array, array: Array) -> Array:
    if array is not buffer:
        fill(buffer, array)
    return buffer


def _copy(array: Array) -> Array:
    copy = np.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _view_bytes(array: Array) -> Array:
    """The array as bytes, since not every element type supports the buffer protocol."""
    return array.reshape(-1).view(np.uint8)


SMALL_WORK = 1 << 18
"""Scalar operations below which submitting work to a thread pool (20 us) costs more than a second thread saves."""
_lock = renew_after_fork(threading.Lock())


class IreeDevice:
    """A device with the instance and module that all its contexts share."""

    def __init__(self, threads: int) -> None:
        self.survives_fork = threads == 1
        self.generation = get_generation()
        self.instance = VmInstance()
        self.device = create_hal_driver("local-sync").create_default_device() if threads == 1 else _make_pool(threads)
        self.allocator: Any = self.device.allocator
        self.module = create_hal_module(self.instance, self.device)


@cache
def _make_shared_device(threads: int, generation: int) -> IreeDevice:
    device = IreeDevice(threads)
    # A forked child must not release it: that would wait for threads that it does not have.
    leave_to_parent(device)
    return device


def get_device(threads: int) -> IreeDevice:
    """The shared device for a number of threads. With one, calls run on the calling thread."""
    with _lock:
        return _make_shared_device(threads, get_generation())


def _make_pool(threads: int) -> Any:
    # The pool size is a flag of the process that is read when a driver is created.
    parse_flags(f"--task_topology_group_count={threads}")
    try:
        return create_hal_driver("local-task").create_default_device()
    finally:
        # Other users of IREE in this process get its default again.
        parse_flags("--task_topology_group_count=0")


def is_small(function: Function) -> bool:
    """Whether a Function is so little work that the calling thread is faster than a pool. False for symbolic dims."""
    # The size of a call may be anything.
    if not all(isinstance(value.type, TensorType) and value.type.is_static for value in function.inputs):
        return False
    return sum(_count_operations(node, function) for node in function.nodes) <= SMALL_WORK


def _count_operations(node: Node, function: Function) -> int:
    """Estimate the scalar operations of a node: number of elements times terms of the sum that computes each."""
    n_written = sum(prod(_list_extents(name, function)) for name in node.outputs)
    n_read = max((prod(_list_extents(name, function)) for name in node.inputs), default=0)
    return max(n_written, n_read) * _count_terms(node, function)


def _count_terms(node: Node, function: Function) -> int:
    """The number of products that are added per element of the result; 1 for other operators."""
    extents = _list_extents(node.inputs[1], function) if node.op_type in _PRODUCTS and len(node.inputs) > 1 else ()
    if not extents:
        return 1
    # MatMul sums over the second last axis of its right operand; weights of Conv, and mostly of Gemm, have their outputs first.
    return extents[-2:][0] if node.op_type == "MatMul" else max(prod(extents[1:]), 1)


_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})


def _list_extents(name: str, function: Function) -> tuple[int, ...]:
    type_ = function.get_type(name) if name else None
    extents = (type_.shape or ()) if isinstance(type_, TensorType) else ()
    return tuple(extent for extent in extents if isinstance(extent, int))
