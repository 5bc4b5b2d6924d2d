"""Run a compiled module on NumPy arrays, without copying them if their memory is suitable."""

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
from xrt.engines.iree.export import MLIR_TYPES, PARAMETER_SCOPE, list_parameters
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.memory import compute_peak_of_values, make_writable_alias
from xrt.errors import CompileRefused, RunFailed
from xrt.forking import get_generation, leak_in_child, renew_after_fork, why_unusable_after_fork
from xrt.graph import Function, Node, Shape, TensorType, Type

Array: TypeAlias = np.ndarray[Any, Any]
Invoke: TypeAlias = Callable[[Any, Any], None]
"""``f(arguments, results)`` calls ``main``. ``results`` stays empty, because ``main`` writes to buffers in ``arguments``."""
OVERWRITING_OPS = frozenset({"Scatter", "ScatterElements", "ScatterND", "TopK"})
"""Operators whose code may overwrite an input of the node, even if it is an input of the Function too (IREE 3.13)."""
_MEMORY_TYPE = int(MemoryType.DEVICE_LOCAL)
_BUFFER_USAGE = int(BufferUsage.DEFAULT | BufferUsage.MAPPING)


@dataclass(frozen=True, slots=True)
class _BufferSpec:
    """How to pass an input or output to the runtime: its shape and element type."""

    shape: Shape
    """May contain symbolic dims, whose sizes follow from the inputs of a call."""
    dtype: np.dtype[Any]
    hal_type: int
    """The number of the element type in IREE's runtime, the hardware abstraction layer (HAL)."""
    has_buffer: bool
    """Whether arrays of the type support the buffer protocol. Arrays of ml_dtypes, such as bfloat16, do not."""

    @classmethod
    def from_type(cls, type_: Type | None) -> _BufferSpec:
        """Make the spec of a value of this type; raises CompileRefused if it cannot be passed."""
        # Only a Function that was not checked by `why_not` has other types.
        if not isinstance(type_, TensorType) or type_.shape is None or None in type_.shape:
            raise CompileRefused(f"a value of type {type_} cannot be passed to {LIBRARY}")
        return cls(type_.shape, type_.dtype.numpy, MLIR_TYPES[type_.dtype].hal_type, type_.dtype.numpy.isbuiltin == 1)


