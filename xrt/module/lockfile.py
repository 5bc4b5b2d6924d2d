"""A module and its lock: the plan that a lock gives it, the lock that it gives, and the gate between the two."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.engines import GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import EngineError, LockError, OptionError, PlacementWarning, warn
from xrt.formats.placement_file import CandidateRecord, Lock, NodeRange, read_lock
from xrt.graph import FrozenDict, Function
from xrt.placement import TuningResult
from xrt.placement.lockfile import create_lock, list_mismatches, plan_from_lock
from xrt.placement.reference import evaluate
from xrt.placement.regression_check import RegressionResult, RegressionSetup, check_regression, make_baseline
from xrt.placement.result import CandidateComparison, CandidateResult, describe_plan
from xrt.runtime import to_host

if TYPE_CHECKING:
    from xrt.module.module import XRTModule
    from xrt.partition import ClusteringOptions
    from xrt.placement.engine_list import EngineList

__all__ = ["LockedPlacement", "check_module", "load_lock", "lock_module"]


@dataclass(frozen=True, slots=True)
class LockedPlacement:
    """A lock, and what to call it."""

    lock: Lock
    name: str
    """Its file, quoted; for one that came as a value, a word."""

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
        self, function: Function, engines: EngineList, *, clustering: ClusteringOptions, strict: bool
    ) -> TuningResult | None:
        """Return the placement that the lock has for a Function; None, with a warning, where it was made for something else.

        With a strict module that is a LockError.
        """
        told = list_mismatches(self.lock, function, engines.engines, engines.context, clustering, devices=engines.devices)
        if not told:
            try:
                return self._placed(function, engines)
            except LockError as error:
                told = (str(error),)
        said = f"the lock {self.name} does not hold: {'; '.join(told)}"
        if strict:
            raise LockError(f"{said}. Make it anew with `xrt lock`, or leave strict=True out to measure instead")
        warn(f"{said}. The placement is measured anew; `xrt lock` makes another lock, strict=True refuses", PlacementWarning)
        return None

    def _placed(self, function: Function, engines: EngineList) -> TuningResult:
        implicit = engines.implicit if engines.implicit in self.specs else None
        asked = [one for one in engines.engines if one.spec != engines.implicit or one.spec == implicit]
        plan = plan_from_lock(self.lock.plan, function, asked, engines.context, implicit, engines.devices)
        won = next((one for one in self.lock.race if one.verdict == "won"), CandidateRecord(describe_plan(plan), "won"))
        notes = tuple(_told(one) for one in self.lock.race if one is not won)
        about = f"from the lock {self.name}, made on {self.lock.date} by xrt {self.lock.writer}"
        return TuningResult(
            plan, race=CandidateComparison((_contender(plan, won),), baseline=None), how="locked", notes=(about, *notes)
        )


def _contender(plan: Any, standing: CandidateRecord) -> CandidateResult:
    figures = {name: getattr(standing, name) for name in _FIGURES}
    return CandidateResult(plan, "won", note=standing.note, **figures)


_FIGURES = ("seconds", "low", "high", "ratio", "ratio_low", "ratio_high")


def _told(standing: CandidateRecord) -> str:
    """Return how a contender came off, as a Contender says it."""
    parts = [f"{standing.verdict}: {standing.plan}{' (the baseline)' if standing.baseline else ''}"]
    if standing.seconds is not None:
        parts.append(f"{1e3 * standing.seconds:.4g} ms")
    if standing.ratio is not None and standing.ratio_low is not None and standing.ratio_high is not None:
        parts.append(f"{standing.ratio:.3f} ({standing.ratio_low:.3f} to {standing.ratio_high:.3f}) of the baseline")
    elif standing.ratio is not None:
        parts.append(f"{standing.ratio:.3f} of the baseline, in too few rounds for an interval")
    return ", ".join([*parts, *([standing.note] if standing.note else [])])


def load_lock(asked: Any) -> LockedPlacement | None:
    """Return the lock for what a module was given: the path of one, a Lock, or None. Raises LockError, OptionError."""
    if asked is None or isinstance(asked, LockedPlacement):
        return asked
    if isinstance(asked, Lock):
        return LockedPlacement(asked, "that was given")
    if isinstance(asked, str | os.PathLike):
        return LockedPlacement(read_lock(asked), repr(os.fspath(asked)))
    raise OptionError(f"lock must be the path of a lock file, an xrt.formats.placement_file.Lock or None; got {asked!r}")


# ---------------------------------------------------------------------- locks and gates of a module


def lock_module(
    module: XRTModule,
    values: Sequence[Any],
    source: Mapping[str, str],
    seconds: float,
    files: Mapping[str, str] = FrozenDict(),
) -> Lock:
    """Return the lock of a module that places by measurement, for such inputs; ``files`` says where which of them came from.

    The plan then takes turns with the best other one for up to so many seconds, so that `xrt check` has something to hold
    a later run against. Raises LockError where the plan was not measured, or does not run.
    """
    build = module._specialize(values)
    tuned = build.tuned
    if tuned is None or tuned.how == "priority":
        why = "; ".join(tuned.notes) if tuned else "the module does not place by measurement; pass engine='auto'"
        raise LockError(f"there is nothing to lock: {why or 'the budget was too small for one measurement'}")
    engines, options = module._engines, module._settings.clustering
    gate = make_baseline(_course(module, build.function, values, seconds), build.plan, tuned.race)
    asked = [one for one in engines.engines if one.spec in build.plan.engines]
    return create_lock(
        build.plan,
        tuned.race,
        build.function,
        asked,
        engines.context,
        options,
        gate=gate,
        source=source,
        values=files,
        devices=engines.devices,
    )


def check_module(
    module: XRTModule, lock: Lock, values: Sequence[Any], limit: float, seconds: float
) -> tuple[RegressionResult, tuple[str, ...]]:
    """Return what comes of holding a lock's plan against its gate here, and in which ways here is another place.

    Raises LockError where the model is another, or a plan cannot run here.
    """
    function, engines = module._specialize(values).function, module._engines
    clustering = lock.options.get("clustering", "")  # the plan is the lock's, whatever it was chosen under
    told = list_mismatches(lock, function, engines.engines, engines.context, clustering, with_gate=True, devices=engines.devices)
    if lock.model.get("fingerprint") != function.fingerprint:
        raise LockError(f"the lock is of another model: {'; '.join(told)}")
    plan = _plan(lock.plan, function, engines)
    other = _plan(lock.gate.runs, function, engines) if lock.gate else None
    course = _course(module, function, values, seconds)
    return check_regression(course, plan, other, lock.gate, limit), told


def _plan(runs: Sequence[NodeRange], function: Function, engines: EngineList) -> Any:
    return plan_from_lock(runs, function, engines.engines, engines.context, devices=engines.devices)


def _course(module: XRTModule, function: Function, values: Sequence[Any], seconds: float) -> RegressionSetup:
    context = module._engines.context
    reference = partial(evaluate, threads=context.threads)
    given, graph = [to_host(value) for value in values], module._settings.cuda_graph
    return RegressionSetup(function, module._engines.by_spec, context, module._cache, given, reference, seconds, graph=graph)
