"""What a module's calls are looked at for: the types of what regions return, and, where asked, the reference in their shadow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines.contract.deviations import name_likely_cause
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import XRTError
from xrt.graph import DType, Function
from xrt.partition import Launch
from xrt.runtime import OutputInspector, find_type_mismatch

if TYPE_CHECKING:
    from xrt.module.fallback import Call
    from xrt.module.options import Check
    from xrt.module.specialization import Specialization
    from xrt.placement.engine_list import EngineList

__all__ = ["OutputChecks"]

PATIENCE = 20.0
"""Seconds that the first call of a plan waits for the reference, if a search had no time to compare it."""


@dataclass(eq=False)
class OutputChecks:
    """The checks of one module."""

    asked: Check
    threads: int
    count: int = 0
    """Calls that have been checked, and served."""
    unchecked: dict[str, str] = field(default_factory=dict)
    """Why a Function was not checked, by fingerprint."""

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    @property
    def sees_every_call(self) -> bool:
        """Whether each call must be asked about, so that none can be prepared."""
        return self.asked not in (None, "first")

    def instrument(self, call: Call, build: Specialization) -> Call:
        """Return the call with what is to be looked at: types always, results where it is due."""
        is_unproved = build.tuned is not None and not build.tuned.is_checked and not build.checked
        if not self._is_due(first=not build.checked) and not is_unproved:
            return replace(call, inspection=OutputInspector(self._wrong_type))
        looks = partial(self._wrong, build.engines)
        return replace(call, inspection=OutputInspector(looks, needs_inputs=True)).keep_inputs(build.function)

    def record(self, call: Call, build: Specialization) -> None:
        """Count a call that has been checked, and is right."""
        if call.inspection is not None and call.inspection.needs_inputs:
            build.checked = True
            self.count += 1

    def _is_due(self, *, first: bool) -> bool:
        """Whether a call is to be checked; ``first`` says that none of its plan has been."""
        if self.asked is None:
            return False
        rate = 0.0 if self.asked == "first" else 1.0 if self.asked == "nan" else float(self.asked)
        number = next(self._numbers)
        return first or int(number * rate) > int((number - 1) * rate)

    def _wrong_type(self, launch: Launch, given: Sequence[Any], results: Sequence[Any]) -> str | None:
        """Find another type than the plan's, unless the reference gives it too: then it is the model that says it wrongly."""
        found = find_type_mismatch(launch, results)
        if found is None or (expected := self._expected(launch, given)) is None:
            return None
        return None if _types(results) == _types(expected) else found

    def _wrong(self, engines: EngineList, launch: Launch, given: Sequence[Any], results: Sequence[Any]) -> str | None:
        if (found := self._wrong_type(launch, given, results)) is not None:
            return found
        if self.asked == "nan" and not any(map(_has_nan, results)):
            return None
        expected = self._expected(launch, given)
        if expected is None:
            return None
        if self.asked == "nan":
            return _strange_nan(launch, given, results, expected)
        return self._difference(engines, launch, given, results, expected)

    def _difference(
        self, engines: EngineList, launch: Launch, given: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]
    ) -> str | None:
        from xrt.verify import Verdict, judge_outputs
        from xrt.verify.precision import find_precision

        function, engine = launch.function.replace(aliases=()), engines.on_host(launch)
        precision = "fp32" if engine is None else find_precision(engine, engines.context)
        found = judge_outputs(function, given, results, expected, self._run, precision)
        if found.verdict is not Verdict.DISAGREES:
            return None
        cause = engine and name_likely_cause(engine.implementation, function, [*given, *results, *expected])
        return f"engine {launch.engine!r} computed {launch.name} wrongly: {found.message}{f'; {cause}' if cause else ''}"

    def _expected(self, launch: Launch, given: Sequence[Any]) -> list[Any] | None:
        """Return what the reference computes; None where it cannot be asked, or is the engine itself."""
        if launch.engine == REFERENCE:
            return None
        function = launch.function
        reason = self.unchecked.get(function.fingerprint) or _why_not_comparable(function)
        if not reason:
            try:
                return self._evaluate(function.replace(aliases=()), given)
            except (XRTError, TimeoutError) as error:
                reason = f"the reference cannot run it: {error}"
        self.unchecked[function.fingerprint] = reason
        return None

    def _evaluate(self, function: Function, given: Sequence[Any]) -> list[Any]:
        """Run the reference, for `PATIENCE` where nobody asked for a check."""
        if self.asked is not None:
            return self._run(function, given)
        from xrt.placement.time_limit import OutOfTime, within

        try:
            return within(PATIENCE, partial(self._run, function, given))
        except OutOfTime as error:
            raise TimeoutError(str(error)) from error

    def _run(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        from xrt.placement.reference import evaluate

        return evaluate(function, inputs, threads=self.threads)

    # ------------------------------------------------------------------ reports

    def __str__(self) -> str:
        if self.asked is None:
            return ""
        what = _PHRASES.get(self.asked) or f"the first call of each signature and {self.asked:.3g} of the others"
        return f"checked against {REFERENCE}: {what}; {self.count} call{'s' * (self.count != 1)} so far"

    def remarks(self, functions: Mapping[str, Function]) -> dict[str, str]:
        """Return, by name, why those Functions are not checked."""
        found = {name: self.unchecked.get(function.fingerprint) for name, function in functions.items()}
        return {name: f"not checked: {reason}" for name, reason in found.items() if reason}


_PHRASES: Mapping[Any, str] = {"first": "the first call of each signature", "nan": "each call in which a region returns NaN"}

Look: TypeAlias = Callable[[Launch, Sequence[Any], Sequence[Any], Sequence[Any]], str | None]


def _why_not_comparable(function: Function) -> str:
    from xrt.graph import is_deterministic

    drawn = next((node for node in function.nodes if not is_deterministic(node, function)), None)
    return f"node {drawn.name!r} ({drawn.op}) does not give the same twice" if drawn is not None else ""


def _strange_nan(launch: Launch, given: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]) -> str | None:
    for value, mine, theirs in zip(launch.function.outputs, results, expected, strict=True):
        if _has_nan(mine) and _has_nan_beyond(mine, theirs):
            return (
                f"engine {launch.engine!r} computed NaN for output {value.name!r} of {launch.name}, where the reference has none"
            )
    return None


def _has_nan(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_nan, value))
    return isinstance(value, np.ndarray) and DType.of(value).is_float and bool(np.isnan(value).any())


def _has_nan_beyond(mine: Any, theirs: Any) -> bool:
    """Whether there is a NaN where the other has none; in what differs otherwise too, whether the other has none at all."""
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray) and mine.shape == theirs.shape:
        return bool((np.isnan(mine) & ~np.isnan(theirs)).any())
    return not _has_nan(theirs)


def _types(values: Sequence[Any]) -> list[Any]:
    return [(x.dtype, x.shape) if isinstance(x, np.ndarray) else type(x) for x in values]
