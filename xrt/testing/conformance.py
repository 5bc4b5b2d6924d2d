"""The conformance run: the tests of the installed ``onnx`` on an engine, on a list, or alternating between engines.

An engine gets what XRT would pass to it: types inferred, and the constant parts computed beforehand, unless nothing would be left
of the case. A case is *declined* when the engine said so before the first run, *passed* when the results are right in type, shape
and value, and *failed* otherwise. One case's error never ends the run. The list has no implicit engine.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt import passes
from xrt.engines import GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import CompileFailed, CompileRefused, OptionError, PlanError
from xrt.graph import Function
from xrt.module.specialization import optimize
from xrt.testing.cases import ConformanceCase, group_cases, is_random, is_unchanged
from xrt.testing.open_dims import Opening, compile_for_all_sizes, list_other_sizes, open_dims
from xrt.testing.report import ConformanceReport, KnownFailure, Outcome, ResultWord, settle
from xrt.testing.running import isolate_engines, make_alternating_program, make_module, name_cause, overlook_deviations
from xrt.verify.execution import compile_alone

if TYPE_CHECKING:
    from xrt.partition import Launch


Engine: TypeAlias = str | GraphCompiler


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """A compiled function, to be run once."""

    run: Callable[[Sequence[Any]], Sequence[Any]]
    placed: tuple[tuple[str, str], ...] = ()
    """Which engines its operators are on, as (operator, engine) pairs."""
    engines: Sequence[GraphCompiler] = ()
    """The engines that were asked."""


Maker: TypeAlias = Callable[[Function, Sequence[Any]], PreparedCase]
"""Compiles a function for inputs such as the given ones; raises CompileRefused for what is declined."""
Progress: TypeAlias = Callable[[int, int, Outcome], None]
"""Called after each case: how many are done, of how many, and the outcome."""


def conform(
    engines: Engine | Sequence[Engine],
    pattern: str = "*",
    *,
    groups: Sequence[str] = (),
    alternate: bool = False,
    opening: Opening | None = None,
    isolate: bool = False,
    gaps: Sequence[KnownFailure] = (),
    progress: Progress | None = None,
) -> ConformanceReport:
    """Run the cases of those groups (of all, when none is named) that match, and return the report.

    ``gaps`` are known failures, with which the report is settled. With ``alternate``, neighbouring nodes are kept on different
    engines (`xrt.testing.running`), and every case runs once with each engine first. With ``opening``, extents of inputs become
    symbolic dims, and one executable of each engine runs at several sizes. With ``isolate`` the engines run in worker processes:
    a case that ends one has failed, and the rest runs in the next.
    """
    listed = [registry.create(engine) for engine in ([engines] if isinstance(engines, str | GraphCompiler) else engines)]
    tried = isolate_engines(listed) if isolate else listed
    makers = makers_for(tried, alternate=alternate, opening=opening)
    cases = group_cases(groups, pattern)
    outcomes: list[Outcome] = []
    for done, case in enumerate(cases, 1):
        outcomes.append(run_case(replace(case), *makers))  # a copy, so that what the case holds of its model goes with it
        if progress is not None:
            progress(done, len(cases), outcomes[-1])
    name = ",".join(engine.spec for engine in listed) + ", alternating" * alternate
    complete = pattern == "*" and not groups
    return settle(ConformanceReport(name, tuple(outcomes)), gaps, complete=complete, alone=len(listed) == 1)


def makers_for(engines: Sequence[GraphCompiler], *, alternate: bool = False, opening: Opening | None = None) -> tuple[Maker, ...]:
    """Return how to compile for those engines, in every way that a case is to run.

    One engine runs by the contract alone, several as a module makes a plan of them; or they alternate, each beginning once.
    """
    if alternate and len(engines) < 2:
        raise OptionError("nodes alternate between two engines or more; list another")
    if alternate:
        return tuple(run_alternating(engines, first) for first in range(len(engines)))
    if opening is not None:
        return tuple(run_at_sizes(engine, opening) for engine in engines)
    return (run_single(engines[0]) if len(engines) == 1 else run_list(engines),)


def run_single(engine: GraphCompiler) -> Maker:
    """Return a maker that asks, compiles and runs by the contract alone, with nothing of XRT in between."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        prepared = _prepared(function)
        executable = compile_alone(engine, prepared, inputs)

        def run(values: Sequence[Any]) -> Sequence[Any]:
            try:
                return executable.run(values)
            finally:
                executable.close()

        return PreparedCase(run, tuple(sorted({(node.op, engine.name) for node in prepared.nodes})), (engine,))

    return make


