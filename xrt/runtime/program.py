"""Program: the compiled form of a Plan, a straight line of launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.cache.memory import close_with
from xrt.engines import Executable, RunOptions
from xrt.engines.contract.graph_compiler import fill
from xrt.errors import InputError, RunFailed, XRTError
from xrt.runtime.call_frame import Action, CallFrame, OutputInspector, copy_inputs, make_count_error, make_frame, to_run_failed
from xrt.runtime.inputs import check_updated, copy_values
from xrt.runtime.memory_plan import MemoryPlan, ValueTable, may_overlap, plan_memory

if TYPE_CHECKING:
    from xrt.cache import Lease
    from xrt.graph import Type
    from xrt.partition import Plan
    from xrt.runtime.memory_plan import Arena, Update
    from xrt.runtime.profile import Profile

DEFAULT = RunOptions()


class Program:
    """A compiled Plan. Thread-safe: each concurrent call has its own frame."""

    def __init__(self, plan: Plan, leases: Sequence[Lease], layout: MemoryPlan | None = None) -> None:
        from xrt.runtime.profile import Recorder

        self.plan = plan
        self._leases = tuple(leases)
        self._slots = ValueTable(plan, [lease.executable for lease in leases])
        self._layout = plan_memory(self._slots) if layout is None else layout
        self._suspects = self._slots.maybe_aliased()
        self._arena_outputs = tuple(i for i, slot in enumerate(self._slots.outputs) if slot in self._layout.places)
        self._idle: list[CallFrame] = []  # one per concurrent call; kept, because making one takes longer than a small call
        self._recorder = Recorder(tuple((x.name, x.engine, x.device or plan.device) for x in plan.launches), self.updates)

    # ------------------------------------------------------------------ memory

    @property
    def executables(self) -> tuple[Executable, ...]:
        """The executable of each launch; equal launches share one."""
        return tuple(lease.executable for lease in self._leases)

    @property
    def arena(self) -> Arena:
        """Places of values that cross regions; empty if no engine writes to given memory or sizes are unknown."""
        return self._layout.arena

    @property
    def arena_bytes(self) -> int:
        """Bytes of one arena block; each concurrent call has its own."""
        return self.arena.nbytes

    @property
    def updates(self) -> tuple[Update, ...]:
        """The inputs that a call updates, each with whether that is in place."""
        return self._slots.updates

    # ------------------------------------------------------------------ calls

    @cached_property
    def fast_call(self) -> Callable[..., Sequence[Any]] | None:
        """The executable's fast call if the program is a single region without aliases; else None."""
        steps = self._slots.steps
        if len(steps) != 1 or self._slots.aliases or self._suspects:
            return None
        (step,) = steps
        inputs, outputs = tuple(self._slots.inputs), tuple(self._slots.outputs)
        # Constants, and outputs that are inputs, need a frame.
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
        began = perf_counter()
        results = self._run_in_frame(inputs, options, inspection)
        self._recorder.add_call(began, perf_counter())
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
        """Run a program of one region by the engine's fastest function, without a frame; None if not possible."""
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
        """The call to time, on these host arrays, as a module runs it.

        On a device the inputs are uploaded beforehand, and the call waits for its results.
        """
        fast_call = self.fast_call
        return (lambda: fast_call(*inputs)) if fast_call is not None else (lambda: self.run(inputs))

    def _run_actions(self, actions: Sequence[Action]) -> None:
        action: Action | None = None
        try:
            for action in actions:  # the error below names the last launch
                action()
        except Exception as error:  # noqa: BLE001  # converted by `to_run_failed`
            number = actions.index(action)
            failed = to_run_failed(self.plan.launches[number], error)
            if isinstance(failed, XRTError):  # these inputs may be updated in part
                begun = (step for step in self._slots.steps[: number + 1] if step.executable.updates_inputs)
                names = [update.input for update in self.updates if not update.reason and (update.step or 0) <= number]
                names += [before for step in begun for before, _ in step.launch.function.aliases]
                input_names = {value.name for value in self.plan.function.inputs}
                failed.updated = tuple(dict.fromkeys(name for name in names if name in input_names))
            raise failed  # noqa: B904  # it has its cause

    def _observe(
        self, number: int, action: Action, slots: list[Any], options: RunOptions, inspection: OutputInspector | None
    ) -> Action:
        step = self._slots.steps[number]

        def observe() -> None:
            arguments = [slots[slot] for slot in step.reads]
            if inspection is not None and inspection.needs_inputs:
                arguments = copy_inputs(step, arguments)
            began = perf_counter()
            action()
            if options.profile:
                self._recorder.add(number, began, perf_counter())
            if inspection is not None:
                wrong = inspection.find(step.launch, arguments, [slots[slot] for slot in step.writes])
                if wrong is not None:
                    raise RunFailed(wrong, step.launch.name)

        return observe

    def _collect_outputs(self, slots: Sequence[Any], inputs: Sequence[Any], options: RunOptions) -> list[Any]:
        results = [slots[slot] for slot in self._slots.outputs]
        if self._suspects:
            self._unshare(results, inputs)
        for index in self._arena_outputs:
            if index not in self._suspects:  # suspects are copies already
                results[index] = results[index].copy()
        for number, (source, target) in enumerate(self._slots.aliases):
            if results[source] is not inputs[target]:
                np.copyto(inputs[target], results[source])
                self._recorder.add_update(number, results[source].nbytes)
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
        for index in range(len(results)):
            result = results[index]
            updated = index in updates and result is inputs[updates[index]]
            owns_data = isinstance(result, np.ndarray) and result.flags.owndata
            if index in self._suspects and not updated and (id(result) in used_ids or not owns_data):
                result = results[index] = copy_values(result)
            used_ids.add(id(result))

    # ------------------------------------------------------------------ bound calls

    def bind(
        self, inputs: Sequence[Any], buffers: Sequence[Any], types: Mapping[str, Type | None] | None = None
    ) -> Callable[[], None]:
        """A call with fixed inputs and output buffers, which are read and written on each call.

        All are C-contiguous arrays of matching types, checked by the caller; ``types`` may refine types of inner values. The
        call owns its intermediate memory, so it must not run concurrently.
        """
        slots = self._slots
        arrays = self._place_bound(inputs, buffers)
        known_types = {i: types[name] for i, name in enumerate(slots.names) if name in types} if types else None
        frame = make_frame(slots, plan_memory(slots, arrays, known_types), arrays)
        copies = [(buffer, slot) for slot, buffer in zip(slots.outputs, buffers, strict=True) if arrays.get(slot) is not buffer]
        aliases = enumerate(slots.aliases)
        updates = [(n, inputs[to], arrays[slot]) for n, (source, to) in aliases if (slot := slots.outputs[source]) in arrays]
        # Computed in place: nothing to copy.
        updates = [(number, target, value) for number, target, value in updates if target is not value]

        if len(frame.actions) == 1 and not copies and not updates:
            (action,) = frame.actions

            def call_alone() -> None:  # inlined, because each line adds to the time of a bound call
                try:
                    action()
                except Exception as error:  # noqa: BLE001  # as in `_run_actions`
                    # `self` keeps the program alive: once it is collected, its executables are released.
                    raise to_run_failed(self.plan.launches[0], error)  # noqa: B904

            return call_alone

        def call() -> None:
            self._run_actions(frame.actions)
            for buffer, slot in copies:
                fill(buffer, frame.slots[slot])
            for number, target, value in updates:
                np.copyto(target, value)
                self._recorder.add_update(number, value.nbytes)

        return call

    def _place_bound(self, inputs: Sequence[Any], buffers: Sequence[Any]) -> dict[int, Any]:
        """The caller's arrays by slot in a bound call."""
        slots = self._slots
        arrays = dict(zip(slots.inputs, inputs, strict=True))
        if slots.inplace and not may_overlap(slots.inplace.values(), inputs):
            arrays.update((source, inputs[target]) for source, target in slots.inplace.items())
        targets = {slots.outputs[source]: inputs[target] for source, target in slots.aliases}
        for slot, buffer in zip(slots.outputs, buffers, strict=True):
            if slot not in arrays and slot not in slots.constants:
                # If the buffer is the updated input itself, which other steps may still read, compute into a temporary.
                arrays[slot] = np.empty_like(buffer) if buffer is targets.get(slot) else buffer
        return arrays

    def buffer(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """An uninitialized array in the memory where outputs are returned."""
        return np.empty(shape, dtype)

    # ------------------------------------------------------------------ the rest

    def profile(self) -> Profile:
        """Times of the profiled calls."""
        return self._recorder.read()

    @property
    def graph_remark(self) -> str:
        """Outcome of a requested device graph; empty, since the CPU has none."""
        return ""

    def close(self) -> None:
        """Release the executables; the program cannot run afterwards."""
        self._idle.clear()
        _release(self._leases)

    def close_in_background(self) -> None:
        """Release the executables in a background thread once the program is garbage-collected, after calls in progress."""
        close_with(self, partial(_release, self._leases))


def _release(leases: Sequence[Lease]) -> None:
    for lease in leases:
        lease.release()


def _permute_call(
    call: Callable[..., Sequence[Any]], positions: tuple[int, ...], takes: int, results: tuple[int, ...], returns: int
) -> Callable[..., Sequence[Any]]:
    """Permute the inputs and outputs of the program to those of its only region.

    ``positions`` and ``results`` index the inputs that it reads and the outputs that are returned.
    """
    if results == tuple(range(returns)):
        return call if positions == tuple(range(takes)) else lambda *inputs: call(*[inputs[place] for place in positions])

    def run(*inputs: Any) -> Sequence[Any]:
        outputs = call(*[inputs[place] for place in positions])
        return [outputs[place] for place in results]

    return run
