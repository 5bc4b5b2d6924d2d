"""Fuzzing: run many generated graphs on engines in several modes, and compare the results with those of the reference engine.

A seed determines one graph and its inputs, the same on every machine. A graph with wrong results is reduced and reported as a
`Finding`. `write_entry` adds it to the corpus, which every engine's suite runs. The command is ``xrt fuzz``.
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
from xrt.testing.cases import are_inputs_unchanged
from xrt.testing.generate import ALL_FAMILIES, Form, make_random_inputs, make_seeded_function
from xrt.testing.generators.draft import INTEGERS
from xrt.testing.running import (
    as_planned,
    isolate_engines,
    make_alternating_program,
    make_module,
    name_cause,
    overlook_deviations,
    pin_nodes,
    run_outputs,
)
from xrt.verify import CheckVerdict, Verdict, judge_outputs
from xrt.verify.execution import expose_all_values, run_alone
from xrt.verify.regions import bisect_difference


@dataclass(frozen=True, eq=False)
class Sample:
    function: Function
    inputs: tuple[Any, ...]


ModeKind: TypeAlias = Literal["alone", "listed", "mixed", "alternating"]
MODE_KINDS: tuple[ModeKind, ...] = get_args(ModeKind)


@dataclass(frozen=True)
class ExecutionMode:
    """How to run a Function: on one engine, on a list, with nodes assigned to engines at random, or with engines alternating."""

    kind: ModeKind
    engines: tuple[GraphCompiler, ...]
    """In order of preference. The last one must support every node, unless ``kind`` is ``alone``."""
    seed: int = 0
    """For ``mixed``, the seed of the assignment; for ``alternating``, the index of the engine to start with."""

    @property
    def title(self) -> str:
        """The kind and the engines as text, a key of `Fuzzer.counts`."""
        names = ",".join(engine.name for engine in self.engines)
        titles = {"alone": f"{names} alone", "mixed": f"mixture of {names}", "alternating": f"alternating {names}"}
        return titles.get(self.kind, names)

    def __str__(self) -> str:
        return f"{self.title} by {self.seed}" if self.kind in ("mixed", "alternating") else self.title

    def run(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Run the function and return its outputs. Raises CompileRefused if it cannot run in this mode."""
        match self.kind:
            case "alone":
                # A module updates inputs in place; an engine alone does not, so aliases are dropped.
                return run_alone(self.engines[0], function.replace(aliases=()), inputs)
            case "listed":
                return _run_module(function, self.engines, (), inputs)
            case "mixed":
                return self._run_mixture(as_planned(function), inputs)  # pins must name nodes that exist after optimization
            case "alternating":
                plain, last_resort = as_planned(function.replace(aliases=())), len(self.engines) > 2
                program = make_alternating_program(plain, inputs, self.engines, self.seed, last_resort=last_resort)
                return list(program.run(inputs))

    def _run_mixture(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Pin each node to one of the engines that support it, chosen by seed and node name, and run the module."""
        engine_indices: dict[str, int] = {}
        for node in function.nodes:
            indices = range(len(self.engines))
            supporting = [i for i in indices if self.engines[i].why_not(node, function) is None] or [indices[-1]]
            # Hash the node's name, so that nodes stay on their engines when the graph is reduced.
            engine_indices[node.name] = supporting[zlib.crc32(f"{self.seed}/{node.name}".encode()) % len(supporting)]
        try:
            return _run_module(function, self.engines, pin_nodes(self.engines, engine_indices), inputs)
        except PlanError as error:
            # A pinned region has no fallback if its engine refuses it. A failure of a library is a finding.
            if "failed to compile" in str(error):
                raise
            raise CompileRefused(str(error)) from error


def _run_module(function: Function, engines: Sequence[GraphCompiler], pins: Sequence[Pin], inputs: Sequence[Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fallback to the next engine is expected here
        with make_module(function, engines, pins=tuple(pins)) as module:
            return run_outputs(module(*inputs), function)


WIDE_FORM = Form(
    families=tuple(ALL_FAMILIES),
    dtypes=(DType.FLOAT32, DType.INT64, DType.BOOL, DType.FLOAT64, *INTEGERS[1:]),
    rank=6,
    max_nodes=12,
)
"""The form of graphs with even seeds: all recipes and types."""
COMMON_FORM = replace(WIDE_FORM, dtypes=WIDE_FORM.dtypes[:3], max_nodes=6)
"""The form of graphs with odd seeds: small graphs of common types, of which an engine often supports every node."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A disagreement with the reference engine, reduced to the nodes that cause it."""

    seed: int
    mode: str
    message: str
    sample: Sample

    def __str__(self) -> str:
        count = sum(1 for _ in self.sample.function.walk())
        return f"seed {self.seed}, {self.mode}, {count} node{'s' * (count != 1)}: {self.message}"


@dataclass
class Fuzzer:
    """Generates graphs from seeds, runs them in the modes of `kinds`, and counts the verdicts."""

    engines: Sequence[GraphCompiler | str] = field(default_factory=lambda: registry.list_by_rank()[:1])
    """The engines under test. Default: the engine with the highest rank."""
    bisects: bool = True
    """Whether to reduce the graph of each finding."""
    isolate: bool = False
    """Whether to run engines in worker processes, so that a crash becomes a finding."""
    kinds: Collection[ModeKind] = MODE_KINDS[:3]
    """The modes: each engine alone, each listed before the reference, nodes assigned at random, or neighbours alternating."""
    reference: GraphCompiler = field(default_factory=lambda: registry.create(REFERENCE))
    counts: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    """The number of graphs per mode and verdict."""
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        engines = map(registry.create, self.engines)
        self._opened = isolate_engines(engines) if self.isolate else list(engines)

    def run(self, seeds: Sequence[int], progress: Callable[[int, Finding | None], None] = lambda done, finding: None) -> None:
        """Run the graphs of the seeds. Call ``progress`` for each finding and after each graph, with the number of graphs run."""
        for done, seed in enumerate(seeds, 1):
            if (finding := self.try_seed(seed)) is not None:
                self.findings.append(finding)
                progress(done, finding)
            progress(done, None)

    def try_seed(self, seed: int) -> Finding | None:
        """Run one graph in its modes up to the first finding, since other modes usually fail for the same reason."""
        sample = make_sample(seed)
        try:
            expected = self.run_reference(sample.function, sample.inputs)
        except Exception as error:  # noqa: BLE001  # any failure of the reference is a finding
            self.counts["reference", Verdict.DISAGREES] += 1
            return Finding(seed, "the reference", _summarize(error), sample)
        findings = (self.try_mode(seed, mode, sample, expected) for mode in self.list_modes(seed))
        return next(filter(None, findings), None)

    def list_modes(self, seed: int) -> list[ExecutionMode]:
        modes = []
        for engine in self._opened:
            modes += [ExecutionMode("alone", (engine,)), ExecutionMode("listed", (engine, self.reference))]
        engines = (*self._opened, self.reference)
        modes += [
            ExecutionMode("mixed", engines, seed),
            ExecutionMode("alternating", engines, seed % max(len(self._opened), 2)),
        ]
        return [mode for mode in modes if mode.kind in self.kinds]

    def run_reference(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Compute the expected outputs on the reference engine, without updating inputs in place."""
        with np.errstate(all="ignore"):
            return run_alone(self.reference, function.replace(aliases=()), inputs)

    def try_mode(self, seed: int, mode: ExecutionMode, sample: Sample, expected: Sequence[Any]) -> Finding | None:
        """Run the graph in one mode and count the verdict; return a finding if the results disagree, reduced if `bisects`."""
        check = self.judge(mode, sample, expected)
        self.counts[mode.title, check.verdict] += 1
        if check.verdict is not Verdict.DISAGREES:
            return None
        return self._bisect(seed, mode, sample, check) if self.bisects else Finding(seed, str(mode), check.message, sample)

    def judge(self, mode: ExecutionMode, sample: Sample, expected: Sequence[Any]) -> CheckVerdict:
        """Run the sample in one mode and compare the results with the expected outputs."""
        inputs = [value.copy() for value in sample.inputs]
        try:
            with np.errstate(all="ignore"):  # generated graphs overflow; only the results count
                results = mode.run(sample.function, inputs)
        except CompileRefused as reason:
            return CheckVerdict(Verdict.DECLINED, str(reason))
        except Exception as error:  # noqa: BLE001  # any exception of an engine is a finding
            return CheckVerdict(Verdict.DISAGREES, _summarize(error))
        unchanged = are_inputs_unchanged(sample.function, sample.inputs, inputs)
        return self._compare(mode, sample, results, expected) if unchanged else CheckVerdict(Verdict.DISAGREES, unchanged.message)

    def _compare(self, mode: ExecutionMode, sample: Sample, results: Sequence[Any], expected: Sequence[Any]) -> CheckVerdict:
        """Compare with the expected outputs. If declared deviations explain the difference, the verdict is DECLINED."""
        with np.errstate(all="ignore"):
            check = judge_outputs(sample.function, sample.inputs, results, expected, self.run_reference)
            if check.verdict is not Verdict.DISAGREES:
                return check
            # The inner values show whether a special value reached a node with a declared deviation.
            exposed = expose_all_values(sample.function)
            inner = {
                value.name: array
                for value, array in zip(exposed.outputs, self.run_reference(exposed, sample.inputs), strict=True)
            }
            engines = [engine for engine in mode.engines if _supports_any_node(engine, sample.function)]
            explained = overlook_deviations(results, sample.function, sample.inputs, expected, engines, inner)
            if (
                judge_outputs(sample.function, sample.inputs, explained, expected, self.run_reference).verdict
                is Verdict.DISAGREES
            ):
                return check
        cause = name_cause(engines, sample.function, [*sample.inputs, *inner.values(), *expected])
        return CheckVerdict(Verdict.DECLINED, cause)

    def _bisect(self, seed: int, mode: ExecutionMode, sample: Sample, check: CheckVerdict) -> Finding:
        """Reduce the graph to the nodes that are needed for the same kind of disagreement."""
        # Another kind would be another defect.
        kind = _classify(check.message)

        def differ(part: Function, inputs: Sequence[Any], expected: Sequence[Any]) -> str | None:
            repeated = self.judge(mode, Sample(part, tuple(inputs)), expected)
            return repeated.message if repeated.verdict is Verdict.DISAGREES and _classify(repeated.message) == kind else None

        part = bisect_difference(str(mode), sample.function, sample.inputs, self.run_reference, differ)
        if part is None:  # caused by aliases, or not reproducible
            return Finding(seed, str(mode), check.message, sample)
        return Finding(seed, str(mode), part.message, Sample(part.function, part.inputs))


def make_sample(seed: int) -> Sample:
    """Generate the graph and the inputs of a seed; odd seeds use only common types."""
    function = make_seeded_function(seed, COMMON_FORM if seed % 2 else WIDE_FORM)
    return Sample(function, tuple(make_random_inputs(function, seed)))


def _supports_any_node(engine: GraphCompiler, function: Function) -> bool:
    """Whether the engine supports any node of the Function, and so may have run it."""
    typed = infer_shapes(function)
    return any(engine.why_not(node, typed) is None for node in typed.nodes)


def _summarize(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _classify(message: str) -> str:
    """Classify a disagreement by its message: the type of an exception, or wrong shape, type, count or value."""
    # A message of `_summarize` begins with the type of an exception.
    head = message.partition(":")[0]
    if head.isidentifier():
        return head
    return next((word for word in ("has shape", "is of type", "outputs;") if word in message), "differs")
