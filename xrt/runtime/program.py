"""Program: the compiled form of a Plan, a straight line of launches over the value slots of a call's frame.

Each running call owns a frame, so a launch can be a closure over the slots. All buffers are chosen when the frame is made, and a
call is a plain sequence of actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.cache.memory import call_all, close_with
from xrt.engines import Executable, RunOptions
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
DEFAULT = RunOptions()
OPTIONS, UPDATES = -1, -2
"""The last two slots of a frame: the RunOptions of the call, None for defaults, and whether inputs may be updated in place."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """The state of one running call. Later calls reuse it; concurrent calls never share it."""

    slots: list[Any]
    actions: tuple[Action, ...]
    entering: tuple[tuple[Array, int], ...]
    """Pairs of an arena buffer and the slot of the input to copy into it at the start of a call."""
    initial: tuple[Any, ...]
    """Contents of the slots between calls: constants and arena buffers."""

    def enter(self, inputs: Sequence[Any], options: RunOptions | None, *, updates: bool = False) -> None:
        """Store the inputs and options of a call in the slots; `updates` permits updating inputs in place."""
        slots = self.slots
        slots[: len(inputs)] = inputs
        slots[OPTIONS], slots[UPDATES] = options, updates
        for buffer, slot in self.entering:
            np.copyto(buffer, slots[slot])

    def leave(self) -> None:
        """Reset the slots, which releases the values of the call."""
        self.slots[:] = self.initial


def make_frame(slots: ValueTable, layout: MemoryPlan, caller_arrays: Mapping[int, Any] | None = None) -> CallFrame:
    """Create a frame with a new arena block. For a bound call, ``caller_arrays`` has the caller's arrays by slot."""
    views, frees_by_step = layout.arena.views(), slots.last_uses()
    initial: list[Any] = [None] * (len(slots.names) + 2)
    fixed = {slot: views[name] for slot, name in layout.places.items()} | dict(caller_arrays or {})
    for slot, array in {**slots.constants, **fixed}.items():
        initial[slot] = array
    table = list(initial)
    entering = tuple((views[name], slot) for slot, name in layout.entering)
    read = {**slots.constants, **fixed, **{slot: buffer for buffer, slot in entering}}
    prepare_functions = {**dict.fromkeys(layout.aimed, _prepare_aimed), **dict.fromkeys(layout.bound, _prepare_bound)}
    # A bound call has its in-place updates in `caller_arrays` already.
    inplace = {} if caller_arrays else slots.inplace
    actions = []
    for index, (step, frees) in enumerate(zip(slots.steps, frees_by_step, strict=True)):
        arrays = LaunchArrays(table, read, fixed, tuple(slot for slot in frees if slot not in fixed), inplace)
        try:
            actions.append(prepare_functions.get(index, _prepare_plain)(step, arrays))
        except Exception as error:  # noqa: BLE001  # a failing bind counts as a failed run
            raise to_run_failed(step.launch, error)  # noqa: B904
    return CallFrame(table, tuple(actions), entering, tuple(initial))


@dataclass(frozen=True, slots=True)
class LaunchArrays:
    """Where a launch reads its inputs and writes its outputs: the slots of its frame, and arrays with fixed addresses."""

    slots: list[Any]
    read: Mapping[int, Any]
    """Arrays that launches read at a fixed address."""
    fixed: Mapping[int, Any]
    """Arrays that launches write at a fixed address."""
    to_clear: tuple[int, ...]
    """Slots that no later launch reads, without those of `fixed`."""
    inplace: Mapping[int, int]
    """For each output slot that is computed in place, the input slot whose array it uses."""


def _prepare_bound(step: Step, arrays: LaunchArrays) -> Action:
    """Create the action of a launch with inputs and outputs at fixed addresses, which is the engine's bound call."""
    return step.executable.bind([arrays.read[slot] for slot in step.reads], [arrays.fixed[slot] for slot in step.writes])


