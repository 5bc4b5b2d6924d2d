"""From the values of a call to the specialization that serves it, found or planned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from xrt.cache.memory import LEAST_BYTES, THREADS, close_in_background, count_bytes
from xrt.errors import SignatureWarning, warn
from xrt.forking import renew_after_fork
from xrt.graph import FrozenDict
from xrt.module.dispatch import NOTHING, FastPath
from xrt.module.model_source import Shaped
from xrt.module.specialization import Specialization, add_outputs, optimize
from xrt.placement.sizes import list_open_axes, read_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from xrt.cache import CompileCache
    from xrt.graph import Function
    from xrt.module.buckets import Buckets
    from xrt.module.model_source import ModelSource
    from xrt.module.options import ModuleOptions
    from xrt.module.stored_plans import StoredPlans
    from xrt.placement.auto import AutoPlacement, Placer
    from xrt.placement.engine_list import EngineList
    from xrt.precision.lowering import LoweringWithinBudget
    from xrt.runtime import Program

__all__ = ["NO_LIMIT", "Specializable", "SpecializationCache", "warn_of_signatures"]


class Specializable:
    """A module that has a specialization for each signature."""

    _settings: ModuleOptions
    _cache: CompileCache
    _engines: EngineList
    _source: ModelSource
    _buckets: Buckets | None
    _stored: StoredPlans | None
    _specializations: SpecializationCache
    _everything: Callable[[], EngineList]
    _last: Specialization | None
    _fast_path: FastPath
    _lock: RLock
    _planning: RLock
    _lowering: LoweringWithinBudget | None
    _closed: bool
    _is_undecided: bool
    """Whether the default engine is chosen at the first call, which tells the types."""
    _why_sizes: str | None = None
    """Why each set of sizes has a program of its own, once it is decided; empty where one program serves all."""
    _first_sizes: frozenset[object] = frozenset()
    """The shapes of the first call, and of searches: they have programs of their own while others share one."""

    def _make_buckets(self) -> tuple[Buckets | None, tuple[str, ...]]:
        """Return what pads the inputs of calls, None where nothing does, and what there is to say of it."""
        if self._settings.buckets is None:
            return None, ()
        from xrt.module.buckets import make_buckets  # for those alone who ask

        buckets, remarks = make_buckets(self._source, self._settings, self._engines)
        if self._stored is not None and buckets is not None:
            self._stored.padded = buckets.source
        return buckets, remarks

    @property
    def _served(self) -> ModelSource:
        """What is compiled: the model, or its padded form."""
        return self._source if self._buckets is None else self._buckets.source

    def _adopt_decision(self, build: Specialization) -> None:
        """Let a placement that was searched for at some sizes of symbolic dims serve all others."""
        if self._automatic.model is None or not build.sizes or build.tuned is None:
            return
        self._automatic.record(build.sizes, build.tuned)
        with self._planning:
            self._why_sizes = None
            for one in self._specializations:
                if one is not build and one.key[0] not in self._first_sizes:
                    self._specializations.remove(one)

    @cached_property
    def _automatic(self) -> AutoPlacement:
        made = self._settings.make_auto_placement(self._engines, self._cache, self._everything, self._lowering)
        if self._engines.is_auto and self._open_axes:
            from xrt.placement.auto import OpenModel

            made.model = OpenModel(self._served.get_declared_function, self._specialize_at)
        return made

    def _specialize_at(self, sizes: Mapping[str, int]) -> Function:
        """Return the optimized Function for inputs of those sizes."""
        shapes = [list(getattr(value.type, "shape", None) or ()) for value in self._served.inputs]
        for place, axis, name in self._open_axes:
            shapes[place][axis] = sizes[name]
        function = self._served.function([Shaped(tuple(shape)) for shape in shapes], dynamic=False)
        return optimize(function, fold=self._settings.fold_constants, engines=self._engines)

    def _find_reason_for_sizes(self, values: Any) -> str:
        """Return why each set of sizes has a program of its own; empty where one program serves all.

        Where an engine must be asked about the model, the first call decides for all.
        """
        engines, source = self._engines, self._source
        if self._buckets is not None:
            return "buckets= pads to a few of them"
        if self._settings.dynamic == "never":
            return "dynamic='never'"
        if not engines.can_be_dynamic:
            fixed = next(one.spec for one in engines.engines if not one.supports_dynamic_shapes)
            return f"engine {fixed!r} needs every extent fixed"
        if engines.is_auto and self._automatic.placed is None and self._settings.dynamic != "always":
            return "engine='auto' measures at the sizes of a call"
        if self._why_sizes is None:
            if engines.are_dynamic:
                return ""
            if source.is_traced or source.key([None] * len(source.inputs), False) is None:
                return "the model has no symbolic dims"
            from xrt.module.buckets import find_reason_for_sizes

            with self._planning:
                if self._why_sizes is None:
                    found = find_reason_for_sizes(self, values)
                    if found and values is None:
                        return found  # the sizes of a call may tell otherwise
                    self._why_sizes = found
        return self._why_sizes

    def _is_first_size(self, sizes: object) -> bool:
        """Whether these sizes are those of the first call, whose own program may be quicker than one for all sizes."""
        engines, stored = self._engines, self._stored
        if sizes in self._first_sizes:
            return True
        if self._settings.dynamic != "auto" or engines.are_dynamic or not engines.can_be_dynamic:
            return False
        is_kept = stored is not None and stored.has(None) and not stored.has(sizes)
        if not self._first_sizes and self._why_sizes is None and not is_kept:
            self._first_sizes = frozenset([sizes])
        return sizes in self._first_sizes

    def _is_empty(self, values: Sequence[Any]) -> bool:
        """Whether a symbolic dim is 0 in a call, which programs for all sizes of some engines refuse."""
        return not self._engines.are_dynamic and any(values[place].shape[axis] == 0 for place, axis, _ in self._open_axes)

    @cached_property
    def _open_axes(self) -> tuple[tuple[int, int, str], ...]:
        return () if self._served.is_traced else tuple(list_open_axes(self._served.inputs))

    def _get_key(self, values: Any, fetch: tuple[str, ...]) -> tuple[object, tuple[str, ...]]:
        if values is None and not self._served.is_traced:
            return None, fetch
        sizes = self._served.key(values or [], False)
        has_own = sizes is None or self._is_first_size(sizes) or self._find_reason_for_sizes(values) or self._is_empty(values)
        return sizes if has_own else self._served.key(values or [], True), fetch

    def _specialize(self, values: Any, fetch: tuple[str, ...] = (), place: Placer | None = None) -> Specialization:
        """Return the build for such values (None: for the model as declared), not yet compiled; a new one with ``place``."""
        if place is not None and values is not None and self._open_axes:
            self._first_sizes |= {self._served.key(values, False)}
        build = self._find_or_plan(self._get_key(values, fetch), values, place)
        with self._lock:
            if not fetch and build is not self._last:
                self._last, self._fast_path = build, NOTHING
        return build

    def _find_or_plan(self, key: tuple[object, tuple[str, ...]], values: Any, place: Placer | None = None) -> Specialization:
        """Return the build of a key, which values such as these have."""
        fetch = key[1]
        build = self._specializations.get(key) if place is None else None
        if build is None:
            with self._planning:
                build = self._specializations.get(key) if place is None else None
                if build is None:
                    stored = self._stored.find(key[0]) if self._stored and place is None and not fetch else None
                    build = stored or self._planned(key, values, place)
                    build.key = key
                    # Before its first call a model with symbolic dims is placed by the order of the list, only to show that plan.
                    if values is not None or self._automatic.model is None or self._automatic.placed is not None:
                        self._specializations.put(key, build)
        return build

    def _planned(self, key: tuple[object, tuple[str, ...]], values: Any, place: Placer | None) -> Specialization:
        fetch = key[1]
        base = self._specialize(values) if fetch and self._engines.is_auto else None
        began = self._automatic.clock() if self._engines.is_auto else 0.0
        declared = values is None or (key[0] is None and not self._served.is_traced)
        function = self._served.get_declared_function() if declared else self._served.function(values, False)
        function = add_outputs(function, fetch)
        if self._is_undecided:
            from xrt.module.default_engine import redecide  # for those alone who name no engine

            self._engines, self._is_undecided = (
                redecide(function, self._engines.context.device, self._settings, self._cache),
                False,
            )
        simple = optimize(function, fold=self._settings.fold_constants, engines=self._engines)
        if self._settings.choice.is_quantized and self._settings.max_error is None:
            simple = self._quantize(simple, function)
        sizes: Mapping[str, int] = FrozenDict()
        if self._engines.is_auto:
            if values is not None and self._automatic.model is not None:
                sizes = read_sizes(self._served.inputs, values)
            terms = base.tuned if base else None, place, began, sizes
            self._engines, place = self._automatic.choose(simple, values, *terms)
        build = Specialization(simple, self._engines, self._settings, self._cache, original=function, place=place)
        build.sizes = sizes
        return build

    def _quantize(self, simple: Function, function: Function) -> Function:
        """Return the model in int8, by ranges that were given, or are measured once on the batches that were."""
        from xrt.module.precision import measure_ranges, quantize_as_asked  # for those alone who ask

        choice = self._settings.choice
        if choice.table is None:
            whole = function if self._served.is_traced else self._served.get_declared_function()
            declared = optimize(whole, fold=self._settings.fold_constants, engines=self._engines)
            table = measure_ranges(declared, self._settings, self._engines)
            self._settings = replace(self._settings, choice=replace(choice, table=table))
        return quantize_as_asked(simple, function, self._settings, self._engines.engines)


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
    key: object
    build: Specialization
    program: Program | None = None
    """What was counted."""
    prepared: set[object] = field(default_factory=set)
    """The types and shapes of its prepared calls."""


@dataclass(eq=False, slots=True)
class _Shared:
    """An executable, which several programs may run."""

    nbytes: int
    threads: int
    users: int = 0


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
        self._prepared: OrderedDict[object, tuple[FastPath, _Entry]] = OrderedDict()
        self._executables: dict[int, _Shared] = {}
        self._lock = renew_after_fork(RLock())
        self._dropped = self._warned = False
        self.nbytes = self.idle_threads = 0
        """What the executables hold between calls; each counts at least `LEAST_BYTES`."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Specialization]:
        with self._lock:
            return iter([entry.build for entry in self._entries.values()])

    def get(self, key: object) -> Specialization | None:
        """Return the specialization for a key, which is the most recently used then; None where there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry.build

    def put(self, key: object, build: Specialization) -> None:
        """Keep a specialization, in place of one for the same key."""
        with self._lock:
            if key in self._entries:
                self._drop(key)
            self._entries[key] = _Entry(key, build)
            build.key = key
            self._shrink(build)
        self._warn()

    def remove(self, build: Specialization) -> None:
        """Drop a specialization if it is kept."""
        with self._lock:
            entry = self._entries.get(build.key)
            if entry is not None and entry.build is build:
                self._drop(build.key)

    def to_dict(self) -> dict[Any, Specialization]:
        """Return all specializations by their keys."""
        with self._lock:
            return {key: entry.build for key, entry in self._entries.items()}

    def count(self, build: Specialization, program: Program) -> bool:
        """Count what a compiled program holds, and drop what was not used for longest beyond the bounds; never this one.

        Return whether the program is new here.
        """
        with self._lock:
            entry = self._entries.get(build.key)
            if entry is None or entry.build is not build:
                return True  # it was dropped, or replaced, meanwhile
            if entry.program is program:
                return False
            self._uncount(entry)
            entry.program = program
            for executable in {id(one): one for one in program.executables}.values():
                shared = self._executables.get(id(executable))
                if shared is None:
                    shared = self._executables[id(executable)] = _Shared(count_bytes(executable), executable.idle_threads)
                    self._add(shared, 1)
                shared.users += 1
            self._shrink(build)
        self._warn()
        return True

    def _warn(self) -> None:
        """Issue the SignatureWarning, once."""
        if self._dropped and not self._warned:
            self._warned = True
            warn_of_signatures(self._max_bytes)

    def _add(self, shared: _Shared, sign: int) -> None:
        self.nbytes += sign * shared.nbytes
        self.idle_threads += sign * shared.threads

    def _uncount(self, entry: _Entry) -> None:
        program, entry.program = entry.program, None
        for number in {id(one) for one in program.executables} if program is not None else ():
            shared = self._executables[number]
            shared.users -= 1
            if not shared.users:
                self._add(self._executables.pop(number), -1)

    def _shrink(self, newest: Specialization) -> None:
        while self._is_full:
            key = next((key for key, entry in self._entries.items() if entry.build is not newest), None)
            if key is None:
                return
            self._drop(key)
            self._dropped = True

    @property
    def _is_full(self) -> bool:
        has_threads = self.idle_threads > self.max_threads and self._max_bytes < NO_LIMIT
        return has_threads or max(self.nbytes, len(self._entries) * LEAST_BYTES) > self._max_bytes

    def _drop(self, key: object) -> None:
        entry = self._entries.pop(key)
        self._uncount(entry)
        self._forget(entry)
        entry.build.close_in_background()
        close_in_background(partial(_ignore, entry))  # freeing a large graph takes a while, too

    def clear(self) -> None:
        """Drop all; the last user of each closes it."""
        with self._lock:
            self._entries.clear()
            self._prepared.clear()
            self._executables.clear()
            self.nbytes = self.idle_threads = 0

    # ------------------------------------------------------------------ prepared calls

    def prepare(self, types: object, call: FastPath) -> bool:
        """Keep a prepared call for inputs of these types and shapes; return whether it leads to a specialization that is kept."""
        with self._lock:
            entry = self._entries.get(call.build.key) if call.build is not None else None
            if entry is None or entry.build is not call.build:
                return False  # it was dropped, or replaced, meanwhile
            self._prepared[types] = call, entry
            self._prepared.move_to_end(types)
            entry.prepared.add(types)
            while len(self._prepared) > MAX_READY:
                oldest, (_, owner) = self._prepared.popitem(last=False)
                owner.prepared.discard(oldest)
            return True

    def find_prepared(self, types: object) -> FastPath | None:
        """Return the prepared call for inputs of these types and shapes. Takes no lock: other threads' calls do not delay it."""
        found = self._prepared.get(types)
        if found is None:
            return None
        try:
            self._prepared.move_to_end(types)
            self._entries.move_to_end(found[1].key)
        except KeyError:
            pass  # another thread has dropped it just now; it is whole as long as it is in use
        return found[0]

    def forget_calls(self) -> None:
        """Drop all prepared calls."""
        with self._lock:
            for entry in self._entries.values():
                self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        for types in entry.prepared:
            self._prepared.pop(types, None)
        entry.prepared.clear()


def _ignore(_: object) -> None:
    """Take the last reference."""
