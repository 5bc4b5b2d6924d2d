"""An engine that adds kernels to toy: one for an operator of a new domain, and a faster Softmax.

The kernels are in a table of the new engine, so ``engine="toy"`` is unchanged.
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
    """Compute an operator that toy does not have: x * sigmoid(beta * x), where ``beta`` is an attribute."""
    beta = node.attr("beta", 1.0)

    def run(x: np.ndarray) -> np.ndarray:
        return (x / (1 + np.exp(-beta * x))).astype(x.dtype, copy=False)

    return run


def why_not_quick_softmax(node: Node, function: Function) -> str | None:
    """Explain why `quick_softmax` does not support the node, or return None if it does."""
    type_ = function.get_type(node.inputs[0])
    if not isinstance(type_, TensorType) or type_.dtype is not DType.FLOAT32 or not type_.shape:
        return "the quick Softmax supports float32 tensors with a known rank of at least 1"
    size, axis = type_.shape[-1], node.attr("axis", -1)
    if axis not in (-1, len(type_.shape) - 1):
        return f"the quick Softmax supports the last axis only; the node has axis {axis}"
    return None if isinstance(size, int) and 0 < size <= 16 else f"the quick Softmax supports rows of at most 16; got {size}"


@ops("Softmax", since=13, priority=1, why_not=why_not_quick_softmax)
def quick_softmax(node: Node, ctx: KernelContext) -> Run:
    """Replace toy's Softmax for short rows. With priority 1 this kernel is tried first; other nodes use toy's kernel.

    NumPy reduces many short rows one by one. Transposed, they are a few long rows, which NumPy reduces much faster.
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
        """Include the release of the kernels, so that programs compiled with other kernels are not reused from a cache."""
        return f"xrt-my-kernels {metadata.version('xrt-my-kernels')}, {super().version()}"
