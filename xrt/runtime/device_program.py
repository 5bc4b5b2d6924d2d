"""Programs on devices, and recording of their calls as device graphs.

Each value is copied once to each device that reads it. Work is enqueued on one stream per device. The host waits only before it
reads a value.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines import RunOptions
from xrt.errors import DeviceError, RunFailed, XRTError
from xrt.forking import renew_after_fork
from xrt.graph import TensorType, Type
from xrt.runtime.devices.interface import TransferCounter, TransferStats, make_out_of_memory_error
from xrt.runtime.devices.registry import device, to_host
from xrt.runtime.host_adapter import upload
from xrt.runtime.inputs import check_updated
from xrt.runtime.memory_plan import Arena, MemoryPlan
from xrt.runtime.program import (
    DEFAULT_OPTIONS,
    OutputInspector,
    Program,
    copy_inputs,
    make_count_error,
    to_run_failed,
)

if TYPE_CHECKING:
    from xrt.cache import Lease
    from xrt.partition import Plan
    from xrt.runtime.devices.interface import Array, Device, Event, GraphCapture, Stream
    from xrt.runtime.devices.registry import Streams
    from xrt.runtime.memory_plan import Step, ValueTable
    from xrt.runtime.profile import Profile, Recorder

_log = logging.getLogger(__name__)
HOST = "cpu"
Location: TypeAlias = tuple[int, str]
"""(slot, device name): the copy of a value on one device."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A launch on a device, with the copies to start and the values to release after it."""

    number: int
    step: Step
    device: str
    copies: tuple[Location, ...]
    """Where to copy its results. These copies start directly after the launch, so that they overlap with later launches."""
    releases: tuple[Location, ...]
    """Values to release after the launch, because no later launch or copy reads them."""


def plan_steps(plan: Plan, slots: ValueTable) -> tuple[DeviceStep, ...]:
    """Assign each launch its device, the copies of its results, and the values to release after it."""
    # From the last launch to the first: `needed` has the values that later launches, copies or the caller read.
    slot_of = {name: slot for slot, name in enumerate(slots.names)}
    targets: dict[int, list[str]] = {}
    for copy in plan.copies:
        targets.setdefault(slot_of[copy.value], []).append(copy.target)
    needed, steps = {(slot, plan.device) for slot in slots.outputs}, []
    for step_index in reversed(range(len(slots.steps))):
        step = slots.steps[step_index]
        device_name = plan.get_device(step.launch)
        copies = tuple((slot, target) for slot in step.writes for target in targets.get(slot, ()))
        needed.update((slot, device_name) for slot, _ in copies)  # copies run after the launch
        accessed = dict.fromkeys((slot, device_name) for slot in (*step.reads, *step.writes))
        releases = tuple(location for location in accessed if location not in needed)
        steps.append(DeviceStep(step_index, step, device_name, copies, releases))
        needed.update(accessed)
    return tuple(reversed(steps))


