"""Fuzzing: many generated graphs, each run in several ways, each result held against the reference's.

A seed stands for one graph and its inputs, the same on every machine. What disagrees is made small and returned as a
`Finding`; `xrt.testing.files` writes it to the corpus, from where every engine's suite runs it. The command is ``xrt fuzz``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from xrt.compare import Comparison, Ties, Tolerance, compare, tolerance_for
from xrt.engines import GraphCompiler, registry
from xrt.errors import CompileRefused
from xrt.graph import DType, Function
from xrt.testing.families import ALL_FAMILIES, INTEGERS
from xrt.testing.generate import Form, inputs_of, seeded_function
from xrt.testing.shrink import Sample, shrink
from xrt.testing.ways import Alone, Listed, Mixed, Way
from xrt.verify.rounding import explains
from xrt.verify.running import run_alone
from xrt.verify.ties import ties_of

__all__ = ["COMMON", "WIDE", "Finding", "Fuzzer", "Judgement", "Verdict", "sample_of"]

WIDE = Form(
    families=tuple(ALL_FAMILIES),
    dtypes=(DType.FLOAT32, DType.INT64, DType.BOOL, DType.FLOAT64, *INTEGERS[1:]),
    rank=6,
    max_nodes=12,
)
"""Everything that there is a recipe for."""
COMMON = replace(WIDE, dtypes=WIDE.dtypes[:3], max_nodes=6)
"""The types that every engine has, and small graphs: what a single engine often takes whole."""


class Verdict(StrEnum):
    """What came of one graph run in one way."""

    AGREES = "agrees"
    DECLINED = "declined"
    ROUNDING = "rounding"
    """It differs by more than the tolerance, and by no more than rounding makes of this very graph."""
    DISAGREES = "disagrees"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and what was seen."""

    verdict: Verdict
    message: str = ""


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
    reference: GraphCompiler = field(default_factory=lambda: registry.create("toy"))
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
        sample = sample_of(seed)
        try:
            expected = self.truth(sample.function, sample.inputs)
        except Exception as error:  # noqa: BLE001  # a graph that the reference fails on is a finding, whatever it raised
            self.counts["reference", Verdict.DISAGREES] += 1
            return [Finding(seed, "the reference", _told(error), sample)]
        tries = (self._try(seed, word, way, sample, expected) for word, way in self.ways(seed))
        first = next((found for found in tries if found is not None), None)  # the other ways most often fail of the same
        return [] if first is None else [first]

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

    def _try(self, seed: int, word: str, way: Way, sample: Sample, expected: Sequence[Any]) -> Finding | None:
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
        return self._compare(sample, results, expected)

    def _compare(self, sample: Sample, results: Sequence[Any], expected: Sequence[Any]) -> Judgement:
        found = _agree(sample.function, results, expected, [None] * len(expected))
        if found:
            return Judgement(Verdict.AGREES)
        if _agree(sample.function, results, expected, ties_of(sample.function, sample.inputs, self.truth)):
            return Judgement(Verdict.AGREES)
        if explains(sample.function, sample.inputs, results, expected, self.truth):
            return Judgement(Verdict.ROUNDING, found.message)
        return Judgement(Verdict.DISAGREES, found.message)

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


def _agree(function: Function, results: Sequence[Any], expected: Sequence[Any], ties: Sequence[Ties | None]) -> Comparison:
    """Compare output by output and return the first difference."""
    if len(results) != len(expected):
        return Comparison(f"there are {len(results)} outputs; {len(expected)} were expected")
    for value, mine, theirs, tie in zip(function.outputs, results, expected, ties, strict=True):
        if not (found := compare(mine, theirs, _tolerance(function, value.name, theirs), ties=tie, name=value.name)):
            return found
    return Comparison()


def _tolerance(function: Function, output: str, expected: Any) -> Tolerance:
    """Return the tolerance of a network whose type is the narrowest float that the output was computed through.

    Engines may keep more digits than a narrow type has (TVM fuses a cast to bfloat16 and back into nothing), and no
    float64 is more exact than the float32 it was cast from.
    """
    kinds = [kind for kind in _NARROWEST_FIRST if kind in _types_before(function, output)]
    is_float = isinstance(expected, np.ndarray) and DType.of(expected).is_float
    return tolerance_for(kinds[0].numpy if kinds and is_float else getattr(expected, "dtype", "float32"), "network")


_NARROWEST_FIRST = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


def _types_before(function: Function, output: str) -> set[DType]:
    """Return the element types of all that the output was computed from, and of all that was cast to on the way."""
    found: set[DType | None] = set()
    seen, left = {""}, [output]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        found.add(getattr(function.type_of(name), "dtype", None))
        if (node := function.producer(name)) is not None:
            found |= {DType.from_onnx(node.attr("to"))} if node.op_type == "Cast" else set()
            left += node.uses
    return {kind for kind in found if kind is not None}


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
