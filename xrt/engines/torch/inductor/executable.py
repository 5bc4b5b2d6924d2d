"""Running a library that Inductor has made, on NumPy arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.contract.memory_use import MemoryUse
from xrt.engines.torch.errors import summarize_error
from xrt.engines.torch.executable import TorchExecutable
from xrt.engines.torch.program import TensorProgram, make_program
from xrt.errors import RunFailed
from xrt.graph import TensorType

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext
    from xrt.graph import Function

__all__ = ["InductorExecutable"]


class CompiledProgram:
    """The library of a Function, and its list of kernels for sizes 0 and 1, which torch's compiler sets apart."""

    constants: frozenset[int] = frozenset()

    def __init__(self, library: bytes | memoryview, function: Function, folder: Path | None) -> None:
        self.function = function
        self._checked = [
            i for i, value in enumerate(function.inputs) if not (isinstance(value.type, TensorType) and value.type.is_static)
        ]
        with tempfile.NamedTemporaryFile(suffix=".so", prefix="inductor-", dir=folder) as file:
            file.write(library)
            file.flush()
            self.runner = torch._C._aoti.AOTIModelContainerRunnerCpu(file.name, 1)

    @cached_property
    def eager(self) -> TensorProgram:
        """The kernels, one by one."""
        return make_program(self.function)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Return the outputs of a call."""
        for i in self._checked:
            if min(inputs[i].shape, default=2) < 2:
                return self.eager(inputs)
        try:
            results: list[Any] = self.runner.run([tensor.contiguous() for tensor in inputs])
        except Exception as cause:
            raise RunFailed(f"torch failed in {self.function.name!r}: {summarize_error(cause)}") from cause
        return results


class InductorExecutable(TorchExecutable):
    """A library over tensors that share memory with the caller's arrays."""

    def __init__(self, library: bytes | memoryview, function: Function, context: CompileContext) -> None:
        super().__init__(CompiledProgram(library, function, context.workdir or context.keep), function, context.threads)
        self.library = library

    def memory(self) -> tuple[MemoryUse, ...]:
        packed = MemoryUse(
            "compiled code", len(self.library), "the library that Inductor made, with the weights as it packs them"
        )
        return (packed, *super().memory())
