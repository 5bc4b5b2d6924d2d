"""The conformance run: the tests of the installed ``onnx`` on an engine, on a list, alternating, or placed by measurement.

An engine is handed what XRT would hand it: types inferred, and the parts that are constant computed beforehand, unless
nothing would be left of the case. A case is *declined* when the engine said so before the first run, *passed* when what
came out is right in type, shape and value, and *failed* otherwise; one case's error never ends the run. No engine stands
behind those that are listed.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from xrt import passes
from xrt.engines import GraphCompiler, registry
from xrt.errors import CompileFailed, CompileRefused, OptionError, PlanError
from xrt.graph import Function
from xrt.module.automatic import asks_for_auto
from xrt.module.build import simplified
from xrt.partition import Launch
from xrt.testing.alternate import alternating_program
from xrt.testing.cases import Case, unchanged
from xrt.testing.groups import cases_of
from xrt.testing.ledgers import MIXTURES, Gap, gaps_of, settle
from xrt.testing.measured import engines_for, placed_program
from xrt.testing.remote import conform_remotely
from xrt.testing.report import Outcome, Report, Word
from xrt.testing.running import module_of
from xrt.verify.running import compiled

__all__ = [
    "Engine",
    "Maker",
    "Ready",
    "alone",
    "alternating",
    "by_measurement",
    "conform",
    "create_engines",
    "makers_for",
    "run_case",
    "run_reference",
    "together",
]

Engine: TypeAlias = str | GraphCompiler


@dataclass(frozen=True, slots=True)
class Ready:
    """A compiled function, to be run once."""

    run: Callable[[Sequence[Any]], Sequence[Any]]
    placed: tuple[tuple[str, str], ...] = ()
    """Which engines its operators are on, as (operator, engine) pairs."""


Maker: TypeAlias = Callable[[Function, Sequence[Any]], Ready]
"""Compiles a function for inputs such as the given ones; raises CompileRefused for what is declined."""
Progress: TypeAlias = Callable[[int, int, Outcome], None]
"""Told after each case: how many are done, of how many, and what came of it."""


def conform(
    engines: Engine | Sequence[Engine],
    pattern: str = "*",
    *,
    groups: Sequence[str] = (),
    alternate: bool = False,
    shard: tuple[int, int] = (0, 1),
    reference: bool = False,
    isolate: bool = False,
    gaps: Sequence[Gap] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run the cases of those groups (of all, when none is named) that match, or a share of them, and return the report.

    With "auto" among the engines, every case is placed by a small search over those beside it, or over all that are ready.
    A ledger excuses nothing but roundings then: the search holds what it takes against the reference.
    With ``alternate``, neighbouring nodes are kept on different engines (`xrt.testing.alternate`), and every case runs once
    for each engine to begin with. With ``reference``, ``onnx.reference.ReferenceEvaluator`` runs beside. With ``isolate`` the
    cases run in a worker process: one that ends it has failed, and the rest runs in the next. Without ``gaps``,
    the report is settled with the ledgers that XRT ships for the engines. To use several processes, run each with a shard
    and without gaps (``gaps=()``), then settle the `Report.joined` of all.
    """
    asked = [engines] if isinstance(engines, str | GraphCompiler) else list(engines)
    listed, is_auto = create_engines(asked)
    makers = makers_for(listed, alternate=alternate, auto=is_auto)
    tell = progress or (lambda done, count, outcome: None)
    if isolate:
        what = {"pattern": pattern, "groups": list(groups), "alternate": alternate, "shard": shard}
        outcomes, beside = conform_remotely(asked, what, reference, tell)
    else:
        outcomes, beside = _run_here(makers, cases_of(groups, pattern, shard=shard), reference, tell)
    name = ",".join(map(str, asked) if is_auto else (engine.spec for engine in listed)) + ", alternating" * alternate
    known = _ledger(listed, auto=is_auto) if gaps is None else gaps
    complete = pattern == "*" and shard == (0, 1) and not groups
    return settle(Report(name, tuple(outcomes), tuple(beside)), known, complete=complete, alone=len(listed) == 1 and not is_auto)


def create_engines(asked: Sequence[Engine]) -> tuple[list[GraphCompiler], bool]:
    """Return the engines that are meant, and whether a search is to choose among them."""
    is_auto = asks_for_auto(asked)
    return (engines_for(asked) if is_auto else [registry.create(engine) for engine in asked]), is_auto


Ran: TypeAlias = tuple[list[Outcome], list[Outcome]]
"""The outcomes of the cases, and of the reference beside where it was asked for."""


def _run_here(makers: Sequence[Maker], cases: Sequence[Case], reference: bool, tell: Progress) -> Ran:
    outcomes: list[Outcome] = []
    for done, case in enumerate(cases, 1):
        outcomes.append(run_case(replace(case), *makers))  # a copy, so that what the case holds of its model goes with it
        tell(done, len(cases), outcomes[-1])
    return outcomes, [run_reference(case) for case in cases] if reference else []


def _ledger(engines: Sequence[GraphCompiler], *, auto: bool) -> list[Gap]:
    """Return the gaps of all; for a search only those of rounding, since what is wrong it is to keep out by itself."""
    names = [engine.spec for engine in engines] + [MIXTURES] * (len(engines) > 1)
    return [gap for name in names for gap in gaps_of(name) if not (auto and gap.everywhere)]


