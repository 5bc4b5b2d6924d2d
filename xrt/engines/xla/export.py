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
        own.update(_lowered(node, function, _delay(node, function, scope) if node.control else scope))
    return [scope[value.name] for value in function.outputs]


def _delay(node: Node, function: Function, scope: Mapping[str, Operand]) -> Mapping[str, Operand]:
    """Return the scope with one of the values that a node reads, the smallest, depending on the results that the node waits for.

    So XLA neither computes the node before them nor together with an equal one that waits for nothing. The value is chosen by a
    condition that is always true, which only the code generator sees: barriers are gone before XLA merges equal operations for
    the last time, and before it puts them in order.
    """
    read = {name: scope[name] for name in node.uses if not isinstance(scope[name], np.ndarray)}
    awaited = (scope[name] for other in node.control for name in function.node(other).defines)
    computed = [value for value in awaited if not isinstance(value, np.ndarray) and value.size and value.dtype.kind != "c"]
    if not read or not computed:
        return scope
    name = min(read, key=lambda name: read[name].nbytes)
    is_done = sum(value.reshape(-1)[0].astype(np.int32) & 1 for value in computed) + 1 > 0
    delayed = jnp.where(is_done, read[name], jnp.zeros((), read[name].dtype))
    return ChainMap({name: delayed}, scope)  # type: ignore[arg-type]  # it is only read


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
