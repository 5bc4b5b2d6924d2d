"""Operators without a rule, each with the reason: the derivative is zero wherever it exists, or the rule is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.graph import Node

__all__ = ["MISSING", "WITHOUT_GRADIENT", "describe_missing"]

_STEP = "it is constant between its steps"
_DRAWN = "what it draws does not depend on its input"
_SHAPE = "it reads shapes and types only"

WITHOUT_GRADIENT: Mapping[str, str] = {
    **dict.fromkeys(("Binarizer", "Ceil", "Floor", "Hardmax", "Round", "Sign"), _STEP),
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"), _DRAWN),
    **dict.fromkeys(("ConstantOfShape", "EyeLike", "Shape", "Size"), _SHAPE),
}
"""Operators through which no gradient passes, each with the reason. Nor does one through values of integers or booleans."""

_SEQUENCES = "gradients of sequences are not computed; Split and Concat do the same with tensors"
_QUANTIZED = "its results are integers, or scales that depend on the largest element"

_WAITS = "its rule is not written yet"

MISSING: Mapping[str, str] = {
    "CumProd": "its gradient is a quotient by elements that may be 0",
    "Det": "its gradient is the inverse of the matrix, which no operator of ONNX computes",
    "DFT": _WAITS,
    "STFT": _WAITS,
    "Col2Im": _WAITS,
    "DeformConv": _WAITS,
    "GridSample": _WAITS,
    "LinearAttention": "its definition is a Scan inside of which ranks are not known",
    "MaxRoiPool": _WAITS,
    "RoiAlign": _WAITS,
    "DynamicQuantizeLinear": _QUANTIZED,
    "DequantizeLinear": _WAITS,
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert", "SequenceMap"),
            *("SplitToSequence", "Optional", "OptionalGetElement"),
        ),
        _SEQUENCES,
    ),
}
"""Operators that have neither a rule nor a definition to be differentiated through, each with the reason."""


def describe_missing(node: Node) -> str:
    """Return why there is no gradient of a node."""
    return MISSING.get(node.op, "there is no rule for it, and ONNX does not define it by other operators")
