"""The programs of a module: found by the sizes of a call, planned, compiled, counted and dropped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from xrt.cache.memory import LEAST_BYTES, THREADS, close_in_background, count_bytes
from xrt.errors import (
    DeviceError,
    EngineUnavailable,
    FallbackWarning,
    InputError,
    OptionError,
    SignatureWarning,
    UnknownEngine,
    XRTError,
    warn,
)
from xrt.forking import renew_after_fork
from xrt.graph import FrozenDict
from xrt.module.engines import make_engine_list
from xrt.module.fallback import format_implicit_fallback
from xrt.module.model_source import Shaped, make_source
from xrt.module.options import make_module_lowering
from xrt.module.sizes import SizePolicy
from xrt.module.specialization import Specialization, add_outputs, optimize
from xrt.module.stored_plans import find_stored_plans
from xrt.placement.sizes import read_sizes

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.graph import Function
    from xrt.module.dispatch import FastPath
    from xrt.module.model_source import ModelSource
    from xrt.module.options import ModuleOptions
    from xrt.module.stored_plans import StoredPlans
    from xrt.placement.auto import AutoPlacement, Placer
    from xrt.placement.engine_list import EngineList
    from xrt.runtime import Program

MOST_COMPILES = 3
"""Calls that wait for a compile, the first one included, before a warning names what avoids it."""


class Programs:
    """The specializations of one module, each with its plan and program.

    ``list_all_engines`` lists all engines that the caller named, for a lock that restricts ``engines``. With ``is_default``
    nobody named an engine, and the first trace of an `xrt.Graph` decides.
    """

    def __init__(
        self,
        source: ModelSource,
        engines: EngineList,
        settings: ModuleOptions,
        cache: CompileCache,
        stored: StoredPlans | None,
        *,
        list_all_engines: Callable[[], EngineList],
        is_default: bool,
    ) -> None:
        self.source, self.engines, self.settings, self.cache, self.stored = source, engines, settings, cache, stored
        self.sizes = SizePolicy(settings.shapes, source, engines, stored, fold=settings.fold_constants)
        self.lowering = make_module_lowering(settings, self.sizes.served)
        """Finds plans within the module's error budget; None without one."""
        self.specializations = SpecializationCache(cache.max_bytes)
        self.planning = renew_after_fork(RLock())
        """Held while a plan is made; calls of other signatures go on."""
        self.is_closed = False
        self._list_all_engines = list_all_engines
        self._is_undecided = is_default and source.is_traced
        self._has_warned = False
        self._compiles = 0  # calls that waited for a program of their sizes alone

    def check_open(self) -> None:
        """Raise InputError if the module is closed."""
        if self.is_closed:
            raise InputError("the module is closed; make a new XRTModule")

    def close(self) -> None:
        """Release the programs and close executables without other users. A call in progress ends normally."""
        self.is_closed = True
        self.specializations.clear()
        self.engines.close()
        if self.stored is not None:
            self.stored.close()

    # ------------------------------------------------------------------ from values to a specialization

    def find(self, values: Any, fetch: tuple[str, ...] = (), place: Placer | None = None) -> Specialization:
        """The specialization for such values (None: for the model as declared), not yet compiled; a new one with ``place``."""
        if place is not None and values is not None:
            self.sizes.set_exact(values)
        return self.find_or_plan((self.sizes.get_key(values, self), fetch), values, place)

    def find_or_plan(self, key: tuple[object, tuple[str, ...]], values: Any, place: Placer | None = None) -> Specialization:
        """The specialization for a key, which values such as these have."""
        build = self.specializations.get(key) if place is None else None
        if build is not None:
            return build
        with self.planning:
            if place is None and (build := self.specializations.get(key)) is not None:
                return build
            stored = self.stored.find(key[0]) if self.stored and place is None and not key[1] else None
            build = stored or self._plan(key, values, place)
            build.key = key
            # Before its first call a model with symbolic dims is placed by the order of the list, only to show that plan.
            if values is not None or self.placer.model is None or self.placer.placed is not None:
                self.specializations.put(key, build)
            return build

    def _plan(self, key: tuple[object, tuple[str, ...]], values: Any, place: Placer | None) -> Specialization:
        fetch = key[1]
        base = self.find(values) if fetch and self.engines.is_auto else None
        began = self.placer.clock() if self.engines.is_auto else 0.0
        source = self.sizes.get_source(values)
        declared = values is None or (key[0] is None and not source.is_traced)
        function = source.get_declared_function() if declared else source.function(values, False)
        function = add_outputs(function, fetch)
        if self._is_undecided:
            device, why_not = self.engines.context.device, partial(_why_not, function, self.settings)
            self.engines = _choose(device, self.settings, self.cache, why_not)
            self._is_undecided = False
        simple = optimize(function, fold=self.settings.fold_constants, engines=self.engines)
        if self.settings.choice.is_quantized and self.settings.max_error is None:
            simple = self._quantize(simple, function)
        sizes: Mapping[str, int] = FrozenDict()
        if self.engines.is_auto:
            if values is not None and self.placer.model is not None:
                sizes = read_sizes(source.inputs, values)
            self.engines, place = self.placer.choose(simple, values, base.tuned if base else None, place, began, sizes)
        build = Specialization(simple, self.engines, self.settings, self.cache, original=function, place=place)
        build.sizes = sizes
        return build

    def _quantize(self, simple: Function, function: Function) -> Function:
        """Quantize the model to int8, by a calibration table, or by ranges measured once on the calibration batches."""
        from xrt.module.precision import measure_ranges, quantize_as_asked  # only for int8

        choice, served = self.settings.choice, self.sizes.served
        if choice.table is None:
            whole = function if served.is_traced else served.get_declared_function()
            declared = optimize(whole, fold=self.settings.fold_constants, engines=self.engines)
            table = measure_ranges(declared, self.settings, self.engines)
            self.settings = replace(self.settings, choice=replace(choice, table=table))
        return quantize_as_asked(simple, function, self.settings, self.engines.engines)

    # ------------------------------------------------------------------ compile

    def compile(self, build: Specialization) -> Program:
        """The compiled program of a specialization. The cache keeps the plan, and what is on the implicit engine is a warning."""
        self.check_open()
        program = build.program()
        if self.specializations.count(build, program):
            message = format_implicit_fallback(program.plan, self.engines.implicit, build.refused)
            if message and not self._has_warned:
                self._has_warned = True
                warn(message, FallbackWarning)
            if self.stored is not None:
                self.stored.keep(self.specializations.to_dict(), self.source)
        return program

    def compile_for_call(self, build: Specialization, values: Sequence[Any]) -> Program:
        """`compile` for a call that waits for it: the third one for sizes of its own is a SignatureWarning."""
        is_new, program = build.compiled is None and not build.is_stored, self.compile(build)
        sizes, fetch = build.key
        if not is_new or sizes is None or fetch or self.source.is_traced or self.sizes.shapes == "each":
            return program
        if self.sizes.padding is not None and not self.sizes.refusals:
            return program
        self._compiles += 1
        if self._compiles == MOST_COMPILES:
            why = [self.sizes.find_reason(values, self) or "the first sizes have a program of their own", *self.sizes.refusals]
            cures = ["shapes='one'"] * self.engines.can_be_dynamic + ["shapes=xrt.Buckets()"] * self.engines.is_auto
            cures.append("an engine that has one program for all sizes, such as 'ort'")
            warn(
                f"{MOST_COMPILES} calls of this module have waited for a compile, each for other sizes: "
                f"{'; '.join(why)}. Pass {', or '.join(cures)}; shapes='each' accepts it",
                SignatureWarning,
            )
        return program

    # ------------------------------------------------------------------ placement by measurement

    @cached_property
    def placer(self) -> AutoPlacement:
        """Places the signatures of a module with ``engine="auto"``."""
        placer = self.settings.make_auto_placement(self.engines, self.cache, self._list_all_engines, self.lowering)
        if self.engines.is_auto and self.sizes.open_axes:
            from xrt.placement.auto import OpenModel

            placer.model = OpenModel(self.sizes.served.get_declared_function, self._specialize_at)
        return placer

    def _specialize_at(self, sizes: Mapping[str, int]) -> Function:
        """The optimized Function for inputs of those sizes."""
        served = self.sizes.served
        shapes = [list(getattr(value.type, "shape", None) or ()) for value in served.inputs]
        for place, axis, name in self.sizes.open_axes:
            shapes[place][axis] = sizes[name]
        function = served.function([Shaped(tuple(shape)) for shape in shapes], dynamic=False)
        return optimize(function, fold=self.settings.fold_constants, engines=self.engines)

    def adopt_decision(self, build: Specialization) -> None:
        """Let a placement that was searched for at some sizes of symbolic dims serve all others."""
        if self.placer.model is None or not build.sizes or build.tuned is None:
            return
        self.placer.record(build.sizes, build.tuned)
        with self.planning:
            self.sizes.reset()
            for one in self.specializations:
                if one is not build and one.key[0] not in self.sizes.exact:
                    self.specializations.remove(one)


