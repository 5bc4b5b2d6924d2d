"""Trace a Function to JAX operations, node by node, by calling kernels with traced JAX arrays."""

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
from xrt.graph import DType, Function, Node, TensorType, Value, find_schema
from xrt.passes import find_decomposition


@dataclass(frozen=True, slots=True)
class LoweringContext(NodeContext):
    """The argument ``ctx`` of kernels: the node and its environment. ``xp`` is `JAX`, or `NUMPY` if NumPy computes the node."""

    scope: Mapping[str, Operand]
    """The values that the node's bodies may use, by name."""
    lower_function: Callable[[Function, Sequence[Operand], Mapping[str, Operand]], list[Operand]]
    """``f(function, inputs, scope)`` traces a Function (see `lower_function`)."""

    def get_constant(self, operand: Operand, position: int) -> np.ndarray[Any, Any]:
        """Get the elements of ``operand``, the input at this position. Raises CompileRefused if they are not known."""
        if isinstance(operand, np.ndarray):
            return operand
        # An empty operand has no unknown elements.
        if not operand.size:
            return np.zeros(operand.shape, operand.dtype)
        schema = find_schema(self.node.op_type, self.version, self.node.domain)
        name = str(position)
        if schema is not None and position < len(schema.inputs):
            name = str(schema.inputs[position].name)
        raise CompileRefused(f"XLA needs the {name!r} of {self.node.op} as a constant, and it is computed at run time")

    def get_ints(self, operand: Operand, position: int) -> tuple[int, ...]:
        """Get the elements of ``operand`` as ints, as `get_constant` does."""
        return tuple(int(number) for number in self.get_constant(operand, position).reshape(-1))

    def make_body_tracer(self, attribute: str) -> Callable[[Sequence[Operand]], list[Operand]]:
        """Make a function of the body's inputs that traces the body in an attribute."""
        function = self.attr(attribute)
        return lambda inputs: self.lower_function(function, inputs, self.scope)


def lower_function(function: Function, inputs: Sequence[Operand], outer: Mapping[str, Operand]) -> list[Operand]:
    """Trace a Function and return its outputs.

    ``outer`` has operands of values by name: captures of a body, and the constants that are arguments of the compiled code.
    Raises CompileRefused for a node without a kernel, or any error of JAX.
    """
    values: dict[str, Operand] = dict(zip((value.name for value in function.inputs), inputs, strict=True))
    scope = ChainMap(values, outer)  # type: ignore[arg-type]  # only the first map is modified
    # Constants in `outer` are arguments of the code. The elements of the others become part of the code.
    for name, constant in function.constants.items():
        if name not in outer:
            values[name] = constant.array
    for node in function.nodes:
        values.update(_lower_node(node, function, scope))
    return [scope[value.name] for value in function.outputs]


def _lower_node(node: Node, function: Function, scope: Mapping[str, Operand]) -> dict[str, Operand]:
    """Trace one node and return its outputs by name."""
    kernel = ops.find(node, function)
    if isinstance(kernel, str):  # the reason why there is no kernel
        return _lower_decomposition(node, function, scope, kernel)
    operands = [scope[name] if name else None for name in node.inputs]
    # If NumPy computes the node, its result stays known, which nodes such as Reshape need for their shapes.
    by_numpy = node.op_type in NUMPY_OPS and all(operand is None or isinstance(operand, np.ndarray) for operand in operands)
    ctx = LoweringContext(node, function, NUMPY if by_numpy else JAX, scope, lower_function)
    # The kernel reads the elements of its `host` inputs, so they must be known.
    arguments = [ctx.get_constant(x, i) if i in kernel.host and x is not None else x for i, x in enumerate(operands)]
    with np.errstate(all="ignore"):
        results = kernel.code(node, ctx)(*arguments)
    outputs = results if isinstance(results, tuple) else (results,)
    # NumPy returns scalars for arrays without axes.
    arrays = [np.asarray(result) if isinstance(result, np.generic | int | float) else result for result in outputs]
    return {name: array for name, array in zip(node.outputs, arrays, strict=False) if name}


def _lower_decomposition(node: Node, function: Function, scope: Mapping[str, Operand], reason: str) -> dict[str, Operand]:
    """Trace a node without a kernel by its decomposition. Raises CompileRefused with ``reason`` if there is none."""
    reads = {name: scope[name] for name in node.uses}
    # A Function of the node alone. Its inputs have the types of the operands, which may be more specific than those in the model.
    isolated = Function(
        inputs=tuple(Value(name, TensorType(DType.from_array(x), x.shape)) for name, x in reads.items()),
        outputs=tuple(function.value(name) for name in node.defined_names),
        nodes=(node,),
        opsets=function.opsets,
    )
    decomposition = find_decomposition(node, isolated)
    if decomposition is None:
        raise CompileRefused(reason)
    results = lower_function(decomposition, list(reads.values()), {})
    return {value.name: result for value, result in zip(isolated.outputs, results, strict=True)}
