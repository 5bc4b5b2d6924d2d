"""From a Function to operations of JAX: node by node, through the table."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.engines.toolkit.node_query import NodeInfo
from xrt.engines.xla import control  # noqa: F401  # fills the table
from xrt.engines.xla.kernels import BY_NUMPY, JAX, NUMPY, Operand, ops
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, find_schema
from xrt.passes import find_decomposition


@dataclass(frozen=True, slots=True)
class LoweringContext(NodeInfo):
    """A node and its surroundings, while it is traced."""

    xp: Any
    """The namespace of array functions: JAX's, or NumPy's if all operands are known and the operator is in `BY_NUMPY`."""
    scope: Mapping[str, Operand]
    """Every value that the node's bodies may read, by name."""
    lower: Callable[[Function, Sequence[Operand], Mapping[str, Operand]], list[Operand]]
    """Traces a Function, given its inputs and the values around it."""

    def dtype(self, name: str, default: Any = None) -> Any:
        """The element type that an attribute tells by ONNX's number, as NumPy's; the default where it tells none."""
        number = self.attr(name) or 0
        return DType.from_onnx(number).numpy if number else default

    def get_constant(self, operand: Operand, position: int) -> np.ndarray[Any, Any]:
        """The content of the input in that position; raises CompileRefused where only the run shows it."""
        if isinstance(operand, np.ndarray):
            return operand
        if not operand.size:
            return np.zeros(operand.shape, operand.dtype)
        name = _input_name(self.node, self.function, position)
        raise CompileRefused(f"XLA needs the {name!r} of {self.node.op} while it compiles, and here it is known only at run time")

    def ints(self, operand: Operand, position: int) -> tuple[int, ...]:
        """The content of the input in that position as whole numbers; raises CompileRefused as `known` does."""
        return tuple(int(number) for number in self.get_constant(operand, position).reshape(-1))

    def body(self, attribute: str) -> Callable[[Sequence[Operand]], list[Operand]]:
        """What traces the body that an attribute holds, from its own inputs."""
        function = self.attr(attribute)
        return lambda inputs: self.lower(function, inputs, self.scope)


def _input_name(node: Node, function: Function, position: int) -> str:
    schema = find_schema(node.op_type, function.opset(node.domain), node.domain)
    named = schema is not None and position < len(schema.inputs)
    return str(schema.inputs[position].name) if schema is not None and named else str(position)


KNOWN = 1024
"""Most elements of a constant whose content is known while nodes are traced. It then is a part of the compiled code; a larger
one is an argument of it, held once."""


def is_known(constant: Constant) -> bool:
    """Whether the constant's content is known while nodes are traced."""
    return bool(constant.array.size <= KNOWN)


def lower(function: Function, inputs: Sequence[Operand], outer: Mapping[str, Operand]) -> list[Operand]:
    """Trace a Function and return its outputs, from its inputs and the values around it, constants that are arguments among them.

    Raises CompileRefused for what no kernel takes, and whatever JAX raises.
    """
    own: dict[str, Operand] = dict(zip((value.name for value in function.inputs), inputs, strict=True))
    scope = ChainMap(own, outer)  # type: ignore[arg-type]  # only the first map is ever written to
    for name, constant in function.constants.items():
        if name not in outer:
            own[name] = constant.array
    for node in function.nodes:
        own.update(_lowered(node, function, scope))
    return [scope[value.name] for value in function.outputs]


def _lowered(node: Node, function: Function, scope: Mapping[str, Operand]) -> dict[str, Operand]:
    """The values that a node defines."""
    kernel = ops.find(node, function)
    if isinstance(kernel, str):
        return _by_definition(node, function, scope, kernel)
    operands = [scope[name] if name else None for name in node.inputs]
    by_numpy = node.op_type in BY_NUMPY and all(operand is None or isinstance(operand, np.ndarray) for operand in operands)
    at = LoweringContext(node, function, NUMPY if by_numpy else JAX, scope, lower)
    # What a kernel reads on the host must be known while its node is traced.
    read = [at.get_constant(x, i) if i in kernel.host and x is not None else x for i, x in enumerate(operands)]
    with np.errstate(all="ignore"):
        results = kernel.code(node, at)(*read)
    many = results if isinstance(results, tuple) else (results,)
    return {name: _plain(result) for name, result in zip(node.outputs, many, strict=False) if name}


def _plain(result: Any) -> Operand:
    return np.asarray(result) if isinstance(result, np.generic | int | float) else result


def _by_definition(node: Node, function: Function, scope: Mapping[str, Operand], reason: str) -> dict[str, Operand]:
    """Lower what ONNX defines by other operators as these."""
    one = _alone(node, function, scope)
    meaning = find_decomposition(node, one)
    if meaning is None:
        raise CompileRefused(reason)
    results = lower(meaning, [scope[value.name] for value in one.inputs], {})
    return {value.name: result for value, result in zip(one.outputs, results, strict=True)}


def _alone(node: Node, function: Function, scope: Mapping[str, Operand]) -> Function:
    """The node as a Function of its own, with the types of what it reads as they turned out."""
    reads = {name: scope[name] for name in node.uses}
    return Function(
        inputs=tuple(Value(name, TensorType(DType.of(x), x.shape)) for name, x in reads.items()),
        outputs=tuple(function.value(name) for name in node.defines),
        nodes=(node,),
        opsets=function.opsets,
    )
