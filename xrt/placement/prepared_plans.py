"""Plans prepared for the comparison: compiled in this process, checked against the reference, and called as a module does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xrt.engines import RunOptions
from xrt.errors import XRTError
from xrt.measure.timing import time_call
from xrt.placement.profiling.activations import Reference, find_first_random_node
from xrt.placement.profiling.correctness import CheckResult, check_against_reference
from xrt.runtime import Program, compile_plan, to_host
from xrt.verify.execution import copy_values

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.partition import Plan
    from xrt.placement.request import PlacementRequest

__all__ = ["PreparedPlan", "prepare_plan"]

PROFILED = 5
"""Calls over which the launches of a plan are timed one by one."""

SOUND = CheckResult()


@dataclass(slots=True, eq=False)
class PreparedPlan:
    """A plan that can be called, or why it cannot."""

    plan: Plan
    program: Program | None = None
    call: Callable[[], object] = tuple
    found: CheckResult = SOUND
    failure: str = ""
    seconds: float = 0.0
    """What its first call took."""
    results: Sequence[Any] | None = None
    """The results of that call, if the expected ones were unknown."""

    @property
    def may_run(self) -> bool:
        """Whether it may enter the contest."""
        return self.program is not None and not self.found.wrong and not self.failure

    def close(self) -> None:
        """Let go of the program; what it was compiled to stays in the cache."""
        program, self.program = self.program, None
        if program is not None:
            program.close()

    def profile(self, inputs: Sequence[Any]) -> tuple[float, ...]:
        """Return seconds of each launch within calls of the whole; nothing for a plan of one, whose time is the whole's."""
        if self.program is None or len(self.plan.launches) < 2:
            return ()
        for _ in range(PROFILED):
            self.program.run(inputs, RunOptions(profile=True))
        return tuple(one.seconds / one.calls for one in self.program.profile().launches)


def prepare_plan(
    plan: Plan,
    request: PlacementRequest,
    cache: CompileCache,
    inputs: Sequence[Any],
    expected: Sequence[Any] | None,
    reference: Reference,
    is_stopped: Callable[[], bool] = lambda: False,
) -> PreparedPlan:
    """Compile a plan on the request's engines and call it once on copies of the host inputs; wrong results bar it from running.

    If ``expected`` is None, results are not compared. Once it ``is_stopped``, the comparison ends.
    """
    function, context, engines = request.function, request.context, {engine.spec: engine for engine in request.engines}
    try:
        made = compile_plan(plan, engines, context, cache, graph=request.cuda_graph)
        if not isinstance(made, Program):
            return PreparedPlan(plan, failure="; ".join(dict.fromkeys(one.reason for one in made)))
    except XRTError as error:
        return PreparedPlan(plan, failure=_one_line(error))
    own = [copy_values(value) for value in inputs]
    try:
        results, seconds = time_call(lambda: [copy_values(to_host(value)) for value in made.run(own)])
        is_open = expected is None or find_first_random_node(function)
        found = (
            SOUND
            if is_open
            else check_against_reference(function, inputs, results, expected or (), reference, context.options, is_stopped)
        )
    except Exception as error:  # noqa: BLE001  # whatever an engine raises
        made.close()
        return PreparedPlan(plan, failure=_one_line(error))
    return PreparedPlan(
        plan, made, made.make_timed_call(own), found, seconds=seconds, results=results if expected is None else None
    )


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said if isinstance(error, XRTError) else f"{type(error).__name__}: {said}"
