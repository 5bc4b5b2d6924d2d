"""Trace a Function to JAX operations, node by node, with the kernels of the table."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.engines.kernels.table import NodeContext
from xrt.engines.xla.kernels import JAX, NUMPY, Operand, ops
from xrt.engines.xla.tables import NUMPY_OPS
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, find_schema
from xrt.passes import find_decomposition


@dataclass(frozen=True, slots=True)
class LoweringContext(NodeContext):
    """What a kernel of this engine gets: the node and the values around it. ``xp`` is `JAX`, or `NUMPY` if NumPy computes it."""

    scope: Mapping[str, Operand]
    """By name: the values that the node's bodies may use."""
    lower_function: Callable[[Function, Sequence[Operand], Mapping[str, Operand]], list[Operand]]
    """``f(function, inputs, scope)`` traces a Function (see `lower_function`)."""

    def get_constant(self, operand: Operand, position: int) -> np.ndarray[Any, Any]:
        """Get the elements of ``operand``, the input at this position. Raises CompileRefused if they are traced."""
        if isinstance(operand, np.ndarray):
            return operand
        # An empty operand has no elements that could be unknown.
        if not operand.size:
            return np.zeros(operand.shape, operand.dtype)
        name = _find_input_name(self.node, self.function, position)
        raise CompileRefused(f"XLA needs the {name!r} of {self.node.op} as a constant, and it is computed at run time")

    def get_ints(self, operand: Operand, position: int) -> tuple[int, ...]:
        """Get the elements of ``operand`` as ints, as `get_constant` does."""
        return tuple(int(number) for number in self.get_constant(operand, position).reshape(-1))

    def make_body_tracer(self, attribute: str) -> Callable[[Sequence[Operand]], list[Operand]]:
        """Make a function that traces the body that an attribute stores, for the given inputs of the body."""
        function = self.attr(attribute)
        return lambda inputs: self.lower_function(function, inputs, self.scope)


def _find_input_name(node: Node, function: Function, position: int) -> str:
    schema = find_schema(node.op_type, function.opset(node.domain), node.domain)
    is_declared = schema is not None and position < len(schema.inputs)
    return str(schema.inputs[position].name) if schema is not None and is_declared else str(position)


MAX_KNOWN_CONSTANT_ELEMENTS = 1024
"""Constants up to this size are known while tracing, and are part of the compiled code. Larger ones are arguments of the code."""


def is_known(constant: Constant) -> bool:
    """Whether the constant is small enough to be part of the compiled code (`MAX_KNOWN_CONSTANT_ELEMENTS`)."""
    return bool(constant.array.size <= MAX_KNOWN_CONSTANT_ELEMENTS)


def lower_function(function: Function, inputs: Sequence[Operand], outer: Mapping[str, Operand]) -> list[Operand]:
    """Trace a Function and return its outputs.

    ``outer`` has the operands of values outside the Function by name: those that a body captures, and the constants that are
    arguments of the compiled code. Raises CompileRefused for a node without a kernel, and any error of JAX.
    """
    values: dict[str, Operand] = dict(zip((value.name for value in function.inputs), inputs, strict=True))
    scope = ChainMap(values, outer)  # type: ignore[arg-type]  # only the first map is ever written to
    # Constants in `outer` are arguments of the code. As known arrays they would be copied into the code.
    for name, constant in function.constants.items():
        if name not in outer:
            values[name] = constant.array
    for node in function.nodes:
        values.update(_lower_node(node, function, scope))
    return [scope[value.name] for value in function.outputs]


def _lower_node(node: Node, function: Function, scope: Mapping[str, Operand]) -> dict[str, Operand]:
    """Trace one node and return its outputs by name."""
    kernel = ops.find(node, function)
    if isinstance(kernel, str):
        return _lower_decomposition(node, function, scope, kernel)
    operands = [scope[name] if name else None for name in node.inputs]
    by_numpy = node.op_type in NUMPY_OPS and all(operand is None or isinstance(operand, np.ndarray) for operand in operands)
    ctx = LoweringContext(node, function, NUMPY if by_numpy else JAX, scope, lower_function)
    # Inputs whose elements the kernel reads (`host`) must be known while tracing.
    arguments = [ctx.get_constant(x, i) if i in kernel.host and x is not None else x for i, x in enumerate(operands)]
    with np.errstate(all="ignore"):
        results = kernel.code(node, ctx)(*arguments)
    outputs = results if isinstance(results, tuple) else (results,)
    return {name: _to_operand(result) for name, result in zip(node.outputs, outputs, strict=False) if name}


def _to_operand(result: Any) -> Operand:
    return np.asarray(result) if isinstance(result, np.generic | int | float) else result


def _lower_decomposition(node: Node, function: Function, scope: Mapping[str, Operand], reason: str) -> dict[str, Operand]:
    """Trace the decomposition of a node without a kernel. Raises CompileRefused with ``reason`` if there is none."""
    isolated = _isolate_node(node, function, scope)
    decomposition = find_decomposition(node, isolated)
    if decomposition is None:
        raise CompileRefused(reason)
    results = lower_function(decomposition, [scope[value.name] for value in isolated.inputs], {})
    return {value.name: result for value, result in zip(isolated.outputs, results, strict=True)}


def _isolate_node(node: Node, function: Function, scope: Mapping[str, Operand]) -> Function:
    """Make a Function of the node alone. Its inputs have the types of the operands in ``scope``."""
    reads = {name: scope[name] for name in node.uses}
    return Function(
        inputs=tuple(Value(name, TensorType(DType.of(x), x.shape)) for name, x in reads.items()),
        outputs=tuple(function.value(name) for name in node.defines),
        nodes=(node,),
        opsets=function.opsets,
    )
