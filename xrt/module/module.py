"""XRTModule: the class."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from xrt.cache import CompileCache, Signature, cache_of
from xrt.engines import GraphCompiler, RunOptions
from xrt.errors import FallbackWarning, InputError, warn
from xrt.graph import Function, Value
from xrt.module.automatic import Automatic, Place
from xrt.module.bound import Bound, bound, check_fixed
from xrt.module.build import Build, names_of, simplified, with_fetched
from xrt.module.checking import Checks
from xrt.module.copying import Copyable, Given
from xrt.module.explain import Explanation, explain
from xrt.module.keywords import ModuleKeywords, add_keywords
from xrt.module.memory import Memory
from xrt.module.prepared import MISS, Prepared, key_of, prepared, rescued, shaping
from xrt.module.recovery import Call, unnamed
from xrt.module.reference import evaluate
from xrt.module.saving import save_module
from xrt.module.settings import engine_list, settings_of, warn_of_signatures
from xrt.module.source import check_declared, source_of
from xrt.module.tracebacks import shorten_tracebacks
from xrt.partition import Plan
from xrt.runtime import Profile, Program, inputs, to_host
from xrt.tune import CostStore, Told, Tuned
from xrt.verify import Culprit, Verification, bisect_plan, verify
from xrt.verify.progress import Progress, unheard

__all__ = ["XRTModule"]

MAX_READY = 1024
"""Prepared calls that a module keeps; one more forgets the oldest. They are small: one program serves many."""
NOTHING = Prepared()


@add_keywords
@shorten_tracebacks
class XRTModule(Copyable):
    """A model on a list of engines, compiled on the first call of each signature and called like a function.

    ``model`` is an `xrt.Graph`, a Function, or ONNX as a path, bytes or ModelProto. ``engine`` is a name, a spec
    (``"tvm{opt_level=2}"``), an instance, a list of these, first choice first, or ``"auto"``: placed by measurement, or by the
    ``lock`` that `xrt lock` has written. Unless ``strict``, the reference engine stands last without being named; what it takes
    in that way is one FallbackWarning and lines in `explain`.

    Keywords are the fields of `ClusteringOptions` (``pins``, ``minimum_nodes``, ...), of `ExecutionOptions` (``precision``,
    ``threads``, ...) and of `Settings`: ``check`` holds the ``"first"`` call, or a part of the calls, against the reference;
    ``isolate`` lets the engines that it names, or ``"all"``, compile in a process of their own, and with ``isolate_run`` run
    there, within ``time_limit`` seconds and ``memory_limit`` bytes. ``cache`` is a cache of one's own, or its directory.

    One output comes back as an array, several as a tuple. A returned array shares memory with nothing else, unless an
    alias of the model names an input for it. Threads may call at once.

    Raises ModelError for a model that breaks a rule, UnknownEngine or EngineUnavailable, OptionError for an unknown
    keyword, DeviceError; a call raises InputError, PlanError, or an EngineError that names the region.
    """

    def __init__(
        self,
        model: Any,
        engine: str | GraphCompiler | Sequence[str | GraphCompiler] = "toy",
        device: str = "cpu",
        *,
        cache: CompileCache | str | os.PathLike[str] | None = None,
        **options: Unpack[ModuleKeywords],
    ) -> None:
        self._settings = settings_of(options)
        self._cache = cache_of(cache)
        listed = partial(engine_list, engine, device, store=CostStore.beside(self._cache))
        self._engines = listed(self._settings)
        self._source = source_of(model, self._cache)
        self._given = Given.of(model, engine, device, cache, options)
        self._builds: OrderedDict[object, Build] = OrderedDict()
        self._ready: OrderedDict[object, tuple[Prepared, Build]] = OrderedDict()
        self._quick = NOTHING  # the prepared call of `_last`, if it has one
        self._last: Build | None = None
        self._lock = threading.RLock()
        self._warned = self._closed = False
        self._checks = Checks(self._settings.check, self.threads, self._engines.on_host)
        unlocked = replace(self._settings, lock=None)
        self._automatic = Automatic(self._engines, self._settings, self._cache, partial(listed, unlocked))

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
        return self._build(self._accept(args, named)).plan

    @property
    def tuned(self) -> Tuned | None:
        """How the last signature was placed by measurement: who ran against whom; None where it was not. Prints as text."""
        return self._current().tuned

    def tune(self, *args: Any, budget: float | None = None, progress: Told | None = None, **named: Any) -> Tuned:
        """Measure now, in that many seconds, where nodes go for such inputs, or for random ones.

        What is found holds for the module from now on, and is remembered for others. ``progress`` is told how far it is.
        """
        values = self._accept(args, named) if args or named else None
        placing = self._automatic.placing(values, budget=budget, progress=progress, anew=True)
        return self._build(values, place=placing).tuned  # type: ignore[return-value]  # it has just been placed

    def explain(self) -> Explanation:
        """Return the last signature's regions, their boundaries, and why each node is where it is. Prints as text."""
        build = self._current()
        unchecked = self._checks.remarks({x.name: x.function for x in build.plan.launches})
        return explain(
            build.plan,
            build.engines,
            idle_pins=build.idle_pins,
            remarks=[build.remarks, unchecked],
            placement=[*str(build.tuned or "").splitlines(), *self._engines.left_out],
            account=self._automatic.account(build.plan, build.tuned, build.function),
            checks=str(self._checks),
            graph=build.graph_remark,
        )

    def profile(self) -> Profile:
        """Return the last signature's launch times, over the calls made with ``options=RunOptions(profile=True)``."""
        return replace(self._current().program().profile(), threads=self.threads)

    def signatures(self) -> dict[str, Signature]:
        """Return, by region of the last signature's plan, what the region is looked up by in the cache."""
        return {region.launch.name: region.signature for region in self._current().regions()}

    def memory(self) -> Memory:
        """Return what the last signature takes of memory: weights, values between regions, each engine's own. Prints as a table.

        What engines hold is told once the signature is compiled; asking does not compile.
        """
        return self._current().memory()

    # ------------------------------------------------------------------ is it right

    def verify(self, *args: Any, inner: bool = True, progress: Progress = unheard, **named: Any) -> Verification:
        """Hold every region for such inputs, and with ``inner`` every value inside, against the reference engine.

        Where one differs, other installed engines are asked about the node: where they agree with it, the reference is wrong.
        Prints as text; true where nothing differs. ``progress`` is told how many regions of how many are done. Raises
        InputError for inputs that do not fit, EngineError where a region does not compile or run.
        """
        values = self._accept(args, named)
        build, given = self._build(values), to_host(values)
        told = partial(verify, inner=inner, progress=progress, witnesses=self._checks.witnesses)
        return told(build.function, build.plan, build.engines.by_spec, given, evaluate, self._engines.context)

    def bisect(self, *args: Any, progress: Progress = unheard, **named: Any) -> Culprit | None:
        """Return the smallest part of a region that differs from the reference engine on such inputs; None where none does.

        ``progress`` is told how many parts were tried, and of how many nodes the smallest is by then. `save_case` of
        `xrt.formats.onnx` writes what is returned.
        """
        values = self._accept(args, named)
        build, given = self._build(values), to_host(values)
        find = partial(bisect_plan, progress=progress, witnesses=self._checks.witnesses)
        return find(build.plan, build.engines.by_spec, given, evaluate, self._engines.context)

    def _current(self) -> Build:
        return self._last or self._build(None)

    # ------------------------------------------------------------------ compile and call

    def compile(self, *examples: Any, **named: Any) -> Plan:
        """Compile for such inputs without running; without examples, for the model as it is declared.

        Raises InputError where the declared types do not tell enough: an `xrt.Graph`, or symbolic extents with an
        engine that needs them fixed.
        """
        if not examples and not named:
            check_declared(self._source, self._engines)
        build = self._build(self._accept(examples, named) if examples or named else None)
        self._program(build)
        return build.plan

    def save(self, path: str | os.PathLike[str], *examples: Any, **named: Any) -> None:
        """Write a bundle for `xrt.load`: model, weights, and every program compiled so far, in the engines' compiled forms.

        Compiles for the examples first, if there are any, or as `compile` does where nothing has been compiled yet.
        Raises BundleError where the file cannot be written, and what `compile` raises.
        """
        self._check_open()
        with self._lock:
            compiled = any(build.is_compiled for build in self._builds.values())
        if examples or named or not compiled:
            self.compile(*examples, **named)
        with self._lock:
            builds = dict(self._builds)
        save_module(path, self._source, self._engines, self._settings, builds)

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
                result = self._quick.positional(args)
            elif not args:
                result = self._quick.named(named)
            else:
                result = MISS
            if result is not MISS:
                return result
        return self._call(args, named, fetch, out, options)

    def bind(self, *args: Any, out: Any = None, **named: Any) -> Bound:
        """Fix the arrays of a serving loop: ``b = m.bind(x)``, and ``b()`` runs on what ``x`` holds then.

        Each input is read where it lies, so it must be C-contiguous, and one that is no array is held as it is. ``out`` is
        one buffer (or None for a fresh one) per output, where the module runs; every call writes to the same ones and returns
        them. Compiles at once. Raises InputError as a call does, and for what cannot be fixed.
        """
        values = self._accept(args, named)
        check_fixed(self._source.inputs, inputs.bind(self._source.inputs, args, named), values)
        build = self._build(values)
        return bound(self._program(build), build.function, values, out)

    def _call(self, args: tuple[Any, ...], named: Any, fetch: Any, out: Any, options: RunOptions | None) -> Any:
        """Run what `_quick` does not serve: other signatures, fetches, buffers, options."""
        plain = fetch is None and out is None and options is None
        if plain and not named and (result := self._met_before(args)) is not MISS:
            return result
        quick, device = self._quick, self._engines.context.device
        if fetch is None and not named and quick.build is not None and quick.fits(args):
            build, program = quick.build, quick.program
            call = Call.of(args, options, out, build.function, device)
        else:
            values = self._accept(args, named)
            build = self._build(values, names_of(fetch))
            program = None
            call = self._checks.looked_at(Call.of(values, options, out, build.function, device), build)
        results = self._served(build, call, program)
        if plain and not self._checks.sees_every_call:
            self._remember(call.inputs, build)
        if fetch is None:
            return shaping(build.function)(results)
        by_name = dict(zip((v.name for v in build.function.outputs), results, strict=True))
        return {name: by_name[name] for name in names_of(fetch)}

    def _served(self, build: Build, call: Call, program: Program | None) -> list[Any]:
        """Make the call, again where a region fails; what leads to a plan that is given up is forgotten."""
        program = program or self._program(build)
        results = build.run(call, program)
        self._checks.served(call, build)
        if not build.is_served_by(program):
            self._forget_calls()
        return results

    def _met_before(self, args: tuple[Any, ...]) -> Any:
        """Make the prepared call of another signature than the last one; MISS where there is none."""
        known = self._ready.get(key_of(args))
        if known is None:
            return MISS
        self._last, self._quick = known[1], known[0]
        if self._closed:  # meanwhile, by another thread
            self._quick = NOTHING
        return known[0].positional(args)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("the module is closed; make a new XRTModule")

    def _accept(self, args: Sequence[Any], named: Any) -> list[Any]:
        """Bind, normalise and check the values of a call."""
        self._check_open()
        declared = self._source.inputs
        bound = inputs.bind(declared, args, named)
        device = self._engines.context.device
        values = [inputs.normalise(value, given, device) for value, given in zip(declared, bound, strict=True)]
        inputs.check(declared, values, self._settings.execution.max_batch_size)
        return values

    def _remember(self, values: Sequence[Any], build: Build) -> None:
        """Keep a prepared call for further values of these types and shapes; lists and dicts go the long way each time."""
        if any(not hasattr(value, "dtype") or value.dtype.hasobject for value in values):  # texts are looked at in each call
            return
        program = build.program()
        call = prepared(build, program, values, partial(rescued, weakref.ref(self), build, program))
        with self._lock:
            if not self._closed:
                self._quick = call
                self._ready[key_of(values)] = call, build
                while len(self._ready) > MAX_READY:
                    self._ready.popitem(last=False)

    # ------------------------------------------------------------------ from values to a Program

    def _build(self, values: Sequence[Any] | None, fetch: tuple[str, ...] = (), place: Place | None = None) -> Build:
        """Return the build for such values (None: for the model as declared), not yet compiled; a new one with ``place``."""
        dynamic = self._engines.are_dynamic or values is None
        with self._lock:
            key = (None if values is None and not self._traced else self._source.key(values or [], dynamic), fetch)
            build = self._builds.get(key)
            if build is None or place is not None:
                base = self._build(values) if fetch and self._engines.is_auto else None
                began = self._automatic.clock()
                function = self._source.declared() if values is None else self._source.function(values, dynamic)
                build = self._builds[key] = self._planned(with_fetched(function, fetch), values, base, place, began)
                self._forget_calls()  # they may lead to a build that this one replaces
                self._bound()
            if not fetch and build is not self._last:
                self._last, self._quick = build, NOTHING
            return build

    def _planned(self, function: Function, values: Any, base: Build | None, place: Place | None, began: float) -> Build:
        simple = simplified(function, fold=self._settings.fold_constants, threads=self.threads)
        self._engines, place = self._automatic.chosen(simple, values, base.tuned if base else None, place, began)
        return Build(simple, self._engines, self._settings, self._cache, original=function, place=place)

    def _bound(self) -> None:
        """Forget the oldest build beyond the limit, and every prepared call, since one of them may lead to it."""
        if len(self._builds) > (limit := self._settings.max_signatures):
            self._builds.popitem(last=False)
            self._forget_calls()
            warn_of_signatures(limit)

    def _forget_calls(self) -> None:
        self._quick = NOTHING
        self._ready.clear()

    def _program(self, build: Build) -> Program:
        self._check_open()
        program = build.program()
        self._warn_of_fallback(build)
        return program

    def _warn_of_fallback(self, build: Build) -> None:
        if not self._warned and (message := unnamed(build.plan, self._engines.implicit, build.refused)):
            self._warned = True
            warn(message, FallbackWarning)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Let go of the programs; executables that nobody else uses are closed. A call that is under way ends as it would."""
        with self._lock:
            self._closed = True
            self._forget_calls()
            self._builds.clear()
            self._last = None
        self._engines.close()
        self._checks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<XRTModule({', '.join(value.name for value in self.inputs)}) on {', '.join(self.engines)}>"