def run_at_sizes(engine: GraphCompiler, opening: Opening) -> Maker:
    """Return a maker whose one executable, for all sizes, must be right at other sizes than the case's own too."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        opened = open_dims(function, inputs, opening)
        executable = compile_for_all_sizes(engine, _prepared(opened))

        def run(values: Sequence[Any]) -> Sequence[Any]:
            try:
                results = executable.run(values)  # first: a run that refuses a size may leave a library that fails
                for sized in () if is_random(function) else list_other_sizes(opened, values):
                    if not (found := sized.compare(executable, engine)):
                        raise AssertionError(found.message)
                return results
            finally:
                executable.close()

        return PreparedCase(run, tuple(sorted({(node.op, engine.name) for node in function.nodes})), (engine,))

    return make


def run_list(engines: Sequence[GraphCompiler], **options: Any) -> Maker:
    """Return a maker that plans for a list of engines, as `make_module` does."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        module = make_module(_prepared(function), engines, **options)
        try:
            module.compile(*inputs)
        except PlanError as error:
            raise _refusal(error) from error
        count = len(function.outputs)
        return PreparedCase(lambda values: _as_outputs(module(*values), count), _placed(module.plan.launches), engines)

    return make


def run_alternating(engines: Sequence[GraphCompiler], first: int = 0) -> Maker:
    """Return a maker that keeps neighbouring nodes on different engines; the engine of that number begins."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        program = make_alternating_program(_prepared(function), inputs, engines, first)
        return PreparedCase(program.run, _placed(program.plan.launches), engines)

    return make


def _placed(launches: Sequence[Launch]) -> tuple[tuple[str, str], ...]:
    pairs = {(node.op, launch.engine.partition("{")[0]) for launch in launches for node in launch.function.nodes}
    return tuple(sorted(pairs))


def _prepared(function: Function) -> Function:
    """Return the function with its constant parts computed, as a module does; itself where that would leave no node."""
    simple = optimize(passes.infer_shapes(function), fold=True)
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


def run_case(case: ConformanceCase, *makers: Maker) -> Outcome:
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
            if outcome.word is not ResultWord.PASSED:
                break
    seconds = time.perf_counter() - start
    return replace(outcome, operators=case.operators, seconds=seconds, group=case.group, placed=tuple(sorted(placed)))


def _outcome(case: ConformanceCase, make: Maker) -> Outcome:
    try:
        ready = make(case.function, case.inputs)
    except CompileRefused as refusal:
        return Outcome(case.name, ResultWord.DECLINED, _first_line(refusal))
    except Exception as error:  # noqa: BLE001  # whatever an engine raises is its outcome
        return Outcome(case.name, ResultWord.FAILED, f"at compile: {_described(error)}")
    return replace(_ran(case, ready), placed=ready.placed)


def _ran(case: ConformanceCase, ready: PreparedCase) -> Outcome:
    given = copy.deepcopy(case.inputs)
    # A mixture rounds between engines, and libraries round quotients to different quantization steps.
    admit_ties = len({engine for _, engine in ready.placed}) > 1 or any("Quant" in operator for operator in case.operators)

    try:
        results = ready.run(given)
        verdict = is_unchanged(case.inputs, given) and case.judge(results, admit_ties=admit_ties)
        if not verdict and (cause := _find_cause(case, ready, given, results, admit_ties)):
            return Outcome(case.name, ResultWord.GAP, f"{cause}: {verdict.message}")
    except Exception as error:  # noqa: BLE001  # whatever an engine raises is its outcome
        return Outcome(case.name, ResultWord.FAILED, f"at run: {_described(error)}")
    return Outcome(case.name, ResultWord.PASSED if verdict else ResultWord.FAILED, verdict.message)


def _find_cause(
    case: ConformanceCase, ready: PreparedCase, given: Sequence[Any], results: Sequence[Any], admit_ties: bool
) -> str:
    """Name the declared deviation, of an engine that ran nodes of the case, that explains all differences; empty if none does."""
    names = {engine for _, engine in ready.placed}
    engines = [engine for engine in ready.engines if engine.name in names]
    if not engines or case.is_random or not is_unchanged(case.inputs, given):
        return ""
    explained = overlook_deviations(results, case.function, case.inputs, case.truth, engines)
    if not case.judge(explained, admit_ties=admit_ties):
        return ""
    return name_cause(engines, case.function, [*case.inputs, *case.truth])


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")
