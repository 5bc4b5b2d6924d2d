"""Compare results with the reference engine: the outputs of calls, and on request every region of a plan."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import XRTError
from xrt.graph import DType, Function
from xrt.partition import Launch
from xrt.runtime import OutputInspector, find_type_mismatch, to_host
from xrt.verify.deviations import name_likely_cause

if TYPE_CHECKING:
    from xrt.module.dispatch import Call
    from xrt.module.module import XRTModule
    from xrt.module.options import Check
    from xrt.module.programs import Specialization
    from xrt.placement.engine_list import EngineList
    from xrt.verify import FailingSubgraph, Verification
    from xrt.verify.regions import Progress

PATIENCE = 20.0
"""Seconds that a plan's first call waits for the reference, if the search had no time to compare the plan."""
_SHARES: Mapping[Any, Any] = {"first": 0.0, "nan": 1.0}
_PHRASES: Mapping[Any, str] = {"first": "the first call of each signature", "nan": "each call in which a region returns NaN"}


class OutputChecks:
    """Checks a module's outputs against the reference engine."""

    def __init__(self, check: Check, threads: int) -> None:
        self.check, self.threads = check, threads
        self.sees_every_call = check not in (None, "first")
        """Whether any call may be checked, so that no call can be prepared."""
        self.count = 0
        """Number of calls that passed the check."""
        self.unchecked: dict[str, str] = {}
        """Reasons why Functions cannot be checked, by fingerprint."""
        self.is_too_slow = False
        """Whether the reference took longer than `PATIENCE`; it is not run again, as other sizes would take as long."""
        self._numbers = itertools.count(1)

    def instrument(self, call: Call, build: Specialization) -> Call:
        """Add the checks to a call: types always, results if a check is due."""
        # A search without time left for a comparison leaves it to the first call, once per plan.
        is_unverified = build.tuned is not None and not build.tuned.is_checked and not build.checked and not self.is_too_slow
        if not self._is_due(first=not build.checked) and not is_unverified:
            return replace(call, inspection=OutputInspector(self._find_wrong_type))
        inspect = partial(self._find_fault, build.engines)
        # A region that is found wrong runs again on another engine, on the inputs as they were before the call.
        return replace(call, inspection=OutputInspector(inspect, needs_inputs=True)).keep_inputs(build.function)

    def record(self, call: Call, build: Specialization) -> bool:
        """Count a call whose outputs were compared and correct.

        Return True if this is the first comparison of its plan, which the search did not compare: the result can be stored.
        """
        if call.inspection is None or not call.inspection.needs_inputs or (self.check is None and self.is_too_slow):
            return False
        is_first, build.checked = not build.checked, True
        self.count += 1
        if not is_first or build.tuned is None or build.tuned.is_checked or build.refused or self.check == "nan":
            return False
        return not self.remarks({launch.name: launch.function for launch in build.plan.launches})

    def _is_due(self, *, first: bool) -> bool:
        """Whether to check a call; ``first``: no call of its plan has been checked yet."""
        if self.check is None:
            return False
        # Spreads the share evenly: with 0.25 every fourth call, not a random quarter.
        share, number = _SHARES.get(self.check, self.check), next(self._numbers)
        return first or int(number * share) > int((number - 1) * share)

    def _find_wrong_type(self, launch: Launch, inputs: Sequence[Any], results: Sequence[Any]) -> str | None:
        """Describe a result whose type differs from the plan's, unless the reference returns that type, too (a wrong model)."""
        mismatch = find_type_mismatch(launch, results)
        if mismatch is None or (expected := self._evaluate(launch, inputs)) is None:
            return None
        # If the reference agrees with the engine, the model declares a wrong type, which no other engine would mend.
        return None if _list_types(results) == _list_types(expected) else mismatch

    def _find_fault(self, engines: EngineList, launch: Launch, inputs: Sequence[Any], results: Sequence[Any]) -> str | None:
        if (mismatch := self._find_wrong_type(launch, inputs, results)) is not None:
            return mismatch
        if self.check == "nan" and not any(map(_has_nan, results)):
            return None
        if (expected := self._evaluate(launch, inputs)) is None:
            return None
        if self.check == "nan":
            return _find_unexpected_nan(launch, results, expected)

        from xrt.verify import Verdict, judge_outputs
        from xrt.verify.comparison import find_precision

        # Without aliases the reference, which runs on the same arrays, does not update them.
        function, engine = launch.function.replace(aliases=()), engines.on_host(launch)
        precision = "fp32" if engine is None else find_precision(engine, engines.context)
        judgement = judge_outputs(function, inputs, results, expected, self._run_reference, precision)
        if judgement.verdict is not Verdict.DISAGREES:
            return None
        cause = engine and name_likely_cause(engine.implementation, function, [*inputs, *results, *expected])
        return f"engine {launch.engine!r} computed {launch.name} wrongly: {judgement.message}{f'; {cause}' if cause else ''}"

    def _evaluate(self, launch: Launch, inputs: Sequence[Any]) -> list[Any] | None:
        """Compute the region on the reference; None if the reference cannot run it or is the region's engine.

        Without a requested check, wait at most `PATIENCE` seconds.
        """
        from xrt.processes.background import OutOfTime, within

        if launch.engine == REFERENCE:
            return None
        function = launch.function
        reason = self.unchecked.get(function.fingerprint) or _why_not_comparable(function)
        if not reason:
            run = partial(self._run_reference, function.replace(aliases=()), inputs)
            try:
                # The caller who asks for a check waits for it; a call that is checked unasked must not hang.
                return run() if self.check is not None else within(PATIENCE, run)
            except XRTError as error:
                reason = f"the reference cannot run it: {error}"
            except OutOfTime as error:
                self.is_too_slow = True
                reason = f"the reference cannot run it: {error}"
        self.unchecked[function.fingerprint] = reason
        return None

    def _run_reference(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        from xrt.engines.toolkit.reference_evaluator import evaluate

        return evaluate(function, inputs, threads=self.threads)

    def __str__(self) -> str:
        if self.check is None:
            return ""
        calls = _PHRASES.get(self.check) or f"the first call of each signature and {self.check:.3g} of the others"
        return f"checked against {REFERENCE}: {calls}; {self.count} call{'s' * (self.count != 1)} so far"

    def remarks(self, functions: Mapping[str, Function]) -> dict[str, str]:
        """Why Functions are not checked, by region name."""
        reasons = {name: self.unchecked.get(function.fingerprint) for name, function in functions.items()}
        return {name: f"not checked: {reason}" for name, reason in reasons.items() if reason}


def _why_not_comparable(function: Function) -> str:
    from xrt.operators import is_deterministic

    random = next((node for node in function.nodes if not is_deterministic(node, function)), None)
    return f"node {random.name!r} ({random.op}) does not give the same twice" if random is not None else ""


def _find_unexpected_nan(launch: Launch, results: Sequence[Any], expected: Sequence[Any]) -> str | None:
    """Describe the first output with a NaN where the reference has none; None if there is none.

    If types or shapes differ, a NaN of the reference anywhere accepts all of the output.
    """
    for value, result, reference in zip(launch.function.outputs, results, expected, strict=True):
        are_alike = isinstance(result, np.ndarray) and isinstance(reference, np.ndarray) and result.shape == reference.shape
        if _has_nan(result) and ((np.isnan(result) & ~np.isnan(reference)).any() if are_alike else not _has_nan(reference)):
            return (
                f"engine {launch.engine!r} computed NaN for output {value.name!r} of {launch.name}, where the reference has none"
            )
    return None


def _has_nan(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_nan, value))
    return isinstance(value, np.ndarray) and DType.of(value).is_float and bool(np.isnan(value).any())


