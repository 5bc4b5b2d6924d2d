"""Program: a compiled Plan, which runs its launches one after the other.

The values of a call are in the slots of a frame, and each running call has its own frame. Making a frame chooses all buffers and
creates an action for each launch, which reads and writes the slots. A call runs the actions in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.cache.memory import call_all, close_when_collected
from xrt.engines import RunOptions
from xrt.engines.contract.graph_compiler import fill
from xrt.errors import EngineError, InputError, RunFailed, XRTError
from xrt.graph import DType, FrozenDict, MapType, SequenceType, TensorType, Type
from xrt.partition import Launch, Plan
from xrt.runtime.inputs import check_updated, copy_values
from xrt.runtime.memory_plan import MemoryPlan, ValueTable, may_overlap, plan_memory

if TYPE_CHECKING:
    from xrt.cache import Lease
    from xrt.runtime.memory_plan import Arena, Step, Update
    from xrt.runtime.profile import Profile, Recorder

Action: TypeAlias = Callable[[], None]
Array: TypeAlias = np.ndarray[Any, Any]
DEFAULT_OPTIONS = RunOptions()
OPTIONS_SLOT = -1
"""This slot of a frame has the RunOptions of the call; None for the default options."""
IN_PLACE_SLOT = -2
"""This slot of a frame has a bool: whether launches may write outputs to the arrays of the inputs that they update."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """The state of a running call. Later calls reuse it; concurrent calls have separate frames."""

    slots: list[Any]
    actions: tuple[Action, ...]
    entering_inputs: tuple[tuple[Array, int], ...]
    """(arena buffer, slot of the input that is copied into it at the start of a call)."""
    initial: tuple[Any, ...]
    """Contents of the slots between calls: constants and arena buffers."""

    def enter(self, inputs: Sequence[Any], options: RunOptions | None, *, updates: bool = False) -> None:
        """Store the inputs and options of a call in the slots. ``updates`` allows launches to update inputs in place."""
        slots = self.slots
        slots[: len(inputs)] = inputs
        slots[OPTIONS_SLOT], slots[IN_PLACE_SLOT] = options, updates
        for buffer, slot in self.entering_inputs:
            np.copyto(buffer, slots[slot])

    def leave(self) -> None:
        self.slots[:] = self.initial


def make_frame(slots: ValueTable, layout: MemoryPlan, caller_arrays: Mapping[int, Any] | None = None) -> CallFrame:
    """Create a frame, and allocate its arena block. For a bound call, ``caller_arrays`` has the caller's arrays by slot."""
    views, frees_by_step = layout.arena.views(), slots.list_released_slots()
    initial: list[Any] = [None] * (len(slots.names) + 2)  # the last two are `OPTIONS_SLOT` and `IN_PLACE_SLOT`
    # Arrays at fixed addresses: in the arena or, in a bound call, those of the caller.
    fixed = {slot: views[name] for slot, name in layout.arena_names.items()} | dict(caller_arrays or {})
    for slot, array in {**slots.constants, **fixed}.items():
        initial[slot] = array
    table = list(initial)
    entering_inputs = tuple((views[name], slot) for slot, name in layout.entering_inputs)
    read = {**slots.constants, **fixed, **{slot: buffer for buffer, slot in entering_inputs}}
    prepare_functions = {
        **dict.fromkeys(layout.output_bound, _prepare_output_bound),
        **dict.fromkeys(layout.bound, _prepare_bound),
    }
    # In a bound call, `caller_arrays` already has the arrays that are updated in place.
    inplace = {} if caller_arrays else slots.inplace
    actions = []
    for index, (step, frees) in enumerate(zip(slots.steps, frees_by_step, strict=True)):
        arrays = LaunchArrays(table, read, fixed, tuple(slot for slot in frees if slot not in fixed), inplace)
        try:
            actions.append(prepare_functions.get(index, _prepare_plain)(step, arrays))
        except Exception as error:  # noqa: BLE001  # an engine that fails to bind counts as failed to run
            raise to_run_failed(step.launch, error)  # noqa: B904
    return CallFrame(table, tuple(actions), entering_inputs, tuple(initial))


