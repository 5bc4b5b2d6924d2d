"""A Program: the straight line of launches that a compiled Plan is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from xrt.cache import Lease
from xrt.engines import Executable, RunOptions
from xrt.errors import InputError, RunFailed, XRTError
from xrt.partition import Launch, Plan
from xrt.runtime.profile import Profile, Recorder

__all__ = ["Program", "run_failed"]

DEFAULT = RunOptions()


@dataclass(frozen=True, slots=True)
class Step:
    """One launch over the slots of a frame."""

    launch: Launch
    run: Callable[..., Sequence[Any]]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    """Slots whose value nobody reads after this step."""
    returns: tuple[tuple[int, int], ...]
    """(output of the launch, output of the program) pairs: where a caller's buffer may be handed down."""


class Program:
    """A Plan whose launches have been compiled. Runs from several threads at once; holds no state of a call."""

    def __init__(self, plan: Plan, leases: Sequence[Lease]) -> None:
        self.plan = plan
        self._leases = tuple(leases)
        slots = _Slots(plan)
        self._template = slots.template
        self._steps = tuple(slots.step(launch, lease.executable) for launch, lease in zip(plan.launches, leases, strict=True))
        self._steps = tuple(replace(s, frees=f) for s, f in zip(self._steps, slots.frees(self._steps), strict=True))
        self._outputs = slots.outputs
        self._aliases = slots.aliases
        self._suspects = slots.suspects(self._steps, [lease.executable for lease in leases])
        self._recorder = Recorder(tuple((launch.name, launch.engine) for launch in plan.launches))

    @property
    def direct(self) -> Callable[..., Sequence[Any]] | None:
        """The one executable's own `run`, when calling it is all there is to a run of the program; else None."""
        if len(self._steps) != 1 or self._aliases or self._suspects:
            return None
        step, count = self._steps[0], len(self.plan.function.inputs)
        whole = step.reads == tuple(range(count)) and step.writes == self._outputs
        return step.run if whole else None

    def run(self, inputs: Sequence[Any], options: RunOptions = DEFAULT) -> list[Any]:
        """Return the outputs, in the plan's order, from the inputs, in the plan's order (checked by the caller).

        Raises RunFailed naming the launch and engine when an engine's library fails; what was computed is given up.
        """
        frame = self._template.copy()
        frame[: len(inputs)] = inputs
        for index, step in enumerate(self._steps):
            began = perf_counter() if options.profile else 0.0
            self._launch(step, frame, options)
            if options.profile:
                self._recorder.add(index, perf_counter() - began)
        return self._finish(frame, inputs, options)

    @staticmethod
    def _launch(step: Step, frame: list[Any], options: RunOptions) -> None:
        try:
            results = step.run([frame[slot] for slot in step.reads], _for_launch(step, options))
        except XRTError:
            raise
        except Exception as error:
            raise run_failed(step.launch, error) from error
        if len(results) != len(step.writes):
            raise RunFailed(
                f"engine {step.launch.engine!r} returned {len(results)} outputs from {step.launch.name}, "
                f"which has {len(step.writes)}"
            )
        for slot, result in zip(step.writes, results, strict=True):
            frame[slot] = result
        for slot in step.frees:
            frame[slot] = None

    def _finish(self, frame: list[Any], inputs: Sequence[Any], options: RunOptions) -> list[Any]:
        results = [frame[slot] for slot in self._outputs]
        if self._suspects:
            self._unshare(results, inputs)
        for source, target in self._aliases:
            if results[source] is not inputs[target]:
                np.copyto(inputs[target], results[source])
                results[source] = inputs[target]
        if options.out is not None:
            _fill(results, options.out)
        return results

    def _unshare(self, results: list[Any], inputs: Sequence[Any]) -> None:
        """Copy each suspect output that is, or may be a view of, something that is not this output alone."""
        updates = dict(self._aliases)
        taken = {id(x) for x in inputs} | {id(x) for x in self._template}
        for index in range(len(results)):
            result = results[index]
            updated = index in updates and result is inputs[updates[index]]
            if index in self._suspects and not updated and (id(result) in taken or not _owns(result)):
                result = results[index] = _copied(result)
            taken.add(id(result))

    def profile(self) -> Profile:
        """Return the times of the launches over the calls that asked to be profiled."""
        return self._recorder.read()

    def close(self) -> None:
        """Release the executables; the program cannot run afterwards."""
        for lease in self._leases:
            lease.release()


