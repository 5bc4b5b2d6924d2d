"""The precision that an engine computes float32 in, and how far its results may then be off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.comparison import Comparison, compare, tolerance_for
from xrt.graph import DType, Function

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.engines.contract.options import Precision

__all__ = ["compare_at_precision", "find_precision", "is_lowered"]

_LOWERED = {"fp16": "float16", "bf16": "bfloat16", "int8": "bfloat16"}
"""The element type whose tolerance holds for that precision; int8's calibration is as coarse as bfloat16."""
_BY_SPEC: tuple[Precision, ...] = ("bf16", "fp16")


def is_lowered(precision: str) -> bool:
    """Whether results of that precision have a tolerance of their own."""
    return precision in _LOWERED


def find_precision(engine: GraphCompiler, context: CompileContext) -> Precision:
    """Return what the engine computes float32 in: by its spec, or since the options allow it and it honors that.

    It may ask the library.
    """
    for precision in _BY_SPEC:
        lower = engine.lower_precision(precision)
        if lower is not None and lower.spec == engine.spec:
            return precision
    allowed = context.options.precision
    return allowed if allowed in _BY_SPEC and engine.unsupported_options(context) is None else "fp32"


def compare_at_precision(function: Function, results: Sequence[Any], expected: Sequence[Any], precision: str) -> tuple[str, str]:
    """Return what is wrong with results of a lower precision, as a sentence; and if nothing is, how far they are off."""
    if len(results) != len(expected):
        return f"there are {len(results)} outputs; {len(expected)} were expected", ""
    found = [
        compare(mine, theirs, _find_tolerance(theirs, _LOWERED[precision]), name=value.name)
        for value, mine, theirs in zip(function.outputs, results, expected, strict=True)
    ]
    wrong = next((one.message for one in found if not one), "")
    return wrong, "" if wrong else _describe_loss(found)


def _find_tolerance(expected: Any, kind: str) -> Any:
    is_exact = isinstance(expected, np.ndarray) and not DType.of(expected).is_float
    return None if is_exact else tolerance_for(DType.parse(kind).numpy, "network")


def _describe_loss(found: Sequence[Comparison]) -> str:
    absolute = max((one.absolute for one in found), default=0.0)
    relative = max((one.relative for one in found), default=0.0)
    return f"off by {absolute:.2g} at most ({relative:.2g} of a number)"
