"""The programs of a module: plan, compile and evict them by signature. If a region fails, repeat the call on another plan."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from threading import Lock, RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from xrt.cache.memory import LEAST_BYTES, THREADS, close_in_background, count_bytes
from xrt.errors import CompileRefused, FallbackWarning, InputError, PlanError, RunFailed, SignatureWarning, did_you_mean, warn
from xrt.forking import renew_after_fork
from xrt.graph import FrozenDict, Function
from xrt.graph.deferred_function import StaleFunction
from xrt.module.dispatch import NO_MATCH, NOTHING, Call, make_fast_path, make_signature_key, unpack_outputs
from xrt.module.engines import choose_default_engine, make_engine_list
from xrt.module.model_source import ModelSource, make_source
from xrt.module.sizes import SizePolicy
from xrt.partition.support_matrix import SupportMatrix
from xrt.placement.sizes import read_sizes
from xrt.progress import show_progress
from xrt.runtime import Program, Refusal, RegionToCompile, compile_plan, list_regions, to_run_failed

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.module.dispatch import FastCall, FastPath, Wrap
    from xrt.module.explain import Memory
    from xrt.module.options import ModuleOptions
    from xrt.module.stored_plans import StoredPlans
    from xrt.partition import Plan
    from xrt.placement import TuningResult
    from xrt.placement.auto import AutoPlacement, Placer
    from xrt.placement.engine_list import EngineList
    from xrt.precision.lowering import LoweringWithinBudget

_log = logging.getLogger(__name__)


def add_outputs(function: Function, fetch: Sequence[str]) -> Function:
    """Add the values named in ``fetch`` to the outputs of a function; raises InputError for an unknown name."""
    if not fetch:
        return function
    names = set(function.value_names())
    for name in fetch:
        if name not in names:
            raise InputError(f"fetch asks for {name!r}, which is no value of the model.{did_you_mean(name, names)}")
    outputs = {value.name for value in function.outputs}
    return function.replace(outputs=function.outputs + tuple(function.value(name) for name in fetch if name not in outputs))


def optimize(function: Function, *, fold: bool, engines: EngineList | None = None) -> Function:
    """Simplify a function with inferred types.

    ``fold`` enables constant folding, on as many threads as ``engines`` may use. Dequantization of constants is not folded if an
    engine fuses it.
    """
    from xrt.engines.toolkit.reference_evaluator import evaluate
    from xrt.passes.simplification import optimize as run_passes

    if not fold:
        return run_passes(function)
    if engines is None:
        return run_passes(function, evaluate)
    return run_passes(function, partial(evaluate, threads=engines.context.threads), engines.fuse_dequantization)


def find_refusal(program: Program, error: RunFailed) -> Refusal:
    """Make the Refusal for a region that failed in a call. It covers all regions that share the executable."""
    launches, executables = program.plan.launches, program.executables
    index = [launch.name for launch in launches].index(error.region)
    sharing = [launch for launch, executable in zip(launches, executables, strict=True) if executable is executables[index]]
    return Refusal(launches[index], tuple(node for launch in sharing for node in launch.nodes), error)


def warn_refusals(refused: Iterable[Refusal]) -> None:
    """Issue a FallbackWarning for each refusal."""
    for refusal in refused:
        more = f" and {len(refusal.nodes) - 1} more" if len(refusal.nodes) > 1 else ""
        warn(f"{refusal.reason}; node {refusal.nodes[0]!r}{more} placed on another engine", FallbackWarning)


# ---------------------------------------------------------------------- signatures


@dataclass(frozen=True, slots=True)
class SavedSpecialization:
    """The plan of a specialization that comes from a bundle or the cache, and how to load the nodes of the model."""

    plan: Plan
    whole: Callable[[], Function]
    """Loads the Function with all nodes. The specialization itself may have a Function with one node per region instead."""
    complete: Callable[[], Specialization] | None = None
    """Creates the specialization with all nodes, for reports and replanning. None if ``plan`` has them already."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The engines, options and cache of a specialization."""

    engines: EngineList
    settings: ModuleOptions
    cache: CompileCache


