"""The conformance run: the tests of the installed ``onnx`` on one engine, on a list of engines, or alternating between engines.

An engine gets the same Functions as in a module: types inferred and constants folded, unless folding would leave no node. A case
is *declined* if the engine refused it before the first run, *passed* if types, shapes and values are right and the inputs are
unchanged, and *failed* otherwise. An error in one case does not end the run.
"""

from __future__ import annotations

import copy
import enum
import fnmatch
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from xrt import passes
from xrt.engines import GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import CompileFailed, CompileRefused, OptionError, PlanError
from xrt.graph import Function
from xrt.module.programs import optimize
from xrt.testing.cases import ConformanceCase, are_inputs_unchanged, group_cases, is_random
from xrt.testing.open_dims import Opening, compile_for_all_sizes, list_other_sizes, open_dims
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


class ResultWord(enum.StrEnum):
    """The result of one case."""

    PASSED = "passed"
    DECLINED = "declined"
    """Refused before the first run, by `why_not` or `compile`."""
    FAILED = "failed"
    """Any other error, a wrong type, shape or value, or an input that was written to."""
    GAP = "gap"
    """Failed as expected: a known failure, or a deviation that the engine declares."""


@dataclass(frozen=True, slots=True)
class Outcome:
    case: str
    word: ResultWord
    reason: str = ""
    """Empty if the case passed."""
    operators: tuple[str, ...] = ()
    seconds: float = 0.0
    group: str = "node"
    """A key of `xrt.testing.cases.GROUPS`."""
    placed: tuple[tuple[str, str], ...] = ()
    """Sorted (operator, engine) pairs: the engines to which nodes were assigned; empty if the case was not compiled."""

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(sorted({engine for _, engine in self.placed}))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        placed = tuple((operator, engine) for operator, engine in data["placed"])
        converted = {"word": ResultWord(data["word"]), "operators": tuple(data["operators"]), "placed": placed}
        return cls(**{**data, **converted})


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The outcomes of one run, in the order of the cases. `to_dict` and `from_dict` convert it to and from plain data."""

    engine: str
    """The specs of the engines, separated by commas, followed by ``, alternating`` if nodes alternated."""
    outcomes: tuple[Outcome, ...]
    stale: tuple[str, ...] = ()
    """Messages about known failures that did not fail or match no case. Then the run has failed."""

    @property
    def counts(self) -> dict[ResultWord, int]:
        counts = Counter(outcome.word for outcome in self.outcomes)
        return {word: counts[word] for word in ResultWord}

    @property
    def ok(self) -> bool:
        """Whether all failures are known and no known failure is stale."""
        return not self.counts[ResultWord.FAILED] and not self.stale

    def list_outcomes(self, word: ResultWord) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.word == word)

    @property
    def mixed(self) -> int:
        return sum(len(outcome.engines) > 1 for outcome in self.outcomes)

    def count_by_group(self) -> dict[str, dict[ResultWord, int]]:
        """Count the results of each group, in the order of the cases."""
        return _count_words((outcome.group, outcome.word) for outcome in self.outcomes)

    def count_by_operator(self) -> dict[str, dict[ResultWord, int]]:
        """Count the results of each operator, sorted by operator; a case counts for every operator of its main graph."""
        counts = _count_words((operator, outcome.word) for outcome in self.outcomes for operator in outcome.operators)
        return dict(sorted(counts.items()))

    def count_placements(self) -> dict[str, dict[str, int]]:
        """Count for each operator of the main graphs the cases by the engine that ran it, most frequent engine first."""
        counts: dict[str, Counter[str]] = {}
        for operator, engine in (pair for outcome in self.outcomes for pair in outcome.placed):
            counts.setdefault(operator, Counter())[engine] += 1
        return {operator: dict(counts[operator].most_common()) for operator in sorted(counts)}

    def to_dict(self) -> dict[str, Any]:
        """Convert to dictionaries, lists, numbers and strings, and add the counts in total, by group and by operator."""
        return {**asdict(self), "counts": self.counts, "groups": self.count_by_group(), "operators": self.count_by_operator()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the result of `to_dict`."""
        return cls(data["engine"], tuple(map(Outcome.from_dict, data["outcomes"])), tuple(data["stale"]))

    def __str__(self) -> str:
        summary = ", ".join(f"{count} {word}" for word, count in self.counts.items())
        hint = f"; {self.mixed} ran on several engines" if self.mixed else ""
        lines = [f"{self.engine}: {summary} of {len(self.outcomes)}{hint}"]
        lines += [f"  failed {outcome.case}: {outcome.reason}" for outcome in self.list_outcomes(ResultWord.FAILED)]
        return "\n".join([*lines, *(f"  stale: {entry}" for entry in self.stale)])


