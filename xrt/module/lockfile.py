"""Lockfiles: place a module as a lockfile says, create the lockfile of a module, and check a lockfile for regressions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.engines import GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import EngineError, LockError, OptionError, PlacementWarning, warn
from xrt.formats.placement_file import PlacementFile
from xrt.graph import FrozenDict, Function
from xrt.passes.quantize.form import make_planned_function
from xrt.placement.auto import SymbolicModel
from xrt.placement.race import RegressionResult, RegressionSetup, check_regression, make_baseline
from xrt.placement.records import (
    MAX_NAME_CHARACTERS,
    create_lock,
    list_mismatches,
    plan_from_ranges,
    read_lock,
    read_locked_result,
)
from xrt.placement.report import format_error
from xrt.placement.sizes import Sizes, list_open_axes
from xrt.precision.search import check_error
from xrt.runtime import to_host

if TYPE_CHECKING:
    from xrt.module.module import XRTModule
    from xrt.partition import ClusteringOptions
    from xrt.placement import TuningResult
    from xrt.placement.engine_list import EngineList
    from xrt.precision import ErrorBudget

SYMBOLIC = "symbolic"
"""Key of the fingerprint of a model with symbolic dims, in the model record of its lockfile."""


@dataclass(frozen=True, slots=True)
class LockedPlacement:
    """The option ``lock`` of a module, with the caller's requirements."""

    lock: PlacementFile
    name: str
    """What follows "the lock" in messages: the quoted path, or "that was given" for a PlacementFile."""
    budget: ErrorBudget | None = None
    """The caller's error budget; None accepts the error recorded in the lockfile."""
    must_hold: bool = False
    """Whether a mismatch is an error. Otherwise the placement is measured again."""

    def engines(self, listed: Sequence[Any]) -> list[GraphCompiler] | None:
        """Create the engines of the lockfile's plan; return None if one is unavailable or may not be used.

        If the caller has ``listed`` engines, only these may be used. Otherwise, an engine whose options may name files or code
        may not be used: a file must not choose the code that runs.
        """
        by_spec = {entry.spec if isinstance(entry, GraphCompiler) else str(entry): entry for entry in listed}
        specs = dict.fromkeys(run.engine for run in self.lock.plan)
        if by_spec and not by_spec.keys() >= specs.keys():
            return None
        try:
            if not by_spec and any(registry.why_forbidden(spec, "lock") for spec in specs):
                return None
            return [registry.create(by_spec.get(spec, spec)) for spec in specs]
        except (EngineError, OptionError):
            return None

    def load_result(
        self,
        function: Function,
        engines: EngineList,
        sizes: Sizes,
        model: SymbolicModel | None,
        *,
        clustering: ClusteringOptions,
        strict: bool,
    ) -> TuningResult | None:
        """Place a Function as in the lockfile. If the lockfile does not match, warn and return None.

        With ``strict`` or `must_hold`, a mismatch raises LockError. ``sizes`` are those of this call, and ``model`` makes the
        Function at other sizes; it is None without symbolic dims. A lockfile made at other sizes is valid for this call too.
        """
        planned_sizes, planned_function = sizes, function
        if model is not None and self.lock.model.get(SYMBOLIC) == (declared := model.get_declared()).fingerprint:
            dims, locked = [name for _, _, name in list_open_axes(declared.inputs)], self.lock.search.sizes
            # A lockfile stores ranges of nodes. They are checked at the sizes of the lockfile, and are the same at all sizes.
            if locked.keys() == set(dims) and locked != sizes:
                planned_sizes = FrozenDict({name: locked[name] for name in dims})
                planned_function = model.specialize(planned_sizes)
        request = engines.make_request(planned_function, clustering=clustering)
        reasons = (*list_mismatches(self.lock, request), *self._list_budget_violations())
        if not reasons:
            try:
                result = read_locked_result(self.lock, request)
                note = f"from the lock {self.name}, made on {self.lock.date} by xrt {self.lock.writer}"
                return result.with_record(notes=(note, *result.notes), sizes=planned_sizes)
            except LockError as error:
                reasons = (str(error),)
        text = f"the lock {self.name} does not hold: {'; '.join(reasons)}"
        if strict or self.must_hold:
            option = "strict=True" if strict else "the lock"
            raise LockError(f"{text}. Write it again with `xrt lock`, or leave {option} out to measure instead")
        warn(f"{text}. The placement is measured again; `xrt lock` makes another lock, strict=True refuses", PlacementWarning)
        return None

    def _list_budget_violations(self) -> Iterator[str]:
        """Yield a message if the error in the lockfile exceeds the caller's budget, or was measured in another metric."""
        budget, record = self.budget, self.lock.search.precision
        if budget is None or record is None or record.precision == "fp32":
            return
        if budget.name != record.measure:
            yield f"its error was measured as {record.measure!r} and the budget is of {budget.name!r}"
        elif (error := max(record.error, record.high or 0.0)) > budget.limit:
            measured, allowed = format_error(error, record.measure), format_error(budget.limit, record.measure)
            yield f"its error was measured to be up to {measured}, and {allowed} is allowed"


