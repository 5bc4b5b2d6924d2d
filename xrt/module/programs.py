"""The programs of a module: look up by the sizes of a call, plan, compile, and evict."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from xrt.module.model_source import ShapePlaceholder, make_source
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
    from xrt.partition import Plan
    from xrt.placement.auto import AutoPlacement, Placer
    from xrt.placement.engine_list import EngineList
    from xrt.runtime import Program, Refusal

MOST_COMPILES = 3
"""Number of calls that compiled, including the first, at which a warning recommends how to avoid recompiles."""


class Programs:
    """The specializations of one module, each with its plan and program.

    ``list_all_engines`` lists all engines that the caller named, for a lock that restricts ``engines``. With ``is_default``
    the caller named none, and the default engine is chosen at the first trace of an `xrt.Graph`.
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
        """Held during planning; calls of other signatures do not wait."""
        self.is_closed = False
        self._list_all_engines = list_all_engines
        self._is_undecided = is_default and source.is_traced
        self._has_warned = False
        self._compiles = 0  # calls that compiled a program for their sizes only

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
        """Find or plan the specialization for these values (None: declared types); ``place`` forces a new one."""
        if place is not None and values is not None:
            self.sizes.set_exact(values)
        return self.find_or_plan((self.sizes.get_key(values, self), fetch), values, place)

    def find_or_plan(self, key: tuple[object, tuple[str, ...]], values: Any, place: Placer | None = None) -> Specialization:
        """Find or plan the specialization for a key (of the sizes, fetched names); ``values`` are inputs with this key."""
        build = self.specializations.get(key) if place is None else None
        if build is not None:
            return build
        with self.planning:
            if place is None and (build := self.specializations.get(key)) is not None:
                return build
            stored = self.stored.find(key[0]) if self.stored and place is None and not key[1] else None
            build = stored or self._plan(key, values, place)
            build.key = key
            # Before the first call a model with symbolic dims is placed in list order, only for display: do not store this plan.
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
            device, why_not = self.engines.context.device, partial(why_not_whole, function, self.settings)
            self.engines = choose_default_engine(device, self.settings, self.cache, why_not)
            self._is_undecided = False
        optimized = optimize(function, fold=self.settings.fold_constants, engines=self.engines)
        if self.settings.choice.is_quantized and self.settings.max_error is None:
            optimized = self._quantize(optimized, function)
        sizes: Mapping[str, int] = FrozenDict()
        if self.engines.is_auto:
            if values is not None and self.placer.model is not None:
                sizes = read_sizes(source.inputs, values)
            self.engines, place = self.placer.choose(optimized, values, base.tuned if base else None, place, began, sizes)
        build = Specialization(optimized, self.engines, self.settings, self.cache, original=function, place=place)
        build.sizes = sizes
        return build

    def _quantize(self, optimized: Function, function: Function) -> Function:
        """Quantize the model to int8, by a calibration table, or by ranges measured once on the calibration batches."""
        from xrt.module.precision import measure_ranges, quantize_by_table  # only for int8

        choice, served = self.settings.choice, self.sizes.served
        if choice.table is None:
            whole = function if served.is_traced else served.get_declared_function()
            declared = optimize(whole, fold=self.settings.fold_constants, engines=self.engines)
            table = measure_ranges(declared, self.settings, self.engines)
            self.settings = replace(self.settings, choice=replace(choice, table=table))
        return quantize_by_table(optimized, function, self.settings, self.engines.engines)

    # ------------------------------------------------------------------ compile

    def compile(self, build: Specialization) -> Program:
        """Compile a specialization. Stores its plan in the cache; warns once about nodes on the implicit engine."""
        self.check_open()
        program = build.program()
        if self.specializations.count(build, program):
            plan, implicit = program.plan, self.engines.implicit
            if not self._has_warned and (message := format_implicit_fallback(plan, implicit, build.refused)):
                self._has_warned = True
                warn(message, FallbackWarning)
            if self.stored is not None:
                self.stored.keep(self.specializations.to_dict(), self.source)
        return program

    def compile_for_call(self, build: Specialization, values: Sequence[Any]) -> Program:
        """`compile` during a call. The third one that serves a single set of sizes issues a SignatureWarning."""
        is_new, program = build.compiled is None and not build.is_stored, self.compile(build)
        sizes, fetch = build.key
        if not is_new or sizes is None or fetch or self.source.is_traced or self.sizes.shapes == "each":
            return program
        if self.sizes.padding is not None and not self.sizes.refusals:
            return program
        self._compiles += 1
        if self._compiles == MOST_COMPILES:
            why = [self.sizes.find_reason(values, self) or "the first sizes have a program of their own", *self.sizes.refusals]
            suggestions = ["shapes='one'"] * self.engines.can_be_dynamic + ["shapes=xrt.Buckets()"] * self.engines.is_auto
            suggestions.append("an engine that has one program for all sizes, such as 'ort'")
            warn(
                f"{MOST_COMPILES} calls of this module have waited for a compile, each for other sizes: "
                f"{'; '.join(why)}. Pass {', or '.join(suggestions)}; shapes='each' accepts it",
                SignatureWarning,
            )
        return program

    # ------------------------------------------------------------------ placement by measurement

    @cached_property
    def placer(self) -> AutoPlacement:
        """Places the signatures of a module with ``engine="auto"``."""
        from xrt.placement.auto import AutoPlacement, OpenModel, PlacementOptions

        settings, lock, load = self.settings, self.settings.lock, None
        if lock is not None:
            load = partial(lock.load_result, clustering=settings.clustering, strict=settings.strict)
        options = PlacementOptions(
            settings.clustering,
            settings.budget,
            settings.isolate.memory_limit,
            settings.cuda_graph,
            settings.shows_progress,
            self.lowering,
        )
        placer = AutoPlacement(self.engines, options, self.cache, self._list_all_engines, load)
        if self.engines.is_auto and self.sizes.open_axes:
            placer.model = OpenModel(self.sizes.served.get_declared_function, self._specialize_at)
        return placer

    def _specialize_at(self, sizes: Mapping[str, int]) -> Function:
        """The optimized Function for these sizes of symbolic dims."""
        served = self.sizes.served
        shapes = [list(getattr(value.type, "shape", None) or ()) for value in served.inputs]
        for place, axis, name in self.sizes.open_axes:
            shapes[place][axis] = sizes[name]
        function = served.function([ShapePlaceholder(tuple(shape)) for shape in shapes], dynamic=False)
        return optimize(function, fold=self.settings.fold_constants, engines=self.engines)

    def adopt_decision(self, build: Specialization) -> None:
        """Use a placement that was searched at some sizes of symbolic dims for all other sizes, too."""
        if self.placer.model is None or not build.sizes or build.tuned is None:
            return
        self.placer.record(build.sizes, build.tuned)
        with self.planning:
            self.sizes.reset()
            for specialization in self.specializations:
                if specialization is not build and specialization.key[0] not in self.sizes.exact:
                    self.specializations.remove(specialization)


