"""The native tape: a sequence of prepared kernels that runs as one native call."""

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
from xrt.engines.native.marshalling import align, marshal_node, tensor_c
from xrt.engines.toolkit.memory import LiveRange, assign_offsets
from xrt.errors import CompileFailed, CompileRefused, InputError, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

Array = np.ndarray[Any, Any]


class NativeTape:
    """A sequence of native kernels between inputs and outputs of static types.

    Memory offsets, in-place reuse and thread counts are decided at construction. Each run uses a memory frame from a pool, so
    several threads may run one tape concurrently.
    """

    def __init__(
        self,
        inputs: Mapping[str, TensorType],
        outputs: Sequence[str],
        steps: Sequence[PreparedKernel],
        constants: Mapping[str, Constant],
        threads: int,
    ) -> None:
        """Plan the memory of the tape. Steps read inputs, constants and results of earlier steps. Linear in the steps.

        Each output must be defined by a step and be listed once. Raises CompileFailed if memory is exhausted.
        """
        self.steps = tuple(steps)
        self.inputs = tuple(_InputCheck(name, type_) for name, type_ in inputs.items())
        types = dict(inputs)
        for step in self.steps:
            types.update(step.outputs)
        self._names = tuple(outputs)
        self.outputs: tuple[tuple[Any, Any], ...] = tuple((types[n].shape, types[n].dtype.numpy) for n in outputs)
        self._constants = {name: align(constants[name].array) for name in _list_inputs(steps) if name in constants}
        layout = _Layout(types, self._constants, tuple(inputs), tuple(outputs), self.steps)
        self.workspace = layout.memory
        """Bytes that a run needs besides inputs and outputs."""
        self._keep_alive = layout.keep_alive
        self._arguments, self._results = c_void_p * len(self.inputs), c_void_p * len(self.outputs)
        core = c.core()
        handle = core.xrt_tape_new(layout.structure(threads))
        if not handle:
            raise CompileFailed(f"there is no memory for a native tape of {len(self.steps)} steps")
        weakref.finalize(self, core.xrt_tape_delete, handle).atexit = False  # a daemon thread may still run it at exit
        self._handle, self._core = handle, core
        self._run: Callable[..., int] = core.xrt_tape_run

    @property
    def frames(self) -> int:
        """Number of memory frames: the maximum of concurrent runs so far."""
        return int(self._core.xrt_tape_frames(self._handle))

    def run(self, arrays: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array]:
        """Run the tape; return the outputs, in fresh arrays or in the buffers of ``out``.

        A buffer must be C-contiguous, writable, of the output's exact type, and not overlap an input. Raises RunFailed with the
        node, kernel and library that failed, or for an input of another type.
        """
        inputs = [check(array) for check, array in zip(self.inputs, arrays, strict=True)]
        results = [np.empty(shape, dtype) for shape, dtype in self.outputs] if out is None else self._allocate_outputs(out)
        status = self._call(inputs, results)
        # Kernels load whole vectors. Unaligned inputs, such as tensors in a model file, are rare enough to be copied on demand.
        if status == c.UNALIGNED:
            status = self._call([array if _is_aligned(array) else array.copy() for array in inputs], results)
        if status:
            raise self._make_error(status)
        return results

    def bind(self, arrays: Sequence[Array], out: Sequence[Array]) -> Callable[[], None] | None:
        """Bind inputs and output buffers to a call without arguments; None if an input must be converted first.

        The call keeps the arrays alive. Addresses are resolved once, so that only the kernels take time.
        """
        inputs = [check(array) for check, array in zip(self.inputs, arrays, strict=True)]
        # A converted copy would not follow later changes of the caller's array.
        if any(converted is not array or not _is_aligned(array) for converted, array in zip(inputs, arrays, strict=True)):
            return None
        address_of, run, handle = c.address_of, self._run, self._handle
        arguments, results = self._arguments(*map(address_of, inputs)), self._results(*map(address_of, out))
        references = (self, *inputs, *out)

        def call(_references: object = references) -> None:
            status = run(handle, arguments, results)
            if status:
                raise self._make_error(status)

        return call

    @cached_property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """The (input, output) pairs that may share memory: no step reads the input after the output is written."""
        last = {name: index for index, step in enumerate(self.steps) for name in step.node.inputs}
        writers = {name: (index, step) for index, step in enumerate(self.steps) for name in step.outputs}
        places_by_type: dict[TensorType, list[int]] = {}
        for place, source in enumerate(self.inputs):
            places_by_type.setdefault(source.type, []).append(place)
        # Only values of exactly the same type have the same extent in memory.
        pairs = ((i, o) for o, name in enumerate(self._names) for i in places_by_type.get(writers[name][1].outputs[name], ()))
        allowed = (pair for pair in pairs if self._may_share(self.inputs[pair[0]], last, *writers[self._names[pair[1]]], pair[1]))
        return tuple(sorted(allowed))

    def _may_share(self, source: _InputCheck, last: Mapping[str, int], index: int, writer: PreparedKernel, place: int) -> bool:
        end = last.get(source.name, -1)
        return end < index or (end == index and writer.can_overwrite(source.name, writer.node.outputs.index(self._names[place])))

    def _call(self, inputs: Sequence[Array], results: Sequence[Array]) -> int:
        address_of = c.address_of
        return self._run(self._handle, self._arguments(*map(address_of, inputs)), self._results(*map(address_of, results)))

    def _allocate_outputs(self, out: Sequence[Array | None]) -> list[Array]:
        pairs = zip(self.outputs, out, strict=True)
        return [np.empty(shape, dtype) if buffer is None else buffer for (shape, dtype), buffer in pairs]

    def _make_error(self, status: int) -> RunFailed:
        if status == c.NO_MEMORY:
            return RunFailed(f"there is no memory for the {self.workspace} bytes between the steps of a native tape")
        # A positive status is the number of the failed step, from 1 on.
        step = self.steps[status - 1]
        message = " ".join(self._core.xrt_tape_said().decode("utf-8", "replace").split()) or "it gives no reason"
        return RunFailed(f"{step.kernel} failed at node {step.node.name!r} ({step.node.op}): {message}")


