"""A Function compiled ahead of time, with its large constants as arguments, and its calls on NumPy arrays."""

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

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.toolkit.memory import make_writable_alias
from xrt.engines.xla import client
from xrt.engines.xla.client import configure_tracing, get_client_device, summarize_error
from xrt.engines.xla.export import is_known, lower
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Function, TensorType, Value
from xrt.graph.constants import ALIGNMENT, make_aligned_array

if TYPE_CHECKING:
    from xrt.engines.xla.kernels import Operand


Array = np.ndarray[Any, Any]

# ---------------------------------------------------------------------- compile, save and load

OPTIONS = {"xla_allow_excess_precision": False}
"""Non-default XLA options: each result is rounded to its type, as at the boundaries of a partitioned graph."""
Call = Callable[..., Sequence[Any]]
"""Maps the inputs, followed by the constant arguments, to the outputs as JAX arrays. Inputs may be NumPy arrays."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The constants that are arguments of the compiled code, in order, and their arrays on the device."""

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    """Device arrays: the constants' memory itself where it is aligned, copies otherwise."""
    copied: int
    """Total bytes of the arrays that are copies."""

    @classmethod
    def of(cls, function: Function, device: Any) -> Arguments:
        """Transfer the large constants that the Function reads to the device."""
        used_names = dict.fromkeys(name for node in function.nodes for name in node.uses if name in function.constants)
        names = tuple(name for name in used_names if not is_known(function.constants[name]))
        constants = [function.constants[name].array for name in names]
        with configure_tracing(device):
            arrays = tuple(jax.device_put(array, device) for array in constants)
        copied = sum(array.nbytes for array, copy in zip(constants, arrays, strict=True) if not shares_memory(array, copy))
        return cls(names, arrays, copied)


def shares_memory(array: np.ndarray[Any, Any], device_array: Any) -> bool:
    """Whether a JAX array aliases the NumPy array that it was created from."""
    return bool(array.__array_interface__["data"][0] == device_array.unsafe_buffer_pointer())


@dataclass(frozen=True, slots=True)
class XlaProgram:
    """Compiled code and its constant arguments."""

    call: Call
    device: Any
    arguments: Arguments
    code: Any
    """XLA's loaded executable."""
    donates: bool
    """Whether a call may consume the buffers of some inputs, if XLA owns them."""

    @property
    def workspace(self) -> int:
        """Bytes of temporary memory per call."""
        return int(self.code.get_compiled_memory_stats().temp_size_in_bytes)


def compile_program(function: Function, threads: int) -> XlaProgram:
    """Compile a Function for a thread budget; raises CompileRefused, and any error of JAX and XLA."""
    if not client.clients.can_compile:
        # Its compiler would abort the process, which cannot be caught.
        reason = "XLA has compiled in the process that this one was forked from, and cannot do so in both"
        raise CompileRefused(reason) from OSError("forked")  # an OSError is not cached on disk: it concerns this process only
    # Before the compile, so that a child forked in the middle of it does not compile either.
    client.clients.has_compiled = True
    device = get_client_device(threads)
    arguments = Arguments.of(function, device)
    with client.fork_guard.hold(), configure_tracing(device):
        compiled = _lower_function(function, arguments, device).compile(compiler_options=OPTIONS)
        # JAX converts 64-bit inputs at each call unless the setting is on in the calling thread, too; setting it takes time.
        call = _enable_x64(compiled) if _has_wide(function) else compiled
    return XlaProgram(call, device, arguments, compiled.runtime_executable(), bool(_list_donated(function)))


def _lower_function(function: Function, arguments: Arguments, device: Any) -> Any:
    names = (*(value.name for value in function.inputs), *arguments.names)
    target = SingleDeviceSharding(device)

    def main(*operands: Operand) -> tuple[Operand, ...]:
        values = dict(zip(names, operands, strict=True))
        inputs = [values[value.name] for value in function.inputs]
        return tuple(map(jnp.asarray, lower(function, inputs, {name: values[name] for name in arguments.names})))

    # Unused inputs stay arguments: calls pass all inputs by position.
    jitted = jax.jit(main, keep_unused=True, in_shardings=target, out_shardings=target, donate_argnums=_list_donated(function))
    return jitted.lower(*map(_make_spec, function.inputs), *arguments.arrays)


