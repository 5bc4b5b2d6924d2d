"""The conformance run: every node test of the installed ``onnx`` on an engine, or on a list of engines, strictly.

An engine is handed what XRT would hand it: types inferred, and the parts that are constant computed beforehand, unless
nothing would be left of the case. A case is *declined* when the engine said so before the first run, *passed* when what
came out is right in type, shape and value, and *failed* otherwise; one case's error never ends the run.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from xrt import passes
from xrt.engines import GraphCompiler, registry
from xrt.errors import CompileFailed, CompileRefused, PlanError
from xrt.graph import Function
from xrt.module.build import simplified
from xrt.testing.cases import Case, node_cases, unchanged
from xrt.testing.ledgers import Gap, gaps_of, settle
from xrt.testing.report import Outcome, Report, Word
from xrt.testing.running import compiled, module_of

__all__ = ["Engine", "Maker", "Runner", "alone", "conform", "maker_for", "run_case", "run_reference", "together"]

Engine: TypeAlias = str | GraphCompiler
Runner: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Runs a compiled function once."""
Maker: TypeAlias = Callable[[Function, Sequence[Any]], Runner]
"""Compiles a function for inputs such as the given ones; raises CompileRefused for what is declined."""
Progress: TypeAlias = Callable[[int, int, Outcome], None]
"""Told after each case: how many are done, of how many, and what came of it."""


def conform(
    engines: Engine | Sequence[Engine],
    pattern: str = "*",
    *,
    shard: tuple[int, int] = (0, 1),
    reference: bool = False,
    gaps: Sequence[Gap] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run the node tests that match, or a share of them, and return the report.

    With ``reference``, ``onnx.reference.ReferenceEvaluator`` runs beside. Without ``gaps``, the report is settled with the
    ledgers that XRT ships for the engines. To use several processes, run each with a shard and without gaps
    (``gaps=()``), then settle the `Report.joined` of all.
    """
    listed = _listed(engines)
    make = maker_for(listed)
    cases = node_cases(pattern, shard=shard)
    outcomes = []
    for done, case in enumerate(cases, 1):
        outcomes.append(run_case(case, make))
        if progress is not None:
            progress(done, len(cases), outcomes[-1])
    beside = tuple(run_reference(case) for case in cases) if reference else ()
    report = Report(",".join(engine.spec for engine in listed), tuple(outcomes), beside)
    known = [gap for engine in listed for gap in gaps_of(engine.spec)] if gaps is None else gaps
    return settle(report, known, complete=pattern == "*" and shard == (0, 1), alone=len(listed) == 1)


def _listed(engines: Engine | Sequence[Engine]) -> tuple[GraphCompiler, ...]:
    many = [engines] if isinstance(engines, str | GraphCompiler) else engines
    return tuple(registry.create(engine) for engine in many)


def maker_for(engines: Sequence[GraphCompiler]) -> Maker:
    """Return how to compile for those engines: one by the contract alone, several as a module makes a plan of them."""
    return alone(engines[0]) if len(engines) == 1 else together(engines)


def alone(engine: GraphCompiler) -> Maker:
    """Return a maker that asks, compiles and runs by the contract alone, with nothing of XRT in between."""

    def make(function: Function, inputs: Sequence[Any]) -> Runner:
        executable = compiled(engine, _prepared(function), inputs)

        def run(values: Sequence[Any]) -> Sequence[Any]:
            try:
                return executable.run(values)
            finally:
                executable.close()

        return run

    return make


def together(engines: Sequence[GraphCompiler], **options: Any) -> Maker:
    """Return a maker that plans for a list of engines, as `module_of` does."""

    def make(function: Function, inputs: Sequence[Any]) -> Runner:
        module = module_of(_prepared(function), engines, **options)
        try:
            module.compile(*inputs)
        except PlanError as error:
            raise _refusal(error) from error
        return lambda values: _as_outputs(module(*values), len(function.outputs))

    return make


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


def run_case(case: Case, make: Maker) -> Outcome:
    """Return what came of one case; no exception leaves it but those that end the process."""
    start = time.perf_counter()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # cases overflow and cast NaN on purpose; what counts is what comes out
        outcome = _outcome(case, make)
    return replace(outcome, operators=case.operators, seconds=time.perf_counter() - start)


def _outcome(case: Case, make: Maker) -> Outcome:
    try:
        run = make(case.function, case.inputs)
    except CompileRefused as refusal:
        return Outcome(case.name, Word.DECLINED, _first_line(refusal))
    except Exception as error:  # noqa: BLE001  # whatever an engine raises is its outcome
        return Outcome(case.name, Word.FAILED, f"at compile: {_described(error)}")
    return _ran(case, run)


def _ran(case: Case, run: Runner) -> Outcome:
    given = copy.deepcopy(case.inputs)
    try:
        verdict = case.judge(run(given)) and unchanged(case.inputs, given)
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

    def make(function: Function, inputs: Sequence[Any]) -> Runner:
        evaluator = ReferenceEvaluator(case.model)
        names = [value.name for value in case.model.graph.input]
        return lambda values: [_as_array(r) for r in evaluator.run(None, dict(zip(names, values, strict=True)))]

    return run_case(case, make)


def _as_array(value: Any) -> Any:
    return value if value is None or isinstance(value, list | dict) else np.asarray(value)
