"""Calls that do not wait: a program for all sizes serves them while their own are searched for and compiled in the background."""

from __future__ import annotations

import logging
import operator
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import InputError, OptionError, XRTError, did_you_mean
from xrt.module.specialization import Specialization, optimize
from xrt.placement.background import BackgroundWork
from xrt.placement.engine_list import is_always_dynamic
from xrt.placement.ranged import RangedPlacement
from xrt.placement.size_ranges import SizeRanges, name_open_axes, read_sizes
from xrt.runtime import to_host

if TYPE_CHECKING:
    from xrt.graph import Function, Value
    from xrt.module.model_source import ModelSource
    from xrt.module.module import XRTModule
    from xrt.module.options import ModuleOptions
    from xrt.placement.engine_list import EngineList
    from xrt.placement.size_ranges import Sizes
    from xrt.worker.background import BackgroundWorker

__all__ = ["Tiers", "adopt", "check_size_options", "make_tiers"]

MOST_MET = 4096
"""Sizes of which a module remembers that it has met them."""
MOST_ADOPTED = 16
"""Programs of a range that are compiled for a new plan before they are asked for; others are dropped."""

_log = logging.getLogger(__name__)


def check_size_options(settings: ModuleOptions, source: ModelSource, engines: EngineList) -> None:
    """Raise OptionError for options of sizes that cannot mean anything for this model and list of engines."""
    names = list(read_names(source))
    given = {"sizes": bool(settings.sizes), "background": settings.background}
    for option in (option for option, is_given in given.items() if is_given):
        if not engines.is_auto:
            raise OptionError(f"{option}= is of placement by measurement; pass engine='auto', or a list with 'auto' in it")
        if not names:
            raise OptionError(f"{option}= is of symbolic dims, and the inputs of the model have none")
    if settings.background and settings.lock is not None:
        raise OptionError("background=True measures, and lock= gives a plan without measuring; leave one of them out")
    on_host = engines.context.device == "cpu" and not engines.devices
    if settings.first == "quickest" and (source.is_traced or not on_host):
        why = "runs on a device" if not on_host else "is an xrt.Graph, which is traced for its inputs"
        raise OptionError(f"first='quickest' needs one program for all sizes, and there is none for a module that {why}")
    for name in settings.sizes:
        if name not in names:
            raise OptionError(f"sizes names {name!r}, which is no symbolic dim of the inputs.{did_you_mean(name, names)}")


def read_names(source: ModelSource) -> tuple[str, ...]:
    """Return the names of the symbolic dims of a model; none for one that is traced."""
    if source.is_traced:
        return ()
    return tuple(dict.fromkeys(name_open_axes(source.inputs)))


class _Shaped:
    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.shape = shape


def make_tiers(module: Any, settings: ModuleOptions, source: ModelSource, engines: EngineList) -> Tiers | None:
    """Return the tiers of a module; None where its model has no symbolic dims. Raises OptionError as `check_size_options`."""
    check_size_options(settings, source, engines)
    return Tiers(module, settings, engines) if read_names(source) or settings.first == "quickest" else None


