"""`tune`: what was decided before, else a search within the budget; what comes of it is kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xrt.cache import CompileCache
from xrt.cache.disk.costs import CostStore
from xrt.engines import CompileContext, GraphCompiler
from xrt.errors import CacheError, InputError, OptionError, PlacementWarning, XRTError, warn
from xrt.graph import FrozenDict, Function
from xrt.models import sample_inputs
from xrt.partition import ClusteringOptions, partition
from xrt.partition.costs import CostTable
from xrt.partition.devices import Homes
from xrt.runtime import on_device, to_host
from xrt.runtime.isolation import Isolated
from xrt.runtime.timing import Clock
from xrt.tune import decision
from xrt.tune.bounds import BOUNDS, Bounds
from xrt.tune.search import Search, Told, unheard
from xrt.tune.tuned import MOST_SEARCHES, Tuned, more_than
from xrt.tune.values import Reference

__all__ = ["remembered", "table_of", "tune"]

_log = logging.getLogger(__name__)


def tune(
    function: Function,
    engines: Sequence[GraphCompiler],
    context: CompileContext,
    *,
    budget: float,
    cache: CompileCache,
    reference: Reference,
    store: CostStore | None = None,
    inputs: Sequence[Any] | None = None,
    options: ClusteringOptions = ClusteringOptions(),
    implicit: str | None = None,
    progress: Told = unheard,
    bounds: Bounds | None = None,
    memory_limit: int | None = None,
    anew: bool = False,
    devices: Mapping[str, str] = FrozenDict(),
    graph: bool = False,
    spent: float = 0.0,
    clock: Clock = time.perf_counter,
) -> Tuned:
    """Return the quickest plan that a search of ``budget`` seconds finds, or the one that an earlier search has found.

    The Function's extents must be known. ``engines`` stand by priority, the ``implicit`` one last; ``reference`` says what is
    right. ``inputs`` are values of a call, which are not changed; random ones stand in for None. What was measured before is
    taken from the ``store``, and what is measured now is added to it; a decision of the store is taken unless its
    search had a smaller budget, or ``anew``.

    On a device, that of the context or, by spec, those of ``devices``, whoever is timed waits for the device, on arrays that
    lie there already; the ``graph`` of a plan is recorded where it can be. Raises DeviceError where one is not at hand.

    Pieces are compiled and measured in workers, where a hang or a crash costs `Bounds.limit` once. The first is the whole on
    the engine that is ready first; engines are imported and asked in threads, which are abandoned where they take too long. Plans
    race in this process, as they are deployed, once their engines have proved themselves. The budget is overrun by `Bounds.grace`
    at most, and by one call; only where no engine has answered yet, it is waited for one. A worker may have ``memory_limit``
    bytes of address space, unless the bounds say otherwise. An interrupt (Ctrl-C) ends the search, and gives the best by then.

    ``spent`` seconds of it are gone already, but half of it is left in any case.

    Raises OptionError for a budget that is none, PlanError where nothing takes a node.
    """
    check_budget(budget)
    context = on_device(context.device, context)
    known = (
        remembered(function, engines, context, store, options, implicit, budget, devices, graph) if store is not None else None
    )
    if known is not None and not anew and (not known.is_provisional or known.searches >= MOST_SEARCHES):
        return known
    values, reason = _values(function, inputs)
    if values is None:
        return by_priority(function, engines, context, options, implicit, reason, devices)
    bounds = bounds or replace(BOUNDS, memory=memory_limit)
    given = (values, reference, cache, options, implicit, budget, bounds, progress, clock, devices, graph, store)
    search = Search(function, engines, context, *given)
    search.began -= min(spent, budget / 2)
    if store is not None:
        search.table = table_of(store, engines, context, devices)
    tuned = _searched(search)
    if known is not None and tuned.is_provisional:
        tuned = replace(tuned, searches=known.searches + 1)
    if store is not None:
        _keep(tuned, function, engines, context, store, options, implicit, devices, graph)
    _tell(tuned, function)
    return tuned


def check_budget(budget: object) -> None:
    """Raise OptionError for a budget that is no positive number of seconds."""
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < float("inf"):
        raise OptionError(f"budget must be a positive number of seconds; got {budget!r}")


def by_priority(
    function: Function,
    engines: Sequence[GraphCompiler],
    context: CompileContext,
    options: ClusteringOptions,
    implicit: str | None,
    reason: str,
    devices: Mapping[str, str] = FrozenDict(),
) -> Tuned:
    """Return the plan by the order of the list, for a reason."""
    plan = partition(function, engines, options, implicit=implicit, device=context.device, devices=devices)
    return Tuned(plan, how="priority", notes=(reason,))


def plain(engines: Sequence[GraphCompiler]) -> list[GraphCompiler]:
    """Return the engines for those that stand in front of a worker: what they cost is not the worker's."""
    return [engine.inner if isinstance(engine, Isolated) else engine for engine in engines]


