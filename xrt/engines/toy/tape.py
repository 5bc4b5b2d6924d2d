"""A Function as a straight line: a table of slots, and steps that read and write them.

Everything that does not depend on a call is computed once, when the tape is made: which slot holds which value, which
kernel computes it, and after which step it is dead. A call is a fresh list of slots and one loop, so any number of
threads may play a tape at once.
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
from xrt.engines.toolkit.node_query import list_last_uses
from xrt.engines.toolkit.scatters import SCATTERS
from xrt.engines.toy.products import product_threads
from xrt.errors import InputError, ModelError, OptionError, RunFailed, XRTError
from xrt.graph import DType, Function, Node, TensorType, Type, Value, is_static

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Run


ABSENT, UNWANTED = 0, 1
"""Slots: of every input that is left out, which holds None; and of every output that is left out."""
CONDITION = np.dtype(bool)
SMALLEST_REUSED = 1 << 15
"""Bytes below which a fresh result is as quick as looking whether an argument's buffer can be had."""
VIEWS = frozenset(
    {"Cast", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose results are often views of an argument."""


@dataclass(frozen=True, slots=True)
class StepKernel:
    """What runs a node, and which memory it may use."""

    run: Run
    mutable: tuple[int, ...] = ()
    """The inputs, by place, whose buffers it may overwrite with its one result."""
    pairs: tuple[tuple[int, int], ...] | None = None
    """Of a run of native kernels, which takes a list of buffers: the inputs and outputs, by place, that may share memory."""


@dataclass(frozen=True, slots=True)
class TapeStep:
    """One kernel launch."""

    kernel: Run
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    free: tuple[int, ...]
    """Slots whose values have no reader after this step."""
    reusable: tuple[int, ...]
    """Slots among ``free`` to whose buffers the kernel may write its result."""
    fills: tuple[int, ...]
    """The slots of the results that the kernel writes to given buffers: its one result, or all of a run of native kernels."""
    is_run: bool
    """Whether it is a run of native kernels."""
    pairs: frozenset[tuple[int, int]]
    """Slots of (argument, result) that may share memory: the argument is among ``free``."""
    spread: tuple[int, ...]
    """The arguments that must spread to the shape of that buffer: all of an elementwise kernel, the first of a scatter."""
    node: Node
    """For the message of an error."""


@dataclass(frozen=True, slots=True)
class Tape:
    """Slots and steps; constants stand in the template."""

    template: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[TapeStep, ...]
    engine: str
    """The name of the engine whose tape it is, for the message of an error; it may be one that derives from toy."""

    def find_output_steps(self) -> tuple[TapeStep | None, ...]:
        """Return, per output, the step that can write it to a given buffer; None where none can, or one before has it."""
        writers = {slot: step for step in self.steps for slot in step.fills}
        return tuple(writers.get(slot) if slot not in self.outputs[:i] else None for i, slot in enumerate(self.outputs))

    def find_inplace_pairs(self, alike: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
        """Return the (input, output) places where the output may be written to the input's memory.

        ``alike`` has, by output, the places of the inputs of its type.

        It is so where no step reads the input, or a view of it that an operator of shapes makes, after the one that writes the
        output. Kernels may make other views: whether one is alive, the call itself finds out.
        """
        last = self._find_last_reads()
        order = {id(step): number for number, step in enumerate(self.steps)}
        found = []
        for place, (slot, step, inputs) in enumerate(zip(self.outputs, self.find_output_steps(), alike, strict=True)):
            if step is None:
                continue
            for given in inputs:
                source, own = self.inputs[given], order[id(step)]
                if last[source] < own or (last[source] == own and (source, slot) in step.pairs):
                    found.append((given, place))
        return tuple(sorted(found))

    def _find_last_reads(self) -> list[int]:
        """Return, by slot, the last step that reads it or a view of it; -1 for none, the number of steps for outputs."""
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
        """Return the outputs, which may share memory with the inputs, the constants and each other.

        ``buffers`` are given for slots of outputs: a result is written there where its kernel can, and is then that buffer. Those
        ``overwritten`` are the memory of an input, which is among the inputs as the same array.

        Raises RunFailed that names the node whose kernel failed, with the failure as its cause.
        """
        slots = list(self.template)
        for slot, value in zip(self.inputs, inputs, strict=True):
            slots[slot] = store_result(value)
        del inputs
        for one in (overwritten or {}).values():
            one.count(slots)
        step: TapeStep
        try:
            for step in self.steps:
                _take(step, slots, buffers, overwritten)
        except XRTError:
            raise
        except Exception as cause:
            raise _failure(self.engine, step, slots, cause) from cause
        return [slots[i] for i in self.outputs]


class Overwritten:
    """An array of a call whose memory is that of an input and of an output; it knows whether views of it are alive."""

    __slots__ = ("_count", "array", "input", "slot")

    def __init__(self, array: Any, place: int, slot: int) -> None:
        """Take the array, which must be C-contiguous and outlive this, and the place and slot of the input."""
        # A view refers to the array that owns the memory. This one's owner is no array, so a view of it refers to it.
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        self.array = np.ndarray(array.shape, array.dtype, buffer=memory)
        self.input, self.slot = place, slot
        self._count = 0

    def count(self, slots: Sequence[Any]) -> None:
        """Count the references before any step has run; the caller keeps them until the last has."""
        self._count = sys.getrefcount(self.array) - (slots[self.slot] is self.array)

    def is_alone(self, slots: Sequence[Any]) -> bool:
        """Whether nothing refers to the array but what did at first."""
        return sys.getrefcount(self.array) == self._count + (slots[self.slot] is self.array)


def _take(
    step: TapeStep, slots: list[Any], buffers: Mapping[int, Any] | None, overwritten: Mapping[int, Overwritten] | None
) -> None:
    """Run one step: compute, store what came out, drop what is dead."""
    out = _given(step, slots, buffers or {}, overwritten or {}) if (buffers or overwritten) and step.fills else None
    if out is None and step.reusable:
        out = _buffer(step, slots)
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
    """Return a value as slots hold it: a C-contiguous array (0-d too, never a scalar), a list, a dictionary, or None.

    One layout for all makes results independent of how a value came about (a transposed view is summed in another
    order than its copy), and with that of where a Function is cut.
    """
    if type(value) is np.ndarray:
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)
    if value is None or isinstance(value, list | dict):
        return value
    if isinstance(value, str):
        return np.array(value, dtype=object)
    return np.asarray(value, order="C")


def _given(step: TapeStep, slots: list[Any], buffers: Mapping[int, Any], overwritten: Mapping[int, Overwritten]) -> Any:
    """Return the buffer given for the step's result if it fits: of the shape that one argument has and all spread to.

    Of a run of native kernels return all buffers, which fit, or None where none is given.
    """
    given = [
        overwritten[slot].array if slot in overwritten and overwritten[slot].is_alone(slots) else buffers.get(slot)
        for slot in step.results
    ]
    if step.is_run:
        return given if any(buffer is not None for buffer in given) else None
    (buffer,) = given
    if buffer is None:
        return None
    arguments = [slots[i] for i in step.spread]
    fits = all(_fits(value, buffer) for value in arguments) and any(value.shape == buffer.shape for value in arguments)
    return buffer if fits else None


def _buffer(step: TapeStep, slots: list[Any]) -> Any:
    """Return an argument's buffer that the result may overwrite, or None.

    It must be large, own its memory, and be held by its slot alone: inputs, constants, captures and values with a live
    view all have a second holder, which the reference count shows. And it must fit the result: kernels that allow
    reuse are elementwise and keep the dtype, so it fits when it has the broadcast shape of all arguments.
    """
    for slot in step.reusable:
        if _holders(slots, slot) != ALONE:
            continue
        value = slots[slot]
        if type(value) is not np.ndarray or value.nbytes < SMALLEST_REUSED or not value.flags.owndata:
            continue
        if value.flags.writeable and all(_fits(slots[i], value) for i in step.spread):
            return value
    return None


def _holders(slots: list[Any], slot: int) -> int:
    """Return how many references a slot's value has, those that looking for them takes included."""
    return sys.getrefcount(slots[slot])


ALONE = _holders([np.empty(1)], 0)
"""What `_holders` says of a value that its slot alone holds; measured, because interpreters count differently."""


def _fits(argument: Any, buffer: Any) -> bool:
    """Whether the argument broadcasts to the buffer's shape and has its dtype; a condition has that of none."""
    if type(argument) is not np.ndarray or argument.ndim > buffer.ndim or argument.dtype not in (buffer.dtype, CONDITION):
        return False
    return all(a in (1, b) for a, b in zip(reversed(argument.shape), reversed(buffer.shape), strict=False))


def _failure(engine: str, step: TapeStep, slots: Sequence[Any], cause: Exception) -> RunFailed:
    node = step.node
    given = ", ".join(describe_kernel(slots[i]) for i in step.arguments) or "no inputs"
    return RunFailed(
        f"engine {engine!r} failed at node {node.name!r} ({node.op}) on ({given}): {type(cause).__name__}: {cause}; "
        "check the node's attributes and the shapes and types of its inputs"
    )


def describe_kernel(value: Any) -> str:
    """Return a value's type as errors show it: ``float32[2,3]``, a list of such, or ``None``."""
    if isinstance(value, list):
        return f"[{', '.join(describe_kernel(item) for item in value)}]"
    if isinstance(value, dict):
        return f"map of {len(value)}"
    if not hasattr(value, "dtype"):
        return "None" if value is None else type(value).__name__
    dtype = "string" if value.dtype == object else value.dtype
    return f"{dtype}[{','.join(map(str, value.shape))}]"


def make_tape(function: Function, kernel_of: Callable[[Node], StepKernel], engine: str = "toy") -> Tape:
    """Lay a closed Function out as a tape. Linear."""
    slot = {name: i for i, name in enumerate(function.value_names(), start=2)}
    slot[""] = ABSENT
    template: list[Any] = [None] * (len(slot) + 1)
    for name, constant in function.constants.items():
        template[slot[name]] = constant.array
    last = list_last_uses(function)
    steps = tuple(_step(node, slot, last[index], kernel_of(node)) for index, node in enumerate(function.nodes))
    inputs = tuple(slot[v.name] for v in function.inputs)
    return Tape(tuple(template), inputs, tuple(slot[v.name] for v in function.outputs), steps, engine)


def _step(node: Node, slot: dict[str, int], dying: Sequence[str], kernel: StepKernel) -> TapeStep:
    arguments = tuple(slot[name] for name in (*node.inputs, *node.captures))
    listed = max((i for i, name in enumerate(node.outputs, 1) if name), default=0)
    results = tuple(slot[name] or UNWANTED for name in node.outputs[:listed])
    free = (*(slot[name] for name in dying), *({UNWANTED} & set(results)))
    reusable = tuple(arguments[i] for i in kernel.mutable if i < len(arguments) and arguments[i] in free)
    is_run = kernel.pairs is not None
    fills = results if is_run or (kernel.mutable and len(results) == 1 and results[0] != UNWANTED) else ()
    pairs = [(arguments[i], results[o]) for i, o in kernel.pairs or ()] or [(slot, results[0]) for slot in reusable if fills]
    spread = arguments[:1] if node.op_type in SCATTERS else arguments
    kept = frozenset(pair for pair in pairs if pair[0] in free)
    return TapeStep(kernel.run, arguments, results, free, reusable, fills, is_run, kept, spread, node)


def order_updates(function: Function, views: Collection[str] = ()) -> Function:
    """Return the Function with control edges from the nodes that read an aliased input to the one that writes its output.

    A result of an operator among ``views`` may be the input's memory: what reads it reads the input. A node that reads what is
    written keeps its place; the output is then a copy. Linear where the Function's own order is such.
    """
    wanted = {edge for given, result in function.aliases for edge in _edges(function, given, result, views)}
    if not wanted:
        return function
    before: dict[str, list[str]] = {}
    for reader, writer in sorted(wanted):
        before.setdefault(writer, []).append(reader)
    nodes = [
        replace(node, control=tuple(dict.fromkeys((*node.control, *before[node.name])))) if node.name in before else node
        for node in function.nodes
    ]
    try:
        return function.replace(nodes=tuple(nodes))
    except ModelError:  # two updates that wait for each other
        return function


def _edges(function: Function, given: str, result: str, views: Collection[str]) -> set[tuple[str, str]]:
    writer, place = function.producer(result), function.position(result)
    if writer is None or place is None:
        return set()
    index = {node.name: number for number, node in enumerate(function.nodes)}
    readers = _find_readers(function, given, views) - {writer.name, *writer.control}
    late = max((index[name] for name in readers), default=-1)
    return {(name, writer.name) for name in readers - _followers(function, writer, place, late)}


def _find_readers(function: Function, given: str, views: Collection[str]) -> set[str]:
    """Return the names of the nodes that read a value or a view of it."""
    found: set[str] = set()
    names = [given]
    for name in names:
        for use in function.users(name):
            if use.node.name not in found and use.node.op in views:
                names += filter(None, use.node.outputs)
            found.add(use.node.name)
    return found


def _followers(function: Function, writer: Node, place: int, end: int) -> set[str]:
    """Return the names of nodes up to a place that depend on the writer."""
    found, made = {writer.name}, set(writer.defines)
    for node in function.nodes[place + 1 : end + 1]:
        if not made.isdisjoint(node.uses) or not found.isdisjoint(node.control):
            found.add(node.name)
            made.update(node.defines)
    return found


# ---------------------------------------------------------------------- executables

FILLED_FROM = 1 << 19
"""Bytes from which handing a buffer down to its kernel (some 3 us) is lost in what the kernel takes."""


class InterpretedExecutable(Executable):
    """A tape of Python kernels, some of which may be whole runs of native ones; the same for every call."""

    outputs_are_fresh = True

    def __init__(self, function: Function, tape: Tape, threads: int, native: bool) -> None:
        self.function = function
        self._tape = tape
        self._filled = tape.find_output_steps()
        self._products = product_threads(threads, native)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> list[Any]:
        tape = self._tape
        if len(inputs) != len(tape.inputs):
            raise InputError(f"function {self.function.name!r} takes {len(tape.inputs)} inputs; got {len(inputs)}")
        # ONNX defines what a division by zero or an overflow gives, and NumPy gives that: its warnings say nothing new.
        with self._products, np.errstate(all="ignore"):
            if options.out is None:
                return _fresh(tape.play(inputs), inputs)
            over = self._find_overwritten(inputs, options.out)
            buffers = self._buffers(tape, options.out, inputs)
            given = list(inputs)
            for one in over.values():
                given[one.input] = one.array
            results = tape.play(given, buffers, over)
            for place, slot in enumerate(tape.outputs):
                if slot in over and results[place] is over[slot].array:
                    results[place] = options.out[place]
            results = _fresh(results, given, options.out)
        return self._delivered(results, options.out)

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [FILLED_FROM if step else None for step in self._filled]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self._pairs

    @cached_property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs in which no kernel reads that input after the one that writes the output, and both are of one type."""
        places: dict[Type | None, list[int]] = {}
        for place, value in enumerate(self.function.inputs):
            places.setdefault(value.type, []).append(place)
        alike = [places.get(value.type, ()) if _is_plain(value.type) else () for value in self.function.outputs]
        return self._tape.find_inplace_pairs(alike)

    @cached_property
    def _shared(self) -> frozenset[tuple[int, int]]:
        """The pairs, for calls to look them up."""
        return frozenset(self._pairs)

    def _find_overwritten(self, inputs: Sequence[Any], out: Sequence[Any]) -> dict[int, Overwritten]:
        """Return, by the slot of the output, the inputs in whose memory an output is to be written."""
        place = {id(value): number for number, value in enumerate(inputs) if isinstance(value, np.ndarray)}
        found = {}
        for index, (slot, buffer) in enumerate(zip(self._tape.outputs, out, strict=False)):
            number = place.get(id(buffer), -1)
            if (number, index) in self._shared and buffer.nbytes and buffer.flags.carray:
                found[slot] = Overwritten(buffer, number, self._tape.inputs[number])
        return found

    def _buffers(self, tape: Tape, out: Sequence[Any], inputs: Sequence[Any]) -> dict[int, Any]:
        """Return the caller's buffers by the slot of the output, where a kernel can write to them and they fit.

        One that is an input too is none of them.
        """
        taken = {id(value) for value in inputs}
        pairs = zip(tape.outputs, self._filled, self.function.outputs, out, strict=False)
        return {slot: buffer for slot, step, value, buffer in pairs if step and id(buffer) not in taken and _is_of(buffer, value)}

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values, each until its last reader has run; what a kernel takes while it computes comes on top"
        return (MemoryUse("workspace", peak_of_values(self.function), why, per_call=True),)

    def _delivered(self, results: list[Any], out: Sequence[Any]) -> list[Any]:
        """Copy results into the caller's buffers and return those in their places."""
        if len(out) != len(results):
            raise InputError(f"function {self.function.name!r} has {len(results)} outputs; out= holds {len(out)} buffers")
        pairs = list(zip(self.function.outputs, results, out, strict=True))
        for value, result, buffer in pairs:
            if buffer is not None and (reason := _misfit(result, buffer)):
                raise InputError(
                    f"out= for output {value.name!r}: {reason}; give a writable C-contiguous array, or None for a fresh one"
                )
        for _, result, buffer in pairs:
            if buffer is not None and result is not buffer:
                np.copyto(buffer, result)
        return [result if buffer is None else buffer for _, result, buffer in pairs]


def _is_plain(type_: Type | None) -> bool:
    """Whether it is a tensor of a fixed shape, of numbers."""
    return isinstance(type_, TensorType) and is_static(type_) and type_.dtype is not DType.STRING


def _is_of(buffer: Any, value: Value) -> bool:
    """Whether it is an array to write to, of the value's own type and fixed shape."""
    type_ = value.type
    if not isinstance(buffer, np.ndarray) or not isinstance(type_, TensorType) or buffer.shape != type_.shape:
        return False
    return bool(buffer.dtype == type_.dtype.numpy and buffer.flags.carray)


def _misfit(result: Any, buffer: Any) -> str | None:
    """Return why a result cannot be copied into a caller's buffer; None when it can."""
    if not isinstance(result, np.ndarray):
        return f"the output is {describe_kernel(result)}, which no buffer holds"
    if not isinstance(buffer, np.ndarray):
        return f"the output is {describe_kernel(result)}, the buffer {type(buffer).__name__}"
    if buffer.dtype != result.dtype or buffer.shape != result.shape:
        return f"the output is {describe_kernel(result)}, the buffer {describe_kernel(buffer)}"
    if not (buffer.flags.c_contiguous and buffer.flags.writeable):
        return "the buffer is " + ("read-only" if buffer.flags.c_contiguous else "not C-contiguous")
    return None


def _fresh(results: Sequence[Any], inputs: Sequence[Any], buffers: Iterable[Any] = ()) -> list[Any]:
    """Return the results, copied where they may share memory with an input, a constant or an earlier result.

    The caller's own ``buffers`` stay what they are.

    An array that owns its memory shares it only with its own views; those do not own theirs and are copied. So it is
    enough to look for arrays that do not own their memory (constants are of that kind), and for the very same array.
    """
    taken = {id(array) for array in _arrays(inputs)}
    buffer_ids = {id(buffer) for buffer in buffers}
    return [_own(result, taken, buffer_ids) for result in results]


def _arrays(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _arrays(value)
        else:
            yield value


def _own(value: Any, taken: set[int], kept: set[int]) -> Any:
    if isinstance(value, list):
        return [_own(item, taken, kept) for item in value]
    if isinstance(value, dict):
        return dict(value)
    if not isinstance(value, np.ndarray):
        return value
    if id(value) in taken or not (value.flags.owndata or id(value) in kept):
        value = value.copy()
    taken.add(id(value))
    return value


class ToyExecutable(Executable):
    """A Function that waits to be prepared; then it is what `prepare` made of it: a tape of Python kernels or a native one."""

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(self, engine: str, function: Function, made: Callable[[Function], Executable]) -> None:
        self._engine = engine
        self.function = function
        self._made = made
        self._ready: Executable | None = None

    def prepare(self) -> None:
        self._ready = self._made(self.function)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if options.stream is not None:
            raise OptionError(
                f"engine {self._engine!r} runs on the CPU, which has no streams; got stream={options.stream!r}, pass None"
            )
        return self._prepared().run(inputs, options)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        return self._prepared().fast_call()

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        return self._prepared().bind(inputs, outputs)

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        return self._prepared().bind_outputs(outputs)

    def supports_io_binding(self) -> bool:
        return self._prepared().supports_io_binding()

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return self._prepared().output_buffer_threshold()

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self._prepared().inplace_pairs()

    def memory(self) -> Sequence[MemoryUse] | None:
        return self._prepared().memory()

    def close(self) -> None:
        self._ready = None

    def _prepared(self) -> Executable:
        if self._ready is None:
            raise RunFailed(
                f"function {self.function.name!r} is not ready to run; call prepare() first, and run() before close()"
            )
        return self._ready
