"""What a kernel knows of the node that it lowers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.node_query import NodeInfo
from xrt.engines.xla.primitives import PRIMITIVES, XlaPrimitives
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, find_schema

if TYPE_CHECKING:
    from xrt.engines.xla.table import Operand

__all__ = ["LoweringContext"]


@dataclass(frozen=True, slots=True)
class LoweringContext(NodeInfo):
    """A node and its surroundings, while it is traced."""

    xp: Any
    """The array module to write the node in: ``jax.numpy``, or ``numpy`` where all is known and the kernel is `either`."""
    scope: Mapping[str, Operand]
    """Every value that the node's bodies may read, by name."""
    lower: Callable[[Function, Sequence[Operand], Mapping[str, Operand]], list[Operand]]
    """Traces a Function, given its inputs and the values around it."""

    @property
    def primitives(self) -> XlaPrimitives:
        """What the shared kernels leave to the engine."""
        return PRIMITIVES

    def dtype(self, name: str, default: Any = None) -> Any:
        """Return the element type that an attribute tells by ONNX's number, as NumPy's; the default where it tells none."""
        number = self.attr(name) or 0
        return DType.from_onnx(number).numpy if number else default

    def get_constant(self, operand: Operand, position: int) -> np.ndarray[Any, Any]:
        """Return the content of the input in that position; raises CompileRefused where only the run shows it."""
        if isinstance(operand, np.ndarray):
            return operand
        if not operand.size:
            return np.zeros(operand.shape, operand.dtype)
        name = _input_name(self.node, self.function, position)
        raise CompileRefused(f"XLA needs the {name!r} of {self.node.op} while it compiles, and here it is known only at run time")

    def ints(self, operand: Operand, position: int) -> tuple[int, ...]:
        """Return the content of the input in that position as whole numbers; raises CompileRefused as `known` does."""
        return tuple(int(number) for number in self.get_constant(operand, position).reshape(-1))

    def body(self, attribute: str) -> Callable[[Sequence[Operand]], list[Operand]]:
        """Return what traces the body that an attribute holds, from its own inputs."""
        function = self.attr(attribute)
        return lambda inputs: self.lower(function, inputs, self.scope)


def _input_name(node: Node, function: Function, position: int) -> str:
    schema = find_schema(node.op_type, function.opset(node.domain), node.domain)
    named = schema is not None and position < len(schema.inputs)
    return str(schema.inputs[position].name) if schema is not None and named else str(position)
