"""``engine="auto"``: which engines stand for it here, and the placement by measurement of each signature."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.engines import CompileContext, GraphCompiler, registry
from xrt.engines.deferred import Deferred
from xrt.engines.registry import EngineStatus
from xrt.errors import EngineUnavailable, OptionError, PlacementWarning, PlanError, warn
from xrt.graph import FrozenDict, Function, TensorType
from xrt.module.reference import Bench
from xrt.partition import Plan
from xrt.partition.capability import Capability
from xrt.partition.devices import Homes
from xrt.partition.explicit import assigned, homes_of
from xrt.runtime import kind_of
from xrt.runtime.timing import Clock
from xrt.tune import Account, CostStore, Tuned, tune
from xrt.tune.account import account_of
from xrt.tune.driving import by_priority, plain, table_of
from xrt.tune.search import Told, unheard

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.module.settings import EngineList, Settings

__all__ = ["AUTO", "Automatic", "Place", "asks_for_auto", "engines_at_hand", "next_best", "ranked_engines"]

AUTO = "auto"

Place: TypeAlias = Callable[[Function], Tuned]
"""Places a Function."""

_FIRST = ("ort", "openvino", "xla", "tvm", "iree")
"""The order in which engines are used where nothing can be measured; others follow by name, and the reference comes last."""
_LAST = "toy"

LEAST_PATIENCE = 2.0
"""Seconds that a witness has in any case for a piece on which an engine and the reference differ."""


def asks_for_auto(asked: Any) -> bool:
    """Whether a module's ``engine`` asks for placement by measurement."""
    return asked == AUTO or (isinstance(asked, list | tuple) and AUTO in [one for one in asked if isinstance(one, str)])


# ------------------------------------------------------------------ which engines


def engines_at_hand(
    asked: Sequence[Any],
    context: CompileContext,
    store: CostStore | None,
    *,
    strict: bool,
    devices: Mapping[str, str] = FrozenDict(),
) -> tuple[list[GraphCompiler], tuple[str, ...]]:
    """Return the engines that stand for a list with "auto" in it, and one line for each that is left out.

    Those that the list names beside it, else all that are registered. One that is named and missing, or broken, is a
    PlacementWarning; with ``strict`` it is the EngineUnavailable that it is elsewhere. Raises it too where none is left.
    ``devices`` are those that were asked for engines, by name or spec.
    """
    named = [one for one in asked if one != AUTO]
    if named:
        found, left_out = _those_of(named, context, store, devices, strict=strict)
    else:
        found, left_out = _all_of(context, store, devices, strict=strict)
    if not found and named:
        registry.create(named[0])  # raises what it lacks
    if not found:
        raise OptionError(f"no engine is left for engine='auto': {'; '.join(left_out) or 'none is registered'}")
    return found, tuple(left_out)


def _those_of(
    named: Sequence[Any], context: CompileContext, store: CostStore | None, devices: Mapping[str, str], *, strict: bool
) -> tuple[list[GraphCompiler], list[str]]:
    found: list[GraphCompiler] = []
    left_out = []
    known = _remembered(store)
    for one in named:
        reason: str | None
        try:
            engine = Deferred(known[one]) if isinstance(one, str) and one in known else registry.create(one)
            reason = _not_there(engine, context, devices)
            found += [] if reason else [engine]
        except EngineUnavailable as error:
            if strict:
                raise
            reason = str(error)
        if reason:
            left_out.append(f"engine {str(one)!r} is left out: {reason}")
            warn(left_out[-1], PlacementWarning)
    _remember([engine.name for engine in found if engine.spec == engine.name and engine.name not in known], store)
    return found, left_out


def _remembered(store: CostStore | None) -> dict[str, EngineStatus]:
    """Return what an earlier process has found of engines that were ready: their libraries need not be imported to know."""
    known = store.statuses() if store is not None else {}
    return {name: status for name, status in known.items() if status.state == "ready"}


def _remember(names: Sequence[str], store: CostStore | None) -> None:
    """Keep what is the case with engines that were created just now, beside what is known of others."""
    registered = [name for name in names if name in registry.names()]
    if store is not None and registered:
        store.keep_statuses(list({**store.statuses(), **{name: registry.probe(name) for name in registered}}.values()))