def warn_of_signatures(limit: int) -> None:
    """Issue the SignatureWarning of a module that drops what it has compiled."""
    warn(
        f"what this module has compiled for its signatures holds more than the cache's max_bytes={limit}, or {THREADS} "
        f"threads, and it drops the least recently used; give inputs of fewer shapes, or engines that keep symbolic dims, or "
        f"raise the limit: cache=xrt.cache.CompileCache(max_bytes=...)",
        SignatureWarning,
    )


NO_LIMIT = 1 << 62
"""The limit of a module that keeps all that it compiles, to save it."""
MAX_READY = 1024
"""Prepared calls that a module keeps; one more drops the least recently used. They are small: one program serves many."""


@dataclass(eq=False, slots=True)
class _Entry:
    build: Specialization
    program: Program | None = None
    """The program whose executables were counted."""
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    """What its executables hold between calls, by identity: bytes and threads."""


class SpecializationCache:
    """Specializations by what of the inputs they depend on, least recently used first. Lookups take constant time.

    Executables count once, however many specializations run them. A specialization that is dropped is closed in the background
    when no call uses it any more.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.max_threads = THREADS
        """Threads that executables may keep for themselves, all together."""
        self._entries: OrderedDict[object, _Entry] = OrderedDict()
        self._prepared: OrderedDict[object, FastPath] = OrderedDict()
        self._lock = renew_after_fork(RLock())
        self._dropped = self._warned = False

    def __iter__(self) -> Iterator[Specialization]:
        return iter(self.to_dict().values())

    def get(self, key: object) -> Specialization | None:
        """The specialization for a key, which is the most recently used then; None if there is none."""
        with self._lock:
            if (entry := self._entries.get(key)) is None:
                return None
            self._entries.move_to_end(key)
            return entry.build

    def put(self, key: object, build: Specialization) -> None:
        """Store a specialization, in place of one for the same key."""
        with self._lock:
            if key in self._entries:
                self._drop(key)
            self._entries[key] = _Entry(build)
            build.key = key
            self._shrink(build)
        self._warn()

    def remove(self, build: Specialization) -> None:
        """Drop a specialization if it is stored."""
        with self._lock:
            entry = self._entries.get(build.key)
            if entry is not None and entry.build is build:
                self._drop(build.key)

    def to_dict(self) -> dict[Any, Specialization]:
        """All specializations by their keys."""
        with self._lock:
            return {key: entry.build for key, entry in self._entries.items()}

    def count(self, build: Specialization, program: Program) -> bool:
        """Count what a compiled program holds, and drop the least recently used beyond the limits; never this one.

        Return whether the program is new here.
        """
        with self._lock:
            entry = self._entries.get(build.key)
            if entry is None or entry.build is not build:
                return True  # it was dropped, or replaced, meanwhile
            if entry.program is program:
                return False
            entry.program = program
            entry.held = {id(one): (count_bytes(one), one.idle_threads) for one in program.executables}
            self._shrink(build)
        self._warn()
        return True

    def _list_held(self) -> list[tuple[int, int]]:
        """Bytes and threads of each executable."""
        return list({number: held for entry in self._entries.values() for number, held in entry.held.items()}.values())

    @property
    def nbytes(self) -> int:
        """What the executables hold between calls; each counts at least `LEAST_BYTES`."""
        with self._lock:
            return sum(nbytes for nbytes, _ in self._list_held())

    def _warn(self) -> None:
        """Issue the SignatureWarning, once."""
        if self._dropped and not self._warned:
            self._warned = True
            warn_of_signatures(self._max_bytes)

    def _shrink(self, newest: Specialization) -> None:
        while self._is_full:
            key = next((key for key, entry in self._entries.items() if entry.build is not newest), None)
            if key is None:
                return
            self._drop(key)
            self._dropped = True

    @property
    def _is_full(self) -> bool:
        held = self._list_held()
        has_threads = sum(threads for _, threads in held) > self.max_threads and self._max_bytes < NO_LIMIT
        return has_threads or max(sum(nbytes for nbytes, _ in held), len(self._entries) * LEAST_BYTES) > self._max_bytes

    def _drop(self, key: object) -> None:
        entry = self._entries.pop(key)
        for types in [types for types, call in self._prepared.items() if call.build is entry.build]:
            del self._prepared[types]
        if entry.build.compiled is not None:
            entry.build.compiled.close_in_background()
        close_in_background([entry].clear)  # freeing a large graph takes a while, too

    def clear(self) -> None:
        """Drop all; the last user of each closes it."""
        with self._lock:
            self._entries.clear()
            self._prepared.clear()

    # ------------------------------------------------------------------ prepared calls

    def prepare(self, types: object, call: FastPath) -> bool:
        """Store a prepared call for inputs of these types and shapes; return False if its specialization is not stored."""
        with self._lock:
            entry = self._entries.get(call.build.key) if call.build is not None else None
            if entry is None or entry.build is not call.build:
                return False  # it was dropped, or replaced, meanwhile
            self._prepared[types] = call
            self._prepared.move_to_end(types)
            while len(self._prepared) > MAX_READY:
                self._prepared.popitem(last=False)
            return True

    def find_prepared(self, types: object) -> FastPath | None:
        """The prepared call for inputs of these types and shapes. Takes no lock: other threads' calls do not delay it."""
        call = self._prepared.get(types)
        if call is not None and call.build is not None:
            # Another thread may have dropped it just now; it is whole as long as it is in use.
            with suppress(KeyError):
                self._prepared.move_to_end(types)
                self._entries.move_to_end(call.build.key)
        return call

    def forget_calls(self) -> None:
        """Drop all prepared calls."""
        with self._lock:
            self._prepared.clear()


