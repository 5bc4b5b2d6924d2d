"""Fallback: repeat a call after a region failed, restore its inputs, and check outputs with the reference."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from xrt.engines import RunOptions
from xrt.engines.contract.graph_compiler import name_likely_cause
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import DeviceError, FallbackWarning, InputError, RunFailed, XRTError, warn
from xrt.graph import DType, Function
from xrt.partition import Launch
from xrt.runtime import OutputInspector, find_type_mismatch
from xrt.runtime.devices import use_array_device
from xrt.runtime.inputs import check_buffers
from xrt.runtime.program import DEFAULT

if TYPE_CHECKING:
    from xrt.module.options import Check
    from xrt.module.specialization import Specialization
    from xrt.partition import Plan
    from xrt.placement.engine_list import EngineList
    from xrt.runtime import Program, Refusal


@dataclass(frozen=True, slots=True)
class Call:
    """The values of one call."""

    inputs: Sequence[Any]
    options: RunOptions = DEFAULT
    inspection: OutputInspector | None = None
    before: tuple[tuple[Any, Any], ...] = ()
    """(input, copy of its values before the call) for inputs that the model updates; only if the call is checked."""

    @classmethod
    def of(cls, inputs: Sequence[Any], options: RunOptions | None, out: Any, function: Function, device: str) -> Call:
        """Create the call with the caller's options; raises DeviceError for a stream on the CPU, InputError for a bad buffer."""
        options = options or DEFAULT
        on_host = device == "cpu"
        if options.stream is not None and on_host:
            raise DeviceError(f"a stream was given, but the module runs on {device}, which has none; pass stream=None")
        if out is not None and options.out is not None:
            raise InputError("out= is given twice, as an argument and in options; give the buffers in one of the two")
        given = out if out is not None else options.out
        if given is not None:
            buffers = check_buffers(given, function.outputs, function.inputs, inputs, device)
            options = RunOptions(buffers, options.stream, options.block, options.profile)
        return cls(inputs, options)

    def keep_inputs(self, function: Function) -> Call:
        """Copy the inputs that the call updates, so that it can always be repeated."""
        updated = {name for name, _ in function.aliases}
        named = zip(function.inputs, self.inputs, strict=True)
        return replace(self, before=tuple((given, _copied(given)) for value, given in named if value.name in updated))

    def on_copies(self, function: Function) -> Call:
        """The call on copies of the inputs that it updates, without the caller's buffers."""
        updated = {name for name, _ in function.aliases}
        named = zip(function.inputs, self.inputs, strict=True)
        inputs = tuple(_copied(given) if value.name in updated else given for value, given in named)
        return replace(self, inputs=inputs, options=replace(self.options, out=None))

    def on(self, program: Program) -> list[Any]:
        """Run the call on a program."""
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
        """The nodes to exclude from the engine: those of all regions that share the failed executable."""
        from xrt.runtime import Refusal

        launches, executables = self.program.plan.launches, self.program.executables
        number = [launch.name for launch in launches].index(self.error.region)
        alike = [launch for launch, one in zip(launches, executables, strict=True) if one is executables[number]]
        return Refusal(launches[number], tuple(node for launch in alike for node in launch.nodes), self.error)

    def make_repeatable(self, function: Function) -> tuple[FailedCall, RunFailed | None]:
        """Restore the inputs. If impossible, return the failure with a call on copies of the inputs, and the error to raise."""
        try:
            self.call.restore(self.program.plan, self.error)
        except RunFailed as error:
            return replace(self, call=self.call.on_copies(function)), error
        return self, None


def make_exclusions(refused: Iterable[Refusal]) -> tuple[tuple[str, str, str], ...]:
    """Make the partitioner's exclusions: node, engine and reason."""
    failures = ((one, "failed at run" if isinstance(one.error, RunFailed) else "refused at compile") for one in refused)
    return tuple((node, one.launch.engine, f"{how}: {one.reason}") for one, how in failures for node in one.nodes)