def _values(function: Function, inputs: Sequence[Any] | None) -> tuple[list[Any] | None, str]:
    """Return the values to measure with, or None and why there are none."""
    if inputs is not None:
        return [to_host(value) for value in inputs], ""
    try:
        made = sample_inputs(function)
    except InputError as error:
        return None, str(error)
    return [made[value.name] for value in function.inputs], ""


def _searched(search: Search) -> Tuned:
    try:
        search.run()
    except KeyboardInterrupt:
        tuned = search.tuned("interrupted")
        return tuned if tuned.how == "interrupted" else replace(tuned, notes=("it was interrupted before anything was measured",))
    except XRTError as error:
        _log.info("tuning ended early", exc_info=True)
        search.notes.append(f"the search ended early: {error}")
    return search.tuned("measured")


# ------------------------------------------------------------------ what is kept


def remembered(
    function: Function,
    engines: Sequence[GraphCompiler],
    context: CompileContext,
    store: CostStore,
    options: ClusteringOptions,
    implicit: str | None,
    budget: float,
    devices: Mapping[str, str] = FrozenDict(),
    graph: bool = False,
) -> Tuned | None:
    """Return what an earlier search with at least that budget has decided; None where there was none."""
    asked = decision.asked_of(function, plain(engines), context, options, implicit, devices, graph)
    data = store.decision(asked) if asked is not None else None
    if data is None:
        return None
    try:
        known = decision.parse(data, function, engines, Homes(context.device, devices), implicit)
    except CacheError as error:
        store.trouble(str(error))
        return None
    return known if known.budget >= budget else None


def _keep(
    tuned: Tuned,
    function: Function,
    engines: Sequence[GraphCompiler],
    context: CompileContext,
    store: CostStore,
    options: ClusteringOptions,
    implicit: str | None,
    devices: Mapping[str, str],
    graph: bool,
) -> None:
    """Keep all costs, and the decision where somebody has won and nobody has interrupted."""
    homes = Homes(context.device, devices)
    table = _within_devices(tuned.table, homes)
    for engine in plain(engines):
        store.keep(table, [engine], on_device(homes.of(engine.spec), context))
    if tuned.how == "measured" and tuned.race.winner is not None:
        asked = decision.asked_of(function, plain(engines), context, options, implicit, devices, graph)
        if asked is not None:
            store.decide(asked, decision.to_text(tuned, function, engines, homes))


def table_of(
    store: CostStore, engines: Sequence[GraphCompiler], context: CompileContext, devices: Mapping[str, str] = FrozenDict()
) -> CostTable:
    """Return what the store knows of those engines, each on its device; raises DeviceError where one is not at hand."""
    homes, table = Homes(context.device, devices), CostTable()
    for engine in plain(engines):
        table = table.merged(store.table([engine], on_device(homes.of(engine.spec), context)))
    return _within_devices(table, homes)


def _within_devices(table: CostTable, homes: Homes) -> CostTable:
    """Return the table without boundaries between devices: it names engines, and each may be on another device elsewhere."""
    within = {pair: cost for pair, cost in table.boundaries.items() if homes.of(pair[0]) == homes.of(pair[1])}
    return replace(table, boundaries=FrozenDict(within))


def _tell(tuned: Tuned, function: Function) -> None:
    """Warn where nothing could be measured."""
    if tuned.how != "priority":
        return
    unmeasured = [f"{spec}: {reason}" for spec, reason in tuned.unmeasured.items()]
    why = "; ".join([*tuned.notes, *unmeasured]) or f"budget={tuned.budget:g} s is too small for one measurement"
    used = ", ".join(dict.fromkeys(launch.engine for launch in tuned.plan.launches)) or "no engine"
    warn(
        f"{function.name!r} was not placed by measurement: {why}. By the order of the list it runs on {used}; give more time, "
        f"such as budget={more_than(tuned.budget):g}",
        PlacementWarning,
    )