def _all_of(
    context: CompileContext, store: CostStore | None, devices: Mapping[str, str], *, strict: bool
) -> tuple[list[GraphCompiler], list[str]]:
    """Return all that are ready; of those that are not, what is not installed is nobody's mistake."""
    found: list[GraphCompiler] = []
    left_out = []
    for status in _statuses(store):
        reason: str | None = status.cause
        if status.state == "ready":
            engine = Deferred(status)
            reason = _not_there(engine, context, devices) or engine.unsupported_options(context)
            found += [] if reason else [engine]
        elif status.state == "broken" and strict:
            registry.create(status.name)
        if reason:
            left_out.append(f"engine {status.name!r} is left out: {reason}")
        if status.state == "broken":
            warn(left_out[-1], PlacementWarning)
    return found, left_out


def _statuses(store: CostStore | None) -> list[EngineStatus]:
    """Return what is the case with all registered engines, as an earlier process found it if nothing was installed since."""
    names = ranked_engines()
    known = store.statuses() if store is not None else {}
    if set(names) <= set(known):
        return [known[name] for name in names]
    found = [registry.probe(name) for name in names]
    if store is not None and all(status.state != "broken" for status in found):  # what is broken may be mended in any way
        store.keep_statuses(found)
    return found


def ranked_engines() -> list[str]:
    """Return the names of all registered engines, in the order in which they are used where nothing can be measured."""
    names = registry.names()
    known = [name for name in _FIRST if name in names]
    others = [name for name in names if name not in (*_FIRST, _LAST)]
    return [*known, *others, *([_LAST] if _LAST in names else [])]


def _not_there(engine: GraphCompiler, context: CompileContext, devices: Mapping[str, str]) -> str | None:
    """Return why an engine cannot serve where it was asked for; what was asked of no such engine is its list's mistake."""
    device = devices.get(engine.spec, devices.get(engine.name, context.device))
    if kind_of(device) not in engine.devices:
        return f"it runs on {', '.join(engine.devices)}, and not on {device}"
    return None


# ------------------------------------------------------------------ where nodes go


