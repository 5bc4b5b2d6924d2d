"""One signature of a module: its Function, its Plan and, once compiled, its Program."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.cache import CompileCache
from xrt.errors import CompileRefused, InputError, PlanError, RunFailed, did_you_mean
from xrt.forking import renew_after_fork
from xrt.graph.deferred_function import StaleFunction
from xrt.module.fallback import Call, FailedCall, make_exclusions, warn_refusals
from xrt.progress import show_progress
from xrt.runtime import Program, Refusal, RegionToCompile

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.module.memory import Memory
    from xrt.module.options import ModuleOptions
    from xrt.partition import ClusteringOptions, Pin, Plan, SupportMatrix
    from xrt.placement import TuningResult
    from xrt.placement.engine_list import EngineList


def list_value_names(fetch: Any) -> tuple[str, ...]:
    """The names that a call fetches, each once; raises InputError for a string."""
    if fetch is None:
        return ()
    if isinstance(fetch, str):
        raise InputError(f"fetch must be a list of value names; got the string {fetch!r}; pass fetch=[{fetch!r}]")
    return tuple(dict.fromkeys(fetch))


def add_outputs(function: Function, fetch: Sequence[str]) -> Function:
    """Add values to the outputs of a function; raises InputError for a name that it does not define."""
    known = set(function.value_names())
    for name in fetch:
        if name not in known:
            raise InputError(f"fetch asks for {name!r}, which is no value of the model.{did_you_mean(name, known)}")
    own = {value.name for value in function.outputs}
    more = tuple(function.value(name) for name in fetch if name not in own)
    return function.replace(outputs=function.outputs + more) if more else function


def optimize(function: Function, *, fold: bool, engines: EngineList | None = None) -> Function:
    """Run the module's pipeline on a function with inferred types.

    ``fold`` enables constant folding, which uses the engines' threads and skips quantized constants that engines read as such.
    """
    from xrt import passes
    from xrt.placement.reference import evaluate

    if not fold:
        return passes.optimize(function)
    if engines is None:
        return passes.optimize(function, evaluate)
    return passes.optimize(function, partial(evaluate, threads=engines.context.threads), engines.fuse_dequantization)


_log = logging.getLogger(__name__)
WorkingPlan: TypeAlias = tuple[Program, tuple[Refusal, ...], list[Any]]


def drop_unused_pins(options: ClusteringOptions, function: Function, original: Function) -> ClusteringOptions:
    """Remove pins whose nodes were all folded or dropped; a pin that matched no node to begin with is still an error."""

    def matches(pin: Pin, function: Function) -> bool:
        return any(pin.match({pin.subject(node) for node in function.nodes}))

    idle = [pin for pin in options.pins if not matches(pin, function) and matches(pin, original)]
    return replace(options, pins=tuple(pin for pin in options.pins if pin not in idle)) if idle else options


@dataclass(frozen=True, slots=True)
class SavedSpecialization:
    """The saved part of a specialization, from a bundle or the cache."""

    plan: Plan
    whole: Callable[[], Function]
    """Returns the planned Function; the specialization's may be folded, with the same inputs and outputs."""
    complete: Callable[[], Specialization] | None = None
    """Creates the full specialization that this one stands in for, from the model. If set, the plan's regions may lack nodes,
    and the plan is not shown."""