def _count_words(pairs: Iterable[tuple[str, ResultWord]]) -> dict[str, dict[ResultWord, int]]:
    """Count the words of each name. Every name has a count of every word, in the order of `ResultWord`."""
    totals: dict[str, Counter[ResultWord]] = {}
    for name, word in pairs:
        totals.setdefault(name, Counter())[word] += 1
    return {name: {word: counts[word] for word in ResultWord} for name, counts in totals.items()}


GapWord: TypeAlias = Literal["not implemented", "not upstream", "never"]


@dataclass(frozen=True, slots=True)
class KnownFailure:
    cases: str
    """A glob over case names; every case that it matches must fail."""
    word: GapWord
    """Who can fix it: the author of the engine (``not implemented``), the library (``not upstream``) or nobody (``never``)."""
    reason: str
    link: str
    """URL of the documentation of the failure by the library or the standard, or of the bug report."""
    everywhere: bool = True
    """Whether the case fails on every processor. False for a failure near the tolerance: the case may pass."""

    def covers(self, case: str) -> bool:
        return fnmatch.fnmatchcase(case, self.cases)

    def __str__(self) -> str:
        return f"{self.cases} ({self.word}: {self.reason})"


def settle(
    report: ConformanceReport, gaps: Sequence[KnownFailure], *, complete: bool = True, alone: bool = True
) -> ConformanceReport:
    """Mark failures that a known failure covers as gaps, and report known failures that did not fail as stale.

    With ``complete``, the run included all cases, so that an entry that matches no case is stale, too. Without ``alone``, the run
    had several engines: another engine may have run the node, so no entry is reported as stale.
    """
    outcomes = tuple(_settle_outcome(outcome, gaps) for outcome in report.outcomes)
    if not alone:
        return replace(report, outcomes=outcomes)
    # A known failure that no longer fails is an error, so that the lists of gaps shrink with the defects.
    stale = tuple(text for gap in gaps for text in _list_stale(gap, outcomes, complete))
    return replace(report, outcomes=outcomes, stale=report.stale + stale)


def _settle_outcome(outcome: Outcome, gaps: Sequence[KnownFailure]) -> Outcome:
    if outcome.word is not ResultWord.FAILED:
        return outcome
    for gap in gaps:
        if gap.covers(outcome.case):
            return replace(outcome, word=ResultWord.GAP, reason=f"{gap.word}: {gap.reason} [{outcome.reason}]")
    return outcome


def _list_stale(gap: KnownFailure, outcomes: Sequence[Outcome], complete: bool) -> list[str]:
    """List why a known failure is stale: it matches no case of a ``complete`` run, or cases that did not fail."""
    covered = [outcome for outcome in outcomes if gap.covers(outcome.case)]
    if not covered:
        return [f"{gap} matches no case; delete the entry"] if complete else []
    if not gap.everywhere:
        return []
    return [f"{gap}: {o.case} {o.word}; narrow or delete the entry" for o in covered if o.word is not ResultWord.GAP]


Engine: TypeAlias = str | GraphCompiler


@dataclass(frozen=True, slots=True)
class PreparedCase:
    run: Callable[[Sequence[Any]], Sequence[Any]]
    placed: tuple[tuple[str, str], ...] = ()
    """Sorted (operator, engine) pairs: the engines to which the nodes were assigned."""
    engines: Sequence[GraphCompiler] = ()
    """The engines that were available for the case."""


