"""A whole call as one recorded piece of work: CUDA graphs.

A call of a plan that puts all its work on one stream, and waits for nothing, is recorded once and replayed: what the host does
between launches is left out. Inputs are copied to where the recording reads them, and outputs from where it writes them; a
bound call has arrays that stay, which it reads and writes itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xrt.engines import RunOptions
from xrt.errors import XRTError
from xrt.forking import renew_after_fork
from xrt.graph import TensorType, Type
from xrt.runtime.multi_device.transfer_plan import HOST, DeviceLaunch
from xrt.runtime.program import DEFAULT

if TYPE_CHECKING:
    from xrt.runtime.devices.interface import Array, GraphCapture, Stream
    from xrt.runtime.multi_device.call import DeviceCall
    from xrt.runtime.multi_device.program import MultiDeviceProgram

__all__ = ["CapturedCall"]

_log = logging.getLogger(__name__)


class CapturedCall:
    """A program's recording, or the reason why it has none. Calls go on one stream, one after the other."""

    def __init__(self, program: MultiDeviceProgram, buffers: Sequence[Array] | None = None) -> None:
        """With ``buffers`` every call is given the same inputs, and leaves its outputs in those."""
        self._program = program
        self._buffers = buffers
        self._reason = why_not_capturable(program)
        self._recording: GraphCapture | None = None
        self._inputs: dict[int, Array] = {}
        self._outputs: list[Array] = []
        self._lock = renew_after_fork(threading.Lock())

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the outputs of a replayed call; None where it must be played. The first call records."""
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
            if not is_first:  # those of the first are there, for it was recorded with them
                self._fill(inputs, call)
            try:
                fresh = [self._allocated(output, stream) for output in self._outputs] if self._buffers is None else []
                self._recording.replay(stream)  # type: ignore[union-attr]  # `_recorded` said so
                call.held[program.plan.device] += [self._recording, self._outputs]  # and with it the memory that it works in
                for result, output in zip(fresh, self._outputs if fresh else (), strict=True):
                    program.home().copy_within(result, output, stream)
            finally:
                program.hold(call)
        return fresh if self._buffers is None else list(self._buffers)

    def _recorded(self, inputs: Sequence[Any]) -> bool:
        """Record a call; where that fails the reason stays, and calls are played."""
        program, call = self._program, self._program.call()
        device, stream = program.home(), call.streams[program.plan.device]
        alone = device.new_stream()  # what other threads put on the module's stream meanwhile is no part of the recording
        try:
            program.begin(DEFAULT, call.streams)
            self._inputs = {i: x if self._stays(x) else self._allocated(x, stream) for i, x in enumerate(inputs)}
            self._fill(inputs, call)
            device.follow(alone, stream)
            self._recording = device.record(alone, lambda: self._work(alone))
        except Exception as error:  # noqa: BLE001  # a library may raise anything where it cannot be recorded
            said = str(error) if isinstance(error, XRTError) else f"{type(error).__name__}: {error}"
            self._reason = f"recording a call failed: {' '.join(said.split())}"
            device.wait([alone])  # what was begun there uses memory that is now let go
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

    def _stays(self, value: Any) -> bool:
        """Whether an input is read in place."""
        return self._buffers is not None and self._program.is_at_home(value)

    def _fill(self, inputs: Sequence[Any], call: DeviceCall) -> None:
        """Copy the inputs of a call to where the recording reads them."""
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
        """Let go of the recording and of its memory."""
        self._recording, self._inputs, self._outputs = None, {}, []

    def __str__(self) -> str:
        if self._reason:
            return f"no graph: {self._reason}"
        return "a graph of the device" if self._recording is not None else "a graph of the device, from the first call on"


def why_not_capturable(program: MultiDeviceProgram) -> str:
    """Return why no call of the program can be recorded; empty where one may be."""
    plan, route = program.plan, program.route
    if plan.device == HOST:
        return "values come in and go out on the cpu"
    if plan.function.aliases or route.constants:
        return "it updates inputs in place, or returns constants"
    for value in (*plan.function.inputs, *plan.function.outputs):
        if not _is_fixed(value.type):
            return f"{value.name!r} is {value.type}, whose size may change"
    launches = [action for action in route.actions if isinstance(action, DeviceLaunch)]
    for one in launches:
        launch = one.step.launch
        if one.device != plan.device:
            return f"{launch.name} runs on {one.device}"
        if reason := one.step.executable.why_not_capturable():
            return f"{launch.name} on {launch.engine}: {reason}"
    return "" if launches else "nothing is launched"


def _is_fixed(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and type_.is_static
