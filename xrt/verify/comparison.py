"""Whether two results of one function are both right: by tolerance, then by ties, then by the reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from xrt.comparison import Ambiguity, Tolerance, compare, tolerance_for
from xrt.graph import DType, Function
from xrt.verify.discontinuities import find_ambiguity
from xrt.verify.execution import Run, Stopped
from xrt.verify.float64_reference import Float64Reference
from xrt.verify.precision import compare_at_precision, is_lowered

__all__ = ["CheckVerdict", "OutputJudge", "Verdict", "find_output_tolerance", "judge_outputs"]


class Verdict(StrEnum):
    """What came of one function run in one way."""

    AGREES = "agrees"
    DECLINED = "declined"
    ROUNDING = "rounding"
    """It differs by more than the tolerance, but misses the result in float64 by at most ten times the reference's error."""
    DISAGREES = "disagrees"


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """A verdict and what was seen."""

    verdict: Verdict
    message: str = ""


def judge_outputs(
    function: Function,
    inputs: Sequence[Any],
    results: Sequence[Any],
    expected: Sequence[Any],
    run: Run,
    precision: str = "fp32",
) -> CheckVerdict:
    """Return the verdict on results, compared with the expected ones, which ``run``, the reference, has computed.

    Only if they differ beyond the tolerance of a network, the reference runs again: for the inputs of stepping operators, then in
    float64, which results may miss by ten times as much as the expected ones do. Results of an engine that computes in a lower
    ``precision`` have its tolerance, and the message says how far they are off.
    """
    if is_lowered(precision):
        wrong, loss = compare_at_precision(function, results, expected, precision)
        return CheckVerdict(Verdict.DISAGREES, wrong) if wrong else CheckVerdict(Verdict.AGREES, f"in {precision}, {loss}")
    return OutputJudge(function, inputs, run).judge(results, expected)


class OutputJudge:
    """Judges results of one function on one set of inputs, as `judge_outputs` does; what it computes for that, it keeps."""

    def __init__(
        self,
        function: Function,
        inputs: Sequence[Any],
        run: Run,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """``run`` is the reference. Once it ``is_stopped``, nothing more is computed, and Stopped is raised."""
        self.function, self.inputs = function, inputs
        self._reference, self._is_stopped = run, is_stopped
        self._exact = Float64Reference(function, inputs, self._run)

    def judge(self, results: Sequence[Any], expected: Sequence[Any]) -> CheckVerdict:
        """Return the verdict on results, compared with the expected ones."""
        differing = self._find_difference(results, expected)
        if not differing:
            return CheckVerdict(Verdict.AGREES)
        names = [value.name for value in self.function.outputs]
        tolerances = [find_output_tolerance(self.function, *pair) for pair in zip(names, expected, strict=True)]
        if self._exact.explains(results, expected, tolerances):
            return CheckVerdict(Verdict.ROUNDING, differing)
        return CheckVerdict(Verdict.DISAGREES, differing)

    def _find_difference(self, results: Sequence[Any], expected: Sequence[Any]) -> str:
        """Return the first difference as a sentence; empty where there is none but at ties."""
        differing = _differing(self.function, results, expected, [None] * len(expected))
        return differing if differing and _differing(self.function, results, expected, self._ambiguity) else ""

    @cached_property
    def _ambiguity(self) -> list[Ambiguity | None]:
        return find_ambiguity(self.function, self.inputs, self._run)

    def _run(self, function: Function, inputs: Sequence[Any]) -> Sequence[Any]:
        if self._is_stopped():
            raise Stopped("nobody waits for the verdict")
        return self._reference(function, inputs)


def _differing(function: Function, results: Sequence[Any], expected: Sequence[Any], ties: Sequence[Ambiguity | None]) -> str:
    """Compare output by output and return the first difference as a sentence; empty where there is none."""
    if len(results) != len(expected):
        return f"there are {len(results)} outputs; {len(expected)} were expected"
    for value, mine, theirs, tie in zip(function.outputs, results, expected, ties, strict=True):
        if not (found := compare(mine, theirs, find_output_tolerance(function, value.name, theirs), ties=tie, name=value.name)):
            return found.message
    return ""


def find_output_tolerance(function: Function, output: str, expected: Any) -> Tolerance:
    """Return the tolerance of a network whose type is the narrowest float that the output was computed through.

    Engines may keep more digits than a narrow type has (TVM fuses a cast to bfloat16 and back into nothing), and no
    float64 is more exact than the float32 it was cast from.
    """
    kinds = [kind for kind in _NARROWEST_FIRST if kind in _types_before(function, output)]
    found = kinds[0].numpy if kinds and _holds_float(expected) else getattr(expected, "dtype", "float32")
    return tolerance_for(found, "network")


def _holds_float(value: Any) -> bool:
    """Whether a value is a float tensor, or a list or a map with floats in it."""
    if isinstance(value, list | dict):
        return any(map(_holds_float, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) or (isinstance(value, np.ndarray) and DType.of(value).is_float)


_NARROWEST_FIRST = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)
_COARSENESS = {2: DType.FLOAT16, 3: DType.BFLOAT16, 4: DType.BFLOAT16}
"""By its accuracy level, the type as coarse as what MatMulNBits may round the other operand to; level 4 is bytes."""


def _types_before(function: Function, output: str) -> set[DType]:
    """Return the element types of all that the output was computed from, and of all that was cast or rounded to on the way."""
    found: set[DType | None] = set()
    seen, left = {""}, [output]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        found.add(getattr(function.get_type(name), "dtype", None))
        if (node := function.producer(name)) is not None:
            found |= {DType.from_onnx(node.attr("to"))} if node.op_type == "Cast" else set()
            found.add(_COARSENESS.get(node.attr("accuracy_level", 0)) if node.op_type == "MatMulNBits" else None)
            left += node.uses
    return {kind for kind in found if kind is not None}