# ---------------------------------------------------------------------- the default engine

DEFAULT_ENGINES = ("ort", "openvino", "torch", "xla", "toy")
"""The engines that are tried, in this order, where none is named."""


def open_model(
    model: Any, engine: Any, device: str, settings: ModuleOptions, cache: CompileCache
) -> tuple[EngineList, StoredPlans | None, ModelSource]:
    """Open a model on the engines that are named, or (None) on the default engine for it.

    An `xrt.Graph` has no types before its first call: it starts on the first installed engine, and the first trace decides.
    """
    if engine is not None:
        engines = make_engine_list(engine, device, settings, cache)
        stored = find_stored_plans(model, cache, settings, engines)
        return engines, stored, (stored and stored.source) or make_source(model, cache)
    plans: dict[str, StoredPlans | None] = {}
    sources: list[ModelSource] = []

    def why_not(engines: EngineList) -> str | None:
        # Plans are stored only if no region is on the implicit engine: the model need not be read to know that it is supported.
        plans[engines.specs[0]] = stored = find_stored_plans(model, cache, settings, engines)
        if stored is not None and stored.source is not None:
            sources[:] = [stored.source]
            return None
        if not sources:
            sources.append(make_source(model, cache))
        return None if sources[0].is_traced else _why_not(sources[0].get_declared_function(), settings, engines)

    engines = _choose(device, settings, cache, why_not)
    return engines, plans[engines.specs[0]], sources[0]