def makers_for(engines: Sequence[GraphCompiler], *, alternate: bool = False, auto: bool = False) -> tuple[Maker, ...]:
    """Return how to compile for those engines, in every way that a case is to run.

    One engine runs by the contract alone, several as a module makes a plan of them; or they alternate, each beginning once;
    or a search decides, with ``auto``, which of them is to run what.
    """
    if auto and alternate:
        raise OptionError("nodes that alternate are not placed by measurement; list the engines without 'auto'")
    if auto:
        return (by_measurement(engines),)
    if alternate and len(engines) < 2:
        raise OptionError("nodes alternate between two engines or more; list another")
    if alternate:
        return tuple(alternating(engines, first) for first in range(len(engines)))
    return (alone(engines[0]) if len(engines) == 1 else together(engines),)


def alone(engine: GraphCompiler) -> Maker:
    """Return a maker that asks, compiles and runs by the contract alone, with nothing of XRT in between."""

    def make(function: Function, inputs: Sequence[Any]) -> Ready:
        prepared = _prepared(function)
        executable = compiled(engine, prepared, inputs)

        def run(values: Sequence[Any]) -> Sequence[Any]:
            try:
                return executable.run(values)
            finally:
                executable.close()

        return Ready(run, tuple(sorted({(node.op, engine.name) for node in prepared.nodes})))

    return make


def together(engines: Sequence[GraphCompiler], **options: Any) -> Maker:
    """Return a maker that plans for a list of engines, as `module_of` does."""

    def make(function: Function, inputs: Sequence[Any]) -> Ready:
        module = module_of(_prepared(function), engines, **options)
        try:
            module.compile(*inputs)
        except PlanError as error:
            raise _refusal(error) from error
        count = len(function.outputs)
        return Ready(lambda values: _as_outputs(module(*values), count), _placed(module.plan.launches))

    return make


def alternating(engines: Sequence[GraphCompiler], first: int = 0) -> Maker:
    """Return a maker that keeps neighbouring nodes on different engines; the engine of that number begins."""

    def make(function: Function, inputs: Sequence[Any]) -> Ready:
        program = alternating_program(_prepared(function), inputs, engines, first)
        return Ready(program.run, _placed(program.plan.launches))

    return make


def by_measurement(engines: Sequence[GraphCompiler]) -> Maker:
    """Return a maker that runs the plan which a search on the case's own inputs finds; what is wrong never enters its race."""

    def make(function: Function, inputs: Sequence[Any]) -> Ready:
        try:
            program = placed_program(_prepared(function), inputs, engines)
        except PlanError as error:
            raise _refusal(error) from error
        return Ready(program.run, _placed(program.plan.launches))

    return make


def _placed(launches: Sequence[Launch]) -> tuple[tuple[str, str], ...]:
    pairs = {(node.op, launch.engine.partition("{")[0]) for launch in launches for node in launch.function.nodes}
    return tuple(sorted(pairs))


def _prepared(function: Function) -> Function:
    """Return the function with its constant parts computed, as a module does; itself where that would leave no node."""
    simple = simplified(passes.infer_shapes(function), fold=True)
    return simple if simple.nodes else function


def _refusal(error: PlanError) -> Exception:
    """Return why no plan was found: a failure where an engine failed to compile, a refusal where it only declined."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, CompileFailed):
            return cause
        cause = cause.__cause__
    return CompileRefused(str(error))


def _as_outputs(results: Any, count: int) -> Sequence[Any]:
    return [results] if count == 1 else results


# ---------------------------------------------------------------------- one case


def run_case(case: Case, *makers: Maker) -> Outcome:
    """Return what came of one case, made in each of the ways: of the first that does not pass, else of the last.

    No exception leaves it but those that end the process.
    """
    start = time.perf_counter()
    placed: set[tuple[str, str]] = set()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # cases overflow and cast NaN on purpose; what counts is what comes out
        for make in makers:
            outcome = _outcome(case, make)
            placed.update(outcome.placed)
            if outcome.word is not Word.PASSED:
                break
    seconds = time.perf_counter() - start
    return replace(outcome, operators=case.operators, seconds=seconds, group=case.group, placed=tuple(sorted(placed)))


def _outcome(case: Case, make: Maker) -> Outcome:
    try:
        ready = make(case.function, case.inputs)
    except CompileRefused as refusal:
        return Outcome(case.name, Word.DECLINED, _first_line(refusal))
    except Exception as error:  # noqa: BLE001  # whatever an engine raises is its outcome
        return Outcome(case.name, Word.FAILED, f"at compile: {_described(error)}")
    return replace(_ran(case, ready, make), placed=ready.placed)


def _ran(case: Case, ready: Ready, make: Maker) -> Outcome:
    given = copy.deepcopy(case.inputs)
    is_mixture = len({engine for _, engine in ready.placed}) > 1

    def rerun(function: Function) -> Sequence[Any]:
        return make(function, case.inputs).run(copy.deepcopy(case.inputs))

    try:
        verdict = case.judge(ready.run(given), admit_ties=is_mixture, rerun=rerun) and unchanged(case.inputs, given)
    except Exception as error:  # noqa: BLE001  # whatever an engine raises is its outcome
        return Outcome(case.name, Word.FAILED, f"at run: {_described(error)}")
    return Outcome(case.name, Word.PASSED) if verdict else Outcome(case.name, Word.FAILED, verdict.message)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def run_reference(case: Case) -> Outcome:
    """Return what ``onnx.reference.ReferenceEvaluator`` makes of the case; it may return scalars where arrays are due."""
    from onnx.reference import ReferenceEvaluator

    def make(function: Function, inputs: Sequence[Any]) -> Ready:
        evaluator = ReferenceEvaluator(case.model)
        names = [value.name for value in function.inputs]
        outputs = None if function is case.function else [value.name for value in function.outputs]
        return Ready(lambda values: [_as_array(r) for r in evaluator.run(outputs, dict(zip(names, values, strict=True)))])

    return run_case(case, make)


def _as_array(value: Any) -> Any:
    return value if value is None or isinstance(value, list | dict) else np.asarray(value)
