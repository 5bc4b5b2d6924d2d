"""Programs as modules that ``torch.export`` traces, and examples of their inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from xrt.engines.torch.dtypes import get_torch_dtype
from xrt.engines.torch.program import TensorProgram
from xrt.graph import Dim, TensorType, Type

__all__ = ["ProgramModule", "SizeHints"]

HINTS = (5, 7, 11, 13, 17, 19, 23, 29)
"""Sizes that symbolic dimensions have while they are traced: no two are equal, and none is 0 or 1, which torch treats apart."""


class SizeHints(dict[str, int]):
    """A size for each symbol, chosen when it is first asked for; each unknown dimension has one of its own."""

    def choose(self, dim: Dim) -> int:
        """Return the size that a dimension has while it is traced."""
        if isinstance(dim, int):
            return dim
        symbol = f"?{len(self)}" if dim is None else dim
        return self.setdefault(symbol, HINTS[len(self) % len(HINTS)] + len(self) // len(HINTS) * 31)

    def make_example(self, type_: Type | None) -> torch.Tensor:
        """Return a tensor of the type, of zeros."""
        assert isinstance(type_, TensorType)  # what `why_not` has seen to
        assert type_.shape is not None
        return torch.zeros([self.choose(dim) for dim in type_.shape], dtype=get_torch_dtype(type_.dtype))


class ProgramModule(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A program as a module: its constants are the module's buffers, which a compiler may fold and pack."""

    def __init__(self, program: TensorProgram) -> None:
        super().__init__()
        self.program = program
        self.slots = [slot for slot, value in enumerate(program.template) if isinstance(value, torch.Tensor)]
        for slot in self.slots:
            self.register_buffer(f"constant{slot}", program.template[slot])

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the program's outputs; one that would be a constant or an input itself is a copy of it."""
        template = list(self.program.template)
        for slot in self.slots:
            template[slot] = getattr(self, f"constant{slot}")
        return tuple(replace(self.program, template=tuple(template))(inputs))