def _make_spec(value: Value) -> Any:
    assert isinstance(value.type, TensorType)  # support.py has refused all other types
    return jax.ShapeDtypeStruct(value.type.shape or (), value.type.dtype.numpy)


def _list_donated(function: Function) -> tuple[int, ...]:
    """Positions of the inputs whose buffers XLA may reuse for an output, because an alias pairs them."""
    places = {value.name: place for place, value in enumerate(function.inputs)}
    outputs = {value.name for value in function.outputs}
    return tuple(sorted(places[source] for source, output in function.aliases if output in outputs - places.keys()))


WIDE = frozenset({"int64", "uint64", "float64"})


def _has_wide(function: Function) -> bool:
    """Whether JAX would by default convert an input to 32 bits at a call."""
    return any(isinstance(value.type, TensorType) and str(value.type.dtype) in WIDE for value in function.inputs)


def _enable_x64(compiled: Call) -> Call:
    enable = jax.enable_x64

    def call(*operands: Any) -> Sequence[Any]:
        with enable(True):
            return compiled(*operands)

    return call


def export_program(program: XlaProgram) -> bytes:
    """Serialize the compiled code for `load_program`."""
    return bytes(program.code.client.serialize_executable(program.code))


def load_program(data: memoryview, function: Function, threads: int) -> XlaProgram:
    """Load a program that `export_program` serialized for an equal Function."""
    device = get_client_device(threads)
    devices = xla_client.DeviceList((device,))
    with client.fork_guard.hold():
        code = device.client.deserialize_executable(bytes(data), executable_devices=devices)
    call, donates = _make_call(code, function.inputs, device), bool(_list_donated(function))
    return XlaProgram(call, device, Arguments.of(function, device), code, donates)


def _make_call(code: Any, inputs: Sequence[Value], device: Any) -> Call:
    """Make the function that passes inputs to the runtime, without copying where XLA accepts their memory."""
    count, devices, sharding = len(inputs), [device], SingleDeviceSharding(device)
    types = [ShapedArray(value.type.shape, value.type.dtype.numpy) for value in inputs if isinstance(value.type, TensorType)]
    put, execute = xla_client.batched_device_put, code.execute

    def call(*operands: Any) -> Sequence[Any]:
        buffers = [put(type_, sharding, [x], devices, enable_x64=True) for type_, x in zip(types, operands[:count], strict=True)]
        return execute([*buffers, *operands[count:]])  # type: ignore[no-any-return]  # the library returns a list

    return call


# ---------------------------------------------------------------------- run

COPIED_AT_ONCE = 100 * 1024
"""Bytes up to which XLA copies an input synchronously."""

COPIED = 32 * 1024
"""Bytes up to which a result is copied out of XLA's memory; for larger ones an alias is faster than a copy."""


