"""XRTModule: the class."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast, overload

from xrt.cache import CompileCache, Signature, open_cache
from xrt.errors import FallbackWarning, InputError, OptionError, SignatureWarning, warn
from xrt.forking import renew_after_fork
from xrt.module.default_engine import open_model
from xrt.module.dispatch import NO_MATCH, NOTHING, make_fast_path, make_signature_key, retry_on_failure, unpack_outputs
from xrt.module.fallback import Call, OutputChecks, format_implicit_fallback, shorten_tracebacks
from xrt.module.model_source import check_declared, find_front_end
from xrt.module.options import add_keywords, make_engine_list, parse_options
from xrt.module.precision_options import apply_constraints, make_module_lowering, override_budget
from xrt.module.saving import (
    Given,
    copy_module,
    describe_construction,
    make_build_example,
    read_example,
    run_self_test,
    save_module,
)
from xrt.module.specializable import Specializable, SpecializationCache
from xrt.module.specialization import Specialization, list_value_names
from xrt.module.state import StatefulModule
from xrt.module.tuning import OBJECTIVES, tune_throughput
from xrt.runtime import Program, inputs

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler, RunOptions
    from xrt.formats.arrays import Example
    from xrt.formats.bundle import BundleFile
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.serving_record import ServingRecord
    from xrt.graph import Value
    from xrt.module.dispatch import IOBinding
    from xrt.module.explain import Explanation
    from xrt.module.keywords import ModuleKeywords
    from xrt.module.memory import Memory
    from xrt.module.saving import SelfTestReport
    from xrt.module.tuning import Objective
    from xrt.module.verification import ModuleCalibration
    from xrt.partition import Plan
    from xrt.placement import ProgressCallback, TuningResult
    from xrt.placement.throughput.result import ServingConfiguration, ThroughputResult
    from xrt.precision import ErrorBudget
    from xrt.runtime import Profile
    from xrt.verify import FailingSubgraph, Verification
    from xrt.verify.regions import Progress

__all__ = ["XRTModule"]

MOST_WAITS = 4
"""Calls that wait for a compile, the first one included, before a warning names what avoids it."""


@add_keywords
@shorten_tracebacks
class XRTModule(Specializable, StatefulModule):
    """A model on a list of engines, compiled on the first call of each signature and called like a function.

    ``model`` is an `xrt.Graph`, a Function, ONNX as a path, bytes or ModelProto, or a `torch.nn.Module`. ``engine`` is a name, a
    spec (``"tvm{opt_level=2}"``), an instance, a list of these in order of preference, or ``"auto"``: placed by measurement, or
    by the ``lock`` that `xrt lock` has written. Without ``engine`` it is the first of ort, openvino, torch, xla and toy that is
    installed and supports the whole model. Unless ``strict``, the reference engine is added at the end of the list. The nodes
    that it gets in this way cause one FallbackWarning and are listed by `explain`.

    Further keywords are the fields of `ClusteringOptions` (``pins``, ``minimum_nodes``, ...), of `ExecutionOptions`
    (``precision``, ``threads``) and of `ModuleOptions`; docs/reference/options.md lists them. ``cache`` is a CompileCache, or its
    directory.

    A single output is returned as an array, several as a tuple. A returned array shares memory with nothing else, unless an alias
    of the model names an input for it. Threads may call at once.

    Raises ModelError for a model that breaks a rule, UnknownEngine or EngineUnavailable, OptionError for an unknown keyword,
    DeviceError; a call raises InputError, PlanError, or an EngineError that names the region.
    """

    _observers: tuple[ModuleCalibration, ...] = ()
    """The open calibrations."""
    _bundle: BundleFile | None = None
    """The bundle that the module was loaded from."""
    _serving: ServingRecord | None = None
    _load_serving: Callable[[], ServingRecord | None] | None = None
    """Reads the serving configuration of that bundle."""

    def __init__(
        self,
        model: Any,
        engine: str | GraphCompiler | Sequence[str | GraphCompiler] | None = None,
        device: str = "cpu",
        *,
        cache: CompileCache | str | os.PathLike[str] | None = None,
        **options: Unpack[ModuleKeywords],
    ) -> None:
        if type(self) is XRTModule and (kind := find_front_end(model)) is not None:
            self.__class__ = kind
            self.__init__(model, engine, device, cache=cache, **options)  # type: ignore[misc]  # of the other class, once
            return
        engine, self._settings = apply_constraints(engine, parse_options(options))
        self._cache = open_cache(cache)
        self._engines, self._stored, self._source = open_model(model, engine, device, self._settings, self._cache)
        self._is_undecided = engine is None and self._source.is_traced
        self._given = Given.of(model, engine, device, cache, options)
        self._buckets, self._bucket_remarks = self._make_buckets()
        self._lowering = make_module_lowering(self._settings, self._served)
        self._specializations = SpecializationCache(self._cache.max_bytes)
        self._fast_path = NOTHING  # the prepared call of `_last`, if it has one
        self._last: Specialization | None = None
        self._lock = renew_after_fork(threading.RLock())
        self._warned = self._closed = False
        self._waits = 0  # calls that waited for a program of their sizes alone
        self._checks = OutputChecks(self._settings.check, self.threads)
        self._everything = partial(make_engine_list, engine, device, replace(self._settings, lock=None), self._cache)
        self._planning = renew_after_fork(threading.RLock())  # one plan at a time, while calls of other signatures go on

    # ------------------------------------------------------------------ what it is

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs with their types; an `xrt.Graph` has names alone before its first call."""
        return self._last.function.inputs if self._traced and self._last else self._source.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs with their types; empty for an `xrt.Graph` before its first call."""
        return self._last.function.outputs if self._traced and self._last else self._source.outputs

    @property
    def _traced(self) -> bool:
        return self._source.is_traced

    @property
    def engines(self) -> tuple[str, ...]:
        """The specs of the engines, first choice first, the implicit reference engine included."""
        return self._engines.specs

    @property
    def threads(self) -> int:
        """The thread budget: what all engines together may use."""
        return self._engines.context.threads

    @property
    def plan(self) -> Plan:
        """The Plan of the last signature; before the first call that of the model as it is declared."""
        return self._current().plan

    def plan_for(self, *args: Any, **named: Any) -> Plan:
        """Return the Plan for such inputs, without compiling."""
        return self._specialize(self._check_inputs(args, named)).plan

    def explain(self) -> Explanation:
        """Return the last signature's regions, their boundaries, and why each node is where it is. Prints as text."""
        from xrt.module.explain import explain

        build = self._current()
        left_out = self._engines.left_out if self._engines.is_auto else ()
        unchecked = self._checks.remarks({x.name: x.function for x in build.plan.launches})
        return explain(
            build.plan,
            build.engines,
            idle_pins=build.idle_pins,
            remarks=[build.remarks, unchecked],
            placement=[
                *str(build.tuned or "").splitlines(),
                *([] if self._engines.is_auto else self._engines.left_out),
                *(line for line in left_out if not line.startswith("engine ")),
                *self._bucket_remarks,
                *([f"one program for each set of sizes: {self._why_sizes}"] if self._why_sizes else []),
            ],
            account=self._automatic.make_cost_report(build.plan, build.tuned, build.function),
            checks=str(self._checks),
            graph=build.graph_remark,
            updates=build.updates,
            precision=build.tuned.precision if build.tuned else None,
            left_out=left_out,
        )

    def profile(self) -> Profile:
        """Return the last signature's launch times, over the calls made with ``options=RunOptions(profile=True)``."""
        return replace(self._current().program().profile(), threads=self.threads)

    def signatures(self) -> dict[str, Signature]:
        """Return, by region of the last signature's plan, what the region is looked up by in the cache."""
        return {region.launch.name: region.signature for region in self._current().regions()}

    def memory(self) -> Memory:
        """Return the memory of the last signature: weights, values between regions, each engine's own. Prints as a table.

        The engines' own memory is known only after the signature is compiled. This call does not compile.
        """
        return self._current().memory()

    def _current(self) -> Specialization:
        return self._last or self._specialize(None)

    # ------------------------------------------------------------------ compile and call

    def compile(self, *examples: Any, **named: Any) -> Plan:
        """Compile for such inputs without running; without examples, for the model as it is declared.

        Raises InputError where the declared types do not tell enough: an `xrt.Graph`, or symbolic extents with an
        engine that needs them fixed.
        """
        if not examples and not named:
            check_declared(self._source, self._engines, partial(self._find_reason_for_sizes, None))
        build = self._specialize(self._check_inputs(examples, named) if examples or named else None)
        self._program(build)
        return build.plan

    def __call__(
        self,
        *args: Any,
        fetch: Sequence[str] | None = None,
        out: Any = None,
        options: RunOptions | None = None,
        **named: Any,
    ) -> Any:
        """Run the model on arrays given by position or by input name.

        With ``fetch`` a dict of those values, inner ones too, comes back instead. ``out`` is one caller-owned buffer
        (or None) per output, written to and returned; a single output takes it without a list.
        """
        if fetch is None and out is None and options is None:
            if not named:
                result = self._fast_path.positional(args)
            elif not args:
                result = self._fast_path.named(named)
            else:
                result = NO_MATCH
            if result is not NO_MATCH:
                return result
        return self._call(args, named, fetch, out, options)

    def bind(self, *args: Any, out: Any = None, **named: Any) -> IOBinding:
        """Fix the arrays of a serving loop: ``b = m.bind(x)``, and ``b()`` runs on the values ``x`` has then.

        Inputs are read in place, so each must be C-contiguous. An input that is not an array is kept as it is. ``out`` has one
        buffer per output (None for a fresh one), on the module's device. Every call writes to the same buffers and returns them.
        Compiles at once. Raises InputError as a call does, and for arrays that cannot be fixed.
        """
        from xrt.module.dispatch import bind_io, check_bindable

        values = self._check_inputs(args, named, pads=False)
        given = inputs.bind(self._source.inputs, args, named)
        check_bindable(self._source.inputs, given, values[: len(given)])
        build = self._specialize(values)
        bound = bind_io(self._program(build), build.function, values, out)
        bound.inputs = bound.inputs[: len(given)]  # without the sizes that a padded form takes
        return bound

    def _call(self, args: tuple[Any, ...], named: Any, fetch: Any, out: Any, options: RunOptions | None) -> Any:
        """Run what `_quick` does not serve: other signatures, fetches, buffers, options, and calls that are observed."""
        if observers := self._observers:
            from xrt.module.verification import call_observed

            is_plain = fetch is None and out is None and options is None
            result = call_observed(self, observers, self._check_inputs(args, named), is_plain=is_plain)
            if is_plain:
                return result
        return self._run_call(args, named, fetch, out, options)

    def _observe(self, calibration: ModuleCalibration, *, begins: bool) -> None:
        """Let a calibration see the calls from now on, or once less: it may be open in several threads."""
        with self._lock:
            listed = list(self._observers)
            listed.append(calibration) if begins else listed.remove(calibration)
            self._observers = tuple(listed)
            self._forget_calls()

    def _run_call(self, args: tuple[Any, ...], named: Any, fetch: Any, out: Any, options: RunOptions | None) -> Any:
        plain = fetch is None and out is None and options is None
        if plain and not named and (result := self._dispatch_known(args)) is not NO_MATCH:
            return result
        quick, device = self._fast_path, self._engines.context.device
        if fetch is None and not named and quick.build is not None and quick.fits(args):
            build, program = quick.build, quick.program
            call = Call.of(args, options, out, build.function, device)
        else:
            values = self._check_inputs(args, named, pads=fetch is None and out is None and getattr(options, "out", None) is None)
            build, program = self._specialize(values, list_value_names(fetch)), None
            call = self._checks.instrument(Call.of(values, options, out, build.function, device), build)
        results = self._run_with_fallback(build, call, program)
        if self._buckets is not None:
            results = list(self._buckets.cut(results, call.inputs))
        if plain and not self._checks.sees_every_call:
            self._cache_fast_path(call.inputs, build)
        if fetch is None:
            return unpack_outputs(build.function)(results)
        by_name = dict(zip((v.name for v in build.function.outputs), results, strict=True))
        return {name: by_name[name] for name in list_value_names(fetch)}

    def _run_with_fallback(self, build: Specialization, call: Call, program: Program | None) -> list[Any]:
        """Make the call, again where a region fails; what leads to a plan that is given up is forgotten."""
        if program is None:
            is_new, program = not (build.is_compiled or build.is_stored), self._program(build)
            if is_new:
                self._count_wait(build, call.inputs)
        results = build.run(call, program)
        if self._checks.record(call, build):
            self._automatic.mark_checked(build.function)
        if not build.is_served_by(program):
            self._forget_calls()
        return results

    def _dispatch_known(self, args: tuple[Any, ...]) -> Any:
        """Make the prepared call of another signature than the last one; MISS where there is none."""
        known = self._specializations.find_prepared(make_signature_key(args))
        if known is None:
            return NO_MATCH
        self._last, self._fast_path = known.build, known
        if self._closed:  # meanwhile, by another thread
            self._fast_path = NOTHING
        return known.positional(args)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("the module is closed; make a new XRTModule")

    def _check_inputs(self, args: Sequence[Any], named: Any, *, pads: bool = True) -> list[Any]:
        """Bind, normalise, check and pad the values of a call."""
        self._check_open()
        declared = self._source.inputs
        bound = inputs.bind(declared, args, named)
        device = self._engines.context.device
        values = [inputs.normalize(value, given, device) for value, given in zip(declared, bound, strict=True)]
        inputs.check(declared, values)
        return values if self._buckets is None else self._buckets.pad(values, exact=not pads)

    def _cache_fast_path(self, values: Sequence[Any], build: Specialization) -> None:
        """Keep a prepared call for further values of these types and shapes; lists and dicts go the long way each time."""
        if any(not hasattr(value, "dtype") for value in values):
            return
        program = build.program()
        call = make_fast_path(build, program, values, partial(retry_on_failure, weakref.ref(self), build, program))
        if self._buckets is not None:
            values, call = self._buckets.make_path(call, values)
        with self._lock:
            is_plain = not self._closed and not self._observers
            if is_plain and self._specializations.prepare(make_signature_key(values), call):
                self._fast_path = call

    # ------------------------------------------------------------------ from values to a Program

    def _forget_calls(self) -> None:
        self._fast_path = NOTHING
        self._specializations.forget_calls()

    def _program(self, build: Specialization) -> Program:
        self._check_open()
        program = build.program()
        if self._specializations.count(build, program):
            self._warn_of_fallback(build, program.plan)
            if self._stored is not None:
                self._stored.keep(self._specializations.to_dict(), self._source)
        return program

    def _count_wait(self, build: Specialization, values: Sequence[Any]) -> None:
        """Warn once where calls keep waiting for programs of further sizes."""
        key, settings = build.key, self._settings
        if key[0] is None or key[1] or self._traced or self._buckets is not None or settings.dynamic == "never":
            return
        self._waits += 1
        if self._waits == MOST_WAITS:
            cures = ["dynamic='always'"] * self._engines.can_be_dynamic + ["buckets='auto'"]
            why = self._find_reason_for_sizes(values) or "the first sizes have a program of their own"
            warn(
                f"{MOST_WAITS} calls of this module have waited for a compile, each for other sizes: {why}. Pass "
                f"{' or '.join(cures)}, or an engine that has one program for all sizes, such as 'ort'",
                SignatureWarning,
            )

    def _warn_of_fallback(self, build: Specialization, plan: Plan) -> None:
        if not self._warned and (message := format_implicit_fallback(plan, self._engines.implicit, build.refused)):
            self._warned = True
            warn(message, FallbackWarning)

    # ------------------------------------------------------------------ tuning

    @property
    def tuned(self) -> TuningResult | None:
        """How the last signature was placed by measurement: who ran against whom; None where it was not. Prints as text."""
        return self._current().tuned

    @property
    def serving(self) -> ServingConfiguration | None:
        """How to serve the model, as it was tuned for throughput; None where it was not.

        By `tune` of this module, else by the bundle or the lock that it is of, else by an earlier process whose result the
        cache keeps for this model, engines and thread budget.
        """
        from xrt.placement.throughput.result import ServingConfiguration

        record = self._find_serving_record()
        return None if record is None else ServingConfiguration.from_record(record)

    def _find_serving_record(self) -> ServingRecord | None:
        if self._serving is None and self._settings.lock is not None:
            self._serving = self._settings.lock.lock.serving
        if self._serving is None and self._load_serving is not None:
            self._serving = self._load_serving()
        elif self._serving is None:
            from xrt.module.bundle_index import load_serving

            self._serving = load_serving(self)
        return self._serving

    def _spell_serving(self) -> str:
        """Return the text that a bundle holds; empty where the module was not tuned for throughput."""
        from xrt.formats.serving_record import spell_serving

        return spell_serving(self._find_serving_record())

    @overload
    def tune(
        self,
        *args: Any,
        objective: Literal["latency"] = ...,
        budget: float | None = ...,
        progress: ProgressCallback | bool | None = ...,
        max_error: float | ErrorBudget | None = ...,
        calibrate: Iterable[Any] | None = ...,
        validate: Iterable[Any] | None = ...,
        **named: Any,
    ) -> TuningResult: ...

    @overload
    def tune(
        self,
        *args: Any,
        objective: Literal["throughput"],
        p99: float | None = ...,
        batches: Sequence[int] = ...,
        instances: Sequence[int] | int | None = ...,
        batch_dim: str | None = ...,
        seed: int = ...,
        budget: float | None = ...,
        progress: ProgressCallback | bool | None = ...,
        max_error: float | ErrorBudget | None = ...,
        calibrate: Iterable[Any] | None = ...,
        validate: Iterable[Any] | None = ...,
        **named: Any,
    ) -> ThroughputResult: ...

    def tune(
        self,
        *args: Any,
        objective: Objective = "latency",
        budget: float | None = None,
        progress: ProgressCallback | bool | None = None,
        p99: float | None = None,
        batches: Sequence[int] | None = None,
        instances: Sequence[int] | int | None = None,
        batch_dim: str | None = None,
        seed: int | None = None,
        max_error: float | ErrorBudget | None = None,
        calibrate: Iterable[Any] | None = None,
        validate: Iterable[Any] | None = None,
        **named: Any,
    ) -> TuningResult | ThroughputResult:
        """Search again for the best placement for these inputs, or for random ones, within ``budget`` seconds.

        ``objective="latency"`` looks for the plan whose call is fastest. The module uses it from now on, the cache keeps it, and
        later modules use it whatever their budget. ``progress`` is called with the state of the search; True shows it, False does
        not. ``max_error``, ``calibrate`` and ``validate`` are as for `XRTModule`, and replace the module's.

        ``objective="throughput"`` looks for the configuration that serves most requests per second, each a row of the inputs,
        while 99 of 100 have their result within ``p99`` seconds: how many requests are joined in a call (of ``batches``), how
        many calls run at a time (of ``instances``, which divide the thread budget), and with ``engine="auto"`` the plan for each
        batch size. `serving` is what was chosen; `save` and a lock keep it. ``batch_dim`` names the symbolic dim that counts
        requests, where it is not the first extent of all inputs and outputs. ``seed`` is that of random inputs. Within
        ``max_error`` the plan for each batch size is the fastest whose error at that size is within the budget.
        """
        given: dict[str, Any] = {"p99": p99, "batches": batches, "instances": instances, "batch_dim": batch_dim, "seed": seed}
        given = {name: value for name, value in given.items() if value is not None}
        if objective not in OBJECTIVES:
            raise OptionError(f"objective must be 'latency' or 'throughput'; got {objective!r}")
        lower = self._lowering
        if max_error is not None or calibrate is not None or validate is not None:
            lower = make_module_lowering(override_budget(self._settings, max_error, calibrate, validate), self._served)
        if objective == "throughput":
            progress = self._settings.shows_progress if progress is None else progress
            return tune_throughput(self, args, named, budget=budget, progress=progress, lower=lower, **given)
        if given:
            raise OptionError(f"{next(iter(given))}= is of objective='throughput'; pass that too, or leave it out")
        values = self._check_inputs(args, named) if args or named else None
        placer = self._automatic.make_placer(values, budget=budget, progress=progress, retune=True, lower=lower)
        build = self._specialize(values, place=placer)
        self._adopt_decision(build)
        return cast("TuningResult", build.tuned)  # it has just been placed

    # ------------------------------------------------------------------ verification

    def verify(self, *args: Any, inner: bool = True, progress: Progress | None = None, **named: Any) -> Verification:
        """Run the model on such inputs, and compare every region with the reference engine, with ``inner`` every value inside.

        Prints as text; true if nothing differs. ``progress`` is called with the number of regions done and their total. Raises
        InputError for inputs that do not fit, EngineError if the model or a region of it does not compile or run.
        """
        from xrt.module.verification import copy_value, verify_specialization  # slow to import

        values = self._check_inputs(args, named)
        if self._specialize(values).function.aliases:  # the model updates its inputs
            args, named = tuple(map(copy_value, args)), {name: copy_value(value) for name, value in named.items()}
        self(*args, **named)
        return verify_specialization(self._specialize(values), values, inner=inner, progress=progress)

    def bisect(self, *args: Any, progress: Progress | None = None, **named: Any) -> FailingSubgraph | None:
        """Return the smallest part of a region that differs from the reference engine on such inputs; None if none does.

        ``progress`` is called with the number of parts tried and the node count of the smallest so far. `save_case` of
        `xrt.formats.onnx` writes the result to a file.
        """
        from xrt.module.verification import bisect_specialization

        values = self._check_inputs(args, named)
        return bisect_specialization(self._specialize(values), values, progress=progress)

    def calibrate(self, batches: Iterable[Any], method: str = "minmax", **parameters: Any) -> CalibrationTable:
        """Return the ranges of the values that quantization may need, over batches of inputs.

        A batch is an array, a list of arrays in the order of the inputs, or a dict of arrays by name. ``method`` is ``"minmax"``,
        ``"moving_average"`` (``momentum=0.9``), ``"entropy"``, ``"percentile"`` (``percentile=99.99``) or ``"mse"``. The table
        finds values by what computes them, whatever they are called.

        Raises CalibrationError without batches, and for NaN or infinities; OptionError for an unknown method or parameter.
        """
        from xrt.module.verification import calibrate_module

        return calibrate_module(self, batches, method, parameters)

    def calibration(self, method: str = "minmax", **parameters: Any) -> ModuleCalibration:
        """Return a context, or decorator, in which calls of the module are observed: ``with m.calibration() as c: m(x)``.

        ``c.table`` has the ranges, by the methods of `calibrate`. Calls of all threads count while it is open.
        """
        from xrt.module.verification import ModuleCalibration

        return ModuleCalibration(self, method, parameters)

    # ------------------------------------------------------------------ bundles

    def save(
        self,
        path: str | os.PathLike[str],
        *examples: Any,
        example: Mapping[str, Any] | Sequence[Any] | bool = True,
        add: bool = False,
        **named: Any,
    ) -> None:
        """Write a bundle for `xrt.load`: model, weights, and every program compiled so far, in the engines' compiled forms.

        Compiles for the examples first, if there are any, or as `compile` does where nothing has been compiled yet.

        The bundle has one example with its outputs, which `run_self_test` computes again: ``example``, the inputs by name or in
        order, else the examples of the call, else those of the bundle that the module came from, else random inputs. Up to 16 MiB
        are kept. A model whose outputs change from call to call has no random example; ``example=False`` saves none.

        With ``add``, the bundle at the path gets one more variant, for this processor and thread budget, with plans and compiled
        forms of its own; one for the same is replaced. Weights are kept once. `xrt.load` chooses the variant that fits.

        Raises BundleError where the file cannot be written, or is of another model; OptionError for an ``example`` that
        cannot be kept, and what `compile` raises.
        """
        from xrt.formats.bundle import BundleFile

        self._check_open()
        if examples or named or not any(build.is_compiled for build in self._specializations):
            self.compile(*examples, **named)
        if not isinstance(example, bool):
            examples, named = ((), dict(example)) if isinstance(example, Mapping) else (tuple(example), {})
            self.compile(*examples, **named)
        kept = self._make_example(examples, named, is_asked=not isinstance(example, bool)) if example is not False else None
        base = BundleFile(path) if add else None
        if base is not None and isinstance(example, bool):
            kept = read_example(base) or kept
        builds, serving, has_buckets = self._specializations.to_dict(), self._spell_serving(), self._buckets is not None
        save_module(path, self._source, self._engines, self._settings, builds, kept, serving, base, has_buckets=has_buckets)

    def _make_example(self, examples: tuple[Any, ...], named: Mapping[str, Any], *, is_asked: bool) -> Example | None:
        """Return what the bundle has as its example; None where there is none to be had, and none was asked for."""
        if not (examples or named) and self._bundle is not None:
            return read_example(self._bundle)
        values = self._check_inputs(examples, named) if examples or named else None
        compiled = [made for (_, fetch), made in self._specializations.to_dict().items() if made.is_compiled and not fetch]
        build = self._specialize(values) if values is not None else compiled[-1] if compiled else None
        if build is None:
            return None

        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            call = Call.of(self._check_inputs(inputs, {}), None, None, build.function, self._engines.context.device)
            results = self._run_with_fallback(build, call, None)
            return list(results if self._buckets is None else self._buckets.cut(results, call.inputs))

        return make_build_example(build, values, run, self._source if self._buckets is not None else None, is_asked=is_asked)

    def run_self_test(self) -> SelfTestReport | None:
        """Check the bundle that the module came from, compute its example, and compare with the outputs that were saved.

        To be called before a service says that it is ready. What passes is remembered in the disk cache: as long as the file does
        not change, later processes of the host do not read it through to check it. None where the module came from no bundle, or
        from one without an example; its file is checked all the same.

        Raises SelfTestFailed, with the largest difference, where the file is damaged, the example cannot be computed, or an
        output differs by more than the tolerance of a network.
        """
        return None if self._bundle is None else run_self_test(self._bundle, self, self._cache)

    # ------------------------------------------------------------------ copies

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make the module again; raises TypeError, with what to do instead, where that cannot be written down."""
        return describe_construction(type(self), self._given, self._source)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copy_module(type(self), self._given, self._source, memo)

    def __copy__(self) -> Self:
        return self.__deepcopy__({})

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Release the programs and close executables without other users. A call in progress ends normally."""
        with self._lock:
            self._closed = True
            self._forget_calls()
            self._specializations.clear()
            self._last = None
        self._engines.close()
        if self._stored is not None:
            self._stored.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Return the plan as a picture for a notebook; before the first call, inputs and engines: nothing is planned for it."""
        from xrt.html.views import render_cell  # for notebooks alone

        if self._last is not None:
            return self.explain()._repr_html_()
        values = [(kind, v.name, str(v.type or "")) for kind in ("input", "output") for v in getattr(self, f"{kind}s")]
        table = ("Inputs and outputs", {"": "", "name": "", "type": ""}, values)
        facts = {"engines": ", ".join(self.engines), "threads": str(self.threads), "plan": "made by the first call"}
        return render_cell("summary.html", title=type(self).__name__, facts=facts, tables=[table])

    def __repr__(self) -> str:
        return f"<XRTModule({', '.join(value.name for value in self.inputs)}) on {', '.join(self.engines)}>"
