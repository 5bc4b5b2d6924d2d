"""Compile a Function to a tape: a list of steps, each of which runs a kernel on numbered slots.

Everything that does not depend on a call is determined when the tape is built: the slot of each value, the kernel that computes
it, and the step after which no step needs it. A call makes a new list of slots and runs one loop, so any number of threads may
run a tape concurrently.

On a device, shapes and values computed from shapes stay on the host until a kernel needs them on the device. Otherwise each
kernel that allocates an array of a computed shape would have to wait for the device.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.native.bindings import address_of
from xrt.engines.toolkit.memory import compute_peak_of_values
from xrt.engines.toolkit.support import list_used_outputs
from xrt.engines.toy.devices import SHAPE_OPS, find_shape_values
from xrt.engines.toy.kernels import make_product_context
from xrt.errors import InputError, RunFailed, XRTError
from xrt.graph import DType, Function, Node, TensorType, Type, Value, is_static
from xrt.operators import Trait, has_trait

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator
    from xrt.engines.kernels.table import Run

ABSENT_SLOT = 0
"""The slot of absent inputs. It always contains None."""
BOOL_DTYPE = np.dtype(bool)


@dataclass(frozen=True, slots=True)
class StepKernel:
    """The kernel of a node, and which inputs it may overwrite."""

    run: Run
    mutable: tuple[int, ...] = ()
    """Indices of the inputs whose memory the kernel may overwrite with its only output."""
    in_place_pairs: tuple[tuple[int, int], ...] | None = None
    """For a segment, whose ``out`` is a list of buffers: the (input, output) index pairs that may share memory. Else None."""
    host: tuple[int, ...] = ()
    """Indices of the inputs that the kernel reads on the host, even if the node is on a device."""


@dataclass(frozen=True, slots=True)
class TapeStep:
    """One call of a kernel, or one copy between host and device."""

    kernel: Run
    arguments: tuple[int, ...]
    """Slots of the inputs."""
    results: tuple[int, ...]
    """Slots of the outputs."""
    node: Node | str
    """The node, for error messages. For a copy between host and device, the reason for the copy."""
    store: Callable[[Any], Any]
    """Converts an output before it is stored in its slot, on the host or on the device."""
    dead: tuple[int, ...] = ()
    """Slots of values that no later step reads. They are cleared after this step."""
    fillable: tuple[int, ...] = ()
    """Slots of outputs that the kernel can write to buffers of the caller: its only output, or all outputs of a segment."""
    is_segment: bool = False
    in_place_pairs: frozenset[tuple[int, int]] = frozenset()
    """(argument, result) slot pairs that may share memory. Each of these arguments is also in ``dead``."""
    broadcast_arguments: tuple[int, ...] = ()
    """Slots of arguments that must broadcast to the shape of the buffer: all for an elementwise kernel, one for a scatter."""


@dataclass(frozen=True, slots=True)
class Tape:
    """The steps of a compiled Function, and the slots that they read and write."""

    template: tuple[Any, ...]
    """Content of the slots at the start of a call: the constants, and None elsewhere."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[TapeStep, ...]
    store: Callable[[Any], Any]
    """Converts an input before it is stored in its slot."""
    engine: str
    """Name of the engine for error messages: toy, or an engine derived from it."""

    def find_output_steps(self) -> tuple[TapeStep | None, ...]:
        """Find the step that can write each output to a caller's buffer. None if no step can, or if the output is repeated."""
        writers = {slot: step for step in self.steps for slot in step.fillable}
        return tuple(writers.get(slot) if slot not in self.outputs[:i] else None for i, slot in enumerate(self.outputs))

    def find_inplace_pairs(self, same_type_inputs: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
        """Find the (input, output) index pairs for which the output may be written to the memory of the input.

        ``same_type_inputs`` lists for each output the indices of the inputs that have its type. A pair is possible if no step
        reads the input after the step that writes the output. Whether later steps read a view of the input, which a kernel
        returned, is checked during the call (`InPlaceBuffer.is_alone`).
        """
        last_read = {slot: index for index, step in enumerate(self.steps) for slot in step.arguments}
        last_read.update(dict.fromkeys(self.outputs, len(self.steps)))  # outputs are read after the last step
        step_indices = {id(step): index for index, step in enumerate(self.steps)}
        pairs = []
        output_steps = self.find_output_steps()
        for output, (slot, step, inputs) in enumerate(zip(self.outputs, output_steps, same_type_inputs, strict=True)):
            if step is None:
                continue
            written_at = step_indices[id(step)]
            for index in inputs:
                source = self.inputs[index]
                read_at = last_read.get(source, -1)
                if read_at < written_at or (read_at == written_at and (source, slot) in step.in_place_pairs):
                    pairs.append((index, output))
        return tuple(sorted(pairs))

    def run(self, inputs: Iterable[Any], buffers: Mapping[int, Any] | None = None) -> list[Any]:
        """Run the steps and return the outputs, which may share memory with the inputs, the constants and each other.

        ``buffers`` maps slots of outputs to arrays of the caller. If the kernel supports it, the output is written to this array.
        If this array is the memory of an input, pass an `InPlaceBuffer` instead, and its ``array`` in ``inputs`` as that input.
        Raises RunFailed with the name of the node whose kernel failed.
        """
        slots = list(self.template)
        for slot, value in zip(self.inputs, inputs, strict=True):
            slots[slot] = self.store(value)
        del inputs  # so that the memory of an input is released after the last step that reads it
        for buffer in (buffers or {}).values():
            if isinstance(buffer, InPlaceBuffer):
                buffer.record_count(slots)
        step: TapeStep
        try:
            for step in self.steps:
                _run_step(step, slots, buffers)
        except XRTError:
            raise
        except Exception as cause:
            raise _make_error(self.engine, step, slots, cause) from cause
        return [slots[i] for i in self.outputs]


class InPlaceBuffer:
    """An array that is the memory of an input and of an output of a call.

    It may be overwritten only when no step needs a view of the input any more. `is_alone` determines that by the reference count.
    """

    __slots__ = ("_count", "array", "slot")

    def __init__(self, array: Any, slot: int) -> None:
        """``array`` is C-contiguous and must outlive this object. ``slot`` is the slot of the input."""
        # A view of an array has a reference to the ndarray that owns the memory. No ndarray owns the memory of this new array, so
        # views of it have a reference to it, and its reference count includes them.
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        self.array = np.ndarray(array.shape, array.dtype, buffer=memory)
        self.slot = slot
        self._count = 0

    def record_count(self, slots: Sequence[Any]) -> None:
        """Record the number of references to the array before the first step, without the one in its slot."""
        slot_references = 1 if slots[self.slot] is self.array else 0
        self._count = sys.getrefcount(self.array) - slot_references

    def is_alone(self, slots: Sequence[Any]) -> bool:
        """Whether the array has no more references than `record_count` recorded, so there is no view of it."""
        slot_references = 1 if slots[self.slot] is self.array else 0
        return sys.getrefcount(self.array) == self._count + slot_references


def _run_step(step: TapeStep, slots: list[Any], buffers: Mapping[int, Any] | None) -> None:
    """Run one step: call the kernel, store its results, and clear the slots of dead values."""
    out = _find_buffer(step, slots, buffers) if buffers and step.fillable else None
    arguments = [slots[i] for i in step.arguments]
    result = step.kernel(*arguments) if out is None else step.kernel(*arguments, out=out)
    values = result if type(result) is tuple else (result,)
    if len(values) < len(step.results):
        raise ValueError(f"the operator returns {len(values)} output(s) with these attributes; the node has {len(step.results)}")
    store = step.store
    # A kernel may return more outputs than the node has.
    for slot, value in zip(step.results, values, strict=False):
        slots[slot] = store(value)
    for slot in step.dead:
        slots[slot] = None


def store_on_host(value: Any) -> Any:
    """Convert arrays and scalars to C-contiguous arrays before they are stored. Lists, dictionaries and None are unchanged.

    Kernels add the elements of a transposed view in another order than those of its copy. With a single layout, results do not
    depend on how a value was computed, and therefore not on how a Function is partitioned.
    """
    if type(value) is np.ndarray:
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)
    if value is None or isinstance(value, list | dict):
        return value
    if isinstance(value, str):
        return np.array(value, dtype=object)
    return np.asarray(value, order="C")


