"""A call that may be made again: what became of a region that failed, and whether the inputs are still what they were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from xrt.engines import RunOptions
from xrt.errors import DeviceError, FallbackWarning, InputError, RunFailed, warn
from xrt.graph import Function
from xrt.partition import Plan
from xrt.runtime import Inspection, Program, Refusal, updated_before
from xrt.runtime.devices import beside
from xrt.runtime.outputs import check_buffers
from xrt.runtime.placed.buffers import check_placed_buffers
from xrt.runtime.program import DEFAULT

__all__ = ["Call", "given_up", "tell", "triples", "unnamed"]


@dataclass(frozen=True, slots=True)
class Call:
    """The values of one call."""

    inputs: Sequence[Any]
    options: RunOptions = DEFAULT
    inspection: Inspection | None = None
    before: tuple[tuple[Any, Any], ...] = ()
    """Inputs that the model updates, each with a copy of what it held; only where a call is checked."""

    @classmethod
    def of(cls, inputs: Sequence[Any], options: RunOptions | None, out: Any, function: Function, device: str) -> Call:
        """Return the call with what the caller asks for; raises DeviceError for a stream, InputError for a buffer."""
        options = options or DEFAULT
        on_host = device == "cpu"
        if options.stream is not None and on_host:
            raise DeviceError(f"a stream was given, but the module runs on {device}, which has none; pass stream=None")
        if out is not None and options.out is not None:
            raise InputError("out= is given twice, as an argument and in options; give the buffers in one of the two")
        given = out if out is not None else options.out
        if given is not None:
            check = check_buffers if on_host else partial(check_placed_buffers, device)
            buffers = check(given, function.outputs, function.inputs, inputs)
            options = RunOptions(buffers, options.stream, options.block, options.profile)
        return cls(inputs, options)

    def keeping(self, function: Function) -> Call:
        """Return the call with copies of the inputs that it will update, so that it can be made again in any case."""
        updated = {name for name, _ in function.aliases}
        named = zip(function.inputs, self.inputs, strict=True)
        return replace(self, before=tuple((given, _copied(given)) for value, given in named if value.name in updated))

    def on(self, program: Program) -> list[Any]:
        """Run it."""
        return program.run(self.inputs, self.options, self.inspection)

    def restore(self, plan: Plan, error: RunFailed) -> None:
        """Make the inputs what they were before the region failed.

        Raises RunFailed where nobody knows any more what they were.
        """
        if self.before:
            for given, held in self.before:
                with beside(given):
                    given[...] = held
        elif touched := updated_before(plan, error.region):
            names = ", ".join(map(repr, touched))
            raise RunFailed(
                f"{error}; the call is not repeated, since its update in place of {names} may have been made in part. The "
                f"region is placed elsewhere for later calls: give {names} the value it had, and call again",
                error.region,
            ) from error


def _copied(given: Any) -> Any:
    with beside(given):
        return given.copy()


def given_up(program: Program, error: RunFailed) -> Refusal:
    """Return what is taken from the engine of the region that failed: the nodes of all regions that share its executable."""
    launches = program.plan.launches
    number = [launch.name for launch in launches].index(error.region)
    failed = program.executables[number]
    alike = [launch for launch, one in zip(launches, program.executables, strict=True) if one is failed]
    return Refusal(launches[number], tuple(node for launch in alike for node in launch.nodes), error)


def triples(refused: Iterable[Refusal]) -> tuple[tuple[str, str, str], ...]:
    """Return what the partitioner is told: node, engine and reason."""
    told = ((one, "failed at run" if isinstance(one.error, RunFailed) else "refused at compile") for one in refused)
    return tuple((node, one.launch.engine, f"{how}: {one.reason}") for one, how in told for node in one.nodes)


def unnamed(plan: Plan, implicit: str | None, refused: Iterable[Refusal]) -> str:
    """Return what to say of nodes that run on the engine which nobody has named: how many there are, and why one does.

    Nothing where all of them were told of when they were refused.
    """
    told = {node for one in refused for node in one.nodes}
    taken = [node for launch in plan.launches if launch.engine == implicit for node in launch.nodes]
    first = next((node for node in taken if node not in told), None)
    if first is None:
        return ""
    why = next((f": {r.text}" for r in plan.reasons if r.node == first), "")
    run, named = ("nodes run", ", such as") if len(taken) != 1 else ("node runs", ":")
    return (
        f"{len(taken)} {run} on {implicit!r}, which was not named{named} {first!r}{why}. m.explain() lists them; "
        f"name {implicit!r} in the list to accept it, or pass strict=True to refuse it"
    )


def tell(refused: Iterable[Refusal]) -> None:
    """Warn, one line for each."""
    for one in refused:
        some = f"{one.nodes[0]!r}" + (f" and {len(one.nodes) - 1} more" if len(one.nodes) > 1 else "")
        warn(f"{one.reason}; node {some} placed on another engine", FallbackWarning)
