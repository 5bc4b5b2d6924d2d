"""Correctness first: results of a subgraph or a plan are compared with the reference before their time counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xrt.verify import Verdict, WitnessedReference
from xrt.verify.comparison import OutputJudge
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
    plain, inputs, results, expected = _sort_by_name(function.replace(aliases=()), inputs, results, expected)
    if isinstance(reference, WitnessedReference):
        judge = reference.make_judge(plain, inputs, is_stopped)
    else:
        judge = OutputJudge(plain, inputs, reference, is_stopped)
    found = judge.judge(results, expected)
    return _in_doubt(judge, results, expected, reference, found.message if found.verdict is Verdict.DISAGREES else "")


def _sort_by_name(
    function: Function, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]
) -> tuple[Function, list[Any], list[Any], list[Any]]:
    """Return them with inputs and outputs in the order of their names.

    What is known of a function then serves the region of all its nodes too, whose inputs and outputs have another order.
    """
    given = sorted(range(len(inputs)), key=lambda place: function.inputs[place].name)
    made = sorted(range(len(results)), key=lambda place: function.outputs[place].name)
    ordered = function.replace(
        inputs=tuple(function.inputs[place] for place in given), outputs=tuple(function.outputs[place] for place in made)
    )
    return ordered, [inputs[place] for place in given], [results[place] for place in made], [expected[place] for place in made]


def _in_doubt(
    judge: OutputJudge, results: Sequence[Any], expected: Sequence[Any], reference: Reference, wrong: str
) -> CheckResult:
    """Return what is wrong, unless the reference alone differs: who agrees with it is wrong then, and who does not is right."""
    if not isinstance(reference, WitnessedReference):
        return CheckResult(wrong)
    if wrong:
        doubt = reference.doubt(judge, results, expected)
        return CheckResult("" if doubt else wrong, doubt)
    return CheckResult(reference.why_doubted(judge.function))
