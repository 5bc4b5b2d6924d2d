"""Correctness first: results of a subgraph or a plan are compared with the reference before their time counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.comparison import Comparison, compare, tolerance_for
from xrt.graph import DType, Function
from xrt.verify import Verdict, WitnessedReference, judge_outputs

if TYPE_CHECKING:
    from xrt.engines import ExecutionOptions
    from xrt.placement.profiling.activations import Reference

__all__ = ["CheckResult", "check_against_reference"]

_LOWERED = {"fp16": "float16", "bf16": "bfloat16", "int8": "bfloat16"}
"""The element type whose tolerance holds where a caller allows that precision; int8's calibration is as coarse as bfloat16."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of it."""

    wrong: str = ""
    """What differs, as a sentence; empty where nothing does."""
    note: str = ""
    """A remark on correct results: the error of a lowered precision."""


def check_against_reference(
    function: Function,
    inputs: Sequence[Any],
    results: Sequence[Any],
    expected: Sequence[Any],
    reference: Reference,
    options: ExecutionOptions,
) -> CheckResult:
    """Return the verdict on results. If the caller allows a lower precision, its tolerance applies, and the error is noted."""
    if len(results) != len(expected):
        return CheckResult(f"there are {len(results)} outputs; {len(expected)} were expected")
    if options.precision in _LOWERED:
        return _lowered(function, results, expected, _LOWERED[options.precision])
    plain = function.replace(aliases=())
    found = judge_outputs(plain, inputs, results, expected, reference)
    return _in_doubt(plain, inputs, results, expected, reference, found.message if found.verdict is Verdict.DISAGREES else "")


def _in_doubt(
    function: Function, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any], reference: Reference, wrong: str
) -> CheckResult:
    """Return what is wrong, unless the reference alone differs: who agrees with it is wrong then, and who does not is right."""
    if not isinstance(reference, WitnessedReference):
        return CheckResult(wrong)
    if wrong:
        doubt = reference.doubt(function, inputs, results, expected)
        return CheckResult("" if doubt else wrong, doubt)
    return CheckResult(reference.why_doubted(function))


def _lowered(function: Function, results: Sequence[Any], expected: Sequence[Any], kind: str) -> CheckResult:
    found = [
        compare(mine, theirs, _tolerance(theirs, kind), name=value.name)
        for value, mine, theirs in zip(function.outputs, results, expected, strict=True)
    ]
    wrong = next((one.message for one in found if not one), "")
    return CheckResult(wrong, "" if wrong else _loss(found))


def _tolerance(expected: Any, kind: str) -> Any:
    is_exact = isinstance(expected, np.ndarray) and not DType.of(expected).is_float
    return None if is_exact else tolerance_for(DType.parse(kind).numpy, "network")


def _loss(found: Sequence[Comparison]) -> str:
    absolute = max((one.absolute for one in found), default=0.0)
    relative = max((one.relative for one in found), default=0.0)
    return f"off by {absolute:.2g} at most ({relative:.2g} of a number)"