class DeviceCall:
    """The state of one call. Its methods enqueue work. Only `wait_for`, `synchronize`, and copies while profiling wait."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        streams: Mapping[str, Stream],
        counter: TransferCounter,
        recorder: Recorder | None = None,
    ) -> None:
        self.values: dict[Location, Any] = {}
        self.devices = devices
        self.streams = streams
        self.references: dict[str, list[object]] = {name: [] for name in devices}
        """Objects that must stay alive until a device has finished the work of this call, by device name."""
        self._counter = counter
        self._recorder = recorder
        self._downloads: dict[int, tuple[int, Device, Event]] = {}
        """The latest copy of each slot to the host: its position in the order of all copies, its device and its event."""
        self._numbers = itertools.count()

    def copy(self, value: Any, source: str, location: Location, name: str) -> None:
        """Start to copy a value (or list) from device ``source`` to ``location``. While profiling, wait, and record ``name``."""
        began = perf_counter()
        slot, target = location
        if HOST not in (source, target):  # the target's stream waits for the work that computes the value
            self.devices[target].delay(self.streams[target], self.devices[source].record_event(self.streams[source]))
        self.values[location] = self.send(value, source, target)
        if target == HOST:
            accelerator = self.devices[source]
            self._downloads[slot] = next(self._numbers), accelerator, accelerator.record_event(self.streams[source])
        if self._recorder is not None:
            self.synchronize(source if target == HOST else target)
            self.record(name, source, target, value, began)

    def record(self, name: str, source: str, target: str, value: Any, began: float) -> None:
        """Record a finished copy if the call is profiled; ``began`` is the `perf_counter` time at its start."""
        if self._recorder is not None:
            self._recorder.add_copy(name, source, target, _count_bytes(value), began, perf_counter())

    def send(self, value: Any, source: str, target: str) -> Any:
        """Start to copy an array, or a list of these, to a device or the host; return the new array."""
        if isinstance(value, list):
            return [self.send(item, source, target) for item in value]
        if value is None:
            return None
        accelerator = self.devices[source if target == HOST else target]
        stream = self.streams[accelerator.name]
        direction = "across"
        if HOST in (source, target):
            direction = "out" if target == HOST else "in"
        try:
            if direction == "across":
                sent = accelerator.copy_across(value, self.devices[source], stream)
            else:
                sent = accelerator.copy_out(value, stream) if direction == "out" else accelerator.copy_in(value, stream)
        except Exception as error:  # noqa: BLE001  # only out-of-memory errors are converted
            raise make_out_of_memory_error(accelerator, error, "a copy of a value of the model", value.nbytes) or error  # noqa: B904
        self._counter.add(**{f"copies_{direction}": 1, f"bytes_{direction}": value.nbytes})
        self.references[accelerator.name] += [sent.source, sent.array, value if direction == "across" else None]
        return sent.array

    def wait_for(self, slots: Sequence[int]) -> None:
        """Wait for the copies of these slots to the host."""
        downloads = [self._downloads.pop(slot) for slot in slots if slot in self._downloads]
        # The copies of a device end in order, so only its latest copy is waited for.
        downloads.sort(key=lambda download: download[0])
        latest = {accelerator.name: (accelerator, event) for _, accelerator, event in downloads}
        for accelerator, event in latest.values():
            if not accelerator.is_done(event):
                self._counter.add(waits=1)
                accelerator.wait_for(event)

    def synchronize(self, name: str) -> None:
        self._counter.add(waits=1)
        self.devices[name].wait([self.streams[name]])


def _count_bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count_bytes, value))
    return 0 if value is None else int(value.nbytes)


class CapturedCall:
    """Records the first call as a device graph, and replays it for later calls, one at a time."""

    def __init__(self, program: MultiDeviceProgram, buffers: Sequence[Array] | None = None) -> None:
        """``buffers`` has the output buffers of a bound call, which has the same inputs each time; None for other calls."""
        self._program = program
        self._buffers = buffers
        self._reason = why_not_capturable(program)
        self._recording: GraphCapture | None = None
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []
        self._lock = renew_after_fork(threading.Lock())

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Replay the call, recording it first if necessary; None if the caller must run it step by step."""
        if self._reason:
            return None
        program = self._program
        with self._lock:
            is_first = self._recording is None
            if is_first and not self._record(inputs):
                return None
            call = program.start_call()
            stream = call.streams[program.plan.device]
            program.wait_for_caller(DEFAULT_OPTIONS, call.streams)
            if not is_first:  # `_record` has copied the inputs of the first call
                self._copy_inputs(inputs, call)
            try:
                results = [self._allocate(output, stream) for output in self._outputs] if self._buffers is None else []
                self._recording.replay(stream)  # type: ignore[union-attr]  # `_record` has set it
                call.references[program.plan.device] += [self._recording, self._outputs]
                for result, output in zip(results, self._outputs, strict=False):  # a bound call has no results to copy
                    program.get_device().copy_within(result, output, stream)
            finally:
                program.keep_until_done(call)
        return results if self._buffers is None else list(self._buffers)

    def _record(self, inputs: Sequence[Any]) -> bool:
        """Record a call; return whether that succeeded. After a failure, `run` returns None, and `str` states the reason."""
        program, call = self._program, self._program.start_call()
        device, stream = program.get_device(), call.streams[program.plan.device]
        capture_stream = device.new_stream()  # other threads enqueue work on the module's stream
        try:
            program.wait_for_caller(DEFAULT_OPTIONS, call.streams)
            # A bound call always has the same inputs, so those on the device are read in place.
            is_fixed = [self._buffers is not None and program.is_on_plan_device(value) for value in inputs]
            self._inputs = [x if fixed else self._allocate(x, stream) for x, fixed in zip(inputs, is_fixed, strict=True)]
            self._copy_inputs(inputs, call)
            device.follow(capture_stream, stream)
            self._recording = device.record(capture_stream, lambda: self._enqueue_work(capture_stream))
        except Exception as error:  # noqa: BLE001  # libraries raise arbitrary errors when a capture fails
            message = str(error) if isinstance(error, XRTError) else f"{type(error).__name__}: {error}"
            self._reason = f"recording a call failed: {' '.join(message.split())}"
            device.wait([capture_stream])  # its work uses memory that is released below
            _log.info("no graph of %s: %s", program.plan.function.name, self._reason)
            self.close()
        finally:
            program.keep_until_done(call)
        return self._recording is not None

    def _enqueue_work(self, stream: Stream) -> None:
        program, plan_device = self._program, self._program.plan.device
        call = program.start_call(RunOptions(stream=stream))
        call.values.update(((slot, plan_device), array) for slot, array in enumerate(self._inputs))
        program.enqueue_steps(call)
        self._outputs = [call.values[location] for location in program.outputs]
        if self._buffers is not None:
            for buffer, output in zip(self._buffers, self._outputs, strict=True):
                program.get_device().copy_within(buffer, output, stream)

    def _copy_inputs(self, inputs: Sequence[Any], call: DeviceCall) -> None:
        """Copy the inputs of a call into the arrays that the recording reads."""
        program, plan_device = self._program, self._program.plan.device
        for value, target in zip(inputs, self._inputs, strict=True):
            if value is not target:
                array = value if program.is_on_plan_device(value) else call.send(value, HOST, plan_device)
                call.references[plan_device].append(array)
                program.get_device().copy_within(target, array, call.streams[plan_device])

    def _allocate(self, like: Any, stream: Stream) -> Array:
        return self._program.allocate(like.shape, like.dtype, stream, "a recorded call")

    def close(self) -> None:
        self._recording, self._inputs, self._outputs = None, [], []

    def __str__(self) -> str:
        if self._reason:
            return f"no graph: {self._reason}"
        return "a graph of the device" if self._recording is not None else "a graph of the device, from the first call on"


