"""Compile the regions of a Plan through the cache, in parallel where engines allow it, and locate refused nodes."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from xrt.cache import CompileCache, CompileRequest, Lease, Signature, make_signature
from xrt.engines.contract.graph_compiler import prepare_or_close
from xrt.errors import CompileFailed, CompileRefused, EngineError, OutOfDeviceMemory, PlanError
from xrt.forking import renew_after_fork
from xrt.graph.constants import release
from xrt.graph.deferred_function import find_stale
from xrt.partition.questions import QuestionKeys
from xrt.runtime.program import Program

if TYPE_CHECKING:
    from xrt.engines import CompileContext, Executable, GraphCompiler
    from xrt.graph import Function, Node
    from xrt.partition import Launch, Plan
    from xrt.runtime.devices.registry import Streams

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of compiled regions and the total."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A launch that an engine refused or failed to compile, although it supports each node on its own."""

    launch: Launch
    nodes: tuple[str, ...]
    """The nodes to place elsewhere."""
    error: EngineError

    @property
    def reason(self) -> str:
        """The error in one line."""
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
    narrow: bool = False,
) -> Program | tuple[Refusal, ...]:
    """Compile a plan to a Program, or return all refusals in plan order.

    ``engines`` maps the engine specs in the plan to engines. Up to ``context.threads`` launches compile in parallel, except
    those of engines that compile one at a time. Equal signatures are compiled once and cached. ``progress`` is called from the
    compiling threads, never concurrently. ``streams`` are the module's streams for a plan on devices, and ``graph`` requests
    recording of its calls. With ``narrow``, a refused region is compiled in parts to
    find the nodes to blame, which the cache stores. Raises DeviceError if a device is unavailable, OutOfDeviceMemory if its
    memory runs out.
    """
    outcomes = _Compilation(plan, engines, context, cache, progress, narrow).outcomes()
    leases = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    # Keep executables only if the whole plan compiled.
    if len(leases) == len(outcomes):
        return _program(plan, leases, streams, graph)
    for lease in leases:
        lease.release()
    return tuple(outcome for outcome in outcomes if isinstance(outcome, Refusal))


def _program(plan: Plan, leases: Sequence[Lease], streams: Streams | None, graph: bool) -> Program:
    on_host = plan.device == "cpu" and all(plan.get_device(launch) == "cpu" for launch in plan.launches)
    if on_host:
        return Program(plan, leases)
    from xrt.runtime.device_program import MultiDeviceProgram
    from xrt.runtime.devices.registry import Streams

    return MultiDeviceProgram(plan, leases, streams or Streams(), graph)


@dataclass(frozen=True)
class RegionToCompile:
    """A launch with its engine and compile context."""

    launch: Launch
    engine: GraphCompiler
    version: str
    context: CompileContext

    @cached_property
    def signature(self) -> Signature:
        return make_signature(self.launch.function, self.engine, self.context, self.version)

    @property
    def recipe(self) -> CompileRequest:
        return CompileRequest(self.launch.function, self.engine, self.context)

    @property
    def lane(self) -> object:
        """Regions with the same lane compile one after the other: equal signatures, or an engine that compiles one at a time."""
        return self.signature.key if self.engine.compiles_in_parallel else type(self.engine)


def list_regions(plan: Plan, engines: Mapping[str, GraphCompiler], context: CompileContext) -> list[RegionToCompile]:
    """The regions of a plan, in its order.

    Raises DeviceError if a device is unavailable, PlanError for a region of an unlisted engine.
    """
    for launch in plan.launches:
        if launch.engine not in engines:
            listed = ", ".join(map(repr, engines)) or "none"
            raise PlanError(f"the plan has {launch.name} on engine {launch.engine!r}, and the engines are: {listed}")
    # Query each version once per plan.
    versions = {spec: engines[spec].version() for spec in dict.fromkeys(launch.engine for launch in plan.launches)}
    contexts = {name: _open_device(name, context) for name in dict.fromkeys(map(plan.get_device, plan.launches))}
    return [RegionToCompile(x, engines[x.engine], versions[x.engine], contexts[plan.get_device(x)]) for x in plan.launches]


def _open_device(name: str, context: CompileContext) -> CompileContext:
    """The compile context for a device; raises DeviceError if it is unavailable."""
    if name == context.device == "cpu" and context.accelerator is None:
        return context
    from xrt.runtime.host_adapter import on_device

    return on_device(name, context)


