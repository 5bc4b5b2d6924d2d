"""Compile a Function ahead of time, with its large constants as arguments, and run the code on NumPy arrays."""

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
from xrt.engines.xla.export import is_known, lower_function
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Function, TensorType, Value
from xrt.graph.constants import ALIGNMENT, make_aligned_array

if TYPE_CHECKING:
    from xrt.engines.xla.kernels import Operand


Array = np.ndarray[Any, Any]

# ---------------------------------------------------------------------- compile, save and load

COMPILER_OPTIONS = {"xla_allow_excess_precision": False}
"""Options of XLA: round each result to its type, as ONNX does, also within a fused loop."""
Call = Callable[..., Sequence[Any]]
"""``f(*inputs, *constants)`` returns the outputs as JAX arrays. Inputs may be NumPy arrays."""


@dataclass(frozen=True, slots=True)
class ConstantArguments:
    """The large constants of a Function, which are arguments of the compiled code after the inputs."""

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    """JAX arrays, which share the memory of constants that are aligned, and are copies of others."""
    copied_bytes: int
    """Total size of the copies."""

    @classmethod
    def from_function(cls, function: Function, device: Any) -> ConstantArguments:
        """Make JAX arrays on the device for the large constants that the Function uses."""
        used_names = dict.fromkeys(name for node in function.nodes for name in node.uses if name in function.constants)
        names = tuple(name for name in used_names if not is_known(function.constants[name]))
        constants = [function.constants[name].array for name in names]
        with configure_tracing(device):
            arrays = tuple(jax.device_put(array, device) for array in constants)
        copied_bytes = sum(array.nbytes for array, copy in zip(constants, arrays, strict=True) if not shares_memory(array, copy))
        return cls(names, arrays, copied_bytes)


def shares_memory(array: np.ndarray[Any, Any], device_array: Any) -> bool:
    """Whether a JAX array has the memory of the NumPy array that it was created from."""
    return bool(array.__array_interface__["data"][0] == device_array.unsafe_buffer_pointer())


@dataclass(frozen=True, slots=True)
class XlaProgram:
    """Compiled code and its constant arguments."""

    call: Call
    device: Any
    arguments: ConstantArguments
    code: Any
    """XLA's loaded executable."""
    donates_inputs: bool
    """Whether a call may reuse the memory of an input for an output, so that a JAX array passed as input is invalid
    afterwards."""

    @property
    def workspace(self) -> int:
        """Bytes of temporary memory per call."""
        return int(self.code.get_compiled_memory_stats().temp_size_in_bytes)


def compile_program(function: Function, threads: int) -> XlaProgram:
    """Compile a Function for a number of threads. Raises CompileRefused in a forked child, and any error of JAX and XLA."""
    if not client.clients.can_compile:
        # XLA's compiler would abort the process, which cannot be caught.
        reason = "XLA has compiled in the process that this one was forked from, and cannot do so in both"
        # With an OSError as cause the error is not stored in the disk cache, because it holds for this process only.
        raise CompileRefused(reason) from OSError("forked")
    # Set before the compile, so that a child forked during it does not compile either.
    client.clients.has_compiled = True
    device = get_client_device(threads)
    arguments = ConstantArguments.from_function(function, device)
    with client.fork_guard.hold(), configure_tracing(device):
        compiled = _lower_function(function, arguments, device).compile(compiler_options=COMPILER_OPTIONS)
        # JAX converts 64-bit inputs to 32 bits unless x64 is enabled in the calling thread. Enabling it takes time.
        call = _enable_x64(compiled) if _has_64_bit_inputs(function) else compiled
    return XlaProgram(call, device, arguments, compiled.runtime_executable(), bool(_list_donated_inputs(function)))


def _lower_function(function: Function, arguments: ConstantArguments, device: Any) -> Any:
    """Trace a Function to a JAX computation with the inputs and the constant arguments as parameters."""
    names = (*(value.name for value in function.inputs), *arguments.names)
    target = SingleDeviceSharding(device)

    def main(*operands: Operand) -> tuple[Operand, ...]:
        values = dict(zip(names, operands, strict=True))
        inputs = [values[value.name] for value in function.inputs]
        return tuple(map(jnp.asarray, lower_function(function, inputs, {name: values[name] for name in arguments.names})))

    # Keep unused inputs as arguments, because calls pass all inputs.
    jitted = jax.jit(
        main, keep_unused=True, in_shardings=target, out_shardings=target, donate_argnums=_list_donated_inputs(function)
    )
    return jitted.lower(*map(_make_shape_struct, function.inputs), *arguments.arrays)


def _make_shape_struct(value: Value) -> Any:
    assert isinstance(value.type, TensorType)  # support.py rejects all other types
    return jax.ShapeDtypeStruct(value.type.shape or (), value.type.dtype.numpy)


def _list_donated_inputs(function: Function) -> tuple[int, ...]:
    """List the indices of the inputs whose memory XLA may reuse for an output, because the Function declares them as aliases."""
    indices = {value.name: index for index, value in enumerate(function.inputs)}
    outputs = {value.name for value in function.outputs}
    return tuple(sorted(indices[source] for source, output in function.aliases if output in outputs - indices.keys()))


TYPES_64_BIT = frozenset({"int64", "uint64", "float64"})


def _has_64_bit_inputs(function: Function) -> bool:
    """Whether the Function has an input that JAX would convert to 32 bits by default."""
    return any(isinstance(value.type, TensorType) and str(value.type.dtype) in TYPES_64_BIT for value in function.inputs)


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
    call = _make_call(code, function.inputs, device)
    donates_inputs = bool(_list_donated_inputs(function))
    return XlaProgram(call, device, ConstantArguments.from_function(function, device), code, donates_inputs)


