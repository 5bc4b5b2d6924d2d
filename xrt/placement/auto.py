"""``engine="auto"``: choose the placement of a module by measurement, for each set of input types."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import PlanError
from xrt.formats.placement_file import PlacementFile
from xrt.graph import FrozenDict, Function, TensorType
from xrt.partition import ClusteringOptions, Plan
from xrt.partition.partitioner import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.partition.support_matrix import SupportMatrix
from xrt.placement import CostReport, CostStore, TuningResult, tune
from xrt.placement.autotune import ProgressCallback, TuningBudget, load_cost_table, plan_by_priority
from xrt.placement.records import Ingredients, load_decision, make_decision_key, mark_checked, request_form, store_decision
from xrt.placement.report import make_report
from xrt.placement.result import CandidateComparison, PlacementRequest
from xrt.placement.sizes import format_sizes
from xrt.progress import show_progress

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.measure.timing import Clock
    from xrt.placement.engine_list import EngineList
    from xrt.placement.sizes import Sizes

Placer: TypeAlias = Callable[[Function], TuningResult]
"""Chooses a placement for a Function."""


class Lower(Protocol):
    """Searches for a plan of lower precision within an error budget."""

    @property
    def ingredients(self) -> Ingredients | None:
        """The entries that the error budget adds to the key of a stored decision; None if such a decision cannot be stored."""

    def lower(
        self, request: PlacementRequest, exact: TuningResult, cache: CompileCache, seconds: float, progress: ProgressCallback
    ) -> TuningResult:
        """Find the fastest plan within the error budget, for at most ``seconds``. Returns ``exact`` if no plan is faster."""


FETCHED_NOTE = "placed as it is without the values that are fetched"


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model with symbolic dims, from which Functions with fixed sizes are built."""

    get_declared: Callable[[], Function]
    """Return the model with its dims still symbolic."""
    specialize: Callable[[Sizes], Function]
    """Build the Function with these sizes in place of the symbolic dims."""


@dataclass(frozen=True, slots=True)
class SizedPlacement:
    """The placement of a model with symbolic dims, and the sizes at which it was measured."""

    sizes: Sizes
    tuned: TuningResult


