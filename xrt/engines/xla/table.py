"""The engine's table of kernels, and what a kernel is.

A kernel is called once, while its node is traced: with a `LoweringContext`, which tells it of the node, and with the node's
inputs in order, None where one is left out. It returns the one output, or a tuple of outputs. An operand is either traced, which
has a shape and an element type and no content, or *known*: a NumPy array, because it is a small constant or was computed from
such, or from shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from xrt.engines.contract.op_table import OpTable

__all__ = ["Kernel", "Operand", "either", "is_either", "ops"]

Operand: TypeAlias = Any
"""A traced array of JAX's, or a NumPy array, which is known."""
Kernel: TypeAlias = Callable[..., Any]
"""Writes a node in operations of JAX."""

ops: OpTable[Kernel] = OpTable("xla")
"""Filled by the modules of `xrt.engines.xla.kernels`, one per family of operators."""

_EITHER: set[Kernel] = set()


def either(kernel: Kernel) -> Kernel:
    """Mark a kernel as written in what ``numpy`` and ``jax.numpy`` share, so that NumPy computes it where all operands are known.

    So the shapes that a model computes from shapes are numbers when the operators that want them are traced.
    """
    _EITHER.add(kernel)
    return kernel


def is_either(kernel: Kernel) -> bool:
    """Whether NumPy may run the kernel as well."""
    return kernel in _EITHER
