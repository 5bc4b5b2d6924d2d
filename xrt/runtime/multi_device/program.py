"""Programs on devices, and recording of their calls as device graphs."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines import RunOptions
from xrt.errors import DeviceError, RunFailed, XRTError
from xrt.forking import renew_after_fork
from xrt.graph import TensorType, Type
from xrt.runtime.call_frame import OutputInspector, copy_inputs, to_run_failed
from xrt.runtime.devices.interface import TransferCounter, TransferStats
from xrt.runtime.devices.registry import device
from xrt.runtime.inputs import check_updated
from xrt.runtime.memory_plan import Arena, MemoryPlan
from xrt.runtime.multi_device.call import (
    HOST,
    DeviceCall,
    DeviceLaunch,
    ScheduledTransfer,
    find_root_cause,
    make_out_of_memory_error,
    plan_transfers,
)
from xrt.runtime.multi_device.host_adapter import copy_to_host, describe_arrays, upload
from xrt.runtime.program import DEFAULT, Program

if TYPE_CHECKING:
    from xrt.cache import Lease
    from xrt.partition import Plan
    from xrt.runtime.devices.interface import Array, Device, Event, GraphCapture, Stream
    from xrt.runtime.devices.registry import Streams
    from xrt.runtime.profile import Profile

__all__ = ["CapturedCall", "MultiDeviceProgram"]

_log = logging.getLogger(__name__)


class CapturedCall:
    """A call recorded as a device graph, or the reason why there is none. Replays are serialized on one stream."""

    def __init__(self, program: MultiDeviceProgram, buffers: Sequence[Array] | None = None) -> None:
        """With ``buffers``, every call has the same inputs and writes its outputs to these buffers."""
        self._program = program
        self._buffers = buffers
        self._reason = why_not_capturable(program)
        self._recording: GraphCapture | None = None
        self._inputs: dict[int, Array] = {}
        self._outputs: list[Array] = []
        self._lock = renew_after_fork(threading.Lock())

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Replay the call, recording it first if necessary; None if the caller must run it step by step."""
        if self._reason:
            return None
        program = self._program
        with self._lock:
            is_first = self._recording is None
            if is_first and not self._recorded(inputs):
                return None
            call = program.call()
            stream = call.streams[program.plan.device]
            program.begin(DEFAULT, call.streams)
            if not is_first:  # the recording already has the inputs of the first call
                self._fill(inputs, call)
            try:
                fresh = [self._allocated(output, stream) for output in self._outputs] if self._buffers is None else []
                self._recording.replay(stream)  # type: ignore[union-attr]  # `_recorded` said so
                call.held[program.plan.device] += [self._recording, self._outputs]  # keeps its memory alive, too
                for result, output in zip(fresh, self._outputs if fresh else (), strict=True):
                    program.home().copy_within(result, output, stream)
            finally:
                program.hold(call)
        return fresh if self._buffers is None else list(self._buffers)

    def _recorded(self, inputs: Sequence[Any]) -> bool:
        """Record a call; on failure keep the reason, and run step by step from now on."""
        program, call = self._program, self._program.call()
        device, stream = program.home(), call.streams[program.plan.device]
        alone = device.new_stream()  # excludes work that other threads enqueue on the module's stream
        try:
            program.begin(DEFAULT, call.streams)
            # With caller-owned buffers, inputs on the device are read in place.
            at_home = self._program.is_at_home if self._buffers is not None else lambda value: False
            self._inputs = {i: x if at_home(x) else self._allocated(x, stream) for i, x in enumerate(inputs)}
            self._fill(inputs, call)
            device.follow(alone, stream)
            self._recording = device.record(alone, lambda: self._work(alone))
        except Exception as error:  # noqa: BLE001  # libraries raise arbitrary errors when a capture fails
            message = str(error) if isinstance(error, XRTError) else f"{type(error).__name__}: {error}"
            self._reason = f"recording a call failed: {' '.join(message.split())}"
            device.wait([alone])  # pending work uses memory that is released below
            _log.info("no graph of %s: %s", program.plan.function.name, self._reason)
            self.close()
        finally:
            program.hold(call)
        return self._recording is not None

    def _work(self, stream: Stream) -> None:
        call = self._program.call(RunOptions(stream=stream))
        for entry in self._program.route.entries:
            for _, place in entry.places:
                call.places[place] = self._inputs[entry.slot]
        self._program.play(call)
        self._outputs = [call.places[place] for place in self._program.route.outputs]
        for buffer, output in zip(self._buffers or (), self._outputs if self._buffers else (), strict=True):
            self._program.home().copy_within(buffer, output, stream)

    def _fill(self, inputs: Sequence[Any], call: DeviceCall) -> None:
        """Copy the inputs to the addresses that the recording reads."""
        device, home = self._program.home(), self._program.plan.device
        for slot, target in self._inputs.items():
            value = inputs[slot]
            if value is target:
                continue
            if not self._program.is_at_home(value):
                value = call.send(value, home)
            call.held[home].append(value)
            device.copy_within(target, value, call.streams[home])

    def _allocated(self, like: Any, stream: Stream) -> Array:
        return self._program.allocate(like.shape, like.dtype, stream, "a recorded call")

    def close(self) -> None:
        """Release the recording and its memory."""
        self._recording, self._inputs, self._outputs = None, {}, []

    def __str__(self) -> str:
        if self._reason:
            return f"no graph: {self._reason}"
        return "a graph of the device" if self._recording is not None else "a graph of the device, from the first call on"