@dataclass(frozen=True, slots=True)
class LaunchArrays:
    slots: list[Any]
    read: Mapping[int, Any]
    """Arrays at fixed addresses that launches read, by slot."""
    fixed: Mapping[int, Any]
    """Arrays at fixed addresses that launches write, by slot."""
    to_clear: tuple[int, ...]
    """Slots to set to None after the launch, because no later launch reads them."""
    inplace: Mapping[int, int]
    """For each output slot that is computed in place, the input slot whose array it uses."""


def _prepare_bound(step: Step, arrays: LaunchArrays) -> Action:
    """Create the action of a launch with inputs and outputs at fixed addresses: the engine's bound call."""
    return step.executable.bind([arrays.read[slot] for slot in step.reads], [arrays.fixed[slot] for slot in step.writes])


def _prepare_output_bound(step: Step, arrays: LaunchArrays) -> Action:
    """Create the action of a launch that reads its inputs from the slots and writes its outputs to fixed addresses."""
    call, reads = step.executable.bind_outputs([arrays.fixed[slot] for slot in step.writes]), step.reads
    slots, to_clear = arrays.slots, arrays.to_clear

    def launch() -> None:
        call(*[slots[slot] for slot in reads])
        for slot in to_clear:
            slots[slot] = None

    return launch


def _prepare_plain(step: Step, arrays: LaunchArrays) -> Action:
    """Create the action of a launch that reads and writes the slots. Outputs with a fixed address are also written there."""
    executable, slots, to_clear, reads, writes = step.executable, arrays.slots, arrays.to_clear, step.reads, step.writes
    fixed = {slot: arrays.fixed[slot] for slot in writes if slot in arrays.fixed}
    # (output index, slot of the input that it updates in place)
    updates = tuple((index, arrays.inplace[slot]) for index, slot in enumerate(writes) if slot in arrays.inplace)
    min_bytes = {index: nbytes for index, nbytes in enumerate(executable.output_buffer_threshold()) if nbytes is not None}
    # Arrays at fixed addresses into which the engine computes, by output index.
    buffers = {}
    for index, slot in enumerate(writes):
        if slot in fixed and index in min_bytes and fixed[slot].nbytes >= min_bytes[index]:
            buffers[index] = fixed[slot]
    # (program output, minimum bytes) of the outputs that the engine can compute into a buffer of the caller.
    fillable = [(output_index, min_bytes[index]) for index, output_index in step.returns if index in min_bytes]
    default_options = _make_options(step, DEFAULT_OPTIONS, buffers)

    def fills_buffer(out: Sequence[Any] | None) -> bool:
        """Whether the engine can compute into a buffer of the caller. XRT copies to the other buffers at the end of the call."""
        return out is not None and any(out[i] is not None and out[i].nbytes >= nbytes for i, nbytes in fillable)

    direct, run = executable.fast_call(), executable.run

    def launch() -> None:
        options = slots[OPTIONS_SLOT]
        arguments = [slots[slot] for slot in reads]
        if updates and slots[IN_PLACE_SLOT]:
            # The updated inputs do not overlap other inputs, so outputs may be written to their arrays.
            targets = {index: slots[target] for index, target in updates}
            results = run(arguments, _make_options(step, options or DEFAULT_OPTIONS, buffers, targets))
        elif options is not None and (buffers or fills_buffer(options.out)):
            results = run(arguments, _make_options(step, options, buffers))
        else:
            results = run(arguments, default_options) if buffers else direct(*arguments)
        if len(results) != len(writes):
            raise make_count_error(step, len(results))
        for slot, result in zip(writes, results, strict=True):
            buffer = fixed.get(slot)
            if buffer is None:
                slots[slot] = result
            elif result is not buffer:  # the engine did not compute into the buffer
                fill(buffer, result)
        for slot in to_clear:
            slots[slot] = None

    return launch


def _make_options(
    step: Step, options: RunOptions, buffers: Mapping[int, Array], updates: Mapping[int, Array] = FrozenDict()
) -> RunOptions:
    """Create the options of a launch, with a buffer or None per output.

    The buffer of an output is the input that it updates in place (``updates``, by output index), else the caller's buffer
    (``options.out``), else an array at a fixed address (``buffers``, by output index).
    """
    out: list[Any] = [buffers.get(index) for index in range(len(step.writes))]
    if options.out is not None:
        for index, output_index in step.returns:
            out[index] = options.out[output_index]
    for index, array in updates.items():
        out[index] = array
    return RunOptions(out if any(buffer is not None for buffer in out) else None, options.stream, options.block, options.profile)