def _make_call(code: Any, inputs: Sequence[Value], device: Any) -> Call:
    """Make the function that calls loaded code. Inputs are not copied if XLA accepts their memory."""
    count, devices, sharding = len(inputs), [device], SingleDeviceSharding(device)
    types = [ShapedArray(value.type.shape, value.type.dtype.numpy) for value in inputs if isinstance(value.type, TensorType)]
    put, execute = xla_client.batched_device_put, code.execute

    def call(*operands: Any) -> Sequence[Any]:
        buffers = [put(type_, sharding, [x], devices, enable_x64=True) for type_, x in zip(types, operands[:count], strict=True)]
        return execute([*buffers, *operands[count:]])  # type: ignore[no-any-return]  # the library returns a list

    return call


MAX_SYNCHRONOUSLY_COPIED_BYTES = 100 * 1024
"""XLA copies unaligned inputs up to this size in the calling thread, and larger ones in another thread."""

MAX_COPIED_BYTES = 32 * 1024
"""Results up to this size are copied out of XLA's memory. For larger ones a writable alias is faster."""


class XlaExecutable(Executable):
    """Runs compiled code. Calls share no state, so they may be concurrent."""

    outputs_are_fresh = True

    def __init__(self, program: XlaProgram, function: Function, threads: int) -> None:
        self.program = program
        self.function = function
        self._threads = threads
        self._clients = client.clients
        self._name = function.name
        # Kept, because XLA can serialize only code that it compiled itself. If it serializes loaded code, the result lacks the
        # fused loops, and a call of it fails with "Function ... not found".
        self.saved: memoryview | None = None
        """The bytes that this was loaded from; None if it was compiled."""

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        out = options.host_buffers
        # In a forked child, whose clients are new, reload the program for one of these.
        program = self.program if self._clients is client.clients else self._reload()
        try:
            # Convert the results here too, because JAX raises errors of the computation only then.
            results = [np.asarray(result) for result in program.call(*map(_align_input, inputs), *program.arguments.arrays)]
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
                results = [np.asarray(result) for result in call(*map(_align_input, inputs), *constants)]
            except Exception as cause:  # noqa: BLE001  # retried, in case user settings caused it, and raised if that fails
                results = retry(inputs, cause)
            return [_to_owned_array(result) for result in results]

        return run

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Make JAX arrays of the inputs once, if XLA can read them in place. Each call copies the results to ``outputs``."""
        program = self.program
        shared = _share_inputs(inputs, program)
        if shared is None:
            return super().bind(inputs, outputs)
        call = program.call
        operands = (*shared, *program.arguments.arrays)
        # After a fork or a reload the JAX arrays belong to another client, so use the ordinary call.
        fallback = super().bind(inputs, outputs)

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
        """Call again without settings of JAX that break calls (debug_nans, disable_jit). Raises RunFailed if that fails too."""
        try:
            with configure_tracing(self.program.device):
                return [np.asarray(result) for result in self.program.call(*inputs, *self.program.arguments.arrays)]
        except Exception:  # noqa: BLE001  # the first error is more informative
            raise RunFailed(f"XLA failed while it ran {self._name!r}: {summarize_error(cause)}") from cause

    def _reload(self) -> XlaProgram:
        """Load the program to a client of this process, which was forked from the one that compiled or loaded it."""
        # The first thread reloads the program. Others wait and then find it replaced.
        with client.clients.reload_lock:
            if self._clients is not client.clients:
                if self.saved is None:
                    self.saved = memoryview(export_program(self.program))
                self.program, self._clients = load_program(self.saved, self.function, self._threads), client.clients
        return self.program

    def memory(self) -> tuple[MemoryUse, ...]:
        program = self.program
        why = "weights that are not aligned to 64 bytes are copied, because XLA requires that"
        copies = (MemoryUse("copied weights", program.arguments.copied_bytes, why),) if program.arguments.copied_bytes else ()
        return *copies, MemoryUse("workspace", program.workspace, "inner values, as planned by the compiler", per_call=True)


def _share_inputs(inputs: Sequence[Array], program: XlaProgram) -> list[Any] | None:
    """Make JAX arrays that share the memory of the inputs, so that they see later writes; None if one would be a copy."""
    if program.donates_inputs:
        return None  # a call would make the arrays invalid
    with configure_tracing(program.device):
        arrays = [jax.device_put(x, program.device) for x in inputs]
    return arrays if all(shares_memory(x, array) for x, array in zip(inputs, arrays, strict=True)) else None


def _align_input(x: Any) -> Any:
    """Copy a large input that is not aligned to an aligned array. Otherwise XLA would copy it, and compute, in another thread."""
    if not isinstance(x, np.ndarray) or x.nbytes <= MAX_SYNCHRONOUSLY_COPIED_BYTES or x.ctypes.data % ALIGNMENT == 0:
        return x
    aligned = make_aligned_array(x.shape, x.dtype)
    np.copyto(aligned, x)
    return aligned


def _to_owned_array(view: Array) -> Array:
    """Convert a read-only result to an array that the caller may write to: a copy if it is small, else an alias."""
    if view.nbytes <= MAX_COPIED_BYTES:
        return view.copy()
    return make_writable_alias(view)


def _write_result(view: Array, buffer: Array | None) -> Array:
    return _to_owned_array(view) if buffer is None else fill(buffer, view)