def _prepare_aimed(step: Step, arrays: LaunchArrays) -> Action:
    """Create the action of a launch that reads its inputs from the slots and writes its outputs at fixed addresses."""
    call, reads = step.executable.bind_outputs([arrays.fixed[slot] for slot in step.writes]), step.reads
    slots, to_clear = arrays.slots, arrays.to_clear

    def launch() -> None:
        call(*[slots[slot] for slot in reads])
        for slot in to_clear:
            slots[slot] = None

    return launch


def _prepare_plain(step: Step, arrays: LaunchArrays) -> Action:
    """Create the action of a launch that reads the slots. An output with a fixed address is computed there or copied there."""
    executable, slots, to_clear, reads, writes = step.executable, arrays.slots, arrays.to_clear, step.reads, step.writes
    fixed = {slot: arrays.fixed[slot] for slot in writes if slot in arrays.fixed}
    updates = tuple((index, arrays.inplace[slot]) for index, slot in enumerate(writes) if slot in arrays.inplace)
    min_bytes = {index: nbytes for index, nbytes in enumerate(executable.output_buffer_threshold()) if nbytes is not None}
    # Buffers that the engine computes into: at fixed addresses, and in a call with options also the caller's.
    buffers = {
        i: fixed[slot] for i, slot in enumerate(writes) if slot in fixed and i in min_bytes and fixed[slot].nbytes >= min_bytes[i]
    }
    fillable = [(output_index, min_bytes[index]) for index, output_index in step.returns if index in min_bytes]
    default_options = _make_options(step, DEFAULT, buffers)

    def fills_buffer(out: Sequence[Any] | None) -> bool:
        """Whether the engine can compute into one of the caller's buffers; XRT copies to all others at the end of the call."""
        return out is not None and any(out[i] is not None and out[i].nbytes >= least for i, least in fillable)

    direct, run = executable.fast_call(), executable.run

    def launch() -> None:
        options = slots[OPTIONS]
        arguments = [slots[slot] for slot in reads]
        if updates and slots[UPDATES]:
            # The inputs of this call do not overlap, so outputs may be written to their arrays.
            targets = {index: slots[target] for index, target in updates}
            results = run(arguments, _make_options(step, options or DEFAULT, buffers, targets))
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
            # The engine did not use the buffer.
            elif result is not buffer:
                fill(buffer, result)
        for slot in to_clear:
            slots[slot] = None

    return launch


def _make_options(
    step: Step, options: RunOptions, buffers: Mapping[int, Array], updates: Mapping[int, Array] = FrozenDict()
) -> RunOptions:
    """Create the options of one launch, with a buffer or None per output.

    For each output, an input to update in place (``updates``) has priority over the caller's buffer (``options.out``), and this
    over a buffer at a fixed address (``buffers``). Both mappings are by output index.
    """
    out: list[Any] = [buffers.get(index) for index in range(len(step.writes))]
    if options.out is not None:
        for index, output_index in step.returns:
            out[index] = options.out[output_index]
    for index, array in updates.items():
        out[index] = array
    return RunOptions(out if any(buffer is not None for buffer in out) else None, options.stream, options.block, options.profile)


def make_count_error(step: Step, count: int) -> RunFailed:
    """Create the error for an engine that returned ``count`` outputs, which is the wrong number."""
    return RunFailed(
        f"engine {step.launch.engine!r} returned {count} outputs from {step.launch.name}, which has {len(step.writes)}"
    )


OutputCheck: TypeAlias = Callable[[Launch, Sequence[Any], Sequence[Any]], str | None]
"""Checks (launch, inputs, outputs): returns the problem as a sentence that names the launch, or None if there is none."""


@dataclass(frozen=True, slots=True)
class OutputInspector:
    """A check that runs after each launch of a call. If it reports a problem, the launch fails with RunFailed."""

    check: OutputCheck
    needs_inputs: bool = False
    """Whether the check compares values, so it runs after every launch, with copies of inputs that the launch may overwrite.
    Otherwise it runs only for results whose type contradicts the plan."""

    def is_due(self, launch: Launch, results: Sequence[Any]) -> bool:
        """Whether to run the check for these results of a launch."""
        return self.needs_inputs or find_type_mismatch(launch, results) is not None


