"""The programs of a module: plan, compile, store and evict them. If a region fails, repeat the call on another plan."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from xrt.errors import CompileRefused, FallbackWarning, InputError, PlanError, RunFailed, SignatureWarning, did_you_mean, warn
from xrt.forking import renew_after_fork
from xrt.graph import FrozenDict, Function
from xrt.graph.deferred_function import StaleFunction
from xrt.module.dispatch import Dispatcher, OutputChecks
from xrt.module.engines import choose_default_engine, make_engine_list
from xrt.module.model_source import ModelSource, make_source
from xrt.module.sizes import SizePolicy
from xrt.partition.support_matrix import SupportMatrix
from xrt.placement.sizes import read_sizes
from xrt.progress import show_progress
from xrt.runtime import Program, Refusal, RegionToCompile, compile_plan, inputs, list_regions

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.module.dispatch import Call
    from xrt.module.explain import Memory
    from xrt.module.options import ModuleOptions
    from xrt.module.stored_plans import StoredPlans
    from xrt.partition import Pin, Plan
    from xrt.placement import TuningResult
    from xrt.placement.auto import AutoPlacement, Placer
    from xrt.placement.engine_list import EngineList
    from xrt.precision.placement import ReducedPrecisionSearch
    from xrt.progress import ReportStage

_log = logging.getLogger(__name__)


def add_outputs(function: Function, fetch: Sequence[str]) -> Function:
    """Add the values named in ``fetch`` to the outputs of a function. Raises InputError for an unknown name."""
    if not fetch:
        return function
    names = set(function.value_names())
    for name in fetch:
        if name not in names:
            raise InputError(f"fetch has {name!r}, and the model has no value with this name.{did_you_mean(name, names)}")
    outputs = {value.name for value in function.outputs}
    return function.replace(outputs=function.outputs + tuple(function.value(name) for name in fetch if name not in outputs))


def optimize(function: Function, *, fold: bool, engines: EngineList | None = None) -> Function:
    """Simplify a function whose types are inferred.

    ``fold`` enables constant folding, on as many threads as ``engines`` may use. If one of these engines fuses dequantization
    into operators, the dequantization of constants is not folded.
    """
    from xrt.engines.toolkit.reference_evaluator import evaluate
    from xrt.passes.simplification import optimize as run_passes

    if not fold:
        return run_passes(function)
    if engines is None:
        return run_passes(function, evaluate)
    return run_passes(function, partial(evaluate, threads=engines.context.threads), engines.fuses_dequantization)


def make_refusal(program: Program, error: RunFailed) -> Refusal:
    """Make the Refusal for a region that failed in a call. It has the nodes of all regions that share its executable."""
    launches, executables = program.plan.launches, program.executables
    index = [launch.name for launch in launches].index(error.region)
    sharing = [launch for launch, executable in zip(launches, executables, strict=True) if executable is executables[index]]
    return Refusal(launches[index], tuple(node for launch in sharing for node in launch.nodes), error)


def warn_refusals(refused: Iterable[Refusal]) -> None:
    for refusal in refused:
        more = f" and {len(refusal.nodes) - 1} more" if len(refusal.nodes) > 1 else ""
        warn(f"{refusal.reason}; node {refusal.nodes[0]!r}{more} placed on another engine", FallbackWarning)


# ---------------------------------------------------------------------- one program


@dataclass(frozen=True, slots=True)
class SavedSpecialization:
    """A plan from a bundle or the cache. Its Function may have one node per region in place of the model's nodes."""

    plan: Plan
    load_function: Callable[[], Function]
    load_complete: Callable[[], Specialization] | None = None
    """Loads the specialization with all nodes, for reports and replanning. None if ``plan`` has all nodes."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    engines: EngineList
    settings: ModuleOptions
    cache: CompileCache


class Specialization:
    """A model for one set of input types: its Function, its Plan and, once compiled, its Program."""

    def __init__(
        self,
        function: Function,
        context: BuildContext,
        *,
        original: Function,
        saved: SavedSpecialization | None = None,
        tuned: TuningResult | None = None,
    ) -> None:
        self.function, self.engines = function, context.engines
        self.key: Any = None
        """Its key in the `Dispatcher`: (result of `SizePolicy.get_key`, names of fetched values)."""
        self.sizes: Mapping[str, int] = {}
        """Sizes of the model's symbolic dims at which it is placed by measurement; empty otherwise."""
        self.remarks: Mapping[str, str] = {}
        self.compiled: Program | None = None
        self.refused: tuple[Refusal, ...] = ()
        self.checked = False
        self.is_provisional = False
        """Whether it was planned in list order, for display, before a call whose measurements choose the plan."""
        self.counted: Program | None = None
        """The program whose memory and threads the `Dispatcher` counts."""
        self.tuned = tuned
        if tuned is not None and tuned.reduced_engines:
            self.engines = replace(context.engines, reduced_engines=tuned.reduced_engines)
        self._saved, self._original, self._settings, self._cache = saved, original, context.settings, context.cache
        clustering = context.settings.clustering
        # A pin that matches no node of the original model is not dropped: the partitioner raises an error for it.
        self.idle_pins = tuple(pin for pin in clustering.pins if _matches(pin, original) and not _matches(pin, function))
        """Pins without effect, because their nodes were folded or removed."""
        if self.idle_pins:
            clustering = replace(clustering, pins=tuple(pin for pin in clustering.pins if pin not in self.idle_pins))
        self._clustering = clustering
        self._plan = saved.plan if saved else self._partition(())
        self._lock = renew_after_fork(Lock())

    @cached_property
    def _support(self) -> SupportMatrix:
        return SupportMatrix.of(self.get_full_function(), self.engines.engines, self.engines.device_map)

    @property
    def plan(self) -> Plan:
        complete = self._load_complete()
        return self._plan if complete is None else complete.plan

    def _load_complete(self) -> Specialization | None:
        """Load the specialization with all nodes; None if this specialization has them."""
        saved = self._saved
        # A plan that was made again, after a failure of a region, has all nodes.
        if saved is None or saved.load_complete is None or self._plan is not saved.plan:
            return None
        return saved.load_complete()

    def get_full_function(self) -> Function:
        """Return the Function with all nodes. In a stored plan, `function` has one node for each region instead."""
        return self._saved.load_function() if self._saved else self.function

    @property
    def is_stored(self) -> bool:
        """Whether the plan comes from a bundle or the cache, with its regions compiled."""
        return self._saved is not None

    def regions(self) -> list[RegionToCompile]:
        return list_regions(self.plan, self.engines.by_spec, self.engines.context)

    def memory(self) -> Memory:
        from xrt.module.explain import measure_memory

        complete = self._load_complete()
        return measure_memory(self.plan, self._original if complete is None else complete._original, self.compiled)

    def program(self) -> Program:
        """Return the Program. The first call compiles it; other threads wait.

        If an engine refuses a region, the region is placed on another engine, with a warning.
        """
        if self.compiled is not None:
            return self.compiled
        with self._lock:
            if self.compiled is not None:
                return self.compiled
            old_refusal_count = len(self.refused)
            is_stale = False
            try:
                program = self._adopt_program(*self._compile_without(self.refused))
            except StaleFunction as error:  # the plan comes from the cache, and the model's file has changed since
                _log.info("the plan of %s is made again: %s", self.function.name, error)
                is_stale = True
            if is_stale:  # not in the handler, where StaleFunction would become the context of later errors
                # Replace the stored plan by one with all nodes. None: an earlier call has replaced it.
                if (complete := self._load_complete()) is not None:
                    self.function, self._original, self._plan = complete.function, complete._original, complete._plan
                    self._saved = None
                program = self._adopt_program(*self._compile_without(self.refused))
        warn_refusals(self.refused[old_refusal_count:])
        return program

    def _compile_without(
        self, refused: tuple[Refusal, ...], new: tuple[Refusal, ...] = ()
    ) -> tuple[Program, tuple[Refusal, ...]]:
        """Compile the plan. As long as engines refuse regions, plan again without them. Returns the program and all refusals.

        The current plan avoids the refusals ``refused``, but not the refusals ``new``.
        """
        plan = self._plan
        while True:
            if new:
                refused += new
                plan = self._replan(refused, new)
            outcome = self._compile(plan)
            if isinstance(outcome, Program):
                return outcome, refused
            new = outcome

    def _adopt_program(self, program: Program, refused: tuple[Refusal, ...]) -> Program:
        """Use this program from now on, and return it. Also dump its graphs if ``dump_subgraph_dir`` is set."""
        if refused != self.refused:
            self.remarks, self.checked = {}, False  # they were about other regions
        self.compiled, self._plan, self.refused = program, program.plan, refused
        if (folder := self._settings.dump_subgraph_dir) is not None:
            from xrt.formats.text import dump_stages  # rarely needed

            stages = {"1-model": self._original, "2-simplified": self.function, "3-plan": self.plan.function}
            dump_stages(stages | {x.name: x.function for x in self.plan.launches}, folder)
        return program

    def _compile(self, plan: Plan) -> Program | tuple[Refusal, ...]:
        """Compile a plan. Returns its Program, or the refusals if engines refused some of its regions."""
        settings, engines = self._settings, self.engines
        with show_progress(f"compiling {self.function.name}", enabled=settings.shows_progress) as show:
            report = settings.progress if callable(settings.progress) else None
            if show is not None:
                report = partial(_show_regions, show)
            options: dict[str, Any] = {"streams": engines.streams, "graph": settings.cuda_graph, "blame_nodes": True}
            return compile_plan(plan, engines.by_spec, engines.context, self._cache, progress=report, **options)

    def _replan(self, refused: tuple[Refusal, ...], new: tuple[Refusal, ...]) -> Plan:
        """Plan again to avoid the refusals. If no engine is left for a node, the cause of the error is the first of ``new``."""
        if self._settings.strict and (failed := [r.error for r in new if not isinstance(r.error, CompileRefused)]):
            raise failed[0]
        try:
            return self._partition(refused)
        except Exception as error:
            raise error from new[0].error

    def _partition(self, refused: tuple[Refusal, ...]) -> Plan:
        """Choose a plan that avoids the refusals: the fastest one that was measured, else one by the order of the engine list."""
        from xrt.partition import partition

        exclusions, engines = [], self.engines
        for refusal in refused:
            how = "failed at run" if isinstance(refusal.error, RunFailed) else "refused at compile"
            exclusions += [(node, refusal.launch.engine, f"{how}: {refusal.reason}") for node in refusal.nodes]
        if self.tuned is not None:
            from xrt.placement.auto import find_next_best_plan

            plan = find_next_best_plan(self.tuned, exclusions) if refused else self.tuned.plan
            if plan is not None:
                return plan
        plan = partition(
            self.get_full_function(),
            engines.engines,
            self._clustering,
            strict=self._settings.strict,
            implicit=engines.implicit,
            device_map=engines.device_map,
            refused=exclusions,
            capability=self._support,
        )
        if _log.isEnabledFor(logging.INFO):
            launches, name, nodes = plan.launches, self.function.name, self.function.nodes
            regions = ", ".join(f"{launch.name} of {len(launch.nodes)}" for launch in launches)
            _log.info("plan of %s: %d nodes in %d regions: %s", name, len(nodes), len(launches), regions)
        return plan

    def run(self, call: Call, program: Program | None = None) -> list[Any]:
        """Run a call. If a region fails, place it on another engine, with a warning, and repeat the call.

        Raises RunFailed if no engine is left for the region, the call's inputs cannot be reset, or the module is strict.
        """
        program = program or self.program()
        try:
            return program.run(call.inputs, call.options, call.inspection)
        except RunFailed as error:
            return self.rescue(program, error, call)

    def rescue(self, program: Program, error: RunFailed, call: Call) -> list[Any]:
        """Repeat a call of ``program`` in which a region failed. The region is placed on another engine."""
        if self._settings.strict or not error.region:
            raise error
        with self._lock:
            is_current, old_refusal_count = self.compiled is program, len(self.refused)
            if is_current:
                results = self._repeat(program, error, call)
        if not is_current:  # another thread has placed the region elsewhere meanwhile
            call.restore(program.plan, error)
            return self.run(call)
        warn_refusals(self.refused[old_refusal_count:])
        return results

    def _repeat(self, program: Program, error: RunFailed, call: Call) -> list[Any]:
        """Repeat a failed call on other plans until it succeeds. Later calls use the plan on which it succeeded.

        If it fails on every plan, raise the first error, because the inputs may be the cause. If its inputs cannot be reset, use
        copies of them to find a plan for later calls, and then raise the error.
        """
        first, refused = error, self.refused
        restore_error: RunFailed | None = None
        while True:
            try:
                next_program, refused = self._compile_without(refused, (make_refusal(program, error),))
            except PlanError:
                if restore_error is not None:
                    first.updated = restore_error.updated
                first.has_bad_index = _has_index_error(error)
                raise first  # noqa: B904  # the missing engine is not its cause
            if restore_error is None:
                try:
                    call.restore(program.plan, error)
                except RunFailed as failure:
                    call, restore_error = call.use_copies(self.function), failure
            program = next_program
            try:
                results = program.run(call.inputs, call.options, call.inspection)
            except RunFailed as again:
                first.add_note(f"placed elsewhere, it failed too: {again}")
                first.updated = (*(first.updated or ()), *(again.updated or ()))
                error = again
                continue
            self._adopt_program(program, refused)
            if restore_error is not None:
                raise restore_error
            return results


