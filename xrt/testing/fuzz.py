"""Fuzzing: many generated graphs, each run in several ways, each result held against the reference's.

A seed stands for one graph and its inputs, the same on every machine. What disagrees is made small and returned as a
`Finding`; `xrt.testing.files` writes it to the corpus, from where every engine's suite runs it. The command is ``xrt fuzz``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xrt.engines import GraphCompiler, registry
from xrt.errors import CompileRefused
from xrt.graph import DType, Function
from xrt.module.settings import REFERENCE
from xrt.testing.families import ALL_FAMILIES, INTEGERS
from xrt.testing.generate import Form, inputs_of, seeded_function
from xrt.testing.shrink import Sample, shrink
from xrt.testing.ways import Alone, Listed, Mixed, Way
from xrt.verify import Judgement, Verdict, judge
from xrt.verify.running import run_alone

__all__ = ["COMMON", "WIDE", "Finding", "Fuzzer", "sample_of"]

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

    engines: Sequence[GraphCompiler | str] = ("ort",)
    """Tried on every graph."""
    rarely: Sequence[GraphCompiler | str] = ()
    """Engines that are slow to compile: tried on one graph in `one_in`."""
    one_in: int = 50
    shrinks: bool = True
    reference: GraphCompiler = field(default_factory=lambda: registry.create(REFERENCE))
    counts: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    """How often each way came to each verdict."""
    findings: list[Finding] = field(default_factory=list)

    def run(self, seeds: Sequence[int], progress: Callable[[int, Finding | None], None] = lambda done, found: None) -> None:
        """Run the graphs of the seeds; ``progress`` is told how many are done, and of each finding as it comes."""
        for done, seed in enumerate(seeds, 1):
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

    def begin(self, seed: int) -> tuple[Sample, list[Any]] | Finding:
        """Return the graph of a seed and what the reference makes of it, or that the reference fails on it."""
        sample = sample_of(seed)
        try:
            return sample, self.truth(sample.function, sample.inputs)
        except Exception as error:  # noqa: BLE001  # a graph that the reference fails on is a finding, whatever it raised
            self.counts["reference", Verdict.DISAGREES] += 1
            return Finding(seed, "the reference", _told(error), sample)

    def ways(self, seed: int) -> list[tuple[str, Way]]:
        """Return the ways to run the graph of a seed, each under the word that it is counted by."""
        chosen = [registry.create(e) for e in (*self.engines, *(self.rarely if seed % self.one_in == 0 else ()))]
        ways: list[tuple[str, Way]] = []
        for engine in chosen:
            ways += [(f"{engine.name} alone", Alone(engine)), (f"{engine.name},toy", Listed((engine, self.reference)))]
        mixed = (*chosen, self.reference)
        return [*ways, (f"mixture of {','.join(e.name for e in mixed)}", Mixed(mixed, seed))]

    def truth(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Return what the reference makes of it; the inputs are not written to."""
        return run_alone(self.reference, function.replace(aliases=()), inputs)

    def try_way(self, seed: int, word: str, way: Way, sample: Sample, expected: Sequence[Any]) -> Finding | None:
        """Run the graph one way and count the verdict; return what disagreed, made small."""
        judged = self.judge(way, sample, expected)
        self.counts[word, judged.verdict] += 1
        if judged.verdict is not Verdict.DISAGREES:
            return None
        return self._shrunk(seed, way, sample, judged) if self.shrinks else Finding(seed, str(way), judged.message, sample)

    def judge(self, way: Way, sample: Sample, expected: Sequence[Any]) -> Judgement:
        """Run the sample that way and hold the results against the expected ones."""
        try:
            results = way.run(sample.function, _copies(sample.inputs))
        except CompileRefused as reason:
            return Judgement(Verdict.DECLINED, str(reason))
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is the finding
            return Judgement(Verdict.DISAGREES, _told(error))
        return judge(sample.function, sample.inputs, results, expected, self.truth)

    def _shrunk(self, seed: int, way: Way, sample: Sample, judged: Judgement) -> Finding:
        raised = _kind(judged.message)

        def fails(smaller: Sample) -> bool:
            again = self._judge_safely(way, smaller)
            return again.verdict is Verdict.DISAGREES and _kind(again.message) == raised

        small = shrink(sample, fails, self.truth)
        return Finding(seed, str(way), self._judge_safely(way, small).message, small)

    def _judge_safely(self, way: Way, sample: Sample) -> Judgement:
        """Judge a sample that shrinking made: where the reference does not take it, it is no graph any more."""
        try:
            expected = self.truth(sample.function, sample.inputs)
        except Exception as error:  # noqa: BLE001  # a step of shrinking may break any rule
            return Judgement(Verdict.DECLINED, _told(error))
        return self.judge(way, sample, expected)


def sample_of(seed: int) -> Sample:
    """Return the graph of a seed and its inputs: every other graph is of common types only."""
    function = seeded_function(seed, COMMON if seed % 2 else WIDE)
    return Sample(function, tuple(inputs_of(function, seed)))


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [value.copy() for value in inputs]


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _kind(message: str) -> str:
    """Return what shrinking must keep of a disagreement: the exception, or that numbers, a shape or a type differ."""
    head = message.partition(":")[0]
    if head.isidentifier():
        return head
    return next((word for word in ("has shape", "is of type", "outputs;") if word in message), "differs")