def copy_inputs(step: Step, arguments: Sequence[Any]) -> list[Any]:
    """Return the inputs of a launch, with copies in place of those that the engine may overwrite."""
    names = [value.name for value in step.launch.function.inputs]
    written = {names.index(before) for before, _ in step.launch.function.aliases}
    # The engine may reuse the memory of these inputs.
    written.update(source for source, _ in step.executable.inplace_pairs())
    return [x.copy() if i in written and hasattr(x, "dtype") else x for i, x in enumerate(arguments)]


def to_run_failed(launch: Launch, error: Exception) -> Exception:
    """Convert an error of a launch to RunFailed, with the launch's name and the cause.

    User errors, such as an InputError, are returned unchanged.
    """
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
    """Describe the first result whose type contradicts the plan; return None if all types match."""
    for value, result in zip(launch.function.outputs, results, strict=True):
        if not _has_type(result, value.type):
            actual = f"{result.dtype}{list(result.shape)}" if _is_array(result) else type(result).__name__
            if isinstance(result, np.generic):
                actual = f"a numpy.{type(result).__name__}, not an array (use numpy.asarray),"
            return f"engine {launch.engine!r} returned {actual} for output {value.name!r} of {launch.name}, which is {value.type}"
    return None


def _has_type(result: Any, type_: Type | None) -> bool:
    if isinstance(type_, SequenceType | MapType):
        return isinstance(result, list if isinstance(type_, SequenceType) else dict)
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
    """List the model inputs that launches may have overwritten when ``region``, a launch of the plan, failed."""
    names = [launch.name for launch in plan.launches]
    started = plan.launches[: names.index(region) + 1]
    input_names = {value.name for value in plan.function.inputs}
    return [before for launch in started for before, _ in launch.function.aliases if before in input_names]


