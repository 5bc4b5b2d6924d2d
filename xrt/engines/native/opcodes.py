"""What each elementwise operator is in the words of the native machine (``src/kernels/loops/operators.h``): a few steps.

A row per operator says for which types and from which version it is served; what is not here, or does not fit its row,
stays with the Python kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from xrt.formats.onnx.clip_bounds import read_clip_bounds
from xrt.graph import DType, Function, Node, TensorType

__all__ = ["OpcodeStep", "lower_to_opcodes"]

FLOATS = frozenset({DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16})
NARROW = frozenset({DType.FLOAT16, DType.BFLOAT16})
SINGLE = FLOATS - {DType.FLOAT64}
"""Types of the transcendental functions: NumPy's own are quick and more exact than float32 in float64."""
INTEGERS = frozenset({DType.INT32, DType.INT64})
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({DType.BOOL})
BYTES = frozenset({DType.UINT8, DType.INT8})
"""Types that are only read, by a Cast."""

BROADCASTING = 7
"""The first version in which operators of several tensors broadcast as NumPy does."""


@dataclass(frozen=True, slots=True)
class OpcodeStep:
    """One operation of the machine."""

    operator: str
    arguments: tuple[str | int, ...]
    """Values by name, or earlier steps of the same node by number."""
    dtype: DType
    """Of the result."""
    parameters: tuple[float, float] = (0.0, 0.0)


Steps = tuple[OpcodeStep, ...]
Write = Callable[[Node, Sequence[DType]], Steps | None]
"""Returns a node's steps from the types of its inputs; None where it is not served."""


@dataclass(frozen=True, slots=True)
class OpcodeRule:
    """How an operator is written, and when."""

    write: Write
    dtypes: frozenset[DType]
    """Of every input, but for conditions."""
    since: int = 1


def lower_to_opcodes(node: Node, function: Function) -> Steps | None:
    """Return the steps that compute the node's output; None where the machine does not serve the node."""
    row = ROWS.get(node.op_type) if not node.domain else None
    if row is None or function.opset() < row.since:
        return None
    types = [function.get_type(name) for name in node.inputs if name]
    dtypes = [type_.dtype for type_ in types if isinstance(type_, TensorType)]
    if not dtypes or len(dtypes) < len(types) or not row.dtypes.issuperset(dtypes):
        return None
    return row.write(node, dtypes)


# ---------------------------------------------------------------------- the usual ways


def _plain(node: Node, dtypes: Sequence[DType], *, gives: DType | None = None) -> Steps | None:
    """One step of the operator's own name."""
    if len(set(dtypes)) > 1:
        return None
    return (OpcodeStep(node.op_type, node.inputs, gives or dtypes[0]),)


def _with_attributes(node: Node, dtypes: Sequence[DType], *, defaults: Sequence[tuple[str, float]]) -> Steps:
    """One step of the operator's own name with attributes as its parameters."""
    values = [float(np.float32(node.attr(name, default))) for name, default in defaults]
    return (OpcodeStep(node.op_type, node.inputs, dtypes[0], (values[0], values[1] if len(values) > 1 else 0.0)),)


def _folded(node: Node, dtypes: Sequence[DType], *, operator: str, mean: bool = False) -> Steps | None:
    """Any number of tensors, from left to right."""
    if len(set(dtypes)) > 1 or len(node.inputs) < 2:
        return None
    steps = [OpcodeStep(operator, node.inputs[:2], dtypes[0])]
    steps += [OpcodeStep(operator, (i, name), dtypes[0]) for i, name in enumerate(node.inputs[2:])]
    if mean:
        # A narrow type is divided in itself, by a count that it holds exactly.
        steps.append(OpcodeStep("DivideBy", (len(steps) - 1,), dtypes[0], (float(len(node.inputs)), 0.0)))
    return tuple(steps)


# ---------------------------------------------------------------------- single operators


