"""From a Function to operations of JAX: node by node, through the table."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from xrt.engines.toolkit.learned_models import find_learned_definition
from xrt.engines.xla.kernels import ops
from xrt.engines.xla.lowering_context import LoweringContext
from xrt.engines.xla.table import Operand, is_either
from xrt.errors import CompileRefused
from xrt.formats.onnx import expand
from xrt.graph import Constant, DType, Function, Node, TensorType, Value

__all__ = ["KNOWN", "is_known", "lower"]

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
    """Return the values that a node defines."""
    kernel = ops.find(node, function)
    if isinstance(kernel, str):
        return _by_definition(node, function, scope, kernel)
    operands = [scope[name] if name else None for name in node.inputs]
    by_numpy = is_either(kernel.code) and all(operand is None or isinstance(operand, np.ndarray) for operand in operands)
    site = LoweringContext(node, function, np if by_numpy else jnp, scope, lower)
    with np.errstate(all="ignore"):
        results = kernel.code(site, *operands)
    many = results if isinstance(results, tuple) else (results,)
    return {name: _plain(result) for name, result in zip(node.outputs, many, strict=False) if name}


def _plain(result: Any) -> Operand:
    return np.asarray(result) if isinstance(result, np.generic | int | float) else result


def _by_definition(node: Node, function: Function, scope: Mapping[str, Operand], reason: str) -> dict[str, Operand]:
    """Lower what ONNX defines by other operators as these."""
    one = _alone(node, function, scope)
    meaning = None if node.bodies else find_learned_definition(node, one) or expand(one)
    if meaning is None:
        raise CompileRefused(reason)
    results = lower(meaning, [scope[value.name] for value in one.inputs], {})
    return {value.name: result for value, result in zip(one.outputs, results, strict=True)}


def _alone(node: Node, function: Function, scope: Mapping[str, Operand]) -> Function:
    """Return the node as a Function of its own, with the types of what it reads as they turned out."""
    reads = {name: scope[name] for name in node.uses}
    return Function(
        inputs=tuple(Value(name, TensorType(DType.of(x), x.shape)) for name, x in reads.items()),
        outputs=tuple(function.value(name) for name in node.defines),
        nodes=(node,),
        opsets=function.opsets,
    )
