"""One signature of a module: its Function, its Plan and, once compiled, its Program. A call whose region fails is repeated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileCache
from xrt.engines import RunOptions
from xrt.errors import CompileRefused, DeviceError, FallbackWarning, InputError, PlanError, RunFailed, did_you_mean, warn
from xrt.forking import renew_after_fork
from xrt.graph.deferred_function import StaleFunction
from xrt.progress import show_progress
from xrt.runtime import OutputInspector, Program, Refusal, RegionToCompile, compile_plan, list_inplace_updates, list_regions
from xrt.runtime.devices import use_array_device
from xrt.runtime.inputs import check_buffers
from xrt.runtime.program import DEFAULT

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.module.explain import Memory
    from xrt.module.options import ModuleOptions
    from xrt.partition import ClusteringOptions, Pin, Plan, SupportMatrix
    from xrt.placement import TuningResult
    from xrt.placement.engine_list import EngineList

_log = logging.getLogger(__name__)


def list_value_names(fetch: Any) -> tuple[str, ...]:
    """The names that a call fetches, each once; raises InputError for a string."""
    if isinstance(fetch, str):
        raise InputError(f"fetch must be a list of value names; got the string {fetch!r}; pass fetch=[{fetch!r}]")
    return tuple(dict.fromkeys(() if fetch is None else fetch))


def add_outputs(function: Function, fetch: Sequence[str]) -> Function:
    """Add values to the outputs of a function; raises InputError for a name that it does not define."""
    if not fetch:
        return function
    names = set(function.value_names())
    for name in fetch:
        if name not in names:
            raise InputError(f"fetch asks for {name!r}, which is no value of the model.{did_you_mean(name, names)}")
    outputs = {value.name for value in function.outputs}
    return function.replace(outputs=function.outputs + tuple(function.value(name) for name in fetch if name not in outputs))


def optimize(function: Function, *, fold: bool, engines: EngineList | None = None) -> Function:
    """Run the module's pipeline on a function with inferred types.

    ``fold`` enables constant folding, which uses the engines' threads and skips quantized constants that engines read as such.
    """
    from xrt import passes
    from xrt.engines.toolkit.reference_evaluator import evaluate

    if not fold:
        return passes.optimize(function)
    if engines is None:
        return passes.optimize(function, evaluate)
    return passes.optimize(function, partial(evaluate, threads=engines.context.threads), engines.fuse_dequantization)


def drop_unused_pins(options: ClusteringOptions, function: Function, original: Function) -> ClusteringOptions:
    """Remove pins whose nodes were all folded or dropped; a pin that matched no node to begin with is still an error."""

    def matches(pin: Pin, function: Function) -> bool:
        return any(pin.match({pin.subject(node) for node in function.nodes}))

    pins = tuple(pin for pin in options.pins if matches(pin, function) or not matches(pin, original))
    return replace(options, pins=pins) if pins != options.pins else options


# ---------------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True)
class Call:
    """The values of one call."""

    inputs: Sequence[Any]
    options: RunOptions = DEFAULT
    inspection: OutputInspector | None = None
    before: tuple[tuple[Any, Any], ...] = ()
    """(input, copy of its values before the call) for inputs that the model updates; only if the call is checked."""

    @classmethod
    def of(cls, inputs: Sequence[Any], options: RunOptions | None, out: Any, function: Function, device: str) -> Call:
        """Create the call with the caller's options; raises DeviceError for a stream on the CPU, InputError for a bad buffer."""
        options = options or DEFAULT
        if options.stream is not None and device == "cpu":
            raise DeviceError(f"a stream was given, but the module runs on {device}, which has none; pass stream=None")
        if out is not None and options.out is not None:
            raise InputError("out= is given twice, as an argument and in options; give the buffers in one of the two")
        buffers = out if out is not None else options.out
        if buffers is not None:
            options = replace(options, out=check_buffers(buffers, function.outputs, function.inputs, inputs, device))
        return cls(inputs, options)

    def keep_inputs(self, function: Function) -> Call:
        """Copy the inputs that the call updates, so that it can always be repeated."""
        return replace(self, before=tuple((self.inputs[n], copy) for n, copy in self._copy_updated(function).items()))

    def on_copies(self, function: Function) -> Call:
        """The call on copies of the inputs that it updates, without the caller's buffers."""
        copies = self._copy_updated(function)
        inputs = tuple(copies.get(n, value) for n, value in enumerate(self.inputs))
        return replace(self, inputs=inputs, options=replace(self.options, out=None))

    def _copy_updated(self, function: Function) -> dict[int, Any]:
        updated, copies = {name for name, _ in function.aliases}, {}
        for number, (declared, value) in enumerate(zip(function.inputs, self.inputs, strict=True)):
            if declared.name in updated:
                with use_array_device(value):
                    copies[number] = value.copy()
        return copies

    def on(self, program: Program) -> list[Any]:
        """Run the call on a program."""
        return program.run(self.inputs, self.options, self.inspection)

    def restore(self, plan: Plan, error: RunFailed) -> None:
        """Restore the inputs to their state before the region failed; raises RunFailed if that state is unknown."""
        if self.before:
            for value, copy in self.before:
                with use_array_device(value):
                    value[...] = copy
        elif touched := list_inplace_updates(plan, error.region) if error.updated is None else error.updated:
            names = ", ".join(map(repr, touched))
            raise RunFailed(
                f"{error}; the call is not repeated, since its update in place of {names} may have been made in part. The "
                f"region is placed elsewhere for later calls: give {names} the value it had, and call again",
                error.region,
                tuple(touched),
            ) from error


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call that has failed in one region of a program."""

    call: Call
    program: Program
    error: RunFailed

    @property
    def refusal(self) -> Refusal:
        """The nodes to exclude from the engine: those of all regions that share the failed executable."""
        launches, executables = self.program.plan.launches, self.program.executables
        number = [launch.name for launch in launches].index(self.error.region)
        equal = [launch for launch, executable in zip(launches, executables, strict=True) if executable is executables[number]]
        return Refusal(launches[number], tuple(node for launch in equal for node in launch.nodes), self.error)

    def make_repeatable(self, function: Function) -> tuple[FailedCall, RunFailed | None]:
        """Restore the inputs. If impossible, return the failure with a call on copies of the inputs, and the error to raise."""
        try:
            self.call.restore(self.program.plan, self.error)
        except RunFailed as error:
            return replace(self, call=self.call.on_copies(function)), error
        return self, None


def make_exclusions(refused: Iterable[Refusal]) -> tuple[tuple[str, str, str], ...]:
    """Make the partitioner's exclusions: node, engine and reason."""
    failures = (
        (refusal, "failed at run" if isinstance(refusal.error, RunFailed) else "refused at compile") for refusal in refused
    )
    return tuple((node, refusal.launch.engine, f"{how}: {refusal.reason}") for refusal, how in failures for node in refusal.nodes)