class Tiers:
    """What a module has of tiers: its stand-in, and its work in the background."""

    def __init__(self, module: XRTModule, settings: ModuleOptions, engines: EngineList) -> None:
        """The stand-in is made on first use, so nothing is compiled here."""
        self._module = weakref.ref(module)
        wanted = settings.first == "quickest" or (settings.first is None and engines.is_auto)
        self._is_on = wanted and not engines.are_dynamic and engines.context.device == "cpu" and not engines.devices
        self._stand_in: Specialization | None = None
        self._was_tried = False
        self._lock = threading.Lock()
        self._met: OrderedDict[object, int] = OrderedDict()
        self._waiting: dict[object, list[Any]] = {}
        self._failed: set[object] = set()
        self.work = BackgroundWork()
        self.calls = 0
        """Calls that the stand-in has served."""

    # ------------------------------------------------------------------ the first tier

    def choose(self, key: object, values: Sequence[Any]) -> Specialization | None:
        """Return the stand-in for a call whose own program is not ready, and have that one made.

        None where it is ready or cannot be made in the background, and where there is no stand-in.
        """
        module = self._module()
        if not self._is_on or module is None or key in self._failed or not module._find_reason_for_sizes(values):
            return None
        own = module._specializations.get(key)
        if own is not None and own.is_compiled:
            return None
        stand_in = self._get_stand_in(module)
        if stand_in is None:
            return None
        with self._lock:
            is_first, self.calls = not self.calls, self.calls + 1
            count = self._met[key] = self._met.pop(key, 0) + 1
            while len(self._met) > MOST_MET:
                self._met.popitem(last=False)
        if (count > 1 or is_first) and self._is_worth_a_place(key):  # a size that is met once is not worth a compile
            with self._lock:
                is_new = key not in self._waiting
                if is_new:
                    self._waiting[key] = _copy(values)
            if is_new:  # a job of its own for each size that waits: the job takes the size that was met most often
                self.work.add(object(), partial(_prepare, self._module))
        return stand_in

    def _is_worth_a_place(self, key: object) -> bool:
        """Whether the program of a size would push out none that the stand-in has served more often.

        Programs that serve are not the least recently used; the rule is that of TinyLFU (Einziger et al., arXiv:1512.00727).
        """
        module = self._module()
        oldest = module._specializations.find_next_to_drop() if module is not None else None
        return oldest is None or self._met.get(key, 0) > self._met.get(oldest, 0)

    def take_next(self) -> tuple[object, list[Any]] | None:
        """Return the key and the values of the size that waits and was met most often; None where none is worth a compile."""
        with self._lock:
            if not self._waiting:
                return None
            key = max(self._waiting, key=lambda one: self._met.get(one, 0))
            values = self._waiting.pop(key)
        module = self._module()
        own = module._specializations.get(key) if module is not None else None
        if key in self._failed or (own is not None and own.is_compiled):  # it was met again while it was made
            return None
        return (key, values) if self._is_worth_a_place(key) else None

    def _list_engines(self, stand_in: Specialization) -> set[str]:
        return {launch.engine for launch in stand_in.plan.launches}

    def _get_stand_in(self, module: XRTModule) -> Specialization | None:
        with self._lock:
            if not self._was_tried:
                self._was_tried = True
                try:
                    self._stand_in = _make_stand_in(module)
                except XRTError as error:
                    _log.info("no program for all sizes serves first: %s", error)
            return self._stand_in

    def give_up(self, key: object) -> None:
        """Let the calls of a key make their program themselves: they raise what it raised in the background."""
        self._failed.add(key)

    def is_stand_in(self, build: Specialization | None) -> bool:
        return build is not None and build is self._stand_in

    def remarks(self, build: Specialization) -> tuple[str, ...]:
        """Return what `explain` says of the tiers."""
        if not self.is_stand_in(build):
            return (f"{self.calls} earlier calls were served by a program for all sizes",) * bool(self.calls)
        engines = ", ".join(sorted(self._list_engines(build)))
        return (f"served by a program for all sizes on {engines}, while the wanted one is made in the background",)

    def close(self) -> None:
        """End the work in the background, and let go of the stand-in."""
        self.work.close()
        with self._lock:
            self._waiting.clear()
            self._stand_in, self._was_tried = None, True

    # ------------------------------------------------------------------ ranges that are measured later

    def measure_later(self, sizes: Sizes, values: Sequence[Any]) -> None:
        """Have the range of these sizes measured in the background."""
        ranged = self._get_ranged()
        if ranged is not None and ranged.background and not ranged.ranges.is_measured(sizes):
            self.work.add(("range", ranged.ranges.get_key(sizes)), partial(_measure, self._module, sizes, _copy(values)))

    @staticmethod
    def read_sizes(inputs: Sequence[Value], values: Sequence[Any]) -> Sizes:
        """Return the sizes that values give to symbolic dims."""
        return read_sizes(inputs, values)

    def make_ranged_placement(self, source: ModelSource, settings: ModuleOptions, engines: EngineList) -> RangedPlacement:
        """Return the placement by ranges of sizes."""
        get = source.get_declared_function
        specialize = partial(_specialize_at, source, settings, engines)
        return RangedPlacement(SizeRanges(settings.sizes), get, specialize, settings.background)

    def _get_ranged(self) -> Any:
        module = self._module()
        return module._automatic.ranged if module is not None else None


