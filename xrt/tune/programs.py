"""Plans made ready for the contest: compiled here, held against the reference, and called as a module calls them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xrt.cache import CompileCache
from xrt.engines import CompileContext, GraphCompiler, RunOptions
from xrt.errors import XRTError
from xrt.graph import Function
from xrt.partition import Plan
from xrt.runtime import Program, compile_plan, to_host
from xrt.tune.right import Found, held
from xrt.tune.values import Reference, first_drawn
from xrt.verify.running import copied

__all__ = ["Ready", "ready"]

PROFILED = 5
"""Calls over which the launches of a plan are timed one by one."""

SOUND = Found()


@dataclass(slots=True, eq=False)
class Ready:
    """A plan that can be called, or why it cannot."""

    plan: Plan
    program: Program | None = None
    call: Callable[[], object] = tuple
    found: Found = SOUND
    failure: str = ""
    seconds: float = 0.0
    """What its first call took."""
    results: Sequence[Any] | None = None
    """What that gave, where nobody knew yet what is right."""

    @property
    def may_run(self) -> bool:
        """Whether it may enter the contest."""
        return self.program is not None and not self.found.wrong and not self.failure

    def close(self) -> None:
        """Let go of the program; what it was compiled to stays in the cache."""
        program, self.program = self.program, None
        if program is not None:
            program.close()

    def profiled(self, inputs: Sequence[Any]) -> tuple[float, ...]:
        """Return seconds of each launch within calls of the whole; nothing for a plan of one, whose time is the whole's."""
        if self.program is None or len(self.plan.launches) < 2:
            return ()
        for _ in range(PROFILED):
            self.program.run(inputs, RunOptions(profile=True))
        return tuple(one.seconds / one.calls for one in self.program.profile().launches)


def ready(
    plan: Plan,
    function: Function,
    engines: Mapping[str, GraphCompiler],
    context: CompileContext,
    cache: CompileCache,
    inputs: Sequence[Any],
    expected: Sequence[Any] | None,
    reference: Reference,
    *,
    graph: bool = False,
) -> Ready:
    """Compile a plan and call it once on copies of the inputs, which lie on the host; one that differs may not enter.

    Where nobody knows what is ``expected`` it is held against nothing.

    With ``graph`` its calls on a device are recorded and replayed, where they can be.
    """
    try:
        made = compile_plan(plan, engines, context, cache, graph=graph)
        if not isinstance(made, Program):
            return Ready(plan, failure="; ".join(dict.fromkeys(one.reason for one in made)))
    except XRTError as error:
        return Ready(plan, failure=_one_line(error))
    own = [copied(value) for value in inputs]
    try:
        began = time.perf_counter()
        results = [copied(to_host(value)) for value in made.run(own)]
        seconds = time.perf_counter() - began
        is_open = expected is None or first_drawn(function)
        found = SOUND if is_open else held(function, inputs, results, expected or (), reference, context.options)
    except Exception as error:  # noqa: BLE001  # whatever an engine raises
        made.close()
        return Ready(plan, failure=_one_line(error))
    return Ready(plan, made, made.repeated(own), found, seconds=seconds, results=results if expected is None else None)


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said if isinstance(error, XRTError) else f"{type(error).__name__}: {said}"
