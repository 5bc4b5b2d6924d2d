"""Fuzzing: many generated graphs, each run in several ways, each result compared with the reference's.

A seed determines one graph and its inputs, the same on every machine. A graph with wrong results is bisected and returned as a
`Finding`; `write_entry` writes it to the corpus, from which every engine's suite runs it. The command is ``xrt fuzz``.
"""

from __future__ import annotations

import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from xrt.engines import GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import CompileRefused, PlanError
from xrt.graph import DType, Function
from xrt.partition import Pin
from xrt.passes import infer_shapes
from xrt.testing.cases import is_unchanged
from xrt.testing.generate import Form, make_random_inputs, make_seeded_function
from xrt.testing.generators import ALL_FAMILIES
from xrt.testing.generators.draft import INTEGERS
from xrt.testing.running import (
    as_planned,
    isolate_engines,
    make_alternating_program,
    make_module,
    name_cause,
    overlook_deviations,
)
from xrt.verify import CheckVerdict, Verdict, judge_outputs
from xrt.verify.bisection import bisect_difference
from xrt.verify.execution import expose_all_values, run_alone


@dataclass(frozen=True, eq=False)
class Sample:
    """A graph and what it is called with."""

    function: Function
    inputs: tuple[Any, ...]


KindOfWay: TypeAlias = Literal["alone", "listed", "mixed", "alternating"]
KINDS_OF_WAY: tuple[KindOfWay, ...] = get_args(KindOfWay)