def format_implicit_fallback(plan: Plan, implicit: str | None, refused: Iterable[Refusal]) -> str:
    """Format the warning about nodes on the implicit engine: how many, and the reason for one of them.

    Empty if each such node was already reported when its engine refused it, or updates state there because another engine
    would copy the state.
    """
    by_choice = {reason.node for reason in plan.reasons if reason.updating_engine}
    launches = (launch for launch in plan.launches if launch.engine == implicit)
    nodes = [node for launch in launches for node in launch.nodes if node not in by_choice]
    reported = {node for refusal in refused for node in refusal.nodes}
    first = next((node for node in nodes if node not in reported), None)
    if first is None:
        return ""
    why = next((f": {r.text}" for r in plan.reasons if r.node == first), "")
    run, it, intro = ("nodes run", "them", ", such as") if len(nodes) != 1 else ("node runs", "it", ":")
    return (
        f"{len(nodes)} {run} on the reference engine {implicit!r}, as no engine of the list supports {it}{intro} {first!r}{why}. "
        f"m.explain() lists {it}; name {implicit!r} in the list to accept it, or pass strict=True to refuse it"
    )


def warn_of_signatures(limit: int) -> None:
    """Warn that a module evicts compiled programs."""
    warn(
        f"what this module has compiled for its signatures holds more than the cache's max_bytes={limit}, or {THREADS} "
        f"threads, and it drops the least recently used; give inputs of fewer shapes, or engines that keep symbolic dims, or "
        f"raise the limit: cache=xrt.cache.CompileCache(max_bytes=...)",
        SignatureWarning,
    )


