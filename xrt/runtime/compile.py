"""From a Plan to executables, through the cache: independent regions at once, equal ones once."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from xrt.cache import CompileCache, Lease, Recipe, Signature, signature_of
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import CompileFailed, CompileRefused, EngineError, OutOfDeviceMemory
from xrt.graph import Function
from xrt.graph.mapping import release
from xrt.partition import Launch, Plan
from xrt.partition.excerpt import excerpt
from xrt.runtime.blame import patterns_of, to_blame
from xrt.runtime.devices.interface import Device
from xrt.runtime.devices.streams import Streams
from xrt.runtime.placed import PlacedProgram, on_device
from xrt.runtime.placed.call import root, short_of
from xrt.runtime.program import Program

__all__ = ["Progress", "Refusal", "RegionToCompile", "compile_plan", "regions_of"]

Progress: TypeAlias = Callable[[int, int], object]
"""Told how many regions are compiled, of how many."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An engine would not, or could not, compile or run a launch that it had accepted node by node."""

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
    force: bool = False,
    progress: Progress | None = None,
    streams: Streams | None = None,
    graph: bool = False,
    narrow: bool = False,
) -> Program | tuple[Refusal, ...]:
    """Return the plan's Program, or every refusal, in the plan's order, when there was one.

    ``engines`` maps each engine spec that the plan names to the engine. As many launches compile at once as
    ``context.threads``, those of an engine that does not compile in parallel one after the other. Each signature is
    compiled and prepared at most once while it stays cached, unless ``force``: then once for all launches of it.
    ``progress`` is called from the compiling threads, one at a time. ``streams`` are those of the module, for a plan on
    devices, and ``graph`` is whether its calls are to be recorded. Raises DeviceError where a device is not at hand,
    OutOfDeviceMemory where its memory runs out. With ``narrow`` a region that is refused as a whole is compiled in parts, until
    it is known which of its nodes are to blame; the cache remembers them.
    """
    outcomes = _Compilation(plan, engines, context, cache, force, progress, narrow).outcomes()
    leases = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    if len(leases) == len(outcomes):
        return _program(plan, leases, streams or Streams(), graph)
    for lease in leases:
        lease.release()
    return tuple(outcome for outcome in outcomes if isinstance(outcome, Refusal))


def _program(plan: Plan, leases: Sequence[Lease], streams: Streams, graph: bool) -> Program:
    on_host = plan.device == "cpu" and all(plan.device_of(launch) == "cpu" for launch in plan.launches)
    return Program(plan, leases) if on_host else PlacedProgram(plan, leases, streams, graph)


@dataclass(frozen=True)
class RegionToCompile:
    """A launch, with what it is compiled by and for."""

    launch: Launch
    engine: GraphCompiler
    version: str
    context: CompileContext

    @cached_property
    def signature(self) -> Signature:
        return signature_of(self.launch.function, self.engine, self.context, self.version)

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.launch.function, self.engine, self.context)

    @property
    def lane(self) -> object:
        """What regions have in common that must be compiled one after the other: their signature, or their engine."""
        return self.signature.key if self.engine.compiles_in_parallel else type(self.engine)


def regions_of(plan: Plan, engines: Mapping[str, GraphCompiler], context: CompileContext) -> list[RegionToCompile]:
    """Return what is to be compiled for a plan, in its order; raises DeviceError where a device is not at hand."""
    versions = {spec: engines[spec].version() for spec in dict.fromkeys(launch.engine for launch in plan.launches)}
    contexts = {name: on_device(name, context) for name in dict.fromkeys(map(plan.device_of, plan.launches))}
    return [RegionToCompile(x, engines[x.engine], versions[x.engine], contexts[plan.device_of(x)]) for x in plan.launches]


