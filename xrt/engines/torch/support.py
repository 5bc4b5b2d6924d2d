"""Why torch cannot take a node: its types, the table of kernels, and what is known to be wrong."""

from __future__ import annotations

from functools import lru_cache

from xrt.engines.toolkit.node_rewrite import as_function
from xrt.engines.torch.dtypes import MASKS, OWN
from xrt.engines.torch.errors import summarize_error
from xrt.engines.torch.kernel_context import close_over
from xrt.engines.torch.kernels import MOVING, ops
from xrt.engines.torch.known_issues import find_known_issue
from xrt.engines.torch.program import find_definition
from xrt.errors import ModelError
from xrt.graph import DType, Function, Node, OptionalType, SequenceType, TensorType, Type, since_version

__all__ = ["why_not"]

CONVERTING = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"})
"""Operators that read and write codes of types that torch does not compute in."""
CONTROL = frozenset(
    {
        *("If", "Loop", "Scan", "SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceErase", "SequenceInsert"),
        *("SequenceLength", "ConcatFromSequence", "SplitToSequence", "SequenceMap"),
        *("Optional", "OptionalHasElement", "OptionalGetElement", "Shape", "Size", "ConstantOfShape"),
    }
)
"""Operators that compute nothing of their values."""
MODULAR = frozenset({"Add", "Sub", "Mul", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Sum"})
"""Operators that compute the same bits of uint64 as of int64."""


def why_not(node: Node, function: Function) -> str | None:
    """Return why torch cannot take the node as a Function of its own; None when it can."""
    if since_version(node, function) is None:
        return f"{node.op} is not an operator of opset {function.opsets.get(node.domain)}"
    for name in (*node.uses, *filter(None, node.outputs)):
        if reason := _why_not_type(node, name, function.get_type(name)):
            return reason
    return find_known_issue(node, function) or _why_not_kernel(node, function) or _why_not_bodies(node, function)


def _why_not_type(node: Node, name: str, type_: Type | None) -> str | None:
    if isinstance(type_, SequenceType | OptionalType):
        return _why_not_type(node, name, type_.element)
    if type_ is None:
        return f"the type of {name!r} is not known before the run"
    if not isinstance(type_, TensorType):
        return f"{name!r} is {type_}, and this engine takes tensors, sequences and optionals"
    dtype = type_.dtype
    if dtype in OWN or dtype in MASKS or node.op_type in CONTROL and dtype not in _NO_TENSORS:
        return None
    if dtype not in _NO_TENSORS and (node.op_type in MOVING or node.op_type in CONVERTING):
        return None
    if dtype is DType.UINT64 and node.op_type in MODULAR:
        return None
    return f"{name!r} is {dtype}, in which this engine does not compute {node.op}"


_NO_TENSORS = frozenset({DType.STRING, DType.COMPLEX64, DType.COMPLEX128})


def _why_not_kernel(node: Node, function: Function) -> str | None:
    found = ops.why_not(node, function)
    if found is None or node.bodies:
        return found
    return _why_not_defined(as_function(node, function), found)


@lru_cache(maxsize=4096)
def _why_not_defined(one: Function, reason: str) -> str | None:
    """Return why the operators that a node without a kernel stands for are not taken."""
    (node,) = one.nodes
    try:
        meaning = find_definition(node, one)
    except ModelError as cause:
        return f"{reason}; {summarize_error(cause)}"
    if meaning is None:
        return reason
    for inner in meaning.nodes:
        if refused := why_not(inner, meaning):
            return f"{reason}, and of its definition {inner.op} is not taken: {refused}"
    return None


def _why_not_bodies(node: Node, function: Function) -> str | None:
    for body in node.bodies:
        within = close_over(body, function)
        for inner in within.nodes:
            if reason := why_not(inner, within):
                return f"its body {body.name!r} holds node {inner.name!r} ({inner.op}): {reason}"
    return None