class Specialization:
    """A model for one signature: its Function, its Plan and, once compiled, its Program."""

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
        """Its key in the `Dispatcher`: (key of the sizes, names of fetched values)."""
        self.sizes: Mapping[str, int] = {}
        """Sizes of the model's symbolic dims, for placement by measurement."""
        self.remarks: Mapping[str, str] = {}
        """Remarks about compiled forms from a bundle, by region."""
        self.compiled: Program | None = None
        self.refused: tuple[Refusal, ...] = ()
        self.checked = False
        """Whether a call of this plan was checked and its outputs were correct."""
        self.usage: tuple[Program, dict[int, tuple[int, int]]] | None = None
        """Set by the `Dispatcher`: the counted program, and (bytes, threads) that each executable holds between calls, by
        ``id``."""
        self.tuned = tuned
        if tuned is not None and tuned.lowered:
            self.engines = replace(context.engines, lowered=tuned.lowered)
        self._saved, self._original, self._settings, self._cache = saved, original, context.settings, context.cache
        pins = context.settings.clustering.pins
        used, declared = ([any(pin.match({pin.subject(node) for node in x.nodes})) for pin in pins] for x in (function, original))
        # A pin that matched no node to begin with stays, and is an error.
        self.idle_pins = tuple(pin for pin, now, before in zip(pins, used, declared, strict=True) if before and not now)
        """Pins without effect, because their nodes were folded or removed."""
        self._clustering = context.settings.clustering
        if self.idle_pins:
            self._clustering = replace(self._clustering, pins=tuple(pin for pin in pins if pin not in self.idle_pins))
        self._lock = renew_after_fork(Lock())
        self._plan = saved.plan if saved else self._partition(())

    @cached_property
    def _support(self) -> SupportMatrix:
        """Which engines support which nodes; queried once for all plans."""
        return SupportMatrix.of(self.full_function(), self.engines.engines, self.engines.homes)

    @property
    def plan(self) -> Plan:
        """The plan with all nodes."""
        complete = self._complete()
        return self._plan if complete is None else complete.plan

    def _complete(self) -> Specialization | None:
        """Load the specialization with all nodes if the plan was stored without them; None if this one has them."""
        saved = self._saved
        return saved.complete() if saved and saved.complete and self._plan is saved.plan else None

    def full_function(self) -> Function:
        """Return the Function with all nodes. `function` has only one node for each region if the plan was stored."""
        return self._saved.whole() if self._saved else self.function

    @property
    def is_stored(self) -> bool:
        """Whether the plan comes from a bundle or the cache, with its regions compiled."""
        return self._saved is not None

    def regions(self) -> list[RegionToCompile]:
        """List the regions to compile, in plan order."""
        return list_regions(self.plan, self.engines.by_spec, self.engines.context)

    def memory(self) -> Memory:
        """Compute the memory of the plan; engines report theirs only once it is compiled."""
        from xrt.module.explain import measure_memory

        complete = self._complete()
        return measure_memory(self.plan, self._original if complete is None else complete._original, self.compiled)

    # ------------------------------------------------------------------ compile

    def program(self) -> Program:
        """Return the Program; the first call compiles it, and other threads wait.

        A region that its engine refuses to compile is placed on another engine, with a warning.
        """
        if self.compiled is not None:
            return self.compiled
        with self._lock:
            if self.compiled is not None:
                return self.compiled
            count, is_stale = len(self.refused), False
            try:
                program = self._use_program(*self._compile_without(self.refused))
            except StaleFunction as error:  # a cached plan that does not match the model
                _log.info("the plan of %s is made again: %s", self.function.name, error)
                is_stale = True
            if is_stale:  # outside the handler: errors raised in it have the StaleFunction as context, and count as stale too
                if (complete := self._complete()) is not None:  # else another module met it while this one waited
                    self.function, self._original, self._plan = complete.function, complete._original, complete._plan
                    self._saved = None
                program = self._use_program(*self._compile_without(self.refused))
        warn_refusals(self.refused[count:])
        return program

    def _compile_without(
        self, refused: tuple[Refusal, ...], new: tuple[Refusal, ...] = ()
    ) -> tuple[Program, tuple[Refusal, ...]]:
        """Compile a plan that avoids the refusals, and plan again as long as regions are refused.

        ``new`` are refusals that the current plan does not avoid yet. Returns the program, and all refusals.
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

    def _use_program(self, program: Program, refused: tuple[Refusal, ...]) -> Program:
        """Use this program from now on, write its graphs if the option names a folder, and return it."""
        if refused != self.refused:
            self.remarks, self.checked = {}, False  # their regions may have changed
        self.compiled, self._plan, self.refused = program, program.plan, refused
        if (folder := self._settings.dump_subgraph_dir) is not None:
            from xrt.formats.text import dump_stages  # rarely needed

            stages = {"1-model": self._original, "2-simplified": self.function, "3-plan": self.plan.function}
            dump_stages(stages | {x.name: x.function for x in self.plan.launches}, folder)
        return program

    def _compile(self, plan: Plan) -> Program | tuple[Refusal, ...]:
        """Compile a plan. Returns its Program, or the refusals if engines refused to compile some of its regions."""
        settings, engines = self._settings, self.engines
        with show_progress(f"compiling {self.function.name}", enabled=settings.shows_progress) as show:
            report = settings.progress if callable(settings.progress) else lambda done, n: show(f"{done} of {n} regions")
            options: dict[str, Any] = {"streams": engines.streams, "graph": settings.cuda_graph, "narrow": True}
            return compile_plan(plan, engines.by_spec, engines.context, self._cache, progress=report, **options)

    def _replan(self, refused: tuple[Refusal, ...], new: tuple[Refusal, ...]) -> Plan:
        """Plan again to avoid the refusals. If no engine is left for a node, the error has the first new refusal as its cause."""
        if self._settings.strict and (failed := [r.error for r in new if not isinstance(r.error, CompileRefused)]):
            raise failed[0]
        try:
            return self._partition(refused)
        except Exception as error:
            raise error from new[0].error

    def _partition(self, refused: tuple[Refusal, ...]) -> Plan:
        """Choose a plan that has no node on an engine that refused it: the best measured one, else by priority of engines."""
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
            self.full_function(),
            engines.engines,
            self._clustering,
            strict=self._settings.strict,
            implicit=engines.implicit,
            device=engines.homes,
            refused=exclusions,
            capability=self._support,
        )
        function, regions = self.function, ", ".join(f"{launch.name} of {len(launch.nodes)}" for launch in plan.launches)
        _log.info("plan of %s: %d nodes in %d regions: %s", function.name, len(function.nodes), len(plan.launches), regions)
        return plan

    # ------------------------------------------------------------------ faults of a run

    def run(self, call: Call, program: Program | None = None) -> list[Any]:
        """Run a call. If a region fails, place it on another engine, with a warning, and repeat the call.

        Raises RunFailed if no engine is left for the region, its inputs cannot be restored, or the module is strict.
        """
        program = program or self.program()
        try:
            return program.run(call.inputs, call.options, call.inspection)
        except RunFailed as error:
            return self.rescue(program, error, call)

    def rescue(self, program: Program, error: RunFailed, call: Call) -> list[Any]:
        """Repeat a call of ``program`` in which a region failed, on a plan that has the region on another engine."""
        if self._settings.strict or not error.region:
            raise error
        with self._lock:
            is_current, count = self.compiled is program, len(self.refused)
            if is_current:
                results = self._repeat(program, error, call)
        if not is_current:  # another thread has placed the region elsewhere meanwhile
            call.restore(program.plan, error)
            return self.run(call)
        warn_refusals(self.refused[count:])
        return results

    def _repeat(self, program: Program, error: RunFailed, call: Call) -> list[Any]:
        """Repeat a failed call on one plan after another; the first on which it succeeds is used for later calls too.

        If it fails on every plan, its first error is raised, since the inputs may be the cause. If its inputs cannot be restored,
        an error is raised in any case, but copies of the inputs are used to find a plan for later calls.
        """
        first, refused = error, self.refused
        restore_error: RunFailed | None = None
        while True:
            try:
                next_program, refused = self._compile_without(refused, (find_refusal(program, error),))
            except PlanError:
                if restore_error is not None:
                    first.updated = restore_error.updated
                first.has_bad_index = _has_index_error(error)
                raise first  # noqa: B904  # the missing engine is not its cause
            if restore_error is None:
                try:
                    call.restore(program.plan, error)
                except RunFailed as failure:
                    call, restore_error = call.on_copies(self.function), failure
            program = next_program
            try:
                results = program.run(call.inputs, call.options, call.inspection)
            except RunFailed as again:
                first.add_note(f"placed elsewhere, it failed too: {again}")
                first.updated = (*(first.updated or ()), *(again.updated or ()))
                error = again
                continue
            self._use_program(program, refused)
            if restore_error is not None:
                raise restore_error
            return results


def _has_index_error(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, IndexError):
        error = error.__cause__ or error.__context__
    return error is not None


# ---------------------------------------------------------------------- all signatures of a module

MAX_SILENT_COMPILES = 3
"""When this many calls have waited for a compile, warn, and recommend how to avoid it."""


class Programs:
    """Plans and compiles the specializations of one module."""

    def __init__(self, model: Any, engine: Any, device: str, settings: ModuleOptions, cache: CompileCache) -> None:
        """Open ``model`` on ``engine``, which is a name, spec, instance or list; None chooses a default engine."""
        began = perf_counter()
        self.engines, self.stored, self.source = open_model(model, engine, device, settings, cache)
        self.settings, self.cache = settings, cache
        self.sizes = SizePolicy(settings, self.source, self.engines, self.stored)
        self.lowering: LoweringWithinBudget | None = None
        """Searches for plans within the module's error budget; None without a budget."""
        if settings.max_error is not None:
            from xrt.module.precision import make_lowering  # slow to import, and rarely needed

            self.lowering = make_lowering(settings.max_error, settings, self.sizes.served)
        self.dispatcher = Dispatcher(cache.max_bytes)
        self.planning = renew_after_fork(RLock())
        """Held during planning; calls of other signatures do not wait."""
        # A lock restricts `engines` to those of its plan; where it does not apply, all listed engines are needed.
        self._list_all_engines = partial(make_engine_list, engine, device, replace(settings, lock=None), cache)
        # The default engine of an `xrt.Graph` is chosen at its first trace.
        self._is_undecided = engine is None and self.source.is_traced
        self._has_warned = False
        self._compiles = 0  # calls that compiled a program for their sizes only
        # The budget of the first search covers it.
        self._construction_seconds = perf_counter() - began

    @property
    def context(self) -> BuildContext:
        return BuildContext(self.engines, self.settings, self.cache)

    def check_open(self) -> None:
        if self.dispatcher.is_closed:
            raise InputError("the module is closed; make a new XRTModule")

    def close(self) -> None:
        self.dispatcher.close()
        self.engines.close()
        if self.stored is not None:
            self.stored.close()

    # ------------------------------------------------------------------ from values to a specialization

    def find(self, values: Any, fetch: tuple[str, ...] = (), place: Placer | None = None) -> Specialization:
        """Return the specialization for the inputs of a call, planned if necessary; None is for the declared types.

        ``place`` chooses a new placement, even if there is a plan.
        """
        if place is not None and values is not None:
            self.sizes.set_exact(values)
        return self.find_or_plan((self.sizes.get_key(values, self), fetch), values, place)

    def find_or_plan(self, key: tuple[object, tuple[str, ...]], values: Any, place: Placer | None = None) -> Specialization:
        """Return the specialization for a key, planned if necessary. ``values`` and ``place`` are those of `find`.

        The key is (result of `SizePolicy.get_key`, names of fetched values).
        """
        build = self.dispatcher.get(key) if place is None else None
        if build is not None:
            return build
        with self.planning:
            if place is None and (build := self.dispatcher.get(key)) is not None:
                return build
            if self.stored is not None and place is None and not key[1]:
                build = self.stored.find(key[0], self.sizes.get_source(values))
            build = build or self._plan(key, values, place)
            build.key = key
            # Before the first call a model with symbolic dims is placed in list order, only for display: do not store this plan.
            # Only "auto" does so; other modules must not import the placer.
            is_auto = self.engines.is_auto
            if values is not None or not is_auto or self.placer.model is None or self.placer.placed is not None:
                self.dispatcher.put(key, build)
            return build

    def _plan(self, key: tuple[Any, tuple[str, ...]], values: Any, place: Placer | None) -> Specialization:
        """Read or trace the model, optimize, quantize and place it, for the inputs ``values``."""
        sizes_key, fetch = key
        base = self.find(values) if fetch and self.engines.is_auto else None
        began = self.placer.clock() - self._construction_seconds if self.engines.is_auto else 0.0
        source = self.sizes.get_source(values)
        function = source.get_declared_function() if values is None else source.function(sizes_key)
        function = add_outputs(function, fetch)
        if self._is_undecided:
            device, why_not = self.engines.context.device, partial(why_not_whole, function, self.settings)
            self.engines = choose_default_engine(device, self.settings, self.cache, why_not)
            self._is_undecided = False
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
            self.engines = self.placer.engines  # all that the caller listed, if a lock does not apply
        elif place is not None:
            tuned = place(optimized)
        build = Specialization(optimized, self.context, original=function, tuned=tuned)
        build.sizes = sizes
        self._construction_seconds = 0.0
        return build

    def _quantize(self, optimized: Function, function: Function) -> Function:
        """Quantize the model to int8. Without a calibration table, ranges are measured once on the calibration batches.

        ``optimized`` is the optimized form of ``function``.
        """
        from xrt.module.precision import measure_ranges, quantize_by_table  # only for int8

        choice, served = self.settings.choice, self.sizes.served
        if choice.table is None:
            unoptimized = function if served.is_traced else served.get_declared_function()
            declared = optimize(unoptimized, fold=self.settings.fold_constants, engines=self.engines)
            table = measure_ranges(declared, self.settings, self.engines)
            self.settings = replace(self.settings, choice=replace(choice, table=table))
        return quantize_by_table(optimized, function, self.settings, self.engines.engines)

    # ------------------------------------------------------------------ compile

    def compile(self, build: Specialization) -> Program:
        """Compile a specialization, store its plan in the cache, and warn once about nodes on the implicit engine."""
        self.check_open()
        program = build.program()
        if self.dispatcher.count(build, program):
            plan, implicit = program.plan, self.engines.implicit
            if not self._has_warned and (message := format_implicit_fallback(plan, implicit, build.refused)):
                self._has_warned = True
                warn(message, FallbackWarning)
            if self.stored is not None:
                self.stored.keep(self.dispatcher.to_dict(), self.source)
        return program

    def compile_for_call(self, build: Specialization, values: Sequence[Any]) -> Program:
        """Compile during a call; warn when `MAX_SILENT_COMPILES` calls have waited for a compile."""
        # Before the compile, which sets `build.compiled`.
        is_new = build.compiled is None and not build.is_stored
        program = self.compile(build)
        sizes, fetch = build.key
        # Nothing was compiled, or not because of the sizes, or the caller accepts it.
        if not is_new or sizes is None or fetch or self.source.is_traced or self.sizes.shapes == "each":
            return program
        # Padding limits the number of compiles.
        if self.sizes.padding is not None and not self.sizes.refusals:
            return program
        self._compiles += 1
        if self._compiles == MAX_SILENT_COMPILES:
            why = [self.sizes.find_reason(values, self) or "the first sizes have a program of their own", *self.sizes.refusals]
            suggestions = ["shapes='one'"] * self.engines.can_be_dynamic + ["shapes=xrt.Buckets()"] * self.engines.is_auto
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
        """Chooses placements by measurement, for ``engine="auto"``."""
        from xrt.placement.auto import AutoPlacement, OpenModel

        settings, load, model = self.settings, None, None
        if settings.lock is not None:
            load = partial(settings.lock.load_result, clustering=settings.clustering, strict=settings.strict)
        if self.engines.is_auto and self.sizes.open_axes:
            model = OpenModel(self.sizes.served.get_declared_function, self._specialize_at)
        return AutoPlacement(
            self.engines,
            self.cache,
            cache(self._list_all_engines),
            load,
            self.lowering,
            clustering=settings.clustering,
            budget=settings.budget,
            memory_limit=settings.isolate.memory_limit,
            cuda_graph=settings.cuda_graph,
            shows_progress=settings.shows_progress,
            model=model,
        )

    def _specialize_at(self, sizes: Mapping[str, int]) -> Function:
        """Specialize the model to these sizes of its symbolic dims, and optimize it."""
        served = self.sizes.served
        shapes = [list(getattr(value.type, "shape", None) or ()) for value in served.inputs]
        for index, axis, name in self.sizes.open_axes:
            shapes[index][axis] = sizes[name]
        function = served.function(tuple(map(tuple, shapes)))
        return optimize(function, fold=self.settings.fold_constants, engines=self.engines)

    def adopt_decision(self, build: Specialization) -> None:
        """Use the placement of ``build``, which was measured at its sizes, for all sizes; drop plans of earlier placements."""
        if self.placer.model is None or not build.sizes or build.tuned is None:
            return
        self.placer.record(build.sizes, build.tuned)
        with self.planning:
            self.sizes.reset()
            for specialization in self.dispatcher:
                if specialization is not build and specialization.key[0] not in self.sizes.exact:
                    self.dispatcher.remove(specialization)


