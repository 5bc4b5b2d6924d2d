"""A module and its lock: the plan that a lock gives it, the lock that it gives, and the gate between the two."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.engines import GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import EngineError, LockError, OptionError, PlacementWarning, warn
from xrt.formats.placement_file import CandidateRecord, PlacementFile
from xrt.graph import FrozenDict, Function
from xrt.passes.quantize.form import make_planned_function
from xrt.placement import TuningResult
from xrt.placement.auto import SizedPlacement
from xrt.placement.records import (
    FIGURES,
    LONGEST,
    create_lock,
    list_mismatches,
    plan_from_ranges,
    read_lock,
    read_shapes,
)
from xrt.placement.reference import evaluate
from xrt.placement.regression_check import RegressionResult, RegressionSetup, check_regression, make_baseline
from xrt.placement.report import format_error
from xrt.placement.result import CandidateComparison, CandidateResult, describe_candidate, describe_plan
from xrt.placement.sizes import Sizes, list_open_axes
from xrt.precision.search import check_error
from xrt.runtime import to_host

if TYPE_CHECKING:
    from xrt.module.module import XRTModule
    from xrt.partition import ClusteringOptions
    from xrt.placement.auto import OpenModel
    from xrt.placement.engine_list import EngineList
    from xrt.placement.result import PlacementRequest
    from xrt.precision import ErrorBudget

SYMBOLIC = "symbolic"
"""The fact of a lock's model that is the fingerprint of the model with its symbolic dims."""


@dataclass(frozen=True, slots=True)
class LockedPlacement:
    """A lock, and what to call it."""

    lock: PlacementFile
    name: str
    """Its file, quoted; for one that came as a value, a word."""
    budget: ErrorBudget | None = None
    """The error that the caller allows; None where that is not said, and the lock's own counts."""
    must_hold: bool = False
    """Whether a lock that was made for something else is an error, and not measured again."""

    @property
    def specs(self) -> tuple[str, ...]:
        """The engines that have a part of the plan."""
        return tuple(dict.fromkeys(run.engine for run in self.lock.plan))

    def engines(self, named: Sequence[Any]) -> list[GraphCompiler] | None:
        """Return the engines of the plan, so that no other is loaded; None if one is unavailable, or must be named and is not.

        An engine whose options may name files or code must be named: a file must not choose what code is run.
        """
        known = {one.spec if isinstance(one, GraphCompiler) else str(one): one for one in named}
        if known and not known.keys() >= set(self.specs):
            return None
        try:
            if not known and any(registry.why_not_chosen(spec, "lock") for spec in self.specs):
                return None
            return [registry.create(known.get(spec, spec)) for spec in self.specs]
        except (EngineError, OptionError):
            return None

    def load_result(
        self,
        function: Function,
        engines: EngineList,
        sizes: Sizes,
        model: OpenModel | None,
        *,
        clustering: ClusteringOptions,
        strict: bool,
    ) -> SizedPlacement | None:
        """Return the placement that the lock has for a Function; None, with a warning, where it was made for something else.

        With a strict module that is a LockError. A lock of the same ``model`` with symbolic dims holds for all sizes.
        """
        at = sizes if model is None else self._find_sizes(model, sizes)
        whole = function if model is None or at == sizes else model.specialize(at)
        request = engines.make_request(whole, clustering=clustering)
        reasons = (*list_mismatches(self.lock, request), *self._list_excesses())
        if not reasons:
            try:
                return SizedPlacement(at, self._place(self.lock, request))
            except LockError as error:
                reasons = (str(error),)
        said = f"the lock {self.name} does not hold: {'; '.join(reasons)}"
        if strict or self.must_hold:
            instead = "strict=True out to measure instead" if strict else "the lock out to measure instead"
            raise LockError(f"{said}. Write it again with `xrt lock`, or leave {instead}")
        warn(f"{said}. The placement is measured again; `xrt lock` makes another lock, strict=True refuses", PlacementWarning)
        return None

    def _find_sizes(self, model: OpenModel, sizes: Sizes) -> Sizes:
        """Return the sizes at which this model was locked; the given ones for a lock of another model, or of fixed sizes."""
        declared = model.get_declared()
        locked = _read_locked_sizes(self.lock, declared)
        is_same = self.lock.model.get(SYMBOLIC) == declared.fingerprint
        return locked if is_same and locked.keys() == {name for _, _, name in list_open_axes(declared.inputs)} else sizes

    def _list_excesses(self) -> Iterator[str]:
        """Yield that the error of the lock is over a budget that the caller has given."""
        budget, record = self.budget, self.lock.precision
        if budget is None or record is None or record.precision == "fp32":
            return
        if budget.name != record.measure:
            yield f"its error was measured as {record.measure!r} and the budget is of {budget.name!r}"
        elif (known := max(record.error, record.high or 0.0)) > budget.limit:
            allowed, was = (format_error(one, record.measure) for one in (budget.limit, known))
            yield f"its error was measured to be up to {was}, and {allowed} is allowed"

    def _place(self, lock: PlacementFile, request: PlacementRequest) -> TuningResult:
        implicit = request.implicit if request.implicit in self.specs else None
        asked = tuple(one for one in request.engines if one.spec != request.implicit or one.spec == implicit)
        planned = make_planned_function(request.function, lock.precision)
        plan = plan_from_ranges(lock.plan, replace(request, function=planned, engines=asked, implicit=implicit))
        records = lock.candidates
        won = next((one for one in records if one.verdict == "won"), CandidateRecord(describe_plan(plan), "won"))
        notes = (describe_candidate(one, one.plan, is_baseline=one.is_baseline) for one in records if one is not won)
        about = f"from the lock {self.name}, made on {self.lock.date} by xrt {self.lock.writer}"
        winner = CandidateResult(plan, "won", note=won.note, **{name: getattr(won, name) for name in FIGURES})
        return TuningResult(
            plan,
            race=CandidateComparison((winner,), baseline=0 if won.is_baseline else None),
            how="locked",
            notes=(about, *notes),
            precision=lock.precision,
        )


