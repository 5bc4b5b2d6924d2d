"""A Function as a linear program: a table of slots, and steps that read and write them.

Everything independent of a call is computed once, when the tape is built: the slot of each value, the kernel that computes
it, and the step after which it is dead. A call makes a fresh list of slots and runs one loop, so any number of threads may
run a tape concurrently.

On a device, shapes, and values computed from shapes, are kept on the host until another kernel reads them on the device.
Otherwise each kernel that allocates an array of such a size would have to wait for the device.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse
from xrt.engines.contract.options import RunOptions
from xrt.engines.native.bindings import address_of
from xrt.engines.native.tape import check_buffers
from xrt.engines.toolkit.memory import peak_of_values
from xrt.engines.toolkit.support import list_used_outputs
from xrt.engines.toy.devices import SHAPES, find_shape_values
from xrt.engines.toy.kernels import product_threads
from xrt.errors import InputError, RunFailed, XRTError
from xrt.graph import DType, Function, Node, TensorType, Type, Value, is_static
from xrt.operators import Trait, has_trait

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator
    from xrt.engines.kernels.table import Run


ABSENT = 0
"""The slot of absent inputs; holds None."""
CONDITION = np.dtype(bool)


@dataclass(frozen=True, slots=True)
class StepKernel:
    """The kernel of a node, and the memory that it may reuse."""

    run: Run
    mutable: tuple[int, ...] = ()
    """Positions of the inputs whose buffers it may overwrite with its only result."""
    pairs: tuple[tuple[int, int], ...] | None = None
    """For a run of native kernels, which accepts a list of buffers: (input, output) positions that may share memory."""
    host: tuple[int, ...] = ()
    """Positions of the inputs that it reads on the host, whatever the device."""


@dataclass(frozen=True, slots=True)
class TapeStep:
    """One kernel call, or one copy between host and device."""

    kernel: Run
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    node: Node | str
    """Named in error messages; for a copy between host and device, the reason for it."""
    store: Callable[[Any], Any]
    """Converts a result for its slot, on the host or on the device."""
    free: tuple[int, ...] = ()
    """Slots of values without readers after this step."""
    fills: tuple[int, ...] = ()
    """Slots of results that the kernel can write to a caller's buffers: its only result, or all results of a native run."""
    is_run: bool = False
    """Whether the kernel is a run of native kernels."""
    pairs: frozenset[tuple[int, int]] = frozenset()
    """(argument, result) slots that may share memory; the argument is among ``free``."""
    spread: tuple[int, ...] = ()
    """Arguments that must broadcast to the buffer's shape: all of an elementwise kernel, the first of a scatter."""