def format_implicit_fallback(plan: Plan, implicit: str | None, refused: Iterable[Refusal]) -> str:
    """Format the warning about nodes on the implicit engine: how many, and the reason for one of them.

    Empty if each such node was already reported when its engine refused it, or updates state there because another engine
    would copy the state.
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
    """Issue a warning with one line per refusal."""
    for one in refused:
        some = f"{one.nodes[0]!r}" + (f" and {len(one.nodes) - 1} more" if len(one.nodes) > 1 else "")
        warn(f"{one.reason}; node {some} placed on another engine", FallbackWarning)


C = TypeVar("C", bound=type)
_STEPS = ("check_inputs", "specialize")  # of wrapped methods


def shorten_tracebacks(cls: C) -> C:
    """Limit the traceback of an XRTError from a public method or property to two frames of XRT."""
    for name, member in list(vars(cls).items()):
        # `__call__` is the fast path; code that may fail is in `run_call`.
        if (name.startswith("_") and name != "__init__") or name in _STEPS:
            continue
        if isinstance(member, FunctionType):
            setattr(cls, name, _shorten(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(_shorten(member.fget), member.fset, member.fdel, member.__doc__))
    return cls


def _shorten(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except XRTError as error:
            if os.environ.get("XRT_TRACEBACK") == "full":
                raise
            raise error.with_traceback(None)  # noqa: B904  # the same error: its cause and context stay

    return call


PATIENCE = 20.0
"""Seconds that a plan's first call waits for the reference, if the search had no time to compare the plan."""