def run_failed(launch: Launch, error: Exception) -> RunFailed:
    """Return what to raise when an engine's library fails in a launch."""
    return RunFailed(f"engine {launch.engine!r} failed to run {launch.name}: {type(error).__name__}: {error}")


class _Slots:
    """Where each value of a plan lives in a frame: inputs first, then constants, then what launches define."""

    def __init__(self, plan: Plan) -> None:
        function = plan.function
        self.index: dict[str, int] = {}
        for name in function.value_names():
            self.index.setdefault(name, len(self.index))
        self.template: list[Any] = [None] * len(self.index)
        for name, constant in function.constants.items():
            self.template[self.index[name]] = constant.array
        self.outputs = tuple(self.index[v.name] for v in function.outputs)
        places = {v.name: i for i, v in reversed(list(enumerate(function.outputs)))}
        inputs = {v.name: i for i, v in enumerate(function.inputs)}
        self.aliases = tuple((places[o], inputs[i]) for i, o in function.aliases)
        self._places = places

    def step(self, launch: Launch, executable: Executable) -> Step:
        returns = tuple((i, self._places[name]) for i, name in enumerate(launch.outputs) if name in self._places)
        reads = tuple(self.index[name] for name in launch.inputs)
        return Step(launch, executable.run, reads, tuple(self.index[name] for name in launch.outputs), (), returns)

    def frees(self, steps: Sequence[Step]) -> list[tuple[int, ...]]:
        """Return, per step, the slots that it is the last to touch and that are neither outputs nor given."""
        last: dict[int, int] = {}
        for number, step in enumerate(steps):
            last.update(dict.fromkeys((*step.reads, *step.writes), number))
        kept = {*self.outputs, *(slot for slot, value in enumerate(self.template) if value is not None)}
        freed: list[list[int]] = [[] for _ in steps]
        for slot, number in last.items():
            if slot not in kept:
                freed[number].append(slot)
        return [tuple(slots) for slots in freed]

    def suspects(self, steps: Sequence[Step], executables: Sequence[Executable]) -> frozenset[int]:
        """Return the program outputs that may share memory: those not freshly made by a launch, and repeated ones."""
        fresh = {slot for step, e in zip(steps, executables, strict=True) if e.outputs_are_fresh for slot in step.writes}
        return frozenset(i for i, slot in enumerate(self.outputs) if slot not in fresh or slot in self.outputs[:i])


def _for_launch(step: Step, options: RunOptions) -> RunOptions:
    """Hand a caller's buffers down to the launch that makes those outputs."""
    if options.out is None:
        return options
    buffers: list[Any] = [None] * len(step.writes)
    for mine, place in step.returns:
        buffers[mine] = options.out[place]
    return replace(options, out=buffers if any(b is not None for b in buffers) else None)


def _fill(results: list[Any], buffers: Sequence[Any]) -> None:
    for index, buffer in enumerate(buffers):
        if buffer is None or results[index] is buffer:
            continue
        if buffer.shape != results[index].shape or buffer.dtype != results[index].dtype:
            raise InputError(f"out[{index}] is {_described(buffer)}, but the output is {_described(results[index])}")
        np.copyto(buffer, results[index])
        results[index] = buffer


def _described(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _owns(result: Any) -> bool:
    return isinstance(result, np.ndarray) and bool(result.flags.owndata)


def _copied(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        return result.copy()
    if isinstance(result, list):
        return [_copied(item) for item in result]
    return result
