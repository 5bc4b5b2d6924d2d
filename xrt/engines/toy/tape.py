"""A Function as a linear program: a table of slots, and steps that read and write them.

Everything independent of a call is computed once, when the tape is built: the slot of each value, the kernel that computes
it, and the step after which it is dead. A call makes a fresh list of slots and runs one loop, so any number of threads may
run a tape concurrently.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, peak_of_values
from xrt.engines.contract.options import RunOptions
from xrt.engines.toolkit.node_info import list_last_uses
from xrt.engines.toolkit.scatters import SCATTERS
from xrt.engines.toy.kernels import product_threads
from xrt.errors import InputError, ModelError, OptionError, RunFailed, XRTError
from xrt.graph import DType, Function, Node, TensorType, Type, Value, is_static

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Run


ABSENT, UNWANTED = 0, 1
"""Slots of absent inputs (holds None) and of absent outputs."""
CONDITION = np.dtype(bool)
SMALLEST_REUSED = 1 << 15
"""In bytes. For smaller results, allocating is as fast as checking whether an argument's buffer can be reused."""
VIEWS = frozenset(
    {"Cast", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose results are often views of an argument."""


@dataclass(frozen=True, slots=True)
class StepKernel:
    """The kernel of a node, and the memory that it may reuse."""

    run: Run
    mutable: tuple[int, ...] = ()
    """Positions of the inputs whose buffers it may overwrite with its only result."""
    pairs: tuple[tuple[int, int], ...] | None = None
    """For a run of native kernels, which accepts a list of buffers: (input, output) positions that may share memory."""


@dataclass(frozen=True, slots=True)
class TapeStep:
    """One kernel call."""

    kernel: Run
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    free: tuple[int, ...]
    """Slots of values without readers after this step."""
    reusable: tuple[int, ...]
    """Slots among ``free`` into whose buffers the kernel may write its result."""
    fills: tuple[int, ...]
    """Slots of results that the kernel can write to a caller's buffers: its only result, or all results of a native run."""
    is_run: bool
    """Whether the kernel is a run of native kernels."""
    pairs: frozenset[tuple[int, int]]
    """(argument, result) slots that may share memory; the argument is among ``free``."""
    spread: tuple[int, ...]
    """Arguments that must broadcast to the buffer's shape: all of an elementwise kernel, the first of a scatter."""
    node: Node
    """Named in error messages."""


@dataclass(frozen=True, slots=True)
class Tape:
    """Slots and steps; the template holds the constants."""

    template: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[TapeStep, ...]
    engine: str
    """Engine name for error messages; may be an engine derived from toy."""

    def find_output_steps(self) -> tuple[TapeStep | None, ...]:
        """For each output, the step that can write it to a caller's buffer; None if there is none, or for a repeated output."""
        writers = {slot: step for step in self.steps for slot in step.fills}
        return tuple(writers.get(slot) if slot not in self.outputs[:i] else None for i, slot in enumerate(self.outputs))

    def find_inplace_pairs(self, alike: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
        """Find the (input, output) positions where the output may be written to the input's memory.

        ``alike`` lists, for each output, the positions of the inputs of the same type.

        A pair qualifies if no step reads the input, or a view of it made by a `VIEWS` operator, after the step that writes the
        output. Other kernels may return views too; whether one is alive is checked during the call.
        """
        last = self._find_last_reads()
        order = {id(step): number for number, step in enumerate(self.steps)}
        pairs = []
        for place, (slot, step, inputs) in enumerate(zip(self.outputs, self.find_output_steps(), alike, strict=True)):
            if step is None:
                continue
            for position in inputs:
                source, written_at = self.inputs[position], order[id(step)]
                if last[source] < written_at or (last[source] == written_at and (source, slot) in step.pairs):
                    pairs.append((position, place))
        return tuple(sorted(pairs))

    def _find_last_reads(self) -> list[int]:
        """For each slot, the last step that reads it or a view of it; -1 if there is none, ``len(steps)`` for outputs."""
        last = [-1] * len(self.template)
        for slot in self.outputs:
            last[slot] = len(self.steps)
        for number in reversed(range(len(self.steps))):
            step = self.steps[number]
            views = step.results if step.node.op_type in VIEWS and not step.is_run else ()
            end = max([number, *(last[slot] for slot in views)])
            for slot in step.arguments:
                last[slot] = max(last[slot], end)
        return last

    def play(
        self,
        inputs: Iterable[Any],
        buffers: Mapping[int, Any] | None = None,
        overwritten: Mapping[int, Overwritten] | None = None,
    ) -> list[Any]:
        """Run the steps; the outputs may share memory with the inputs, the constants and each other.

        ``buffers`` maps output slots to arrays that results are written to where the kernel supports it; that array is then the
        output. ``overwritten`` maps output slots to arrays in the memory of an input, which are passed among the inputs too.

        Raises RunFailed that names the node whose kernel failed, with the failure as its cause.
        """
        slots = list(self.template)
        for slot, value in zip(self.inputs, inputs, strict=True):
            slots[slot] = store_result(value)
        del inputs
        for entry in (overwritten or {}).values():
            entry.count(slots)
        step: TapeStep
        try:
            for step in self.steps:
                _run_step(step, slots, buffers, overwritten)
        except XRTError:
            raise
        except Exception as cause:
            raise _make_error(self.engine, step, slots, cause) from cause
        return [slots[i] for i in self.outputs]


class Overwritten:
    """An array whose memory belongs to both an input and an output of a call; detects live views by reference count."""

    __slots__ = ("_count", "array", "input", "slot")

    def __init__(self, array: Any, place: int, slot: int) -> None:
        """Wrap a C-contiguous array that outlives this object; ``place`` and ``slot`` are those of the input."""
        # A view refers to the array that owns the memory. This array's memory is no ndarray's, so views of it refer to it.
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        self.array = np.ndarray(array.shape, array.dtype, buffer=memory)
        self.input, self.slot = place, slot
        self._count = 0

    def count(self, slots: Sequence[Any]) -> None:
        """Record the reference count before the first step; the caller holds its references until the last."""
        self._count = sys.getrefcount(self.array) - (slots[self.slot] is self.array)

    def is_alone(self, slots: Sequence[Any]) -> bool:
        """Whether the array has no references beyond those that `count` recorded."""
        return sys.getrefcount(self.array) == self._count + (slots[self.slot] is self.array)


def _run_step(
    step: TapeStep, slots: list[Any], buffers: Mapping[int, Any] | None, overwritten: Mapping[int, Overwritten] | None
) -> None:
    """Run one step: compute, store the results, free dead values."""
    out = _find_buffer(step, slots, buffers or {}, overwritten or {}) if (buffers or overwritten) and step.fills else None
    if out is None and step.reusable:
        out = _find_reusable(step, slots)
    arguments = [slots[i] for i in step.arguments]
    result = step.kernel(*arguments) if out is None else step.kernel(*arguments, out=out)
    values = result if type(result) is tuple else (result,)
    if len(values) < len(step.results):
        raise ValueError(f"the operator has {len(values)} output(s) in this form; the node lists {len(step.results)}")
    for slot, value in zip(step.results, values, strict=False):
        slots[slot] = store_result(value)
    for slot in step.free:
        slots[slot] = None


def store_result(value: Any) -> Any:
    """Convert a value for a slot: a C-contiguous array (0-d instead of a scalar), a list, a dictionary, or None.

    The fixed layout makes results independent of how a value was computed (summing a transposed view uses another order than
    summing its copy), and so of how a Function is partitioned.
    """
    if type(value) is np.ndarray:
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)
    if value is None or isinstance(value, list | dict):
        return value
    if isinstance(value, str):
        return np.array(value, dtype=object)
    return np.asarray(value, order="C")


def _find_buffer(step: TapeStep, slots: list[Any], buffers: Mapping[int, Any], overwritten: Mapping[int, Overwritten]) -> Any:
    """The caller's buffer for the step's result, or None unless all arguments broadcast to it and one has its shape.

    For a run of native kernels, the list of all buffers, which are known to fit; None if the caller passes none.
    """
    candidates = [
        overwritten[slot].array if slot in overwritten and overwritten[slot].is_alone(slots) else buffers.get(slot)
        for slot in step.results
    ]
    if step.is_run:
        return candidates if any(buffer is not None for buffer in candidates) else None
    (buffer,) = candidates
    if buffer is None:
        return None
    arguments = [slots[i] for i in step.spread]
    fits = all(_fits(value, buffer) for value in arguments) and any(value.shape == buffer.shape for value in arguments)
    return buffer if fits else None


def _find_reusable(step: TapeStep, slots: list[Any]) -> Any:
    """Find an argument's buffer that the result may overwrite; None if there is none.

    It must be large, own its memory, and be referenced by its slot alone: inputs, constants, captures and values with a
    live view have a second reference. It must also fit the result: kernels that allow reuse are elementwise and keep
    the dtype, so it fits if it has the broadcast shape of all arguments.
    """
    for slot in step.reusable:
        if _count_references(slots, slot) != ALONE:
            continue
        value = slots[slot]
        if type(value) is not np.ndarray or value.nbytes < SMALLEST_REUSED or not value.flags.owndata:
            continue
        if value.flags.writeable and all(_fits(slots[i], value) for i in step.spread):
            return value
    return None


def _count_references(slots: list[Any], slot: int) -> int:
    """Reference count of a slot's value, including the references of this call."""
    return sys.getrefcount(slots[slot])


ALONE = _count_references([np.empty(1)], 0)
"""`_count_references` of a value that only its slot references; measured, because it differs between interpreters."""


def _fits(argument: Any, buffer: Any) -> bool:
    """Whether the argument broadcasts to the buffer's shape and has its dtype or is a boolean condition."""
    if type(argument) is not np.ndarray or argument.ndim > buffer.ndim or argument.dtype not in (buffer.dtype, CONDITION):
        return False
    return all(a in (1, b) for a, b in zip(reversed(argument.shape), reversed(buffer.shape), strict=False))


def _make_error(engine: str, step: TapeStep, slots: Sequence[Any], cause: Exception) -> RunFailed:
    node = step.node
    arguments = ", ".join(describe_value(slots[i]) for i in step.arguments) or "no inputs"
    return RunFailed(
        f"engine {engine!r} failed at node {node.name!r} ({node.op}) on ({arguments}): {type(cause).__name__}: {cause}; "
        "check the node's attributes and the shapes and types of its inputs"
    )


def describe_value(value: Any) -> str:
    """Describe a value for error messages: ``float32[2,3]``, a list of these, or ``None``."""
    if isinstance(value, list):
        return f"[{', '.join(describe_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"map of {len(value)}"
    if not hasattr(value, "dtype"):
        return "None" if value is None else type(value).__name__
    dtype = "string" if value.dtype == object else value.dtype
    return f"{dtype}[{','.join(map(str, value.shape))}]"


def make_tape(function: Function, kernel_of: Callable[[Node], StepKernel], engine: str = "toy") -> Tape:
    """Build the tape of a closed Function. Linear."""
    slot = {name: i for i, name in enumerate(function.value_names(), start=2)}
    slot[""] = ABSENT
    template: list[Any] = [None] * (len(slot) + 1)
    for name, constant in function.constants.items():
        template[slot[name]] = constant.array
    last = list_last_uses(function)
    steps = tuple(_make_step(node, slot, last[index], kernel_of(node)) for index, node in enumerate(function.nodes))
    inputs = tuple(slot[v.name] for v in function.inputs)
    return Tape(tuple(template), inputs, tuple(slot[v.name] for v in function.outputs), steps, engine)


def _make_step(node: Node, slot: dict[str, int], dying: Sequence[str], kernel: StepKernel) -> TapeStep:
    arguments = tuple(slot[name] for name in (*node.inputs, *node.captures))
    count = max((i for i, name in enumerate(node.outputs, 1) if name), default=0)
    results = tuple(slot[name] or UNWANTED for name in node.outputs[:count])
    free = (*(slot[name] for name in dying), *({UNWANTED} & set(results)))
    reusable = tuple(arguments[i] for i in kernel.mutable if i < len(arguments) and arguments[i] in free)
    is_run = kernel.pairs is not None
    fills = results if is_run or (kernel.mutable and len(results) == 1 and results[0] != UNWANTED) else ()
    pairs = [(arguments[i], results[o]) for i, o in kernel.pairs or ()] or [(slot, results[0]) for slot in reusable if fills]
    spread = arguments[:1] if node.op_type in SCATTERS else arguments
    valid_pairs = frozenset(pair for pair in pairs if pair[0] in free)
    return TapeStep(kernel.run, arguments, results, free, reusable, fills, is_run, valid_pairs, spread, node)


def order_updates(function: Function, views: Collection[str] = ()) -> Function:
    """Add control edges from the nodes that read an aliased input to the node that writes its output.

    Results of operators in ``views`` may alias the input, so their readers count as readers of the input. A reader that depends
    on the output gets no edge; the output is then copied. Linear if the Function's order already satisfies the edges.
    """
    edges = {edge for source, result in function.aliases for edge in _list_edges(function, source, result, views)}
    if not edges:
        return function
    before: dict[str, list[str]] = {}
    for reader, writer in sorted(edges):
        before.setdefault(writer, []).append(reader)
    nodes = [
        replace(node, control=tuple(dict.fromkeys((*node.control, *before[node.name])))) if node.name in before else node
        for node in function.nodes
    ]
    try:
        return function.replace(nodes=tuple(nodes))
    except ModelError:  # two updates that depend on each other
        return function


def _list_edges(function: Function, source: str, result: str, views: Collection[str]) -> set[tuple[str, str]]:
    writer, place = function.producer(result), function.position(result)
    if writer is None or place is None:
        return set()
    index = {node.name: number for number, node in enumerate(function.nodes)}
    readers = _find_readers(function, source, views) - {writer.name, *writer.control}
    late = max((index[name] for name in readers), default=-1)
    return {(name, writer.name) for name in readers - _find_dependents(function, writer, place, late)}


def _find_readers(function: Function, value: str, views: Collection[str]) -> set[str]:
    """Names of the nodes that read a value or a view of it."""
    readers: set[str] = set()
    names = [value]
    for name in names:
        for use in function.users(name):
            if use.node.name not in readers and use.node.op in views:
                names += filter(None, use.node.outputs)
            readers.add(use.node.name)
    return readers


def _find_dependents(function: Function, writer: Node, place: int, end: int) -> set[str]:
    """Names of the nodes up to position ``end`` that depend on the writer, and of the writer."""
    dependents, values = {writer.name}, set(writer.defines)
    for node in function.nodes[place + 1 : end + 1]:
        if not values.isdisjoint(node.uses) or not dependents.isdisjoint(node.control):
            dependents.add(node.name)
            values.update(node.defines)
    return dependents


# ---------------------------------------------------------------------- executables

FILLED_FROM = 1 << 19
"""In bytes. From this size, passing a buffer to a kernel (about 3 us) is negligible against the kernel's time."""


class InterpretedExecutable(Executable):
    """A tape of Python kernels and runs of native kernels; the same tape for every call."""

    outputs_are_fresh = True

    def __init__(self, function: Function, tape: Tape, threads: int, native: bool) -> None:
        self.function = function
        self._tape = tape
        self._output_steps = tape.find_output_steps()
        self._products = product_threads(threads, native)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> list[Any]:
        tape = self._tape
        if len(inputs) != len(tape.inputs):
            raise InputError(f"function {self.function.name!r} takes {len(tape.inputs)} inputs; got {len(inputs)}")
        # ONNX defines the results of division by zero and overflow as NumPy computes them, so its warnings are noise.
        with self._products, np.errstate(all="ignore"):
            if options.out is None:
                return _copy_shared(tape.play(inputs), inputs)
            overwritten = self._find_overwritten(inputs, options.out)
            buffers = self._choose_buffers(tape, options.out, inputs)
            arguments = list(inputs)
            for entry in overwritten.values():
                arguments[entry.input] = entry.array
            results = tape.play(arguments, buffers, overwritten)
            for place, slot in enumerate(tape.outputs):
                if slot in overwritten and results[place] is overwritten[slot].array:
                    results[place] = options.out[place]
            results = _copy_shared(results, arguments, options.out)
        return self._copy_to_buffers(results, options.out)

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [FILLED_FROM if step else None for step in self._output_steps]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self._pairs

    @cached_property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        """In-place pairs: same static type, and no kernel reads the input after the step that writes the output."""
        places: dict[Type | None, list[int]] = {}
        for place, value in enumerate(self.function.inputs):
            places.setdefault(value.type, []).append(place)
        alike = [places.get(value.type, ()) if _is_plain(value.type) else () for value in self.function.outputs]
        return self._tape.find_inplace_pairs(alike)

    @cached_property
    def _pair_set(self) -> frozenset[tuple[int, int]]:
        """`_pairs` as a set, for lookups during calls."""
        return frozenset(self._pairs)

    def _find_overwritten(self, inputs: Sequence[Any], out: Sequence[Any]) -> dict[int, Overwritten]:
        """Map output slots to the inputs that these outputs overwrite in this call."""
        place = {id(value): number for number, value in enumerate(inputs) if isinstance(value, np.ndarray)}
        overwritten = {}
        for index, (slot, buffer) in enumerate(zip(self._tape.outputs, out, strict=False)):
            number = place.get(id(buffer), -1)
            if (number, index) in self._pair_set and buffer.nbytes and buffer.flags.carray:
                overwritten[slot] = Overwritten(buffer, number, self._tape.inputs[number])
        return overwritten

    def _choose_buffers(self, tape: Tape, out: Sequence[Any], inputs: Sequence[Any]) -> dict[int, Any]:
        """Map output slots to the caller's buffers that fit and that a kernel can write to.

        Buffers that are also inputs are excluded.
        """
        ids = {id(value) for value in inputs}
        pairs = zip(tape.outputs, self._output_steps, self.function.outputs, out, strict=False)
        return {slot: buffer for slot, step, value, buffer in pairs if step and id(buffer) not in ids and _matches(buffer, value)}

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values, each until its last reader has run; what a kernel takes while it computes comes on top"
        return (MemoryUse("workspace", peak_of_values(self.function), why, per_call=True),)

    def _copy_to_buffers(self, results: list[Any], out: Sequence[Any]) -> list[Any]:
        """Copy results into the caller's buffers and return the buffers in their place."""
        if len(out) != len(results):
            raise InputError(f"function {self.function.name!r} has {len(results)} outputs; out= holds {len(out)} buffers")
        pairs = list(zip(self.function.outputs, results, out, strict=True))
        for value, result, buffer in pairs:
            if buffer is not None and (reason := _why_not_copyable(result, buffer)):
                raise InputError(
                    f"out= for output {value.name!r}: {reason}; give a writable C-contiguous array, or None for a fresh one"
                )
        for _, result, buffer in pairs:
            if buffer is not None and result is not buffer:
                np.copyto(buffer, result)
        return [result if buffer is None else buffer for _, result, buffer in pairs]


def _is_plain(type_: Type | None) -> bool:
    """Whether the type is a tensor of numbers with a static shape."""
    return isinstance(type_, TensorType) and is_static(type_) and type_.dtype is not DType.STRING


def _matches(buffer: Any, value: Value) -> bool:
    """Whether the buffer is a writable C-contiguous array of the value's dtype and static shape."""
    type_ = value.type
    if not isinstance(buffer, np.ndarray) or not isinstance(type_, TensorType) or buffer.shape != type_.shape:
        return False
    return bool(buffer.dtype == type_.dtype.numpy and buffer.flags.carray)


def _why_not_copyable(result: Any, buffer: Any) -> str | None:
    """Explain why a result cannot be copied into a caller's buffer; None if it can."""
    if not isinstance(result, np.ndarray):
        return f"the output is {describe_value(result)}, which no buffer holds"
    if not isinstance(buffer, np.ndarray):
        return f"the output is {describe_value(result)}, the buffer {type(buffer).__name__}"
    if buffer.dtype != result.dtype or buffer.shape != result.shape:
        return f"the output is {describe_value(result)}, the buffer {describe_value(buffer)}"
    if not (buffer.flags.c_contiguous and buffer.flags.writeable):
        return "the buffer is " + ("read-only" if buffer.flags.c_contiguous else "not C-contiguous")
    return None


def _copy_shared(results: Sequence[Any], inputs: Sequence[Any], buffers: Iterable[Any] = ()) -> list[Any]:
    """Copy each result that may share memory with an input, a constant or an earlier result.

    The caller's ``buffers`` are not copied.

    Arrays that share memory are views, which do not own it, or the very same array. So it is enough to check ``owndata``
    (false for constants too) and identity.
    """
    used_ids = {id(array) for array in _iter_arrays(inputs)}
    buffer_ids = {id(buffer) for buffer in buffers}
    return [_make_unshared(result, used_ids, buffer_ids) for result in results]


def _iter_arrays(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _iter_arrays(value)
        else:
            yield value


def _make_unshared(value: Any, used_ids: set[int], buffer_ids: set[int]) -> Any:
    if isinstance(value, list):
        return [_make_unshared(item, used_ids, buffer_ids) for item in value]
    if isinstance(value, dict):
        return dict(value)
    if not isinstance(value, np.ndarray):
        return value
    if id(value) in used_ids or not (value.flags.owndata or id(value) in buffer_ids):
        value = value.copy()
    used_ids.add(id(value))
    return value


class ToyExecutable(Executable):
    """A compiled Function; `prepare` builds its tape or native executable, which then runs the calls."""

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(self, engine: str, function: Function, compiler: Callable[[Function], Executable]) -> None:
        self._engine = engine
        self.function = function
        self._compiler = compiler
        self._ready: Executable | None = None

    def prepare(self) -> None:
        self._ready = self._compiler(self.function)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if options.stream is not None:
            raise OptionError(
                f"engine {self._engine!r} runs on the CPU, which has no streams; got stream={options.stream!r}, pass None"
            )
        return self._get_executable().run(inputs, options)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        return self._get_executable().fast_call()

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        return self._get_executable().bind(inputs, outputs)

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        return self._get_executable().bind_outputs(outputs)

    def supports_io_binding(self) -> bool:
        return self._get_executable().supports_io_binding()

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return self._get_executable().output_buffer_threshold()

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self._get_executable().inplace_pairs()

    def memory(self) -> Sequence[MemoryUse] | None:
        return self._get_executable().memory()

    def close(self) -> None:
        self._ready = None

    def _get_executable(self) -> Executable:
        if self._ready is None:
            raise RunFailed(
                f"function {self.function.name!r} is not ready to run; call prepare() first, and run() before close()"
            )
        return self._ready