NO_LIMIT = 1 << 62
"""The limit for a module that keeps all compiled programs, to save them."""
MAX_READY = 1024
"""Maximum number of prepared calls; beyond it the least recently used is dropped. They are small and share programs."""


@dataclass(eq=False, slots=True)
class _Entry:
    build: Specialization
    program: Program | None = None
    """The program whose executables were counted."""
    usage: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(bytes, threads) that its executables use between calls, by ``id``."""


class SpecializationCache:
    """An LRU cache of specializations, by the properties of the inputs that they depend on. Lookups take constant time.

    An executable shared by several specializations counts once. An evicted specialization is closed in the background when no
    call uses it any more.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.max_threads = THREADS
        """Limit on the threads that all executables keep between calls."""
        self._entries: OrderedDict[object, _Entry] = OrderedDict()
        self._prepared: OrderedDict[object, FastPath] = OrderedDict()
        self._lock = renew_after_fork(RLock())
        self._has_evicted = self._has_warned = False

    def __iter__(self) -> Iterator[Specialization]:
        return iter(self.to_dict().values())

    def to_dict(self) -> dict[Any, Specialization]:
        """All specializations by their keys."""
        with self._lock:
            return {key: entry.build for key, entry in self._entries.items()}

    def get(self, key: object) -> Specialization | None:
        """Look up a specialization and mark it as most recently used; None if there is none."""
        with self._lock:
            if (entry := self._entries.get(key)) is None:
                return None
            self._entries.move_to_end(key)
            return entry.build

    def put(self, key: object, build: Specialization) -> None:
        """Store a specialization, replacing one with the same key."""
        with self._lock:
            if key in self._entries:
                self._drop(key)
            self._entries[key] = _Entry(build)
            build.key = key
        self._shrink(build)

    def remove(self, build: Specialization) -> None:
        """Drop a specialization if it is stored."""
        with self._lock:
            if self._find_entry(build) is not None:
                self._drop(build.key)

    def _find_entry(self, build: Specialization) -> _Entry | None:
        """The entry of a specialization; None if it was dropped, or replaced."""
        entry = self._entries.get(build.key)
        return entry if entry is not None and entry.build is build else None

    def count(self, build: Specialization, program: Program) -> bool:
        """Count a program's memory and threads and evict the least recently used others; False if it was counted before."""
        with self._lock:
            if (entry := self._find_entry(build)) is None:
                return True
            if entry.program is program:
                return False
            entry.program = program
            entry.usage = {
                id(executable): (count_bytes(executable), executable.idle_threads) for executable in program.executables
            }
        self._shrink(build)
        return True

    def _sum_usage(self) -> tuple[int, int]:
        """Bytes and threads that all executables use between calls."""
        usage: dict[int, tuple[int, int]] = {}
        for entry in self._entries.values():
            usage |= entry.usage
        return sum(nbytes for nbytes, _ in usage.values()), sum(threads for _, threads in usage.values())

    @property
    def nbytes(self) -> int:
        """Bytes that the executables hold between calls; each counts as at least `LEAST_BYTES`."""
        with self._lock:
            return self._sum_usage()[0]

    def _shrink(self, newest: Specialization) -> None:
        """Evict down to the limits; the first eviction issues a SignatureWarning."""
        with self._lock:
            while self._is_full:
                key = next((key for key, entry in self._entries.items() if entry.build is not newest), None)
                if key is None:
                    break
                self._drop(key)
                self._has_evicted = True
        if self._has_evicted and not self._has_warned:
            self._has_warned = True
            warn_of_signatures(self._max_bytes)

    @property
    def _is_full(self) -> bool:
        nbytes, threads = self._sum_usage()
        too_many_threads = threads > self.max_threads and self._max_bytes < NO_LIMIT
        return too_many_threads or max(nbytes, len(self._entries) * LEAST_BYTES) > self._max_bytes

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
        """Store a prepared call for inputs of these types and shapes; return False if its specialization was evicted."""
        with self._lock:
            if call.build is None or self._find_entry(call.build) is None:
                return False
            self._prepared[types] = call
            self._prepared.move_to_end(types)
            while len(self._prepared) > MAX_READY:
                self._prepared.popitem(last=False)
            return True

    def find_prepared(self, types: object) -> FastPath | None:
        """The prepared call for inputs of these types and shapes. Takes no lock: other threads' calls do not delay it."""
        call = self._prepared.get(types)
        if call is not None and call.build is not None:
            # Another thread may have dropped it meanwhile; it stays valid while it is in use.
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
"""Default engines, in the order in which they are tried."""