def warn_refusals(refused: Iterable[Refusal]) -> None:
    """Issue a warning with one line per refusal."""
    for refusal in refused:
        more = f" and {len(refusal.nodes) - 1} more" if len(refusal.nodes) > 1 else ""
        warn(f"{refusal.reason}; node {refusal.nodes[0]!r}{more} placed on another engine", FallbackWarning)


# ---------------------------------------------------------------------- signatures


@dataclass(frozen=True, slots=True)
class SavedSpecialization:
    """The saved part of a specialization, from a bundle or the cache."""

    plan: Plan
    whole: Callable[[], Function]
    """Returns the planned Function; the specialization's may be folded, with the same inputs and outputs."""
    complete: Callable[[], Specialization] | None = None
    """Creates the full specialization from the model. If set, the regions of ``plan`` may lack nodes, and it is not shown."""


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
        self.engines = engines
        self.compiled: Program | None = None
        self.refused: tuple[Refusal, ...] = ()
        self.checked = False
        """Whether a call was checked and its outputs were correct."""
        self.tuned = place(function) if place else None
        if self.tuned is not None and self.tuned.lowered:
            self.engines = replace(engines, lowered=self.tuned.lowered)
        self._saved, self._original, self._settings, self._cache = saved, original, settings, cache
        self._clustering = drop_unused_pins(settings.clustering, function, original)
        self._lock = renew_after_fork(threading.Lock())
        self._plan = saved.plan if saved else self._partition(())

    @property
    def idle_pins(self) -> tuple[Pin, ...]:
        """Pins without effect: their nodes were folded or dropped."""
        return tuple(pin for pin in self._settings.clustering.pins if pin not in self._clustering.pins)

    @cached_property
    def _support(self) -> SupportMatrix:
        """The engines' support answers for the Function, cached over all plans."""
        from xrt.partition import SupportMatrix
        from xrt.placement.result import unwrap

        homes, engines = self.engines.homes, self.engines.engines
        return SupportMatrix.of(self.full_function(), unwrap(engines), [homes.of(engine.spec) for engine in engines])

    @property
    def plan(self) -> Plan:
        """The plan of the program, compiled or not."""
        complete = self._complete()
        return self._plan if complete is None else complete.plan

    def _complete(self) -> Specialization | None:
        """The full specialization, created from the model; None if this one is complete."""
        saved = self._saved
        return saved.complete() if saved and saved.complete and self._plan is saved.plan else None

    def full_function(self) -> Function:
        """The planned Function; `function` has the same inputs and outputs, and may be folded."""
        return self._saved.whole() if self._saved else self.function

    @property
    def is_stored(self) -> bool:
        """Whether the plan comes from a bundle or the cache, with its regions compiled."""
        return self._saved is not None

    def regions(self) -> list[RegionToCompile]:
        """The regions to compile, in plan order."""
        return list_regions(self.plan, self.engines.by_spec, self.engines.context)

    def memory(self) -> Memory:
        """Memory of the plan; includes that of the engines once compiled."""
        from xrt.module.explain import measure_memory

        complete = self._complete()
        return measure_memory(self.plan, self._original if complete is None else complete._original, self.compiled)

    # ------------------------------------------------------------------ compile

    def program(self) -> Program:
        """Compile, or return the compiled Program; a region that its engine refuses is placed elsewhere, with a warning."""
        if self.compiled is not None:
            return self.compiled
        with self._lock:
            if self.compiled is not None:
                return self.compiled
            count, is_stale = len(self.refused), False
            try:
                program, _ = self._find_working_plan()
            except StaleFunction as error:  # a cached plan that does not match the model
                _log.info("the plan of %s is made again: %s", self.function.name, error)
                is_stale = True
            if is_stale:  # outside the handler: errors raised in it have the StaleFunction as context, and count as stale too
                if (complete := self._complete()) is not None:  # else another module met it while this one waited
                    self.function, self._original, self._plan = complete.function, complete._original, complete._plan
                    self._saved = None
                program, _ = self._find_working_plan()
        warn_refusals(self.refused[count:])
        return program

    def _find_working_plan(self, failed: FailedCall | None = None) -> tuple[Program, list[Any]]:
        """Find the first plan that works, and use it from now on; return its Program and the results of the call that failed.

        Regions that an engine refuses at compile, or fails to run in that call, are excluded from the next plan. A call that
        fails on every plan raises its first error: the inputs may be the cause. A call whose inputs cannot be restored raises an
        error in any case; copies of its inputs then decide whether the next plan works for later calls.
        """
        plan, refused, first, lost = self._plan, self.refused, failed, None
        new: tuple[Refusal, ...] = (failed.refusal,) if failed else ()
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
            outcome, results = self._compile(plan), []
            if not isinstance(outcome, Program):
                new = outcome
                continue
            if failed is not None and first is not None:
                if lost is None:
                    failed, lost = failed.make_repeatable(self.function)
                try:
                    results = failed.call.on(outcome)
                except RunFailed as again:
                    first.error.add_note(f"placed elsewhere, it failed too: {again}")
                    first.error.updated = (*(first.error.updated or ()), *(again.updated or ()))
                    failed = FailedCall(failed.call, outcome, again)
                    new = (failed.refusal,)
                    continue
            self._adopt(outcome, refused)
            if lost is not None:
                raise lost
            return outcome, results

    def _adopt(self, program: Program, refused: tuple[Refusal, ...]) -> None:
        if refused != self.refused:
            self.remarks, self.checked = {}, False  # their regions may have changed
        self.compiled, self._plan, self.refused = program, program.plan, refused
        if (folder := self._settings.dump_subgraph_dir) is not None:
            from xrt.formats import dump  # rarely needed

            stages = {"1-model": self._original, "2-simplified": self.function, "3-plan": self.plan.function}
            dump.write(stages | {x.name: x.function for x in self.plan.launches}, folder)

    def _compile(self, plan: Plan) -> Program | tuple[Refusal, ...]:
        settings, engines = self._settings, self.engines
        with show_progress(f"compiling {self.function.name}", enabled=settings.shows_progress) as show:
            report = settings.progress if callable(settings.progress) else lambda done, n: show(f"{done} of {n} regions")
            options: dict[str, Any] = {"streams": engines.streams, "graph": settings.cuda_graph, "narrow": True}
            return compile_plan(plan, engines.by_spec, engines.context, self._cache, progress=report, **options)

    def _replan(self, refused: tuple[Refusal, ...], new: tuple[Refusal, ...]) -> Plan:
        """Plan without the refused regions. If no engine is left for them, the refusal is the cause of the error."""
        if self._settings.strict and (failed := [r.error for r in new if not isinstance(r.error, CompileRefused)]):
            raise failed[0]
        try:
            return self._partition(refused)
        except Exception as error:
            raise error from new[0].error

    def _partition(self, refused: tuple[Refusal, ...]) -> Plan:
        """Plan without refused regions: the best measured plan, else by priority."""
        from xrt.partition import partition

        exclusions, engines = make_exclusions(refused), self.engines
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
            device=engines.context.device,
            devices=engines.devices,
            refused=exclusions,
            capability=self._support,
        )
        name, count = self.function.name, len(self.function.nodes)
        regions = ", ".join(f"{launch.name} of {len(launch.nodes)}" for launch in plan.launches)
        _log.info("plan of %s: %d nodes in %d regions: %s", name, count, len(plan.launches), regions)
        return plan

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
            is_current, count = self.compiled is program, len(self.refused)
            if is_current:
                _, results = self._find_working_plan(FailedCall(call, program, error))
        if not is_current:  # another thread has placed the region elsewhere meanwhile
            call.restore(program.plan, error)
            return self.run(call)
        warn_refusals(self.refused[count:])
        return results


def _has_index_error(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, IndexError):
        error = error.__cause__ or error.__context__
    return error is not None
