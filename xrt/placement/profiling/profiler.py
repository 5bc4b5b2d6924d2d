"""The survey: what pieces of a model cost on engines, measured one after the other into a cost table."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from xrt.errors import CompileRefused, EngineError, InputError, OutOfDeviceMemory
from xrt.graph import Function
from xrt.measure.timing import Clock, median_interval
from xrt.partition.cost_table import CostTable, MeasuredCost, RegionCost
from xrt.placement.profiling.activations import Reference, find_first_random_node, select_values
from xrt.placement.profiling.correctness import check_against_reference
from xrt.placement.profiling.runners import NotStarted, Runner, TrialLimits, TrialResult
from xrt.placement.time_limit import OutOfTime, within_or_stopped

if TYPE_CHECKING:
    from xrt.partition import Launch, Plan
    from xrt.placement.request import PlacementRequest

__all__ = ["ProfiledRegion", "ProfilingTarget", "RegionProfiler", "find_first_viable", "is_refuted"]

_log = logging.getLogger(__name__)

MOST_HANGS = 2
"""Times that an engine may use up its limit; after that, it is asked no more in this search."""

FAR = 10.0
"""A run of a piece is cut off that takes so many times what the quickest engine by now takes of it, a few calls in all..."""

GRACE = 2.0
"""... and so many seconds more: a first call may have something to make ready."""

LEAST = 0.05
"""Seconds of the budget with which nothing more is begun."""


LONGER = 8.0
"""A compile that did not end in time is tried again by a search that gives it so many times as long."""

_SLOW = re.compile(r"failed to compile .*: it gave no answer within (\d+(?:\.\d+)?(?:e[+-]\d+)?) s")


class ProfilingTarget(Protocol):
    """What is measured: a piece of the model on an engine."""

    @property
    def key(self) -> str:
        """The shape key of the Function."""

    @property
    def spec(self) -> str:
        """Of the engine."""

    @property
    def function(self) -> Function:
        """The piece; its values are named as in the model."""


@dataclass(frozen=True, slots=True)
class ProfiledRegion:
    """A region of a plan, to be measured."""

    key: str
    spec: str
    function: Function

    @classmethod
    def of(cls, launch: Launch) -> ProfiledRegion:
        return cls(launch.function.shape_key, launch.engine, launch.function)


class RegionProfiler:
    """Measures, and knows what was measured by now."""

    def __init__(
        self,
        request: PlacementRequest,
        ways: Mapping[str, Runner],
        values: Mapping[str, Any],
        reference: Reference,
        table: CostTable,
        *,
        limit: float,
        slice_: float,
        clock: Clock,
        end: float = math.inf,
    ) -> None:
        """Each compile and each measurement may take ``limit`` seconds, the samples of one about ``slice_``.

        Results are compared with the reference's until the clock shows ``end``, and for ``limit`` seconds where another engine
        has been right: what was not compared does not count.
        What makes an output of the request's Function makes memory for it; what makes none computes into memory that is there.
        """
        self.table = table
        self.count = 0
        """How many measurements were made."""
        self.ways = ways
        """By spec, of the engines that are ready."""
        self.cut_off: dict[tuple[str, str], str] = {}
        """By piece and engine: what the end of the budget has cut off, as a sentence."""
        self._request = request
        self._returned = frozenset(value.name for value in request.function.outputs)
        self._values = values
        self._reference = reference
        self._limit = limit
        self._slice = slice_
        self._clock, self._end = clock, end
        self._skipped: set[tuple[str, str]] = set()
        self._tried: Counter[tuple[str, str]] = Counter()
        self._hung: dict[str, list[int]] = {}
        """By engine the sizes, in nodes, of what it did not end in time."""

    def is_known(self, subject: ProfilingTarget) -> bool:
        """Whether there is nothing more to be learnt about a piece."""
        cost, piece = self.table.region(subject.key, subject.spec), (subject.key, subject.spec)
        is_old = isinstance(cost, str) and self.get_count(piece) == 0 and _needs_longer(cost, self._limit)
        return (cost is not None and not is_old) or piece in self._skipped

    def get_count(self, piece: tuple[str, str]) -> int:
        """Return how often a piece was measured in this search."""
        return self._tried[piece]

    def measure(self, subjects: Sequence[ProfilingTarget], until: float, report: Callable[[ProfilingTarget], object]) -> bool:
        """Measure subjects without a cost, in order, until the clock shows ``until``; return whether all costs are known.

        ``report`` is called with each subject before it is measured.
        """
        for subject in subjects:
            if self.is_known(subject):
                continue
            if self._clock() + LEAST > until:
                return False
            report(subject)
            self._measure(subject, until)
        return True

    def _measure(self, subject: ProfilingTarget, until: float) -> None:
        function = subject.function  # with its updates in place, as in a plan
        given = select_values([value.name for value in function.inputs], self._values)
        expected = select_values([value.name for value in function.outputs], self._values)
        if given is None or expected is None:
            self._skip(subject, "its values were not captured")
            return
        if self._is_hopeless(subject):
            self._skip(subject, "the engine did not end with what is no larger")
            return
        left = until - self._clock()
        limit = max(min(self._limit, left), LEAST)
        self._tried[subject.key, subject.spec] += 1
        try:
            context = self._request.contexts.get(subject.spec, self._request.context)
            inner = self._returned.isdisjoint(value.name for value in function.outputs)
            terms = TrialLimits(min(self._slice, limit / 4), limit, min(limit, self._patience(subject)), left, inner=inner)
            trial = self.ways[subject.spec].trial(function, context, given, terms)
        except NotStarted as error:
            self._skip(subject, str(error))
            self.cut_off[subject.key, subject.spec] = str(error)
            return
        except OutOfDeviceMemory as error:
            self._skip(subject, str(error))  # with less in the device memory, another search may succeed
            return
        except (EngineError, InputError) as error:
            self._failed(subject, error, by_budget=limit < self._limit)
            return
        left = min(max(self._end - self._clock(), LEAST), threading.TIMEOUT_MAX)
        limit = min(left, self._limit) if self._find_best(subject) is not None else left
        try:
            self._learn(subject, self._cost(function, given, trial, expected, limit))
        except OutOfTime:
            said = "the budget ended before its results were compared with the reference"
            if limit < left:
                said = f"comparing its results with the reference took longer than {limit:.3g} s"
            self._skip(subject, said)
            self.cut_off[subject.key, subject.spec] = said

    def _is_hopeless(self, subject: ProfilingTarget) -> bool:
        """Whether the engine has hung on what is no larger, or too often."""
        sizes = self._hung.get(subject.spec, [])
        return len(sizes) >= MOST_HANGS or any(size <= len(subject.function.nodes) for size in sizes)

    def _patience(self, subject: ProfilingTarget) -> float:
        """Return for how many seconds a run of a piece is awaited: who is far slower than another has lost."""
        best = self._find_best(subject)
        return float("inf") if best is None else GRACE + FAR * best

    def _find_best(self, subject: ProfilingTarget) -> float | None:
        """Return what a piece takes on the quickest engine; None where it was measured on none."""
        costs = (self.table.region(subject.key, spec) for spec in self.ways)
        return min((cost.seconds for cost in costs if isinstance(cost, MeasuredCost)), default=None)

    def _failed(self, subject: ProfilingTarget, error: EngineError | InputError, *, by_budget: bool) -> None:
        """Remember why there is no cost; what only the end of the budget has cut off may be measured another time."""
        self.count += 1
        if by_budget and isinstance(error.__cause__, TimeoutError):
            said = f"the budget ended before it was measured: {' '.join(str(error).split())}"
            self.cut_off[subject.key, subject.spec] = said
            return
        if isinstance(error.__cause__, TimeoutError):
            self._hung.setdefault(subject.spec, []).append(len(subject.function.nodes))
        what = "refused" if isinstance(error, CompileRefused) else "failed"
        self._learn(subject, f"{what}: {' '.join(str(error).split())}", counted=False)

    def _cost(
        self, function: Function, given: Sequence[Any], trial: TrialResult, expected: Sequence[Any], limit: float
    ) -> RegionCost:
        """Return the cost of a trial, after its results are compared with the reference's, where these are deterministic.

        Raises OutOfTime where that takes longer than ``limit`` seconds.
        """
        if not find_first_random_node(function):
            terms = self._reference, self._request.context.options
            found = within_or_stopped(limit, partial(check_against_reference, function, given, trial.results, expected, *terms))
            if found.wrong:
                return f"wrong: {found.wrong}"
        return MeasuredCost(*median_interval(trial.samples))

    def _learn(self, subject: ProfilingTarget, cost: RegionCost, *, counted: bool = True) -> None:
        self.count += counted
        self.table = self.table.with_region(subject.key, subject.spec, cost)
        _log.debug("%s: %d nodes: %s", subject.spec, len(subject.function.nodes), cost)

    def _skip(self, subject: ProfilingTarget, reason: str) -> None:
        self._skipped.add((subject.key, subject.spec))
        _log.debug("%s: %d nodes not measured: %s", subject.spec, len(subject.function.nodes), reason)


def _needs_longer(cost: str, limit: float) -> bool:
    """Whether a compile did not end in time in an earlier search, and may now take so much longer that it is worth a try."""
    match = _SLOW.search(cost)
    return match is not None and limit >= LONGER * float(match[1])


def find_first_viable(plans: Sequence[Plan], table: CostTable) -> Plan:
    """Return the first plan of which no region is known to fail or to be wrong; the first of all where there is none."""
    return next((plan for plan in plans if not is_refuted(plan, table)), plans[0])


def is_refuted(plan: Plan, table: CostTable) -> bool:
    """Whether a region of the plan is known to fail or to be wrong."""
    """Whether a region of the plan is known to fail or to be wrong."""
    regions = (ProfiledRegion.of(launch) for launch in plan.launches)
    return any(isinstance(table.region(region.key, region.spec), str) for region in regions)