def why_not_capturable(program: MultiDeviceProgram) -> str:
    """Explain why calls of the program cannot be recorded as a device graph; empty if recording may be tried."""
    plan = program.plan
    if plan.device == HOST:
        return "values come in and go out on the cpu"
    if plan.function.aliases or plan.function.constants:
        return "it updates inputs in place, or returns constants"
    for value in (*plan.function.inputs, *plan.function.outputs):
        if not (isinstance(value.type, TensorType) and value.type.is_static):
            return f"{value.name!r} is {value.type}, whose size may change"
    for entry in program.steps:
        launch = entry.step.launch
        if entry.device != plan.device:
            return f"{launch.name} runs on {entry.device}"
        if reason := entry.step.executable.why_not_capturable():
            return f"{launch.name} on {launch.engine}: {reason}"
    return "" if program.steps else "nothing is launched"


NO_ARENA = MemoryPlan(Arena(), {}, frozenset(), frozenset(), ())
"""A memory plan without fixed addresses: each device allocates from its own pool."""


class MultiDeviceProgram(Program):
    """A Plan compiled for devices. Thread-safe.

    Inputs are arrays of the host or the plan's device; outputs are arrays of the plan's device. On an accelerator, a call returns
    when its work is enqueued, unless ``RunOptions.block`` is set. Work that the caller then enqueues on its current stream runs
    after it.
    """

    def __init__(self, plan: Plan, leases: Sequence[Lease], streams: Streams, graph: bool = False) -> None:
        super().__init__(plan, leases, NO_ARENA)
        self.steps = plan_steps(plan, self._slots)
        self.outputs: tuple[Location, ...] = tuple((slot, plan.device) for slot in self._slots.outputs)
        read = [(slot, entry.device) for entry in self.steps for slot in entry.step.reads]  # with constants and inner values
        self._input_locations = tuple(
            location for location in dict.fromkeys((*read, *self.outputs)) if location[0] in self._slots.inputs
        )
        used = {plan.device, *(entry.device for entry in self.steps)} - {HOST}
        self._devices: Mapping[str, Device] = {name: device(name) for name in sorted(used)}
        self._module_streams = streams
        self._counter = TransferCounter()
        self._pending: deque[tuple[Device, Event, list[object]]] = deque()
        self._captured = CapturedCall(self) if graph else None
        self._finish = weakref.finalize(self, _wait_for_work, self._pending, streams, tuple(self._devices.values()))

    @property
    def fast_call(self) -> None:
        """None, because a call on devices must copy values and order streams."""

    @property
    def traffic(self) -> TransferStats:
        """Counts of the transfers and waits of all calls so far."""
        return self._counter.read()

    @property
    def graph_remark(self) -> str:
        """Describe the device graph of the calls, or why there is none; empty if no graph was requested."""
        return str(self._captured or "")

    def run(
        self, inputs: Sequence[Any], options: RunOptions = DEFAULT_OPTIONS, inspection: OutputInspector | None = None
    ) -> list[Any]:
        """Run, and return the outputs, in plan order, as arrays of the plan's device.

        Raises RunFailed like `Program.run`, and OutOfDeviceMemory. The program stays usable after both.
        """
        for _, target in self._slots.aliases:
            if isinstance(inputs[target], np.ndarray):
                check_updated(self._slots.names[target], inputs[target])
        self._release_finished()
        self._counter.add(calls=1)
        is_plain = options.out is None and not options.profile and inspection is None and options.stream is None
        if self._captured is not None and is_plain:
            results = self._captured.run(inputs)
            if results is not None:
                streams = self._get_streams(options)
                self.make_caller_wait(options, streams)
                self._wait(options, streams)
                return results
        return self._run_steps(inputs, options, inspection)

    def _run_steps(self, inputs: Sequence[Any], options: RunOptions, inspection: OutputInspector | None) -> list[Any]:
        call, began = self.start_call(options), perf_counter()
        self.wait_for_caller(options, call.streams)
        try:
            self._place_inputs(call, inputs)
            try:
                self.enqueue_steps(call, options, inspection)
            except XRTError as error:
                error.updated = None  # unknown: earlier launches may have updated inputs
                raise
            results = self._collect_results(call, inputs, options)
        finally:
            self.keep_until_done(call)
            self.make_caller_wait(options, call.streams)  # also after a failure: pending work may still read the inputs
        self._wait(options, call.streams)
        if options.profile:
            self._recorder.add_call(began, perf_counter())
        return results

    def start_call(self, options: RunOptions = DEFAULT_OPTIONS) -> DeviceCall:
        return DeviceCall(self._devices, self._get_streams(options), self._counter, self._recorder if options.profile else None)

    def _get_streams(self, options: RunOptions) -> dict[str, Stream]:
        streams = {name: self._module_streams[name] for name in self._devices}
        if options.stream is not None:
            streams[self.plan.device] = self.get_device().get_stream(options.stream)
        return streams

    def get_device(self) -> Device:
        """Return the plan's device, which must not be the host."""
        return self._devices[self.plan.device]

    def _activate(self, name: str, call: DeviceCall) -> Any:
        return nullcontext() if name == HOST else self._devices[name].activate(call.streams[name])

    def _place_inputs(self, call: DeviceCall, inputs: Sequence[Any]) -> None:
        """Copy each input to the devices that read it, and constants, which are outputs of the program, to the plan's device."""
        plan_device, names = self.plan.device, self._slots.names
        for location in self._input_locations:
            slot, target = location
            value, name = inputs[slot], names[slot]
            origin = plan_device if self.is_on_plan_device(value) else HOST
            if origin == HOST and not isinstance(value, np.ndarray | list | None):
                raise DeviceError(
                    f"input {name!r} is neither on the host nor on {plan_device}, where the module runs; copy it there"
                )
            if target == origin or value is None:
                call.values[location] = value
            else:
                call.copy(value, origin, location, name)
            if origin != HOST:
                # Keep the caller's array alive until queued work has read it.
                call.references[origin].append(value)
        for slot, array in self._slots.constants.items():
            if self.plan.device == HOST:
                call.values[slot, plan_device] = array
            else:
                call.copy(array, HOST, (slot, plan_device), names[slot])

    def is_on_plan_device(self, value: Any) -> bool:
        """Whether a value is on the plan's device; False if the plan's device is the host."""
        if isinstance(value, list):
            return bool(value) and self.is_on_plan_device(value[0])
        return self.plan.device != HOST and self.get_device().owns(value)

    def enqueue_steps(
        self, call: DeviceCall, options: RunOptions = DEFAULT_OPTIONS, inspection: OutputInspector | None = None
    ) -> None:
        for entry in self.steps:
            self._launch(entry, call, options, inspection)
            for location in entry.copies:
                call.copy(call.values[location[0], entry.device], entry.device, location, self._slots.names[location[0]])

    def _launch(self, entry: DeviceStep, call: DeviceCall, options: RunOptions, inspection: OutputInspector | None) -> None:
        """Run a launch, or enqueue it on its device. Store its results, and release values that nothing later reads."""
        device_name, step, values = entry.device, entry.step, call.values
        if device_name == HOST:
            # An engine on the host reads the arrays immediately. Work on a device is ordered by its stream.
            call.wait_for(step.reads)
        args = [values[slot, device_name] for slot in step.reads]
        before: Sequence[Any] = args
        if inspection is not None and inspection.needs_inputs:
            with self._activate(device_name, call):
                before = copy_inputs(step, args)
        began, accelerator, launch = perf_counter(), self._devices.get(device_name), step.launch
        try:
            with self._activate(device_name, call):
                if accelerator is None:
                    results = step.executable.run(args)
                else:
                    results = step.executable.run(args, RunOptions(stream=call.streams[device_name]))
            if len(results) != len(step.writes):
                raise make_count_error(step, len(results))
        except Exception as error:  # noqa: BLE001  # converted below
            subject = f"engine {launch.engine!r} in {launch.name}"
            shortage = make_out_of_memory_error(accelerator, error, subject) if accelerator is not None else None
            raise shortage or to_run_failed(launch, error)  # noqa: B904  # it has its cause
        if options.profile:
            if accelerator is not None:
                call.synchronize(device_name)
            self._recorder.add(entry.number, began, perf_counter())
        if inspection is not None:
            self._inspect(entry, call, inspection, before, results)
        values.update(zip(((slot, device_name) for slot in step.writes), results, strict=True))
        for location in entry.releases:
            del values[location]

    def _inspect(
        self, entry: DeviceStep, call: DeviceCall, inspection: OutputInspector, args: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Check the results of a launch; wait for them only if the check needs the values."""
        launch, accelerator = entry.step.launch, self._devices.get(entry.device)
        if not inspection.is_due(launch, results):
            return
        if accelerator is not None:
            with self._activate(entry.device, call):
                args, results = to_host(list(args)), to_host(list(results))
        if (problem := inspection.check(launch, args, results)) is not None:
            raise RunFailed(problem, launch.name)

    def _collect_results(self, call: DeviceCall, inputs: Sequence[Any], options: RunOptions) -> list[Any]:
        if self.plan.device == HOST:
            call.wait_for(self._slots.outputs)
        results = [call.values[location] for location in self.outputs]
        with self._activate(self.plan.device, call):
            self._copy_shared_outputs(results, inputs)
            computed = tuple(results)
            for source, target in self._slots.aliases:
                results[source] = self._update_input(call, inputs[target], results[source], self._slots.names[target])
            for index, buffer in enumerate(options.out or ()):
                if buffer is not None:
                    buffer[...] = computed[index]
                    results[index] = buffer
        return results

    def _update_input(self, call: DeviceCall, target: Any, result: Any, name: str) -> Any:
        """Copy an output to the input that it updates (``target``, on the host or the plan's device); return the input."""
        if result is target:
            return target
        if self.plan.device == HOST or self.is_on_plan_device(target):
            target[...] = result
            return target
        plan_device, began = self.plan.device, perf_counter()
        sent = call.send(result, plan_device, HOST)
        call.synchronize(plan_device)
        np.copyto(target, sent)
        call.record(name, plan_device, HOST, sent, began)
        return target

    def wait_for_caller(self, options: RunOptions, streams: Mapping[str, Stream]) -> None:
        """Make the call's work wait for the work on the caller's current stream."""
        if self.plan.device != HOST and options.stream is None:
            self.get_device().follow(streams[self.plan.device], self.get_device().current_stream())

    def make_caller_wait(self, options: RunOptions, streams: Mapping[str, Stream]) -> None:
        """Make later work on the caller's current stream wait for the call's work."""
        if self.plan.device != HOST and options.stream is None:
            self.get_device().follow(self.get_device().current_stream(), streams[self.plan.device])

    def _wait(self, options: RunOptions, streams: Mapping[str, Stream]) -> None:
        if options.block and self.plan.device != HOST:
            self._counter.add(waits=1)
            self.get_device().wait([streams[self.plan.device]])

    def keep_until_done(self, call: DeviceCall) -> None:
        """Keep the arrays that a call's work uses alive until the work is done; `_release_finished` then releases them."""
        for name, references in call.references.items():
            # `close` waits for the module's streams. Work on a caller's stream needs an event to wait for.
            if references or call.streams[name] is not self._module_streams[name]:
                accelerator = self._devices[name]
                self._pending.append((accelerator, accelerator.record_event(call.streams[name]), references))

    def _release_finished(self) -> None:
        pending = self._pending
        while pending:
            try:
                first = pending.popleft()
            except IndexError:  # emptied by another thread
                return
            accelerator, event, _ = first
            if not accelerator.is_done(event):
                pending.appendleft(first)
                return

    def make_timed_call(self, inputs: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """Create a function for timing: it runs the program on inputs that were uploaded before, and waits for the results."""
        args, options = list(inputs), RunOptions(block=True)
        if self.plan.device != HOST:
            with self.get_device().activate(self._module_streams[self.plan.device]):
                args = upload(inputs, self.get_device())
        return lambda: self.run(args, options)

    def bind(
        self, inputs: Sequence[Any], buffers: Sequence[Any], types: Mapping[str, Type | None] | None = None
    ) -> Callable[[], None]:
        """Create a function that runs the program on fixed inputs and writes to fixed output buffers.

        Inputs on the plan's device are read in place; inputs on the host are copied in each call. A buffer is an array of the
        plan's device, or None if the output updates an input. The function returns when its work is enqueued. It replays a
        device graph if the program has one. Do not run it in two threads at once.
        """
        options = RunOptions(out=tuple(buffers))
        captured = CapturedCall(self, buffers) if self._captured is not None else None

        def call() -> None:
            self._release_finished()
            self._counter.add(calls=1)
            if captured is not None and captured.run(inputs) is not None:
                self.make_caller_wait(DEFAULT_OPTIONS, self._get_streams(DEFAULT_OPTIONS))
            else:
                self._run_steps(inputs, options, None)

        return call

    def allocate_output(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """Allocate an uninitialized array on the plan's device; raises OutOfDeviceMemory."""
        if self.plan.device == HOST:
            return super().allocate_output(shape, dtype)
        return self.allocate(shape, dtype, self._module_streams[self.plan.device], "a buffer of a bound call")

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any], stream: Stream, requester: str) -> Any:
        """Allocate an uninitialized array on the plan's device, for work on ``stream``.

        Raises OutOfDeviceMemory, whose text names ``requester``.
        """
        try:
            return self.get_device().allocate(shape, dtype, stream)
        except Exception as error:  # noqa: BLE001  # only out-of-memory errors are converted
            nbytes = math.prod(shape) * dtype.itemsize
            raise make_out_of_memory_error(self.get_device(), error, requester, nbytes) or error  # noqa: B904

    def profile(self) -> Profile:
        """Report the times of the profiled calls, which wait after each launch, and the transfers of all calls."""
        return replace(super().profile(), traffic=self.traffic)

    def close(self) -> None:
        """Wait for the work of all calls, and release the executables."""
        try:
            self._finish()
        finally:
            if self._captured is not None:
                self._captured.close()
            super().close()

    def close_in_background(self) -> None:
        """Do nothing: when the program is garbage-collected, its finalizer waits for the device and its leases are released."""


def _wait_for_work(pending: deque[tuple[Device, Event, list[object]]], streams: Streams, devices: Sequence[Device]) -> None:
    """Wait for all copies and launches, because the memory that they use is released next."""
    while pending:
        accelerator, event, _ = pending.popleft()
        accelerator.wait_for(event)
    for accelerator in devices:
        if (stream := streams.get(accelerator.name)) is not None:
            accelerator.wait([stream])
