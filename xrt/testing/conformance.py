"""The conformance run: the tests of the installed ``onnx`` on an engine, on a list, alternating, or placed by measurement.

An engine gets what XRT would pass to it: types inferred, and the constant parts computed beforehand, unless nothing would be left
of the case. A case is *declined* when the engine said so before the first run, *passed* when the results are right in type, shape
and value, and *failed* otherwise. One case's error never ends the run. The list has no implicit engine.
"""

from __future__ import annotations

import copy
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt import passes
from xrt.cache import CompileCache
from xrt.engines import CompileContext, GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import CompileFailed, CompileRefused, OptionError, PlanError
from xrt.graph import Function
from xrt.module.options import ModuleOptions
from xrt.module.specialization import Specialization, optimize
from xrt.placement import TuningBudget, TuningResult, tune
from xrt.placement.engine_list import AUTO, EngineList, is_auto, list_available_engines
from xrt.placement.race import StoppingRule
from xrt.placement.reference import evaluate
from xrt.placement.result import PlacementRequest
from xrt.runtime import Program, available_cores
from xrt.testing.cases import ConformanceCase, group_cases, is_random, is_unchanged
from xrt.testing.open_dims import Opening, compile_for_all_sizes, list_other_sizes, open_dims
from xrt.testing.report import ConformanceReport, KnownFailure, Outcome, ResultWord, settle
from xrt.testing.running import fit_inputs_for, make_alternating_program, make_module, name_cause, overlook_deviations
from xrt.verify.execution import compile_alone

if TYPE_CHECKING:
    from xrt.partition import Launch

__all__ = [
    "Engine",
    "Maker",
    "PreparedCase",
    "conform",
    "create_engines",
    "engines_for",
    "make_auto_program",
    "makers_for",
    "run_alternating",
    "run_at_sizes",
    "run_auto",
    "run_case",
    "run_list",
    "run_reference",
    "run_single",
]

BUDGET = 0.5
"""Seconds of a search, which what has begun may overrun by a compile; a search that knows all ends before."""
BOUNDS = TuningBudget(samples=0.003, apart=False, rules=StoppingRule(turn=0.001, least=2, most=3))
"""Samples and turns as short as can be: what is wanted is that plans differ and race, not the last per cent of time."""


def engines_for(asked: Sequence[str | GraphCompiler]) -> list[GraphCompiler]:
    """Return the engines that replace "auto" in a list: the other engines of the list, or else all that are ready.

    Raises EngineUnavailable for one that is listed and missing, or broken.
    """
    context = CompileContext(threads=available_cores())
    named = [one for one in asked if one != AUTO]
    return list_available_engines(asked, context, None, strict=bool(named))[0]


def make_auto_program(function: Function, inputs: Sequence[Any], engines: Sequence[GraphCompiler]) -> Program:
    """Return the compiled Program of the plan that a search on those inputs finds.

    What the search had no time for may be refused at compile: as in a module, the next best plan takes its place. Raises
    PlanError for a node that no engine takes, CompileFailed where an engine's library fails.
    """
    context, cache = CompileContext(threads=available_cores()), CompileCache()
    listed = EngineList(tuple(_turned(engines, function)), None, context, is_auto=True)

    def place(function: Function) -> TuningResult:
        reference = partial(evaluate, threads=context.threads)
        request = PlacementRequest(function, listed.engines, context, budget=BUDGET)
        return tune(request, cache=cache, reference=reference, inputs=inputs, bounds=BOUNDS)

    fit = fit_inputs_for(function, inputs, engines)
    return Specialization(fit, listed, ModuleOptions(strict=True), cache, original=fit, place=place).program()


