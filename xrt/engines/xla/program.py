"""A Function compiled ahead of time: traced once, compiled once, with its large constants as arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding
from jaxlib import xla_client

from xrt.engines.xla import client
from xrt.engines.xla.client import configure_tracing, get_client_device
from xrt.engines.xla.export import is_known, lower
from xrt.errors import CompileRefused
from xrt.graph import Function, TensorType, Value

if TYPE_CHECKING:
    from xrt.engines.xla.kernels import Operand


OPTIONS = {"xla_allow_excess_precision": False}
"""XLA's options, defaults aside: each operator's result has the precision of its type, as it has where a graph is cut."""
Call = Callable[..., Sequence[Any]]
"""Takes the inputs and then the held constants, and returns the outputs, as JAX's arrays; inputs may be NumPy's."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The constants that are arguments of the compiled code, in its order, and where they lie."""

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    """On the device: the constants' own memory where it is aligned, copies otherwise."""
    copied: int
    """Bytes of those that are copies."""

    @classmethod
    def of(cls, function: Function, device: Any) -> Arguments:
        """Put the large constants that the Function reads onto the device."""
        read = dict.fromkeys(name for node in function.nodes for name in node.uses if name in function.constants)
        names = tuple(name for name in read if not is_known(function.constants[name]))
        own = [function.constants[name].array for name in names]
        with configure_tracing(device):
            arrays = tuple(jax.device_put(array, device) for array in own)
        copied = sum(array.nbytes for array, held in zip(own, arrays, strict=True) if not split_threads(array, held))
        return cls(names, arrays, copied)


def split_threads(array: np.ndarray[Any, Any], held: Any) -> bool:
    """Whether one of JAX's arrays shares the memory of the array that it was made from."""
    return bool(array.__array_interface__["data"][0] == held.unsafe_buffer_pointer())


@dataclass(frozen=True, slots=True)
class XlaProgram:
    """Compiled code, and its arguments other than the inputs."""

    call: Call
    device: Any
    arguments: Arguments
    code: Any
    """XLA's loaded executable."""
    donates: bool
    """Whether a call uses up the memory of some of its inputs, where that is XLA's own."""

    @property
    def workspace(self) -> int:
        """Bytes that inner values take in each call."""
        return int(self.code.get_compiled_memory_stats().temp_size_in_bytes)


def compile_program(function: Function, threads: int) -> XlaProgram:
    """Return the Function compiled for a budget of threads; raises CompileRefused, and whatever JAX and XLA raise."""
    if not client.clients.can_compile:
        said = "XLA has compiled in the process that this one was forked from, and cannot do so in both"
        raise CompileRefused(said) from OSError("forked")  # of this process, and not for the cache on disk
    client.clients.has_compiled = True
    device = get_client_device(threads)
    arguments = Arguments.of(function, device)
    with client.fork_guard.hold(), configure_tracing(device):
        compiled = _lowered(function, arguments, device).compile(compiler_options=OPTIONS)
        call = _widely(compiled) if _has_wide(function) else compiled
    return XlaProgram(call, device, arguments, compiled.runtime_executable(), bool(_donated(function)))


def dump_hlo(function: Function) -> str:
    """Return the Function as StableHLO, the form in which XLA gets it."""
    device = get_client_device(1)
    with configure_tracing(device):
        return str(_lowered(function, Arguments.of(function, device), device).as_text())


def _lowered(function: Function, arguments: Arguments, device: Any) -> Any:
    names = (*(value.name for value in function.inputs), *arguments.names)
    here = SingleDeviceSharding(device)

    def main(*operands: Operand) -> tuple[Operand, ...]:
        given = dict(zip(names, operands, strict=True))
        inputs = [given[value.name] for value in function.inputs]
        return tuple(map(jnp.asarray, lower(function, inputs, {name: given[name] for name in arguments.names})))

    jitted = jax.jit(main, keep_unused=True, in_shardings=here, out_shardings=here, donate_argnums=_donated(function))
    return jitted.lower(*map(_shape, function.inputs), *arguments.arrays)


def _shape(value: Value) -> Any:
    assert isinstance(value.type, TensorType)  # the capability has declined everything else
    return jax.ShapeDtypeStruct(value.type.shape or (), value.type.dtype.numpy)


def _donated(function: Function) -> tuple[int, ...]:
    """Return which inputs' buffers XLA may compute into: those that hold an output after the call."""
    places = {value.name: place for place, value in enumerate(function.inputs)}
    outputs = {value.name for value in function.outputs}
    return tuple(sorted(places[source] for source, output in function.aliases if output in outputs - places.keys()))


WIDE = frozenset({"int64", "uint64", "float64"})


def _has_wide(function: Function) -> bool:
    """Whether JAX would by default narrow an input at a call."""
    return any(isinstance(value.type, TensorType) and str(value.type.dtype) in WIDE for value in function.inputs)


def _widely(compiled: Call) -> Call:
    enable = jax.enable_x64

    def call(*operands: Any) -> Sequence[Any]:
        with enable(True):
            return compiled(*operands)

    return call


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
