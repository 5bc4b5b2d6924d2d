"""Compile the regions of a Plan in parallel, through the cache. If an engine refuses a region, find the nodes to blame."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from xrt.cache import CompileCache, CompileRequest, Lease, Signature, make_signature
from xrt.cache.memory import call_all
from xrt.engines.contract.graph_compiler import prepare_or_close
from xrt.errors import CompileFailed, CompileRefused, EngineError, PlanError
from xrt.forking import renew_after_fork
from xrt.graph.constants import release_pages
from xrt.graph.deferred_function import find_stale
from xrt.graph.hashing import MAX_INDEX_ELEMENTS
from xrt.runtime.devices.interface import Device, make_out_of_memory_error
from xrt.runtime.program import Program

if TYPE_CHECKING:
    from xrt.engines import CompileContext, Executable, GraphCompiler
    from xrt.graph import Function
    from xrt.partition import Launch, Plan
    from xrt.runtime.devices.registry import Streams

Progress: TypeAlias = Callable[[int, int], object]
"""Called as progress(compiled_regions, all_regions)."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A region that its engine failed to compile or run, although the engine supports each of its nodes."""

    launch: Launch
    nodes: tuple[str, ...]
    error: EngineError

    @property
    def reason(self) -> str:
        return " ".join(str(self.error).split())


def compile_plan(
    plan: Plan,
    engines: Mapping[str, GraphCompiler],
    context: CompileContext,
    cache: CompileCache,
    *,
    progress: Progress | None = None,
    streams: Streams | None = None,
    graph: bool = False,
    blame_nodes: bool = False,
) -> Program | tuple[Refusal, ...]:
    """Compile a plan to a Program. If engines refuse regions of the plan, return the refusals in plan order instead.

    Up to ``context.threads`` regions compile in parallel; some engines compile one region at a time. Equal regions are compiled
    once.

    ``engines`` has the engines by spec. ``progress`` is called from the compiling threads, never by two at once. For a plan on
    devices, ``streams`` are the module's streams, and ``graph`` records calls as a device graph. With ``blame_nodes``, parts of a
    refused region are compiled to find the nodes to blame, which the cache stores.

    Raises DeviceError if a device is unavailable, OutOfDeviceMemory if its memory runs out.
    """
    regions = list_regions(plan, engines, context)
    outcomes = _Compilation(regions, context.threads, cache, progress, blame_nodes).compile_all()
    leases = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    # Keep executables only if the whole plan compiled.
    if len(leases) < len(outcomes):
        call_all(lease.release for lease in leases)
        return tuple(outcome for outcome in outcomes if isinstance(outcome, Refusal))
    if {plan.device, *(region.context.device for region in regions)} == {"cpu"}:
        return Program(plan, leases)

    from xrt.runtime.device_program import MultiDeviceProgram
    from xrt.runtime.devices.registry import Streams

    return MultiDeviceProgram(plan, leases, Streams() if streams is None else streams, graph)


@dataclass(frozen=True)
class RegionToCompile:
    """A launch with all that is needed to compile it."""

    launch: Launch
    engine: GraphCompiler
    version: str
    context: CompileContext

    @cached_property
    def signature(self) -> Signature:
        return make_signature(self.launch.function, self.engine, self.context, self.version)

    @property
    def lane(self) -> object:
        """Regions with the same key compile one after the other: equal regions, and regions of an engine that requires it."""
        return self.signature.key if self.engine.compiles_in_parallel else type(self.engine)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        """Compile the region or a part of it. If the engine requires it, wait for its other compiles in this process."""
        if self.engine.compiles_in_parallel:
            return self.engine.compile(function, context)
        with _locks_lock:
            lock = _locks.setdefault(type(self.engine), renew_after_fork(threading.Lock()))
        with lock:
            return self.engine.compile(function, context)

    def lease(self, cache: CompileCache) -> Lease:
        outcome, request = "hit", CompileRequest(self.launch.function, self.engine, self.context)

        def make() -> Executable:
            nonlocal outcome
            outcome = "miss"
            return self._make(replace(self.context, is_kept=cache.disk is not None and request.is_kept))

        lease = cache.lease(self.signature, make, request=request)
        # Unmap pages of file-backed constants that the engine read: they are not needed before a run.
        for constant in self.launch.function.loaded_constants():
            release_pages(constant.array)
        _log.debug("cache %s for %s (%.12s)", outcome, self.launch.name, self.signature.key)
        return lease

    def _make(self, context: CompileContext) -> Executable:
        """Compile and prepare the region; wrap unexpected errors of the engine in CompileFailed."""
        launch = self.launch
        _log.info("%s: %s compiles %d nodes", launch.name, launch.engine, len(launch.nodes))
        began = perf_counter()
        try:
            executable = prepare_or_close(self.compile(launch.function, context))
        except CompileRefused:
            raise
        except Exception as error:
            # The model file has changed, so the engine is not to blame.
            if stale := find_stale(error):
                raise stale from None
            accelerator, requester = context.accelerator, f"engine {launch.engine!r} in {launch.name}"
            if isinstance(accelerator, Device) and (shortage := make_out_of_memory_error(accelerator, error, requester)):
                raise shortage from error
            if isinstance(error, CompileFailed):
                raise
            first_line = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            raise CompileFailed(
                f"engine {launch.engine!r} failed to compile {launch.name} ({len(launch.nodes)} nodes): {first_line}"
            ) from error
        _log.info("%s: compiled in %.3f s", launch.name, perf_counter() - began)
        return executable


