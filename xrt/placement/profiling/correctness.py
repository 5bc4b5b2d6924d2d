"""Correctness first: results of a subgraph or a plan are compared with the reference before their time counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xrt.verify import Verdict, WitnessedReference, judge_outputs
from xrt.verify.precision import compare_at_precision, is_lowered

if TYPE_CHECKING:
    from xrt.engines import ExecutionOptions
    from xrt.graph import Function
    from xrt.placement.profiling.activations import Reference

__all__ = ["CheckResult", "check_against_reference"]


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
    if is_lowered(options.precision):
        return CheckResult(*compare_at_precision(function, results, expected, options.precision))
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