def _turned(engines: Sequence[GraphCompiler], function: Function) -> list[GraphCompiler]:
    """Return the engines, each Function's from another one on: who comes first is measured, however slowly it compiles."""
    first = zlib.crc32(function.fingerprint.encode()) % len(engines)
    return [*engines[first:], *engines[:first]]


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
    shard: tuple[int, int] = (0, 1),
    reference: bool = False,
    isolate: bool = False,
    gaps: Sequence[KnownFailure] = (),
    progress: Progress | None = None,
) -> ConformanceReport:
    """Run the cases of those groups (of all, when none is named) that match, or a share of them, and return the report.

    ``gaps`` are known failures, with which the report is settled. With "auto" among the engines, a small search places every case
    over the others of the list, or over all that are ready; of the gaps only roundings then count, since the search compares its
    candidates with the reference. With ``alternate``, neighbouring nodes are kept on different engines
    (`xrt.testing.running`), and every case runs once with each engine first. With ``opening``, extents of inputs become
    symbolic dims, and one executable of each engine runs at several sizes. With ``reference``,
    ``onnx.reference.ReferenceEvaluator`` runs too. With ``isolate`` the cases run in a worker process: one that ends it has
    failed, and the rest runs in the next. To use several processes, run each with a shard and without gaps, then settle the
    `Report.joined` of all.
    """
    asked = [engines] if isinstance(engines, str | GraphCompiler) else list(engines)
    listed, automatic = create_engines(asked)
    makers = makers_for(listed, alternate=alternate, auto=automatic, opening=opening)
    tell = progress or (lambda done, count, outcome: None)
    if isolate:
        from xrt.testing.remote import conform_remotely  # which imports this module

        what = {"pattern": pattern, "groups": list(groups), "alternate": alternate, "shard": shard, "opening": opening}
        outcomes, of_reference = conform_remotely(asked, what, reference, tell)
    else:
        outcomes, of_reference = _run_here(makers, group_cases(groups, pattern, shard=shard), reference, tell)
    name = ",".join(map(str, asked) if automatic else (engine.spec for engine in listed)) + ", alternating" * alternate
    known = [gap for gap in gaps if not (automatic and gap.everywhere)]
    complete = pattern == "*" and shard == (0, 1) and not groups
    return settle(
        ConformanceReport(name, tuple(outcomes), tuple(of_reference)),
        known,
        complete=complete,
        alone=len(listed) == 1 and not automatic,
    )


def create_engines(asked: Sequence[Engine]) -> tuple[list[GraphCompiler], bool]:
    """Return the engines that are meant, and whether a search is to choose among them."""
    automatic = is_auto(asked)
    return (engines_for(asked) if automatic else [registry.create(engine) for engine in asked]), automatic


Ran: TypeAlias = tuple[list[Outcome], list[Outcome]]
"""The outcomes of the cases, and those of the reference if it was requested."""


def _run_here(makers: Sequence[Maker], cases: Sequence[ConformanceCase], reference: bool, tell: Progress) -> Ran:
    outcomes: list[Outcome] = []
    for done, case in enumerate(cases, 1):
        outcomes.append(run_case(replace(case), *makers))  # a copy, so that what the case holds of its model goes with it
        tell(done, len(cases), outcomes[-1])
    return outcomes, [run_reference(case) for case in cases] if reference else []


def makers_for(
    engines: Sequence[GraphCompiler], *, alternate: bool = False, auto: bool = False, opening: Opening | None = None
) -> tuple[Maker, ...]:
    """Return how to compile for those engines, in every way that a case is to run.

    One engine runs by the contract alone, several as a module makes a plan of them; or they alternate, each beginning once;
    or a search decides, with ``auto``, which of them is to run what.
    """
    if auto and alternate:
        raise OptionError("nodes that alternate are not placed by measurement; list the engines without 'auto'")
    if auto:
        return (run_auto(engines),)
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


def run_auto(engines: Sequence[GraphCompiler]) -> Maker:
    """Return a maker that runs the plan which a search on the case's own inputs finds; what is wrong never enters its race."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        try:
            program = make_auto_program(_prepared(function), inputs, engines)
        except PlanError as error:
            raise _refusal(error) from error
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


def run_reference(case: ConformanceCase) -> Outcome:
    """Return what ``onnx.reference.ReferenceEvaluator`` makes of the case; it may return scalars where arrays are due."""
    from onnx.reference import ReferenceEvaluator

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        evaluator = ReferenceEvaluator(case.model)
        names = [value.name for value in function.inputs]
        outputs = None if function is case.function else [value.name for value in function.outputs]
        return PreparedCase(lambda values: [_as_array(r) for r in evaluator.run(outputs, dict(zip(names, values, strict=True)))])

    return run_case(case, make)


def _as_array(value: Any) -> Any:
    return value if value is None or isinstance(value, list | dict) else np.asarray(value)
