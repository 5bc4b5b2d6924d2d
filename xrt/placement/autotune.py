"""`tune`: what was decided before, else a search within the budget; what comes of it is kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xrt.errors import InputError, OptionError, PlacementFileError, PlacementWarning, XRTError, warn
from xrt.graph import FrozenDict, Function
from xrt.graph.sample_inputs import sample_inputs
from xrt.partition import partition
from xrt.partition.cost_table import CostTable
from xrt.partition.device_map import DeviceMap
from xrt.placement import decision_store
from xrt.placement.budget import BOUNDS, TuningBudget
from xrt.placement.result import MOST_SEARCHES, PlacementRequest, TuningResult, more_than, unwrap
from xrt.placement.session import ProgressCallback, TuningSession, ignore_progress
from xrt.runtime import on_device, to_host

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.cache.cost_store import CostStore
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.measure.timing import Clock
    from xrt.placement.profiler import Reference

__all__ = ["is_final", "load_cost_table", "load_decision", "tune", "warn_unmeasured"]

_log = logging.getLogger(__name__)


def tune(
    request: PlacementRequest,
    *,
    cache: CompileCache,
    reference: Reference,
    store: CostStore | None = None,
    inputs: Sequence[Any] | None = None,
    progress: ProgressCallback = ignore_progress,
    bounds: TuningBudget = BOUNDS,
    clock: Clock = time.perf_counter,
) -> TuningResult:
    """Return the fastest plan that a search within the request's budget finds, or the one that an earlier search found.

    ``reference`` computes the expected results. ``inputs`` are values of a call, which are not changed; None uses random values.
    Earlier measurements come from the ``store``, and new ones are added to it. A decision of the store is used unless its search
    had a smaller budget and was not explicit, or the request is for a new one.

    Regions are compiled and measured in workers, where a hang or a crash costs `TuningBudget.limit` once. The first is the whole
    model on the engine that is ready first. Engines are imported and queried in threads, which are abandoned if they take too
    long. Plans run interleaved in this process, as they are deployed, once their engines have passed in a worker. The search
    exceeds its budget by at most `TuningBudget.grace` and one call. Only if no engine has answered yet, it waits for one. On a
    device, timed calls use arrays that are already there, and wait for the device. Ctrl-C ends the search and returns the best
    plan so far.

    Raises OptionError for a budget that is no positive number, DeviceError if a device is unavailable, and PlanError if no engine
    supports a node.
    """
    check_budget(request.budget)
    request = replace(request, context=on_device(request.context.device, request.context))
    if not request.function.nodes:
        return plan_by_priority(request, "the model has no nodes to measure")
    known = load_decision(request, store) if store is not None else None
    if known is not None and not request.retune and is_final(known):
        return known
    values, reason = _values(request.function, inputs)
    if values is None:
        return plan_by_priority(request, reason)
    search = TuningSession(request, values, reference, cache, bounds, progress, clock, store)
    search.began -= min(request.spent, request.budget / 2)
    if store is not None:
        search.table = load_cost_table(store, request.engines, request.context, request.devices)
    tuned = replace(_searched(search), is_explicit=request.retune)
    if known is not None and (tuned.is_provisional or not tuned.is_checked):
        tuned = replace(tuned, searches=known.searches + 1)
    if store is not None:
        _keep(tuned, request, store)
    warn_unmeasured(tuned, request.function)
    return tuned


def check_budget(budget: object) -> None:
    """Raise OptionError for a budget that is no positive number of seconds."""
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < float("inf"):
        raise OptionError(f"budget must be a positive number of seconds; got {budget!r}")


def plan_by_priority(request: PlacementRequest, reason: str) -> TuningResult:
    """Return the plan by the order of the list, for a reason."""
    function, implicit, device = request.function, request.implicit, request.context.device
    plan = partition(function, request.engines, request.clustering, implicit=implicit, device=device, devices=request.devices)
    return TuningResult(plan, how="priority", notes=(reason,))


def _values(function: Function, inputs: Sequence[Any] | None) -> tuple[list[Any] | None, str]:
    """Return the values to measure with, or None and why there are none."""
    if inputs is not None:
        return [to_host(value) for value in inputs], ""
    try:
        made = sample_inputs(function)
    except InputError as error:
        return None, str(error)
    return [made[value.name] for value in function.inputs], ""


def _searched(search: TuningSession) -> TuningResult:
    try:
        search.run()
    except KeyboardInterrupt:
        tuned = search.make_result("interrupted")
        return tuned if tuned.how == "interrupted" else replace(tuned, notes=("it was interrupted before anything was measured",))
    except XRTError as error:
        _log.info("tuning ended early", exc_info=True)
        search.notes.append(f"the search ended early: {error}")
    return search.make_result("measured")


# ------------------------------------------------------------------ what is kept


def load_decision(request: PlacementRequest, store: CostStore) -> TuningResult | None:
    """Return what an earlier search with at least that budget, or an explicit one, has decided; None where there was none."""
    key = decision_store.make_decision_key(request)
    document = store.decision(key) if key is not None else None
    if document is None:
        return None
    try:
        known = decision_store.read_decision(document, request)
    except PlacementFileError as error:
        store.trouble(f"a decision cannot be used: {error}")
        return None
    return known if known.is_explicit or known.budget >= request.budget else None


def is_final(known: TuningResult) -> bool:
    """Whether no further search continues a decision: it has enough rounds, or searches, or the caller asked for just this."""
    is_settled = (known.is_explicit or not known.is_provisional) and known.is_checked
    return is_settled or known.searches >= MOST_SEARCHES


def _keep(tuned: TuningResult, request: PlacementRequest, store: CostStore) -> None:
    """Keep all costs, and the decision if there is a winner and the search was not interrupted."""
    homes = request.device_map
    table = _within_devices(tuned.table, homes)
    for engine in unwrap(request.engines):
        store.keep(table, [engine], on_device(homes.of(engine.spec), request.context))
    if tuned.how == "measured" and tuned.race.winner is not None:
        key = decision_store.make_decision_key(request)
        if key is not None:
            store.store_decision(key, decision_store.make_decision(tuned, request))


def load_cost_table(
    store: CostStore, engines: Sequence[GraphCompiler], context: CompileContext, devices: Mapping[str, str] = FrozenDict()
) -> CostTable:
    """Return the store's costs of these engines, each on its device. Raises DeviceError if a device is unavailable."""
    homes, table = DeviceMap(context.device, devices), CostTable()
    for engine in unwrap(engines):
        table = table.merge(store.table([engine], on_device(homes.of(engine.spec), context)))
    return _within_devices(table, homes)


def _within_devices(table: CostTable, homes: DeviceMap) -> CostTable:
    """Return the table without boundaries between devices: it names engines, and each may be on another device elsewhere."""
    within = {pair: cost for pair, cost in table.boundaries.items() if homes.of(pair[0]) == homes.of(pair[1])}
    return replace(table, boundaries=FrozenDict(within))


def warn_unmeasured(tuned: TuningResult, function: Function) -> None:
    """Issue a PlacementWarning where nothing could be measured."""
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