class IreeExecutable(Executable):
    """Runs a compiled module, with one context of IREE's virtual machine per concurrent call."""

    outputs_are_fresh = True

    def __init__(self, code: bytes | memoryview, function: Function, device: IreeDevice) -> None:
        self.code = code
        self.function = function
        self._device = device
        self.survives_fork = device.survives_fork
        self._import_buffer = device.allocator.import_host_allocation
        self._outputs = [_BufferSpec.from_type(function.get_type(value.name)) for value in function.outputs]
        self._inputs = [_BufferSpec.from_type(value.type) for value in function.inputs]
        self._specs = [*self._inputs, *self._outputs]  # in the order of the arguments of ``main``
        shapes = [spec.shape for spec in self._specs]
        self._static_shapes = [shape if all(isinstance(dim, int) for dim in shape) else None for shape in shapes]
        self._is_static = None not in self._static_shapes
        self._output_shapes = [spec.shape for spec in self._outputs]
        constants = [constant.array for constant in list_parameters(function).values()]
        self._weights = [array if _is_readable(array) else array.copy() for array in constants]
        # If the code may overwrite an input, copy all inputs, because it is not known which of them it overwrites.
        may_overwrite = any(node.op_type in OVERWRITING_OPS for node in function.nodes)
        self._prepare_input: Callable[[Array], Array] = np.ndarray.copy if may_overwrite else _make_usable
        self._copied_bytes = sum(new.nbytes for new, old in zip(self._weights, constants, strict=True) if new is not old)
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
        for k, array in enumerate(self._weights):
            index.add_buffer(str(k), _view_bytes(array), readable=True, writable=False)
        return [create_io_parameters_module(self._device.instance, index.create_provider(PARAMETER_SCOPE))]

    def _make_context(self) -> Invoke:
        # A context has the state of one call, so each concurrent call needs a context. All contexts share the weights.
        context = VmContext(self._device.instance, self._modules)
        main = self._main
        invoke = context.invoke
        return lambda arguments, results: invoke(main, arguments, results)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        buffers = options.host_buffers or [None] * len(self._outputs)
        shapes = self._resolve_shapes(inputs)
        targets = zip(buffers, self._outputs, shapes, strict=True)
        arrays = [_choose_buffer(buffer, spec, shape) for buffer, spec, shape in targets]
        self._call([*map(self._prepare_input, inputs), *arrays])
        return [array if buffer is None else fill(buffer, array) for array, buffer in zip(arrays, buffers, strict=True)]

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [0] * len(self._outputs)

    def _resolve_shapes(self, inputs: Sequence[Array]) -> Sequence[Any]:
        """Determine the shapes of the outputs from those of the inputs.

        Raises RunFailed for an empty input, and for a shape that does not match: the code would read beyond the end of the array.
        """
        if self._is_static:
            return self._output_shapes
        sizes: dict[object, int] = {}
        # The first input with a symbolic dim sets its size; later inputs must agree.
        for array, spec in zip(inputs, self._inputs, strict=True):
            is_compatible = array.size > 0 and len(array.shape) == len(spec.shape)
            for dim, size in zip(spec.shape, array.shape, strict=False):
                expected_size = dim if isinstance(dim, int) else sizes.setdefault(dim, size)
                is_compatible = is_compatible and size == expected_size
            if not is_compatible:
                expected = ", ".join(map(str, self.function.inputs))
                raise RunFailed(f"{LIBRARY} needs inputs {expected}, with elements, and one has the shape {list(array.shape)}")
        # Each symbolic dim of an output is a dim of an input: `why_not` declines others.
        return [tuple(dim if isinstance(dim, int) else sizes[dim] for dim in shape) for shape in self._output_shapes]

    def _call(self, arrays: Sequence[Array]) -> None:
        """Run the code. ``arrays`` are the inputs, then the arrays to write the outputs to. The caller keeps them alive."""
        # In a forked child the pool has no threads, so a call would wait forever.
        if not self.survives_fork and (reason := why_unusable_after_fork(self._device.generation)):
            raise RunFailed(f"{LIBRARY} cannot run {self.function.name!r}: {reason}")
        arguments, results = VmVariantList(len(arrays)), VmVariantList(0)
        for array, spec, shape in zip(arrays, self._specs, self._static_shapes, strict=True):
            buffer = self._import_buffer(array if spec.has_buffer else _view_bytes(array), _MEMORY_TYPE, _BUFFER_USAGE)
            arguments.push_ref(HalBufferView(buffer, array.shape if shape is None else shape, spec.hal_type))
        # No two calls use a context at the same time. `pop` and `append` are atomic, so no lock is needed.
        try:
            invoke = self._idle.pop()
        except IndexError:
            invoke = self._make_context()
        try:
            invoke(arguments, results)
        except Exception as cause:
            raise RunFailed(f"{LIBRARY} failed while it ran {self.function.name!r}: {summarize_error(cause)}") from cause
        self._idle.append(invoke)

    def memory(self) -> tuple[MemoryUse, ...]:
        why = f"weights that are not contiguous or not aligned to {ALIGNMENT} bytes are copied"
        copies = (MemoryUse("copied weights", self._copied_bytes, why),) if self._copied_bytes else ()
        why = "the peak of inner values; the compiler fuses most of them away"
        return *copies, MemoryUse("workspace", compute_peak_of_values(self.function), why, per_call=True)

    def close(self) -> None:
        self._idle.clear()
        self._modules.clear()
        self._main = None