def why_not_capturable(program: MultiDeviceProgram) -> str:
    """Why calls of the program cannot be recorded; empty if they may be."""
    plan, route = program.plan, program.route
    if plan.device == HOST:
        return "values come in and go out on the cpu"
    if plan.function.aliases or route.constants:
        return "it updates inputs in place, or returns constants"
    for value in (*plan.function.inputs, *plan.function.outputs):
        if not _is_fixed(value.type):
            return f"{value.name!r} is {value.type}, whose size may change"
    launches = [action for action in route.actions if isinstance(action, DeviceLaunch)]
    for entry in launches:
        launch = entry.step.launch
        if entry.device != plan.device:
            return f"{launch.name} runs on {entry.device}"
        if reason := entry.step.executable.why_not_capturable():
            return f"{launch.name} on {launch.engine}: {reason}"
    return "" if launches else "nothing is launched"


def _is_fixed(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and type_.is_static


NOWHERE = MemoryPlan(Arena(), {}, frozenset(), frozenset(), ())
"""Values have no fixed place in a host block: each device has its own pool."""


class MultiDeviceProgram(Program):
    """A Plan compiled for devices. Thread-safe.

    Inputs are arrays of the host or the plan's device, outputs arrays of the plan's device. On an accelerator a call returns
    when its work is enqueued, unless `block` is set; work that the caller then enqueues on its current stream is ordered after
    it.
    """

    def __init__(self, plan: Plan, leases: Sequence[Lease], streams: Streams, graph: bool = False) -> None:
        super().__init__(plan, leases, NOWHERE)
        self.route = plan_transfers(plan, self._slots)
        self._devices: Mapping[str, Device] = {name: device(name) for name in self.route.devices}
        self._own = streams
        self._counter = TransferCounter()
        self._under_way: deque[tuple[Device, Event, list[object]]] = deque()
        self._graphed = CapturedCall(self) if graph else None
        self._settle = weakref.finalize(self, _settled, self._under_way, streams, tuple(self._devices.values()))

    @property
    def fast_call(self) -> None:
        """None: a call has transfers and stream order to manage."""

    @property
    def traffic(self) -> TransferStats:
        """Transfers and waits so far."""
        return self._counter.read()

    @property
    def graph_remark(self) -> str:
        """Outcome of a requested device graph; empty if none was requested."""
        return str(self._graphed or "")

    # ------------------------------------------------------------------ calls

    def run(self, inputs: Sequence[Any], options: RunOptions = DEFAULT, inspection: OutputInspector | None = None) -> list[Any]:
        """Run and return the outputs, in plan order, as arrays of the plan's device.

        Raises RunFailed like `Program`, and OutOfDeviceMemory; the program stays usable after both.
        """
        for _, target in self._slots.aliases:
            if isinstance(inputs[target], np.ndarray):
                check_updated(self._slots.names[target], inputs[target])
        self._let_go()
        self._counter.add(calls=1)
        plain = options.out is None and not options.profile and inspection is None and options.stream is None
        if self._graphed is not None and plain:
            results = self._graphed.run(inputs)
            if results is not None:
                streams = self._streams(options)
                self.end(options, streams)
                self._wait(options, streams)
                return results
        return self._played(inputs, options, inspection)

    def _played(self, inputs: Sequence[Any], options: RunOptions, inspection: OutputInspector | None) -> list[Any]:
        call, began = self.call(options), perf_counter()
        self.begin(options, call.streams)
        try:
            self.enter(call, inputs)
            try:
                self.play(call, options, inspection)
            except XRTError as error:
                error.updated = None  # launches before it may have updated inputs
                raise
            results = self._outputs(call, inputs, options)
        finally:
            self.hold(call)
            self.end(options, call.streams)  # also after a failure: pending work may still read the inputs
        self._wait(options, call.streams)
        if options.profile:
            self._recorder.add_call(began, perf_counter())
        return results

    def call(self, options: RunOptions = DEFAULT) -> DeviceCall:
        """A new call without values."""
        recorder = self._recorder if options.profile else None
        return DeviceCall(self.route.count, self._devices, self._streams(options), self._counter, recorder)

    def _streams(self, options: RunOptions) -> dict[str, Stream]:
        streams = {name: self._own.on(name) for name in self._devices}
        if options.stream is not None:
            streams[self.plan.device] = self.home().get_stream(options.stream)
        return streams

    def home(self) -> Device:
        """The plan's device, if that is not the host."""
        return self._devices[self.plan.device]

    def _is_on_host(self) -> bool:
        return self.plan.device == HOST

    def enter(self, call: DeviceCall, inputs: Sequence[Any]) -> None:
        """Copy each input once to each device that reads it, and constants that are outputs."""
        home = self.plan.device
        for entry in self.route.entries:
            value = inputs[entry.slot]
            there = home if self.is_at_home(value) else HOST
            if there == HOST and not isinstance(value, np.ndarray | list | None):
                raise DeviceError(
                    f"input {entry.name!r} lies neither on the host nor on {home}, where the module runs; copy it there"
                )
            for wanted, place in entry.places:
                if wanted == there or value is None:
                    call.places[place] = value
                else:
                    call.bring(value, there, wanted, place, entry.name)
            if there != HOST:
                # Keep the caller's array alive until queued work has read it.
                call.held[there].append(value)
        for place, slot in self.route.constants:
            array = self._slots.constants[slot]
            if self._is_on_host():
                call.places[place] = array
            else:
                call.bring(array, HOST, home, place, self._slots.names[slot])

    def is_at_home(self, value: Any) -> bool:
        """Whether a value is on the plan's device, and that is not the host."""
        if isinstance(value, list):
            return bool(value) and self.is_at_home(value[0])
        return not self._is_on_host() and self.home().owns(value)

    def play(self, call: DeviceCall, options: RunOptions = DEFAULT, inspection: OutputInspector | None = None) -> None:
        """Enqueue all launches and transfers in order."""
        for action in self.route.actions:
            if isinstance(action, ScheduledTransfer):
                call.cross(action, self._slots.names[action.slot])
            else:
                self._launch(action, call, options, inspection)

    def _launch(self, entry: DeviceLaunch, call: DeviceCall, options: RunOptions, inspection: OutputInspector | None) -> None:
        on_host = entry.device == HOST
        if on_host:
            # A host engine reads the arrays at once; device work is ordered by its stream.
            call.wait_for(entry.reads)
        args = [call.places[place] for place in entry.reads]
        before = self._before(entry, call, args) if inspection is not None and inspection.needs_inputs else args
        began = perf_counter()
        try:
            results = self._computed(entry, call, args)
        except Exception as error:  # noqa: BLE001  # converted by `_error`
            raise self._error(entry, error)  # noqa: B904  # it has its cause
        if options.profile:
            call.settle([] if on_host else [entry.device])
            self._recorder.add(entry.number, began, perf_counter())
        if inspection is not None:
            self._look(entry, call, inspection, before, results)
        for place, result in zip(entry.writes, results, strict=True):
            call.places[place] = result
        for place in entry.frees:
            call.places[place] = None

    def _before(self, entry: DeviceLaunch, call: DeviceCall, args: Sequence[Any]) -> Sequence[Any]:
        """Copies of the inputs that the launch may overwrite."""
        device = entry.device
        with nullcontext() if device == HOST else self._devices[device].activate(call.streams[device]):
            return copy_inputs(entry.step, args)

    def _computed(self, entry: DeviceLaunch, call: DeviceCall, args: Sequence[Any]) -> Sequence[Any]:
        executable = entry.step.executable
        if entry.device == HOST:
            results = executable.run(args)
        else:
            stream = call.streams[entry.device]
            with self._devices[entry.device].activate(stream):
                results = executable.run(args, RunOptions(stream=stream))
        if len(results) != len(entry.writes):
            launch = entry.step.launch
            raise RunFailed(
                f"engine {launch.engine!r} returned {len(results)} outputs from {launch.name}, which has {len(entry.writes)}"
            )
        return results

    def _error(self, entry: DeviceLaunch, error: Exception) -> Exception:
        launch = entry.step.launch
        where = self._devices.get(entry.device)
        short = (
            make_out_of_memory_error(where, find_root_cause(error), f"engine {launch.engine!r} in {launch.name}")
            if where
            else None
        )
        return short or to_run_failed(launch, error)

    def _look(
        self, entry: DeviceLaunch, call: DeviceCall, inspection: OutputInspector, args: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Check the results of a launch; wait for them only if the check needs the values."""
        launch, where = entry.step.launch, self._devices.get(entry.device)
        if where is None:
            wrong = inspection.find(launch, args, results)
        else:
            wrong = None if inspection.needs_inputs else inspection.find(launch, describe_arrays(args), describe_arrays(results))
            if inspection.needs_inputs or wrong is not None:
                with where.activate(call.streams[entry.device]):
                    wrong = inspection.find(launch, copy_to_host(args, where), copy_to_host(results, where))
        if wrong is not None:
            raise RunFailed(wrong, launch.name)

    # ------------------------------------------------------------------ results

    def _outputs(self, call: DeviceCall, inputs: Sequence[Any], options: RunOptions) -> list[Any]:
        call.wait_for(self.route.outputs)
        results = [call.places[place] for place in self.route.outputs]
        with nullcontext() if self._is_on_host() else self.home().activate(call.streams[self.plan.device]):
            self._unshare_placed(results, inputs)
            computed = tuple(results)
            for source, target in self._slots.aliases:
                results[source] = self._updated(call, inputs[target], results[source], self._slots.names[target])
            if options.out is not None:
                _fill(results, computed, options.out)
        return results

    def _unshare_placed(self, results: list[Any], inputs: Sequence[Any]) -> None:
        """Copy each output that may share memory with other values; a base marks a view."""
        taken = {id(value) for value in inputs} | {id(value) for value in self._slots.constants.values()}
        updates = dict(self._slots.aliases)
        for index in sorted(self._suspects):
            result = results[index]
            if index in updates and result is inputs[updates[index]]:
                continue
            if id(result) in taken or getattr(result, "base", None) is not None:
                results[index] = _copied(result)
            taken.add(id(results[index]))

    def _updated(self, call: DeviceCall, target: Any, result: Any, name: str) -> Any:
        """Copy an output to the input that it updates, on the host or the plan's device; return the input."""
        if result is target:
            return target
        if self._is_on_host() or self.is_at_home(target):
            target[...] = result
            return target
        home, began = self.plan.device, perf_counter()
        sent = self.home().copy_out(result, call.streams[home])
        call.settle([home])
        np.copyto(target, sent.array)
        call.record(name, home, HOST, sent.array, began)
        self._counter.add(copies_out=1, bytes_out=sent.array.nbytes)
        return target

    # ------------------------------------------------------------------ order between the caller's work and ours

    def begin(self, options: RunOptions, streams: Mapping[str, Stream]) -> None:
        """Order our work after the caller's current stream."""
        if not self._is_on_host() and options.stream is None:
            self.home().follow(streams[self.plan.device], self.home().current_stream())

    def end(self, options: RunOptions, streams: Mapping[str, Stream]) -> None:
        """Order the caller's current stream after our work."""
        if not self._is_on_host() and options.stream is None:
            self.home().follow(self.home().current_stream(), streams[self.plan.device])

    def _wait(self, options: RunOptions, streams: Mapping[str, Stream]) -> None:
        """Wait for the work if ``options.block`` is set."""
        if options.block and not self._is_on_host():
            self._counter.add(waits=1)
            self.home().wait([streams[self.plan.device]])

    def hold(self, call: DeviceCall) -> None:
        """Keep sources and targets of copies alive until they are done."""
        for name, references in call.held.items():
            # A caller's stream needs an event even without copies: `close` waits for our own streams only.
            if references or call.streams[name] is not self._own.on(name):
                where = self._devices[name]
                self._under_way.append((where, where.event(call.streams[name]), references))

    def _let_go(self) -> None:
        """Release objects of finished copies of earlier calls."""
        under_way = self._under_way
        while under_way:
            try:
                first = under_way.popleft()
            except IndexError:  # emptied by another thread
                return
            if not first[0].is_done(first[1]):
                under_way.appendleft(first)
                return

    # ------------------------------------------------------------------ the rest

    def make_timed_call(self, inputs: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """The call to time, on uploaded inputs; it waits for its results."""
        args, options = list(inputs), RunOptions(block=True)
        if not self._is_on_host():
            with self.home().activate(self._own.on(self.plan.device)):
                args = upload(inputs, self.home())
        return lambda: self.run(args, options)

    def bind(
        self, inputs: Sequence[Any], buffers: Sequence[Any], types: Mapping[str, Type | None] | None = None
    ) -> Callable[[], None]:
        """A call with fixed inputs and output buffers.

        Inputs are arrays of the plan's device, or of the host, which are copied in each call. A buffer is an array of the
        plan's device, or None if the output updates an input. The call returns when its work is enqueued; it is replayed as a
        graph if the program's calls are. Not for concurrent use.
        """
        options = RunOptions(out=tuple(buffers))
        graphed = CapturedCall(self, buffers) if self._graphed is not None else None

        def call() -> None:
            self._let_go()
            self._counter.add(calls=1)
            if graphed is not None and graphed.run(inputs) is not None:
                self.end(DEFAULT, self._streams(DEFAULT))
            else:
                self._played(inputs, options, None)

        return call

    def buffer(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """An uninitialized array on the plan's device; raises OutOfDeviceMemory."""
        if self._is_on_host():
            return super().buffer(shape, dtype)
        return self.allocate(shape, dtype, self._own.on(self.plan.device), "a buffer of a bound call")

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any], stream: Stream, who: str) -> Any:
        """An uninitialized array on the plan's device for work on `stream`; raises OutOfDeviceMemory."""
        try:
            return self.home().allocate(shape, dtype, stream)
        except Exception as error:  # noqa: BLE001  # only out-of-memory errors are converted
            nbytes = math.prod(shape) * dtype.itemsize
            raise make_out_of_memory_error(self.home(), error, who, nbytes) or error  # noqa: B904

    def profile(self) -> Profile:
        """Times of the profiled calls, in which each launch is waited for, and transfers."""
        return replace(super().profile(), traffic=self.traffic)

    def close(self) -> None:
        """Wait for pending work, and release the executables."""
        self._settle()
        if self._graphed is not None:
            self._graphed.close()
        super().close()

    def close_in_background(self) -> None:
        """Do nothing: the finalizer waits for the device, then releases the executables."""


def _settled(under_way: deque[tuple[Device, Event, list[object]]], streams: Streams, devices: Sequence[Device]) -> None:
    """Wait for pending work that uses memory about to be released: copies and executables."""
    while under_way:
        where, event, _ = under_way.popleft()
        where.wait_for(event)
    for where in devices:
        if (stream := streams.made(where.name)) is not None:
            where.wait([stream])


def _copied(value: Any) -> Any:
    return [_copied(item) for item in value] if isinstance(value, list) else None if value is None else value.copy()


def _fill(results: list[Any], computed: Sequence[Any], buffers: Sequence[Any]) -> None:
    """Copy results to the given buffers and return these instead."""
    for index, buffer in enumerate(buffers):
        if buffer is not None:
            buffer[...] = computed[index]
            results[index] = buffer
