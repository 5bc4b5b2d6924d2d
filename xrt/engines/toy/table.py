"""The toy engine's table of kernels, and what a kernel is.

A kernel is a factory: it is given its node and an `KernelContext`, resolves the node's attributes once, and returns the function
that computes. That function takes the node's inputs in order (None where one is left out), then its captures; it
returns the one output, or a tuple of outputs. It never writes to its arguments, except to a buffer given as ``out``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.engines.contract.op_table import OpTable

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__ = ["CPU", "Array", "Factory", "Run", "ops"]

Array: TypeAlias = Any
"""An array of the module that `KernelContext.xp` names: NumPy's, or the device's."""
Run: TypeAlias = Callable[..., Any]
"""What a factory returns."""
Factory: TypeAlias = "Callable[[Node, KernelContext], Run]"

ops: OpTable[Factory] = OpTable("toy", devices=("cpu", "cuda"))
"""Filled by the modules of `xrt.engines.toy.kernels`, one per family of operators.

Kernels compute with the functions of ``KernelContext.xp`` alone, and so on any device that has such a module; one that does not
says ``devices=CPU``. What a kernel reads on the host it names in ``host``.
"""

CPU = ("cpu",)
