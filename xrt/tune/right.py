"""Right first: what a piece or a plan computes, held against the reference, before anyone looks at its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.compare import Comparison, compare, tolerance_for
from xrt.engines import ExecutionOptions
from xrt.graph import DType, Function
from xrt.tune.values import Reference
from xrt.verify import Verdict, WitnessedReference, judge

__all__ = ["Found", "held"]

_LOWERED = {"fp16": "float16", "bf16": "bfloat16", "int8": "bfloat16"}
"""The element type whose tolerance holds where a caller allows that precision; int8's calibration is as coarse as bfloat16."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it."""

    wrong: str = ""
    """What differs, as a sentence; empty where nothing does."""
    note: str = ""
    """What is to be told although it is right: how far a lowered precision is off."""


def held(
    function: Function,
    inputs: Sequence[Any],
    results: Sequence[Any],
    expected: Sequence[Any],
    reference: Reference,
    options: ExecutionOptions,
) -> Found:
    """Return what to think of results. Where the caller allows a lower precision its tolerance holds, and the loss is told."""
    if len(results) != len(expected):
        return Found(f"there are {len(results)} outputs; {len(expected)} were expected")
    if options.precision in _LOWERED:
        return _lowered(function, results, expected, _LOWERED[options.precision])
    plain = function.replace(aliases=())
    found = judge(plain, inputs, results, expected, reference)
    return _in_doubt(plain, inputs, results, expected, reference, found.message if found.verdict is Verdict.DISAGREES else "")


def _in_doubt(
    function: Function, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any], reference: Reference, wrong: str
) -> Found:
    """Return what is wrong, unless the reference alone differs: who agrees with it is wrong then, and who does not is right."""
    if not isinstance(reference, WitnessedReference):
        return Found(wrong)
    if wrong:
        doubt = reference.doubt(function, inputs, results, expected)
        return Found("" if doubt else wrong, doubt)
    return Found(reference.doubted(function))


def _lowered(function: Function, results: Sequence[Any], expected: Sequence[Any], kind: str) -> Found:
    found = [
        compare(mine, theirs, _tolerance(theirs, kind), name=value.name)
        for value, mine, theirs in zip(function.outputs, results, expected, strict=True)
    ]
    wrong = next((one.message for one in found if not one), "")
    return Found(wrong, "" if wrong else _loss(found))


def _tolerance(expected: Any, kind: str) -> Any:
    is_exact = isinstance(expected, np.ndarray) and not DType.of(expected).is_float
    return None if is_exact else tolerance_for(DType.parse(kind).numpy, "network")


def _loss(found: Sequence[Comparison]) -> str:
    absolute = max((one.absolute for one in found), default=0.0)
    relative = max((one.relative for one in found), default=0.0)
    return f"off by {absolute:.2g} at most ({relative:.2g} of a number)"
