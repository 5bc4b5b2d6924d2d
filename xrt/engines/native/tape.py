"""The native tape: a sequence of native kernels that runs as one native call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import POINTER, c_int32, c_void_p, pointer
from functools import cached_property
from typing import Any

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse
from xrt.engines.contract.options import RunOptions
from xrt.engines.native import abi, bindings as c
from xrt.engines.native.library import MessageBuffer, NativeKernel
from xrt.engines.native.marshalling import make_aligned, make_tensor_c, marshal_node
from xrt.engines.toolkit.memory import LiveRange, assign_offsets
from xrt.errors import CompileFailed, CompileRefused, InputError, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

Array = np.ndarray[Any, Any]


class NativeTape:
    """A sequence of native kernels that computes outputs from inputs, all of static types.

    Memory offsets, values that reuse the memory of others, and the number of threads are determined at construction. Each run
    uses one block of memory (a frame) from a pool, so several threads may run a tape concurrently.
    """

    def __init__(
        self,
        inputs: Mapping[str, TensorType],
        outputs: Sequence[str],
        steps: Sequence[PreparedKernel],
        constants: Mapping[str, Constant],
        threads: int,
    ) -> None:
        """Plan the memory of the tape, in linear time. ``steps`` read inputs, constants and results of earlier steps.

        Each output must be the result of a step, and be listed once. Raises CompileFailed if there is not enough memory.
        """
        self.steps = tuple(steps)
        self.inputs = tuple(_InputCheck(name, type_) for name, type_ in inputs.items())
        types = dict(inputs)
        for step in self.steps:
            types.update(step.outputs)
        self._names = tuple(outputs)
        self.outputs: tuple[tuple[Any, Any], ...] = tuple((types[n].shape, types[n].dtype.numpy) for n in outputs)
        self._constants = {name: make_aligned(constants[name].array) for name in _list_inputs(steps) if name in constants}
        layout = _TapeLayout(types, self._constants, tuple(inputs), tuple(outputs), self.steps)
        self.workspace = layout.memory
        """Bytes of memory that a run needs in addition to inputs and outputs."""
        self._keep_alive = layout.keep_alive
        # Types of C arrays of addresses.
        self._arguments = c_void_p * len(self.inputs)
        self._results = c_void_p * len(self.outputs)
        core = c.get_core()
        handle = core.xrt_tape_new(layout.make_structure(threads))
        if not handle:
            raise CompileFailed(f"there is not enough memory for a native tape of {len(self.steps)} steps")
        weakref.finalize(self, core.xrt_tape_delete, handle).atexit = False  # a daemon thread may still run it at exit
        self._handle = handle
        self._core = core
        self._run: Callable[..., int] = core.xrt_tape_run

    @property
    def frame_count(self) -> int:
        """Number of frames so far: the maximum number of concurrent runs."""
        return int(self._core.xrt_tape_frames(self._handle))

    def run(self, arrays: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        """Run the tape and return the outputs, each in the buffer of ``out`` or, if that is None, in a new array.

        A buffer must be C-contiguous, writable and of the exact type of the output, and must not overlap an input. Raises
        RunFailed for an input of another type, and if a kernel fails, with the names of the node, kernel and library.
        """
        inputs = [check(array) for check, array in zip(self.inputs, arrays, strict=True)]
        results = [np.empty(shape, dtype) for shape, dtype in self.outputs] if out is None else self._allocate_outputs(out)
        status = self._call(inputs, results)
        # Kernels need aligned inputs. Unaligned ones, such as tensors in a model file, are rare, so copy them only now.
        if status == c.STATUS_UNALIGNED:
            status = self._call([array if _is_aligned(array) else array.copy() for array in inputs], results)
        if status:
            raise self._make_error(status)
        return results

    def bind(self, arrays: Sequence[Array], out: Sequence[Array]) -> Callable[[], None] | None:
        """Make a function without arguments that runs the tape on these inputs and output buffers, which it keeps alive.

        It does not look up addresses again, so a call takes no longer than the kernels. Return None if an input has the wrong
        layout: the function would use a copy, which does not follow later changes of the array.
        """
        inputs = [check(array) for check, array in zip(self.inputs, arrays, strict=True)]
        # `check` returns a copy of an array that is not contiguous.
        if any(converted is not array or not _is_aligned(array) for converted, array in zip(inputs, arrays, strict=True)):
            return None
        address_of, run, handle = c.address_of, self._run, self._handle
        arguments = self._arguments(*map(address_of, inputs))
        results = self._results(*map(address_of, out))
        references = (self, *inputs, *out)

        def call(_references: object = references) -> None:
            status = run(handle, arguments, results)
            if status:
                raise self._make_error(status)

        return call

    @cached_property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """The (input, output) index pairs that may share memory, because no step reads the input after the output is written."""
        last_read = {name: index for index, step in enumerate(self.steps) for name in step.node.inputs}
        writers = {name: (index, step) for index, step in enumerate(self.steps) for name in step.outputs}
        inputs_by_type: dict[TensorType, list[int]] = {}
        for index, source in enumerate(self.inputs):
            inputs_by_type.setdefault(source.type, []).append(index)
        # Only values of the same type can share memory.
        pairs = ((i, o) for o, name in enumerate(self._names) for i in inputs_by_type.get(writers[name][1].outputs[name], ()))
        allowed = (
            pair for pair in pairs if self._may_share(self.inputs[pair[0]], last_read, *writers[self._names[pair[1]]], pair[1])
        )
        return tuple(sorted(allowed))

    def _may_share(
        self, source: _InputCheck, last_read: Mapping[str, int], step_index: int, writer: PreparedKernel, output: int
    ) -> bool:
        """Whether output ``output``, which step ``step_index`` (``writer``) computes, may overwrite the input ``source``."""
        read_at = last_read.get(source.name, -1)
        return read_at < step_index or (
            read_at == step_index and writer.can_overwrite(source.name, writer.node.outputs.index(self._names[output]))
        )

    def _call(self, inputs: Sequence[Array], results: Sequence[Array]) -> int:
        address_of = c.address_of
        return self._run(self._handle, self._arguments(*map(address_of, inputs)), self._results(*map(address_of, results)))

    def _allocate_outputs(self, out: Sequence[Array | None]) -> list[Array]:
        pairs = zip(self.outputs, out, strict=True)
        return [np.empty(shape, dtype) if buffer is None else buffer for (shape, dtype), buffer in pairs]

    def _make_error(self, status: int) -> RunFailed:
        if status == c.STATUS_NO_MEMORY:
            return RunFailed(f"there is not enough memory for the {self.workspace} bytes of inner values of a native tape")
        # A positive status is the 1-based index of the failed step.
        step = self.steps[status - 1]
        message = " ".join(self._core.xrt_tape_said().decode("utf-8", "replace").split()) or "it gives no reason"
        return RunFailed(f"{step.kernel} failed at node {step.node.name!r} ({step.node.op}): {message}")


def _is_aligned(array: Array) -> bool:
    """Whether the address of an array is aligned. NumPy treats every empty array as aligned, but kernels do not."""
    return array.flags.aligned and (array.size > 0 or c.address_of(array) % array.dtype.alignment == 0)


class _InputCheck:
    """Checks that an input has the type that the kernels were prepared for, because they would read beyond the end of a smaller
    one.

    Calling it returns the array, or a copy if it is not C-contiguous. Raises RunFailed for another type.
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
        actual = TensorType(DType.of(array), array.shape) if isinstance(array, np.ndarray) else type(array).__name__
        raise RunFailed(f"value {self.name!r} is {actual}; the native kernels that read it were prepared for {self.type}")


