"""Trace a Function node by node to JAX operations, using the kernel table."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.engines.kernels.table import NodeContext
from xrt.engines.xla.kernels import JAX, NUMPY, Operand, ops
from xrt.engines.xla.tables import BY_NUMPY
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, find_schema
from xrt.passes import find_decomposition


@dataclass(frozen=True, slots=True)
class LoweringContext(NodeContext):
    """A node and its context during tracing; the namespace is JAX's, or NumPy's for known operands of `BY_NUMPY`."""

    scope: Mapping[str, Operand]
    """Values that the node's bodies may read, by name."""
    lower: Callable[[Function, Sequence[Operand], Mapping[str, Operand]], list[Operand]]
    """Traces a Function over its inputs and the values of the enclosing scope."""

    def dtype(self, name: str, default: Any = None) -> Any:
        """The NumPy dtype that an attribute names by its ONNX number; ``default`` if the attribute is absent."""
        number = self.attr(name) or 0
        return DType.from_onnx(number).numpy if number else default

    def get_constant(self, operand: Operand, position: int) -> np.ndarray[Any, Any]:
        """The elements of the input at this position; raises CompileRefused if they are known only at run time."""
        if isinstance(operand, np.ndarray):
            return operand
        # No elements: nothing is unknown.
        if not operand.size:
            return np.zeros(operand.shape, operand.dtype)
        name = _find_input_name(self.node, self.function, position)
        raise CompileRefused(f"XLA needs the {name!r} of {self.node.op} while it compiles, and here it is known only at run time")

    def ints(self, operand: Operand, position: int) -> tuple[int, ...]:
        """The elements of the input at this position as ints; raises CompileRefused as `get_constant` does."""
        return tuple(int(number) for number in self.get_constant(operand, position).reshape(-1))

    def body(self, attribute: str) -> Callable[[Sequence[Operand]], list[Operand]]:
        """A function that traces the body in an attribute over the body's inputs."""
        function = self.attr(attribute)
        return lambda inputs: self.lower(function, inputs, self.scope)


def _find_input_name(node: Node, function: Function, position: int) -> str:
    schema = find_schema(node.op_type, function.opset(node.domain), node.domain)
    is_declared = schema is not None and position < len(schema.inputs)
    return str(schema.inputs[position].name) if schema is not None and is_declared else str(position)


KNOWN = 1024
"""Maximum number of elements of a constant that is known during tracing and becomes part of the compiled code. Larger constants
are arguments of the code and stored once."""


def is_known(constant: Constant) -> bool:
    """Whether the constant is small enough to be part of the compiled code (`KNOWN`)."""
    return bool(constant.array.size <= KNOWN)


def lower(function: Function, inputs: Sequence[Operand], outer: Mapping[str, Operand]) -> list[Operand]:
    """Trace a Function and return its outputs; ``outer`` maps names of outer values, including constant arguments, to operands.

    Raises CompileRefused for a node without a kernel, and any error of JAX.
    """
    values: dict[str, Operand] = dict(zip((value.name for value in function.inputs), inputs, strict=True))
    scope = ChainMap(values, outer)  # type: ignore[arg-type]  # only the first map is ever written to
    # Constants in `outer` are arguments of the code; as a known array they would be copied into it.
    for name, constant in function.constants.items():
        if name not in outer:
            values[name] = constant.array
    for node in function.nodes:
        values.update(_lower_node(node, function, scope))
    return [scope[value.name] for value in function.outputs]


def _lower_node(node: Node, function: Function, scope: Mapping[str, Operand]) -> dict[str, Operand]:
    """Trace one node; return its outputs by name."""
    kernel = ops.find(node, function)
    if isinstance(kernel, str):
        return _lower_decomposition(node, function, scope, kernel)
    operands = [scope[name] if name else None for name in node.inputs]
    by_numpy = node.op_type in BY_NUMPY and all(operand is None or isinstance(operand, np.ndarray) for operand in operands)
    at = LoweringContext(node, function, NUMPY if by_numpy else JAX, scope, lower)
    # Inputs that a kernel reads on the host must be known at trace time.
    arguments = [at.get_constant(x, i) if i in kernel.host and x is not None else x for i, x in enumerate(operands)]
    with np.errstate(all="ignore"):
        results = kernel.code(node, at)(*arguments)
    outputs = results if isinstance(results, tuple) else (results,)
    return {name: _to_operand(result) for name, result in zip(node.outputs, outputs, strict=False) if name}


def _to_operand(result: Any) -> Operand:
    return np.asarray(result) if isinstance(result, np.generic | int | float) else result


def _lower_decomposition(node: Node, function: Function, scope: Mapping[str, Operand], reason: str) -> dict[str, Operand]:
    """Lower a node through its ONNX decomposition; raises CompileRefused with ``reason`` if there is none."""
    isolated = _isolate_node(node, function, scope)
    decomposition = find_decomposition(node, isolated)
    if decomposition is None:
        raise CompileRefused(reason)
    results = lower(decomposition, [scope[value.name] for value in isolated.inputs], {})
    return {value.name: result for value, result in zip(isolated.outputs, results, strict=True)}


def _isolate_node(node: Node, function: Function, scope: Mapping[str, Operand]) -> Function:
    """Extract the node as a Function, with inputs of the types that tracing produced."""
    reads = {name: scope[name] for name in node.uses}
    return Function(
        inputs=tuple(Value(name, TensorType(DType.of(x), x.shape)) for name, x in reads.items()),
        outputs=tuple(function.value(name) for name in node.defines),
        nodes=(node,),
        opsets=function.opsets,
    )