def make_count_error(step: Step, count: int) -> RunFailed:
    return RunFailed(
        f"engine {step.launch.engine!r} returned {count} outputs from {step.launch.name}, which has {len(step.writes)}"
    )


OutputCheck: TypeAlias = Callable[[Launch, Sequence[Any], Sequence[Any]], str | None]
"""A function of (launch, inputs, outputs) that returns a problem as a sentence with the launch's name, or None."""


@dataclass(frozen=True, slots=True)
class OutputInspector:
    """A check that runs after each launch of a call. If it reports a problem, the launch fails with RunFailed."""

    check: OutputCheck
    needs_inputs: bool = False
    """True: the check compares values. It runs after every launch, and inputs that the launch may overwrite are copied for it.
    False: the check runs only if the type of a result contradicts the plan."""

    def is_due(self, launch: Launch, results: Sequence[Any]) -> bool:
        return self.needs_inputs or find_type_mismatch(launch, results) is not None


def copy_inputs(step: Step, arguments: Sequence[Any]) -> list[Any]:
    """Return the inputs of a launch; inputs that the engine may overwrite are copied."""
    names = [value.name for value in step.launch.function.inputs]
    written = {names.index(before) for before, _ in step.launch.function.aliases}
    # The engine may compute outputs in the memory of these inputs.
    written.update(source for source, _ in step.executable.inplace_pairs())
    return [x.copy() if i in written and hasattr(x, "dtype") else x for i, x in enumerate(arguments)]


def to_run_failed(launch: Launch, error: Exception) -> Exception:
    """Convert an error of a launch to RunFailed, with the launch's name. Errors of the caller, as InputError, stay unchanged."""
    if isinstance(error, XRTError) and not isinstance(error, EngineError):
        error.updated = None  # unknown, because the launch had begun
        return error
    message = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    if isinstance(error, RunFailed) and (error.region or launch.name in message):
        error.region = error.region or launch.name
        return error
    failed = RunFailed(f"engine {launch.engine!r} failed to run {launch.name}: {message}", launch.name)
    failed.__cause__ = error
    return failed


def find_type_mismatch(launch: Launch, results: Sequence[Any]) -> str | None:
    """Describe the first result of a launch whose type contradicts the plan; None if all types match."""
    for value, result in zip(launch.function.outputs, results, strict=True):
        if not _has_type(result, value.type):
            actual = f"{result.dtype}{list(result.shape)}" if _is_array(result) else type(result).__name__
            if isinstance(result, np.generic):
                actual = f"a numpy.{type(result).__name__}, not an array (use numpy.asarray),"
            return f"engine {launch.engine!r} returned {actual} for output {value.name!r} of {launch.name}, which is {value.type}"
    return None


def _has_type(result: Any, type_: Type | None) -> bool:
    if isinstance(type_, SequenceType):
        return isinstance(result, list)
    if isinstance(type_, MapType):
        return isinstance(result, dict)
    if not isinstance(type_, TensorType):
        return True
    if not _is_array(result) or result.dtype != (object if type_.dtype is DType.STRING else type_.dtype.numpy):
        return False
    dims = result.shape if type_.shape is None else type_.shape
    return len(dims) == result.ndim and all(
        dim == size or not isinstance(dim, int) for dim, size in zip(dims, result.shape, strict=True)
    )


def _is_array(result: Any) -> bool:
    return isinstance(result, np.ndarray) or (hasattr(result, "dtype") and not isinstance(result, np.generic))


def list_inplace_updates(plan: Plan, region: str) -> list[str]:
    """List the model inputs that launches may have overwritten, by the time the launch named ``region`` failed."""
    names = [launch.name for launch in plan.launches]
    started = plan.launches[: names.index(region) + 1]
    input_names = {value.name for value in plan.function.inputs}
    return [before for launch in started for before, _ in launch.function.aliases if before in input_names]


