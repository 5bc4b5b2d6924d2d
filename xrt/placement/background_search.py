"""A search in the worker of low priority: the request goes there, and the decision comes back as a placement file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from xrt.cache.disk import DiskTier
from xrt.cache.disk.cost_store import CostStore
from xrt.engines.contract.proxy import ImplicitEngine, LazyEngine
from xrt.engines.toolkit.shared_values import put_function, put_values
from xrt.errors import PlacementFileError
from xrt.formats.placement_file import loads
from xrt.graph import FrozenDict
from xrt.placement.autotune import load_decision, plan_by_priority, warn_unmeasured
from xrt.placement.decision_store import read_decision
from xrt.processes.client import WorkerFailure
from xrt.processes.ipc import Message, SharedBuffer
from xrt.worker.isolated_engine import IsolatedEngine, identify, why_not_isolated

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.placement.background import BackgroundWork
    from xrt.placement.request import PlacementRequest
    from xrt.placement.result import TuningResult

__all__ = ["can_search_in_worker", "search_in_worker"]

_log = logging.getLogger(__name__)


def can_search_in_worker(request: PlacementRequest) -> bool:
    """Whether a worker can be given what is searched for: engines that another process can import, on the host."""
    if request.context.device != "cpu" or request.devices or not request.function.nodes:
        return False
    return all(
        isinstance(one, LazyEngine) or (not isinstance(one, IsolatedEngine) and why_not_isolated(one) is None)
        for one in request.engines
    )


def search_in_worker(
    request: PlacementRequest, work: BackgroundWork, *, cache: CompileCache, inputs: Sequence[Any], memory: int | None = None
) -> TuningResult:
    """Return what `tune` finds in the worker, or what an earlier search found; nothing is measured in this process.

    What it measures, decides and compiles is in the directory of the cache, where there is one. When the work is closed, the
    worker's process ends, and with it the search. Where the worker gives no result, the plan is the one by the order of the list.
    """
    store, worker = CostStore.for_cache(cache), work.worker
    known = load_decision(request, store) if store is not None else None
    if known is not None and not known.is_provisional:
        return known
    buffer = SharedBuffer()
    message = {"do": "search", "memory": memory, **describe_request(request, buffer, inputs), "cache": _describe_cache(cache)}
    try:
        answer, _ = worker.ask(message, buffer, on_progress=work)
        if answer["decision"] is None:
            return _report_unmeasured(request, answer)
        found = read_decision(loads(answer["decision"]), request)
    except (WorkerFailure, OSError, PlacementFileError) as error:
        if not worker.is_closed:
            _log.warning("the search in the background failed: %s", error)
        return plan_by_priority(request, f"the search in the background failed: {error}")
    return replace(found, how="measured", measurements=answer["measurements"])


def _report_unmeasured(request: PlacementRequest, answer: Message) -> TuningResult:
    """Return the plan by the order of the list, with a warning that nothing could be measured."""
    tuned = replace(
        plan_by_priority(request, ""),
        budget=request.budget,
        notes=tuple(answer["notes"]),
        unmeasured=FrozenDict(answer["unmeasured"]),
    )
    warn_unmeasured(tuned, request.function)
    return tuned


def describe_request(request: PlacementRequest, buffer: SharedBuffer, inputs: Sequence[Any]) -> Message:
    """Put the Function and the inputs of a request into the memory, and return what `search_server` reads it from."""
    return {
        "function": put_function(buffer, request.function),
        "inputs": put_values(buffer, inputs),
        "engines": [_describe_engine(engine) for engine in request.engines],
        "implicit": request.implicit,
        "options": asdict(request.context.options),
        "threads": request.context.threads,
        "clustering": asdict(request.clustering),
        "budget": request.budget,
        "spent": request.spent,
        "retune": request.retune,
    }


def _describe_engine(engine: GraphCompiler) -> dict[str, Any]:
    """Return what an engine is made from; one whose library this process has not imported is none there before it is needed."""
    if isinstance(engine, ImplicitEngine):
        return {"implicit": engine.name}
    if isinstance(engine, LazyEngine):
        return {"status": asdict(engine.status)}
    return identify(engine)


def _describe_cache(cache: CompileCache) -> dict[str, Any] | None:
    tier = cache.disk
    if not isinstance(tier, DiskTier) or not tier.store.is_trusted():
        return None
    return {"directory": str(tier.store.directory), "limit": tier.limit}