class Program:
    """A compiled Plan. Thread-safe: each concurrent call has its own frame."""

    def __init__(self, plan: Plan, leases: Sequence[Lease], layout: MemoryPlan | None = None) -> None:
        self.plan = plan
        self._leases = tuple(leases)
        self._slots = ValueTable(plan, [lease.executable for lease in leases])
        self._layout = plan_memory(self._slots) if layout is None else layout
        self._suspects = self._slots.maybe_aliased()
        self._arena_outputs = tuple(i for i, slot in enumerate(self._slots.outputs) if slot in self._layout.places)
        self._idle: list[CallFrame] = []  # one per concurrent call; kept, because making one takes longer than a small call
        self._recorders: list[Recorder] = []  # empty until the first call that is profiled or copies an update

    # ------------------------------------------------------------------ memory

    @property
    def executables(self) -> tuple[Executable, ...]:
        """The executable of each launch; equal launches share one."""
        return tuple(lease.executable for lease in self._leases)

    @property
    def arena(self) -> Arena:
        """The layout of the memory for values between regions. It is empty if no engine can write there or no size is known."""
        return self._layout.arena

    @property
    def updates(self) -> tuple[Update, ...]:
        """The inputs that a call updates. An Update has a reason if the input is updated by a copy."""
        return self._slots.updates

    # ------------------------------------------------------------------ calls

    @property
    def _recorder(self) -> Recorder:
        """Records launch times and copies of updates. Created on first use; if threads create several, all use the first."""
        if not self._recorders:
            from xrt.runtime.profile import Recorder  # few programs are profiled

            launches = tuple((x.name, x.engine, x.device or self.plan.device) for x in self.plan.launches)
            self._recorders.append(Recorder(launches, self.updates))
        return self._recorders[0]

    @cached_property
    def fast_call(self) -> Callable[..., Sequence[Any]] | None:
        """A function from the program's inputs to its outputs. None unless the program is a single region without aliases."""
        steps = self._slots.steps
        if len(steps) != 1 or self._slots.aliases or self._suspects:
            return None
        (step,) = steps
        inputs, outputs = tuple(self._slots.inputs), tuple(self._slots.outputs)
        # A region that reads constants, or an output that is an input, needs a frame.
        if not set(step.reads) <= set(inputs) or not set(outputs) <= set(step.writes):
            return None
        positions, results = (tuple(map(order.index, slots)) for order, slots in ((inputs, step.reads), (step.writes, outputs)))
        return _permute_call(step.executable.fast_call(), positions, len(inputs), results, len(step.writes))

    def run(self, inputs: Sequence[Any], options: RunOptions = DEFAULT, inspection: OutputInspector | None = None) -> list[Any]:
        """Run on checked inputs in plan order; return the outputs in plan order.

        Raises RunFailed, with the launch and engine, if an engine fails or the inspection rejects a result.
        """
        if options is DEFAULT and inspection is None and (results := self._run_directly(inputs)) is not None:
            return results
        if not options.profile:
            return self._run_in_frame(inputs, options, inspection)
        recorder, began = self._recorder, perf_counter()  # in this order: the first call does not measure its import
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
        # Overlapping inputs are updated by a copy at the end of the call.
        inplace = bool(self._slots.inplace) and not may_overlap(self._slots.inplace.values(), inputs)
        frame.enter(inputs, None if options is DEFAULT else options, updates=inplace)
        actions: Sequence[Action] = frame.actions
        if options.profile or inspection is not None:
            actions = [self._observe(n, action, frame.slots, options, inspection) for n, action in enumerate(actions)]
        self._run_actions(actions)
        results = self._collect_outputs(frame.slots, inputs, options)
        frame.leave()
        self._idle.append(frame)
        return results

    def _run_directly(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Run the program by `fast_call`, without a frame; return None if it has no fast call."""
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
            for action in actions:  # the error below names the last launch
                action()
        except Exception as error:  # noqa: BLE001  # converted by `to_run_failed`
            index = actions.index(action)
            failed = to_run_failed(self.plan.launches[index], error)
            if isinstance(failed, XRTError):  # these inputs may be updated in part
                begun = (step for step in self._slots.steps[: index + 1] if step.executable.updates_inputs)
                names = [update.input for update in self.updates if not update.reason and (update.step or 0) <= index]
                names += [before for step in begun for before, _ in step.launch.function.aliases]
                input_names = {value.name for value in self.plan.function.inputs}
                failed.updated = tuple(dict.fromkeys(name for name in names if name in input_names))
            raise failed  # noqa: B904  # it has its cause

    def _observe(
        self, index: int, action: Action, slots: list[Any], options: RunOptions, inspection: OutputInspector | None
    ) -> Action:
        """Wrap the action of a launch, so that its time is recorded and its results are inspected."""
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
        """Return the outputs. Copy those that share memory, update aliased inputs, and fill the caller's ``options.out``."""
        results = [slots[slot] for slot in self._slots.outputs]
        if self._suspects:
            self._unshare(results, inputs)
        for index in self._arena_outputs:
            if index not in self._suspects:  # suspects are copies already
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

    def _unshare(self, results: list[Any], inputs: Sequence[Any]) -> None:
        """Copy each output that may share memory with an input, a constant or another output."""
        updates = dict(self._slots.aliases)
        used_ids = {id(x) for x in inputs} | {id(x) for x in self._slots.constants.values()}
        for index, result in enumerate(results):
            updated = index in updates and result is inputs[updates[index]]
            # An array of a device that is a view has a base.
            is_array, on_host = hasattr(result, "dtype"), isinstance(result, np.ndarray)
            owns_data = result.flags.owndata if on_host else is_array and getattr(result, "base", None) is None
            if index in self._suspects and not updated and (id(result) in used_ids or not owns_data):
                results[index] = copy_values(result)
            used_ids.add(id(results[index]))

    # ------------------------------------------------------------------ bound calls

    def bind(
        self, inputs: Sequence[Any], buffers: Sequence[Any], types: Mapping[str, Type | None] | None = None
    ) -> Callable[[], None]:
        """Create a function that runs the program on fixed inputs and writes to fixed output buffers.

        The caller has checked that all are C-contiguous arrays of matching types. ``types`` refines the types of inner values,
        by name. The function has one block of intermediate memory, so it must not run concurrently.
        """
        slots = self._slots
        arrays = self._place_bound(inputs, buffers)
        refined_types = {i: types[name] for i, name in enumerate(slots.names) if name in types} if types else None
        frame = make_frame(slots, plan_memory(slots, arrays, refined_types), arrays)
        copies = [(buffer, slot) for slot, buffer in zip(slots.outputs, buffers, strict=True) if arrays.get(slot) is not buffer]
        aliases = enumerate(slots.aliases)
        updates = [(i, inputs[to], arrays[slot]) for i, (source, to) in aliases if (slot := slots.outputs[source]) in arrays]
        # Computed in place: nothing to copy.
        updates = [(alias_index, target, value) for alias_index, target, value in updates if target is not value]

        if len(frame.actions) == 1 and not copies and not updates:
            (action,) = frame.actions

            def call_alone() -> None:  # inlined, because each line adds to the time of a bound call
                try:
                    action()
                except Exception as error:  # noqa: BLE001  # as in `_run_actions`
                    # The reference to `self` keeps the program alive: when it is collected, its executables are released.
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
        """Map slots to the arrays of a bound call: the caller's inputs and buffers, and a temporary for some updated inputs."""
        slots = self._slots
        arrays = dict(zip(slots.inputs, inputs, strict=True))
        if slots.inplace and not may_overlap(slots.inplace.values(), inputs):
            arrays.update((source, inputs[target]) for source, target in slots.inplace.items())  # in the array of the input
        updated_inputs = {slots.outputs[source]: inputs[target] for source, target in slots.aliases}
        for slot, buffer in zip(slots.outputs, buffers, strict=True):
            if slot not in arrays and slot not in slots.constants:
                # If the buffer is the updated input itself, which other steps may still read, compute into a temporary.
                arrays[slot] = np.empty_like(buffer) if buffer is updated_inputs.get(slot) else buffer
        return arrays

    def buffer(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """Allocate an uninitialized array on the device where outputs are returned."""
        return np.empty(shape, dtype)

    # ------------------------------------------------------------------ the rest

    def profile(self) -> Profile:
        """Times of the profiled calls."""
        return self._recorder.read()

    @property
    def graph_remark(self) -> str:
        """Describe the device graph of the calls; empty, because the CPU has none."""
        return ""

    def close(self) -> None:
        """Release all executables, even if closing one of them fails; the program cannot run afterwards."""
        self._idle.clear()
        call_all(lease.release for lease in self._leases)

    def close_in_background(self) -> None:
        """Release the executables in a background thread once the program is garbage-collected, after calls in progress."""
        close_with(self, partial(call_all, [lease.release for lease in self._leases]))


def _permute_call(
    call: Callable[..., Sequence[Any]], positions: tuple[int, ...], input_count: int, results: tuple[int, ...], output_count: int
) -> Callable[..., Sequence[Any]]:
    """Wrap the fast call of a program's only region: it then accepts the program's inputs and returns the program's outputs.

    ``positions`` has the index of the program input for each region input, ``results`` the index of the region output for each
    program output. ``input_count`` is the number of program inputs, ``output_count`` the number of region outputs.
    """
    if results == tuple(range(output_count)):
        return call if positions == tuple(range(input_count)) else lambda *inputs: call(*[inputs[index] for index in positions])

    def run(*inputs: Any) -> Sequence[Any]:
        outputs = call(*[inputs[index] for index in positions])
        return [outputs[index] for index in results]

    return run
