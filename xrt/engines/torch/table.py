"""The engine's table of kernels, and what a kernel is.

A kernel is a factory: it takes a `TorchKernelContext`, resolves the attributes of the node once, and returns what computes.
That function takes the node's inputs in order (None where one is left out), then what its bodies capture; it returns the one
output, or a tuple of outputs. It writes to none of its arguments. Its results may be views of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.engines.contract.op_table import OpTable

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = ["Factory", "Run", "Tensor", "ops"]

Tensor: TypeAlias = Any
"""A tensor of torch's."""
Run: TypeAlias = Callable[..., Any]
"""What a factory returns."""
Factory: TypeAlias = "Callable[[TorchKernelContext], Run]"

ops: OpTable[Factory] = OpTable("torch")
"""Filled by the modules of `xrt.engines.torch.kernels`, one per family of operators."""