@dataclass(eq=False, slots=True)
class Automatic:
    """Places signatures of one module."""

    engines: EngineList
    """With a lock those alone that its plan needs, as long as it holds."""
    settings: Settings
    cache: CompileCache
    everything: Callable[[], EngineList]
    """Gives all engines that were asked for."""
    clock: Clock = time.perf_counter
    _is_whole: bool = False

    def chosen(
        self, function: Function, values: Sequence[Any] | None, base: Tuned | None, place: Place | None, began: float
    ) -> tuple[EngineList, Place | None]:
        """Return the engines of a signature, and what places it: ``place`` where the caller has it, else the lock, else a search.

        Nothing places it where nodes go by the order of the list. The budget counts from
        ``began`` on. Raises LockError as `Locked.tuned` does.
        """
        if not self.engines.is_auto:
            return self.engines, place
        if place is None and base is None and self.settings.lock is not None:
            tuned = self.settings.lock.tuned(function, self.engines, self.settings)
            if tuned is not None:
                return self.engines, lambda function: tuned
        if base is None and self.settings.lock is not None and not self._is_whole:
            self.engines, self._is_whole = self.everything(), True
        return self.engines, place or self.placing(values, base, began=began)

    def placing(
        self,
        values: Sequence[Any] | None,
        base: Tuned | None = None,
        *,
        budget: float | None = None,
        progress: Told | None = None,
        anew: bool = False,
        began: float | None = None,
    ) -> Place:
        """Return what places a signature's Function: by measurement on those values, or, with further outputs, like the base."""
        if base is not None:
            return partial(self.like, base)
        seconds = self.settings.budget if budget is None else budget
        return partial(self.tuned, values=values, budget=seconds, progress=progress or unheard, anew=anew, began=began)

    def tuned(
        self,
        function: Function,
        values: Sequence[Any] | None,
        budget: float,
        *,
        progress: Told,
        anew: bool,
        began: float | None,
    ) -> Tuned:
        """Return the placement that a search of so many seconds finds, or has found before; ``anew`` searches in any case.

        The seconds count from ``began`` on, by the clock, where the call has done something before.
        """
        options, homes = self.settings.clustering, self.engines.homes
        context = self.engines.context
        engines, implicit, left_out = self._taking(function)
        if (name := _open_input(function)) is not None and values is None:
            reason = f"input {name!r} has extents that only a call tells; a call of the module measures"
            return by_priority(function, engines, context, options, implicit, reason, homes.by_engine)
        with Bench(context.threads, max(budget / 4, LEAST_PATIENCE)) as bench:
            found = tune(
                function,
                engines,
                context,
                budget=budget,
                cache=self.cache,
                reference=bench.reference(),
                store=CostStore.beside(self.cache),
                inputs=values,
                options=options,
                implicit=implicit,
                progress=progress,
                memory_limit=self.settings.memory_limit,
                anew=anew,
                spent=0.0 if began is None else self.clock() - began,
                devices=homes.by_engine,
                graph=self.settings.cuda_graph,
            )
        return replace(found, notes=(*found.notes, *left_out)) if left_out else found

    def like(self, base: Tuned, function: Function) -> Tuned:
        """Return the placement of the same model with further outputs: as it was placed without them, where that can be."""
        engines, implicit, _ = self._taking(function)
        context, options, homes = self.engines.context, self.settings.clustering, self.engines.homes
        try:
            plan = assigned(function, engines, homes_of(base.plan), implicit=implicit, device=homes)
            return replace(base, plan=plan, notes=("placed as it is without the values that are fetched",))
        except PlanError:
            reason = "what is fetched needs nodes that were not placed"
            return by_priority(function, engines, context, options, implicit, reason, homes.by_engine)

    def account(self, plan: Plan, tuned: Tuned | None, function: Function) -> Account | None:
        """Return what the chosen plan costs, by all that is known here; None where it was not chosen by measurement."""
        if tuned is None:
            return None
        engines, store, homes = plain(self.engines.engines), CostStore.beside(self.cache), self.engines.homes
        table = tuned.table
        if not table.regions and store is not None:
            table = table_of(store, engines, self.engines.context, homes.by_engine)
        known = [engine for engine in tuned.asked or engines if engine.spec != self.engines.implicit]
        return account_of(plan, tuned, function, known, table, homes)

    def _taking(self, function: Function) -> tuple[list[GraphCompiler], str | None, tuple[str, ...]]:
        """Return the engines that are asked; off the cpu, the one that nobody has named only where the others leave a node.

        An engine there that takes nothing at all on its device is none of them, and the third is a line for each of these.
        """
        implicit, homes = self.engines.implicit, self.engines.homes
        named = [engine for engine in self.engines.engines if engine.spec != implicit]
        if all(homes.of(engine.spec) == "cpu" for engine in self.engines.engines):
            return list(self.engines.engines), implicit, ()
        answers = Capability.of(function, named, [homes.of(engine.spec) for engine in named])
        idle = {at: line for at, engine in enumerate(named) if (line := _idle(function, answers, at, engine, homes))}
        taking = [engine for at, engine in enumerate(named) if at not in idle]
        if (taking and implicit is None) or all(answers.willing()):
            return taking, None, tuple(idle.values())
        return [*taking, *self.engines.engines[len(named) :]], implicit, tuple(idle.values())


def _idle(function: Function, answers: Capability, at: int, engine: GraphCompiler, homes: Homes) -> str:
    """Return what to say of an engine that takes no node on a device; nothing where it takes one, or is on the cpu."""
    if homes.of(engine.spec) == "cpu" or any(at in willing for willing in answers.willing()) or not function.nodes:
        return ""
    return f"engine {engine.spec!r} takes nothing on {homes.of(engine.spec)}: {answers.reason(0, at)}"


def _open_input(function: Function) -> str | None:
    """Return the first input whose extents are not all known."""
    types = ((value.name, value.type) for value in function.inputs)
    return next((name for name, type_ in types if not isinstance(type_, TensorType) or not type_.is_static), None)


def next_best(tuned: Tuned, refused: Sequence[tuple[str, str, str]]) -> Plan | None:
    """Return the best contender that puts no node where it was refused; None where there is none."""
    gone = {(node, engine) for node, engine, _ in refused}
    return next((plan for plan in _sound(tuned) if gone.isdisjoint(homes_of(plan).items())), None)


def _sound(tuned: Tuned) -> Iterator[Plan]:
    return (one.plan for one in tuned.race.contenders if one.verdict in ("won", "tie", "lost"))