@dataclass(eq=False, slots=True)
class AutoPlacement:
    """Chooses the placement for each set of input types. A model with symbolic dims is placed once, for all sizes."""

    engines: EngineList
    """The engines to place on. If the module has a lock, only those of the locked plan, until the lock is found not to apply."""
    cache: CompileCache
    list_all_engines: Callable[[], EngineList]
    """Creates the list of all engines. Called only when the lock does not apply."""
    load_locked: Callable[[Function, EngineList, Sizes, OpenModel | None], SizedPlacement | None] | None
    """Load a Function's placement from the lock, or return None if the lock does not apply. None without a lock."""
    lower: Lower | None
    """Searches for plans of lower precision; None without an error budget."""
    clustering: ClusteringOptions
    budget: float
    """Seconds that a search may take."""
    memory_limit: int | None
    """Limit on a worker's address space, in bytes; None for no limit."""
    cuda_graph: bool
    """Whether plans on a GPU are recorded as CUDA graphs."""
    shows_progress: bool
    clock: Clock = time.perf_counter
    model: OpenModel | None = None
    """The module's model if it has symbolic dims, else None."""
    placed: SizedPlacement | None = None
    """The placement of `model`; None until it has been chosen."""

    def place(
        self,
        function: Function,
        values: Sequence[Any] | None,
        *,
        base: TuningResult | None,
        placer: Placer | None,
        began: float,
        sizes: Sizes,
    ) -> TuningResult:
        """Choose the placement of ``function``: by ``placer`` if given, else from the lock, else by a search.

        ``values`` are the inputs of the call; None lets a search use random ones. ``base`` is the placement for the same inputs
        without fetched values: its engines are reused and nothing is measured. The time budget of a search starts at ``began``.
        ``sizes`` are the sizes of the symbolic dims in this call. Raises LockError if the lock must apply and does not.
        """
        if base is not None:
            return placer(function) if placer is not None else self.adapt(base, function)
        if placer is None and self.placed is None and self.load_locked is not None:
            locked = self.load_locked(function, self.engines, sizes, self.model)
            if locked is not None and self.model is None:
                return locked.tuned
            self.placed = locked
        # The lock does not apply to this call, so that all engines take part, not only those of its plan.
        if self.load_locked is not None and (placer or self.placed is None):
            self.engines = self.list_all_engines()
        if placer is not None:
            return placer(function)
        if self.model is not None and (self.placed is not None or sizes):
            return self._place_once(self.model, sizes, values, began, function)
        return self.tune(function, values, began=began)

    def _place_once(
        self, model: OpenModel, sizes: Sizes, values: Sequence[Any] | None, began: float, function: Function
    ) -> TuningResult:
        """Place a model with symbolic dims: search at the sizes of the first call, and reuse the result for all other sizes.

        If ``function`` still has symbolic dims, prefer the fastest measured plan whose engines compile one executable for all
        sizes; if there is none, use the fastest plan.
        """
        if self.placed is None:
            # Costs are of static shapes: the search runs at the sizes of the first call.
            static = function if _find_open_input(function) is None else model.specialize(sizes)
            self.placed = self._recall(model, static, sizes)
            if self.placed is None:
                self.record(sizes, self.tune(static, values, began=began))
        placed = self.placed
        assert placed is not None  # `record` has set it
        if placed.sizes == sizes:
            return placed.tuned
        note = f"placed as it was measured for {format_sizes(placed.sizes)}"
        first = self.adapt(placed.tuned, function, note)
        if _find_open_input(function) is None or placed.tuned.lowered or self._is_dynamic(first):
            return first
        others = (plan for plan in _list_sound_plans(placed.tuned) if plan is not placed.tuned.plan)
        adapted = (self.adapt(replace(placed.tuned, plan=plan), function, note) for plan in others)
        return next(filter(self._is_dynamic, adapted), first)

    def _is_dynamic(self, tuned: TuningResult) -> bool:
        """Whether a placement was measured and each of its regions compiles once for all sizes of symbolic dims."""
        return tuned.how != "priority" and not any(map(self.engines.why_not_dynamic, tuned.plan.launches))

    def record(self, sizes: Sizes, tuned: TuningResult) -> None:
        """Use this placement, measured at ``sizes``, for all sizes. If it was measured, later processes use it too."""
        self.placed = SizedPlacement(sizes, tuned)
        store = CostStore.for_cache(self.cache)
        if tuned.how == "measured" and store is not None and self.model is not None:
            request, _ = self._make_request(self.model.get_declared())
            store.store_decision(make_decision_key(request), PlacementFile(sizes=dict(sizes)))

    def mark_checked(self, function: Function) -> None:
        """Record that a call of the chosen plan agreed with the reference, so that it is not checked again."""
        if self.placed is not None and self.model is not None:
            self.placed = replace(self.placed, tuned=replace(self.placed.tuned, is_checked=True))
            # The decision is stored under the sizes at which it was measured.
            function = self.model.specialize(self.placed.sizes)
        if (store := CostStore.for_cache(self.cache)) is not None:
            mark_checked(self._make_request(function)[0], store, _list_ingredients(self.lower))

    def _recall(self, model: OpenModel, function: Function, sizes: Sizes) -> SizedPlacement | None:
        """Load the stored decision for these sizes, else for the sizes of the latest search; None if there is none."""
        if (store := CostStore.for_cache(self.cache)) is None:
            return None
        ingredients = _list_ingredients(self.lower)
        decision = load_decision(self._make_request(function)[0], store, ingredients)
        if decision is not None:
            return SizedPlacement(sizes, decision)
        document = store.read_decision(make_decision_key(self._make_request(model.get_declared())[0]))
        if document is None or document.sizes.keys() != sizes.keys():
            return None
        latest = FrozenDict({name: document.sizes[name] for name in sizes})
        decision = None if latest == sizes else load_decision(self._make_request(model.specialize(latest))[0], store, ingredients)
        return None if decision is None else SizedPlacement(latest, decision)

    def tune(
        self,
        function: Function,
        values: Sequence[Any] | None,
        *,
        budget: float | None = None,
        progress: ProgressCallback | bool | None = None,
        retune: bool = False,
        began: float | None = None,
        lower: Lower | None = None,
    ) -> TuningResult:
        """Load the decision of an earlier search, or search for at most ``budget`` seconds; ``retune`` forces a search.

        ``values`` are inputs to measure with; None uses random ones. The budget starts at ``began`` on the clock, by default now.
        With an error budget, half of the time is for the exact plan and the rest for plans of lower precision. ``lower`` replaces
        the module's search for lower precision. ``progress`` is called with the state of the search; True displays the state,
        False does not, and None follows the module's option.
        """
        budget = self.budget if budget is None else budget
        lower, store = lower or self.lower, CostStore.for_cache(self.cache)
        request, left_out = self._make_request(function, budget)
        if lower is not None and store is not None and not retune:
            if (decision := load_decision(request, store, lower.ingredients)) is not None:
                return decision
        if (name := _find_open_input(function)) is not None and values is None:
            return plan_by_priority(
                request, f"input {name!r} has symbolic dims; a call of the module, which gives their sizes, measures"
            )
        start = self.clock()
        spent = 0.0 if began is None else start - began
        # The exact plan is the baseline of lower precision, so that its search comes first.
        exact = replace(request, retune=retune, spent=spent, budget=budget if lower is None else budget / 2)
        with self._watch(progress, function, exact.budget) as report:
            result = tune(
                exact,
                cache=self.cache,
                reference=partial(evaluate, threads=request.context.threads),
                store=store,
                inputs=values,
                progress=report,
                bounds=TuningBudget(memory=self.memory_limit),
            )
        result = replace(result, notes=(*result.notes, *left_out)) if left_out else result
        # After Ctrl-C no second search begins.
        if lower is None or result.how == "interrupted":
            return result
        seconds = max(budget - spent - (self.clock() - start), budget / 2)
        with self._watch(progress, function, seconds) as report:
            result = replace(lower.lower(request, result, self.cache, seconds, report), is_explicit=retune)
        if store is not None:
            store_decision(result, request, store, lower.ingredients)
        return result

    @contextmanager
    def _watch(self, progress: ProgressCallback | bool | None, function: Function, budget: float) -> Iterator[ProgressCallback]:
        """Yield the progress callback: ``progress`` if it is callable, else one that displays the state if this is enabled."""
        if callable(progress):
            yield progress
            return
        enabled = self.shows_progress if progress is None else progress
        with show_progress(f"placing {function.name} (budget {budget:g} s)", enabled=enabled) as show:
            yield lambda state: show(state.text)

    def adapt(self, base: TuningResult, function: Function, note: str = FETCHED_NOTE) -> TuningResult:
        """Apply the placement ``base`` to the same model with more outputs or other sizes; place by priority if that fails.

        Nodes that ``base`` does not have run on the engine with the most nodes. ``note`` is shown to the user as the reason. The
        candidates of ``base`` are dropped, since they were not measured on this Function.
        """
        request = request_form(self._make_request(function)[0], base.precision, base.lowered)
        function, assignment = request.function, map_nodes_to_engines(base.plan)
        groups: Mapping[str, int] | None = map_nodes_to_regions(base.plan)
        if {node.name for node in function.nodes} - assignment.keys() and assignment:
            # New nodes, such as fetched values, change the regions, so that the old grouping does not apply.
            most_used_engine, groups = Counter(assignment.values()).most_common(1)[0][0], None
            assignment = {node.name: assignment.get(node.name, most_used_engine) for node in function.nodes}
        implicit, device_map = request.implicit, request.device_map
        engines = tuple({engine.spec: engine for engine in request.engines}.values())  # the first engine of each spec
        if note != FETCHED_NOTE:  # reuse the support recorded for the other sizes, so that no library is imported
            queried = base.queried if base.queried and not base.lowered else engines
            engines = tuple(engine for engine in queried if engine.spec in assignment.values()) or engines
            implicit = implicit if implicit in assignment.values() else None
        try:
            plan = plan_from_assignment(function, engines, assignment, groups=groups, implicit=implicit, device=device_map)
        except PlanError:
            return plan_by_priority(request, f"{note}, but not all nodes can be")
        return replace(base, plan=plan, race=CandidateComparison(), notes=(note,))

    def _make_request(self, function: Function, budget: float | None = None) -> tuple[PlacementRequest, tuple[str, ...]]:
        """Make the placement request; also return a message for each engine left out, which supports no node on its device."""
        engines, implicit, left_out = self._select_engines(function)
        fields = {"clustering": self.clustering, "cuda_graph": self.cuda_graph, "budget": budget or self.budget}
        return self.engines.make_request(function, engines=tuple(engines), implicit=implicit, **fields), left_out

    def make_cost_report(self, plan: Plan, tuned: TuningResult, function: Function) -> CostReport:
        """Report the cost of ``plan``, from the measurements of ``tuned`` or, if it has none, from the stored ones."""
        table, store = tuned.table, CostStore.for_cache(self.cache)
        if not table.regions and store is not None:
            table = load_cost_table(store, self.engines.make_request(function))
        return make_report(plan, tuned, function, table)

    def _select_engines(self, function: Function) -> tuple[list[GraphCompiler], str | None, tuple[str, ...]]:
        """Select the engines to query; also return the spec of the implicit engine, and a message for each engine left out.

        If all engines run on the CPU, all are selected. Otherwise an engine that supports no node on its device is left out, and
        the implicit engine is included (its spec is not None) only if the others do not support every node.
        """
        implicit, device_map = self.engines.implicit, self.engines.homes
        listed = [engine for engine in self.engines.engines if engine.spec != implicit]
        if all(device_map.of(engine.spec) == "cpu" for engine in self.engines.engines):
            return list(self.engines.engines), implicit, ()
        support = SupportMatrix.of(function, listed, device_map)
        supporting_indices = {index for willing in support.supporting_engines() for index in willing}
        unsupported = {}
        for index, engine in enumerate(listed):
            if index not in supporting_indices and function.nodes and (device := device_map.of(engine.spec)) != "cpu":
                unsupported[index] = f"engine {engine.spec!r} takes nothing on {device}: {support.reason(0, index)}"
        supporting = [engine for index, engine in enumerate(listed) if index not in unsupported]
        if (supporting and implicit is None) or all(support.supporting_engines()):
            return supporting, None, tuple(unsupported.values())
        return [*supporting, *self.engines.engines[len(listed) :]], implicit, tuple(unsupported.values())


def _list_ingredients(lower: Lower | None) -> Ingredients | None:
    # Without an error budget nothing is added to the key; None forbids to store the decision.
    return () if lower is None else lower.ingredients


def _find_open_input(function: Function) -> str | None:
    """Find the name of the first input whose shape is not static; None if all are static."""
    types = ((value.name, value.type) for value in function.inputs)
    return next((name for name, type_ in types if not isinstance(type_, TensorType) or not type_.is_static), None)


def find_next_best_plan(tuned: TuningResult, refused: Sequence[tuple[str, str, str]]) -> Plan | None:
    """Find the best candidate without a node on an engine that refused it; ``refused`` has (node, engine, reason) triples."""
    excluded = {(node, engine) for node, engine, _ in refused}
    return next((plan for plan in _list_sound_plans(tuned) if excluded.isdisjoint(map_nodes_to_engines(plan).items())), None)


def _list_sound_plans(tuned: TuningResult) -> Iterator[Plan]:
    """Yield the candidates that ran and computed correct results, best first."""
    return (contender.plan for contender in tuned.race.contenders if contender.verdict in ("won", "tie", "lost"))
