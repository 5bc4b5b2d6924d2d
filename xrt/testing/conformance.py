"""The conformance run: the tests of the installed ``onnx`` on one engine, on a list of engines, or alternating between engines.

An engine gets the same Functions as in a module: types inferred and constants folded, unless folding would leave no node. A case
is *declined* if the engine refused it before the first run, *passed* if type, shape and values are right and the inputs are
unchanged, and *failed* otherwise. An error in one case does not end the run. No engine is added to the list implicitly.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt import passes
from xrt.engines import GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import CompileFailed, CompileRefused, OptionError, PlanError
from xrt.graph import Function
from xrt.module.specialization import optimize
from xrt.testing.cases import ConformanceCase, are_inputs_unchanged, group_cases, is_random
from xrt.testing.open_dims import Opening, compile_for_all_sizes, list_other_sizes, open_dims
from xrt.testing.report import ConformanceReport, KnownFailure, Outcome, ResultWord, settle
from xrt.testing.running import (
    isolate_engines,
    make_alternating_program,
    make_module,
    name_cause,
    overlook_deviations,
    run_outputs,
)
from xrt.verify.execution import compile_alone

if TYPE_CHECKING:
    from xrt.partition import Launch


Engine: TypeAlias = str | GraphCompiler


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """A compiled case, ready to run once."""

    run: Callable[[Sequence[Any]], Sequence[Any]]
    placed: tuple[tuple[str, str], ...] = ()
    """Sorted (operator, engine) pairs: the engines to which the nodes were assigned."""
    engines: Sequence[GraphCompiler] = ()
    """The engines that were available for the case."""


Maker: TypeAlias = Callable[[Function, Sequence[Any]], PreparedCase]
"""Compiles a Function for inputs of the same types and shapes; raises CompileRefused if it is declined."""
Progress: TypeAlias = Callable[[int, int, Outcome], None]
"""Callback after each case: number of cases done, total number, outcome of the case."""


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
    """Run the cases of the given groups (default: all) whose names match ``pattern``, and report the outcomes.

    ``gaps`` lists known failures, see `settle`. With ``alternate``, neighbouring nodes are placed on different engines (see
    `xrt.testing.running`), and every case runs once with each engine first. With ``opening``, sizes of the inputs become symbolic
    dims, and each engine runs one executable at several sizes. With ``isolate``, engines run in worker processes: a case that
    crashes its worker has failed, and a new worker runs the next case.
    """
    listed = [registry.create(engine) for engine in ([engines] if isinstance(engines, str | GraphCompiler) else engines)]
    tried = isolate_engines(listed) if isolate else listed
    makers = makers_for(tried, alternate=alternate, opening=opening)
    cases = group_cases(groups, pattern)
    outcomes: list[Outcome] = []
    for done, case in enumerate(cases, 1):
        outcomes.append(run_case(replace(case), *makers))  # a copy, so that its cached properties are freed
        if progress is not None:
            progress(done, len(cases), outcomes[-1])
    name = ",".join(engine.spec for engine in listed) + ", alternating" * alternate
    complete = pattern == "*" and not groups
    return settle(ConformanceReport(name, tuple(outcomes)), gaps, complete=complete, alone=len(listed) == 1)


def makers_for(engines: Sequence[GraphCompiler], *, alternate: bool = False, opening: Opening | None = None) -> tuple[Maker, ...]:
    """List the makers; every case runs once with each of them.

    One engine is called directly; several are planned as in a module. With ``alternate``, each engine is the first one once.
    """
    if alternate and len(engines) < 2:
        raise OptionError("nodes alternate between two engines or more; list another")
    if alternate and opening is not None:
        raise OptionError(f"opening={opening!r} compiles a case on one engine at a time, and alternate=True on several; pass one")
    if alternate:
        return tuple(run_alternating(engines, first) for first in range(len(engines)))
    if opening is not None:
        return tuple(run_at_sizes(engine, opening) for engine in engines)
    return (run_single(engines[0]) if len(engines) == 1 else run_list(engines),)


def run_single(engine: GraphCompiler) -> Maker:
    """A maker that calls ``compile`` and ``run`` of the engine directly, without the planner and runtime of XRT."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        prepared = _fold_constants(function)
        executable = compile_alone(engine, prepared, inputs)

        def run(values: Sequence[Any]) -> Sequence[Any]:
            with closing(executable):
                return executable.run(values)

        return PreparedCase(run, _place_all(prepared, engine), (engine,))

    return make