Maker: TypeAlias = Callable[[Function, Sequence[Any]], PreparedCase]
"""Compiles a Function for the types and shapes of given inputs; raises CompileRefused if the engine declines."""
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
    `xrt.testing.running`), and every case runs once with each engine as the first one. With ``opening``, sizes of the inputs
    become symbolic dims, and each engine runs one executable at several sizes. With ``isolate``, engines run in worker processes:
    a case that crashes its worker has failed, and a new worker runs the next case.
    """
    originals = [registry.create(engine) for engine in ([engines] if isinstance(engines, str | GraphCompiler) else engines)]
    tested = isolate_engines(originals) if isolate else originals
    makers = makers_for(tested, alternate=alternate, opening=opening)
    cases = group_cases(groups, pattern)
    outcomes: list[Outcome] = []
    for done, case in enumerate(cases, 1):
        outcomes.append(run_case(replace(case), *makers))  # a copy, so that its cached properties are freed
        if progress is not None:
            progress(done, len(cases), outcomes[-1])
    name = ",".join(engine.spec for engine in originals) + ", alternating" * alternate
    complete = pattern == "*" and not groups
    return settle(ConformanceReport(name, tuple(outcomes)), gaps, complete=complete, alone=len(originals) == 1)


def makers_for(engines: Sequence[GraphCompiler], *, alternate: bool = False, opening: Opening | None = None) -> tuple[Maker, ...]:
    """List the functions that prepare a case; every case runs once with each of these functions.

    A single engine is called directly, and several engines run in a module.
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
    """Return a maker that calls ``compile`` and ``run`` of the engine directly, without the planner and runtime of XRT."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        # Fold constants as a module does, so that the engine gets the same nodes.
        prepared = _fold_constants(function)
        executable = compile_alone(engine, prepared, inputs)

        def run(values: Sequence[Any]) -> Sequence[Any]:
            with closing(executable):
                return executable.run(values)

        return PreparedCase(run, _place_all(prepared, engine), (engine,))

    return make


def run_at_sizes(engine: GraphCompiler, opening: Opening, *, fold: bool = True) -> Maker:
    """Return a maker that compiles once with symbolic dims, and checks results at the sizes of the case and at other sizes.

    The run raises AssertionError for wrong results at other sizes.
    """

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        opened = open_dims(function, inputs, opening)
        executable = compile_for_all_sizes(engine, _fold_constants(opened) if fold else opened)

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


def run_list(engines: Sequence[GraphCompiler]) -> Maker:
    """Return a maker that partitions over a list of engines, in a module of `make_module`."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        module = make_module(_fold_constants(function), engines)
        try:
            module.compile(*inputs)
        except PlanError as error:
            raise _find_compile_error(error) from error
        placed = _list_placements(module.plan.launches)
        return PreparedCase(lambda values: run_outputs(module(*values), function), placed, engines)

    return make


def run_alternating(engines: Sequence[GraphCompiler], first: int = 0) -> Maker:
    """Return a maker that places neighbouring nodes on different engines, starting with the engine of index ``first``."""

    def make(function: Function, inputs: Sequence[Any]) -> PreparedCase:
        program = make_alternating_program(_fold_constants(function), inputs, engines, first)
        return PreparedCase(program.run, _list_placements(program.plan.launches), engines)

    return make


def _list_placements(launches: Sequence[Launch]) -> tuple[tuple[str, str], ...]:
    pairs = {(node.op, launch.engine.partition("{")[0]) for launch in launches for node in launch.function.nodes}
    return tuple(sorted(pairs))


def _fold_constants(function: Function) -> Function:
    """Fold constants as a module does, unless this would leave no node."""
    simple = optimize(passes.infer_shapes(function), fold=True)
    return simple if simple.nodes else function


def _find_compile_error(error: PlanError) -> Exception:
    """Get the CompileFailed that caused a PlanError, or make a CompileRefused: then the engines declined."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, CompileFailed):
        cause = cause.__cause__
    return cause or CompileRefused(str(error))


def run_case(case: ConformanceCase, *makers: Maker) -> Outcome:
    """Run one case with each maker; return the first outcome that is not PASSED, or else the last. Exceptions become outcomes."""
    start = time.perf_counter()
    placed: set[tuple[str, str]] = set()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # cases overflow and cast NaN on purpose; only the results count
        for make in makers:
            outcome = _try_maker(case, make)
            placed.update(outcome.placed)
            if outcome.word is not ResultWord.PASSED:
                break  # further makers would usually fail for the same reason
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
    """Run a compiled case on copies of its inputs, and judge results and inputs."""
    inputs = copy.deepcopy(case.inputs)
    # Several engines round between their nodes, and libraries quantize ties to different steps.
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
    """Name the declared deviation that explains all differences; empty if the declared deviations do not explain them."""
    used_names = {engine for _, engine in ready.placed}
    engines = [engine for engine in ready.engines if engine.name in used_names]
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