class _Compilation:
    """One compile of a plan: its regions and their outcomes."""

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, GraphCompiler],
        context: CompileContext,
        cache: CompileCache,
        progress: Progress | None,
        narrow: bool,
    ) -> None:
        self._regions = list_regions(plan, engines, context)
        self._threads = context.threads
        self._cache = cache
        self._narrows = narrow
        self._blamed: dict[str, tuple[int, ...]] = {}
        """Positions of the nodes to blame, by signature."""
        self._progress = progress
        self._done = 0
        self._is_abandoned = False
        """Whether an error or interrupt has ended the compile, while threads may still compile."""
        self._lock = renew_after_fork(threading.Lock())
        self._outcomes: list[Lease | Refusal | None] = [None] * len(self._regions)

    def outcomes(self) -> list[Lease | Refusal]:
        """Compile all regions; return a lease or refusal for each. If anything else is raised, all leases are released."""
        try:
            # Hash all functions in parallel first; `signature` is cached.
            self._run_parallel(lambda region: region.signature, self._regions)
            self._run_parallel(self._compile, self._lanes())
        except BaseException:
            with self._lock:
                self._is_abandoned = True
            for outcome in self._outcomes:
                if isinstance(outcome, Lease):
                    outcome.release()
            raise
        return [outcome for outcome in self._outcomes if outcome is not None]

    def _run_parallel(self, work: Callable[[T], object], items: Sequence[T]) -> None:
        """Run `work` for all items in the threads of the budget; raise an error of one of them.

        Ctrl-C does not wait for the compiles in progress, which no thread can interrupt.
        """
        workers = min(self._threads, len(items))
        if workers < 2:
            deque(map(work, items), maxlen=0)
            return
        from concurrent.futures import wait

        from xrt.processes.background import begin

        remaining = iter(items)

        def run_remaining() -> None:
            for item in remaining:
                if self._is_abandoned:
                    return
                try:
                    work(item)
                except BaseException:
                    self._is_abandoned = True  # the other threads stop after their current items
                    raise

        threads = [begin(run_remaining, "xrt-compile") for _ in range(workers)]
        # A signal that arrives just before a wait is handled only after it, so no wait is long.
        while wait(threads, 1.0).not_done:
            pass
        for thread in threads:
            thread.result()

    def _lanes(self) -> list[list[int]]:
        """Group the regions into lanes; engines that compile one at a time come first, as their lanes are the longest."""
        if self._threads == 1:
            return [list(range(len(self._regions)))]
        lanes: dict[object, list[int]] = {}
        for number, region in enumerate(self._regions):
            lanes.setdefault(region.lane, []).append(number)
        return [lanes[key] for key in sorted(lanes, key=lambda key: isinstance(key, str))]

    def _compile(self, lane: Sequence[int]) -> None:
        """Compile a lane in order. Equal regions hit the cache; a refusal is repeated per region, for its own node names."""
        for number in lane:
            if self._is_abandoned:
                return
            region = self._regions[number]
            try:
                outcome: Lease | Refusal = _lease(region, self._cache)
            except (CompileRefused, CompileFailed) as error:
                outcome = _refusal(region.launch, error)
                if self._narrows:
                    outcome = self._narrowed(region, outcome)
            self._store(number, outcome)

    def _narrowed(self, region: RegionToCompile, refusal: Refusal) -> Refusal:
        """Narrow a refusal to the nodes to blame, if the engine named none."""
        from xrt.partition.fold import extract_subgraph

        launch, key, error = region.launch, region.signature.key, refusal.error
        # Nothing to search: the engine named the nodes, or there is only one.
        if not isinstance(error, CompileRefused) or error.nodes or len(launch.nodes) < 2:
            return refusal
        function = launch.function
        if key not in self._blamed:
            _log.info("%s: looking for the nodes to blame", launch.name)
            patterns = describe_patterns(function)
            self._blamed[key] = to_blame(patterns, lambda places: _is_accepted(region, extract_subgraph(function, places)))
            _remember(region, self._cache, CompileRefused(str(error), [function.nodes[at].name for at in self._blamed[key]]))
        return replace(refusal, nodes=tuple(function.nodes[at].name for at in self._blamed[key]))

    def _store(self, number: int, outcome: Lease | Refusal) -> None:
        with self._lock:
            if not self._is_abandoned:
                self._outcomes[number] = outcome
                self._done += 1
                if self._progress is not None:
                    self._progress(self._done, len(self._regions))
                return
        # The caller has been interrupted, and nobody else would release this lease.
        if isinstance(outcome, Lease):
            outcome.release()


def _refusal(launch: Launch, error: CompileRefused | CompileFailed) -> Refusal:
    names = set(launch.nodes)
    _log.info("%s is refused: %s", launch.name, error)
    culprits = tuple(node for node in getattr(error, "nodes", ()) if node in names)
    return Refusal(launch, culprits or launch.nodes, error)


def _is_accepted(region: RegionToCompile, part: Function) -> bool:
    """Whether the engine compiles a part of a region."""
    try:
        with _turn(region.engine):
            region.engine.compile(part, region.context).close()
    except Exception:  # noqa: BLE001  # engines may raise anything
        return False
    return True


def _remember(region: RegionToCompile, cache: CompileCache, error: CompileRefused) -> None:
    """Store a refusal with the nodes to blame in the cache."""

    def refuse() -> Executable:
        raise error

    with suppress(CompileRefused):
        # `force` replaces the stored refusal, which names no nodes.
        cache.lease(region.signature, refuse, force=True, recipe=region.recipe)