_locks: WeakKeyDictionary[type[GraphCompiler], threading.Lock] = WeakKeyDictionary()
"""A lock for each class of engines that compile one region at a time."""
_locks_lock = renew_after_fork(threading.Lock())


def list_regions(plan: Plan, engines: Mapping[str, GraphCompiler], context: CompileContext) -> list[RegionToCompile]:
    """Pair each launch of a plan with its engine and compile context, in plan order.

    Raises DeviceError if a device is unavailable, PlanError for a region of an unlisted engine.
    """
    for launch in plan.launches:
        if launch.engine not in engines:
            listed = ", ".join(map(repr, engines)) or "none"
            raise PlanError(f"the plan has {launch.name} on engine {launch.engine!r}, and the engines are: {listed}")
    # Each version is queried, and each device opened, only once.
    versions = {spec: engines[spec].version() for spec in plan.used_engines}
    devices = [launch.device or plan.device for launch in plan.launches]
    contexts = dict.fromkeys(devices, context)
    if context.accelerator is not None or {context.device, *contexts} != {"cpu"}:
        from xrt.runtime.host_adapter import on_device

        contexts = {name: on_device(name, context) for name in contexts}
    launches_on_devices = zip(plan.launches, devices, strict=True)
    return [RegionToCompile(x, engines[x.engine], versions[x.engine], contexts[device]) for x, device in launches_on_devices]


@dataclass
class _Compilation:
    regions: Sequence[RegionToCompile]
    threads: int
    cache: CompileCache
    progress: Progress | None
    blames_nodes: bool
    culprits: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Indices of the nodes to blame, by the signature key of a refused region."""
    results: dict[int, Lease | Refusal] = field(default_factory=dict)
    is_abandoned: bool = False
    """Whether an error or interrupt has ended the compilation. Threads then stop after their current region."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def compile_all(self) -> list[Lease | Refusal]:
        """Compile all regions; return a lease or a refusal for each. Any other error is raised, after all leases are released."""
        lanes: dict[object, list[int]] = {}
        try:
            # Hash all functions in parallel first; `signature` and its keys are cached.
            self._run_parallel(lambda region: region.signature.memory_key, self.regions)
            for index, region in enumerate(self.regions):  # with one thread, all are in one lane, in plan order
                lanes.setdefault(region.lane if self.threads > 1 else None, []).append(index)
            # Lanes of engines that compile one region at a time take longest, so they start first. Their keys are classes.
            self._run_parallel(self._compile, [lanes[key] for key in sorted(lanes, key=lambda key: isinstance(key, str))])
        except BaseException:
            with self.lock:
                self.is_abandoned = True
            call_all(outcome.release for outcome in self.results.values() if isinstance(outcome, Lease))
            raise
        return [self.results[index] for index in range(len(self.regions))]

    def _run_parallel(self, work: Callable[[T], object], items: Sequence[T]) -> None:
        """Call ``work`` with each item, in up to `threads` threads. If a call fails, stop and raise its error.

        Ctrl-C does not wait for compiles in progress, because they cannot be interrupted.
        """
        workers = min(self.threads, len(items))
        if workers < 2:
            for item in items:
                work(item)
            return
        from concurrent.futures import wait

        from xrt.processes.background import start_in_background

        remaining = iter(items)  # shared: each thread takes the next item

        def run_remaining() -> None:
            for item in remaining:
                if self.is_abandoned:
                    return
                try:
                    work(item)
                except BaseException:
                    self.is_abandoned = True  # the other threads stop after their current items
                    raise

        futures = [start_in_background(run_remaining, "xrt-compile") for _ in range(workers)]
        # A signal that arrives just before a wait is handled only after the wait, so waits are short.
        while wait(futures, 1.0).not_done:
            pass
        for future in futures:
            future.result()  # raises the error of the thread

    def _compile(self, lane: Sequence[int]) -> None:
        """Compile the regions with these indices in order. Equal regions each have an outcome: a Refusal names their nodes."""
        for index in lane:
            if self.is_abandoned:
                return
            region = self.regions[index]
            try:
                outcome: Lease | Refusal = region.lease(self.cache)
            except (CompileRefused, CompileFailed) as error:
                _log.info("%s is refused: %s", region.launch.name, error)
                nodes = set(region.launch.nodes)
                culprits = tuple(node for node in getattr(error, "nodes", ()) if node in nodes)
                # No search is needed if the engine named the nodes or the region has only one.
                if self.blames_nodes and isinstance(error, CompileRefused) and not error.nodes and len(nodes) > 1:
                    culprits = self._find_culprits(region, error)
                outcome = Refusal(region.launch, culprits or region.launch.nodes, error)
            with self.lock:
                if not self.is_abandoned:
                    self.results[index] = outcome
                    if self.progress is not None:
                        self.progress(len(self.results), len(self.regions))
                    continue
            # The compilation was abandoned, and nothing else would release this lease.
            if isinstance(outcome, Lease):
                outcome.release()

    def _find_culprits(self, region: RegionToCompile, error: CompileRefused) -> tuple[str, ...]:
        """Compile parts of a refused region to find the names of the nodes to blame; store these in the cache."""
        from xrt.partition.fold import extract_subgraph

        function, key = region.launch.function, region.signature.key

        def compiles(indices: Sequence[int]) -> bool:
            try:
                region.compile(extract_subgraph(function, indices), region.context).close()
            except Exception:  # noqa: BLE001  # engines may raise anything
                return False
            return True

        def refuse() -> Executable:
            raise CompileRefused(str(error), [function.nodes[index].name for index in self.culprits[key]])

        if key not in self.culprits:
            _log.info("%s: looking for the nodes to blame", region.launch.name)
            self.culprits[key] = find_culprits(describe_patterns(function), compiles)
            request = CompileRequest(function, region.engine, region.context)
            with suppress(CompileRefused):
                # `force` replaces the stored refusal, which names no nodes.
                self.cache.lease(region.signature, refuse, force=True, request=request)
        return tuple(function.nodes[index].name for index in self.culprits[key])


