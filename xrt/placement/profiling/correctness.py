"""Correctness first: results of a subgraph or a plan are compared with the reference before their time counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xrt.verify.comparison import OutputJudge, Verdict
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
    is_stopped: Callable[[], bool] = lambda: False,
) -> CheckResult:
    """Return the verdict on results. If the caller allows a lower precision, its tolerance applies, and the error is noted.

    Raises Stopped where it ``is_stopped`` before there is one.
    """
    if len(results) != len(expected):
        return CheckResult(f"there are {len(results)} outputs; {len(expected)} were expected")
    if is_lowered(options.precision):
        return CheckResult(*compare_at_precision(function, results, expected, options.precision))
    found = OutputJudge(function.replace(aliases=()), inputs, reference, is_stopped).judge(results, expected)
    return CheckResult(found.message if found.verdict is Verdict.DISAGREES else "")
