"""Kernels of one's own in an engine that exists: toy, with an operator of a new domain and a quicker Softmax.

The table is this engine's own. Toy's stays as it is, so ``engine="toy"`` is the reference as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar

import numpy as np

from xrt import DType, Function, Node, OpTable
from xrt.engines.toy import KernelContext, Run, Toy
from xrt.graph import TensorType

ops: OpTable[Any] = Toy.kernels.extend("my_kernels")


@ops("Swish", domain="my.domain")
def swish(node: Node, ctx: KernelContext) -> Run:
    """A new operator: x * sigmoid(beta * x), with ``beta`` an attribute."""
    beta = node.attr("beta", 1.0)

    def run(x: np.ndarray) -> np.ndarray:
        return (x / (1 + np.exp(-beta * x))).astype(x.dtype, copy=False)

    return run


def is_no_short_row(node: Node, function: Function) -> str | None:
    """The predicate of the quick Softmax: why it cannot serve the node."""
    type_ = function.get_type(node.inputs[0])
    if not isinstance(type_, TensorType) or type_.dtype is not DType.FLOAT32 or not type_.shape:
        return "the quick Softmax takes float32 of a known rank, from 1 on"
    row, axis = type_.shape[-1], node.attr("axis", -1)
    if axis not in (-1, len(type_.shape) - 1):
        return f"the quick Softmax runs along the last axis; the node's is {axis}"
    return None if isinstance(row, int) and 0 < row <= 16 else f"the quick Softmax takes rows of at most 16; the node's are {row}"


@ops("Softmax", since=13, priority=1, why_not=is_no_short_row)
def quick_softmax(node: Node, ctx: KernelContext) -> Run:
    """An operator that toy has: priority 1 is asked before toy's own kernel, which has the rest.

    NumPy reduces many short rows one by one; turned over, they are a few long ones.
    """

    def run(x: np.ndarray) -> np.ndarray:
        columns = np.array(x.reshape(-1, x.shape[-1]).T, order="C")
        columns -= columns.max(axis=0)
        np.exp(columns, out=columns)
        columns /= columns.sum(axis=0)
        return np.ascontiguousarray(columns.T).reshape(x.shape)

    return run


@dataclass(frozen=True)
class MyKernels(Toy):
    """Toy with the kernels above."""

    name: ClassVar[str] = "my_kernels"
    kernels: ClassVar[OpTable[Any]] = ops

    def version(self) -> str:
        """A new release of the kernels is a new signature."""
        return f"xrt-my-kernels {metadata.version('xrt-my-kernels')}, {super().version()}"
