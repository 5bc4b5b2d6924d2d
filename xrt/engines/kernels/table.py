"""The kernel tables, and the context that a kernel factory receives.

A kernel is a factory: it reads the attributes of its node once and returns the function that computes. The arguments of that
function are the inputs of the node in order (None if absent), then its captures; it returns the only output, or a tuple. It
never writes to its arguments, except to a buffer passed as ``out``.

Kernels are written once for all array libraries. They call the functions of a namespace, `NodeContext.xp`, and no methods of
arrays except ``reshape`` and ``tolist``, because PyTorch's methods have other names. Tensors are not wrapped: a wrapper per
tensor made small calls 13 to 20 times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from xrt.engines.contract.op_table import OpTable
from xrt.engines.toolkit.known_issues import find_dtype
from xrt.engines.toolkit.support import close_over
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType

Array: TypeAlias = Any
"""An array of NumPy, CuPy or JAX, or a tensor of PyTorch."""
Run: TypeAlias = Callable[..., Any]
"""The function that a factory returns."""
Factory: TypeAlias = Callable[[Node, Any], Run]
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


@dataclass(frozen=True, slots=True)
class NodeContext:
    """A node and its context, for the factory of its kernel."""

    node: Node
    function: Function
    """The Function that the node belongs to."""
    xp: Any
    """The namespace of array functions: those of NumPy by name, and the methods of `ArrayNamespace`."""

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""
        return self.function.opset(self.node.domain)

    @property
    def n_outputs(self) -> int:
        """The number of outputs; an absent one counts if a present one follows it."""
        return len(self.node.outputs)

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def input_dtype(self, index: int) -> DType | None:
        """The element type of the input at this position; None if the input is absent or its type unknown."""
        return find_dtype(self.node, index, self.function)

    def wants(self, index: int) -> bool:
        """Whether the output at this position is present."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def refuse(self, why: str) -> CompileRefused:
        """The error to raise if the node cannot be computed."""
        return CompileRefused(f"{self.node.op} {why}")


@dataclass(frozen=True, slots=True)
class KernelContext(NodeContext):
    """The context of a kernel that can run the bodies of its node."""

    compile: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    """Compiles a closed Function; `body` uses it for a node's bodies."""

    def body(self, attribute: str) -> CompiledBody:
        """Compile the body in an attribute."""
        function = self.node.attr(attribute)
        # A node with two bodies captures the union of both; each body reads a part of it.
        picks = tuple(map(self.node.captures.index, function.captures))
        closed = close_over(function, self.function)
        return CompiledBody(closed, self.compile(closed), picks)


@dataclass(frozen=True, slots=True)
class CompiledBody:
    """A compiled body: a branch of an If, the body of a Loop or a Scan."""

    function: Function
    """The closed body: its inputs, followed by its captures."""
    compute: Callable[[Sequence[Any]], list[Any]]
    picks: tuple[int, ...]
    """Indices of the node's captures that the body reads, in the order of the body."""

    def __call__(self, inputs: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """Compute the body's outputs from its inputs and all captures of the node."""
        return self.compute([*inputs, *(captured[i] for i in self.picks)])

    def find_unstacked_type(self, output: int, inputs: Sequence[Any], captured: Sequence[Any]) -> tuple[DType, list[int]]:
        """Element type and shape of an output if the loop has no iterations.

        Named dims get their sizes from ``inputs`` (None if absent) and captures; a dim that no input has is 0. Raises ValueError
        if the body does not declare a tensor type.
        """
        declared = self.function.outputs[output].type
        if not isinstance(declared, TensorType):
            raise ValueError(f"output {output} of body {self.function.name!r} was never computed, and its type is not declared")
        # Named dims of inputs bind the named dims of outputs.
        sizes: dict[Any, int] = {}
        for value, operand in zip(self.function.inputs, [*inputs, *(captured[i] for i in self.picks)], strict=True):
            if isinstance(value.type, TensorType) and hasattr(operand, "shape"):
                pairs = zip(value.type.shape or (), operand.shape, strict=False)
                sizes.update((dim, size) for dim, size in pairs if isinstance(dim, str))
        return declared.dtype, [dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in declared.shape or ()]