def _list_types(values: Sequence[Any]) -> list[Any]:
    return [(x.dtype, x.shape) if isinstance(x, np.ndarray) else type(x) for x in values]


# ---------------------------------------------------------------------- on request


def verify(
    module: XRTModule, args: Sequence[Any], kwargs: Mapping[str, Any], *, inner: bool, progress: Progress | None
) -> Verification:
    """Compare every region with the reference engine: see `XRTModule.verify`."""
    from xrt.engines.toolkit.reference_evaluator import evaluate
    from xrt.runtime.inputs import copy_values
    from xrt.verify import verify as verify_plan
    from xrt.verify.regions import ignore_progress

    values = module.check_inputs(args, kwargs)
    if module.specialize(values).function.aliases:  # the model updates its inputs
        # The run below would change the caller's arrays, and the comparison needs the values from before.
        args, kwargs = copy_values(module.check_inputs(args, kwargs, pads=False)[: len(module.source.inputs)]), {}
    module(*args, **kwargs)
    build, report = module.specialize(values), progress or ignore_progress
    function, engines, context = build.full_function(), build.engines.by_spec, build.engines.context
    return verify_plan(function, build.plan, engines, to_host(values), evaluate, context, inner=inner, progress=report)


def bisect(
    module: XRTModule, args: Sequence[Any], kwargs: Mapping[str, Any], *, progress: Progress | None
) -> FailingSubgraph | None:
    """Find the smallest part of a region that differs from the reference engine: see `XRTModule.bisect`."""
    from xrt.engines.toolkit.reference_evaluator import evaluate
    from xrt.verify import bisect_plan
    from xrt.verify.regions import ignore_progress

    values = module.check_inputs(args, kwargs)
    build, report = module.specialize(values), progress or ignore_progress
    return bisect_plan(build.plan, build.engines.by_spec, to_host(values), evaluate, build.engines.context, progress=report)
