"""``engine="auto"``: the placement by measurement of each signature."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from xrt.errors import PlanError
from xrt.graph import FrozenDict, Function, TensorType
from xrt.partition import ClusteringOptions, Plan
from xrt.partition.explicit import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.partition.support_matrix import SupportMatrix
from xrt.placement import CostReport, CostStore, TuningResult, tune
from xrt.placement.autotune import load_cost_table, plan_by_priority
from xrt.placement.background import BackgroundWork
from xrt.placement.background_search import can_search_in_worker, search_in_worker
from xrt.placement.budget import BOUNDS
from xrt.placement.quantized_form import make_planned_function
from xrt.placement.reference import LEAST_PATIENCE, Bench
from xrt.placement.report import make_report
from xrt.placement.request import PlacementRequest, unwrap
from xrt.placement.result import CandidateComparison
from xrt.placement.session import ProgressCallback
from xrt.placement.size_ranges import format_sizes
from xrt.progress import show_progress
from xrt.runtime import on_device

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.measure.timing import Clock
    from xrt.partition.device_map import DeviceMap
    from xrt.placement.engine_list import EngineList
    from xrt.placement.ranged import RangedPlacement
    from xrt.placement.size_ranges import SizeRange, Sizes

__all__ = [
    "AutoPlacement",
    "PlacementOptions",
    "Placer",
    "find_next_best_plan",
]

Placer: TypeAlias = Callable[[Function], TuningResult]
"""Places a Function."""


class Lower(Protocol):
    """Finds a plan of lower precision within an error budget."""

    def find_stored(self, request: PlacementRequest, store: CostStore | None) -> TuningResult | None:
        """Return what an earlier search has decided; None where there was none."""

    def lower(
        self, request: PlacementRequest, exact: TuningResult, cache: CompileCache, seconds: float, progress: ProgressCallback
    ) -> TuningResult:
        """Return the fastest plan within the budget, which may be the exact one."""

    def keep(self, tuned: TuningResult, request: PlacementRequest, store: CostStore | None) -> None:
        """Store a decision."""


FETCHED = "placed as it is without the values that are fetched"


# ------------------------------------------------------------------ where nodes go


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """What a caller asks of a placement by measurement."""

    clustering: ClusteringOptions = ClusteringOptions()
    budget: float = 20.0
    """Seconds for a signature."""
    memory_limit: int | None = None
    """Bytes of address space that a worker may have; None is no limit."""
    cuda_graph: bool = False
    """Whether calls on a device are captured and replayed."""
    shows_progress: bool = True
    """Whether a long search shows how far it is, on a terminal or in a notebook."""
    lower: Lower | None = None
    """What finds plans of lower precision; None where no error is allowed."""


@dataclass(eq=False, slots=True)
class AutoPlacement:
    """Places signatures of one module."""

    engines: EngineList
    """With a lock those alone that its plan needs, as long as it holds."""
    options: PlacementOptions
    cache: CompileCache
    everything: Callable[[], EngineList]
    """Gives all engines that were asked for."""
    load_locked: Callable[[Function, EngineList, Sizes, RangedPlacement | None], SizeRange | None] | None = None
    """Gives the placement that a lock has for a Function, None where it does not hold; None without a lock."""
    clock: Clock = time.perf_counter
    ranged: RangedPlacement | None = None
    """The placements by ranges of sizes; None for a model without symbolic dims."""
    _is_whole: bool = False

    def choose(
        self,
        function: Function,
        values: Sequence[Any] | None,
        base: TuningResult | None,
        place: Placer | None,
        began: float,
        sizes: Sizes = FrozenDict(),
        progress: ProgressCallback | bool | None = None,
    ) -> tuple[EngineList, Placer | None]:
        """Return the engines of a signature, and what places it: ``place`` where the caller has it, else the lock, else a search.

        Nothing places it where nodes go by the order of the list. The budget counts from
        ``began`` on. ``sizes`` are those of symbolic dims: a search is for their range. Raises LockError as
        `LockedPlacement.load_result` does.
        """
        if not self.engines.is_auto:
            return self.engines, place
        if place is None and base is None and self.load_locked is not None:
            found = self.load_locked(function, self.engines, sizes, self.ranged)
            if found is not None:
                return self.engines, partial(self.adapt, found, sizes)
        if base is None and self.load_locked is not None and not self._is_whole:
            self.engines, self._is_whole = self.everything(), True
        if place is None and base is None and sizes and values is not None and self.ranged is not None:
            return self.engines, partial(self._place_in_range, self.ranged, sizes, values, began, progress)
        return self.engines, place or self.make_placer(values, base, began=began)

    def adapt(self, found: SizeRange, sizes: Sizes, function: Function) -> TuningResult:
        """Return a placement of a range for a Function of other sizes."""
        if found.sizes == sizes:
            return found.tuned
        return self.like(found.tuned, function, f"placed as it was measured for {format_sizes(found.sizes)}")

    def _place_in_range(
        self,
        ranged: RangedPlacement,
        sizes: Sizes,
        values: Sequence[Any],
        began: float,
        progress: ProgressCallback | bool | None,
        function: Function,
    ) -> TuningResult:
        return ranged.place(self, function, sizes, values, began=began, progress=progress)

    def make_placer(
        self,
        values: Sequence[Any] | None,
        base: TuningResult | None = None,
        *,
        budget: float | None = None,
        progress: ProgressCallback | bool | None = None,
        retune: bool = False,
        began: float | None = None,
        lower: Lower | None = None,
    ) -> Placer:
        """Return the function that places a signature: by measurement on ``values``, or like ``base`` if that is given.

        ``lower`` replaces that of the options. ``progress`` is called with the state of a search; None shows it as the options
        say, True shows it, False does not.
        """
        if base is not None:
            return partial(self.like, base)
        seconds = self.options.budget if budget is None else budget
        terms: dict[str, Any] = {"progress": progress, "retune": retune, "began": began, "lower": lower}
        return partial(self.tune, values=values, budget=seconds, **terms)

    def tune(
        self,
        function: Function,
        values: Sequence[Any] | None,
        budget: float,
        *,
        progress: ProgressCallback | bool | None,
        retune: bool,
        began: float | None,
        lower: Lower | None = None,
    ) -> TuningResult:
        """Return the placement that a search of ``budget`` seconds finds, or an earlier search found; ``retune`` forces a search.

        The budget starts at ``began`` on the clock, if the call has already spent time before. With an error budget half of it is
        for the exact plan, and the rest for plans of lower precision.
        """
        lower, store = lower or self.options.lower, CostStore.for_cache(self.cache)
        request, left_out = self._make_request(function, budget)
        if lower is not None and not retune and (known := lower.find_stored(request, store)) is not None:
            return known
        if (name := _open_input(function)) is not None and values is None:
            return plan_by_priority(
                request, f"input {name!r} has symbolic dims; a call of the module, which gives their sizes, measures"
            )
        start = self.clock()
        spent = 0.0 if began is None else start - began
        exact = replace(request, retune=retune, spent=spent, budget=budget if lower is None else budget / 2)
        found = self._search(exact, values, progress, store)
        found = replace(found, notes=(*found.notes, *left_out)) if left_out else found
        if lower is None or found.how == "interrupted":
            return found
        seconds = max(budget - spent - (self.clock() - start), budget / 2)
        with self._watch(progress, function, seconds) as report:
            found = replace(lower.lower(request, found, self.cache, seconds, report), is_explicit=retune)
        lower.keep(found, request, store)
        return found

    def _search(
        self,
        request: PlacementRequest,
        values: Sequence[Any] | None,
        progress: ProgressCallback | bool | None,
        store: CostStore | None,
    ) -> TuningResult:
        """Return the exact placement that a search finds, in this process or for background work in a worker."""
        if isinstance(progress, BackgroundWork) and values is not None and can_search_in_worker(request):
            return search_in_worker(request, progress, cache=self.cache, inputs=values, memory=self.options.memory_limit)
        bench = Bench(request.context.threads, max(request.budget / 4, LEAST_PATIENCE))
        with bench, self._watch(progress, request.function, request.budget) as report:
            return tune(
                request,
                cache=self.cache,
                reference=bench.reference(),
                store=store,
                inputs=values,
                progress=report,
                bounds=replace(BOUNDS, memory=self.options.memory_limit),
            )

    @contextmanager
    def _watch(self, progress: ProgressCallback | bool | None, function: Function, budget: float) -> Iterator[ProgressCallback]:
        """Yield the progress function: the caller's own, or one that shows the state of the search where that is enabled."""
        if callable(progress):
            yield progress
            return
        enabled = self.options.shows_progress if progress is None else progress
        with show_progress(f"placing {function.name} (budget {budget:g} s)", enabled=enabled) as tell:
            yield lambda how_far: tell(how_far.text)

    def like(self, base: TuningResult, function: Function, note: str = FETCHED) -> TuningResult:
        """Return the placement of the same model with further outputs or other sizes: as it was placed, where that can be.

        A node that the placed model lacks goes to the engine of most others. There are no candidates: theirs are other Functions.
        """
        function = make_planned_function(function, base.precision)
        request, _ = self._make_request(function, self.options.budget)
        request = replace(request, engines=(*base.lowered, *request.engines)) if base.lowered else request
        homes, assignment = request.device_map, map_nodes_to_engines(base.plan)
        groups: Mapping[str, int] | None = map_nodes_to_regions(base.plan)
        if {node.name for node in function.nodes} - assignment.keys() and assignment:
            usual, groups = Counter(assignment.values()).most_common(1)[0][0], None
            assignment = {node.name: assignment.get(node.name, usual) for node in function.nodes}
        engines, implicit = _drop_twins(request.engines), request.implicit
        if note != FETCHED:  # the answers for the other sizes are enough: no library is imported to ask again
            asked = base.asked if base.asked and not base.lowered else engines
            engines = tuple(one for one in asked if one.spec in assignment.values()) or engines
            implicit = implicit if implicit in assignment.values() else None
        try:
            plan = plan_from_assignment(function, engines, assignment, groups=groups, implicit=implicit, device=homes)
        except PlanError:
            return plan_by_priority(request, f"{note}, but not all nodes can be")
        return replace(base, plan=plan, race=CandidateComparison(), notes=(note,))

    def _make_request(self, function: Function, budget: float) -> tuple[PlacementRequest, tuple[str, ...]]:
        """Return what is to be placed; and a line for each engine that takes nothing on its device, and is not among them."""
        engines, implicit, left_out = self._taking(function)
        terms = {"clustering": self.options.clustering, "cuda_graph": self.options.cuda_graph, "budget": budget}
        return self.engines.make_request(function, engines=tuple(engines), implicit=implicit, **terms), left_out

    def make_request(self, function: Function) -> PlacementRequest:
        """Return the request to place a Function, in the context of the module's device."""
        request, _ = self._make_request(function, self.options.budget)
        return replace(request, context=on_device(request.context.device, request.context))

    def get_store(self) -> CostStore | None:
        """Return the store of decisions; None where the cache has none."""
        return CostStore.for_cache(self.cache)

    def make_cost_report(self, plan: Plan, tuned: TuningResult | None, function: Function) -> CostReport | None:
        """Return what the chosen plan costs, by all that is known here; None where it was not chosen by measurement."""
        if tuned is None:
            return None
        engines, store, homes = unwrap(self.engines.engines), CostStore.for_cache(self.cache), self.engines.homes
        table = tuned.table
        if not table.regions and store is not None:
            table = load_cost_table(store, engines, self.engines.context, homes.by_engine)
        known = [engine for engine in tuned.asked or engines if engine.spec != self.engines.implicit]
        return make_report(plan, tuned, function, known, table, homes)

    def _taking(self, function: Function) -> tuple[list[GraphCompiler], str | None, tuple[str, ...]]:
        """Return the engines to query, the implicit engine's spec, and a line for each engine that is left out.

        Off the cpu, the implicit engine is included only if the others leave a node. There, an engine that supports no node on
        its device is left out.
        """
        implicit, homes = self.engines.implicit, self.engines.homes
        named = [engine for engine in self.engines.engines if engine.spec != implicit]
        if all(homes.of(engine.spec) == "cpu" for engine in self.engines.engines):
            return list(self.engines.engines), implicit, ()
        answers = SupportMatrix.of(function, named, [homes.of(engine.spec) for engine in named])
        idle = {at: line for at, engine in enumerate(named) if (line := _idle(function, answers, at, engine, homes))}
        taking = [engine for at, engine in enumerate(named) if at not in idle]
        if (taking and implicit is None) or all(answers.supporting_engines()):
            return taking, None, tuple(idle.values())
        return [*taking, *self.engines.engines[len(named) :]], implicit, tuple(idle.values())


