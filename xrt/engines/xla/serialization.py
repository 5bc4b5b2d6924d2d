"""Compiled code as bytes: XLA's own form of the executable, machine code included.

What else a program needs (which constants are arguments, in which order) follows from the Function. JAX would store an
executable as a pickle; this goes round it, and so calls loaded code through the runtime below JAX: some microseconds more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding
from jaxlib import xla_client

from xrt.engines.xla import client
from xrt.engines.xla.client import get_client_device
from xrt.engines.xla.program import Arguments, Call, XlaProgram
from xrt.graph import Function, TensorType, Value

__all__ = ["export_program", "load_program"]


def export_program(program: XlaProgram) -> bytes:
    """Return the compiled code as `load_program` reads it."""
    return bytes(program.code.client.serialize_executable(program.code))


def load_program(data: memoryview, function: Function, threads: int) -> XlaProgram:
    """Return the program that `exported` wrote, for an equal Function."""
    device = get_client_device(threads)
    devices = xla_client.DeviceList((device,))
    with client.fork_guard.hold():
        code = device.client.deserialize_executable(bytes(data), executable_devices=devices)
    return XlaProgram(_call(code, function.inputs, device), device, Arguments.of(function, device), code, bool(function.aliases))


def _call(code: Any, inputs: Sequence[Value], device: Any) -> Call:
    """Return the function that passes inputs to the runtime, each in its own memory if XLA accepts that."""
    count, devices, here = len(inputs), [device], SingleDeviceSharding(device)
    types = [ShapedArray(value.type.shape, value.type.dtype.numpy) for value in inputs if isinstance(value.type, TensorType)]
    put, execute = xla_client.batched_device_put, code.execute

    def call(*operands: Any) -> Sequence[Any]:
        given = [put(type_, here, [x], devices, enable_x64=True) for type_, x in zip(types, operands[:count], strict=True)]
        return execute([*given, *operands[count:]])  # type: ignore[no-any-return]  # a list, as the library says

    return call