def _make_device_store(accelerator: Accelerator) -> Callable[[Any], Any]:
    """Make a function that converts arrays, also those in lists, to C-contiguous arrays on the device."""

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
    """Find the ``out`` argument for a step: the buffer of its output, or None if the kernel cannot write to the buffer.

    A Python kernel can if all arguments broadcast to the shape of the buffer, and one has this shape. For a segment of native
    kernels return the list of the buffers of all outputs, whose types were checked; None if no output has one.
    """
    candidates = [buffers.get(slot) for slot in step.results]
    for index, entry in enumerate(candidates):
        # If there is a view of the input, it would be overwritten too. Then the output is copied after the last step instead.
        if isinstance(entry, InPlaceBuffer):
            candidates[index] = entry.array if entry.is_alone(slots) else None
    if step.is_segment:
        return candidates if any(buffer is not None for buffer in candidates) else None
    (buffer,) = candidates
    if buffer is None:
        return None
    arguments = [slots[i] for i in step.broadcast_arguments]
    is_usable = all(_is_compatible_argument(x, buffer) for x in arguments) and any(x.shape == buffer.shape for x in arguments)
    return buffer if is_usable else None


def _is_compatible_argument(argument: Any, buffer: Any) -> bool:
    """Whether an argument broadcasts to the shape of a buffer, and has its dtype or, as the condition of a Where, bool."""
    if type(argument) is not np.ndarray or argument.ndim > buffer.ndim or argument.dtype not in (buffer.dtype, BOOL_DTYPE):
        return False
    return all(a in (1, b) for a, b in zip(reversed(argument.shape), reversed(buffer.shape), strict=False))


