"""Run a single executable outside a program: on host arrays if it is on a device, and for timing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines import CompileContext, Executable, MemoryUse, RunOptions
from xrt.graph import DType, TensorType
from xrt.runtime.devices.interface import Device, make_out_of_memory_error
from xrt.runtime.devices.registry import device, to_host
from xrt.runtime.memory_plan import is_sized_tensor

if TYPE_CHECKING:
    from xrt.graph import Function


def on_device(name: str, context: CompileContext) -> CompileContext:
    """Open a device and return the compile context for it; raises DeviceError if the device is unavailable."""
    return replace(context, device=name, accelerator=None if name == "cpu" else device(name))


def adapt_to_host(executable: Executable, context: CompileContext) -> Executable:
    """Wrap an executable of an accelerator, so that it accepts and returns host arrays; return other executables as is."""
    accelerator = context.accelerator
    return HostAdapter(executable, accelerator) if isinstance(accelerator, Device) else executable


def make_timed_call(
    executable: Executable, inputs: Sequence[Any], sample_results: Sequence[Any] | None = None, function: Function | None = None
) -> Callable[[], object]:
    """Create a function that runs the executable on these host arrays, for timing.

    With ``sample_results`` the call has the form that it would have between two regions of a plan: if the engine supports it, it
    writes to the same output buffers each time, so that no allocation is measured. If ``function`` updates inputs, the call
    updates copies of them, like a program: in place if the engine supports it, else by copying the output. On a device, the
    inputs are uploaded before the timing, and the function waits for the results.
    """
    # Uploads and downloads would hide the differences between engines.
    if isinstance(executable, HostAdapter):
        return executable.make_timed_call(inputs)
    if function is not None and function.aliases:
        return _make_updating_call(executable, inputs, sample_results, function)
    if sample_results is not None and executable.supports_io_binding() and all(map(_may_be_bound, sample_results)):
        buffers = [np.empty(value.shape, value.dtype) for value in sample_results]
        return executable.bind([_to_c_order(value) for value in inputs], buffers)
    call = executable.fast_call()
    return lambda: call(*inputs)


def _make_updating_call(
    executable: Executable, inputs: Sequence[Any], sample_results: Sequence[Any] | None, function: Function
) -> Callable[[], object]:
    """Create the timed call of a region that updates inputs, on copies of these inputs."""
    input_indices = {value.name: index for index, value in enumerate(function.inputs)}
    output_indices = {value.name: index for index, value in enumerate(function.outputs)}
    updates = [(input_indices[before], output_indices[after]) for before, after in function.aliases]
    arguments = [_to_c_order(value) for value in inputs]
    # Timing must not change the caller's arrays.
    for input_index, _ in updates:
        arguments[input_index] = np.array(arguments[input_index], order="C")
    pairs = frozenset(executable.inplace_pairs())
    # As in a program, the engine writes to the input's array if it can; otherwise the result is copied to it.
    inplace: dict[int, Any] = {}
    copied = []
    for input_index, output_index in updates:
        if (input_index, output_index) in pairs:
            inplace[output_index] = arguments[input_index]
        else:
            copied.append((arguments[input_index], output_index))
    if not copied and sample_results is not None and executable.supports_io_binding() and all(map(_may_be_bound, sample_results)):
        buffers = [
            np.empty(value.shape, value.dtype) if n not in inplace else inplace[n] for n, value in enumerate(sample_results)
        ]
        return executable.bind(arguments, buffers)
    call: Callable[[], Sequence[Any]]
    if inplace:
        options = RunOptions(out=tuple(inplace.get(n) for n in range(len(function.outputs))))
        call = partial(executable.run, arguments, options)
    else:
        call = partial(executable.fast_call(), *arguments)

    def run() -> None:
        results = call()
        for array, output_index in copied:
            if results[output_index] is not array:
                np.copyto(array, results[output_index])

    return run


def _may_be_bound(value: Any) -> bool:
    """Whether a program can store a result like this one at a fixed address."""
    return isinstance(value, np.ndarray) and is_sized_tensor(TensorType(DType.from_array(value), value.shape))


def _to_c_order(value: Any) -> Any:
    return np.asarray(value, order="C") if isinstance(value, np.ndarray) else value


def upload(values: Sequence[Any], where: Device) -> list[Any]:
    """Copy host arrays to a device on the current stream; other values are unchanged."""
    uploaded: list[Any] = []
    for value in values:
        if isinstance(value, list):
            uploaded.append(upload(value, where))
        else:
            uploaded.append(where.upload(value) if isinstance(value, np.ndarray) else value)
    return uploaded


class HostAdapter(Executable):
    """Runs an executable of a device on host arrays: uploads the inputs, and waits for and downloads the outputs."""

    outputs_are_fresh = True

    def __init__(self, inner: Executable, where: Device) -> None:
        self.inner = inner
        self.where = where
        self.stream = where.new_stream()

    def prepare(self) -> None:
        with self._convert_shortage():
            self.inner.prepare()

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        where = self.where
        with where.activate(self.stream), self._convert_shortage():
            results: list[Any] = to_host(list(self.inner.run(upload(inputs, where), RunOptions(stream=self.stream))))
            return results

    def make_timed_call(self, inputs: Sequence[Any]) -> Callable[[], object]:
        """Create a function that runs on inputs that are uploaded now, and waits without downloading the results."""
        where, stream, options = self.where, self.stream, RunOptions(stream=self.stream)
        with where.activate(stream), self._convert_shortage():
            uploaded = upload(inputs, where)

        def call() -> None:
            with where.activate(stream):
                self.inner.run(uploaded, options)
            where.wait([stream])

        return call

    @contextmanager
    def _convert_shortage(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  # only out-of-memory errors are converted
            raise make_out_of_memory_error(self.where, error, "a region that runs alone") or error  # noqa: B904

    def memory(self) -> Sequence[MemoryUse] | None:
        return self.inner.memory()

    def close(self) -> None:
        # Queued work may still use the executable's memory.
        self.where.wait([self.stream])
        self.inner.close()