def _is_aligned(array: Array) -> bool:
    """Whether the address is aligned. NumPy calls every empty array aligned, the kernels do not."""
    return array.flags.aligned and (array.size > 0 or c.address_of(array) % array.dtype.alignment == 0)


class _InputCheck:
    """Checks that an array has the type that the kernels were prepared for: otherwise they might read beyond its end."""

    __slots__ = ("dtype", "name", "shape", "type")

    def __init__(self, name: str, type_: TensorType) -> None:
        self.name, self.type = name, type_
        self.dtype, self.shape = type_.dtype.numpy, type_.shape

    def __call__(self, array: Any) -> Array:
        if type(array) is np.ndarray and array.shape == self.shape and array.dtype == self.dtype:
            return array if array.flags.c_contiguous else np.ascontiguousarray(array)
        actual = TensorType(DType.of(array), array.shape) if isinstance(array, np.ndarray) else type(array).__name__
        raise RunFailed(f"value {self.name!r} is {actual}; the native kernels that read it were prepared for {self.type}")


def _list_inputs(steps: Sequence[PreparedKernel]) -> dict[str, None]:
    return dict.fromkeys(name for step in steps for name in step.node.inputs if name)


class _Layout:
    """The memory of each value as the C structures of the tape."""

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
        self._number = {"": 0}
        self._homes: list[tuple[int, int]] = [(c.ABSENT, 0)]
        self._tensors = [tensor_c(None, None, None, self.keep_alive)]
        # Number 0 stands for absent inputs and outputs, which have rank -1.
        self._tensors[0].ndim = -1
        inner, self._scratch, self.memory = _plan_memory(types, {*inputs, *outputs, *constants}, steps)
        homes = {
            **{name: (c.INNER, span.offset) for name, span in inner.items()},
            **dict.fromkeys(constants, (c.CONSTANT, 0)),
            **{name: (c.RESULT, place) for place, name in enumerate(outputs)},
            **{name: (c.ARGUMENT, place) for place, name in enumerate(inputs)},
        }
        for name, home in homes.items():
            self._number[name] = len(self._homes)
            self._homes.append(home)
            self._tensors.append(self._make_tensor(name, types, constants))
        self._inputs, self._outputs = len(inputs), len(outputs)

    def _make_tensor(self, name: str, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> Any:
        if name in constants:
            array = constants[name]
            return tensor_c(DType.of(array), array.shape, array.ctypes.data, self.keep_alive)
        return tensor_c(types[name].dtype, types[name].shape, None, self.keep_alive)

    def structure(self, threads: int) -> c.LayoutC:
        """The layout structure. It is only read while the tape is created; `keep_alive` must outlive the tape."""
        values = [c.ValueC(t, home, place) for t, (home, place) in zip(self._tensors, self._homes, strict=True)]
        steps = [self._step(index, step) for index, step in enumerate(self._steps)]
        return c.LayoutC(
            n_values=len(values),
            values=_make_pointer(c.ValueC, values),
            n_steps=len(steps),
            steps=_make_pointer(c.StepC, steps),
            n_arguments=self._inputs,
            n_results=self._outputs,
            memory=self.memory,
            threads=threads,
        )

    def _step(self, index: int, step: PreparedKernel) -> c.StepC:
        inputs = [self._number[name] for name in step.node.inputs]
        outputs = [self._number[name] for name in step.node.outputs]
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
    """Plan the memory of inner values and of scratch space by step; also return the total bytes.

    A first output reuses the memory of an inner input of the same type if the kernel allows that and no later step reads it.
    """
    last = {name: index for index, step in enumerate(steps) for name in step.node.inputs}
    inner: dict[str, LiveRange] = {}
    for index, step in enumerate(steps):
        # A reused span lives on under a second name, until the last reader of both.
        for place, (name, type_) in enumerate(step.outputs.items()):
            if name in external:
                continue
            span = _find_reusable(step, type_, types, inner, last, index) if place == 0 else None
            if span is None:
                span = LiveRange(type_.nbytes or 0, index, index)
            span.last = max(span.last, last.get(name, index))
            inner[name] = span
    scratch = {index: LiveRange(step.scratch, index, index) for index, step in enumerate(steps) if step.scratch}
    # Names that share memory share a span, which is placed once.
    distinct = {id(span): span for span in (*inner.values(), *scratch.values())}
    return inner, scratch, assign_offsets(list(distinct.values()))


def _find_reusable(
    step: PreparedKernel,
    type_: TensorType,
    types: Mapping[str, TensorType],
    inner: Mapping[str, LiveRange],
    last: Mapping[str, int],
    index: int,
) -> LiveRange | None:
    """The memory of an input that the step's first output may overwrite; None if there is none."""
    if not step.node.outputs[0]:
        return None
    for name in step.node.inputs:
        is_last_use = name in inner and last[name] == index and step.can_overwrite(name)
        if is_last_use and (types[name].dtype, types[name].nbytes) == (type_.dtype, type_.nbytes):
            return inner[name]
    return None


MOST_SCRATCH = 1 << 40
"""Maximum bytes of scratch memory. A larger request is an error in the kernel; sums of such requests could overflow 64 bits."""


class PreparedKernel:
    """A kernel with its node and the state that ``prepare`` created, which is destroyed with this object."""

    __slots__ = ("__weakref__", "_node_c", "_node_memory", "kernel", "node", "outputs", "scratch", "state")

    def __init__(self, kernel: NativeKernel, node: Node, function: Function) -> None:
        """Prepare the kernel for a node whose inputs have static types.

        Raises CompileRefused if the kernel refuses, CompileFailed if it fails or announces an output type that contradicts the
        function.
        """
        self.kernel, self.node = kernel, node
        self._node_memory: list[Any] = []
        self._node_c = marshal_node(node, function, self._node_memory)
        outputs_c = (abi.OutputC * len(node.outputs))()
        plan, message = abi.PlanC(outputs=outputs_c), MessageBuffer()
        status = kernel.structure.prepare(self._node_c, plan, message.structure)
        if status == abi.REFUSED:
            raise CompileRefused(f"{kernel} refuses node {node.name!r} ({node.op}): {message.text}", [node.name])
        if status != abi.OK:
            raise CompileFailed(f"{kernel} failed to prepare for node {node.name!r} ({node.op}): {message.text}")
        self.state: int | None = plan.state
        if kernel.structure.destroy:
            weakref.finalize(self, kernel.structure.destroy, plan.state).atexit = False  # daemon threads may run at exit
        self.scratch: int = plan.scratch
        if self.scratch > MOST_SCRATCH:
            raise CompileFailed(
                f"{kernel} asks for {self.scratch} bytes of scratch for node {node.name!r} ({node.op}); its prepare is wrong"
            )
        self.outputs: dict[str, TensorType] = dict(_read_outputs(kernel, node, function, outputs_c))
        """Types of the node's outputs by name."""

    def can_overwrite(self, name: str, place: int = 0) -> bool:
        """Whether the kernel allows an output to share memory with an input."""
        # The mask of the interface covers output 0. All outputs of an elementwise kernel have the same extent.
        if place and not self.kernel.flags & abi.ELEMENTWISE:
            return False
        places = [index for index, input_name in enumerate(self.node.inputs) if input_name == name]
        return all(self.kernel.in_place >> index & 1 for index in places)


def _read_outputs(kernel: NativeKernel, node: Node, function: Function, outputs_c: Any) -> Iterator[tuple[str, TensorType]]:
    for index, name in enumerate(node.outputs):
        if not name:
            continue
        type_, declared = _read_type(outputs_c[index]), function.get_type(name)
        where = f"output {index} of node {node.name!r} ({node.op})"
        if type_ is None:
            raise CompileFailed(f"{kernel} announces no type for {where}, or one that XRT does not know; its prepare is wrong")
        if declared is not None and not type_.is_compatible(declared):
            raise CompileFailed(f"{kernel} announces {type_} for {where}, which is {declared}; its prepare is wrong")
        yield name, type_


def _read_type(output_c: abi.OutputC) -> TensorType | None:
    dtype = abi.decode_dtype(output_c.dtype)
    shape = tuple(output_c.shape[: output_c.ndim]) if 0 <= output_c.ndim <= abi.MAX_RANK else (-1,)
    return None if dtype is None or any(dim < 0 for dim in shape) else TensorType(dtype, shape)


FILLED_FROM = 1 << 12
"""Bytes from which an output is written to the caller's buffer: below, a fresh array costs less than passing a buffer down."""


class NativeExecutable(Executable):
    """One native call per run."""

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(self, name: str, tape: NativeTape, outputs: Sequence[str]) -> None:
        """``outputs`` names the outputs of the tape; ``name`` is the Function's, for errors."""
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
        return [FILLED_FROM] * len(self._outputs)

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self.tape.in_place

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values and scratch space of kernels, planned once; there is a block for each concurrent call"
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
    """Raise InputError for a buffer of the caller that cannot hold its output.

    ``outputs`` has a (value, dtype, shape) per output: ``describe`` spells the value or its type in the error, and the dtype is
    None for an output that is not an array. With ``aligned``, a buffer must be aligned too.
    """
    if len(out) != len(names):
        raise InputError(f"function {function!r} has {len(names)} outputs; out= holds {len(out)} buffers")
    for name, (output, dtype, shape), buffer in zip(names, outputs, out, strict=True):
        if buffer is None:
            continue
        if dtype is None:
            reason = f"the output is {describe(output)}, which no buffer holds"
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
        raise InputError(f"out= for output {name!r}: {reason}; give a writable C-contiguous array, or None for a fresh one")


# ---------------------------------------------------------------------- one kernel, for tests of kernel authors


def run_kernel(
    kernel: NativeKernel,
    *inputs: Array | None,
    attributes: Mapping[str, Any] | None = None,
    opset: int | None = None,
    n_outputs: int = 1,
    constants: Sequence[int] = (),
    threads: int = 1,
) -> list[Array]:
    """Run a kernel on arrays, as a tape of one step; None stands for an omitted input.

    ``constants`` lists the positions of inputs that the kernel sees as constants. Raises CompileRefused with the kernel's reason,
    CompileFailed or RunFailed with its message, or EngineUnavailable if XRT's own native library, which has the threads, was not
    built.
    """
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(inputs))
    outputs = tuple(f"y{i}" for i in range(n_outputs))
    node = Node(kernel.op_type, names, outputs, read_attributes(attributes or {}), kernel.domain, "alone")
    values_by_name = {names[i]: Constant(inputs[i]) for i in constants}  # type: ignore[arg-type]  # a constant is not omitted
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if x is not None and n not in values_by_name}
    types = {n: TensorType(DType.of(x), x.shape) for n, x in arrays.items()}
    # Without a version, one that the kernel supports.
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
