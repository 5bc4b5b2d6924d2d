"""The worker's side of what a module does in the background: it compiles, as `xrt.worker.server`, and searches for placements."""

from __future__ import annotations

import resource
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileCache, DiskTier
from xrt.cache.disk.cost_store import CostStore
from xrt.engines import CompileContext, ExecutionOptions
from xrt.engines.contract.proxy import ImplicitEngine, LazyEngine
from xrt.engines.contract.registry import EngineStatus
from xrt.engines.toolkit.shared_values import read_function, read_values
from xrt.errors import PlacementWarning
from xrt.formats.placement_file import dumps
from xrt.partition.options import read_options
from xrt.placement.autotune import tune
from xrt.placement.budget import BOUNDS
from xrt.placement.decision_store import make_decision
from xrt.placement.reference import LEAST_PATIENCE, Bench
from xrt.placement.request import PlacementRequest
from xrt.processes.ipc import Message
from xrt.processes.server import Request, serve
from xrt.worker.server import WorkerServer

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.placement.result import TuningResult

__all__ = ["SearchServer", "main"]

LOOP = 0.03
"""Seconds of processor time of the loop that measures the share of a core."""
LEAST_SHARE = 0.125
"""The least share that is reckoned with: a budget becomes at most eight times as long."""


class SearchServer(WorkerServer):
    """A worker that searches, too."""

    def answer(self, request: Request) -> Message:
        """Do what a message requests."""
        return self.search(request) if request.message["do"] == "search" else super().answer(request)

    def search(self, request: Request) -> Message:
        """Search for the fastest plan; the answer is the decision as a placement file, or why there is none."""
        message = request.message
        asked = self._read_request(request)
        asked = replace(asked, budget=asked.budget / measure_processor_share())
        cache = _open_cache(message["cache"])
        values = [_copy(value) for value in read_values(request.memory, message["inputs"])]
        with Bench(asked.context.threads, max(asked.budget / 4, LEAST_PATIENCE)) as bench, warnings.catch_warnings():
            warnings.simplefilter("ignore", PlacementWarning)  # it is issued where the module is
            tuned = tune(
                asked,
                cache=cache,
                reference=bench.reference(),
                store=CostStore.for_cache(cache),
                inputs=values,
                progress=lambda how_far: request.report(how_far.text),
                bounds=replace(BOUNDS, memory=message["memory"]),
            )
        return describe_result(tuned, asked)

    def _read_request(self, request: Request) -> PlacementRequest:
        message = request.message
        return PlacementRequest(
            read_function(request.memory, message["function"]),
            tuple(self._make_engine(one) for one in message["engines"]),
            CompileContext(ExecutionOptions(**message["options"]), threads=message["threads"]),
            read_options(message["clustering"]),
            message["implicit"],
            budget=message["budget"],
            spent=message["spent"],
            retune=message["retune"],
        )

    def _make_engine(self, described: dict[str, Any]) -> GraphCompiler:
        if "implicit" in described:
            return ImplicitEngine(described["implicit"])
        if (status := described.get("status")) is not None:
            return LazyEngine(EngineStatus(**{**status, "devices": tuple(status["devices"])}))
        return self._engine(described["class"], described["spec"])


def describe_result(tuned: TuningResult, asked: PlacementRequest) -> Message:
    """Return a result as `search_in_worker` reads it."""
    if tuned.race.winner is None:
        return {"decision": None, "notes": tuned.notes, "unmeasured": dict(tuned.unmeasured)}
    return {"decision": dumps(make_decision(tuned, asked)), "measurements": tuned.measurements}


def measure_processor_share() -> float:
    """Return which share of a core this process gets, `LEAST_SHARE` at least, by a loop of some milliseconds.

    While calls keep all cores busy, a process of low priority gets a tenth of one. The budget of a search is made longer by that:
    no call waits for its end, and in a shorter one nothing would be measured.
    """
    began, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < LOOP and time.perf_counter() - began < LOOP / LEAST_SHARE:
        pass
    return min(max((time.thread_time() - used) / (time.perf_counter() - began), LEAST_SHARE), 1.0)


def _open_cache(described: dict[str, Any] | None) -> CompileCache:
    return CompileCache(disk=DiskTier(Path(described["directory"]), described["limit"]) if described else None)


def _copy(value: Any) -> Any:
    return value.copy() if hasattr(value, "dtype") else value


def main(handle: str, memory_limit: str) -> None:
    """Serve the socket of that number until it closes. A ``memory_limit`` of 0 bytes is none."""
    if limit := int(memory_limit):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    serve(handle, SearchServer().answer)
