"""Expected results: the reference's values, or, if the reference is too slow, those of the plan by priority.

A stand-in proves nothing: engines are then compared with each other, and the remark says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileCache
from xrt.engines.contract.proxy import load_engine
from xrt.errors import RunFailed, XRTError
from xrt.partition import partition
from xrt.placement.profiling.activations import Reference, capture_activations
from xrt.placement.time_limit import OutOfTime, within, within_or_stopped
from xrt.runtime import Program, compile_plan, to_host
from xrt.verify.execution import copy_values

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.graph import Function
    from xrt.placement.plans import Candidates

__all__ = ["Truth", "compute_truth", "make_stand_in"]

SHARE = 0.7
"""Part of the time that the reference may take; the rest is the stand-in's."""


@dataclass(frozen=True)
class Truth:
    """Values by name, and who computes more of them."""

    values: dict[str, Any] = field(default_factory=dict)
    reference: Reference | None = None
    """None if the expected results could not be computed: then results are not compared."""
    remark: str = ""
    """What to tell where results are not checked against the reference."""


def make_stand_in(candidates: Candidates, engines: Mapping[str, GraphCompiler], context: CompileContext) -> Reference:
    """Return the substitute for the reference: the plan by the order of the list, compiled in this process."""

    def run(function: Function, inputs: Sequence[Any]) -> list[Any]:
        where = candidates.homes
        plan = partition(
            *(function, candidates.engines),
            implicit=candidates.implicit,
            device=where.device,
            devices=where.by_engine,
        )
        used = {launch.engine: load_engine(engines[launch.engine]) for launch in plan.launches}
        made = compile_plan(plan, used, context, CompileCache())
        if not isinstance(made, Program):
            raise RunFailed(made[0].reason)
        try:
            return [copy_values(to_host(value)) for value in made.run([copy_values(value) for value in inputs])]
        finally:
            made.close()

    return run


def compute_truth(
    function: Function, inputs: Sequence[Any], reference: Reference, stand_in: Reference, name: str, seconds: float
) -> Truth:
    """Return the truth, within about so many seconds; the stand-in, of that name, is asked where the reference fails."""
    try:
        given = function, inputs, reference
        values = within_or_stopped(seconds * SHARE, lambda is_stopped: capture_activations(*given, is_stopped=is_stopped))
        return Truth(values, reference)
    except (OutOfTime, XRTError) as error:
        why = _line(error)
    except Exception as error:  # noqa: BLE001  # whatever a kernel raises
        why = f"{type(error).__name__}: {_line(error)}"
    found = _stood_in(function, inputs, stand_in, seconds * (1 - SHARE))
    held = f"results were held against those of {name}" if found else "results were held against nothing"
    remark = f"not checked against the reference: {why}; {held}"
    return Truth(found, stand_in, remark) if found else Truth({}, None, remark)


def _stood_in(function: Function, inputs: Sequence[Any], stand_in: Reference, seconds: float) -> dict[str, Any]:
    """Return the stand-in's values: of all nodes, or of the outputs alone; none where it fails as well."""
    attempts: list[Callable[[], dict[str, Any]]] = [
        partial(capture_activations, function, inputs, stand_in),
        partial(capture_activations, function, inputs, stand_in, 0),
    ]
    for attempt in attempts:
        try:
            return within(seconds / len(attempts), attempt)
        except Exception:  # noqa: BLE001  # the next one, or none
            continue
    return {}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