def _show_regions(show: ReportStage, done: int, count: int) -> None:
    show(f"{done} of {count} regions")


def _has_index_error(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, IndexError):
        error = error.__cause__ or error.__context__
    return error is not None


def _matches(pin: Pin, function: Function) -> bool:
    return any(pin.find_matches({pin.get_subject(node) for node in function.nodes}))


# ---------------------------------------------------------------------- all programs of a module

MAX_SILENT_COMPILES = 3
"""A module warns when this many of its calls have waited for a compile."""


class Programs:
    def __init__(self, model: Any, engine: Any, device: str, settings: ModuleOptions, cache: CompileCache) -> None:
        """Open ``model`` on ``engine``: a name, spec, instance or list; None chooses a default engine."""
        began = perf_counter()
        self.engines, self.stored, self.source = open_model(model, engine, device, settings, cache)
        self.settings, self.cache = settings, cache
        self.sizes = SizePolicy(settings, self.source, self.engines, self.stored)
        self.reducer: ReducedPrecisionSearch | None = None
        if settings.max_error is not None:
            from xrt.module.precision import make_precision_reducer  # slow to import, and rarely needed

            self.reducer = make_precision_reducer(settings.max_error, settings, self.sizes.served_source)
        self.checks = OutputChecks(settings.check, self.engines.context.threads)
        self.dispatcher = Dispatcher(self.source.inputs, cache.max_bytes)
        # `engines` has only the engines of the lockfile's plan. If the lockfile does not apply, all listed engines are needed.
        self._list_all_engines = partial(make_engine_list, engine, device, replace(settings, lock=None), cache)
        # The default engine depends on the nodes, and those of an `xrt.Graph` are known only after its first trace.
        self._must_choose_engine = engine is None and self.source.is_traced
        self._has_warned = False
        self._compiles = 0  # number of calls that waited for a program of their sizes
        # It counts towards the time budget of the first search.
        self._construction_seconds = perf_counter() - began

    @property
    def context(self) -> BuildContext:
        return BuildContext(self.engines, self.settings, self.cache)

    def close(self) -> None:
        self.dispatcher.close()
        self.engines.close()
        if self.stored is not None:
            self.stored.close()

    def check_inputs(self, args: Sequence[Any], kwargs: Any, *, pads: bool = True) -> list[Any]:
        """Return the inputs of a call in the model's order, converted, checked and padded. ``pads=False`` does not pad."""
        values = inputs.read(self.source.inputs, args, kwargs, self.engines.context.device)
        return self.sizes.pad(values, self, pads=pads) if self.sizes.open_axes else values

    def specialize(self, values: Any, fetch: tuple[str, ...] = (), place: Placer | None = None) -> Specialization:
        """Return the specialization for checked inputs, planned if necessary. ``values=None`` means the declared types.

        ``fetch`` has the names of values to return; without it, the specialization becomes that of the last call. ``place``
        chooses a new placement, even if there is a plan.
        """
        if place is not None and values is not None:
            self.sizes.set_exact(values)
        build = self.find_or_plan((self.sizes.get_key(values, self), fetch), values, place)
        if not fetch:
            self.dispatcher.select(build)
        return build

    def find_or_plan(self, key: tuple[object, tuple[str, ...]], values: Any, place: Placer | None = None) -> Specialization:
        """Return the specialization with this key (see `Specialization.key`); for the other arguments see `specialize`."""
        return self.dispatcher.find_or_create(key, partial(self._plan, key, values, place), renew=place is not None)

    def _plan(self, key: tuple[Any, tuple[str, ...]], values: Any, place: Placer | None) -> Specialization:
        """Load the specialization from the cache; else read or trace the model, optimize, quantize and place it."""
        sizes_key, fetch = key
        source = self.sizes.get_source(values)
        if self.stored is not None and place is None and not fetch:
            if (build := self.stored.find(sizes_key, source)) is not None:
                return build
        base = None
        if fetch and self.engines.is_auto:  # fetching values must not change the placement
            base = self.find_or_plan((self.sizes.get_key(values, self), ()), values)
        began = self.placer.clock() - self._construction_seconds if self.engines.is_auto else 0.0
        function = source.get_declared_function() if values is None else source.get_function(sizes_key)
        function = add_outputs(function, fetch)
        if self._must_choose_engine:
            device, why_not = self.engines.context.device, partial(why_not_supported, function, self.settings)
            self.engines = choose_default_engine(device, self.settings, self.cache, why_not)
            self._must_choose_engine = False
        optimized = optimize(function, fold=self.settings.fold_constants, engines=self.engines)
        if self.settings.choice.is_quantized and self.settings.max_error is None:
            optimized = self._quantize(optimized, function)
        sizes: Mapping[str, int] = FrozenDict()
        tuned = None
        if self.engines.is_auto:
            if values is not None and self.placer.model is not None:
                sizes = read_sizes(source.inputs, values)
            earlier = base.tuned if base else None
            tuned = self.placer.place(optimized, values, base=earlier, placer=place, began=began, sizes=sizes)
            self.engines = self.placer.engines  # which differ if a lockfile does not apply
        elif place is not None:
            tuned = place(optimized)
        build = Specialization(optimized, self.context, original=function, tuned=tuned)
        build.sizes = sizes
        # With "auto", a model with symbolic dims is measured by its first call. Other modules must not import the placer.
        if values is None and self.engines.is_auto:
            build.is_provisional = self.placer.model is not None and self.placer.placed is None
        self._construction_seconds = 0.0  # it counts for the budget of the first search only
        return build

    def _quantize(self, optimized: Function, function: Function) -> Function:
        """Quantize ``optimized``, the optimized ``function``, to int8. The first time, measure ranges if there is no table."""
        from xrt.module.precision import measure_ranges, quantize_by_table  # only for int8

        choice, served = self.settings.choice, self.sizes.served_source
        if choice.table is None:
            unoptimized = function if served.is_traced else served.get_declared_function()
            declared = optimize(unoptimized, fold=self.settings.fold_constants, engines=self.engines)
            table = measure_ranges(declared, self.settings, self.engines)
            self.settings = replace(self.settings, choice=replace(choice, table=table))
        return quantize_by_table(optimized, function, self.settings, self.engines.engines)

    def compile(self, build: Specialization) -> Program:
        """Compile a specialization, store its plan in the cache, and warn once about nodes on the implicit engine."""
        self.dispatcher.check_open()
        program = build.program()
        if self.dispatcher.count_usage(build, program):
            plan, implicit = program.plan, self.engines.implicit
            if not self._has_warned and (message := format_implicit_fallback(plan, implicit, build.refused)):
                self._has_warned = True
                warn(message, FallbackWarning)
            if self.stored is not None:
                self.stored.store(self.dispatcher.to_dict(), self.source)
        return program

    def compile_for_call(self, build: Specialization, values: Sequence[Any]) -> Program:
        """Compile during a call; warn when `MAX_SILENT_COMPILES` calls have waited for a compile."""
        is_new = build.compiled is None and not build.is_stored
        program = self.compile(build)
        sizes, fetch = build.key
        # No warning if nothing was compiled, if the sizes were not the reason, or if the caller accepts it.
        if not is_new or sizes is None or fetch or self.source.is_traced or self.sizes.shapes == "each":
            return program
        # Padding limits the number of compiles.
        if self.sizes.padding is not None and not self.sizes.refusals:
            return program
        self._compiles += 1
        if self._compiles == MAX_SILENT_COMPILES:
            why = [self.sizes.why_not_general(values, self) or "the first sizes have a separate program", *self.sizes.refusals]
            suggestions = []
            if self.engines.can_be_dynamic:
                suggestions.append("shapes='one'")
            if self.engines.is_auto:
                suggestions.append("shapes=xrt.Buckets()")
            suggestions.append("an engine that has one program for all sizes, such as 'ort'")
            warn(
                f"{MAX_SILENT_COMPILES} calls of this module have waited for a compile, each for other sizes: "
                f"{'; '.join(why)}. Pass {', or '.join(suggestions)}; shapes='each' accepts it",
                SignatureWarning,
            )
        return program

    # ------------------------------------------------------------------ placement by measurement

    @cached_property
    def placer(self) -> AutoPlacement:
        from xrt.placement.auto import AutoPlacement, SymbolicModel

        settings = self.settings
        load, model = None, None
        if settings.lock is not None:
            load = partial(settings.lock.load_result, clustering=settings.clustering, strict=settings.strict)
        if self.engines.is_auto and self.sizes.open_axes:
            model = SymbolicModel(self.sizes.served_source.get_declared_function, self._specialize_at)
        return AutoPlacement(
            self.engines,
            self.cache,
            cache(self._list_all_engines),
            load,
            self.reducer,
            clustering=settings.clustering,
            budget=settings.budget,
            memory_limit=settings.isolate.memory_limit,
            cuda_graph=settings.cuda_graph,
            shows_progress=settings.shows_progress,
            model=model,
        )

    def _specialize_at(self, sizes: Mapping[str, int]) -> Function:
        served = self.sizes.served_source
        shapes = [list(getattr(value.type, "shape", None) or ()) for value in served.inputs]
        for index, axis, name in self.sizes.open_axes:
            shapes[index][axis] = sizes[name]
        function = served.get_function(tuple(map(tuple, shapes)))
        return optimize(function, fold=self.settings.fold_constants, engines=self.engines)

    def adopt_decision(self, build: Specialization) -> None:
        """Use the placement of ``build`` for all sizes, although it was measured at one; drop plans of earlier placements."""
        if self.placer.model is None or not build.sizes or build.tuned is None:
            return
        self.placer.adopt_for_all_sizes(build.sizes, build.tuned)
        with self.dispatcher.planning_lock:
            self.sizes.reset()
            for specialization in self.dispatcher:
                if specialization is not build and specialization.key[0] not in self.sizes.exact_keys:
                    self.dispatcher.remove(specialization)