class XlaExecutable(Executable):
    """Compiled code. It keeps no state of a call, so threads may share it."""

    outputs_are_fresh = True

    def __init__(self, program: XlaProgram, function: Function, threads: int) -> None:
        self.program = program
        self.function = function
        self._threads = threads
        self._clients = client.clients
        self._name = function.name
        # Needed for a second save: XLA can serialize only the code that it compiled itself. What it writes for loaded code
        # lacks the fused loops, and a call of it fails with "Function ... not found".
        self.saved: memoryview | None = None
        """The serialized program, if it was loaded rather than compiled."""

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        out = options.host_buffers
        # The fork handler replaces the clients: those of the parent have no threads here.
        program = self.program if self._clients is client.clients else self._reload()
        try:
            # Read here, too: errors of the computation are raised only where a result is read.
            results = [np.asarray(result) for result in program.call(*map(_align, inputs), *program.arguments.arrays)]
        except Exception as cause:  # noqa: BLE001  # retried, and raised if that fails
            results = self._retry(inputs, cause)
        if out is None:
            return [_to_owned_array(result) for result in results]
        return [_write_result(result, buffer) for result, buffer in zip(results, out, strict=True)]

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        call, constants, retry, run_anywhere = self.program.call, self.program.arguments.arrays, self._retry, self.run
        clients = self._clients

        def run(*inputs: Any) -> Sequence[Any]:
            if clients is not client.clients:  # in a forked child, where `run` reloads the program
                return run_anywhere(inputs)
            try:
                results = [np.asarray(result) for result in call(*map(_align, inputs), *constants)]
            except Exception as cause:  # noqa: BLE001  # retried, in case user settings caused it, and raised if that fails
                results = retry(inputs, cause)
            return [_to_owned_array(result) for result in results]

        return run

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Bind inputs that XLA can read in place; each call copies the results into the output buffers."""
        program, shared = self.program, _share_inputs(inputs, self.program)
        if shared is None:
            return super().bind(inputs, outputs)
        # The ordinary call also serves after a fork and after a reload, whose buffers are others.
        call, operands, fallback = program.call, (*shared, *program.arguments.arrays), super().bind(inputs, outputs)

        def run() -> None:
            if self.program is not program or self._clients is not client.clients:
                return fallback()
            try:
                results = [np.asarray(result) for result in call(*operands)]
            except Exception:  # noqa: BLE001  # retried, in case user settings caused it, and raised if that fails
                return fallback()
            for result, buffer in zip(results, outputs, strict=True):
                fill(buffer, result)
            return None

        return run

    def _retry(self, inputs: Sequence[Any], cause: Exception) -> list[Array]:
        """Retry without user settings that break the call (debug_nans, disable_jit); raises RunFailed if it fails again."""
        try:
            with configure_tracing(self.program.device):
                return [np.asarray(result) for result in self.program.call(*inputs, *self.program.arguments.arrays)]
        except Exception:  # noqa: BLE001  # the first error is more informative
            raise RunFailed(f"XLA failed while it ran {self._name!r}: {summarize_error(cause)}") from cause

    def _reload(self) -> XlaProgram:
        """Reload the program on a client of this process, which was forked from the one that compiled or loaded it."""
        # One thread reloads; the others wait and see the program replaced.
        with client.clients.moving:
            if self._clients is not client.clients:
                if self.saved is None:
                    self.saved = memoryview(export_program(self.program))
                self.program, self._clients = load_program(self.saved, self.function, self._threads), client.clients
        return self.program

    def memory(self) -> tuple[MemoryUse, ...]:
        program = self.program
        why = "weights that do not lie at a multiple of 64 bytes are copied, as XLA wants them there"
        copies = (MemoryUse("copied weights", program.arguments.copied, why),) if program.arguments.copied else ()
        return *copies, MemoryUse("workspace", program.workspace, "inner values, as planned by the compiler", per_call=True)


def _share_inputs(inputs: Sequence[Array], program: XlaProgram) -> list[Any] | None:
    """JAX arrays that share the inputs' memory, so that they see later writes; None if one would be a copy."""
    if program.donates:
        return None  # a call would consume the buffers
    with configure_tracing(program.device):
        arrays = [jax.device_put(x, program.device) for x in inputs]
    return arrays if all(shares_memory(x, array) for x, array in zip(inputs, arrays, strict=True)) else None


def _align(x: Any) -> Any:
    """Align a large input, so that XLA reads it in place: otherwise it would copy it, and compute, in another thread."""
    if not isinstance(x, np.ndarray) or x.nbytes <= COPIED_AT_ONCE or x.ctypes.data % ALIGNMENT == 0:
        return x
    aligned = make_aligned_array(x.shape, x.dtype)
    np.copyto(aligned, x)
    return aligned


def _to_owned_array(view: Array) -> Array:
    """Convert a view of a result to an array owned by the caller: a copy if it is small, a writable alias if large."""
    if view.nbytes <= COPIED:
        return view.copy()
    return make_writable_alias(view)  # nothing else uses the memory, although JAX marks it read-only


def _write_result(view: Array, buffer: Array | None) -> Array:
    return _to_owned_array(view) if buffer is None else fill(buffer, view)