@dataclass(frozen=True, slots=True)
class Tape:
    """Slots and steps; the template holds the constants."""

    template: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[TapeStep, ...]
    store: Callable[[Any], Any]
    """Converts an input for its slot."""
    engine: str
    """Engine name for error messages; may be an engine derived from toy."""

    def find_output_steps(self) -> tuple[TapeStep | None, ...]:
        """For each output, the step that can write it to a caller's buffer; None if there is none, or for a repeated output."""
        writers = {slot: step for step in self.steps for slot in step.fills}
        return tuple(writers.get(slot) if slot not in self.outputs[:i] else None for i, slot in enumerate(self.outputs))

    def find_inplace_pairs(self, alike: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
        """Find the (input, output) positions where the output may be written to the input's memory.

        ``alike`` lists, for each output, the positions of the inputs of the same type.

        A pair qualifies if no step reads the input after the step that writes the output. Kernels may return views of the input;
        whether one is alive is checked during the call.
        """
        last = {slot: number for number, step in enumerate(self.steps) for slot in step.arguments}
        last.update(dict.fromkeys(self.outputs, len(self.steps)))
        order = {id(step): number for number, step in enumerate(self.steps)}
        pairs = []
        for place, (slot, step, inputs) in enumerate(zip(self.outputs, self.find_output_steps(), alike, strict=True)):
            if step is None:
                continue
            for position in inputs:
                source, written_at = self.inputs[position], order[id(step)]
                read_at = last.get(source, -1)
                if read_at < written_at or (read_at == written_at and (source, slot) in step.pairs):
                    pairs.append((position, place))
        return tuple(sorted(pairs))

    def play(self, inputs: Iterable[Any], buffers: Mapping[int, Any] | None = None) -> list[Any]:
        """Run the steps; the outputs may share memory with the inputs, the constants and each other.

        ``buffers`` maps output slots to arrays that results are written to where the kernel supports it; that array is then the
        output. An `Overwritten` is the memory of an input, and its array is passed among the inputs too.

        Raises RunFailed that names the node whose kernel failed, with the failure as its cause.
        """
        slots = list(self.template)
        for slot, value in zip(self.inputs, inputs, strict=True):
            slots[slot] = self.store(value)
        # The call must not keep a sequence or an array alive beyond its last reader.
        del inputs
        for buffer in (buffers or {}).values():
            if isinstance(buffer, Overwritten):
                buffer.count(slots)
        step: TapeStep
        try:
            for step in self.steps:
                _run_step(step, slots, buffers)
        except XRTError:
            raise
        except Exception as cause:
            raise _make_error(self.engine, step, slots, cause) from cause
        return [slots[i] for i in self.outputs]


class Overwritten:
    """An array whose memory belongs to both an input and an output of a call; detects live views by reference count."""

    __slots__ = ("_count", "array", "slot")

    def __init__(self, array: Any, slot: int) -> None:
        """Wrap a C-contiguous array that outlives this object; ``slot`` is that of the input."""
        # A view refers to the array that owns the memory. This array's memory is no ndarray's, so views of it refer to it.
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        self.array = np.ndarray(array.shape, array.dtype, buffer=memory)
        self.slot = slot
        self._count = 0

    def count(self, slots: Sequence[Any]) -> None:
        """Record how many references the array has before the first step, without that of its slot; `is_alone` compares."""
        self._count = sys.getrefcount(self.array) - (slots[self.slot] is self.array)

    def is_alone(self, slots: Sequence[Any]) -> bool:
        """Whether the array has no references beyond those that `count` recorded."""
        return sys.getrefcount(self.array) == self._count + (slots[self.slot] is self.array)


def _run_step(step: TapeStep, slots: list[Any], buffers: Mapping[int, Any] | None) -> None:
    """Run one step: compute, store the results, free dead values."""
    out = _find_buffer(step, slots, buffers) if buffers and step.fills else None
    arguments = [slots[i] for i in step.arguments]
    result = step.kernel(*arguments) if out is None else step.kernel(*arguments, out=out)
    values = result if type(result) is tuple else (result,)
    if len(values) < len(step.results):
        raise ValueError(f"the operator has {len(values)} output(s) in this form; the node lists {len(step.results)}")
    store = step.store
    # A kernel may return more outputs than the node lists.
    for slot, value in zip(step.results, values, strict=False):
        slots[slot] = store(value)
    for slot in step.free:
        slots[slot] = None


def store_on_host(value: Any) -> Any:
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


def _make_device_store(accelerator: Accelerator) -> Callable[[Any], Any]:
    """A function that converts a value to C-contiguous arrays on the device; lists element by element, None stays None."""

    def store(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, list):
            return [store(item) for item in value]
        xp = accelerator.xp
        if isinstance(value, xp.ndarray):
            return value if value.flags.c_contiguous else xp.ascontiguousarray(value)
        return accelerator.upload(np.asarray(value, order="C"))

    return store


def _find_buffer(step: TapeStep, slots: list[Any], buffers: Mapping[int, Any]) -> Any:
    """The caller's buffer for the step's result, or None unless all arguments broadcast to it and one has its shape.

    For a run of native kernels, the list of all buffers, which are known to fit; None if the caller passes none.
    """
    candidates = [buffers.get(slot) for slot in step.results]
    for place, entry in enumerate(candidates):
        # A live view of the input would change with it. The result is then computed elsewhere, and copied after the last step.
        if isinstance(entry, Overwritten):
            candidates[place] = entry.array if entry.is_alone(slots) else None
    if step.is_run:
        return candidates if any(buffer is not None for buffer in candidates) else None
    (buffer,) = candidates
    if buffer is None:
        return None
    arguments = [slots[i] for i in step.spread]
    fits = all(_fits(value, buffer) for value in arguments) and any(value.shape == buffer.shape for value in arguments)
    return buffer if fits else None


def _fits(argument: Any, buffer: Any) -> bool:
    """Whether the argument broadcasts to the buffer's shape and has its dtype or is a boolean condition."""
    if type(argument) is not np.ndarray or argument.ndim > buffer.ndim or argument.dtype not in (buffer.dtype, CONDITION):
        return False
    return all(a in (1, b) for a, b in zip(reversed(argument.shape), reversed(buffer.shape), strict=False))


def _make_error(engine: str, step: TapeStep, slots: Sequence[Any], cause: Exception) -> RunFailed:
    node = step.node
    where, advice = "a copy between host and device", ""
    if isinstance(node, Node):
        where = f"node {node.name!r} ({node.op})"
        advice = "; check the node's attributes and the shapes and types of its inputs"
    arguments = ", ".join(describe_value(slots[i]) for i in step.arguments) or "no inputs"
    return RunFailed(f"engine {engine!r} failed at {where} on ({arguments}): {type(cause).__name__}: {cause}{advice}")


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


# ---------------------------------------------------------------------- building a tape

Place: TypeAlias = tuple[str, bool]
"""(value name, whether it is the copy on the device)."""


def make_tape(
    function: Function, make_kernel: Callable[[Node], StepKernel], engine: str = "toy", accelerator: Accelerator | None = None
) -> Tape:
    """Build the tape of a closed Function, and upload its constants to the accelerator. Linear.

    A node whose results stay on the host is passed to ``make_kernel`` without its device.
    """
    return _TapeBuilder(function, make_kernel, accelerator).build(engine)


class _TapeBuilder:
    """Builds a tape: one kernel per node, and a copy where a value is read on the other side."""

    def __init__(self, function: Function, make_kernel: Callable[[Node], StepKernel], accelerator: Accelerator | None) -> None:
        self.function = function
        self.make_kernel = make_kernel
        self.accelerator = accelerator
        self.stores = {False: store_on_host, True: _make_device_store(accelerator) if accelerator else store_on_host}
        self.slots: dict[Place, int] = {}
        self.computed: set[Place] = set()
        self.count = ABSENT + 1
        self.steps: list[tuple[TapeStep, StepKernel]] = []

    def build(self, engine: str) -> Tape:
        """Build the slots and steps."""
        function, on_device = self.function, self.accelerator is not None
        sizes = find_shape_values(function) if on_device else frozenset()
        inputs = tuple(self._define((value.name, on_device)) for value in function.inputs)
        for node in function.nodes:
            self._add_node(node, on_device and not sizes.issuperset(node.defines))
        outputs = tuple(self._find_slot((value.name, on_device)) for value in function.outputs)
        template: list[Any] = [None] * self.count
        # Absent inputs, outputs and constants are never freed.
        permanent = {ABSENT, *outputs}
        for (name, is_uploaded), slot in self.slots.items():
            if name in function.constants:
                array = function.constants[name].array
                template[slot] = self.accelerator.upload(array) if self.accelerator and is_uploaded else array
                permanent.add(slot)
        return Tape(tuple(template), inputs, outputs, tuple(self._finish_steps(permanent)), self.stores[on_device], engine)

    def _new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    def _number_slot(self, place: Place) -> int:
        if place not in self.slots:
            self.slots[place] = self._new_slot()
        return self.slots[place]

    def _define(self, place: Place) -> int:
        self.computed.add(place)
        return self._number_slot(place)

    def _find_slot(self, place: Place) -> int:
        """The slot of a value on host or device; adds a copy if it is only on the other side."""
        name, on_device = place
        if not name:
            return ABSENT
        if place not in self.computed and name not in self.function.constants and self.accelerator:
            copy = self.accelerator.upload if on_device else self.accelerator.download
            source, result = self._number_slot((name, not on_device)), self._number_slot(place)
            reason = f"value {name!r} is {'computed' if on_device else 'wanted'} on the host"
            self.steps.append((TapeStep(copy, (source,), (result,), reason, self.stores[on_device]), StepKernel(copy)))
        return self._define(place)

    def _add_node(self, node: Node, on_device: bool) -> None:
        kernel = self.make_kernel(replace(node, device="") if self.accelerator and not on_device else node)
        # SHAPES read no data, so their input may be on either side.
        reads_on_device = self.accelerator is not None and (on_device or node.op_type in SHAPES)
        names = (*node.inputs, *node.captures)
        arguments = tuple(self._find_slot((name, reads_on_device and i not in kernel.host)) for i, name in enumerate(names))
        # Absent outputs at the end are dropped; one before a present output has a slot, which is freed at once.
        count = max((i for i, name in enumerate(node.outputs, 1) if name), default=0)
        results = tuple(self._define((name, on_device)) if name else self._new_slot() for name in node.outputs[:count])
        self.steps.append((TapeStep(kernel.run, arguments, results, node, self.stores[on_device]), kernel))

    def _finish_steps(self, permanent: set[int]) -> Iterator[TapeStep]:
        """Yield the steps with the values that they may free and overwrite."""
        last = {slot: number for number, (step, _) in enumerate(self.steps) for slot in (*step.arguments, *step.results)}
        dying: list[list[int]] = [[] for _ in self.steps]
        for slot, number in last.items():
            if slot not in permanent:
                dying[number].append(slot)
        for (step, kernel), free in zip(self.steps, dying, strict=True):
            arguments, results = step.arguments, step.results
            mutable = [arguments[i] for i in kernel.mutable if i < len(arguments)]
            fills = results if kernel.pairs is not None or (kernel.mutable and len(results) == 1) else ()
            pairs = [(arguments[i], results[o]) for i, o in kernel.pairs or ()] or [(i, results[0]) for i in mutable if fills]
            is_scatter = isinstance(step.node, Node) and has_trait(step.node, Trait.UPDATES)
            yield replace(
                step,
                free=tuple(free),
                fills=fills,
                is_run=kernel.pairs is not None,
                pairs=frozenset(pair for pair in pairs if pair[0] in free),
                spread=arguments[:1] if is_scatter else arguments,
            )


# ---------------------------------------------------------------------- executables

FILLED_FROM = 1 << 19
"""Bytes of an output from which passing a buffer to the kernel (about 3 us) is negligible against the kernel's time."""


class InterpretedExecutable(Executable):
    """A tape of Python kernels and runs of native kernels; the same tape for every call."""

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(self, function: Function, tape: Tape, threads: int, native: bool) -> None:
        self.function = function
        self._tape = tape
        self._output_steps = tape.find_output_steps()
        self._products = product_threads(threads, native)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> list[Any]:
        tape, out = self._tape, options.host_buffers
        if len(inputs) != len(tape.inputs):
            raise InputError(f"function {self.function.name!r} takes {len(tape.inputs)} inputs; got {len(inputs)}")
        # ONNX defines the results of division by zero and overflow as NumPy computes them, so its warnings are noise.
        with self._products, np.errstate(all="ignore"):
            if out is None:
                return copy_shared(tape.play(inputs), list_ids(inputs), _is_view)
            buffers, arguments = self._choose_buffers(out, inputs)
            results = tape.play(arguments, buffers)
            for place, slot in enumerate(tape.outputs):
                entry = buffers.get(slot)
                # The caller gets its own array back, not the one that stands for the same memory.
                if isinstance(entry, Overwritten) and results[place] is entry.array:
                    results[place] = out[place]
            buffer_ids = list_ids(out)
            results = copy_shared(results, list_ids(arguments), lambda array: _is_view(array) and id(array) not in buffer_ids)
        return self._copy_to_buffers(results, out)

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [FILLED_FROM if step else None for step in self._output_steps]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return tuple(self._pairs)

    @cached_property
    def _pairs(self) -> dict[tuple[int, int], None]:
        """The in-place pairs of equal static types, ordered."""
        places: dict[Type | None, list[int]] = {}
        for place, value in enumerate(self.function.inputs):
            places.setdefault(value.type, []).append(place)
        alike = [places.get(value.type, ()) if _is_plain(value.type) else () for value in self.function.outputs]
        return dict.fromkeys(self._tape.find_inplace_pairs(alike))

    def _choose_buffers(self, out: Sequence[Any], inputs: Sequence[Any]) -> tuple[dict[int, Any], list[Any]]:
        """Map output slots to the caller's buffers that fit and that a kernel can write to; also return the inputs to pass.

        A buffer in the memory of an input must be one of the in-place pairs.
        """
        tape, arguments = self._tape, list(inputs)
        # By address and not by identity: a view of the input is the same memory.
        position = {address_of(value): number for number, value in enumerate(inputs) if isinstance(value, np.ndarray)}
        buffers: dict[int, Any] = {}
        for place, (slot, step, buffer) in enumerate(zip(tape.outputs, self._output_steps, out, strict=False)):
            if step is None or not _matches(buffer, self.function.outputs[place]):
                continue
            number = position.get(address_of(buffer))
            if number is None:
                buffers[slot] = buffer
            elif (number, place) in self._pairs and buffer.nbytes:
                buffers[slot] = entry = Overwritten(buffer, tape.inputs[number])
                arguments[number] = entry.array
        return buffers, arguments

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values, each until its last reader has run; what a kernel takes while it computes comes on top"
        return (MemoryUse("workspace", peak_of_values(self.function), why, per_call=True),)

    def _copy_to_buffers(self, results: list[Any], out: Sequence[Any]) -> list[Any]:
        """Copy results into the caller's buffers and return the buffers in their place."""
        names = [value.name for value in self.function.outputs]
        outputs = [(x, getattr(x, "dtype", None), getattr(x, "shape", ())) for x in results]
        # All buffers are checked before one is written, and written only after all steps have read their inputs.
        check_buffers(self.function.name, names, outputs, out, describe_value, aligned=False)
        for result, buffer in zip(results, out, strict=True):
            if buffer is not None and result is not buffer:
                np.copyto(buffer, result)
        return [result if buffer is None else buffer for result, buffer in zip(results, out, strict=True)]


def _is_plain(type_: Type | None) -> bool:
    """Whether the type is a tensor of numbers with a static shape."""
    return isinstance(type_, TensorType) and is_static(type_) and type_.dtype is not DType.STRING


def _matches(buffer: Any, value: Value) -> bool:
    """Whether the buffer is a writable C-contiguous array of the value's dtype and static shape."""
    type_ = value.type
    if not isinstance(buffer, np.ndarray) or not isinstance(type_, TensorType) or buffer.shape != type_.shape:
        return False
    return bool(buffer.dtype == type_.dtype.numpy and buffer.flags.carray)


def list_ids(values: Iterable[Any]) -> set[int]:
    """The identities of all arrays, those in lists included."""
    ids: set[int] = set()
    for value in values:
        if isinstance(value, list):
            ids |= list_ids(value)
        else:
            ids.add(id(value))
    return ids


def _is_view(array: np.ndarray[Any, Any]) -> bool:
    """Whether the array may share its memory; true of constants too."""
    return not array.flags.owndata


def copy_shared(results: Iterable[Any], used_ids: set[int], is_view: Callable[[Any], bool]) -> list[Any]:
    """Copy each result that may share memory with an input, a constant or an earlier result; ``used_ids`` grows.

    Arrays that share memory are views, or the very same array.
    """

    def unshare(value: Any) -> Any:
        if isinstance(value, list):
            return [unshare(item) for item in value]
        if value is None or isinstance(value, dict):
            return None if value is None else dict(value)
        if id(value) in used_ids or is_view(value):
            value = value.copy()
        used_ids.add(id(value))
        return value

    return [unshare(result) for result in results]


class DeviceExecutable(Executable):
    """Runs a Function's kernels on the current stream of a device."""

    outputs_are_fresh = True

    def __init__(self, function: Function, compiler: Callable[[Function], Tape], accelerator: Accelerator) -> None:
        self.function = function
        self._compiler = compiler
        self._accelerator = accelerator
        self._tape: Tape | None = None

    def prepare(self) -> None:
        """Select kernels and upload the constants to the device."""
        # The first call may be on another stream, so that the uploads must be done when this returns.
        stream = self._accelerator.new_stream()
        with self._accelerator.activate(stream):
            self._tape = self._compiler(self.function)
        self._accelerator.wait([stream])

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if self._tape is None:
            name = self.function.name
            raise RunFailed(f"function {name!r} is not ready to run; call prepare() first, and run() before close()")
        # On a device constants own their memory, so that they are recognized by identity.
        used_ids = list_ids(inputs).union(map(id, self._tape.template))
        return copy_shared(self._tape.play(inputs), used_ids, lambda array: array.base is not None)

    def why_not_capturable(self) -> str | None:
        if self._tape is None:
            return "it is not prepared"
        for node in self.function.nodes:
            if node.bodies:
                return f"node {node.name!r} ({node.op}) runs its body as often as its data says"
            if any(not is_static(self.function.get_type(name)) for name in list_used_outputs(node, self.function)):
                return f"node {node.name!r} ({node.op}) makes values whose size only its data tells"
        # A copy between host and device waits for the stream.
        return next((step.node for step in self._tape.steps if isinstance(step.node, str)), None)

    def memory(self) -> tuple[MemoryUse, ...]:
        on_device = self._accelerator.xp.ndarray
        weights = sum(array.nbytes for array in (self._tape.template if self._tape else ()) if isinstance(array, on_device))
        why = "inner values, each until its last reader has been put on the stream"
        return (
            MemoryUse("weights on the device", weights, "a copy of the constants in the device's own memory"),
            MemoryUse("workspace on the device", peak_of_values(self.function), why, per_call=True),
        )

    def close(self) -> None:
        self._tape = None
