"""A call that may be made again: what became of a region that failed, and whether the inputs are still what they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.engines import RunOptions
from xrt.errors import DeviceError, FallbackWarning, InputError, RunFailed, warn
from xrt.runtime.devices import use_array_device
from xrt.runtime.program import DEFAULT

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.partition import Plan
    from xrt.runtime import OutputInspector, Program, Refusal

__all__ = ["Call", "FailedCall", "format_implicit_fallback", "make_exclusions", "warn_refusals"]


@dataclass(frozen=True, slots=True)
class Call:
    """The values of one call."""

    inputs: Sequence[Any]
    options: RunOptions = DEFAULT
    inspection: OutputInspector | None = None
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
            buffers = _find_check(device)(given, function.outputs, function.inputs, inputs)
            options = RunOptions(buffers, options.stream, options.block, options.profile)
        return cls(inputs, options)

    def keep_inputs(self, function: Function) -> Call:
        """Return the call with copies of the inputs that it will update, so that it can be made again in any case."""
        updated = {name for name, _ in function.aliases}
        named = zip(function.inputs, self.inputs, strict=True)
        return replace(self, before=tuple((given, _copied(given)) for value, given in named if value.name in updated))

    def on_copies(self, function: Function) -> Call:
        """Return the call with copies of the inputs that it updates, and without the caller's buffers."""
        updated = {name for name, _ in function.aliases}
        named = zip(function.inputs, self.inputs, strict=True)
        inputs = tuple(_copied(given) if value.name in updated else given for value, given in named)
        return replace(self, inputs=inputs, options=replace(self.options, out=None))

    def on(self, program: Program) -> list[Any]:
        """Run it."""
        return program.run(self.inputs, self.options, self.inspection)

    def restore(self, plan: Plan, error: RunFailed) -> None:
        """Restore the inputs to their state before the region failed.

        Raises RunFailed if that state is unknown.
        """
        from xrt.runtime import list_inplace_updates

        if self.before:
            for given, held in self.before:
                with use_array_device(given):
                    given[...] = held
        elif touched := list_inplace_updates(plan, error.region) if error.updated is None else error.updated:
            names = ", ".join(map(repr, touched))
            raise RunFailed(
                f"{error}; the call is not repeated, since its update in place of {names} may have been made in part. The "
                f"region is placed elsewhere for later calls: give {names} the value it had, and call again",
                error.region,
                tuple(touched),
            ) from error


def _find_check(device: str) -> Callable[..., Sequence[Any]]:
    """Return what checks the buffers of a caller on a device."""
    if device == "cpu":
        from xrt.runtime.outputs import check_buffers

        return check_buffers
    from xrt.runtime.multi_device.buffers import check_placed_buffers

    return partial(check_placed_buffers, device)


def _copied(given: Any) -> Any:
    with use_array_device(given):
        return given.copy()


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call that has failed in one region of a program."""

    call: Call
    program: Program
    error: RunFailed

    @property
    def refusal(self) -> Refusal:
        """What is taken from the engine of the region: the nodes of all regions that share its executable."""
        from xrt.runtime import Refusal

        launches, executables = self.program.plan.launches, self.program.executables
        number = [launch.name for launch in launches].index(self.error.region)
        alike = [launch for launch, one in zip(launches, executables, strict=True) if one is executables[number]]
        return Refusal(launches[number], tuple(node for launch in alike for node in launch.nodes), self.error)

    def make_repeatable(self, function: Function) -> tuple[FailedCall, RunFailed | None]:
        """Restore the inputs; if that cannot be, return the failure with a call on copies, and the error to raise."""
        try:
            self.call.restore(self.program.plan, self.error)
        except RunFailed as error:
            return replace(self, call=self.call.on_copies(function)), error
        return self, None


def make_exclusions(refused: Iterable[Refusal]) -> tuple[tuple[str, str, str], ...]:
    """Return the partitioner's exclusions: node, engine and reason."""
    failures = ((one, "failed at run" if isinstance(one.error, RunFailed) else "refused at compile") for one in refused)
    return tuple((node, one.launch.engine, f"{how}: {one.reason}") for one, how in failures for node in one.nodes)


def format_implicit_fallback(plan: Plan, implicit: str | None, refused: Iterable[Refusal]) -> str:
    """Return the warning about nodes on the implicit engine: their number, and the reason of one of them.

    Returns an empty string if every such node was already reported when its engine refused it, or updates state there because
    another engine would copy it.
    """
    if all(launch.engine != implicit for launch in plan.launches):
        return ""
    known = {node for one in refused for node in one.nodes}
    by_choice = {reason.node for reason in plan.reasons if reason.updating_engine}
    taken = [node for launch in plan.launches if launch.engine == implicit for node in launch.nodes if node not in by_choice]
    first = next((node for node in taken if node not in known), None)
    if first is None:
        return ""
    why = next((f": {r.text}" for r in plan.reasons if r.node == first), "")
    run, it, named = ("nodes run", "them", ", such as") if len(taken) != 1 else ("node runs", "it", ":")
    return (
        f"{len(taken)} {run} on the reference engine {implicit!r}, as no engine of the list supports {it}{named} {first!r}{why}. "
        f"m.explain() lists {it}; "
        f"name {implicit!r} in the list to accept it, or pass strict=True to refuse it"
    )


def warn_refusals(refused: Iterable[Refusal]) -> None:
    """Warn, one line for each."""
    for one in refused:
        some = f"{one.nodes[0]!r}" + (f" and {len(one.nodes) - 1} more" if len(one.nodes) > 1 else "")
        warn(f"{one.reason}; node {some} placed on another engine", FallbackWarning)