def _read_locked_sizes(lock: PlacementFile, declared: Function) -> Sizes:
    """Return the sizes of the symbolic dims that the plan of a lock is for, as far as the lock has them."""
    shapes, axes = read_shapes(lock, declared), list_open_axes(declared.inputs)
    several = ((name, shapes.get(declared.inputs[at].name, ()), axis) for at, axis, name in axes)
    return FrozenDict({name: shape[axis] for name, shape, axis in several if axis < len(shape)})


def load_lock(asked: Any, budget: ErrorBudget | None = None) -> LockedPlacement | None:
    """Return the lock for what a module was given: a path, a PlacementFile, or None. Raises PlacementFileError, OptionError."""
    if asked is None or isinstance(asked, LockedPlacement):
        return asked
    if isinstance(asked, PlacementFile):
        return LockedPlacement(asked, "that was given", budget)
    if isinstance(asked, str | os.PathLike):
        return LockedPlacement(read_lock(asked), repr(os.fspath(asked)), budget)
    raise OptionError(f"lock must be the path of a lockfile, an xrt.formats.placement_file.PlacementFile or None; got {asked!r}")


# ---------------------------------------------------------------------- locks and gates of a module


def lock_module(
    module: XRTModule,
    values: Sequence[Any],
    source: Mapping[str, str],
    seconds: float,
    files: Mapping[str, str] = FrozenDict(),
) -> PlacementFile:
    """Return the lock of a module that places by measurement, for such inputs; ``files`` says where which of them came from.

    The plan then takes turns with the best other one for up to so many seconds, so that `xrt check` has something to hold
    a later run against. Raises LockError where the plan was not measured, or does not run.
    """
    build = module.specialize(values)
    tuned = build.tuned
    if tuned is None or tuned.how == "priority":
        why = "; ".join(tuned.notes) if tuned else "the module does not place by measurement; pass engine='auto'"
        raise LockError(f"there is nothing to lock: {why or 'the budget was too small for one measurement'}")
    setup = _make_setup(module, build.function, values, seconds, tuned.lowered)
    setup = replace(setup, lowered=build.plan if tuned.precision is not None and tuned.precision.precision != "fp32" else None)
    baseline = make_baseline(setup, build.plan, tuned.race)
    source = {"name": build.function.name[:LONGEST], **source}
    if module.programs.placer.model is not None and build.sizes:
        source[SYMBOLIC] = module.programs.placer.model.get_declared().fingerprint
    return create_lock(
        build.plan, tuned.race, setup.request, baseline=baseline, source=source, values=files, precision=tuned.precision
    )


def check_module(
    module: XRTModule,
    lock: PlacementFile,
    values: Sequence[Any],
    limit: float,
    seconds: float,
    validate: Sequence[Any] | None = None,
) -> tuple[RegressionResult, tuple[str, ...]]:
    """Return what comes of holding a lock's plan against its gate here, and in which ways here is another place.

    ``validate`` has the examples on which the error of a plan of lower precision is measured again. Raises LockError where the
    model is another, a plan cannot run here, or its error is over the budget.
    """
    setup = _make_setup(module, module.specialize(values).function, values, seconds)
    request = setup.request
    reasons = list_mismatches(lock, request, for_check=True)
    if lock.model.get("fingerprint") != request.function.fingerprint:
        raise LockError(f"the lock is of another model: {'; '.join(reasons)}")
    plan = plan_from_ranges(lock.plan, replace(request, function=make_planned_function(request.function, lock.precision)))
    other = plan_from_ranges(lock.baseline.ranges, request) if lock.baseline else None
    if lock.precision is not None and lock.precision.precision != "fp32":
        setup = replace(setup, lowered=plan)
        check_error(setup, plan, lock.precision, validate, module.inputs)
    return check_regression(setup, plan, other, lock.baseline, limit), reasons


def _make_setup(
    module: XRTModule, function: Function, values: Sequence[Any], seconds: float, lowered: Sequence[GraphCompiler] = ()
) -> RegressionSetup:
    settings, engines = module.programs.settings, module.programs.engines
    request = engines.make_request(function, clustering=settings.clustering, cuda_graph=settings.cuda_graph)
    known = {engine.spec for engine in request.engines}
    request = replace(request, engines=(*(one for one in lowered if one.spec not in known), *request.engines))
    reference = partial(evaluate, threads=engines.context.threads)
    return RegressionSetup(request, module.programs.cache, [to_host(value) for value in values], reference, seconds)
