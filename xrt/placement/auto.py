"""``engine="auto"``: choose the placement of a module by measurement, for each set of input types."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import PlanError
from xrt.formats.placement_file import PlacementFile, SearchRecord
from xrt.graph import FrozenDict, Function, TensorType
from xrt.partition import ClusteringOptions, Plan
from xrt.partition.partitioner import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.partition.support_matrix import SupportMatrix
from xrt.placement import CostReport, CostStore, TuningResult, tune
from xrt.placement.autotune import ProgressCallback, TuningBudget, load_cost_table, plan_by_priority
from xrt.placement.records import (
    Ingredients,
    load_decision,
    make_decision_key,
    make_planned_request,
    mark_checked,
    store_decision,
)
from xrt.placement.report import make_report
from xrt.placement.result import PlacementRequest
from xrt.placement.sizes import format_sizes
from xrt.progress import show_progress

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.measure.timing import Clock
    from xrt.placement.engine_list import EngineList
    from xrt.placement.sizes import Sizes

Placer: TypeAlias = Callable[[Function], TuningResult]


class PrecisionReducer(Protocol):
    @property
    def ingredients(self) -> Ingredients | None:
        """The entries that the error budget adds to the key of a stored decision; None if the decision cannot be stored."""

    def reduce_precision(
        self, request: PlacementRequest, exact: TuningResult, cache: CompileCache, seconds: float, progress: ProgressCallback
    ) -> TuningResult:
        """Find the fastest plan within the error budget, for at most ``seconds``. Returns ``exact`` if no plan is faster."""


FETCHED_NOTE = "placed as it is without the values that are fetched"  # of a call that also returns inner values


@dataclass(frozen=True, slots=True)
class SymbolicModel:
    """A model with symbolic dims, from which Functions with fixed sizes are built."""

    get_declared: Callable[[], Function]
    specialize: Callable[[Sizes], Function]


@dataclass(eq=False, slots=True)
class AutoPlacement:
    """Chooses the placement for each set of input types. A model with symbolic dims is placed once, for all sizes."""

    engines: EngineList
    """The engines to place on. For a module with a lock these are the engines of the locked plan, as long as the lock applies."""
    cache: CompileCache
    list_all_engines: Callable[[], EngineList]
    load_locked: Callable[[Function, EngineList, Sizes, SymbolicModel | None], TuningResult | None] | None
    """Loads a Function's placement from the lock; returns None if the lock does not apply. None if the module has no lock."""
    reducer: PrecisionReducer | None
    clustering: ClusteringOptions
    budget: float
    memory_limit: int | None
    cuda_graph: bool
    shows_progress: bool
    clock: Clock = time.perf_counter
    model: SymbolicModel | None = None
    """The module's model if it has symbolic dims, else None."""
    placed: TuningResult | None = None
    """The placement that all sizes of `model` use; None until it has been chosen. Its record has the sizes that were measured."""

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
        """Choose the placement of ``function``: by ``placer`` if it is not None, else from the lock, else by a search.

        ``values`` are the inputs of the call; None lets a search use random ones. ``base`` is the placement for the same inputs
        without fetched values: its engines are reused and nothing is measured. The time budget of a search starts at ``began``.
        ``sizes`` are the sizes of the symbolic dims in this call. Raises LockError if the lock must apply and does not.
        """
        if placer is not None:
            if self.load_locked is not None:
                self.engines = self.list_all_engines()  # the new placement need not keep to those of the locked plan
            return placer(function)
        if base is not None:
            return self.adapt(base, function)
        if self.placed is None and (locked := self._place_from_lock(function, sizes)) is not None:
            # Only a model with symbolic dims has one placement for all sizes.
            if self.model is None:
                return locked
            self.placed = locked
        # A model with symbolic dims that is planned before its first call has no sizes to measure at.
        if self.model is not None and (self.placed is not None or sizes):
            return self._place_for_all_sizes(self.model, sizes, values, began, function)
        return self.tune(function, values, began=began)

    def _place_from_lock(self, function: Function, sizes: Sizes) -> TuningResult | None:
        """Load a Function's placement from the lock; None if there is no lock, or it does not apply and a search must follow."""
        if self.load_locked is None:
            return None
        locked = self.load_locked(function, self.engines, sizes, self.model)
        if locked is None:
            self.engines = self.list_all_engines()  # so far, they were those of the locked plan
        return locked

    def _place_for_all_sizes(
        self, model: SymbolicModel, sizes: Sizes, values: Sequence[Any] | None, began: float, function: Function
    ) -> TuningResult:
        """Place a model with symbolic dims: search at the sizes of the first call, and reuse the result for all other sizes.

        If ``function`` still has symbolic dims, prefer the fastest measured plan whose engines compile one executable for all
        sizes; if there is none, use the fastest plan.
        """
        if self.placed is None:
            # Costs are measured at static shapes.
            static = function if _find_symbolic_input(function) is None else model.specialize(sizes)
            self.placed = self._load_stored(model, static, sizes)
            if self.placed is None:
                self.adopt_for_all_sizes(sizes, self.tune(static, values, began=began))
        placed = self.placed
        assert placed is not None  # `adopt_for_all_sizes` has set it
        if placed.record.sizes == sizes:
            return placed
        note = f"placed as it was measured for {format_sizes(placed.record.sizes)}"
        fastest = self.adapt(placed, function, note)
        # With reduced precision, the other candidates place other forms of the model.
        if _find_symbolic_input(function) is None or placed.reduced_engines or self._is_dynamic(fastest):
            return fastest
        for plan in _list_sound_plans(placed):
            adapted = self.adapt(replace(placed, plan=plan), function, note)
            if self._is_dynamic(adapted):
                return adapted
        return fastest

    def _is_dynamic(self, tuned: TuningResult) -> bool:
        """Whether a placement was measured and each of its regions compiles once for all sizes of symbolic dims."""
        return tuned.how != "priority" and all(not self.engines.why_not_dynamic(launch) for launch in tuned.plan.launches)

    def adopt_for_all_sizes(self, sizes: Sizes, tuned: TuningResult) -> None:
        """Use this placement, chosen at ``sizes``, for all sizes. If it was measured, store it for later processes."""
        self.placed = tuned.with_record(sizes=sizes)
        store = CostStore.for_cache(self.cache)
        if tuned.how == "measured" and store is not None and self.model is not None:
            request = self._make_request(self.model.get_declared())
            store.store_decision(make_decision_key(request), PlacementFile(search=SearchRecord(sizes=sizes)))

    def mark_checked(self, function: Function) -> None:
        """Record that a call of the chosen plan agreed with the reference, so that it is not checked again."""
        if self.placed is not None and self.model is not None:
            self.placed = self.placed.with_record(is_checked=True)
            # The decision is stored under the sizes at which it was measured.
            function = self.model.specialize(self.placed.record.sizes)
        if (store := CostStore.for_cache(self.cache)) is not None:
            ingredients = () if self.reducer is None else self.reducer.ingredients
            mark_checked(self._make_request(function), store, ingredients)

    def _load_stored(self, model: SymbolicModel, function: Function, sizes: Sizes) -> TuningResult | None:
        """Load the stored decision for these sizes, else for the sizes of the latest search; None if neither is stored."""
        if (store := CostStore.for_cache(self.cache)) is None:
            return None
        ingredients = () if self.reducer is None else self.reducer.ingredients
        decision = load_decision(self._make_request(function), store, ingredients)
        if decision is not None:
            return decision.with_record(sizes=sizes)
        # The decision of the symbolic model only has the sizes of the latest search.
        document = store.read_decision(make_decision_key(self._make_request(model.get_declared())))
        if document is None or document.search.sizes.keys() != sizes.keys() or document.search.sizes == sizes:
            return None
        latest = FrozenDict({name: document.search.sizes[name] for name in sizes})
        decision = load_decision(self._make_request(model.specialize(latest)), store, ingredients)
        return None if decision is None else decision.with_record(sizes=latest)

    def tune(
        self,
        function: Function,
        values: Sequence[Any] | None,
        *,
        budget: float | None = None,
        progress: ProgressCallback | bool | None = None,
        retune: bool = False,
        began: float | None = None,
        reducer: PrecisionReducer | None = None,
    ) -> TuningResult:
        """Load the decision of an earlier search, or search for at most ``budget`` seconds; ``retune`` forces a search.

        ``values`` are inputs to measure with; None uses random ones. The budget starts at ``began`` on the clock, by default now.
        With an error budget, half of the time is for the exact plan and half for plans of reduced precision. ``reducer`` replaces
        the module's search for reduced precision. ``progress`` is called with the state of the search; True displays the state,
        False does not, and None follows the module's option.
        """
        budget = self.budget if budget is None else budget
        reducer, store = reducer or self.reducer, CostStore.for_cache(self.cache)
        request, left_out = self._select_and_request(function, budget)
        if reducer is not None and store is not None and not retune:
            if (decision := load_decision(request, store, reducer.ingredients)) is not None:
                return decision
        if (name := _find_symbolic_input(function)) is not None and values is None:
            return plan_by_priority(
                request, f"input {name!r} has symbolic dims; a call of the module, which gives their sizes, measures"
            )
        start = self.clock()
        spent = 0.0 if began is None else start - began
        # The exact plan is searched first, since plans of reduced precision are compared with it.
        exact = replace(request, retune=retune, spent=spent, budget=budget if reducer is None else budget / 2)
        with self._open_progress(progress, function, exact.budget) as report:
            result = tune(
                exact,
                cache=self.cache,
                reference=partial(evaluate, threads=request.context.threads),
                store=store,
                inputs=values,
                progress=report,
                bounds=TuningBudget(memory=self.memory_limit),
            )
        result = result.with_record(notes=(*result.notes, *left_out))
        # After Ctrl-C no second search begins.
        if reducer is None or result.how == "interrupted":
            return result
        seconds = max(budget - spent - (self.clock() - start), budget / 2)
        with self._open_progress(progress, function, seconds) as report:
            result = reducer.reduce_precision(request, result, self.cache, seconds, report).with_record(is_explicit=retune)
        if store is not None:
            store_decision(result, request, store, reducer.ingredients)
        return result

    @contextmanager
    def _open_progress(
        self, progress: ProgressCallback | bool | None, function: Function, budget: float
    ) -> Iterator[ProgressCallback]:
        """Yield the progress callback: ``progress`` if it is callable, else one that displays the state if this is enabled."""
        if callable(progress):
            yield progress
            return
        enabled = self.shows_progress if progress is None else progress
        with show_progress(f"placing {function.name} (budget {budget:g} s)", enabled=enabled) as show:
            yield lambda state: None if show is None else show(state.text)

    def adapt(self, base: TuningResult, function: Function, note: str = FETCHED_NOTE) -> TuningResult:
        """Apply the placement ``base`` to the same model with more outputs or other sizes; place by priority if that fails.

        Nodes that ``base`` does not have run on its engine with the most nodes. ``note`` says why the placement is reused. The
        candidates of ``base`` are dropped, since they were not measured on this Function.
        """
        request = make_planned_request(self._make_request(function), base.precision, base.reduced_engines)
        function = request.function
        assignment = map_nodes_to_engines(base.plan)
        groups: Mapping[str, int] | None = map_nodes_to_regions(base.plan)
        if assignment and not assignment.keys() >= {node.name for node in function.nodes}:
            # New nodes, such as fetched values, change the regions, so that the old grouping does not apply.
            groups = None
            most_used_engine = Counter(assignment.values()).most_common(1)[0][0]
            assignment = {node.name: assignment.get(node.name, most_used_engine) for node in function.nodes}
        implicit, device_map = request.implicit, request.device_map
        engines = all_engines = tuple({engine.spec: engine for engine in request.engines}.values())  # each spec once
        if note != FETCHED_NOTE:  # other sizes: reuse the support recorded by the search, so that no library is imported
            if base.queried and not base.reduced_engines:
                engines = base.queried
            used_specs = set(assignment.values())
            # A plan needs an engine even if there are no nodes.
            engines = tuple(engine for engine in engines if engine.spec in used_specs) or all_engines
            implicit = implicit if implicit in used_specs else None
        try:
            plan = plan_from_assignment(function, engines, assignment, groups=groups, implicit=implicit, device_map=device_map)
        except PlanError:
            return plan_by_priority(request, f"{note}, but not all nodes can be")
        return replace(base, plan=plan).with_record(candidates=(), rounds=0, notes=(note,))

    def _make_request(self, function: Function) -> PlacementRequest:
        request, _ = self._select_and_request(function, self.budget)
        return request

    def _select_and_request(self, function: Function, budget: float) -> tuple[PlacementRequest, tuple[str, ...]]:
        """Make the placement request; also return a message for each engine left out because it supports no node."""
        engines, implicit, left_out = self._select_engines(function)
        fields = {"clustering": self.clustering, "cuda_graph": self.cuda_graph, "budget": budget}
        return self.engines.make_request(function, engines=tuple(engines), implicit=implicit, **fields), left_out

    def make_cost_report(self, plan: Plan, tuned: TuningResult, function: Function) -> CostReport:
        """Report the cost of ``plan`` from the measurements of ``tuned``; if ``tuned`` has none, from the stored costs."""
        table, store = tuned.table, CostStore.for_cache(self.cache)
        if not table.regions and store is not None:
            table = load_cost_table(store, self.engines.make_request(function))
        return make_report(plan, tuned, function, table)

    def _select_engines(self, function: Function) -> tuple[list[GraphCompiler], str | None, tuple[str, ...]]:
        """Select the engines to query; also return the spec of the implicit engine, and a message for each engine left out.

        If all engines run on the CPU, all are selected. Otherwise an engine that supports no node on its device is left out. The
        implicit engine is then selected only if the other engines do not support every node; if it is not, its spec is None.
        """
        engines, implicit, device_map = self.engines.engines, self.engines.implicit, self.engines.device_map
        if all(device_map.get_device(engine.spec) == "cpu" for engine in engines):
            return list(engines), implicit, ()
        listed = [engine for engine in engines if engine.spec != implicit]
        support = SupportMatrix.of(function, listed, device_map)
        engines_by_node = support.supporting_engines
        supporting_indices = set(chain.from_iterable(engines_by_node))
        selected, messages = [], []
        for index, engine in enumerate(listed):
            device = device_map.get_device(engine.spec)
            if device == "cpu" or index in supporting_indices or not function.nodes:
                selected.append(engine)
            else:
                messages.append(f"engine {engine.spec!r} supports no node on {device}: {support.reason(0, index)}")
        if implicit is None or all(engines_by_node):
            return selected, None, tuple(messages)
        return [*selected, engines[-1]], implicit, tuple(messages)  # the implicit engine is the last of the list


def _find_symbolic_input(function: Function) -> str | None:
    for value in function.inputs:
        if not (isinstance(value.type, TensorType) and value.type.is_static):
            return value.name
    return None


def find_next_best_plan(tuned: TuningResult, refused: Sequence[tuple[str, str, str]]) -> Plan | None:
    """Find the best candidate without any of the refused (node, engine, reason) placements; None if there is none."""
    refused_pairs = {(node, engine) for node, engine, _ in refused}
    for plan in _list_sound_plans(tuned):
        if refused_pairs.isdisjoint(map_nodes_to_engines(plan).items()):
            return plan
    return None


def _list_sound_plans(tuned: TuningResult) -> list[Plan]:
    """List the plans of the candidates that ran and computed correct results, best first."""
    return [candidate.plan for candidate in tuned.record.candidates if candidate.verdict in ("won", "tie", "lost")]
