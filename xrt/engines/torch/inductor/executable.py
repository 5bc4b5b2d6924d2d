"""Running a library that Inductor has made, on NumPy arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrt.engines.contract.memory_use import MemoryUse
from xrt.engines.torch.errors import summarize_error
from xrt.engines.torch.executable import TorchExecutable
from xrt.engines.torch.inductor.compiler import choose_folder
from xrt.engines.torch.inductor.library import Library, LibraryError
from xrt.engines.torch.program import TensorProgram, make_program
from xrt.errors import RunFailed
from xrt.graph import TensorType

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext
    from xrt.graph import Function

__all__ = ["InductorExecutable"]


class CompiledProgram:
    """The library of a Function, and its kernels one by one for sizes 0 and 1, which torch's compiler does not foresee."""

    constants: frozenset[int] = frozenset()
    packed: tuple[Any, ...] = ()

    def __init__(self, library: Library, function: Function) -> None:
        self.library, self.function = library, function
        self._open = tuple(_list_open_axes(function))
        """Inputs with axes of symbolic or unknown size."""

    @cached_property
    def kernels(self) -> TensorProgram:
        """The Function as a list of kernels."""
        return make_program(self.function)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of a call."""
        if any(inputs[i].shape[axis] < 2 for i, axis in self._open):
            return [result.clone() for result in self.kernels(inputs)]  # none in memory of a constant
        try:
            return self.library([tensor.contiguous() for tensor in inputs])
        except LibraryError as cause:
            raise RunFailed(f"torch failed in {self.function.name!r}: {summarize_error(cause)}") from cause


def _list_open_axes(function: Function) -> Iterator[tuple[int, int]]:
    for i, value in enumerate(function.inputs):
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            yield from ((i, axis) for axis, dim in enumerate(value.type.shape) if not isinstance(dim, int))


class InductorExecutable(TorchExecutable):
    """A library over tensors that share memory with the caller's arrays."""

    def __init__(self, data: memoryview, function: Function, context: CompileContext) -> None:
        """Load the library that the data are."""
        with tempfile.NamedTemporaryFile(prefix="inductor-", suffix=".so", dir=choose_folder(context)) as file:
            file.write(data)
            file.flush()
            self._library = Library(Path(file.name))
        super().__init__(CompiledProgram(self._library, function), function, context.threads)
        self.data = data

    def memory(self) -> tuple[MemoryUse, ...]:
        packed = MemoryUse(
            "packed weights", len(self.data), "Inductor's library holds the weights as it packs them, and its code"
        )
        return (packed, *super().memory())

    def close(self) -> None:
        """Unload the library."""
        self._library.close()
