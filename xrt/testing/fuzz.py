"""Fuzzing: many generated graphs, each run in several ways, each result compared with the reference's.

A seed determines one graph and its inputs, the same on every machine. A graph with wrong results is made small and returned as a
`Finding`; `xrt.testing.files` writes it to the corpus, from which every engine's suite runs it. The command is ``xrt fuzz``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from xrt.engines.contract import registry
from xrt.engines.contract.deviations import name_likely_cause
from xrt.errors import CompileRefused
from xrt.graph import DType, Function
from xrt.module.options import REFERENCE
from xrt.testing.batches import settle_batch
from xrt.testing.execution_modes import Alternating, ExecutionMode, PriorityListMode, RandomMixMode, SingleEngineMode
from xrt.testing.generate import Form, make_random_inputs, make_seeded_function
from xrt.testing.generators import ALL_FAMILIES, INTEGERS
from xrt.testing.shrink import Sample, shrink
from xrt.verify import CheckVerdict, Verdict, judge_outputs
from xrt.verify.execution import expose_all_values, run_alone

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler

__all__ = ["COMMON", "KINDS_OF_WAY", "WIDE", "Finding", "Fuzzer", "KindOfWay", "make_sample"]

KindOfWay: TypeAlias = Literal["alone", "listed", "mixed", "alternating"]
KINDS_OF_WAY: tuple[KindOfWay, ...] = get_args(KindOfWay)

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
    """A disagreement, made small."""

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
    rarely: Sequence[GraphCompiler | str] = ()
    """Engines that are slow to compile: tried on one graph in `one_in`."""
    one_in: int = 50
    shrinks: bool = True
    kinds: Collection[KindOfWay] = KINDS_OF_WAY[:3]
    """How graphs run: each engine alone, each before the reference, nodes on all by chance, nodes on all in alternation."""
    reference: GraphCompiler = field(default_factory=lambda: registry.create(REFERENCE))
    counts: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    """How often each way came to each verdict."""
    findings: list[Finding] = field(default_factory=list)

    batch: int = 1
    """How many graphs an engine alone gets at once; those that do not agree in a batch run by themselves."""
    settled: dict[tuple[int, str], Verdict] = field(default_factory=dict)
    """What batches have proved, by seed and word of the way."""

    def run(self, seeds: Sequence[int], progress: Callable[[int, Finding | None], None] = lambda done, found: None) -> None:
        """Run the graphs of the seeds; ``progress`` is called with the number done, and with each finding."""
        for done, seed in enumerate(seeds, 1):
            if self.batch > 1 and "alone" in self.kinds and (done - 1) % self.batch == 0:
                self.settled = self.settle(seeds[done - 1 : done - 1 + self.batch])
            for found in self.try_seed(seed):
                self.findings.append(found)
                progress(done, found)
            progress(done, None)

    def try_seed(self, seed: int) -> list[Finding]:
        """Run one graph in its ways up to the first that disagrees, and return what disagreed."""
        begun = self.begin(seed)
        if isinstance(begun, Finding):
            return [begun]
        sample, expected = begun
        tries = (self.try_way(seed, word, way, sample, expected) for word, way in self.ways(seed))
        first = next((found for found in tries if found is not None), None)  # the other ways most often fail of the same
        return [] if first is None else [first]

    def settle(self, seeds: Sequence[int]) -> dict[tuple[int, str], Verdict]:
        """Run the graphs of all the seeds at once on each engine alone, and return what that proves."""
        begun = {seed: self.begin(seed) for seed in seeds}
        found: dict[tuple[int, str], Verdict] = {}
        for engine in map(registry.create, (*self.engines, *self.rarely)):
            way, word = SingleEngineMode(engine), f"{engine.name} alone"
            chosen = [(seed, one) for seed, one in begun.items() if not isinstance(one, Finding)]
            tried = [(seed, one) for seed, one in chosen if word in dict(self.ways(seed))]

            def judge_results(index: int, results: Sequence[Any], way: ExecutionMode = way, tried: Any = tried) -> Verdict:
                sample, expected = tried[index][1]
                return self.judge_results(way, sample, results, expected).verdict

            with np.errstate(all="ignore"):
                verdicts = settle_batch(engine, [sample for _, (sample, _) in tried], judge_results) if tried else {}
            found.update(((tried[index][0], word), verdict) for index, verdict in verdicts.items())
        return found

    def begin(self, seed: int) -> tuple[Sample, list[Any]] | Finding:
        """Return the graph of a seed and what the reference makes of it, or that the reference fails on it."""
        sample = make_sample(seed)
        try:
            return sample, self.truth(sample.function, sample.inputs)
        except Exception as error:  # noqa: BLE001  # a graph that the reference fails on is a finding, whatever it raised
            self.counts["reference", Verdict.DISAGREES] += 1
            return Finding(seed, "the reference", _summarize(error), sample)

    def ways(self, seed: int) -> list[tuple[str, ExecutionMode]]:
        """Return the ways to run the graph of a seed, each under the word that it is counted by."""
        chosen = [registry.create(e) for e in (*self.engines, *(self.rarely if seed % self.one_in == 0 else ()))]
        ways: list[tuple[str, ExecutionMode]] = []
        for engine in chosen:
            if "alone" in self.kinds:
                ways.append((f"{engine.name} alone", SingleEngineMode(engine)))
            if "listed" in self.kinds:
                ways.append((f"{engine.name},{self.reference.name}", PriorityListMode((engine, self.reference))))
        every = (*chosen, self.reference)
        names = ",".join(engine.name for engine in every)
        if "mixed" in self.kinds:
            ways.append((f"mixture of {names}", RandomMixMode(every, seed)))
        if "alternating" in self.kinds:
            ways.append((f"alternating {names}", Alternating(every, seed % max(len(chosen), 2))))
        return ways

    def truth(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Return what the reference makes of it; the inputs are not written to."""
        with np.errstate(all="ignore"):
            return run_alone(self.reference, function.replace(aliases=()), inputs)

    def try_way(self, seed: int, word: str, way: ExecutionMode, sample: Sample, expected: Sequence[Any]) -> Finding | None:
        """Run the graph one way and count the verdict; return what disagreed, made small."""
        if (proved := self.settled.get((seed, word))) is not None:
            self.counts[word, proved] += 1
            return None
        judged = self.judge(way, sample, expected)
        self.counts[word, judged.verdict] += 1
        if judged.verdict is not Verdict.DISAGREES:
            return None
        return self._shrunk(seed, way, sample, judged) if self.shrinks else Finding(seed, str(way), judged.message, sample)

    def judge(self, way: ExecutionMode, sample: Sample, expected: Sequence[Any]) -> CheckVerdict:
        """Run the sample that way and hold the results against the expected ones."""
        try:
            with np.errstate(all="ignore"):  # generated graphs overflow; only the results count
                results = way.run(sample.function, _copies(sample.inputs))
        except CompileRefused as reason:
            return CheckVerdict(Verdict.DECLINED, str(reason))
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is the finding
            return CheckVerdict(Verdict.DISAGREES, _summarize(error))
        return self.judge_results(way, sample, results, expected)

    def judge_results(self, way: ExecutionMode, sample: Sample, results: Sequence[Any], expected: Sequence[Any]) -> CheckVerdict:
        """Hold results of the way against the expected ones."""
        with np.errstate(all="ignore"):
            judged = judge_outputs(sample.function, sample.inputs, results, expected, self.truth)
            if judged.verdict is not Verdict.DISAGREES:
                return judged
            values = [*results, *self.truth(expose_all_values(sample.function.replace(aliases=())), sample.inputs)]
        causes = (name_likely_cause(engine.implementation, sample.function, values) for engine in way.engines)
        cause = next(filter(None, causes), "")
        return CheckVerdict(Verdict.DECLINED, cause) if cause else judged

    def _shrunk(self, seed: int, way: ExecutionMode, sample: Sample, judged: CheckVerdict) -> Finding:
        raised = _kind(judged.message)

        def fails(smaller: Sample) -> bool:
            again = self._judge_safely(way, smaller)
            return again.verdict is Verdict.DISAGREES and _kind(again.message) == raised

        small = shrink(sample, fails, self.truth)
        return Finding(seed, str(way), self._judge_safely(way, small).message, small)

    def _judge_safely(self, way: ExecutionMode, sample: Sample) -> CheckVerdict:
        """Judge a sample that shrinking made: where the reference does not take it, it is no graph any more."""
        try:
            expected = self.truth(sample.function, sample.inputs)
        except Exception as error:  # noqa: BLE001  # a step of shrinking may break any rule
            return CheckVerdict(Verdict.DECLINED, _summarize(error))
        return self.judge(way, sample, expected)


def make_sample(seed: int) -> Sample:
    """Make the graph of a seed and its inputs; every other graph is of common types only."""
    function = make_seeded_function(seed, COMMON if seed % 2 else WIDE)
    return Sample(function, tuple(make_random_inputs(function, seed)))


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