def format_implicit_fallback(plan: Plan, implicit: str | None, refusals: Iterable[Refusal]) -> str:
    """Format the warning about nodes on the implicit engine: their number, and the reason for the first node.

    Return "" if all these nodes are expected. A node is expected if it was reported when its engine refused it, or if the
    partitioner chose the reference engine because it updates a state in place, which the other engine would copy.
    """
    chosen_to_update = {reason.node for reason in plan.reasons if reason.updating_engine}
    launches = (launch for launch in plan.launches if launch.engine == implicit)
    nodes = [node for launch in launches for node in launch.nodes if node not in chosen_to_update]
    reported = {node for refusal in refusals for node in refusal.nodes}
    first = next((node for node in nodes if node not in reported), None)
    if first is None:
        return ""
    why = next((f": {r.text}" for r in plan.reasons if r.node == first), "")
    count, pronoun, example = f"{len(nodes)} nodes run", "them", ", such as"
    if len(nodes) == 1:
        count, pronoun, example = "1 node runs", "it", ":"
    return (
        f"{count} on the reference engine {implicit!r}, as no engine of the list supports {pronoun}{example} {first!r}{why}. "
        f"m.explain() lists {pronoun}; name {implicit!r} in the list to accept it, or pass strict=True to refuse it"
    )


