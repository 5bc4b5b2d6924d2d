"""The native tape: a sequence of native kernels that runs in one native call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_int32, c_void_p, pointer
from functools import cached_property
from typing import Any

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse
from xrt.engines.contract.options import RunOptions
from xrt.engines.native import abi, bindings as c
from xrt.engines.native.library import MessageBuffer, NativeKernel
from xrt.engines.native.marshalling import ABSENT, make_aligned, make_array_c, make_tensor_c, marshal_node
from xrt.engines.toolkit.memory import LiveRange, assign_offsets
from xrt.errors import CompileFailed, CompileRefused, InputError, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, may_equal, read_attributes

Array = np.ndarray[Any, Any]


class NativeTape:
    """A sequence of native kernels for fixed shapes. Several threads may run it at the same time.

    The memory of all values and the number of threads are fixed at construction. Each run uses a block of memory (a frame) from a
    pool.
    """

    def __init__(
        self,
        inputs: Mapping[str, TensorType],
        outputs: Sequence[str],
        steps: Sequence[PreparedKernel],
        constants: Mapping[str, Constant],
        threads: int,
    ) -> None:
        """Create the tape. ``steps`` read inputs, constants and results of earlier steps.

        ``outputs`` are different results of steps. Raises CompileFailed if there is not enough memory.
        """
        self.steps = tuple(steps)
        self.inputs = tuple(_InputCheck(name, type_) for name, type_ in inputs.items())
        types = dict(inputs)
        for step in self.steps:
            types.update(step.outputs)
        self.output_names = tuple(outputs)
        self.outputs: tuple[tuple[Any, Any], ...] = tuple((types[name].shape, types[name].dtype.numpy) for name in outputs)
        """The shape and the NumPy dtype of each output."""
        read_names = {name for step in self.steps for name in step.node.inputs}
        self._constants = {name: make_aligned(value.array) for name, value in constants.items() if name in read_names}
        # The memory of shapes, strides and indices, to which the native tape has pointers.
        self._keep_alive: list[Any] = []
        layout = _make_layout(types, self._constants, self, threads, self._keep_alive)
        self.workspace: int = layout.memory
        """Bytes of memory that a run needs in addition to inputs and outputs."""
        # The types of the address arrays of a call.
        self._input_addresses = c_void_p * len(self.inputs)
        self._output_addresses = c_void_p * len(self.outputs)
        core = c.get_core()
        handle = core.xrt_tape_new(layout)
        if not handle:
            raise CompileFailed(f"there is not enough memory for a native tape of {len(self.steps)} steps")
        weakref.finalize(self, core.xrt_tape_delete, handle).atexit = False  # at exit, a daemon thread may run it
        self._handle = handle
        self._core = core
        self._run: Callable[..., int] = core.xrt_tape_run

    def run(self, arrays: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        """Run the tape and return the outputs, in the buffers of ``out`` or, where these are None, in new arrays.

        A buffer must be C-contiguous, writable and of the type of the output. It may overlap an input only as `in_place` allows.
        Raises RunFailed if an input has another type or a kernel fails.
        """
        inputs = [check(array) for check, array in zip(self.inputs, arrays, strict=True)]
        buffers = [None] * len(self.outputs) if out is None else out
        results = [np.empty(*output) if buffer is None else buffer for output, buffer in zip(self.outputs, buffers, strict=True)]
        status = self._call(inputs, results)
        # Unaligned inputs, such as tensors of a model file, are rare. So they are not checked before the first attempt.
        if status == c.STATUS_UNALIGNED:
            status = self._call([array if _is_aligned(array) else array.copy() for array in inputs], results)
        if status:
            raise self._make_error(status)
        return results

    def bind(self, arrays: Sequence[Array], out: Sequence[Array]) -> Callable[[], None] | None:
        """Make a function that runs the tape on these inputs and output buffers, with addresses that are looked up only once.

        Returns None if an input is not contiguous and aligned: the function would read a copy, not the array of a later call.
        """
        inputs = [check(array) for check, array in zip(self.inputs, arrays, strict=True)]
        # `check` copies an array that is not contiguous.
        if any(converted is not array or not _is_aligned(array) for converted, array in zip(inputs, arrays, strict=True)):
            return None
        address_of, run, handle = c.address_of, self._run, self._handle
        arguments = self._input_addresses(*map(address_of, inputs))
        results = self._output_addresses(*map(address_of, out))
        references = (self, *inputs, *out)

        def call(_references: object = references) -> None:
            status = run(handle, arguments, results)
            if status:
                raise self._make_error(status)

        return call

    @cached_property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """The (input, output) index pairs that may share memory: no step reads the input after the output has been written."""
        last_read = {name: index for index, step in enumerate(self.steps) for name in step.node.inputs}
        writers = {name: (index, step) for index, step in enumerate(self.steps) for name in step.outputs}
        inputs_by_type: dict[TensorType, list[int]] = {}
        for index, source in enumerate(self.inputs):
            inputs_by_type.setdefault(source.type, []).append(index)
        pairs = []
        for output, name in enumerate(self.output_names):
            writer_index, writer = writers[name]
            # Only values of the same type can share memory.
            for index in inputs_by_type.get(writer.outputs[name], ()):
                source_name = self.inputs[index].name
                read_at = last_read.get(source_name, -1)
                # The step that writes the output may be the last that reads the input, if its kernel supports that.
                writes_in_place = read_at == writer_index and writer.can_overwrite(source_name, writer.node.outputs.index(name))
                if read_at < writer_index or writes_in_place:
                    pairs.append((index, output))
        return tuple(sorted(pairs))

    def _call(self, inputs: Sequence[Array], results: Sequence[Array]) -> int:
        address_of = c.address_of
        return self._run(
            self._handle, self._input_addresses(*map(address_of, inputs)), self._output_addresses(*map(address_of, results))
        )

    def _make_error(self, status: int) -> RunFailed:
        if status == c.STATUS_NO_MEMORY:
            return RunFailed(f"there is not enough memory for the {self.workspace} bytes of inner values of a native tape")
        # A positive status is the 1-based index of the failed step.
        step = self.steps[status - 1]
        message = " ".join(self._core.xrt_tape_said().decode("utf-8", "replace").split()) or "it gives no reason"
        return RunFailed(f"{step.kernel} failed at node {step.node.name!r} ({step.node.op}): {message}")


def _is_aligned(array: Array) -> bool:
    """Whether the address of an array is aligned. For NumPy all empty arrays are, but the native tape checks these too."""
    return array.flags.aligned and (array.size > 0 or c.address_of(array) % array.dtype.alignment == 0)


class _InputCheck:
    """Checks that an array has the type for which the kernels were prepared; they would read beyond the end of a smaller one.

    A call returns the array, or a copy if it is not C-contiguous. Raises RunFailed if the type differs.
    """

    __slots__ = ("dtype", "name", "shape", "type")

    def __init__(self, name: str, type_: TensorType) -> None:
        self.name = name
        self.type = type_
        self.dtype = type_.dtype.numpy
        self.shape = type_.shape

    def __call__(self, array: Any) -> Array:
        if type(array) is np.ndarray and array.shape == self.shape and array.dtype == self.dtype:
            return array if array.flags.c_contiguous else np.ascontiguousarray(array)
        actual = TensorType(DType.from_array(array), array.shape) if isinstance(array, np.ndarray) else type(array).__name__
        raise RunFailed(f"value {self.name!r} is {actual}; the native kernels that read it were prepared for {self.type}")


def _make_layout(
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array],
    tape: NativeTape,
    threads: int,
    keep_alive: list[Any],
) -> c.LayoutC:
    """Make the structure that describes a tape to C. The memory that it points to is added to ``keep_alive``."""
    inputs, outputs = [source.name for source in tape.inputs], tape.output_names
    inner, scratch, nbytes = _plan_memory(types, {*inputs, *outputs, *constants}, tape.steps)
    # Where each value is stored: the kind of memory, and the offset in the frame or the index among the arguments or results.
    storage_by_name = {
        "": (c.STORAGE_ABSENT, 0),
        **{name: (c.STORAGE_INNER, live_range.offset) for name, live_range in inner.items()},
        **dict.fromkeys(constants, (c.STORAGE_CONSTANT, 0)),
        **{name: (c.STORAGE_RESULT, index) for index, name in enumerate(outputs)},
        **{name: (c.STORAGE_ARGUMENT, index) for index, name in enumerate(inputs)},
    }
    values = []
    for name, (storage, location) in storage_by_name.items():
        if not name:
            tensor = ABSENT
        elif name in constants:
            array = constants[name]
            tensor = make_tensor_c(DType.from_array(array), array.shape, array.ctypes.data, keep_alive)
        else:
            tensor = make_tensor_c(types[name].dtype, types[name].shape, None, keep_alive)
        values.append(c.ValueC(tensor, storage, location))
    value_indices = {name: index for index, name in enumerate(storage_by_name)}
    steps = [
        c.StepC(
            kernel=pointer(step.kernel.structure),
            state=step.state,
            scratch=scratch[index].offset if index in scratch else -1,
            n_inputs=len(step.node.inputs),
            inputs=make_array_c(c_int32, [value_indices[name] for name in step.node.inputs], keep_alive),
            n_outputs=len(step.node.outputs),
            outputs=make_array_c(c_int32, [value_indices[name] for name in step.node.outputs], keep_alive),
        )
        for index, step in enumerate(tape.steps)
    ]
    return c.LayoutC(
        n_values=len(values),
        values=make_array_c(c.ValueC, values, keep_alive),
        n_steps=len(steps),
        steps=make_array_c(c.StepC, steps, keep_alive),
        n_arguments=len(inputs),
        n_results=len(outputs),
        memory=nbytes,
        threads=threads,
    )


def _plan_memory(
    types: Mapping[str, TensorType], external: set[str], steps: Sequence[PreparedKernel]
) -> tuple[dict[str, LiveRange], dict[int, LiveRange], int]:
    """Plan the memory of a frame: the inner values, which are all values except those in ``external``, and scratch memory.

    Returns the live ranges of inner values by name, those of scratch memory by step index, and the total bytes. The first output
    of a step overwrites an inner input of the same type and size, if its kernel supports this and no later step reads the input.
    """
    last_read = {name: index for index, step in enumerate(steps) for name in step.node.inputs}
    inner: dict[str, LiveRange] = {}
    for index, step in enumerate(steps):
        for output, (name, type_) in enumerate(step.outputs.items()):
            if name in external:
                continue
            live_range = _find_reusable(step, type_, types, inner, last_read, index) if output == 0 else None
            if live_range is None:
                live_range = LiveRange(type_.nbytes or 0, index, index)
            # If two values share memory, the range ends with the last step that reads one of them.
            live_range.last = max(live_range.last, last_read.get(name, index))
            inner[name] = live_range
    scratch = {index: LiveRange(step.scratch, index, index) for index, step in enumerate(steps) if step.scratch}
    # Values that share memory have the same range, which must get only one offset.
    distinct = {id(live_range): live_range for live_range in (*inner.values(), *scratch.values())}
    return inner, scratch, assign_offsets(list(distinct.values()))


def _find_reusable(
    step: PreparedKernel,
    type_: TensorType,
    types: Mapping[str, TensorType],
    inner: Mapping[str, LiveRange],
    last_read: Mapping[str, int],
    index: int,
) -> LiveRange | None:
    """Find the memory of an inner input that the first output of step ``index``, of type ``type_``, may overwrite; or None."""
    if not step.node.outputs[0]:
        return None
    for name in step.node.inputs:
        is_last_use = name in inner and last_read[name] == index and step.can_overwrite(name)
        if is_last_use and (types[name].dtype, types[name].nbytes) == (type_.dtype, type_.nbytes):
            return inner[name]
    return None


MAX_SCRATCH_BYTES = 1 << 40
"""A larger request for scratch memory is an error of the kernel. Their sum could overflow 64 bits."""


class PreparedKernel:
    """A kernel and the state that its ``prepare`` created for a node. The state is destroyed with this object."""

    __slots__ = ("__weakref__", "_node_c", "_node_memory", "kernel", "node", "outputs", "scratch", "state")

    def __init__(self, kernel: NativeKernel, node: Node, function: Function) -> None:
        """Prepare the kernel for a node whose inputs have static types.

        Raises CompileRefused if the kernel rejects the node, and CompileFailed if it fails or returns an output type that
        contradicts the Function.
        """
        self.kernel = kernel
        self.node = node
        self._node_memory: list[Any] = []
        self._node_c = marshal_node(node, function, self._node_memory)
        outputs_c = (abi.OutputC * len(node.outputs))()
        plan = abi.PlanC(outputs=outputs_c)
        message = MessageBuffer()
        status = kernel.structure.prepare(self._node_c, plan, message.structure)
        if status == abi.STATUS_REFUSED:
            raise CompileRefused(f"{kernel} does not support node {node.name!r} ({node.op}): {message.text}", [node.name])
        if status != abi.STATUS_OK:
            raise CompileFailed(f"{kernel} failed to prepare for node {node.name!r} ({node.op}): {message.text}")
        self.state: int | None = plan.state
        if kernel.structure.destroy:
            weakref.finalize(self, kernel.structure.destroy, plan.state).atexit = False  # daemon threads may run at exit
        self.scratch: int = plan.scratch
        if self.scratch > MAX_SCRATCH_BYTES:
            raise CompileFailed(
                f"{kernel} requests {self.scratch} bytes of scratch for node {node.name!r} ({node.op}); its prepare is wrong"
            )
        self.outputs: dict[str, TensorType] = dict(_iter_output_types(kernel, node, function, outputs_c))

    def can_overwrite(self, name: str, output: int = 0) -> bool:
        """Whether the kernel may write output ``output`` to the memory of the input value ``name``."""
        # The bits of the kernel's `in_place` apply to output 0, and for elementwise kernels to all outputs.
        if output and not self.kernel.flags & abi.FLAG_ELEMENTWISE:
            return False
        indices = [index for index, input_name in enumerate(self.node.inputs) if input_name == name]
        return all(self.kernel.in_place >> index & 1 for index in indices)


def _iter_output_types(kernel: NativeKernel, node: Node, function: Function, outputs_c: Any) -> Iterator[tuple[str, TensorType]]:
    """Yield the name and type of each output that ``prepare`` returned. Raises CompileFailed if it contradicts the Function."""
    for index, name in enumerate(node.outputs):
        if not name:
            continue
        type_, declared = _read_type(outputs_c[index]), function.get_type(name)
        where = f"output {index} of node {node.name!r} ({node.op})"
        if type_ is None:
            raise CompileFailed(f"{kernel} returns no type for {where}, or one that XRT does not support; its prepare is wrong")
        if declared is not None and not may_equal(type_, declared):
            raise CompileFailed(f"{kernel} returns {type_} for {where}, which is {declared}; its prepare is wrong")
        yield name, type_


def _read_type(output_c: abi.OutputC) -> TensorType | None:
    """Convert an ``xrt_output`` to a type; None if the element type or the shape is invalid."""
    dtype = abi.decode_dtype(output_c.dtype)
    if dtype is None or not 0 <= output_c.ndim <= abi.MAX_RANK:
        return None
    shape = tuple(output_c.shape[: output_c.ndim])
    return None if any(dim < 0 for dim in shape) else TensorType(dtype, shape)


MIN_FILLED_BYTES = 1 << 12
"""For a smaller output, a new array and a copy take less time than passing a buffer."""


class NativeExecutable(Executable):
    """Runs a Function in one native call."""

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(self, name: str, tape: NativeTape) -> None:
        """``name`` is the name of the Function, for error messages."""
        self.tape = tape
        self._name = name

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> list[Any]:
        if len(inputs) != len(self.tape.inputs):
            raise InputError(f"function {self._name!r} takes {len(self.tape.inputs)} inputs; got {len(inputs)}")
        if (out := options.host_buffers) is not None:
            for buffer, (shape, dtype) in zip(out, self.tape.outputs, strict=True):
                # The kernels would write beyond the end of a smaller one.
                if buffer is not None and (buffer.dtype != dtype or buffer.shape != shape):
                    actual = f"{buffer.dtype}{list(buffer.shape)}"
                    raise RunFailed(f"a result is {dtype}{list(shape)}, but the buffer for it is {actual}")
        return self.tape.run(inputs, out)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        run = self.tape.run
        return lambda *inputs: run(inputs)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        return self.tape.bind(inputs, outputs) or super().bind(inputs, outputs)

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        run, buffers = self.tape.run, tuple(outputs)

        def call(*inputs: Any) -> None:
            run(inputs, buffers)

        return call

    def supports_io_binding(self) -> bool:
        return True

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [MIN_FILLED_BYTES] * len(self.tape.outputs)

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self.tape.in_place

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values and scratch space of kernels, planned at compile time; there is a block for each concurrent call"
        return (MemoryUse("workspace", self.tape.workspace, why, per_call=True),)


def run_kernel(
    kernel: NativeKernel,
    *inputs: Array | None,
    attributes: Mapping[str, Any] | None = None,
    opset: int | None = None,
    n_outputs: int = 1,
    constants: Sequence[int] = (),
    threads: int = 1,
) -> list[Array]:
    """Run a kernel on arrays, for tests. An absent input is None. ``constants`` has the indices of constant inputs.

    Raises CompileRefused if the kernel does not support the inputs, CompileFailed or RunFailed if it fails, and EngineUnavailable
    if XRT's native library, which contains the tape, cannot be used.
    """
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(inputs))
    outputs = tuple(f"y{i}" for i in range(n_outputs))
    node = Node(kernel.op_type, names, outputs, read_attributes(attributes or {}), kernel.domain, "alone")
    values_by_name = {names[i]: Constant(inputs[i]) for i in constants}  # type: ignore[arg-type]  # a constant is not omitted
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if x is not None and n not in values_by_name}
    types = {n: TensorType(DType.from_array(x), x.shape) for n, x in arrays.items()}  # of the inputs that are not constant
    # The default is an opset that the kernel supports.
    version = opset or kernel.until or max(kernel.since, 1)
    function = Function(
        tuple(Value(*pair) for pair in types.items()),
        tuple(map(Value, outputs)),
        (node,),
        values_by_name,
        {kernel.domain: version},
    )
    if reason := kernel.why_not(node, function):
        raise CompileRefused(f"{kernel}: {reason}")
    return NativeTape(types, outputs, [PreparedKernel(kernel, node, function)], values_by_name, threads).run([*arrays.values()])
