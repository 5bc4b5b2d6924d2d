"""Compile a Function with XLA, and run the compiled code on NumPy arrays. Large constants are arguments of the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding
from jaxlib import xla_client

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.memory import make_writable_alias
from xrt.engines.xla import client
from xrt.engines.xla.client import configure_tracing, get_client_device
from xrt.engines.xla.export import lower_function
from xrt.engines.xla.kernels import MAX_KNOWN_ELEMENTS, Operand
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Function, TensorType, Value
from xrt.graph.constants import ALIGNMENT, make_aligned_array

Array = np.ndarray[Any, Any]
COMPILER_OPTIONS = {"xla_allow_excess_precision": False}
"""Options of XLA: round each result to its type, also within a fused loop, as ONNX specifies."""
Call = Callable[..., Sequence[Any]]
"""``f(*inputs, *constants)`` returns the outputs as JAX arrays. Inputs may be NumPy arrays."""


@dataclass(frozen=True, slots=True)
class ConstantArguments:
    """The large constants of a Function. The compiled code has them as arguments after the inputs."""

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    """JAX arrays. They share the memory of aligned constants, and are copies of others."""
    copied_bytes: int

    @classmethod
    def from_function(cls, function: Function, device: Any) -> ConstantArguments:
        """Pass constants that nodes use and that have more than `MAX_KNOWN_ELEMENTS` elements; the code contains the others.

        The order is that of first use, which is the same for equal Functions: code that was saved has the same arguments.
        """
        used_names = dict.fromkeys(name for node in function.nodes for name in node.uses if name in function.constants)
        names = tuple(name for name in used_names if function.constants[name].array.size > MAX_KNOWN_ELEMENTS)
        constants = [function.constants[name].array for name in names]
        with configure_tracing(device):
            arrays = tuple(jax.device_put(array, device) for array in constants)
        copied_bytes = sum(array.nbytes for array, copy in zip(constants, arrays, strict=True) if not shares_memory(array, copy))
        return cls(names, arrays, copied_bytes)


def shares_memory(array: np.ndarray[Any, Any], device_array: Any) -> bool:
    """Whether a JAX array shares the memory of the NumPy array from which it was created."""
    return bool(array.__array_interface__["data"][0] == device_array.unsafe_buffer_pointer())


@dataclass(frozen=True, slots=True)
class XlaProgram:
    """The compiled code of a Function and its constant arguments."""

    call: Call
    device: Any
    arguments: ConstantArguments
    code: Any
    """XLA's loaded executable."""
    donates_inputs: bool
    """Whether a call may overwrite an input, which invalidates it if it is a JAX array."""

    @property
    def workspace(self) -> int:
        """Bytes of temporary memory per call."""
        return int(self.code.get_compiled_memory_stats().temp_size_in_bytes)


def compile_program(function: Function, threads: int) -> XlaProgram:
    """Compile a Function. Raises CompileRefused in a forked child that cannot compile, or any error of JAX and XLA."""
    if not client.clients.can_compile:
        # XLA's compiler would abort the process.
        reason = "XLA has compiled in the process that this one was forked from, and cannot do so in both"
        # With an OSError as its cause, the disk cache does not store the error, which applies to this process only.
        raise CompileRefused(reason) from OSError("forked")
    # Set before the compile, so that a child that is forked during the compile does not compile either.
    client.clients.has_compiled = True
    device = get_client_device(threads)
    arguments = ConstantArguments.from_function(function, device)
    with client.fork_guard.hold(), configure_tracing(device):
        compiled = _lower_function(function, arguments, device).compile(compiler_options=COMPILER_OPTIONS)
        call = _enable_x64(compiled, function)
    return XlaProgram(call, device, arguments, compiled.runtime_executable(), bool(_list_donated_inputs(function)))