MAX_TRIALS = 16
"""Maximum trial compiles per refused region."""


def find_culprits(
    patterns: Sequence[object], compiles: Callable[[Sequence[int]], bool], max_trials: int = MAX_TRIALS
) -> tuple[int, ...]:
    """Find the indices of the nodes to blame for a region that does not compile. The remaining nodes compile together.

    ``compiles`` tests a list of ascending node indices; it is called at most ``max_trials`` times. ``patterns`` has a key for
    each node. A bisection finds the shortest prefix that fails, and blames its last node. If the remaining nodes still fail, all
    nodes with the key of that node are blamed too, because equal blocks of a model usually fail alike. When the trials run out,
    all nodes that are not known to compile are blamed.
    """
    remaining, trials = list(range(len(patterns))), 0

    def fails(indices: Sequence[int]) -> bool:
        nonlocal trials
        trials += 1
        return not compiles(indices)

    def list_others(indices: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(set(range(len(patterns))).difference(indices)))

    while True:
        # Invariant of the bisection: remaining[:low] compiles, remaining[:high] fails.
        low, high = 0, len(remaining)
        while high - low > 1 and trials < max_trials:
            middle = (low + high) // 2
            if fails(remaining[:middle]):
                high = middle
            else:
                low = middle
        if high - low > 1 or trials >= max_trials:
            return list_others(remaining[:low])
        culprit = remaining[high - 1]
        without_culprit = [index for index in remaining if index != culprit]
        if not without_culprit or not fails(without_culprit):
            return list_others(without_culprit)
        # Several nodes fail. Drop all nodes like this one, and search again in the remaining ones.
        remaining = [index for index in remaining if patterns[index] != patterns[culprit]]
        is_tested = len(remaining) == len(without_culprit)  # no other node was like the culprit: the same nodes just failed
        if not remaining or (not is_tested and trials < max_trials and not fails(remaining)):
            return list_others(remaining)


def describe_patterns(function: Function) -> list[str]:
    """Compute a key for each node from its operator, types, small constants and neighbors. Nodes of equal blocks share keys."""
    from xrt.partition.fold import extract_subgraph  # only after a failure

    positions = {node.name: index for index, node in enumerate(function.nodes)}
    keys = []
    for index, node in enumerate(function.nodes):
        # The shape key leaves out the values of floats. Support may depend on a scale or the bounds of a Clip, not on a bias.
        constants = (function.constants.get(name) for name in node.uses)
        small = (c.digest.hex() for c in constants if c is not None and c.array.size <= MAX_INDEX_ELEMENTS)
        # With the neighbors, since an engine may refuse a product only before a certain operator.
        producers = (producer for name in node.uses if (producer := function.producer(name)) is not None)
        users = (use.node for name in node.outputs if name for use in function.users(name))
        block = sorted({index, *(positions[neighbor.name] for neighbor in (*producers, *users))})
        node_key, block_key = (extract_subgraph(function, indices).shape_key for indices in ([index], block))
        keys.append(" ".join((node_key, block_key, *small)))
    return keys