def _choose(device: str, settings: ModuleOptions, cache: CompileCache, why_not: Callable[[EngineList], str | None]) -> EngineList:
    """Make the list of the first engine that is installed, honors the options and supports the model.

    If none supports all of it, the first installed engine gets the nodes that it supports. Libraries of engines behind the chosen
    one are not imported.
    """
    first: EngineList | None = None
    failure: XRTError | None = None
    remarks = []
    for name in DEFAULT_ENGINES:
        try:
            engines = make_engine_list(name, device, settings, cache)
        except (EngineUnavailable, UnknownEngine) as error:
            remarks.append(str(error))
            continue
        except (OptionError, DeviceError) as error:
            failure = failure or error
            continue
        reason = why_not(engines)
        if reason is None:
            listed = ", ".join(DEFAULT_ENGINES)
            remarks.append(f"engine {name!r} is the default: the first installed of {listed} that supports the whole model")
            return replace(engines, left_out=(*engines.left_out, *remarks))
        remarks.append(f"engine {name!r} does not support the whole model: {reason}")
        first = first or engines
    if first is None:
        raise failure or OptionError("no engine is installed that could be the default; pass engine=")
    return replace(first, left_out=(*first.left_out, *remarks))


def _why_not(function: Function, settings: ModuleOptions, engines: EngineList) -> str | None:
    """Explain why the first engine of a list does not support every node of a model, or return None."""
    # Constants are folded only if need be: most models are supported as they are, and a module folds once more when it plans.
    if _find_declined(function, engines) is None:
        return None
    return _find_declined(optimize(function, fold=settings.fold_constants, engines=engines), engines)


def _find_declined(function: Function, engines: EngineList) -> str | None:
    from xrt.partition import SupportMatrix
    from xrt.placement.result import unwrap

    matrix = SupportMatrix.of(function, unwrap(engines.engines[:1]), engines.homes.of(engines.specs[0]))
    reasons = ((node, matrix.reason(number, 0)) for number, node in enumerate(function.nodes))
    return next((f"{node.name!r} ({node.op}): {reason}" for node, reason in reasons if reason is not None), None)