def _drop_twins(engines: Sequence[GraphCompiler]) -> tuple[GraphCompiler, ...]:
    """Return the engines, each spec once."""
    return tuple({engine.spec: engine for engine in reversed(engines)}.values())[::-1]


def _idle(function: Function, answers: SupportMatrix, at: int, engine: GraphCompiler, homes: DeviceMap) -> str:
    """Return what to say of an engine that takes no node on a device; nothing where it takes one, or is on the cpu."""
    if homes.of(engine.spec) == "cpu" or any(at in willing for willing in answers.supporting_engines()) or not function.nodes:
        return ""
    return f"engine {engine.spec!r} takes nothing on {homes.of(engine.spec)}: {answers.reason(0, at)}"


def _open_input(function: Function) -> str | None:
    """Return the first input whose extents are not all known."""
    types = ((value.name, value.type) for value in function.inputs)
    return next((name for name, type_ in types if not isinstance(type_, TensorType) or not type_.is_static), None)


def find_next_best_plan(tuned: TuningResult, refused: Sequence[tuple[str, str, str]]) -> Plan | None:
    """Return the best contender that puts no node where it was refused; None where there is none."""
    gone = {(node, engine) for node, engine, _ in refused}
    return next((plan for plan in _sound(tuned) if gone.isdisjoint(map_nodes_to_engines(plan).items())), None)


def _sound(tuned: TuningResult) -> Iterator[Plan]:
    return (one.plan for one in tuned.race.contenders if one.verdict in ("won", "tie", "lost"))
