"""The tables of kernels, and what a kernel receives.

A kernel is a factory: it reads the attributes of its node once and returns the function that computes. That function takes the
inputs of the node in order (None where one is absent), then its captures; it returns the one output, or a tuple of outputs. It
never writes to its arguments, except to a buffer passed as ``out``.

Kernels are written once for all array libraries. They call the functions of a namespace, `NodeContext.xp`, and no methods of
arrays except ``reshape`` and ``tolist``, because tensors of PyTorch have methods of other names. Tensors are not wrapped: a
wrapper per tensor made small calls 13 to 20 times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from xrt.engines.contract.op_table import OpTable

if TYPE_CHECKING:
    from xrt.engines.toolkit.node_query import CompiledBody
    from xrt.graph import DType, Function, Node


Array: TypeAlias = Any
"""An array of NumPy, CuPy or JAX, or a tensor of PyTorch."""
Run: TypeAlias = Callable[..., Any]
"""The function that a factory returns."""
Factory: TypeAlias = "Callable[[Node, Any], Run]"
"""Takes a node and its `NodeContext`."""
States: TypeAlias = tuple[Array, ...]
Advance: TypeAlias = Callable[[Array, States], States]
"""One time step: the input's part of the gates (batch, gates * hidden) and the states give the next states."""

ops: OpTable[Factory] = OpTable("shared", devices=("cpu", "cuda"))
"""Kernels for every library, JAX's tracing included: no branch depends on an element of an array, no array is written to.

The inputs listed in ``host`` are the exception: their elements are read (extents, axes, counts).
"""
eager: OpTable[Factory] = OpTable("eager", devices=("cpu", "cuda"))
"""Kernels for the libraries that compute at once: NumPy, CuPy, PyTorch."""
numpy_only: OpTable[Factory] = OpTable("numpy", devices=("cpu",))
"""Kernels for NumPy: they compute with texts and Python objects."""


class NodeContext(Protocol):
    """The surroundings of a node, for the factory of its kernel."""

    @property
    def xp(self) -> Any:
        """The namespace of array functions: those of NumPy by name, and the methods of `ArrayNamespace`."""

    @property
    def function(self) -> Function:
        """The Function that the node belongs to."""

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""

    @property
    def n_outputs(self) -> int:
        """The number of outputs that the node lists, absent ones before a present one included."""

    def wants(self, index: int) -> bool:
        """Whether the output at this position is present."""

    def input_dtype(self, index: int) -> DType | None:
        """The declared element type of the input at this position."""

    def body(self, attribute: str) -> CompiledBody:
        """The compiled body that an attribute holds."""
