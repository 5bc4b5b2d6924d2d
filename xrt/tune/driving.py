"""`tune`: what was decided before, else a search within the budget; what comes of it is kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xrt.cache import CompileCache
from xrt.cache.disk.costs import CostStore
from xrt.engines import CompileContext, GraphCompiler
from xrt.errors import CacheError, InputError, OptionError, PlacementWarning, XRTError, warn
from xrt.graph import Function
from xrt.models import sample_inputs
from xrt.partition import ClusteringOptions, partition
from xrt.runtime.isolation import Isolated
from xrt.runtime.timing import Clock
from xrt.tune import decision
from xrt.tune.search import BOUNDS, Bounds, Search, Told, unheard
from xrt.tune.tuned import Tuned
from xrt.tune.values import Reference

__all__ = ["remembered", "tune"]

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
    clock: Clock = time.perf_counter,
) -> Tuned:
    """Return the quickest plan that a search of ``budget`` seconds finds, or the one that an earlier search has found.

    The Function's extents must be known. ``engines`` stand by priority, the ``implicit`` one last; ``reference`` says what is
    right. ``inputs`` are values of a call, which are not changed; random ones stand in for None. What was measured before is
    taken from the ``store``, and what is measured now is added to it; a decision of the store is taken unless its
    search had a smaller budget, or ``anew``.

    Pieces are compiled and measured in workers, where a hang or a crash costs `Bounds.limit` once. Plans race in this process,
    as they are deployed, once their engines have proved themselves there. The budget is overrun by one such limit at most, and by
    the one run of the reference. A worker may have ``memory_limit`` bytes of address space, unless the bounds say otherwise. An
    interrupt (Ctrl-C) ends the search, and gives the best found by then.

    Raises OptionError for a budget that is none, PlanError where nothing takes a node.
    """
    check_budget(budget)
    if store is not None and not anew:
        known = remembered(function, engines, context, store, options, implicit, budget)
        if known is not None:
            return known
    values, reason = _values(function, inputs)
    if values is None:
        return by_priority(function, engines, context, options, implicit, reason)
    bounds = bounds or replace(BOUNDS, memory=memory_limit)
    search = Search(function, engines, context, values, reference, cache, options, implicit, budget, bounds, progress, clock)
    if store is not None:
        search.table = store.table(plain(engines), context)
    tuned = _searched(search)
    if store is not None:
        _keep(tuned, function, engines, context, store, options, implicit)
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
) -> Tuned:
    """Return the plan by the order of the list, for a reason."""
    plan = partition(function, engines, options, implicit=implicit, device=context.device)
    return Tuned(plan, how="priority", notes=(reason,))


def plain(engines: Sequence[GraphCompiler]) -> list[GraphCompiler]:
    """Return the engines for those that stand in front of a worker: what they cost is not the worker's."""
    return [engine.inner if isinstance(engine, Isolated) else engine for engine in engines]


def _values(function: Function, inputs: Sequence[Any] | None) -> tuple[list[Any] | None, str]:
    """Return the values to measure with, or None and why there are none."""
    if inputs is not None:
        return list(inputs), ""
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
) -> Tuned | None:
    """Return what an earlier search with at least that budget has decided; None where there was none."""
    asked = decision.asked_of(function, plain(engines), context, options, implicit)
    data = store.decision(asked) if asked is not None else None
    if data is None:
        return None
    try:
        known = decision.parse(data, function, engines, context, implicit)
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
) -> None:
    """Keep all costs, and the decision where somebody has won and nobody has interrupted."""
    store.keep(tuned.table, plain(engines), context)
    if tuned.how == "measured" and tuned.race.winner is not None:
        asked = decision.asked_of(function, plain(engines), context, options, implicit)
        if asked is not None:
            store.decide(asked, decision.to_text(tuned, function, engines, context))


def _tell(tuned: Tuned, function: Function) -> None:
    """Warn where nothing could be measured."""
    if tuned.how != "priority":
        return
    why = "; ".join(tuned.notes) or f"budget={tuned.budget:g} s is too small for one measurement"
    engines = ", ".join(tuned.plan.engines)
    warn(
        f"{function.name!r} was not placed by measurement: {why}. The engines are used in the order of the list ({engines}); "
        f"give more time, such as budget=20",
        PlacementWarning,
    )