def _where(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    condition, yes, no = dtypes
    if condition is not DType.BOOL or yes is not no:
        return None
    return (OpcodeStep("Where", node.inputs, yes),)


def _clip(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    """Bounds are inputs since version 11, and attributes before; the upper one wins where they cross."""
    if len(set(dtypes)) > 1:
        return None
    if len(node.inputs) == 1 and dtypes[0] in FLOATS:
        return (OpcodeStep("Clip", node.inputs, dtypes[0], read_clip_bounds(node)),)
    steps: list[OpcodeStep] = []
    for operator, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
        if bound:
            steps.append(OpcodeStep(operator, (len(steps) - 1 if steps else node.inputs[0], bound), dtypes[0]))
    return tuple(steps) or None


def _gelu(node: Node, dtypes: Sequence[DType]) -> Steps:
    operator = "GeluTanh" if node.attr("approximate", "none") == "tanh" else "Gelu"
    return (OpcodeStep(operator, node.inputs, dtypes[0]),)


def _cast(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    to, own = node.attr("to"), dtypes[0]
    if not isinstance(to, int):
        return None
    target = DType.from_onnx(to)
    if target is DType.BOOL:
        return (OpcodeStep("Truth", node.inputs, target),) if own in NUMBERS else None
    if target not in NUMBERS or (target in NARROW and own not in SINGLE | BOOL | BYTES):
        return None  # from wider types to narrow floats by way of float32 would round twice
    return (OpcodeStep("Cast", node.inputs, target),)


def _is_inf(node: Node, dtypes: Sequence[DType]) -> Steps:
    wanted = (float(node.attr("detect_negative", 1)), float(node.attr("detect_positive", 1)))
    return (OpcodeStep("IsInf", node.inputs, DType.BOOL, wanted),)


ATTRIBUTES = {
    "HardSigmoid": (FLOATS, (("alpha", 0.2), ("beta", 0.5))),
    "LeakyRelu": (FLOATS, (("alpha", 0.01),)),
    "Shrink": (FLOATS - NARROW, (("bias", 0.0), ("lambd", 0.5))),
    "ThresholdedRelu": (FLOATS, (("alpha", 1.0),)),
    "Celu": (SINGLE, (("alpha", 1.0),)),
    "Elu": (SINGLE, (("alpha", 1.0),)),
    "Selu": (SINGLE, (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))),
    "Swish": (SINGLE, (("alpha", 1.0),)),
}
"""Operators that take numbers as attributes: their types, and each attribute with its default."""


def _rows() -> dict[str, OpcodeRule]:
    predicate = partial(_plain, gives=DType.BOOL)
    comparisons = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    exact = ("Ceil", "Floor", "HardSwish", "Reciprocal", "Round", "Softsign", "Sqrt")
    curves = ("Erf", "Exp", "Log", "Mish", "Sigmoid", "Softplus", "Tanh")
    return {
        **{op: OpcodeRule(_plain, NUMBERS, BROADCASTING) for op in ("Add", "Div", "Mul", "PRelu", "Sub")},
        **{op: OpcodeRule(predicate, NUMBERS, BROADCASTING) for op in comparisons},
        **{op: OpcodeRule(_plain, BOOL, BROADCASTING) for op in ("And", "Or", "Xor")},
        **{op: OpcodeRule(_plain, INTEGERS) for op in ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")},
        **{op: OpcodeRule(_plain, NUMBERS) for op in ("Abs", "Neg", "Relu", "Sign")},
        **{op: OpcodeRule(_plain, FLOATS) for op in exact},
        **{op: OpcodeRule(_plain, SINGLE) for op in curves},
        **{op: OpcodeRule(partial(_with_attributes, defaults=d), types) for op, (types, d) in ATTRIBUTES.items()},
        "Cast": OpcodeRule(_cast, NUMBERS | BOOL | BYTES, 6),
        "Clip": OpcodeRule(_clip, NUMBERS, 6),
        "Equal": OpcodeRule(predicate, NUMBERS | BOOL, BROADCASTING),
        "Gelu": OpcodeRule(_gelu, SINGLE),
        "IsInf": OpcodeRule(_is_inf, FLOATS),
        "IsNaN": OpcodeRule(predicate, FLOATS),
        "Max": OpcodeRule(partial(_folded, operator="Max"), NUMBERS),
        "Mean": OpcodeRule(partial(_folded, operator="Add", mean=True), FLOATS),
        "Min": OpcodeRule(partial(_folded, operator="Min"), NUMBERS),
        "Not": OpcodeRule(_plain, BOOL),
        "Pow": OpcodeRule(_plain, SINGLE, BROADCASTING),
        "Sum": OpcodeRule(partial(_folded, operator="Add"), FLOATS),
        "Where": OpcodeRule(_where, NUMBERS | BOOL),
    }


ROWS = _rows()