def _is_usable(array: Any) -> bool:
    """Whether compiled code can read and write an array's memory: it is C-contiguous, writable and aligned to `ALIGNMENT`."""
    flags = array.flags
    return bool(flags.carray) and (flags.owndata or array.ctypes.data % ALIGNMENT == 0)


def _is_readable(array: Array) -> bool:
    """Whether compiled code can read an array's memory: it is C-contiguous and aligned to `ALIGNMENT`."""
    return bool(array.flags.c_contiguous and array.flags.aligned and array.ctypes.data % ALIGNMENT == 0)


def _make_usable(array: Array) -> Array:
    """Return an array that compiled code can use: the array itself, an alias if it is read-only, or a copy."""
    if _is_usable(array):
        return array
    if array.flags.writeable or not _is_readable(array):
        return array.copy()
    # The runtime rejects read-only buffers, but code that overwrites no input can get a writable alias.
    return make_writable_alias(array)


def _choose_buffer(buffer: Array | None, spec: _BufferSpec, shape: tuple[int, ...]) -> Array:
    """Return the array to write an output to: the caller's buffer if compiled code can use it, else a new array."""
    if buffer is not None and buffer.shape == shape and _is_usable(buffer):
        return buffer
    return np.empty(shape, spec.dtype)


def _view_bytes(array: Array) -> Array:
    """View an array as bytes, because not every element type supports the buffer protocol."""
    return array.reshape(-1).view(np.uint8)


MAX_SMALL_OPERATIONS = 1 << 18
"""Functions with at most this many scalar operations run on the calling thread. For these, submitting work to a thread pool
(20 us) takes longer than a second thread saves."""
_lock = renew_after_fork(threading.Lock())


class IreeDevice:
    """An IREE device, and the instance and HAL module that all contexts on it share."""

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
    # A forked child must not release the device, because that would wait for threads that the child does not have.
    leak_in_child(device)
    return device


def get_device(threads: int) -> IreeDevice:
    """Get the shared device with this number of threads. With one thread, calls run on the calling thread."""
    with _lock:
        return _make_shared_device(threads, get_generation())


def _make_pool(threads: int) -> Any:
    """Make a device that runs on a pool of ``threads`` threads."""
    # The size of the pool is a process-wide flag, which is read when a driver is created.
    parse_flags(f"--task_topology_group_count={threads}")
    try:
        return create_hal_driver("local-task").create_default_device()
    finally:
        # Restore the default for other users of IREE in this process.
        parse_flags("--task_topology_group_count=0")


def is_small(function: Function) -> bool:
    """Whether a Function has so few operations that the calling thread is faster than a pool. False with symbolic dims."""
    if not all(isinstance(value.type, TensorType) and value.type.is_static for value in function.inputs):
        return False
    return sum(_count_operations(node, function) for node in function.nodes) <= MAX_SMALL_OPERATIONS


def _count_operations(node: Node, function: Function) -> int:
    """Estimate the scalar operations of a node: the elements of its largest value, times the products to add for an element."""
    num_elements = max((prod(_list_extents(name, function)) for name in (*node.inputs, *node.outputs)), default=0)
    weights = _list_extents(node.inputs[1], function) if node.op_type in _PRODUCTS and len(node.inputs) > 1 else ()
    if not weights:
        return num_elements
    if node.op_type == "MatMul":
        # The sum is over the second to last axis of the right operand. A vector has only one axis.
        num_products = weights[-2] if len(weights) > 1 else weights[0]
    else:
        # The weights of Conv, and usually of Gemm, have the output channels first, and the sum is over all other axes.
        num_products = prod(weights[1:])
    return num_elements * max(num_products, 1)


_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})


def _list_extents(name: str, function: Function) -> tuple[int, ...]:
    """List the dims of a tensor that are numbers. Symbolic dims are left out; () for an absent or unknown value."""
    type_ = function.get_type(name) if name else None
    extents = (type_.shape or ()) if isinstance(type_, TensorType) else ()
    return tuple(extent for extent in extents if isinstance(extent, int))