@dataclass(eq=False)
class OutputChecks:
    """Checks a module's outputs against the reference engine."""

    asked: Check
    threads: int
    count: int = 0
    """Number of calls that passed the check."""
    unchecked: dict[str, str] = field(default_factory=dict)
    """Reasons why Functions cannot be checked, by fingerprint."""
    is_too_slow: bool = False
    """Whether the reference took longer than `PATIENCE`; it is not run again, as other sizes would take as long."""

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    @property
    def sees_every_call(self) -> bool:
        """Whether any call may be checked, so that no call can be prepared."""
        return self.asked not in (None, "first")

    def instrument(self, call: Call, build: Specialization) -> Call:
        """Add the checks to a call: types always, results if a check is due."""
        is_unproved = build.tuned is not None and not build.tuned.is_checked and not build.checked and not self.is_too_slow
        if not self._is_due(first=not build.checked) and not is_unproved:
            return replace(call, inspection=OutputInspector(self._wrong_type))
        looks = partial(self._wrong, build.engines)
        return replace(call, inspection=OutputInspector(looks, needs_inputs=True)).keep_inputs(build.function)

    def record(self, call: Call, build: Specialization) -> bool:
        """Count a checked call with correct outputs.

        True if this is the first comparison of a plan that its search had no time to compare.
        """
        if call.inspection is None or not call.inspection.needs_inputs or (self.asked is None and self.is_too_slow):
            return False
        is_first, build.checked = not build.checked, True
        self.count += 1
        if not is_first or build.tuned is None or build.tuned.is_checked or build.refused or self.asked == "nan":
            return False
        return not self.remarks({launch.name: launch.function for launch in build.plan.launches})

    def _is_due(self, *, first: bool) -> bool:
        """Whether to check a call; ``first``: no call of its plan has been checked yet."""
        if self.asked is None:
            return False
        rate = 0.0 if self.asked == "first" else 1.0 if self.asked == "nan" else float(self.asked)
        number = next(self._numbers)
        return first or int(number * rate) > int((number - 1) * rate)

    def _wrong_type(self, launch: Launch, given: Sequence[Any], results: Sequence[Any]) -> str | None:
        """Describe a result whose type differs from the plan's, unless the reference returns that type, too (a wrong model)."""
        found = find_type_mismatch(launch, results)
        if found is None or (expected := self._expected(launch, given)) is None:
            return None
        return None if _types(results) == _types(expected) else found

    def _wrong(self, engines: EngineList, launch: Launch, given: Sequence[Any], results: Sequence[Any]) -> str | None:
        if (found := self._wrong_type(launch, given, results)) is not None:
            return found
        if self.asked == "nan" and not any(map(_has_nan, results)):
            return None
        expected = self._expected(launch, given)
        if expected is None:
            return None
        if self.asked == "nan":
            return _strange_nan(launch, given, results, expected)
        return self._difference(engines, launch, given, results, expected)

    def _difference(
        self, engines: EngineList, launch: Launch, given: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]
    ) -> str | None:
        from xrt.verify import Verdict, judge_outputs
        from xrt.verify.comparison import find_precision

        function, engine = launch.function.replace(aliases=()), engines.on_host(launch)
        precision = "fp32" if engine is None else find_precision(engine, engines.context)
        found = judge_outputs(function, given, results, expected, self._run, precision)
        if found.verdict is not Verdict.DISAGREES:
            return None
        cause = engine and name_likely_cause(engine.implementation, function, [*given, *results, *expected])
        return f"engine {launch.engine!r} computed {launch.name} wrongly: {found.message}{f'; {cause}' if cause else ''}"

    def _expected(self, launch: Launch, given: Sequence[Any]) -> list[Any] | None:
        """Compute the region on the reference; None if the reference cannot run it or is the region's engine."""
        if launch.engine == REFERENCE:
            return None
        function = launch.function
        reason = self.unchecked.get(function.fingerprint) or _why_not_comparable(function)
        if not reason:
            try:
                return self._evaluate(function.replace(aliases=()), given)
            except (XRTError, TimeoutError) as error:
                reason = f"the reference cannot run it: {error}"
        self.unchecked[function.fingerprint] = reason
        return None

    def _evaluate(self, function: Function, given: Sequence[Any]) -> list[Any]:
        """Run the reference; without a requested check at most `PATIENCE` seconds, then raises TimeoutError."""
        if self.asked is not None:
            return self._run(function, given)
        from xrt.processes.background import OutOfTime, within

        try:
            return within(PATIENCE, partial(self._run, function, given))
        except OutOfTime as error:
            self.is_too_slow = True
            raise TimeoutError(str(error)) from error

    def _run(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        from xrt.placement.reference import evaluate

        return evaluate(function, inputs, threads=self.threads)

    # ------------------------------------------------------------------ reports

    def __str__(self) -> str:
        if self.asked is None:
            return ""
        what = _PHRASES.get(self.asked) or f"the first call of each signature and {self.asked:.3g} of the others"
        return f"checked against {REFERENCE}: {what}; {self.count} call{'s' * (self.count != 1)} so far"

    def remarks(self, functions: Mapping[str, Function]) -> dict[str, str]:
        """Why Functions are not checked, by region name."""
        found = {name: self.unchecked.get(function.fingerprint) for name, function in functions.items()}
        return {name: f"not checked: {reason}" for name, reason in found.items() if reason}


_PHRASES: Mapping[Any, str] = {"first": "the first call of each signature", "nan": "each call in which a region returns NaN"}
Look: TypeAlias = Callable[[Launch, Sequence[Any], Sequence[Any], Sequence[Any]], str | None]


def _why_not_comparable(function: Function) -> str:
    from xrt.operators import is_deterministic

    drawn = next((node for node in function.nodes if not is_deterministic(node, function)), None)
    return f"node {drawn.name!r} ({drawn.op}) does not give the same twice" if drawn is not None else ""


def _strange_nan(launch: Launch, given: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]) -> str | None:
    for value, mine, theirs in zip(launch.function.outputs, results, expected, strict=True):
        if _has_nan(mine) and _has_nan_beyond(mine, theirs):
            return (
                f"engine {launch.engine!r} computed NaN for output {value.name!r} of {launch.name}, where the reference has none"
            )
    return None


def _has_nan(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_nan, value))
    return isinstance(value, np.ndarray) and DType.of(value).is_float and bool(np.isnan(value).any())


def _has_nan_beyond(mine: Any, theirs: Any) -> bool:
    """Whether ``mine`` has a NaN where ``theirs`` has none; if types or shapes differ, whether ``theirs`` has none at all."""
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray) and mine.shape == theirs.shape:
        return bool((np.isnan(mine) & ~np.isnan(theirs)).any())
    return not _has_nan(theirs)


def _types(values: Sequence[Any]) -> list[Any]:
    return [(x.dtype, x.shape) if isinstance(x, np.ndarray) else type(x) for x in values]
