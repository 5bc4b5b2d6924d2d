"""The kernel tables, and the context that a kernel factory receives.

A kernel is a factory: it reads the attributes of its node once and returns the function that computes. The arguments of that
function are the inputs of the node in order (None if absent), then its captures; it returns the only output, or a tuple. It
never writes to its arguments, except to a buffer passed as ``out``.

Kernels are written once for all array libraries. They call the functions of a namespace, `NodeContext.xp`, and no methods of
arrays except ``reshape`` and ``tolist``, because PyTorch's methods have other names. Tensors are not wrapped: a wrapper per
tensor made small calls 13 to 20 times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from xrt.engines.contract.op_table import OpTable

if TYPE_CHECKING:
    from xrt.engines.toolkit.node_info import CompiledBody
    from xrt.graph import DType, Function, Node


Array: TypeAlias = Any
"""An array of NumPy, CuPy or JAX, or a tensor of PyTorch."""
Run: TypeAlias = Callable[..., Any]
"""The function that a factory returns."""
Factory: TypeAlias = "Callable[[Node, Any], Run]"
"""``f(node, context)``, where the context is a `NodeContext`."""
States: TypeAlias = tuple[Array, ...]
Advance: TypeAlias = Callable[[Array, States], States]
"""One time step: maps the input's part of the gates (batch, gates * hidden) and the states to the next states."""

ops: OpTable[Factory] = OpTable("shared", devices=("cpu", "cuda"))
"""Kernels for all libraries, including tracing in JAX: no branches on elements, no writes to arrays.

Inputs listed in ``host`` are the exception: their elements are read (extents, axes, counts).
"""
eager: OpTable[Factory] = OpTable("eager", devices=("cpu", "cuda"))
"""Kernels for eager libraries: NumPy, CuPy, PyTorch."""
numpy_only: OpTable[Factory] = OpTable("numpy", devices=("cpu",))
"""Kernels for NumPy only: they process strings and Python objects."""


class NodeContext(Protocol):
    """A node and its context, for the factory of its kernel."""

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
        """Number of outputs of the node up to the last one present, including absent ones before it."""

    def wants(self, index: int) -> bool:
        """Whether the output at this position is present."""

    def input_dtype(self, index: int) -> DType | None:
        """The declared element type of the input at this position."""

    def body(self, attribute: str) -> CompiledBody:
        """The compiled body in an attribute."""