def open_model(
    model: Any, engine: Any, device: str, settings: ModuleOptions, cache: CompileCache
) -> tuple[EngineList, StoredPlans | None, ModelSource]:
    """Open a model on the named engines, or on its default engine (None).

    An `xrt.Graph` has no types before its first call: it starts on the first installed engine, and the first trace decides.
    """
    opened: dict[str, tuple[StoredPlans | None, ModelSource]] = {}

    def open_on(engines: EngineList) -> tuple[StoredPlans | None, ModelSource]:
        stored = find_stored_plans(model, cache, settings, engines)
        source = (stored and stored.source) or next((earlier for _, earlier in opened.values()), None) or make_source(model)
        opened[engines.specs[0]] = stored, source
        return stored, source

    def why_not(engines: EngineList) -> str | None:
        stored, source = open_on(engines)
        # Plans are stored only without regions on the implicit engine, so the model is supported and need not be read.
        if source.is_traced or (stored is not None and stored.source is not None):
            return None
        return why_not_whole(source.get_declared_function(), settings, engines)

    if engine is None:
        engines = choose_default_engine(device, settings, cache, why_not)
        return engines, *opened[engines.specs[0]]
    engines = make_engine_list(engine, device, settings, cache)
    return engines, *open_on(engines)


def choose_default_engine(
    device: str, settings: ModuleOptions, cache: CompileCache, why_not: Callable[[EngineList], str | None]
) -> EngineList:
    """Create the engine list with the first engine that is installed, honors the options and supports the model.

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
        if (reason := why_not(engines)) is None:
            listed = ", ".join(DEFAULT_ENGINES)
            remarks.append(f"engine {name!r} is the default: the first installed of {listed} that supports the whole model")
            return replace(engines, left_out=(*engines.left_out, *remarks))
        remarks.append(f"engine {name!r} does not support the whole model: {reason}")
        first = first or engines
    if first is None:
        raise failure or OptionError("no engine is installed that could be the default; pass engine=")
    return replace(first, left_out=(*first.left_out, *remarks))


def why_not_whole(function: Function, settings: ModuleOptions, engines: EngineList) -> str | None:
    """Explain why the first engine of a list does not support every node of a model, or return None."""
    from xrt.partition import SupportMatrix
    from xrt.placement.result import unwrap

    def find_declined(function: Function) -> str | None:
        matrix = SupportMatrix.of(function, unwrap(engines.engines[:1]), engines.homes.of(engines.specs[0]))
        reasons = ((node, matrix.reason(number, 0)) for number, node in enumerate(function.nodes))
        return next((f"{node.name!r} ({node.op}): {reason}" for node, reason in reasons if reason is not None), None)

    # Fold constants only if necessary: most models are supported without, and planning folds again.
    if find_declined(function) is None:
        return None
    return find_declined(optimize(function, fold=settings.fold_constants, engines=engines))
