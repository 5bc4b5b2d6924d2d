"""From a Plan to executables, through the cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter

from xrt.cache import CompileCache, Lease, Recipe, signature_of
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import CompileFailed, CompileRefused
from xrt.partition import Launch, Plan
from xrt.runtime.program import Program

__all__ = ["Refusal", "compile_plan"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An engine would not, or could not, compile a launch that it had accepted node by node."""

    launch: Launch
    nodes: tuple[str, ...]
    """The nodes to place elsewhere."""
    error: CompileRefused | CompileFailed


def compile_plan(
    plan: Plan,
    engines: Mapping[str, GraphCompiler],
    context: CompileContext,
    cache: CompileCache,
    *,
    force: bool = False,
) -> Program | tuple[Refusal, ...]:
    """Return the plan's Program, or every refusal when there was one.

    ``engines`` maps each engine spec that the plan names to the engine. Launches compile one after the other; each
    signature is compiled and prepared at most once while it stays cached, unless ``force``.
    """
    leases: list[Lease] = []
    refusals: list[Refusal] = []
    for launch in plan.launches:
        try:
            leases.append(_lease(launch, engines[launch.engine], context, cache, force))
        except (CompileRefused, CompileFailed) as error:
            refusals.append(_refusal(launch, error))
    if not refusals:
        return Program(plan, leases)
    for lease in leases:
        lease.release()
    return tuple(refusals)


def _refusal(launch: Launch, error: CompileRefused | CompileFailed) -> Refusal:
    own = set(launch.nodes)
    _log.info("%s is refused: %s", launch.name, error)
    culprits = tuple(node for node in getattr(error, "nodes", ()) if node in own)
    return Refusal(launch, culprits or launch.nodes, error)


def _lease(launch: Launch, engine: GraphCompiler, context: CompileContext, cache: CompileCache, force: bool) -> Lease:
    here = replace(context, device=launch.device or context.device)
    signature = signature_of(launch.function, engine, here)
    met = "hit"

    def make() -> Executable:
        nonlocal met
        met = "miss"
        return _compile(launch, engine, here)

    lease = cache.lease(signature, make, force=force, recipe=Recipe(launch.function, engine, here))
    _log.debug("cache %s for %s (%.12s)", met, launch.name, signature.key)
    return lease


def _compile(launch: Launch, engine: GraphCompiler, context: CompileContext) -> Executable:
    """Compile and prepare; whatever else an engine raises becomes CompileFailed, with its cause."""
    _log.info("%s: %s compiles %d nodes", launch.name, launch.engine, len(launch.nodes))
    began = perf_counter()
    try:
        executable = engine.compile(launch.function, context)
        executable.prepare()
    except (CompileRefused, CompileFailed):
        raise
    except Exception as error:
        shown = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise CompileFailed(
            f"engine {launch.engine!r} failed to compile {launch.name} ({len(launch.nodes)} nodes): {shown}"
        ) from error
    _log.info("%s: compiled in %.3f s", launch.name, perf_counter() - began)
    return executable
