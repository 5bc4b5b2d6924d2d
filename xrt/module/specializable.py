"""From the values of a call to what serves it: a specialization, found or planned, or the program of the first tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

from xrt.graph import FrozenDict
from xrt.module.dispatch import NOTHING, FastPath
from xrt.module.specialization import Specialization, add_outputs, optimize

if TYPE_CHECKING:
    from collections.abc import Callable

    from xrt.cache import CompileCache
    from xrt.graph import Function
    from xrt.module.buckets import Buckets
    from xrt.module.model_source import ModelSource
    from xrt.module.module import XRTModule
    from xrt.module.options import ModuleOptions
    from xrt.module.specialization_cache import SpecializationCache
    from xrt.module.stored_plans import StoredPlans
    from xrt.module.tiers import Tiers
    from xrt.placement.auto import AutoPlacement, Placer
    from xrt.placement.engine_list import EngineList
    from xrt.precision.lowering import LoweringWithinBudget
    from xrt.runtime import Program

__all__ = ["Specializable"]


class Specializable:
    """A module that has a specialization for each signature."""

    _settings: ModuleOptions
    _cache: CompileCache
    _engines: EngineList
    _source: ModelSource
    _buckets: Buckets | None
    _stored: StoredPlans | None
    _specializations: SpecializationCache
    _tiers: Tiers | None
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
    _first_sizes: object = None
    """The shapes of the first call, where they have a program of their own and others share one."""

    def _make_tiers(self) -> Tiers | None:
        """Return what serves calls before their programs are ready; None where none is asked for."""
        settings = self._settings
        if settings.first != "quickest" and not self._engines.is_auto and not settings.sizes and not settings.background:
            return None
        from xrt.module.tiers import make_tiers  # for those alone who have open sizes

        return make_tiers(self, settings, self._served, self._engines)

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

    def settle(self, seconds: float | None = None) -> None:
        """Wait until nothing is measured or compiled in the background, so many seconds at most; raises TimeoutError then."""
        if self._tiers is not None:
            self._tiers.work.wait(seconds)

    def _adopt_decision(self, build: Specialization) -> None:
        """Let all sizes of a range be placed as a build has been placed by measurement."""
        if build.sizes and build.tuned is not None and (ranged := self._automatic.ranged) is not None:
            from xrt.module.tiers import adopt

            ranged.record(self._automatic, build.sizes, build.tuned)
            adopt(cast("XRTModule", self), build.sizes)

    @cached_property
    def _automatic(self) -> AutoPlacement:
        made = self._settings.make_auto_placement(self._engines, self._cache, self._everything, self._lowering)
        if self._tiers is not None:
            made.ranged = self._tiers.make_ranged_placement(self._served, self._settings, self._engines)
        return made

    def _choose(self, values: Sequence[Any], fetch: tuple[str, ...]) -> tuple[Specialization, Program | None]:
        """Return what serves a call: its own build, or the stand-in with its program while that is made in the background."""
        stand_in = None if fetch or self._tiers is None else self._tiers.choose(self._get_key(values, ()), values)
        if stand_in is None:
            return self._specialize(values, fetch), None
        with self._lock:
            self._last, self._fast_path = stand_in, NOTHING
        return stand_in, stand_in.program()

    def _find_reason_for_sizes(self, values: Any) -> str:
        """Return why each set of sizes has a program of its own; empty where one program serves all.

        Where an engine must be asked about the model, the first call decides for all.
        """
        engines, source = self._engines, self._source
        if self._buckets is not None:
            return "buckets= pads to a few of them"
        if self._settings.dynamic == "never" or not engines.can_be_dynamic:
            return "an engine needs every extent fixed" if self._settings.dynamic != "never" else "dynamic='never'"
        if self._settings.first == "quickest" and self._settings.dynamic == "auto" and not engines.are_dynamic:
            return "the program for all sizes serves until that of the sizes is ready"
        if self._why_sizes is None:
            if engines.are_dynamic:
                return ""
            if source.is_traced or source.key([None] * len(source.inputs), False) is None:
                return "the model has no symbolic dims"
            from xrt.module.dynamic_shapes import find_reason_for_sizes

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
        if self._settings.dynamic != "auto" or engines.are_dynamic or not engines.can_be_dynamic:
            return False
        is_kept = stored is not None and stored.has(None) and not stored.has(sizes)
        if self._first_sizes is None and self._why_sizes is None and not is_kept:
            self._first_sizes = sizes
        return sizes == self._first_sizes

    def _is_empty(self, values: Sequence[Any]) -> bool:
        """Whether a symbolic dim is 0 in a call, which programs for all sizes of some engines refuse."""
        return not self._engines.are_dynamic and any(values[place].shape[axis] == 0 for place, axis, _ in self._open_axes)

    @cached_property
    def _open_axes(self) -> tuple[tuple[int, int, str], ...]:
        from xrt.placement.size_ranges import list_open_axes

        return tuple(list_open_axes(self._served.inputs))

    def _get_key(self, values: Any, fetch: tuple[str, ...]) -> tuple[object, tuple[str, ...]]:
        if values is None and not self._served.is_traced:
            return None, fetch
        sizes = self._served.key(values or [], False)
        has_own = sizes is None or self._is_first_size(sizes) or self._find_reason_for_sizes(values) or self._is_empty(values)
        return sizes if has_own else self._served.key(values or [], True), fetch

    def _specialize(
        self,
        values: Any,
        fetch: tuple[str, ...] = (),
        place: Placer | None = None,
        *,
        is_last: bool = True,
        progress: Any = None,
    ) -> Specialization:
        """Return the build for such values (None: for the model as declared), not yet compiled; a new one with ``place``."""
        return self._find_or_plan(self._get_key(values, fetch), values, place, is_last=is_last, progress=progress)

    def _find_or_plan(
        self,
        key: tuple[object, tuple[str, ...]],
        values: Any,
        place: Placer | None = None,
        *,
        is_last: bool = False,
        progress: Any = None,
    ) -> Specialization:
        """Return the build of a key, which values such as these have."""
        fetch = key[1]
        build = self._specializations.get(key) if place is None else None
        if build is None:
            with self._planning:
                build = self._specializations.get(key) if place is None else None
                if build is None:
                    stored = self._stored.find(key[0]) if self._stored and place is None and not fetch else None
                    build = stored or self._planned(key, values, place, progress)
                    self._specializations.put(key, build)
                    if self._tiers is not None and build.sizes:
                        self._tiers.measure_later(build.sizes, values)
        with self._lock:
            if is_last and not fetch and build is not self._last:
                self._last, self._fast_path = build, NOTHING
        return build

    def _planned(self, key: tuple[object, tuple[str, ...]], values: Any, place: Placer | None, progress: Any) -> Specialization:
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
            sizes = self._tiers.read_sizes(self._served.inputs, values) if self._tiers and values is not None else sizes
            terms = base.tuned if base else None, place, began, sizes, progress
            self._engines, place = self._automatic.choose(simple, values, *terms)
        build = Specialization(simple, self._engines, self._settings, self._cache, original=function, place=place)
        if self._tiers and sizes and not fetch:
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
        return quantize_as_asked(simple, function, self._settings)

    def _replace(self, old: Specialization, new: Specialization) -> None:
        """Let a compiled build serve from the next call on, in place of another."""
        with self._lock:
            if self._closed or self._specializations.get(old.key) is not old:
                return
            self._specializations.put(old.key, new)
            self._specializations.count(new, new.program())
            if self._last is old:
                self._last, self._fast_path = new, NOTHING