def _make_error(engine: str, step: TapeStep, slots: Sequence[Any], cause: Exception) -> RunFailed:
    node = step.node
    where = "a copy between host and device"
    advice = ""
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


ValueCopy: TypeAlias = tuple[str, bool]
"""(name, is on device): a value may have one copy on the host and one on the device."""


class TapeBuilder:
    """Builds the tape of a closed Function: one step per node, and one for each value that is copied between host and device."""

    def __init__(
        self, function: Function, make_kernel: Callable[[Node], StepKernel], accelerator: Accelerator | None = None
    ) -> None:
        """``make_kernel`` is called for each node. A node whose results stay on the host is passed to it without a device."""
        self.function = function
        self.make_kernel = make_kernel
        self.accelerator = accelerator
        self.stores = {False: store_on_host, True: _make_device_store(accelerator) if accelerator else store_on_host}
        self.slots: dict[ValueCopy, int] = {}
        self.computed: set[ValueCopy] = set()
        """The copies of values that are inputs or results of the steps so far."""
        self.count = ABSENT_SLOT + 1
        self.steps: list[tuple[TapeStep, StepKernel]] = []

    def build(self, engine: str) -> Tape:
        """Build the tape in linear time, and upload its constants. ``engine`` is the name of the engine for error messages."""
        function = self.function
        on_device = self.accelerator is not None
        sizes = find_shape_values(function) if on_device else frozenset()  # names of values that stay on the host
        inputs = tuple(self._define((value.name, on_device)) for value in function.inputs)
        for node in function.nodes:
            self._add_node(node, on_device and not sizes.issuperset(node.defined_names))
        outputs = tuple(self._get_slot((value.name, on_device)) for value in function.outputs)
        template: list[Any] = [None] * self.count
        # The slots of absent inputs, outputs and constants are never cleared.
        permanent = {ABSENT_SLOT, *outputs}
        for (name, is_uploaded), slot in self.slots.items():
            if name in function.constants:
                array = function.constants[name].array
                template[slot] = self.accelerator.upload(array) if self.accelerator and is_uploaded else array
                permanent.add(slot)
        return Tape(tuple(template), inputs, outputs, tuple(self._finish_steps(permanent)), self.stores[on_device], engine)

    def _new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    def _assign_slot(self, value: ValueCopy) -> int:
        """Get the slot of a copy of a value; a new one if it has none."""
        if value not in self.slots:
            self.slots[value] = self._new_slot()
        return self.slots[value]

    def _define(self, value: ValueCopy) -> int:
        """Record that a copy of a value is computed, and return its slot."""
        self.computed.add(value)
        return self._assign_slot(value)

    def _get_slot(self, value: ValueCopy) -> int:
        """Get the slot of a value on the host or the device. If the value is not there yet, add a step that copies it."""
        name, on_device = value
        if not name:
            return ABSENT_SLOT
        if value not in self.computed and name not in self.function.constants and self.accelerator:
            copy = self.accelerator.upload if on_device else self.accelerator.download
            source = self._assign_slot((name, not on_device))
            result = self._assign_slot(value)
            reason = f"value {name!r} is {'computed' if on_device else 'needed'} on the host"
            self.steps.append((TapeStep(copy, (source,), (result,), reason, self.stores[on_device]), StepKernel(copy)))
        return self._define(value)

    def _add_node(self, node: Node, on_device: bool) -> None:
        # The kernel of a node whose results stay on the host computes with NumPy.
        kernel = self.make_kernel(node if on_device or not self.accelerator else replace(node, device=""))
        # SHAPE_OPS do not read elements, so their input may stay on the device although their result is on the host.
        reads_on_device = self.accelerator is not None and (on_device or node.op_type in SHAPE_OPS)
        names = (*node.inputs, *node.captures)
        arguments = tuple(self._get_slot((name, reads_on_device and i not in kernel.host)) for i, name in enumerate(names))
        # Absent outputs at the end are omitted. One before a present output has a slot, which is cleared at once.
        count = max((i for i, name in enumerate(node.outputs, 1) if name), default=0)
        results = tuple(self._define((name, on_device)) if name else self._new_slot() for name in node.outputs[:count])
        self.steps.append((TapeStep(kernel.run, arguments, results, node, self.stores[on_device]), kernel))

    def _finish_steps(self, permanent: set[int]) -> Iterator[TapeStep]:
        """Yield the steps, completed by the slots to clear afterwards (never ``permanent`` ones), and those to overwrite."""
        last_use = {slot: index for index, (step, _) in enumerate(self.steps) for slot in (*step.arguments, *step.results)}
        dead_slots: list[list[int]] = [[] for _ in self.steps]
        for slot, index in last_use.items():
            if slot not in permanent:
                dead_slots[index].append(slot)
        for (step, kernel), dead in zip(self.steps, dead_slots, strict=True):
            arguments, results = step.arguments, step.results
            fillable: tuple[int, ...] = ()
            pairs: list[tuple[int, int]] = []
            if kernel.in_place_pairs is not None:  # a segment
                fillable = results
                pairs = [(arguments[i], results[o]) for i, o in kernel.in_place_pairs]
            elif kernel.mutable and len(results) == 1:
                fillable = results
                pairs = [(arguments[i], results[0]) for i in kernel.mutable if i < len(arguments)]
            is_scatter = isinstance(step.node, Node) and has_trait(step.node, Trait.UPDATES)
            yield replace(
                step,
                dead=tuple(dead),
                fillable=fillable,
                is_segment=kernel.in_place_pairs is not None,
                # A later step may read an argument that is not dead.
                in_place_pairs=frozenset((argument, result) for argument, result in pairs if argument in dead),
                broadcast_arguments=arguments[:1] if is_scatter else arguments,
            )


