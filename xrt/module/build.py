"""One signature of a module: its Function, its Plan and, once compiled, its Program."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from xrt import passes
from xrt.cache import CompileCache
from xrt.engines import CompileContext, registry
from xrt.errors import FallbackWarning, InputError, did_you_mean
from xrt.graph import Function
from xrt.module.memory import Memory, memory
from xrt.module.settings import REFERENCE, EngineList, Settings
from xrt.module.warning import warn
from xrt.partition import ClusteringOptions, Plan, partition
from xrt.runtime import Program, Refusal, RegionToCompile, compile_plan, regions_of

__all__ = ["Build", "SavedBuild", "simplified", "with_fetched"]


def with_fetched(function: Function, fetch: Sequence[str]) -> Function:
    """Return the function with those values as further outputs; raises InputError for a name that it does not define."""
    known = set(function.value_names())
    for name in fetch:
        if name not in known:
            raise InputError(f"fetch asks for {name!r}, which is no value of the model.{did_you_mean(name, known)}")
    own = {value.name for value in function.outputs}
    more = tuple(function.value(name) for name in fetch if name not in own)
    return function.replace(outputs=function.outputs + more) if more else function


def simplified(function: Function, *, fold: bool, threads: int = 1) -> Function:
    """Return the function, whose types are inferred, with constant parts computed and what no output needs left out."""
    folded = passes.fold_constants(function, partial(evaluate, threads=threads)) if fold else function
    if folded is not function:
        folded = passes.infer_shapes(folded)
    return passes.drop_dead_nodes(folded)


def evaluate(function: Function, inputs: Sequence[Any], threads: int = 1) -> list[Any]:
    """Run a function on the reference engine; raises CompileRefused where it has no kernel."""
    executable = registry.create(REFERENCE).compile(function, CompileContext(threads=threads))
    executable.prepare()
    try:
        return list(executable.run(inputs))
    finally:
        executable.close()


_log = logging.getLogger(__name__)


def without_idle_pins(options: ClusteringOptions, function: Function, original: Function) -> ClusteringOptions:
    """Return the options without pins by name whose nodes were all folded or dropped; a name of no node at all stays an error."""
    names = {node.name for node in function.nodes}
    gone = {node.name for node in original.nodes} - names
    idle = [pin for pin in options.pins if pin.by == "name" and not any(pin.matching(names)) and any(pin.matching(gone))]
    return replace(options, pins=tuple(pin for pin in options.pins if pin not in idle)) if idle else options


@dataclass(frozen=True, slots=True)
class SavedBuild:
    """What a bundle knows of a build."""

    plan: Plan | None
    """The plan; None where an engine of it is not at hand, so that it must be made anew."""
    whole: Callable[[], Function]
    """Gives what was planned; the build's own Function may be the folded one, which has the same inputs and outputs."""
    remarks: Mapping[str, str]
    """By region: what is to be said of its compiled form."""


class Build:
    """A Function with the Plan made for it; `program` compiles on first use, and once however many threads ask."""

    def __init__(
        self,
        function: Function,
        engines: EngineList,
        settings: Settings,
        cache: CompileCache,
        *,
        original: Function,
        saved: SavedBuild | None = None,
    ) -> None:
        self.function = function
        self.remarks: Mapping[str, str] = saved.remarks if saved else {}
        self._saved = saved
        self._original = original
        self._engines = engines
        self._settings = settings
        self._clustering = without_idle_pins(settings.clustering, function, original)
        self.idle_pins = tuple(pin for pin in settings.clustering.pins if pin not in self._clustering.pins)
        self._cache = cache
        self._lock = threading.Lock()
        self._program: Program | None = None
        self.plan = saved.plan if saved and saved.plan else self._partitioned(())

    def program(self) -> Program:
        """Return the compiled Program; a region that its engine refuses is placed elsewhere, with a warning."""
        with self._lock:
            if self._program is None:
                self._program = self._compiled()
            return self._program

    def _compiled(self) -> Program:
        refused: tuple[Refusal, ...] = ()
        while True:
            made = self._attempt()
            if isinstance(made, Program):
                self._dump()
                return made
            refused += made
            self._replan(refused, made)

    def _attempt(self) -> Program | tuple[Refusal, ...]:
        force = self._settings.force_compile
        progress = self._settings.progress
        return compile_plan(self.plan, self._engines.by_spec, self._engines.context, self._cache, force=force, progress=progress)

    def _replan(self, refused: tuple[Refusal, ...], new: tuple[Refusal, ...]) -> None:
        """Place what was refused elsewhere; where nobody is left to take it, the refusal itself is the cause of the error."""
        try:
            self.plan = self._partitioned(refused)
        except Exception as error:
            raise error from new[0].error
        for refusal in new:
            some = f"{refusal.nodes[0]!r}" + (f" and {len(refusal.nodes) - 1} more" if len(refusal.nodes) > 1 else "")
            warn(f"{refusal.error}; node {some} placed on another engine", FallbackWarning)

    def _partitioned(self, refused: tuple[Refusal, ...]) -> Plan:
        plan = partition(
            self.whole(),
            self._engines.engines,
            self._clustering,
            strict=self._settings.strict,
            implicit=self._engines.implicit,
            device=self._engines.context.device,
            refused=tuple((node, r.launch.engine, str(r.error)) for r in refused for node in r.nodes),
        )
        sizes = ", ".join(f"{launch.name} of {len(launch.nodes)}" for launch in plan.launches)
        _log.info(
            "plan of %s: %d nodes in %d regions: %s", self.function.name, len(self.function.nodes), len(plan.launches), sizes
        )
        return plan

    def _dump(self) -> None:
        if self._settings.dump_subgraph_dir is not None:
            from xrt.formats import dump  # for the few who ask

            stages = {"1-model": self._original, "2-simplified": self.function, "3-plan": self.plan.function}
            dump.write(stages | {x.name: x.function for x in self.plan.launches}, self._settings.dump_subgraph_dir)

    def whole(self) -> Function:
        """Return what is planned; `function` has the same inputs and outputs, and may have been folded."""
        return self._saved.whole() if self._saved else self.function

    @property
    def is_compiled(self) -> bool:
        return self._program is not None

    def regions(self) -> list[RegionToCompile]:
        """Return what is, or was, compiled for the plan, in its order."""
        return regions_of(self.plan, self._engines.by_spec, self._engines.context)

    def memory(self) -> Memory:
        """Return what the plan takes of memory, and the engines too once it is compiled."""
        return memory(self.plan, self._original, self._program)

    def close(self) -> None:
        with self._lock:
            program, self._program = self._program, None
        if program is not None:
            program.close()