class _Compilation:
    """One compile of a plan: its regions, and what became of each."""

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, GraphCompiler],
        context: CompileContext,
        cache: CompileCache,
        force: bool,
        progress: Progress | None,
        narrow: bool,
    ) -> None:
        self._regions = regions_of(plan, engines, context)
        self._threads = context.threads
        self._cache = cache
        self._forced = force
        self._narrows = narrow
        self._blamed: dict[str, tuple[int, ...]] = {}
        """By signature the places of the nodes that are to blame."""
        self._progress = progress
        self._done = 0
        self._lock = threading.Lock()
        self._outcomes: list[Lease | Refusal | None] = [None] * len(self._regions)

    def outcomes(self) -> list[Lease | Refusal]:
        """Compile everything and return a lease or a refusal per region; what else is raised leaves no lease behind."""
        try:
            self._at_once(lambda region: region.signature, self._regions)
            self._at_once(self._compile, self._lanes())
        except BaseException:
            for outcome in self._outcomes:
                if isinstance(outcome, Lease):
                    outcome.release()
            raise
        return [outcome for outcome in self._outcomes if outcome is not None]

    def _at_once(self, work: Callable[[T], object], items: Sequence[T]) -> None:
        """Do the work for each item, on as many threads as the budget has; raises what is raised for the first in order."""
        workers = min(self._threads, len(items))
        if workers < 2:
            deque(map(work, items), maxlen=0)
            return
        with ThreadPoolExecutor(workers, "xrt-compile") as pool:
            deque(pool.map(work, items), maxlen=0)

    def _lanes(self) -> list[list[int]]:
        """Return the regions in lanes, those of engines first that compile one at a time, since theirs are the longest."""
        if self._threads == 1:
            return [list(range(len(self._regions)))]
        lanes: dict[object, list[int]] = {}
        for number, region in enumerate(self._regions):
            lanes.setdefault(region.lane, []).append(number)
        return [lanes[key] for key in sorted(lanes, key=lambda key: isinstance(key, str))]

    def _compile(self, lane: Sequence[int]) -> None:
        """Compile the regions of a lane; of equal ones the first, unless it is refused: then each is asked, and named."""
        met: set[str] = set()
        for number in lane:
            region = self._regions[number]
            force = self._forced and region.signature.key not in met
            met.add(region.signature.key)
            try:
                self._outcomes[number] = _lease(region, self._cache, force)
            except (CompileRefused, CompileFailed) as error:
                refusal = _refusal(region.launch, error)
                self._outcomes[number] = self._narrowed(region, refusal) if self._narrows else refusal
            self._tell()

    def _narrowed(self, region: RegionToCompile, refusal: Refusal) -> Refusal:
        """Return the refusal of those nodes alone that are to blame, where the engine has not named them."""
        launch, key, error = region.launch, region.signature.key, refusal.error
        if not isinstance(error, CompileRefused) or error.nodes or len(launch.nodes) < 2:
            return refusal
        function = launch.function
        if key not in self._blamed:
            _log.info("%s: looking for the nodes to blame", launch.name)
            patterns = patterns_of(function)
            self._blamed[key] = to_blame(patterns, lambda places: _is_accepted(region, excerpt(function, places)))
            _remember(region, self._cache, CompileRefused(str(error), [function.nodes[at].name for at in self._blamed[key]]))
        return replace(refusal, nodes=tuple(function.nodes[at].name for at in self._blamed[key]))

    def _tell(self) -> None:
        with self._lock:
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, len(self._regions))


def _refusal(launch: Launch, error: CompileRefused | CompileFailed) -> Refusal:
    own = set(launch.nodes)
    _log.info("%s is refused: %s", launch.name, error)
    culprits = tuple(node for node in getattr(error, "nodes", ()) if node in own)
    return Refusal(launch, culprits or launch.nodes, error)


def _is_accepted(region: RegionToCompile, part: Function) -> bool:
    """Whether the engine compiles a part of a region."""
    try:
        with _turn(region.engine):
            region.engine.compile(part, region.context).close()
    except Exception:  # noqa: BLE001  # whatever the engine raises
        return False
    return True


def _remember(region: RegionToCompile, cache: CompileCache, error: CompileRefused) -> None:
    """Have the cache remember a refusal with the nodes that are to blame."""

    def refuse() -> Executable:
        raise error

    with suppress(CompileRefused):
        cache.lease(region.signature, refuse, force=True, recipe=region.recipe)


def _lease(region: RegionToCompile, cache: CompileCache, force: bool) -> Lease:
    met = "hit"

    def make() -> Executable:
        nonlocal met
        met = "miss"
        is_kept = cache.disk is not None and recipe.is_kept
        return _made(region, replace(region.context, keep=cache.folder_of(region.engine.name), is_kept=is_kept))

    recipe = region.recipe
    lease = cache.lease(region.signature, make, force=force, recipe=recipe)
    _let_go(region.launch.function)
    _log.debug("cache %s for %s (%.12s)", met, region.launch.name, region.signature.key)
    return lease


def _made(region: RegionToCompile, context: CompileContext) -> Executable:
    """Compile and prepare; whatever else an engine raises becomes CompileFailed, with its cause."""
    launch = region.launch
    _log.info("%s: %s compiles %d nodes", launch.name, launch.engine, len(launch.nodes))
    began = perf_counter()
    try:
        with _turn(region.engine):
            executable = region.engine.compile(launch.function, context)
        executable.prepare()
    except CompileRefused:
        raise
    except Exception as error:
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
    """Return the error that says so, where it is memory of a device that is lacking; that is no fault of the engine."""
    where, launch = region.context.accelerator, region.launch
    return short_of(where, root(error), f"engine {launch.engine!r} in {launch.name}") if isinstance(where, Device) else None


def _let_go(function: Function) -> None:
    """Let go of what an engine has read of constants in files to compile, save or load: before a run nobody needs it."""
    for constant in function.constants.values():
        release(constant.array)


_turns: WeakKeyDictionary[type[GraphCompiler], threading.Lock] = WeakKeyDictionary()
_turns_lock = threading.Lock()


def _turn(engine: GraphCompiler) -> AbstractContextManager[object]:
    """Return what to hold while the engine compiles: nothing, or the lock of its class where it compiles one at a time."""
    if engine.compiles_in_parallel:
        return nullcontext()
    with _turns_lock:
        return _turns.setdefault(type(engine), threading.Lock())