# ---------------------------------------------------------------------- the default engine


def open_model(
    model: Any, engine: Any, device: str, settings: ModuleOptions, cache: CompileCache
) -> tuple[EngineList, StoredPlans | None, ModelSource]:
    """Open a model on ``engine``; None chooses a default engine. Returns the engines, the plans in the cache, and the model.

    For an `xrt.Graph`, the default engine may change at the first trace, which shows the nodes.
    """
    opened: dict[str, tuple[StoredPlans | None, ModelSource]] = {}

    def open_for(engines: EngineList) -> str | None:
        """Open the model on these engines. For a default engine, explain why it does not support all nodes, or return None."""
        stored = None
        if isinstance(model, str | os.PathLike):
            from xrt.module.stored_plans import find_stored_plans  # which imports this module

            stored = find_stored_plans(model, cache, settings, engines)
        source: ModelSource | None = stored.source if stored is not None else None
        if source is None and opened:  # the model was read for another default engine
            _, source = next(iter(opened.values()))
        if source is None:
            source = make_source(model)
        opened[engines.engines[0].spec] = stored, source
        # A plan is stored only if the listed engines support all nodes, so the model need not be read.
        if engine is not None or source.is_traced or (stored is not None and stored.source is not None):
            return None
        return why_not_supported(source.get_declared_function(), settings, engines)

    if engine is None:
        engines = choose_default_engine(device, settings, cache, open_for)
    else:
        open_for(engines := make_engine_list(engine, device, settings, cache))
    return engines, *opened[engines.engines[0].spec]


def why_not_supported(function: Function, settings: ModuleOptions, engines: EngineList) -> str | None:
    """Explain why the first engine of a list does not support every node of a model, or return None."""

    def find_declined(function: Function) -> str | None:
        matrix = SupportMatrix.of(function, engines.engines[:1], engines.device_map)
        reasons = ((node, matrix.reason(index, 0)) for index, node in enumerate(function.nodes))
        return next((f"{node.name!r} ({node.op}): {reason}" for node, reason in reasons if reason is not None), None)

    # Most models are supported as they are, so constants are folded only if that may change the answer.
    if find_declined(function) is None:
        return None
    return find_declined(optimize(function, fold=settings.fold_constants, engines=engines))
