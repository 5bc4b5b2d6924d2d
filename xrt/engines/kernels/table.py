"""The table of shared kernels, and what they are given.

A kernel is a factory: it is given its node and the node's surroundings, resolves the node's attributes once, and returns the
function that computes. That function takes the node's inputs in order (None where one is left out), then its captures; it
returns the one output, or a tuple of outputs. It never writes to its arguments, except to a buffer given as ``out``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from xrt.engines.contract.op_table import OpTable

if TYPE_CHECKING:
    from xrt.engines.toolkit.array_ops.windows import Placement, Window
    from xrt.graph import DType, Node

__all__ = ["Advance", "Array", "Factory", "NodeContext", "Primitives", "Run", "States", "ops"]

Array: TypeAlias = Any
"""An array of the module that `NodeContext.xp` names: NumPy's, CuPy's, or one that JAX traces."""
Run: TypeAlias = Callable[..., Any]
"""What a factory returns."""
Factory: TypeAlias = "Callable[[Node, Any], Run]"
"""Takes a node and its `NodeContext`, which is the engine's own."""
States: TypeAlias = tuple[Array, ...]
Advance: TypeAlias = Callable[[Array, States], States]
"""One step of time: the input's part of the gates (batch, gates * hidden) and the states give the next states."""

ops: OpTable[Factory] = OpTable("shared", devices=("cpu", "cuda"))
"""Filled by the modules of `xrt.engines.kernels`, one per family of operators.

Kernels compute with the functions of ``NodeContext.xp`` and its primitives alone. No branch depends on an element of an array,
but of those that the kernel names in ``host``, which are NumPy arrays wherever it runs.
"""


class NodeContext(Protocol):
    """The surroundings of a node, for the factory of its kernel."""

    @property
    def xp(self) -> Any:
        """The array module: ``numpy``, ``cupy`` or ``jax.numpy``; kernels take from it what all have."""

    @property
    def primitives(self) -> Primitives:
        """What array modules compute in different ways."""

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""

    @property
    def n_outputs(self) -> int:
        """How many outputs the node lists, left-out ones in front of a present one included."""


class Primitives(Protocol):
    """What an engine computes in its array library's own way."""

    @property
    def exact(self) -> Any:
        """The element type in which sums of products of 8-bit numbers are exact."""

    def erf(self, x: Array) -> Array:
        """Return the error function."""

    def matmul(self, a: Array, b: Array) -> Array:
        """Return the product of matrices, summed in the tensors' own type."""

    def convert(self, x: Array, to: DType, saturate: bool) -> Array:
        """Return the tensor in that element type, as ONNX's Cast converts it."""

    def subtract_max(self, x: Array, axis: int) -> Array:
        """Return each element less the greatest along the axis."""

    def convolve(self, x: Array, w: Array, window: Window, group: int) -> Array:
        """Return the convolution of (N, C, *spatial) by (M, C/group, *kernel), summed in the tensors' own type."""

    def sum_windows(self, x: Array, place: Placement) -> Array:
        """Return the sum of what each window sees, padding being zero."""

    def fold(self, columns: Array, place: Placement, extents: Sequence[int]) -> Array:
        """Return the sum of windows laid at their positions: (N, C, *kernel, *positions) to (N, C, *extents)."""

    def pad(self, x: Array, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Array:
        """Return the tensor with ``pads`` (all begins, then all ends) elements more at each axis; fewer where negative."""

    def scatter(self, x: Array, places: tuple[Array, ...], values: Array, reduction: str) -> Array:
        """Return a copy with values written at places; with a reduction, places that occur twice take part twice."""

    def walk(self, gates: Array, states: States, lengths: Array, backwards: bool, advance: Advance) -> tuple[Array, States]:
        """Return the first state at each time (time, batch, hidden), zero beyond the ends, and the last states."""