def _lease(region: RegionToCompile, cache: CompileCache) -> Lease:
    outcome, recipe = "hit", region.recipe

    def make() -> Executable:
        nonlocal outcome
        outcome = "miss"
        is_kept = cache.disk is not None and recipe.is_kept
        context = replace(region.context, is_kept=is_kept)
        return _made(region, context)

    lease = cache.lease(region.signature, make, recipe=recipe)
    _let_go(region.launch.function)
    _log.debug("cache %s for %s (%.12s)", outcome, region.launch.name, region.signature.key)
    return lease


def _made(region: RegionToCompile, context: CompileContext) -> Executable:
    """Compile and prepare; wrap unexpected errors of an engine in CompileFailed."""
    launch = region.launch
    _log.info("%s: %s compiles %d nodes", launch.name, launch.engine, len(launch.nodes))
    began = perf_counter()
    try:
        with _turn(region.engine):
            executable = region.engine.compile(launch.function, context)
        prepare_or_close(executable)
    except CompileRefused:
        raise
    except Exception as error:
        # The model file has changed, which is not the engine's fault.
        if stale := find_stale(error):
            raise stale from None
        if short := _shortage(region, error):
            raise short from error
        if isinstance(error, CompileFailed):
            raise
        shown = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise CompileFailed(
            f"engine {launch.engine!r} failed to compile {launch.name} ({len(launch.nodes)} nodes): {shown}"
        ) from error
    _let_go(launch.function)
    _log.info("%s: compiled in %.3f s", launch.name, perf_counter() - began)
    return executable


def _shortage(region: RegionToCompile, error: Exception) -> OutOfDeviceMemory | None:
    """The error for a lack of device memory, which is not the engine's fault; None for other errors."""
    if region.context.device == "cpu":
        return None
    from xrt.runtime.devices.interface import Device, find_root_cause, make_out_of_memory_error

    where, launch = region.context.accelerator, region.launch
    return (
        make_out_of_memory_error(where, find_root_cause(error), f"engine {launch.engine!r} in {launch.name}")
        if isinstance(where, Device)
        else None
    )


def _let_go(function: Function) -> None:
    """Unmap pages of file-backed constants that an engine read while compiling: they are not needed before a run."""
    for constant in function.read_constants():
        release(constant.array)


_turns: WeakKeyDictionary[type[GraphCompiler], threading.Lock] = WeakKeyDictionary()
_turns_lock = renew_after_fork(threading.Lock())


def _turn(engine: GraphCompiler) -> AbstractContextManager[object]:
    """The lock to hold during a compile; a null context for engines that compile in parallel."""
    if engine.compiles_in_parallel:
        return nullcontext()
    with _turns_lock:
        return _turns.setdefault(type(engine), renew_after_fork(threading.Lock()))


MOST = 16
"""Limit on trial compiles per refused region."""


def to_blame(patterns: Sequence[object], compiles: Callable[[Sequence[int]], bool], most: int = MOST) -> tuple[int, ...]:
    """Positions of the nodes without which the region compiles; all nodes if that cannot be found out.

    ``compiles`` is called at most ``most`` times with ascending positions; the full region is known to fail. Bisect for the
    shortest prefix that fails: its last node is to blame. If the rest still fails, all nodes with the same entry in
    ``patterns`` are blamed too, because equal blocks fail alike. When the trials are used up, only nodes known to compile are
    kept.
    """
    remaining, trials = list(range(len(patterns))), 0

    def fails(places: Sequence[int]) -> bool:
        nonlocal trials
        trials += 1
        return not compiles(places)

    while True:
        # remaining[:least] compiles, remaining[:enough] fails.
        least, enough = 0, len(remaining)
        while enough - least > 1 and trials < most:
            middle = (least + enough) // 2
            least, enough = (least, middle) if fails(remaining[:middle]) else (middle, enough)
        if enough - least > 1 or trials >= most:
            return _others(remaining[:least], len(patterns))
        culprit = remaining[enough - 1]
        alone = [place for place in remaining if place != culprit]
        # Equal blocks of a model usually fail alike.
        others = [place for place in remaining if patterns[place] != patterns[culprit]]
        if not alone or not fails(alone):
            return _others(alone, len(patterns))
        remaining = others if len(others) < len(alone) else alone
        if not remaining or (len(others) < len(alone) and trials < most and not fails(remaining)):
            return _others(remaining, len(patterns))


def _others(remaining: Sequence[int], count: int) -> tuple[int, ...]:
    """All positions that do not remain."""
    others = set(range(count)) - set(remaining)
    return tuple(sorted(others))


def describe_patterns(function: Function) -> list[object]:
    """A key per node for it and its neighbors, equal for corresponding nodes of equal blocks."""
    keys = QuestionKeys(function)
    # Nodes without a key (with bodies, for example) equal only themselves.
    node_keys = {node.name: keys.key(node) or node.name for node in function.nodes}
    return [(node_keys[node.name], _around(function, node, node_keys)) for node in function.nodes]


def _around(function: Function, node: Node, keys: dict[str, str]) -> tuple[object, ...]:
    before = (function.producer(name) for name in node.uses)
    after = (use.node for name in node.outputs if name for use in function.users(name))
    producers = [keys[neighbor.name] if neighbor is not None else "" for neighbor in before]
    return (tuple(producers), tuple(sorted(keys.get(neighbor.name, "") for neighbor in after)))
