"""Toy's executable: what runs a Function is chosen in `prepare`, and is the same for every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xrt.engines.contract.graph_compiler import Executable
from xrt.engines.contract.options import RunOptions
from xrt.errors import OptionError, RunFailed

if TYPE_CHECKING:
    from xrt.engines.contract.memory_use import MemoryUse
    from xrt.graph import Function

__all__ = ["ToyExecutable"]


class ToyExecutable(Executable):
    """A Function that waits to be prepared; then it is what `prepare` made of it: a tape of Python kernels or a native one."""

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(self, engine: str, function: Function, made: Callable[[Function], Executable]) -> None:
        self._engine = engine
        self.function = function
        self._made = made
        self._ready: Executable | None = None

    def prepare(self) -> None:
        self._ready = self._made(self.function)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if options.stream is not None:
            raise OptionError(
                f"engine {self._engine!r} runs on the CPU, which has no streams; got stream={options.stream!r}, pass None"
            )
        return self._prepared().run(inputs, options)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        return self._prepared().fast_call()

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        return self._prepared().bind(inputs, outputs)

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        return self._prepared().bind_outputs(outputs)

    def supports_io_binding(self) -> bool:
        return self._prepared().supports_io_binding()

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return self._prepared().output_buffer_threshold()

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self._prepared().inplace_pairs()

    def memory(self) -> Sequence[MemoryUse] | None:
        return self._prepared().memory()

    def close(self) -> None:
        self._ready = None

    def _prepared(self) -> Executable:
        if self._ready is None:
            raise RunFailed(
                f"function {self.function.name!r} is not ready to run; call prepare() first, and run() before close()"
            )
        return self._ready