class Specialization:
    """A Function with its Plan; `program` compiles on first use, once even if several threads call it."""

    def __init__(
        self,
        function: Function,
        engines: EngineList,
        settings: ModuleOptions,
        cache: CompileCache,
        *,
        original: Function,
        saved: SavedSpecialization | None = None,
        place: Callable[[Function], TuningResult] | None = None,
    ) -> None:

        self.function = function
        self.key: Any = None
        """The key in its module's cache: sizes and fetched values."""
        self.sizes: Mapping[str, int] = {}
        """Sizes of the model's symbolic dims, for placement by measurement."""
        self.remarks: Mapping[str, str] = {}
        """Remarks about compiled forms from a bundle, by region."""
        self._saved = saved
        self._original = original
        self.engines = engines
        self._settings = settings
        self._clustering = drop_unused_pins(settings.clustering, function, original)
        self.idle_pins = tuple(pin for pin in settings.clustering.pins if pin not in self._clustering.pins)
        self._cache = cache
        self._lock = renew_after_fork(threading.Lock())
        self.compiled: Program | None = None
        """The Program of the plan, once it is compiled."""
        self.refused: tuple[Refusal, ...] = ()
        self.checked = False
        """Whether a call was checked and its outputs were correct."""
        self.tuned = place(function) if place else None
        """The result of placement by measurement, if there was one."""
        if self.tuned is not None and self.tuned.lowered:
            self.engines = replace(engines, lowered=self.tuned.lowered)
        self._plan = saved.plan if saved else self._partitioned(())

    @cached_property
    def _support(self) -> SupportMatrix:
        """The engines' support answers for the Function, cached over all plans."""
        from xrt.partition import SupportMatrix
        from xrt.placement.result import unwrap

        homes = [self.engines.homes.of(engine.spec) for engine in self.engines.engines]
        return SupportMatrix.of(self.full_function(), unwrap(self.engines.engines), homes)

    @property
    def plan(self) -> Plan:
        """The plan of the program, compiled or not."""
        complete = self._completed()
        return self._plan if complete is None else complete.plan

    def _completed(self) -> Specialization | None:
        """The specialization made from the model if this one stands in for it, else None."""
        saved = self._saved
        return saved.complete() if saved and saved.complete and self._plan is saved.plan else None

    def program(self) -> Program:
        """Compile, or return the compiled Program; a region that its engine refuses is placed elsewhere, with a warning."""
        if self.compiled is not None:
            return self.compiled
        with self._lock:
            if self.compiled is not None:
                return self.compiled
            count = len(self.refused)
            program, refused, _ = self._compile_first()
            self._take(program, refused)
        warn_refusals(self.refused[count:])
        return program

    def _compile_first(self) -> WorkingPlan:
        """Find a working plan; a cached plan that does not match the model is replaced by a new one."""
        try:
            return self._find_working_plan(self._plan, self.refused)
        except StaleFunction as error:
            _log.info("the plan of %s is made again: %s", self.function.name, error)
            complete = self._completed()  # raises ModelError if the model's file has changed
            if complete is not None:
                self.function, self._original, self._plan = complete.function, complete._original, complete._plan
                self._saved = None
        return self._find_working_plan(self._plan, self.refused)  # else another module met it while this one waited

    def _take(self, program: Program, refused: tuple[Refusal, ...]) -> None:
        if refused != self.refused:
            self.remarks = {}  # their regions may have changed
            self.checked = False
        self.compiled, self._plan, self.refused = program, program.plan, refused
        self._dump()

    def _find_working_plan(self, plan: Plan, refused: tuple[Refusal, ...], failed: FailedCall | None = None) -> WorkingPlan:
        """Find the first plan that works. Returns its Program, all refusals, and the results of the call that failed.

        Regions that an engine refuses at compile, or fails to run in that call, are excluded from the next plan. A call that
        fails on every plan raises its first error: the inputs may be the cause. A call whose inputs cannot be restored raises an
        error in any case; copies of its inputs then decide whether the next plan works for later calls.
        """
        new: tuple[Refusal, ...] = (failed.refusal,) if failed else ()
        first, lost = failed, None
        while True:
            if new:
                refused += new
                try:
                    plan = self._replan(refused, new)
                except PlanError:
                    if first is None:
                        raise
                    if lost is not None:
                        first.error.updated = lost.updated
                    first.error.has_bad_index = failed is not None and _has_index_error(failed.error)
                    raise first.error  # noqa: B904  # the missing engine is not its cause
            made = self._attempt(plan)
            if not isinstance(made, Program):
                new = made
                continue
            if failed is None or first is None:
                return made, refused, []
            if lost is None:
                failed, lost = failed.make_repeatable(self.function)
            try:
                results = failed.call.on(made)
            except RunFailed as again:
                first.error.add_note(f"placed elsewhere, it failed too: {again}")
                first.error.updated = (*(first.error.updated or ()), *(again.updated or ()))
                failed = FailedCall(failed.call, made, again)
                new = (failed.refusal,)
                continue
            if lost is not None:
                self._take(made, refused)
                raise lost
            return made, refused, results

    def _attempt(self, plan: Plan) -> Program | tuple[Refusal, ...]:
        from xrt.runtime import compile_plan

        settings, engines = self._settings, self.engines
        with show_progress(f"compiling {self.function.name}", enabled=settings.shows_progress) as tell:
            return compile_plan(
                plan,
                engines.by_spec,
                engines.context,
                self._cache,
                progress=settings.progress
                if callable(settings.progress)
                else lambda done, count: tell(f"{done} of {count} regions"),
                streams=engines.streams,
                graph=settings.cuda_graph,
                narrow=True,
            )

    def _replan(self, refused: tuple[Refusal, ...], new: tuple[Refusal, ...]) -> Plan:
        """Plan without the refused regions. If no engine is left for them, the refusal is the cause of the error."""
        if self._settings.strict and (failed := [r.error for r in new if not isinstance(r.error, CompileRefused)]):
            raise failed[0]
        try:
            return self._partitioned(refused)
        except Exception as error:
            raise error from new[0].error

    # ------------------------------------------------------------------ faults of a run

    def run(self, call: Call, program: Program | None = None) -> list[Any]:
        """Run a call; a region that fails is placed elsewhere, with a warning, and the call is repeated.

        Raises RunFailed if no engine is left for the region, its inputs cannot be restored, or the module is strict.
        """
        program = program or self.program()
        try:
            return call.on(program)
        except RunFailed as error:
            return self.rescue(program, error, call)

    def rescue(self, program: Program, error: RunFailed, call: Call) -> list[Any]:
        """Repeat a call after a region of the program failed, on a plan without the region."""
        if self._settings.strict or not error.region:
            raise error
        with self._lock:
            mine, count = self.compiled is program, len(self.refused)
            if mine:
                made, refused, results = self._find_working_plan(self._plan, self.refused, FailedCall(call, program, error))
                self._take(made, refused)
        if not mine:  # another thread has placed the region elsewhere meanwhile
            call.restore(program.plan, error)
            return self.run(call)
        warn_refusals(self.refused[count:])
        return results

    def _partitioned(self, refused: tuple[Refusal, ...]) -> Plan:
        """Plan without refused regions: the best measured plan, else by priority."""
        if self.tuned is not None:
            from xrt.placement.auto import find_next_best_plan

            plan = find_next_best_plan(self.tuned, make_exclusions(refused)) if refused else self.tuned.plan
            if plan is not None:
                return plan
        from xrt.partition import partition

        plan = partition(
            self.full_function(),
            self.engines.engines,
            self._clustering,
            strict=self._settings.strict,
            implicit=self.engines.implicit,
            device=self.engines.context.device,
            devices=self.engines.devices,
            refused=make_exclusions(refused),
            capability=self._support,
        )
        sizes = ", ".join(f"{launch.name} of {len(launch.nodes)}" for launch in plan.launches)
        _log.info(
            "plan of %s: %d nodes in %d regions: %s", self.function.name, len(self.function.nodes), len(plan.launches), sizes
        )
        return plan

    def _dump(self) -> None:
        if self._settings.dump_subgraph_dir is not None:
            from xrt.formats import dump  # rarely needed

            stages = {"1-model": self._original, "2-simplified": self.function, "3-plan": self.plan.function}
            dump.write(stages | {x.name: x.function for x in self.plan.launches}, self._settings.dump_subgraph_dir)

    def full_function(self) -> Function:
        """The planned Function; `function` has the same inputs and outputs, and may be folded."""
        return self._saved.whole() if self._saved else self.function

    @property
    def is_stored(self) -> bool:
        """Whether the plan comes from a bundle or the cache, with its regions compiled."""
        return self._saved is not None

    def regions(self) -> list[RegionToCompile]:
        """The regions to compile, in plan order."""
        from xrt.runtime import list_regions

        return list_regions(self.plan, self.engines.by_spec, self.engines.context)

    def memory(self) -> Memory:
        """Memory of the plan; includes that of the engines once compiled."""
        from xrt.module.memory import memory

        complete = self._completed()
        return memory(self.plan, self._original if complete is None else complete._original, self.compiled)


def _has_index_error(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, IndexError):
        error = error.__cause__ or error.__context__
    return error is not None