def load_lock(lock: Any, budget: ErrorBudget | None) -> LockedPlacement:
    """Load the ``lock`` argument of a module: a path or a PlacementFile. Raises PlacementFileError or OptionError."""
    if isinstance(lock, LockedPlacement):
        return lock
    if isinstance(lock, PlacementFile):
        return LockedPlacement(lock, "that was given", budget)
    if isinstance(lock, str | os.PathLike):
        return LockedPlacement(read_lock(lock), repr(os.fspath(lock)), budget)
    raise OptionError(f"lock must be the path of a lockfile, an xrt.formats.placement_file.PlacementFile or None; got {lock!r}")


def lock_module(
    module: XRTModule,
    values: Sequence[Any],
    source: Mapping[str, str],
    seconds: float,
    files: Mapping[str, str] = FrozenDict(),
) -> PlacementFile:
    """Create the lockfile of a module that places by measurement, at the sizes of the inputs ``values``.

    The lockfile records where the model came from (``source``) and the file of each input (``files``). For at most ``seconds``,
    the plan is timed against another plan, which is the baseline of later runs of `xrt check`. Raises LockError if the plan was
    not measured or does not run.
    """
    build = module.programs.specialize(values)
    tuned = build.tuned
    if tuned is None or tuned.how == "priority":
        why = "; ".join(tuned.notes) if tuned else "the module does not place by measurement; pass engine='auto'"
        raise LockError(f"there is nothing to lock: {why or 'the budget was too small for one measurement'}")
    setup = _make_setup(module, build.function, values, seconds, tuned.reduced_engines)
    # The search has measured the error of a plan of reduced precision, so its results are not compared here.
    if tuned.precision is not None and tuned.precision.precision != "fp32":
        setup = replace(setup, reduced_plan=build.plan)
    baseline = make_baseline(setup, build.plan, tuned.record.candidates)
    source = {"name": build.function.name[:MAX_NAME_CHARACTERS], **source}
    if module.programs.placer.model is not None and build.sizes:
        source[SYMBOLIC] = module.programs.placer.model.get_declared().fingerprint
    tuned = replace(tuned, plan=build.plan).with_record(sizes=dict(build.sizes))
    return create_lock(tuned, setup.request, baseline=baseline, source=source, values=files)


def check_module(
    module: XRTModule,
    lock: PlacementFile,
    values: Sequence[Any],
    limit: float,
    seconds: float,
    validate: Sequence[Any] | None = None,
) -> tuple[RegressionResult, tuple[str, ...]]:
    """Check the plan of a lockfile for a regression. Also return what differs between this machine and the lockfile's machine.

    A regression means that the time of the plan, relative to the baseline plan, grew by more than the fraction ``limit``.
    ``seconds`` limits the timing. ``validate`` has examples, on which the error of a plan of reduced precision is measured again.
    Raises LockError if the model differs, a plan cannot run here, or its error exceeds the budget.
    """
    setup = _make_setup(module, module.programs.specialize(values).function, values, seconds)
    request = setup.request
    mismatches = list_mismatches(lock, request, for_check=True)
    # For another model there is nothing to compare. Other machines or versions can be compared, and are reported.
    if lock.model.get("fingerprint") != request.function.fingerprint:
        raise LockError(f"the lock is of another model: {'; '.join(mismatches)}")
    precision = lock.search.precision
    plan = plan_from_ranges(lock.plan, replace(request, function=make_planned_function(request.function, precision)))
    baseline_plan = plan_from_ranges(lock.baseline.ranges, request) if lock.baseline else None
    if precision is not None and precision.precision != "fp32":
        setup = replace(setup, reduced_plan=plan)
        check_error(setup, plan, precision, validate, module.inputs)
    return check_regression(setup, plan, baseline_plan, lock.baseline, limit), mismatches


def _make_setup(
    module: XRTModule, function: Function, values: Sequence[Any], seconds: float, reduced_engines: Sequence[GraphCompiler] = ()
) -> RegressionSetup:
    """Prepare a comparison of plans of ``function``. ``reduced_engines`` has further engines, of reduced precision."""
    settings, engines = module.programs.settings, module.programs.engines
    request = engines.make_request(function, clustering=settings.clustering, cuda_graph=settings.cuda_graph)
    specs = {engine.spec for engine in request.engines}
    request = replace(request, engines=(*(engine for engine in reduced_engines if engine.spec not in specs), *request.engines))
    reference = partial(evaluate, threads=engines.context.threads)
    return RegressionSetup(request, module.programs.cache, [to_host(value) for value in values], reference, seconds)