def _lower_function(function: Function, arguments: ConstantArguments, device: Any) -> Any:
    """Trace a Function to a JAX computation whose arguments are the inputs and the constant arguments."""
    names = (*(value.name for value in function.inputs), *arguments.names)
    target = SingleDeviceSharding(device)

    def main(*operands: Operand) -> tuple[Operand, ...]:
        values = dict(zip(names, operands, strict=True))
        inputs = [values[value.name] for value in function.inputs]
        constants = {name: values[name] for name in arguments.names}
        return tuple(map(jnp.asarray, lower_function(function, inputs, constants)))

    # Keep arguments for unused inputs, because calls pass all inputs.
    donated = _list_donated_inputs(function)
    jitted = jax.jit(main, keep_unused=True, in_shardings=target, out_shardings=target, donate_argnums=donated)
    types = [value.type for value in function.inputs if isinstance(value.type, TensorType)]  # support.py rejects other types
    inputs = [jax.ShapeDtypeStruct(type_.shape or (), type_.dtype.numpy) for type_ in types]
    return jitted.lower(*inputs, *arguments.arrays)


def _list_donated_inputs(function: Function) -> tuple[int, ...]:
    """List the indices of the inputs that XLA may overwrite with an output, because the Function declares an alias for them."""
    input_indices = {value.name: index for index, value in enumerate(function.inputs)}
    # An output that is an input itself does not overwrite the other input.
    computed_outputs = {value.name for value in function.outputs} - input_indices.keys()
    return tuple(sorted(input_indices[source] for source, output in function.aliases if output in computed_outputs))


def _enable_x64(compiled: Call, function: Function) -> Call:
    """Make a call that accepts 64-bit inputs, which JAX otherwise converts to 32 bits; without such inputs, ``compiled``."""
    types = [value.type for value in function.inputs]
    if not any(isinstance(type_, TensorType) and type_.dtype.bits == 64 for type_ in types):
        return compiled
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
    """Make the function that calls loaded code. Inputs are copied only if they are not aligned for XLA.

    Compiled code converts NumPy arrays itself. Loaded code does not, so the inputs are put on the device; constants are already.
    """
    num_inputs = len(inputs)
    devices = [device]
    sharding = SingleDeviceSharding(device)
    types = [ShapedArray(value.type.shape, value.type.dtype.numpy) for value in inputs if isinstance(value.type, TensorType)]
    put, execute = xla_client.batched_device_put, code.execute

    def call(*operands: Any) -> Sequence[Any]:
        pairs = zip(types, operands[:num_inputs], strict=True)
        buffers = [put(type_, sharding, [x], devices, enable_x64=True) for type_, x in pairs]
        return execute([*buffers, *operands[num_inputs:]])  # type: ignore[no-any-return]  # the library returns a list

    return call


MAX_SYNCHRONOUSLY_COPIED_BYTES = 100 * 1024
"""XLA copies an unaligned input of at most this size in the calling thread, and a larger one in another thread."""
MAX_COPIED_BYTES = 32 * 1024
"""A result of at most this size is copied from XLA's memory. For a larger result, a writable view is faster."""