def _specialize_at(source: ModelSource, settings: ModuleOptions, engines: EngineList, sizes: Sizes) -> Function:
    """Return what is planned for inputs of those sizes."""
    names = iter(name_open_axes(source.inputs))
    shaped = [
        _Shaped(tuple(dim if isinstance(dim, int) else sizes[next(names)] for dim in getattr(value.type, "shape", None) or ()))
        for value in source.inputs
    ]
    return optimize(source.function(shaped, dynamic=False), fold=settings.fold_constants, engines=engines)


def _copy(values: Sequence[Any]) -> list[Any]:
    """Return copies: the caller may write to the arrays before they are read."""
    return [np.array(value) if isinstance(value, np.ndarray) else value for value in to_host(list(values))]


def _make_stand_in(module: XRTModule) -> Specialization | None:
    """Return the compiled program of the model with its symbolic dims, on engines that keep them; None where none takes it.

    A search has the engine that is ready soonest in front, a model of fixed sizes one that does not compile for them.
    """
    engines, settings = module._engines, module._settings
    named = [one for one in engines.engines if one.spec != engines.implicit]
    if engines.is_auto:
        first = next((one for one in named if is_always_dynamic(one)), None)  # others would have to be imported
        dynamic = [first] if first is not None else []
    else:
        takes = operator.attrgetter("supports_dynamic_shapes") if read_names(module._source) else is_always_dynamic
        dynamic = [one for one in named if takes(one)]
    implicit = [one for one in engines.engines if one.spec == engines.implicit]
    if not dynamic and not implicit:
        return None
    chosen = replace(engines, engines=(*dynamic, *implicit), is_auto=False)
    function = module._served.get_declared_function()
    simple = optimize(function, fold=settings.fold_constants, engines=chosen)
    clustering = replace(settings.clustering, pins=tuple(p for p in settings.clustering.pins if p.engine in _names(dynamic)))
    made = Specialization(simple, chosen, replace(settings, clustering=clustering), module._cache, original=function)
    made.program()
    return made


def _names(engines: Sequence[Any]) -> set[str]:
    return {name for one in engines for name in (one.name, one.spec)}


def _prepare(of: weakref.ref[XRTModule]) -> None:
    """Search for the plan of the size that waits and was met most often, and compile it; from then on it serves."""
    module = of()
    if module is None or module._closed or (tiers := module._tiers) is None or (found := tiers.take_next()) is None:
        return
    key, values = found
    try:
        build = module._specialize(values, is_last=False, progress=tiers.work)
        build.program(tiers.work.worker)
        module._program(build)
    except InputError:
        if not module._closed:
            tiers.give_up(key)
            raise
    except Exception:
        tiers.give_up(key)
        raise


def _measure(of: weakref.ref[XRTModule], sizes: Sizes, values: list[Any]) -> None:
    """Measure the range of these sizes, and change its programs to what was found."""
    module = of()
    if module is None or module._closed or module._tiers is None:
        return
    automatic = module._automatic
    if automatic.ranged is not None:
        automatic.ranged.measure(automatic, sizes, values, module._tiers.work)
        adopt(module, sizes, module._tiers.work.worker)


def adopt(module: XRTModule, sizes: Sizes, elsewhere: BackgroundWorker | None = None) -> None:
    """Replace the programs of a range, the latest by compiled ones, after another placement was decided for it."""
    automatic = module._automatic
    ranged = automatic.ranged
    if ranged is None:
        return
    found = ranged.ranges.find(sizes)
    mine = ranged.ranges.get_key(sizes)
    with module._planning:  # what is planned afterwards knows the decision
        builds = [one for one in module._specializations if one.sizes and ranged.ranges.get_key(one.sizes) == mine]
    for number, old in enumerate(reversed(builds)):
        if number >= MOST_ADOPTED or not old.is_compiled or found is None:
            module._specializations.remove(old)
            continue
        new = old.copy(partial(automatic.adapt, found, old.sizes))
        if new.plan == old.plan:
            old.tuned = new.tuned
        else:
            new.program(elsewhere)
            module._replace(old, new)