MIN_FILLED_BYTES = 1 << 19
"""A smaller output is copied to the caller's buffer, because passing the buffer to the kernel (about 3 us) takes longer."""


class InterpretedExecutable(Executable):
    """Runs a tape on the CPU, whose kernels are Python kernels and segments of native kernels."""

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(self, function: Function, tape: Tape, threads: int, has_native: bool) -> None:
        self.function = function
        self._tape = tape
        self._output_steps = tape.find_output_steps()
        self._product_context = make_product_context(threads, has_native)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> list[Any]:
        tape, out = self._tape, options.host_buffers
        if len(inputs) != len(tape.inputs):
            raise InputError(f"function {self.function.name!r} takes {len(tape.inputs)} inputs; got {len(inputs)}")
        # Ignore NumPy's warnings about division by zero and overflow, because its results are those that ONNX defines.
        with self._product_context, np.errstate(all="ignore"):
            if out is None:
                return unshare_results(tape.run(inputs), collect_ids(inputs), _is_view)
            buffers, arguments = self._choose_buffers(out, inputs)
            results = tape.run(arguments, buffers)
            for output, slot in enumerate(tape.outputs):
                entry = buffers.get(slot)
                # Return the caller's own array, not the other array over the same memory.
                if isinstance(entry, InPlaceBuffer) and results[output] is entry.array:
                    results[output] = out[output]
            buffer_ids = collect_ids(out)
            results = unshare_results(
                results, collect_ids(arguments), lambda array: _is_view(array) and id(array) not in buffer_ids
            )
        return [result if buffer is None else fill(buffer, result) for result, buffer in zip(results, out, strict=True)]

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [MIN_FILLED_BYTES if step else None for step in self._output_steps]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return tuple(self._pairs)

    @cached_property
    def _pairs(self) -> dict[tuple[int, int], None]:
        """The (input, output) index pairs that may share memory, as the keys of an ordered set."""
        inputs_by_type: dict[Type, list[int]] = {}
        for index, value in enumerate(self.function.inputs):
            # Strings are Python objects, and the size of an input without a static shape differs between calls.
            if isinstance(value.type, TensorType) and value.type.is_static and value.type.dtype is not DType.STRING:
                inputs_by_type.setdefault(value.type, []).append(index)
        same_type_inputs = [inputs_by_type.get(v.type, ()) if v.type else () for v in self.function.outputs]
        return dict.fromkeys(self._tape.find_inplace_pairs(same_type_inputs))

    def _choose_buffers(self, out: Sequence[Any], inputs: Sequence[Any]) -> tuple[dict[int, Any], list[Any]]:
        """Select the buffers of the caller that kernels can write to. Return them by slot, and the inputs to pass to the tape.

        A buffer must have the type of its output. If it is the memory of an input, it must be one of the in-place pairs; then
        the array of an `InPlaceBuffer` replaces the input.
        """
        tape = self._tape
        arguments = list(inputs)
        # Compare addresses rather than arrays, because a view of the input is the same memory.
        input_by_address = {address_of(x): index for index, x in enumerate(inputs) if isinstance(x, np.ndarray)}
        buffers: dict[int, Any] = {}
        for output, (slot, step, buffer) in enumerate(zip(tape.outputs, self._output_steps, out, strict=False)):
            if step is None or not _matches_type(buffer, self.function.outputs[output]):
                continue
            index = input_by_address.get(address_of(buffer))
            if index is None:
                buffers[slot] = buffer
            elif (index, output) in self._pairs and buffer.nbytes:
                buffers[slot] = entry = InPlaceBuffer(buffer, tape.inputs[index])
                arguments[index] = entry.array
        return buffers, arguments

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values, each until its last reader has run; temporary memory of kernels is not included"
        return (MemoryUse("workspace", compute_peak_of_values(self.function), why, per_call=True),)


