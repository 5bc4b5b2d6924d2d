"""The kernel tables, and the context that a kernel factory receives.

A kernel is registered as a factory: it reads the attributes of its node once, and returns the function that computes. The
arguments of that function are the inputs of the node in order (None if absent), then the values that its bodies capture. It
returns the output, or a tuple of several. It never writes to its arguments, except to a buffer passed as ``out``.

Kernels are written once for all array libraries. They call functions of the namespace `NodeContext.xp`, and no methods of arrays
except ``reshape`` and ``tolist``, because PyTorch's methods have other names. Tensors are not wrapped in a common class, because
that made small calls 13 to 20 times slower.
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
"""The function that a factory returns: computes the outputs of one node."""
Factory: TypeAlias = Callable[[Node, Any], Run]
"""``f(node, context)``, where the context is a `NodeContext`."""
States: TypeAlias = tuple[Array, ...]
"""The states of a recurrent layer after a time step, each (batch, hidden)."""
Advance: TypeAlias = Callable[[Array, States], States]
"""``f(gates, states)`` computes the states after one time step. ``gates`` (batch, gates * hidden) is the part of the gates that
depends only on the input."""

ops: OpTable[Factory] = OpTable("shared", devices=("cpu", "cuda"))
"""Kernels for all libraries. JAX traces them, so they neither branch on elements nor write to arrays.

They may read the elements of inputs that they list as ``host``, such as sizes and axes.
"""
eager: OpTable[Factory] = OpTable("eager", devices=("cpu", "cuda"))
"""Kernels for eager libraries: NumPy, CuPy, PyTorch."""
numpy_only: OpTable[Factory] = OpTable("numpy", devices=("cpu",))
"""Kernels for NumPy only: they process strings and Python objects."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The arguments of a kernel factory: a node, its Function, and the array functions to call."""

    node: Node
    function: Function
    xp: Any
    """The array namespace: has NumPy's functions by name, and the methods of `ArrayNamespace`."""

    @property
    def version(self) -> int:
        """The Function's opset version of the node's domain."""
        return self.function.opset(self.node.domain)

    @property
    def n_outputs(self) -> int:
        """The number of outputs. An absent output counts if a present output follows it."""
        return len(self.node.outputs)

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def input_dtype(self, index: int) -> DType | None:
        """Get the element type of input ``index``; None if the input is absent or its type is unknown."""
        return find_dtype(self.node, index, self.function)

    def get_dtype_attribute(self, name: str) -> DType | None:
        """Get the element type that an attribute stores as ONNX's number; None if it is absent or 0."""
        onnx_number = self.node.attr(name) or 0
        return DType.from_onnx(onnx_number) if onnx_number else None

    def wants(self, index: int) -> bool:
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def refuse(self, why: str) -> CompileRefused:
        """Make the error to raise if the node cannot be computed. ``why`` continues a sentence that begins with the operator."""
        return CompileRefused(f"{self.node.op} {why}")


@dataclass(frozen=True, slots=True)
class KernelContext(NodeContext):
    """The context of a kernel that can run the bodies of its node."""

    compile: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    """Compiles a Function without captures to a callable on lists of arrays."""

    def compile_body(self, attribute: str) -> CompiledBody:
        function = self.node.attr(attribute)
        # The captures of a node are those of all its bodies, and this body may use some of them.
        capture_indices = tuple(map(self.node.captures.index, function.captures))
        closed = close_over(function, self.function)
        return CompiledBody(closed, self.compile(closed), capture_indices)


@dataclass(frozen=True, slots=True)
class CompiledBody:
    """A compiled body of a node: a branch of an If, or the body of a Loop or a Scan."""

    function: Function
    """The body as a Function without captures: its inputs are those of the body, then the captures."""
    compute: Callable[[Sequence[Any]], list[Any]]
    capture_indices: tuple[int, ...]
    """For each capture of this body, in order, its index among the captures of the node."""

    def __call__(self, inputs: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """Compute the outputs. ``captured`` are the values of all captures of the node."""
        return self.compute([*inputs, *(captured[i] for i in self.capture_indices)])

    def find_unstacked_type(self, output: int, inputs: Sequence[Any], captured: Sequence[Any]) -> tuple[DType, list[int]]:
        """Read the element type and shape of output ``output`` of one iteration from its declaration, for a loop without any.

        The sizes of symbolic dims are read from ``inputs`` (None if absent) and ``captured``. A dim that these do not have is 0.
        """
        declared = self.function.outputs[output].type
        if not isinstance(declared, TensorType):
            raise ValueError(f"output {output} of body {self.function.name!r} was never computed, and its type is not declared")
        sizes: dict[Any, int] = {}
        for value, operand in zip(self.function.inputs, [*inputs, *(captured[i] for i in self.capture_indices)], strict=True):
            if isinstance(value.type, TensorType) and hasattr(operand, "shape"):
                pairs = zip(value.type.shape or (), operand.shape, strict=False)
                sizes.update((dim, size) for dim, size in pairs if isinstance(dim, str))
        return declared.dtype, [dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in declared.shape or ()]