def format_implicit_fallback(plan: Plan, implicit: str | None, refusals: Iterable[Refusal]) -> str:
    """Format the warning about nodes on the implicit engine: their number, and the reason for the first.

    Return "" if each such node is expected: it was reported when its engine refused it, or the partitioner chose the reference
    engine because it updates state in place where another engine would copy it.
    """
    by_choice = {reason.node for reason in plan.reasons if reason.updating_engine}
    launches = (launch for launch in plan.launches if launch.engine == implicit)
    nodes = [node for launch in launches for node in launch.nodes if node not in by_choice]
    reported = {node for refusal in refusals for node in refusal.nodes}
    first = next((node for node in nodes if node not in reported), None)
    if first is None:
        return ""
    why = next((f": {r.text}" for r in plan.reasons if r.node == first), "")
    run, it, intro = ("nodes run", "them", ", such as") if len(nodes) != 1 else ("node runs", "it", ":")
    return (
        f"{len(nodes)} {run} on the reference engine {implicit!r}, as no engine of the list supports {it}{intro} {first!r}{why}. "
        f"m.explain() lists {it}; name {implicit!r} in the list to accept it, or pass strict=True to refuse it"
    )


NO_LIMIT = 1 << 62
"""The memory limit in bytes that disables eviction, for a module whose programs are all to be saved."""
MAX_PREPARED_CALLS = 1024
"""Maximum prepared calls, of which the least recently used is dropped. They need little memory, since they share programs."""