class Program:
    """A compiled Plan. Thread-safe: each concurrent call has its own frame."""

    def __init__(self, plan: Plan, leases: Sequence[Lease], layout: MemoryPlan | None = None) -> None:
        self.plan = plan
        self._leases = tuple(leases)
        self.executables = tuple([lease.executable for lease in leases])
        """The executable of each launch; equal launches share one."""
        self.usage = {id(lease.executable): (lease.nbytes, lease.executable.idle_threads) for lease in leases}
        """(bytes, threads) that are held between calls, by the ``id`` of each executable."""
        self._slots = ValueTable(plan, self.executables)
        self._layout = plan_memory(self._slots) if layout is None else layout
        self._shared_outputs = self._slots.find_shared_outputs()
        self._idle: list[CallFrame] = []  # frames for later calls, because making one takes longer than a small call
        self._recorders: list[Recorder] = []  # empty until a call is profiled or copies an output to an input

    @property
    def arena(self) -> Arena:
        """The layout of the memory for values between regions. It is empty if the engines allocate all these values."""
        return self._layout.arena

    @property
    def updates(self) -> tuple[Update, ...]:
        return self._slots.updates

    @property
    def _recorder(self) -> Recorder:
        """Records launch times and copies. It is created on first use; if several threads create one, all use the first."""
        if not self._recorders:
            from xrt.runtime.profile import Recorder  # few programs are profiled

            launches = tuple((x.name, x.engine, x.device or self.plan.device) for x in self.plan.launches)
            self._recorders.append(Recorder(launches, self.updates))
        return self._recorders[0]

    @cached_property
    def fast_call(self) -> Callable[..., Sequence[Any]] | None:
        """A function from the program's inputs to its outputs, which needs no frame. None if the program needs frames."""
        steps = self._slots.steps
        if len(steps) != 1 or self._slots.aliases or self._shared_outputs:
            return None
        (step,) = steps
        inputs, outputs = tuple(self._slots.inputs), tuple(self._slots.outputs)
        # A frame is needed to read constants, and to return an input.
        if not set(step.reads) <= set(inputs) or not set(outputs) <= set(step.writes):
            return None
        positions = tuple(inputs.index(slot) for slot in step.reads)
        results = tuple(step.writes.index(slot) for slot in outputs)
        return _permute_call(step.executable.fast_call(), positions, len(inputs), results, len(step.writes))

    def run(
        self, inputs: Sequence[Any], options: RunOptions = DEFAULT_OPTIONS, inspection: OutputInspector | None = None
    ) -> list[Any]:
        """Run on checked inputs, in plan order; return the outputs, in plan order.

        Raises RunFailed, with the launch and engine, if an engine fails or the inspection finds a problem.
        """
        if options is DEFAULT_OPTIONS and inspection is None and (results := self._run_directly(inputs)) is not None:
            return results
        if not options.profile:
            return self._run_in_frame(inputs, options, inspection)
        recorder, began = self._recorder, perf_counter()  # creating the recorder is not part of the measured time
        results = self._run_in_frame(inputs, options, inspection)
        recorder.add_call(began, perf_counter())
        return results

    def _run_in_frame(self, inputs: Sequence[Any], options: RunOptions, inspection: OutputInspector | None) -> list[Any]:
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = make_frame(self._slots, self._layout)
        for _, target in self._slots.aliases:
            check_updated(self._slots.names[target], inputs[target])
        # Inputs that share memory are updated by a copy at the end of the call.
        inplace = bool(self._slots.inplace) and not may_overlap(self._slots.inplace.values(), inputs)
        frame.enter(inputs, None if options is DEFAULT_OPTIONS else options, updates=inplace)
        actions: Sequence[Action] = frame.actions
        if options.profile or inspection is not None:
            actions = [self._observe(n, action, frame.slots, options, inspection) for n, action in enumerate(actions)]
        self._run_actions(actions)
        results = self._collect_outputs(frame.slots, inputs, options)
        frame.leave()
        self._idle.append(frame)
        return results

    def _run_directly(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Run the program by `fast_call`; return None if it has none."""
        if len(self._slots.steps) != 1:
            return None
        (step,) = self._slots.steps
        try:
            if (fast_call := self.fast_call) is None:
                return None
            results = list(fast_call(*inputs))
            if len(results) != len(step.writes):
                raise make_count_error(step, len(results))
        except Exception as error:  # noqa: BLE001  # converted by `to_run_failed`
            raise to_run_failed(step.launch, error)  # noqa: B904  # it has its cause
        return results

    def make_timed_call(self, inputs: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """Create a function that runs the program on these host arrays as a module does, for timing.

        On a device the inputs are uploaded beforehand, and the function waits for the results.
        """
        fast_call = self.fast_call
        return (lambda: fast_call(*inputs)) if fast_call is not None else (lambda: self.run(inputs))

    def _run_actions(self, actions: Sequence[Action]) -> None:
        """Run the actions. An error is converted to RunFailed, with the inputs that may be partially updated in ``updated``."""
        action: Action | None = None
        try:
            for action in actions:  # after the loop, `action` is the one that failed
                action()
        except Exception as error:  # noqa: BLE001  # converted by `to_run_failed`
            index = actions.index(action)
            failed = to_run_failed(self.plan.launches[index], error)
            if isinstance(failed, XRTError):
                # Inputs that a launch up to this one updates in place may be partially updated.
                names = [update.input for update in self.updates if not update.reason and (update.step or 0) <= index]
                for step in self._slots.steps[: index + 1]:
                    if step.executable.updates_inputs:
                        names += [before for before, _ in step.launch.function.aliases]
                input_names = {value.name for value in self.plan.function.inputs}
                failed.updated = tuple(dict.fromkeys(name for name in names if name in input_names))
            raise failed  # noqa: B904  # it has its cause

    def _observe(
        self, index: int, action: Action, slots: list[Any], options: RunOptions, inspection: OutputInspector | None
    ) -> Action:
        """Wrap the action of a launch to record its time and inspect its results."""
        step = self._slots.steps[index]

        def observe() -> None:
            arguments = [slots[slot] for slot in step.reads]
            if inspection is not None and inspection.needs_inputs:
                arguments = copy_inputs(step, arguments)
            began = perf_counter()
            action()
            if options.profile:
                self._recorder.add(index, began, perf_counter())
            if inspection is not None:
                results = [slots[slot] for slot in step.writes]
                problem = inspection.check(step.launch, arguments, results) if inspection.is_due(step.launch, results) else None
                if problem is not None:
                    raise RunFailed(problem, step.launch.name)

        return observe

    def _collect_outputs(self, slots: Sequence[Any], inputs: Sequence[Any], options: RunOptions) -> list[Any]:
        """Return the outputs: copied if they share memory, and also written to the inputs and buffers that receive them."""
        results = [slots[slot] for slot in self._slots.outputs]
        if self._shared_outputs:
            self._copy_shared_outputs(results, inputs)
        for index in self._layout.arena_outputs:
            if index not in self._shared_outputs:  # otherwise it was copied above
                results[index] = results[index].copy()
        for alias_index, (source, target) in enumerate(self._slots.aliases):
            if results[source] is not inputs[target]:
                np.copyto(inputs[target], results[source])
                self._recorder.add_update(alias_index, results[source].nbytes)
                results[source] = inputs[target]
        for index, buffer in enumerate(options.out or ()):
            if buffer is not None and (result := results[index]) is not buffer:
                if buffer.shape != result.shape or buffer.dtype != result.dtype:
                    actual, expected = (f"{array.dtype}{list(array.shape)}" for array in (buffer, result))
                    raise InputError(f"out[{index}] is {actual}, but the output is {expected}")
                np.copyto(buffer, result)
                results[index] = buffer
        return results

    def _copy_shared_outputs(self, results: list[Any], inputs: Sequence[Any]) -> None:
        """Replace each output that shares memory with an input, a constant or an earlier output by a copy.

        An output is copied if it is one of these arrays, or a view. An output that was computed in its input stays that input.
        """
        updates = dict(self._slots.aliases)  # output index: index of the input that it updates
        used_ids = {id(x) for x in inputs} | {id(x) for x in self._slots.constants.values()}
        for index, result in enumerate(results):
            is_updated_input = index in updates and result is inputs[updates[index]]
            if isinstance(result, np.ndarray):
                owns_data = result.flags.owndata
            else:  # a device array that is a view has a `base`; a list may have arrays of an input
                owns_data = hasattr(result, "dtype") and getattr(result, "base", None) is None
            if index in self._shared_outputs and not is_updated_input and (id(result) in used_ids or not owns_data):
                results[index] = copy_values(result)
            used_ids.add(id(results[index]))

    # ------------------------------------------------------------------ bound calls

    def bind(
        self, inputs: Sequence[Any], buffers: Sequence[Any], types: Mapping[str, Type | None] | None = None
    ) -> Callable[[], None]:
        """Create a function that runs the program on fixed inputs and writes to fixed output buffers.

        All arrays must be C-contiguous and have the types of the plan. ``types`` has more precise types of values, by name. Do
        not run the function in two threads at once, because it has one frame.
        """
        slots = self._slots
        arrays = self._place_bound(inputs, buffers)
        refined_types = {i: types[name] for i, name in enumerate(slots.names) if name in types} if types else None
        frame = make_frame(slots, plan_memory(slots, arrays, refined_types), arrays)
        copies = [(buffer, slot) for slot, buffer in zip(slots.outputs, buffers, strict=True) if arrays.get(slot) is not buffer]
        updates = []  # (index of the alias, updated input, array with its new value)
        for alias_index, (source, target) in enumerate(slots.aliases):
            slot = slots.outputs[source]
            value = arrays.get(slot)
            # A constant is not in `arrays`, and `copies` writes it only to its buffer, which may be the input.
            if value is None and buffers[source] is not inputs[target]:
                value = slots.constants.get(slot)
            # A value that is the input is computed in place.
            if value is not None and value is not inputs[target]:
                updates.append((alias_index, inputs[target], value))

        if len(frame.actions) == 1 and not copies and not updates:
            (action,) = frame.actions

            def call_alone() -> None:  # inlined, because each line adds to the time of a bound call
                try:
                    action()
                except Exception as error:  # noqa: BLE001  # as in `_run_actions`
                    # The reference to `self` keeps the program, and with it the executables, alive.
                    raise to_run_failed(self.plan.launches[0], error)  # noqa: B904

            return call_alone

        def call() -> None:
            self._run_actions(frame.actions)
            for buffer, slot in copies:
                fill(buffer, frame.slots[slot])
            for alias_index, target, value in updates:
                np.copyto(target, value)
                self._recorder.add_update(alias_index, value.nbytes)

        return call

    def _place_bound(self, inputs: Sequence[Any], buffers: Sequence[Any]) -> dict[int, Any]:
        """Map slots to the arrays of a bound call: the caller's inputs and buffers, and temporary arrays for some outputs."""
        slots = self._slots
        arrays = dict(zip(slots.inputs, inputs, strict=True))
        if slots.inplace and not may_overlap(slots.inplace.values(), inputs):
            arrays.update((source, inputs[target]) for source, target in slots.inplace.items())
        updated_inputs = {slots.outputs[source]: inputs[target] for source, target in slots.aliases}
        for slot, buffer in zip(slots.outputs, buffers, strict=True):
            if slot not in arrays and slot not in slots.constants:
                # If the buffer is the updated input, other steps may still read it: compute into a temporary array.
                arrays[slot] = np.empty_like(buffer) if buffer is updated_inputs.get(slot) else buffer
        return arrays

    def allocate_output(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        return np.empty(shape, dtype)

    def profile(self) -> Profile:
        return self._recorder.read()

    @property
    def graph_remark(self) -> str:
        """Describe the device graph of the calls, such as a CUDA graph; empty on the CPU."""
        return ""

    def close(self) -> None:
        """Release all executables, even if one of them fails to close. The program cannot run afterwards."""
        self._idle.clear()
        call_all(lease.release for lease in self._leases)

    def close_in_background(self) -> None:
        """Release the executables in a background thread once the program is garbage-collected. A running call keeps it alive."""
        close_when_collected(self, partial(call_all, [lease.release for lease in self._leases]))


def _permute_call(
    call: Callable[..., Sequence[Any]], positions: tuple[int, ...], input_count: int, results: tuple[int, ...], output_count: int
) -> Callable[..., Sequence[Any]]:
    """Wrap the fast call of a program's only region, so that it takes the program's inputs and returns the program's outputs.

    ``positions`` has the index of the program input for each region input, ``results`` the index of the region output for each
    program output. ``input_count`` is the number of program inputs, ``output_count`` the number of region outputs.
    """
    keeps_outputs = results == tuple(range(output_count))
    if keeps_outputs and positions == tuple(range(input_count)):
        return call
    if keeps_outputs:
        return lambda *inputs: call(*[inputs[index] for index in positions])

    def run(*inputs: Any) -> Sequence[Any]:
        outputs = call(*[inputs[index] for index in positions])
        return [outputs[index] for index in results]

    return run