def run_at_sizes(engine: GraphCompiler, opening: Opening) -> Maker:
    """A maker that compiles once with symbolic dims, and checks the results at other sizes than those of the case too."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        opened = open_dims(function, inputs, opening)
        executable = compile_for_all_sizes(engine, _fold_constants(opened))

        def run(values: Sequence[Any]) -> Sequence[Any]:
            with closing(executable):
                results = executable.run(values)  # first, since refusing a size may leave the library in a bad state
                for sized in () if is_random(function) else list_other_sizes(opened, values):
                    if not (comparison := sized.compare(executable, engine)):
                        raise AssertionError(comparison.message)
                return results

        return PreparedCase(run, _place_all(function, engine), (engine,))

    return make


def _place_all(function: Function, engine: GraphCompiler) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({(node.op, engine.name) for node in function.nodes}))


def run_list(engines: Sequence[GraphCompiler], **options: Any) -> Maker:
    """A maker that partitions over a list of engines, in a module of `make_module` with ``options``."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        module = make_module(_fold_constants(function), engines, **options)
        try:
            module.compile(*inputs)
        except PlanError as error:
            raise _find_compile_error(error) from error
        placed = _list_placements(module.plan.launches)
        return PreparedCase(lambda values: run_outputs(module(*values), function), placed, engines)

    return make


def run_alternating(engines: Sequence[GraphCompiler], first: int = 0) -> Maker:
    """A maker that places neighbouring nodes on different engines; ``first`` is the index of the engine to start with."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        program = make_alternating_program(_fold_constants(function), inputs, engines, first)
        return PreparedCase(program.run, _list_placements(program.plan.launches), engines)

    return make


def _list_placements(launches: Sequence[Launch]) -> tuple[tuple[str, str], ...]:
    pairs = {(node.op, launch.engine.partition("{")[0]) for launch in launches for node in launch.function.nodes}
    return tuple(sorted(pairs))


def _fold_constants(function: Function) -> Function:
    """Fold constants, as a module does. Keep the function as it is if folding would leave no node."""
    simple = optimize(passes.infer_shapes(function), fold=True)
    return simple if simple.nodes else function


def _find_compile_error(error: PlanError) -> Exception:
    """The exception to report for a PlanError: CompileFailed if it is in the chain of causes, otherwise CompileRefused."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, CompileFailed):
        cause = cause.__cause__
    return cause or CompileRefused(str(error))


# ---------------------------------------------------------------------- a single case


def run_case(case: ConformanceCase, *makers: Maker) -> Outcome:
    """Run one case with each maker, and report the first outcome that did not pass, or else the last.

    Every Exception becomes an outcome; only BaseExceptions such as KeyboardInterrupt propagate.
    """
    start = time.perf_counter()
    placed: set[tuple[str, str]] = set()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # cases overflow and cast NaN on purpose; only the results count
        for make in makers:
            outcome = _try_maker(case, make)
            placed.update(outcome.placed)
            if outcome.word is not ResultWord.PASSED:
                break
    seconds = time.perf_counter() - start
    return replace(outcome, operators=case.operators, seconds=seconds, group=case.group, placed=tuple(sorted(placed)))


def _try_maker(case: ConformanceCase, make: Maker) -> Outcome:
    try:
        ready = make(case.function, case.inputs)
    except CompileRefused as refusal:
        return Outcome(case.name, ResultWord.DECLINED, _first_line(refusal))
    except Exception as error:  # noqa: BLE001  # any exception of an engine is an outcome
        return Outcome(case.name, ResultWord.FAILED, f"at compile: {_describe(error)}")
    return replace(_run_prepared(case, ready), placed=ready.placed)


def _run_prepared(case: ConformanceCase, ready: PreparedCase) -> Outcome:
    inputs = copy.deepcopy(case.inputs)
    # Engines in a mixture round between nodes, and libraries quantize ties to different steps.
    admit_ties = len({engine for _, engine in ready.placed}) > 1 or any("Quant" in operator for operator in case.operators)

    try:
        results = ready.run(inputs)
        verdict = unchanged = are_inputs_unchanged(case.function, case.inputs, inputs)
        if unchanged:
            verdict = case.judge(results, admit_ties=admit_ties)
            if not verdict and (cause := _find_cause(case, ready, results, admit_ties)):
                return Outcome(case.name, ResultWord.GAP, f"{cause}: {verdict.message}")
    except Exception as error:  # noqa: BLE001  # any exception of an engine is an outcome
        return Outcome(case.name, ResultWord.FAILED, f"at run: {_describe(error)}")
    return Outcome(case.name, ResultWord.PASSED if verdict else ResultWord.FAILED, verdict.message)


def _find_cause(case: ConformanceCase, ready: PreparedCase, results: Sequence[Any], admit_ties: bool) -> str:
    """Name the declared deviation of an engine that explains all differences; empty if no declared deviation does."""
    names = {engine for _, engine in ready.placed}
    engines = [engine for engine in ready.engines if engine.name in names]
    if not engines or case.is_random:
        return ""
    explained = overlook_deviations(results, case.function, case.inputs, case.truth, engines)
    if not case.judge(explained, admit_ties=admit_ties):
        return ""
    return name_cause(engines, case.function, [*case.inputs, *case.truth])


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")