class Dispatcher:
    """Stores the specializations of a module by key, and prepared calls by the types and shapes of their inputs.

    If the limits on memory or threads are exceeded, the least recently used specialization is evicted, and closed in the
    background when no call uses it any more. An executable that several specializations share counts once.
    """

    call: FastCall
    """The prepared call of the last specialization; stored here because each attribute lookup adds to a call's time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.max_threads = THREADS
        """Limit on the sum of the threads that executables own between calls."""
        self._builds: OrderedDict[object, Specialization] = OrderedDict()
        self._prepared: OrderedDict[object, FastPath] = OrderedDict()
        self._lock = renew_after_fork(RLock())
        self._has_warned = self.is_closed = False
        self.last: Specialization | None = None
        self._install(NOTHING)

    def __iter__(self) -> Iterator[Specialization]:
        return iter(self.to_dict().values())

    def to_dict(self) -> dict[Any, Specialization]:
        """Copy the specializations into a dict by key."""
        with self._lock:
            return dict(self._builds)

    def get(self, key: object) -> Specialization | None:
        """Look up a specialization and mark it as most recently used; None if there is none."""
        with self._lock:
            if (build := self._builds.get(key)) is not None:
                self._builds.move_to_end(key)
            return build

    def put(self, key: object, build: Specialization) -> None:
        """Store a specialization, replacing one with the same key."""
        with self._lock:
            if key in self._builds:
                self._drop(key)
            self._builds[key] = build
            build.key, build.usage = key, None
        self._shrink(build)

    def remove(self, build: Specialization) -> None:
        """Drop a specialization if it is still stored."""
        with self._lock:
            if self._builds.get(build.key) is build:
                self._drop(build.key)

    def _drop(self, key: object) -> None:
        """Remove a specialization and its prepared calls. Its program is closed in the background when no call uses it."""
        build = self._builds.pop(key)
        for types in [types for types, path in self._prepared.items() if path.build is build]:
            del self._prepared[types]
        if build.compiled is not None:
            build.compiled.close_in_background()
        # clear() drops the last reference, so a large graph, which takes a while, is freed in the background thread, too.
        close_in_background([build].clear)

    def close(self) -> None:
        """Drop everything and prepare no further calls. A specialization that a call uses is closed when the call ends."""
        with self._lock:
            self.is_closed = True
            self.forget()
            self.last = None
            self._builds.clear()

    # ------------------------------------------------------------------ limits

    def count(self, build: Specialization, program: Program) -> bool:
        """Add a program's memory and threads to the totals, and evict others if necessary; False if it was counted before."""
        with self._lock:
            if self._builds.get(build.key) is not build:
                return True
            if build.usage is not None and build.usage[0] is program:
                return False
            build.usage = program, {id(x): (count_bytes(x), x.idle_threads) for x in program.executables}
        self._shrink(build)
        return True

    def _sum_usage(self) -> tuple[int, int]:
        """Sum the bytes and the threads that all executables hold between calls."""
        usage: dict[int, tuple[int, int]] = {}
        for build in self._builds.values():
            if build.usage is not None:
                usage |= build.usage[1]
        return sum(nbytes for nbytes, _ in usage.values()), sum(threads for _, threads in usage.values())

    @property
    def nbytes(self) -> int:
        """Bytes that the executables hold between calls; each counts as at least `LEAST_BYTES`."""
        with self._lock:
            return self._sum_usage()[0]

    def _shrink(self, newest: Specialization) -> None:
        """Evict specializations other than ``newest`` until the limits are met; the first eviction issues a SignatureWarning."""
        with self._lock:
            count, others = len(self._builds), [key for key, build in self._builds.items() if build is not newest]
            while others and self._is_full():
                self._drop(others.pop(0))
            must_warn = len(self._builds) < count and not self._has_warned
            self._has_warned |= must_warn
        if must_warn:
            warn(
                f"what this module has compiled for its signatures holds more than the cache's max_bytes={self._max_bytes}, or "
                f"{THREADS} threads, and it drops the least recently used; give inputs of fewer shapes, or engines that keep "
                f"symbolic dims, or raise the limit: cache=xrt.cache.CompileCache(max_bytes=...)",
                SignatureWarning,
            )

    def _is_full(self) -> bool:
        nbytes, threads = self._sum_usage()
        too_many_threads = threads > self.max_threads and self._max_bytes < NO_LIMIT
        return too_many_threads or max(nbytes, len(self._builds) * LEAST_BYTES) > self._max_bytes

    # ------------------------------------------------------------------ prepared calls

    def _install(self, path: FastPath) -> None:
        self.path, self.call = path, path.call

    def select(self, build: Specialization) -> None:
        """Record that the last call used this specialization."""
        with self._lock:
            # The prepared call of another specialization would run without becoming the last one again.
            if build is not self.last:
                self.last = build
                self._install(NOTHING)

    def call_prepared(self, args: tuple[Any, ...]) -> Any:
        """Run the prepared call of a signature other than the last one; `NO_MATCH` if there is none."""
        types = make_signature_key(args)
        path = self._prepared.get(types)
        if path is None or path.build is None:
            return NO_MATCH
        # Without the lock, so that threads that call with different sizes do not wait for each other. Another thread may have
        # dropped the call meanwhile; it stays valid while it is in use.
        with suppress(KeyError):
            self._prepared.move_to_end(types)
            self._builds.move_to_end(path.build.key)
        self.last = path.build
        self._install(path)
        if self.is_closed:  # by another thread in the meantime
            self._install(NOTHING)
        return path.call(args)

    def prepare(self, build: Specialization, values: Sequence[Any], wrap: Wrap | None) -> None:
        """Prepare a fast path for later calls with inputs of the types and shapes of ``values``, which are the program's inputs.

        Does nothing if the specialization was evicted meanwhile, or an input is a list or dict. If the inputs were padded,
        ``wrap`` returns the inputs before padding, and a path that accepts such inputs.
        """
        program = build.compiled
        # Lists and dicts have no type that one comparison can check.
        if program is None or any(not hasattr(value, "dtype") for value in values):
            return
        path = make_fast_path(build, program, values, partial(_retry_on_failure, weakref.ref(self), build, program))
        if wrap is not None:
            values, path = wrap(path)
        with self._lock:
            if self.is_closed or self._builds.get(build.key) is not build:
                return
            types = make_signature_key(values)
            self._prepared[types] = path
            self._prepared.move_to_end(types)
            while len(self._prepared) > MAX_PREPARED_CALLS:
                self._prepared.popitem(last=False)
            self._install(path)

    def forget(self) -> None:
        """Drop all prepared calls."""
        with self._lock:
            self._install(NOTHING)
            self._prepared.clear()