class XlaExecutable(Executable):
    """Runs the compiled code of a Function."""

    outputs_are_fresh = True

    def __init__(self, program: XlaProgram, function: Function, threads: int) -> None:
        self.program = program
        self.function = function
        self._threads = threads
        self._clients = client.clients
        self._name = function.name
        # `save` needs these bytes. If XLA serialized loaded code, the result would lack the fused loops, and calls would fail
        # with "Function ... not found".
        self.saved: memoryview | None = None
        """The bytes from which the code was loaded; None if it was compiled."""

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        out = options.host_buffers
        # A forked child has new clients, so reload the program for one of these.
        program = self.program if self._clients is client.clients else self._reload()
        try:
            # Convert the results in this block, because JAX raises errors of the computation only then.
            results = [np.asarray(result) for result in program.call(*map(_align_input, inputs), *program.arguments.arrays)]
        except Exception as cause:  # noqa: BLE001  # `_retry` raises it if a second attempt fails too
            results = self._retry(inputs, cause)
        if out is None:
            return [_to_owned_array(result) for result in results]
        pairs = zip(results, out, strict=True)
        return [_to_owned_array(result) if buffer is None else fill(buffer, result) for result, buffer in pairs]

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        call, constants = self.program.call, self.program.arguments.arrays
        retry, run_anywhere = self._retry, self.run
        clients = self._clients

        def run(*inputs: Any) -> Sequence[Any]:
            if clients is not client.clients:  # in a forked child, where `run` reloads the program
                return run_anywhere(inputs)
            try:
                results = [np.asarray(result) for result in call(*map(_align_input, inputs), *constants)]
            except Exception as cause:  # noqa: BLE001  # `retry` raises it if a second attempt fails too
                results = retry(inputs, cause)
            return [_to_owned_array(result) for result in results]

        return run

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """If XLA can read the memory of the inputs, make JAX arrays of them only once."""
        program = self.program
        shared = _share_inputs(inputs, program)
        if shared is None:
            return super().bind(inputs, outputs)
        call = program.call
        operands = (*shared, *program.arguments.arrays)
        # Used after a fork or a reload, because the JAX arrays belong to another client then.
        fallback = super().bind(inputs, outputs)

        def run() -> None:
            # A forked child has new clients, and its first `run` reloads the program.
            if self.program is not program or self._clients is not client.clients:
                return fallback()
            try:
                results = [np.asarray(result) for result in call(*operands)]
            except Exception:  # noqa: BLE001  # the fallback raises it if a second attempt fails too
                return fallback()
            for result, buffer in zip(results, outputs, strict=True):
                fill(buffer, result)
            return None

        return run

    def _retry(self, inputs: Sequence[Any], cause: Exception) -> list[Array]:
        """Call again without the user's settings of JAX, which may have failed the call (debug_nans, disable_jit).

        Raises RunFailed with the first error if this attempt fails too.
        """
        try:
            with configure_tracing(self.program.device):
                return [np.asarray(result) for result in self.program.call(*inputs, *self.program.arguments.arrays)]
        except Exception:  # noqa: BLE001  # the first error says more
            raise RunFailed(f"XLA failed while it ran {self._name!r}: {summarize_error(cause)}") from cause

    def _reload(self) -> XlaProgram:
        """Load the program again, to a client of this process: a parent process has compiled or loaded it."""
        # Only the first of several threads reloads the program.
        with client.clients.reload_lock:
            if self._clients is not client.clients:
                if self.saved is None:
                    self.saved = memoryview(export_program(self.program))
                self.program = load_program(self.saved, self.function, self._threads)
                self._clients = client.clients
        return self.program

    def memory(self) -> tuple[MemoryUse, ...]:
        program = self.program
        why = "weights that are not aligned to 64 bytes are copied, because XLA requires that"
        copies = (MemoryUse("copied weights", program.arguments.copied_bytes, why),) if program.arguments.copied_bytes else ()
        return *copies, MemoryUse("workspace", program.workspace, "inner values, as planned by the compiler", per_call=True)


def _share_inputs(inputs: Sequence[Array], program: XlaProgram) -> list[Any] | None:
    """Make JAX arrays that share the memory of the inputs. None if one would be a copy, or a call would invalidate it."""
    if program.donates_inputs:
        return None
    with configure_tracing(program.device):
        arrays = [jax.device_put(x, program.device) for x in inputs]
    return arrays if all(shares_memory(x, array) for x, array in zip(inputs, arrays, strict=True)) else None


def _align_input(x: Any) -> Any:
    """Copy a large unaligned input to an aligned array. XLA would copy it in another thread, and compute in that thread too."""
    if not isinstance(x, np.ndarray) or x.nbytes <= MAX_SYNCHRONOUSLY_COPIED_BYTES or x.ctypes.data % ALIGNMENT == 0:
        return x
    aligned = make_aligned_array(x.shape, x.dtype)
    np.copyto(aligned, x)
    return aligned


def _to_owned_array(view: Array) -> Array:
    """Make a writable array of a read-only result: a copy if it is small, otherwise a view."""
    if view.nbytes <= MAX_COPIED_BYTES:
        return view.copy()
    return make_writable_alias(view)