def _matches_type(buffer: Any, value: Value) -> bool:
    """Whether a buffer is a writable C-contiguous array with the dtype and the static shape of a value."""
    type_ = value.type
    if not isinstance(buffer, np.ndarray) or not isinstance(type_, TensorType) or buffer.shape != type_.shape:
        return False
    return bool(buffer.dtype == type_.dtype.numpy and buffer.flags.carray)


def collect_ids(values: Iterable[Any]) -> set[int]:
    ids: set[int] = set()
    for value in values:
        if isinstance(value, list):
            ids |= collect_ids(value)
        else:
            ids.add(id(value))
    return ids


def _is_view(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array may share its memory with another array. True for constants too."""
    return not array.flags.owndata


def unshare_results(results: Iterable[Any], used_ids: set[int], is_view: Callable[[Any], bool]) -> list[Any]:
    """Copy each result that may share memory with an input, a constant or an earlier result.

    ``used_ids`` has the ids of the inputs and constants. ``is_view(result)`` is whether another array may own the memory.
    """

    def unshare(value: Any) -> Any:
        if isinstance(value, list):
            return [unshare(item) for item in value]
        if value is None:
            return None
        if isinstance(value, dict):
            return dict(value)
        if id(value) in used_ids or is_view(value):
            value = value.copy()
        used_ids.add(id(value))
        return value

    return [unshare(result) for result in results]


class DeviceExecutable(Executable):
    """Runs a Function on the current stream of a device, with one kernel call per node."""

    outputs_are_fresh = True

    def __init__(self, function: Function, make_tape: Callable[[Function], Tape], accelerator: Accelerator) -> None:
        self.function = function
        self._make_tape = make_tape
        self._accelerator = accelerator
        self._tape: Tape | None = None

    def prepare(self) -> None:
        # The first call may be on another stream, so wait until the uploads are complete.
        stream = self._accelerator.new_stream()
        with self._accelerator.activate(stream):
            self._tape = self._make_tape(self.function)
        self._accelerator.wait([stream])

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if self._tape is None:
            name = self.function.name
            raise RunFailed(f"function {name!r} is not prepared or is closed; call prepare() first, and run() before close()")
        # On a device constants are not views, so recognize them by identity.
        used_ids = collect_ids(inputs).union(map(id, self._tape.template))
        return unshare_results(self._tape.run(inputs), used_ids, lambda array: array.base is not None)

    def why_not_capturable(self) -> str | None:
        if self._tape is None:
            return "it is not prepared"
        for node in self.function.nodes:
            if node.bodies:
                return f"the number of times that node {node.name!r} ({node.op}) runs its body depends on data"
            if any(not is_static(self.function.get_type(name)) for name in list_used_outputs(node, self.function)):
                return f"the size of a result of node {node.name!r} ({node.op}) depends on data"
        # A copy between host and device waits for the stream.
        return next((step.node for step in self._tape.steps if isinstance(step.node, str)), None)

    def memory(self) -> tuple[MemoryUse, ...]:
        device_array = self._accelerator.xp.ndarray
        template = self._tape.template if self._tape else ()
        weights = sum(value.nbytes for value in template if isinstance(value, device_array))
        why = "inner values, each until its last reader has been enqueued on the stream"
        return (
            MemoryUse("weights on the device", weights, "a copy of the constants in the device's own memory"),
            MemoryUse("workspace on the device", compute_peak_of_values(self.function), why, per_call=True),
        )

    def close(self) -> None:
        self._tape = None