def _retry_on_failure(
    dispatcher: weakref.ref[Dispatcher], build: Specialization, program: Program, args: tuple[Any, ...], error: Exception
) -> Any:
    """Retry a failed prepared call on another plan. The reference to the dispatcher is weak, to avoid a cycle."""
    launches, owner = program.plan.launches, dispatcher()
    # The fast call of a single region raises the engine's own errors; programs of several regions raise RunFailed.
    failed = to_run_failed(launches[0], error) if len(launches) == 1 else error
    if owner is None or not isinstance(failed, RunFailed):
        raise failed
    results = build.rescue(program, failed, Call(args))
    owner.forget()
    return unpack_outputs(build.function)(results)


# ---------------------------------------------------------------------- the default engine


def open_model(
    model: Any, engine: Any, device: str, settings: ModuleOptions, cache: CompileCache
) -> tuple[EngineList, StoredPlans | None, ModelSource]:
    """Open a model on ``engine``, or on a default engine if this is None.

    Returns the engines, the plans stored in the cache if there are any, and the model. The default engine of an `xrt.Graph` is
    only provisional, because its nodes are not known before the first trace.
    """
    opened: dict[str, tuple[StoredPlans | None, ModelSource]] = {}

    def open_on(engines: EngineList) -> str | None:
        """Open the model on these engines. Explain why the first one does not support all nodes; None if it does, or if named."""
        from xrt.module.stored_plans import find_stored_plans  # it makes specializations

        stored = find_stored_plans(model, cache, settings, engines)
        _, earlier = next(iter(opened.values()), (None, None))
        source = (stored and stored.source) or earlier or make_source(model)
        opened[engines.engines[0].spec] = stored, source
        # Plans are stored only without regions on the implicit engine, so the model is supported and need not be read.
        if engine is not None or source.is_traced or (stored is not None and stored.source is not None):
            return None
        return why_not_whole(source.get_declared_function(), settings, engines)

    if engine is None:
        engines = choose_default_engine(device, settings, cache, open_on)
    else:
        open_on(engines := make_engine_list(engine, device, settings, cache))
    return engines, *opened[engines.engines[0].spec]


def why_not_whole(function: Function, settings: ModuleOptions, engines: EngineList) -> str | None:
    """Explain why the first engine of a list does not support every node of a model, or return None."""

    def find_declined(function: Function) -> str | None:
        matrix = SupportMatrix.of(function, engines.engines[:1], engines.homes)
        reasons = ((node, matrix.reason(index, 0)) for index, node in enumerate(function.nodes))
        return next((f"{node.name!r} ({node.op}): {reason}" for node, reason in reasons if reason is not None), None)

    # Fold constants only if necessary: most models are supported without, and planning folds again.
    if find_declined(function) is None:
        return None
    return find_declined(optimize(function, fold=settings.fold_constants, engines=engines))
