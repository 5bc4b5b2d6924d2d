"""Plans of lower precision, made ready and run on examples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileCache
from xrt.errors import CompileRefused
from xrt.measure.timing import time_call
from xrt.partition import partition
from xrt.partition.explicit import plan_from_assignment
from xrt.runtime import Program, compile_plan, to_host
from xrt.verify.execution import copy_values

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition import Plan
    from xrt.placement.request import PlacementRequest
    from xrt.precision.examples import Examples

__all__ = ["Workbench", "run_once"]


@dataclass
class Workbench:
    """What plans are compiled with."""

    request: PlacementRequest
    cache: CompileCache
    """For plans that may be chosen."""
    engines: Sequence[GraphCompiler]
    """The exact ones, the fastest first, the implicit one last."""
    scratch: CompileCache = field(default_factory=CompileCache)
    """For models that only measure something."""

    def plan_exact(self, function: Function) -> Plan:
        """Return the plan of one exact engine that takes the whole Function, the fastest; else the plan by priority."""
        for engine in self.engines:
            if all(engine.why_not(node, function) is None for node in function.nodes):
                return self._partition(function, [engine])
        return self._partition(function, self.engines)

    def plan_on(self, function: Function, engine: GraphCompiler, kept: Collection[str] = ()) -> Plan:
        """Return the plan with all nodes on an engine that takes them, but for those to be kept; the others are on exact ones."""
        if not kept and all(engine.why_not(node, function) is None for node in function.nodes):
            return self._partition(function, [engine])
        others = [one for one in self.engines if one.spec != engine.spec]
        if not kept:
            return self._partition(function, [engine, *others])
        by_priority = self._partition(function, others)
        homes = {name: launch.engine for launch in by_priority.launches for name in launch.nodes}
        takes = {node.name for node in function.nodes if engine.why_not(node, function) is None}
        chosen = {name: engine.spec if name in takes and name not in kept else home for name, home in homes.items()}
        return plan_from_assignment(
            function, [engine, *others], chosen, implicit=self._implicit(others), device=self.request.device_map
        )

    def _partition(self, function: Function, engines: Sequence[GraphCompiler]) -> Plan:
        request = self.request
        options = replace(request.clustering, minimum_nodes=1, maximum_nodes=None, pins=())
        return partition(
            function,
            engines,
            options,
            implicit=self._implicit(engines),
            device=request.device_map.device,
            devices={spec: home for spec, home in request.devices.items() if any(one.spec == spec for one in engines)},
        )

    def _implicit(self, engines: Sequence[GraphCompiler]) -> str | None:
        implicit = self.request.implicit
        return implicit if any(one.spec == implicit for one in engines) and len(engines) > 1 else None

    def compile(self, plan: Plan, extra: Sequence[GraphCompiler] = (), *, is_kept: bool = True) -> Program:
        """Return the plan's program; raises CompileRefused for what an engine refuses."""
        engines = {one.spec: one for one in (*self.engines, *extra)}
        made = compile_plan(plan, engines, self.request.context, self.cache if is_kept else self.scratch)
        if not isinstance(made, Program):
            raise CompileRefused("; ".join(dict.fromkeys(one.reason for one in made)))
        return made

    def run(self, program: Program, examples: Examples) -> tuple[list[list[Any]], float]:
        """Return the outputs for each example, as arrays of their own, and the seconds of the fastest call."""
        timed = [time_call(partial(run_once, program, item.values)) for item in examples.items]
        return [outputs for outputs, _ in timed], min((seconds for _, seconds in timed), default=0.0)


def run_once(program: Program, values: Sequence[Any]) -> list[Any]:
    """Return the outputs of one call on copies of the inputs."""
    return [copy_values(to_host(value)) for value in program.run([copy_values(value) for value in values])]
