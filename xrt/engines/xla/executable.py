"""Run compiled code on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.toolkit.memory import make_writable_alias
from xrt.engines.xla import client
from xrt.engines.xla.client import configure_tracing, summarize_error
from xrt.engines.xla.program import XlaProgram, export_program, load_program, shares_memory
from xrt.errors import RunFailed
from xrt.graph.constants import ALIGNMENT, make_aligned_array

if TYPE_CHECKING:
    from xrt.graph import Function


Array = np.ndarray[Any, Any]

COPIED_AT_ONCE = 100 * 1024
"""In bytes. XLA copies inputs up to this size synchronously."""

COPIED = 32 * 1024
"""In bytes. Results up to this size are copied out of XLA's memory; for larger ones an alias is faster than a copy."""


class XlaExecutable(Executable):
    """Compiled code. It keeps no state of a call, so threads may share it."""

    outputs_are_fresh = True

    def __init__(self, program: XlaProgram, function: Function, threads: int) -> None:
        self.program = program
        self.function = function
        self._threads = threads
        self._clients = client.clients
        self._name = function.name
        self.saved: memoryview | None = None
        """The serialized program, if it was loaded rather than compiled."""

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        program = self.program if self._clients is client.clients else self._reload()
        try:
            results = program.call(*map(_align, inputs), *program.arguments.arrays)
        except Exception as cause:  # noqa: BLE001  # retried, and raised if that fails
            results = self._retry(inputs, cause)
        if options.out is None:
            return [_to_owned_array(result) for result in results]
        return [_write_result(result, buffer) for result, buffer in zip(results, options.out, strict=True)]

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        call, constants, retry, run_anywhere = self.program.call, self.program.arguments.arrays, self._retry, self.run
        clients = self._clients

        def run(*inputs: Any) -> Sequence[Any]:
            if clients is not client.clients:  # in a forked child, where `run` reloads the program
                return run_anywhere(inputs)
            try:
                results = call(*map(_align, inputs), *constants)
            except Exception as cause:  # noqa: BLE001  # retried, in case user settings caused it, and raised if that fails
                results = retry(inputs, cause)
            return [_to_owned_array(result) for result in results]

        return run

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Bind inputs that XLA can read in place; each call copies the results into the output buffers."""
        program, shared = self.program, _share_inputs(inputs, self.program)
        if shared is None:
            return super().bind(inputs, outputs)
        call, operands, fallback = program.call, (*shared, *program.arguments.arrays), super().bind(inputs, outputs)

        def run() -> None:
            if self.program is not program or self._clients is not client.clients:
                return fallback()
            try:
                results = call(*operands)
            except Exception:  # noqa: BLE001  # retried, in case user settings caused it, and raised if that fails
                return fallback()
            for result, buffer in zip(results, outputs, strict=True):
                fill(buffer, np.asarray(result))
            return None

        return run

    def _retry(self, inputs: Sequence[Any], cause: Exception) -> Sequence[Any]:
        """Retry without user settings that break the call (debug_nans, disable_jit); raises RunFailed if it fails again."""
        try:
            with configure_tracing(self.program.device):
                return self.program.call(*inputs, *self.program.arguments.arrays)
        except Exception:  # noqa: BLE001  # the first error is more informative
            raise RunFailed(f"XLA failed while it ran {self._name!r}: {summarize_error(cause)}") from cause

    def _reload(self) -> XlaProgram:
        """Reload the program on a client of this process, which was forked from the one that compiled it."""
        with client.clients.moving:
            if self._clients is not client.clients:
                data = memoryview(export_program(self.program))
                self.program, self._clients = load_program(data, self.function, self._threads), client.clients
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


def _to_owned_array(result: Any) -> Array:
    """Convert a result to an array owned by the caller: a copy if it is small, a writable alias of XLA's memory if large."""
    view = np.asarray(result)
    if view.nbytes <= COPIED:
        return view.copy()
    return make_writable_alias(view, owner=(result, view))  # nothing else uses the memory, although JAX marks it read-only


def _write_result(result: Any, buffer: Array | None) -> Array:
    if buffer is None:
        return _to_owned_array(result)
    fill(buffer, np.asarray(result))
    return buffer