@dataclass(frozen=True)
class ExecutionMode:
    """One way to run a Function: on one engine, on a list, each node on an engine by chance, or neighbours on different ones."""

    kind: KindOfWay
    engines: tuple[GraphCompiler, ...]
    """In the order of preference. The last one accepts everything, unless one engine runs alone."""
    seed: int = 0
    """What a mixture is drawn by, and the number of the engine that begins an alternation."""

    @property
    def title(self) -> str:
        """What it is counted under."""
        names = ",".join(engine.name for engine in self.engines)
        titles = {"alone": f"{names} alone", "mixed": f"mixture of {names}", "alternating": f"alternating {names}"}
        return titles.get(self.kind, names)

    def __str__(self) -> str:
        return f"{self.title} by {self.seed}" if self.kind in ("mixed", "alternating") else self.title

    def run(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs. Raises CompileRefused where this way cannot take the function."""
        match self.kind:
            case "alone":
                return run_alone(self.engines[0], function.replace(aliases=()), inputs)
            case "listed":
                return _run_module(function, self.engines, (), inputs)
            case "mixed":
                return self._run_mixture(as_planned(function), inputs)  # a pin that names a node that is gone is refused
            case "alternating":
                plain, last_resort = as_planned(function.replace(aliases=())), len(self.engines) > 2
                program = make_alternating_program(plain, inputs, self.engines, self.seed, last_resort=last_resort)
                return list(program.run(inputs))

    def _run_mixture(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        homes: dict[str, list[str]] = {}
        for node in function.nodes:
            willing = [e for e in self.engines if e.why_not(node, function) is None] or [self.engines[-1]]
            # By the node's name, so that a node stays where it is while others are taken away.
            chance = zlib.crc32(f"{self.seed}/{node.name}".encode())
            homes.setdefault(willing[chance % len(willing)].spec, []).append(node.name)
        try:
            return _run_module(function, self.engines, [Pin(tuple(n), spec, "name") for spec, n in homes.items()], inputs)
        except PlanError as error:
            # A pin forces, so a region that its engine refuses as a whole has nowhere to go; a library that fails is a finding.
            if "failed to compile" in str(error):
                raise
            raise CompileRefused(str(error)) from error


def _run_module(function: Function, engines: Sequence[GraphCompiler], pins: Sequence[Pin], inputs: Sequence[Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a region goes to the engine behind is what is being tried
        with make_module(function, engines, pins=tuple(pins)) as module:
            results = module(*inputs)
    return [results] if len(function.outputs) == 1 else list(results)


WIDE = Form(
    families=tuple(ALL_FAMILIES),
    dtypes=(DType.FLOAT32, DType.INT64, DType.BOOL, DType.FLOAT64, *INTEGERS[1:]),
    rank=6,
    max_nodes=12,
)
"""Everything that there is a recipe for."""
COMMON = replace(WIDE, dtypes=WIDE.dtypes[:3], max_nodes=6)
"""The types that every engine has, and small graphs: what a single engine often takes whole."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A disagreement, on the nodes that it needs."""

    seed: int
    way: str
    message: str
    sample: Sample

    def __str__(self) -> str:
        count = sum(1 for _ in self.sample.function.walk())
        return f"seed {self.seed}, {self.way}, {count} node{'s' * (count != 1)}: {self.message}"


@dataclass
class Fuzzer:
    """Runs graphs by their seeds, and counts."""

    engines: Sequence[GraphCompiler | str] = field(default_factory=lambda: registry.list_by_rank()[:1])
    """Tried on every graph; the first by rank, if none is given."""
    bisects: bool = True
    """Whether findings are bisected."""
    isolate: bool = False
    """Whether the engines run in worker processes, so that a crash is a finding."""
    kinds: Collection[KindOfWay] = KINDS_OF_WAY[:3]
    """How graphs run: each engine alone, each before the reference, nodes on all by chance, nodes on all in alternation."""
    reference: GraphCompiler = field(default_factory=lambda: registry.create(REFERENCE))
    counts: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    """How often each way came to each verdict."""
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        engines = map(registry.create, self.engines)
        self._opened = isolate_engines(engines) if self.isolate else list(engines)

    def run(self, seeds: Sequence[int], progress: Callable[[int, Finding | None], None] = lambda done, found: None) -> None:
        """Run the graphs of the seeds; ``progress`` is called with the number done, and with each finding."""
        for done, seed in enumerate(seeds, 1):
            for found in self.try_seed(seed):
                self.findings.append(found)
                progress(done, found)
            progress(done, None)

    def try_seed(self, seed: int) -> list[Finding]:
        """Run one graph in its ways up to the first that disagrees, and return what disagreed."""
        sample = make_sample(seed)
        try:
            expected = self.truth(sample.function, sample.inputs)
        except Exception as error:  # noqa: BLE001  # a graph that the reference fails on is a finding, whatever it raised
            self.counts["reference", Verdict.DISAGREES] += 1
            return [Finding(seed, "the reference", _summarize(error), sample)]
        tries = (self.try_way(seed, way, sample, expected) for way in self.ways(seed))
        first = next((found for found in tries if found is not None), None)  # the other ways most often fail of the same
        return [] if first is None else [first]

    def ways(self, seed: int) -> list[ExecutionMode]:
        """Return the ways to run the graph of a seed."""
        every = (*self._opened, self.reference)
        ways: list[ExecutionMode] = []
        for engine in self._opened:
            if "alone" in self.kinds:
                ways.append(ExecutionMode("alone", (engine,)))
            if "listed" in self.kinds:
                ways.append(ExecutionMode("listed", (engine, self.reference)))
        if "mixed" in self.kinds:
            ways.append(ExecutionMode("mixed", every, seed))
        if "alternating" in self.kinds:
            ways.append(ExecutionMode("alternating", every, seed % max(len(self._opened), 2)))
        return ways

    def truth(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Return what the reference makes of it; the inputs are not written to."""
        with np.errstate(all="ignore"):
            return run_alone(self.reference, function.replace(aliases=()), inputs)

    def try_way(self, seed: int, way: ExecutionMode, sample: Sample, expected: Sequence[Any]) -> Finding | None:
        """Run the graph one way and count the verdict; return what disagreed, bisected."""
        judged = self.judge(way, sample, expected)
        self.counts[way.title, judged.verdict] += 1
        if judged.verdict is not Verdict.DISAGREES:
            return None
        return self._bisect(seed, way, sample, judged) if self.bisects else Finding(seed, str(way), judged.message, sample)

    def judge(self, way: ExecutionMode, sample: Sample, expected: Sequence[Any]) -> CheckVerdict:
        """Run the sample that way and hold the results against the expected ones."""
        given = _copies(sample.inputs)
        try:
            with np.errstate(all="ignore"):  # generated graphs overflow; only the results count
                results = way.run(sample.function, given)
        except CompileRefused as reason:
            return CheckVerdict(Verdict.DECLINED, str(reason))
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is the finding
            return CheckVerdict(Verdict.DISAGREES, _summarize(error))
        aliased = {before for before, _ in sample.function.aliases}
        kept = [index for index, value in enumerate(sample.function.inputs) if value.name not in aliased]
        unchanged = is_unchanged([sample.inputs[index] for index in kept], [given[index] for index in kept])
        if not unchanged:
            return CheckVerdict(Verdict.DISAGREES, unchanged.message)
        return self._judge_results(way, sample, results, expected)

    def _judge_results(self, way: ExecutionMode, sample: Sample, results: Sequence[Any], expected: Sequence[Any]) -> CheckVerdict:
        with np.errstate(all="ignore"):
            judged = judge_outputs(sample.function, sample.inputs, results, expected, self.truth)
            if judged.verdict is not Verdict.DISAGREES:
                return judged
            whole = expose_all_values(sample.function)
            inner = {value.name: array for value, array in zip(whole.outputs, self.truth(whole, sample.inputs), strict=True)}
            engines = [engine for engine in way.engines if _has_a_node(engine, sample.function)]
            explained = overlook_deviations(results, sample.function, sample.inputs, expected, engines, inner)
            if judge_outputs(sample.function, sample.inputs, explained, expected, self.truth).verdict is Verdict.DISAGREES:
                return judged
        cause = name_cause(engines, sample.function, [*sample.inputs, *inner.values(), *expected])
        return CheckVerdict(Verdict.DECLINED, cause)

    def _bisect(self, seed: int, mode: ExecutionMode, sample: Sample, judged: CheckVerdict) -> Finding:
        """Bisect the graph to the nodes without which the mode agrees."""
        kind = _kind(judged.message)

        def differ(part: Function, inputs: Sequence[Any], expected: Sequence[Any]) -> str | None:
            again = self.judge(mode, Sample(part, tuple(inputs)), expected)
            return again.message if again.verdict is Verdict.DISAGREES and _kind(again.message) == kind else None

        part = bisect_difference(str(mode), sample.function, sample.inputs, self.truth, differ)
        if part is None:  # aliases, or a fault that comes and goes
            return Finding(seed, str(mode), judged.message, sample)
        return Finding(seed, str(mode), part.message, Sample(part.function, part.inputs))


def make_sample(seed: int) -> Sample:
    """Make the graph of a seed and its inputs; every other graph is of common types only."""
    function = make_seeded_function(seed, COMMON if seed % 2 else WIDE)
    return Sample(function, tuple(make_random_inputs(function, seed)))


def _has_a_node(engine: GraphCompiler, function: Function) -> bool:
    """Whether the engine takes a node of the Function, so that nodes of it may have run there."""
    whole = infer_shapes(function)
    return any(engine.why_not(node, whole) is None for node in whole.nodes)


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [value.copy() for value in inputs]


def _summarize(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _kind(message: str) -> str:
    """Return what shrinking must keep of a disagreement: the exception, or that numbers, a shape or a type differ."""
    head = message.partition(":")[0]
    if head.isidentifier():
        return head
    return next((word for word in ("has shape", "is of type", "outputs;") if word in message), "differs")