def _list_inputs(steps: Sequence[PreparedKernel]) -> dict[str, None]:
    return dict.fromkeys(name for step in steps for name in step.node.inputs if name)


class _TapeLayout:
    """Numbers the values of a tape, plans their memory, and makes the C structures that describe it."""

    def __init__(
        self,
        types: Mapping[str, TensorType],
        constants: Mapping[str, Array],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        steps: Sequence[PreparedKernel],
    ) -> None:
        self.keep_alive: list[Any] = []
        self._steps = steps
        self._value_indices = {"": 0}
        self._storage: list[tuple[int, int]] = [(c.STORAGE_ABSENT, 0)]
        self._tensors = [make_tensor_c(None, None, None, self.keep_alive)]
        # Index 0 stands for absent inputs and outputs, which have rank -1.
        self._tensors[0].ndim = -1
        inner, self._scratch, self.memory = _plan_memory(types, {*inputs, *outputs, *constants}, steps)
        storage_by_name = {
            **{name: (c.STORAGE_INNER, span.offset) for name, span in inner.items()},
            **dict.fromkeys(constants, (c.STORAGE_CONSTANT, 0)),
            **{name: (c.STORAGE_RESULT, index) for index, name in enumerate(outputs)},
            **{name: (c.STORAGE_ARGUMENT, index) for index, name in enumerate(inputs)},
        }
        for name, storage in storage_by_name.items():
            self._value_indices[name] = len(self._storage)
            self._storage.append(storage)
            self._tensors.append(self._make_tensor(name, types, constants))
        self._num_inputs = len(inputs)
        self._num_outputs = len(outputs)

    def _make_tensor(self, name: str, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> Any:
        if name in constants:
            array = constants[name]
            return make_tensor_c(DType.of(array), array.shape, array.ctypes.data, self.keep_alive)
        return make_tensor_c(types[name].dtype, types[name].shape, None, self.keep_alive)

    def make_structure(self, threads: int) -> c.LayoutC:
        """Make the structure to create the tape with. It is only read then, but ``keep_alive`` must outlive the tape."""
        values = [c.ValueC(t, storage, location) for t, (storage, location) in zip(self._tensors, self._storage, strict=True)]
        steps = [self._make_step(index, step) for index, step in enumerate(self._steps)]
        return c.LayoutC(
            n_values=len(values),
            values=_make_pointer(c.ValueC, values),
            n_steps=len(steps),
            steps=_make_pointer(c.StepC, steps),
            n_arguments=self._num_inputs,
            n_results=self._num_outputs,
            memory=self.memory,
            threads=threads,
        )

    def _make_step(self, index: int, step: PreparedKernel) -> c.StepC:
        inputs = [self._value_indices[name] for name in step.node.inputs]
        outputs = [self._value_indices[name] for name in step.node.outputs]
        return c.StepC(
            kernel=pointer(step.kernel.structure),
            state=step.state,
            scratch=self._scratch[index].offset if index in self._scratch else -1,
            n_inputs=len(inputs),
            inputs=_make_pointer(c_int32, inputs),
            n_outputs=len(outputs),
            outputs=_make_pointer(c_int32, outputs),
        )


def _make_pointer(kind: Any, items: Sequence[Any]) -> Any:
    return ctypes.cast((kind * len(items))(*items), POINTER(kind))


def _plan_memory(
    types: Mapping[str, TensorType], external: set[str], steps: Sequence[PreparedKernel]
) -> tuple[dict[str, LiveRange], dict[int, LiveRange], int]:
    """Plan the memory of inner values and of scratch space. Values in ``external`` have other memory.

    Return the range of each inner value by name, that of the scratch space by index of the step, and the total bytes. The first
    output of a step reuses the memory of an inner input of the same type, if the kernel allows that and no later step reads it.
    """
    last_read = {name: index for index, step in enumerate(steps) for name in step.node.inputs}
    inner: dict[str, LiveRange] = {}
    for index, step in enumerate(steps):
        for output, (name, type_) in enumerate(step.outputs.items()):
            if name in external:
                continue
            span = _find_reusable(step, type_, types, inner, last_read, index) if output == 0 else None
            if span is None:
                span = LiveRange(type_.nbytes or 0, index, index)
            # A reused range has both names, and ends with the last step that reads one of them.
            span.last = max(span.last, last_read.get(name, index))
            inner[name] = span
    scratch = {index: LiveRange(step.scratch, index, index) for index, step in enumerate(steps) if step.scratch}
    # Values that share memory have the same range, which gets an offset once.
    distinct = {id(span): span for span in (*inner.values(), *scratch.values())}
    return inner, scratch, assign_offsets(list(distinct.values()))


def _find_reusable(
    step: PreparedKernel,
    type_: TensorType,
    types: Mapping[str, TensorType],
    inner: Mapping[str, LiveRange],
    last_read: Mapping[str, int],
    index: int,
) -> LiveRange | None:
    """Find the memory of an inner input that the first output of step ``index`` may overwrite; None if there is none."""
    if not step.node.outputs[0]:
        return None
    for name in step.node.inputs:
        is_last_use = name in inner and last_read[name] == index and step.can_overwrite(name)
        if is_last_use and (types[name].dtype, types[name].nbytes) == (type_.dtype, type_.nbytes):
            return inner[name]
    return None


MAX_SCRATCH_BYTES = 1 << 40
"""A kernel that requests more scratch memory is wrong. Sums of such requests could overflow 64 bits."""


class PreparedKernel:
    """A kernel that was prepared for a node. The state that its ``prepare`` created is destroyed with this object."""

    __slots__ = ("__weakref__", "_node_c", "_node_memory", "kernel", "node", "outputs", "scratch", "state")

    def __init__(self, kernel: NativeKernel, node: Node, function: Function) -> None:
        """Prepare the kernel for a node whose inputs have static types.

        Raises CompileRefused if the kernel rejects the node, CompileFailed if it fails or returns an output type that contradicts
        the Function.
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
        """The types of the node's outputs by name."""

    def can_overwrite(self, name: str, output: int = 0) -> bool:
        """Whether the kernel may write output ``output`` to the memory of the input value ``name``."""
        # The bits of `in_place` are about output 0. For elementwise kernels they apply to all outputs.
        if output and not self.kernel.flags & abi.FLAG_ELEMENTWISE:
            return False
        indices = [index for index, input_name in enumerate(self.node.inputs) if input_name == name]
        return all(self.kernel.in_place >> index & 1 for index in indices)


def _iter_output_types(kernel: NativeKernel, node: Node, function: Function, outputs_c: Any) -> Iterator[tuple[str, TensorType]]:
    """Yield the name and type of each output, as ``prepare`` returned it. Raises CompileFailed if it contradicts the Function."""
    for index, name in enumerate(node.outputs):
        if not name:
            continue
        type_, declared = _read_type(outputs_c[index]), function.get_type(name)
        where = f"output {index} of node {node.name!r} ({node.op})"
        if type_ is None:
            raise CompileFailed(f"{kernel} returns no type for {where}, or one that XRT does not support; its prepare is wrong")
        if declared is not None and not type_.is_compatible(declared):
            raise CompileFailed(f"{kernel} returns {type_} for {where}, which is {declared}; its prepare is wrong")
        yield name, type_


def _read_type(output_c: abi.OutputC) -> TensorType | None:
    """Convert an ``xrt_output`` to a type; None if the element type or the shape is invalid."""
    dtype = abi.decode_dtype(output_c.dtype)
    shape = tuple(output_c.shape[: output_c.ndim]) if 0 <= output_c.ndim <= abi.MAX_RANK else (-1,)
    return None if dtype is None or any(dim < 0 for dim in shape) else TensorType(dtype, shape)


MIN_FILLED_BYTES = 1 << 12
"""For a smaller output, allocating an array and copying it takes less time than passing the caller's buffer."""


class NativeExecutable(Executable):
    """Runs a Function as one native call."""

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(self, name: str, tape: NativeTape, outputs: Sequence[str]) -> None:
        """``outputs`` are the names of the tape's outputs. ``name`` is that of the Function, for error messages."""
        self.tape = tape
        self._name = name
        self._outputs = tuple(outputs)
        self._types = [(TensorType(DType.of(np.empty(0, dtype)), shape), dtype, shape) for shape, dtype in tape.outputs]

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> list[Any]:
        if len(inputs) != len(self.tape.inputs):
            raise InputError(f"function {self._name!r} takes {len(self.tape.inputs)} inputs; got {len(inputs)}")
        if (out := options.host_buffers) is not None:
            check_buffers(self._name, self._outputs, self._types, out, aligned=True)
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
        return [MIN_FILLED_BYTES] * len(self._outputs)

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self.tape.in_place

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values and scratch space of kernels, planned at compile time; there is a block for each concurrent call"
        return (MemoryUse("workspace", self.tape.workspace, why, per_call=True),)


def check_buffers(
    function: str,
    names: Sequence[str],
    outputs: Sequence[tuple[Any, np.dtype[Any] | None, Sequence[int]]],
    out: Sequence[Any],
    describe: Callable[[Any], str] = str,
    *,
    aligned: bool,
) -> None:
    """Raise InputError for a buffer of the caller that does not match its output.

    ``names`` and ``outputs`` describe the outputs of ``function``, the latter as (value or type, dtype, shape). ``describe``
    formats the first of these for the error message, and the dtype is None for an output that is not an array. With ``aligned``,
    a buffer must be aligned too.
    """
    if len(out) != len(names):
        raise InputError(f"function {function!r} has {len(names)} outputs; out= has {len(out)} buffers")
    for name, (output, dtype, shape), buffer in zip(names, outputs, out, strict=True):
        if buffer is None:
            continue
        if dtype is None:
            reason = f"the output is {describe(output)}, which cannot be written to a buffer"
        elif not isinstance(buffer, np.ndarray):
            reason = f"the output is {describe(output)}, the buffer {type(buffer).__name__}"
        elif buffer.dtype != dtype or buffer.shape != shape:
            actual = f"{buffer.dtype}[{','.join(map(str, buffer.shape))}]"
            reason = f"the output is {describe(output)}, the buffer {actual}"
        elif not buffer.flags.c_contiguous:
            reason = "the buffer is not C-contiguous"
        elif not buffer.flags.writeable:
            reason = "the buffer is read-only"
        elif aligned and not buffer.flags.aligned:
            reason = "the buffer is not aligned"
        else:
            continue
        raise InputError(f"out= for output {name!r}: {reason}; pass a writable C-contiguous array, or None for a new one")


def run_kernel(
    kernel: NativeKernel,
    *inputs: Array | None,
    attributes: Mapping[str, Any] | None = None,
    opset: int | None = None,
    n_outputs: int = 1,
    constants: Sequence[int] = (),
    threads: int = 1,
) -> list[Array]:
    """Run a kernel on arrays, for tests. None is an absent input.

    ``constants`` lists the indices of inputs that the kernel gets as constants. Raises CompileRefused if the kernel does not
    support the inputs, and CompileFailed or RunFailed if it fails. Raises EngineUnavailable if XRT's own native library cannot be
    used, which runs the kernel.
    """
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(inputs))
    outputs = tuple(f"y{i}" for i in range(n_outputs))
    node = Node(kernel.op_type, names, outputs, read_attributes(attributes or {}), kernel.domain, "alone")
    values_by_name = {names[i]: Constant(inputs[i]) for i in constants}  # type: ignore[arg-type]  # a constant is not omitted
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if x is not None and n not in values_by_name}
    types = {n: TensorType(DType.of(x), x.shape) for n, x in arrays.items()}
    # Without ``opset`` use a version that the kernel supports.
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
