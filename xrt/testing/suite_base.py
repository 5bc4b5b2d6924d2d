"""What the tests of an engine's suite share: what an author declares, and the words in which the tests are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, settings

from xrt.comparison import Comparison, Tolerance, compare_all, tolerance_for
from xrt.engines.contract import registry
from xrt.errors import CompileRefused, RunFailed
from xrt.module.options import REFERENCE
from xrt.passes import infer_shapes
from xrt.testing.casts import CastChain, compare_chain, function_of_chains, inputs_of_chains, list_cast_chains
from xrt.testing.crash_notes import describe, note_case
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.special_values import DECLARED, SPECIALS, Lost, SpecialValueCase
from xrt.testing.spikes import SPIKES, Spiked
from xrt.testing.strategies import Form, make_random_inputs
from xrt.testing.supported import SupportFilter
from xrt.verify.discontinuities import find_ambiguity
from xrt.verify.execution import compile_alone, run_alone

if TYPE_CHECKING:
    from xrt.engines import CompileContext, Executable, GraphCompiler
    from xrt.graph import DType, Function
    from xrt.testing.corpus import CorpusEntry
    from xrt.testing.known_failures import KnownFailure

__all__ = ["FORM", "SuiteBase", "alone_or_skip", "bounded", "compile_or_skip", "run_outputs"]

FORM = Form()
"""What the suite's generated Functions may look like, unless a suite narrows it."""

bounded = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
        HealthCheck.differing_executors,  # several suites inherit one test; nothing is replayed from a database
    ],
)
"""Few examples, the same in every run, and no limit on a single one: engines compile."""


class SuiteBase:
    """What an author declares of an engine, and how its results are judged."""

    engine: ClassVar[str | GraphCompiler]
    """Mandatory: a name, a spec or an instance."""
    lost_on_some_processors: ClassVar[frozenset[str]] = frozenset()
    """Operators of the engine's ``loses_nan`` and ``loses_infinity`` that its library computes right with the vectors of some
    processors, so that a test cannot ask that each be lost."""
    gaps: ClassVar[tuple[KnownFailure, ...]] = ()
    """Entries of the corpus that the engine gets wrong, and why. One that it gets right again is a failure."""
    conformance_gaps: ClassVar[tuple[KnownFailure, ...]] = ()
    """Node tests that the engine fails, and why. One that passes again is a failure."""
    form: ClassVar[Form] = FORM
    """What generated Functions may look like: narrow it where the engine's library is known to go wrong."""
    tolerance: ClassVar[Tolerance] = tolerance_for("float32", "network")
    """How far the engine's floats may be from the reference engine's over a whole generated Function."""
    reference: ClassVar[str] = REFERENCE
    """The engine whose results count as right."""

    @pytest.fixture(autouse=True)
    def name_the_case_of_a_crash(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the stack that a native crash leaves behind name the test with its case, and what was compiled."""
        request.node.obj = note_case(f"case {request.node.nodeid}", request.node.obj)
        kind = self.made().implementation
        compile_one = kind.compile

        def compile_noted(engine: GraphCompiler, function: Function, context: CompileContext) -> Executable:
            return note_case(f"compile {describe(function)}", compile_one)(engine, function, context)

        monkeypatch.setattr(kind, "compile", compile_noted)

    @classmethod
    def made(cls) -> GraphCompiler:
        """Return the engine."""
        return registry.create(cls.engine)

    @classmethod
    def supported_form(cls, **narrower: Any) -> Form:
        """Return the form of generated Functions of which the engine takes every node, as far as `why_not` tells.

        Skips the test for an engine that takes nothing of what is generated: its proof is the corpus and the node tests.
        """
        form = replace(cls.form, takes=SupportFilter(cls.made()), **narrower)
        if not form.recipes:
            pytest.skip(f"engine {cls.made().name!r} takes no operator of the generated graphs")
        return form

    @classmethod
    def truth(cls, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Return what the reference engine makes of it."""
        return run_alone(registry.create(cls.reference), function, inputs)

    @classmethod
    def agrees(cls, results: Sequence[Any], function: Function, seed: int) -> Comparison:
        """Compare results with the reference engine's for the same seed, ties admitted."""
        inputs = make_random_inputs(function, seed)
        expected = cls.truth(function, make_random_inputs(function, seed))
        ties = find_ambiguity(function, inputs, cls.truth)
        names = [value.name for value in function.outputs]
        return compare_all(list(results), expected, cls.tolerance, ties=ties, names=names)

    @classmethod
    def list_engines(cls) -> list[GraphCompiler]:
        """Return a list of engines that supports every node: the engine, and the reference engine after it.

        After the reference engine itself comes a recording proxy of it, under another name.
        """
        engine, reference = cls.made(), registry.create(cls.reference)
        return [engine, RecordingEngine(inner=reference.spec) if engine.name == reference.name else reference]

    @classmethod
    def compare_special_numbers(cls, one: SpecialValueCase | Spiked) -> tuple[list[Any], list[Any]] | None:
        """Return what the engine and the reference make of special numbers; None where the engine declines."""
        with np.errstate(all="ignore"):
            try:
                results = _results_of(cls.made(), one)
            except CompileRefused:
                return None
            return results, _results_of(registry.create(cls.reference), one)

    @classmethod
    def losses(cls) -> dict[Lost, frozenset[str]]:
        """Return the operators in which the engine says that it loses what."""
        kind = cls.made().implementation
        return {lost: frozenset(getattr(kind, name)) for lost, name in DECLARED.items()}

    @classmethod
    def loses(cls, lost: Lost, op: str) -> bool:
        """Whether there are special numbers that come out right only because the operator, no other, is said to lose these."""
        losses = cls.losses()
        every: list[SpecialValueCase | Spiked] = [*SPECIALS, *SPIKES]
        cases = ((one, cls.compare_special_numbers(one)) for one in every if one.operators & losses[lost] == {op})
        others = [kind for kind, ops in losses.items() if op in ops and kind != lost]
        return any(pair is not None and not one.judge(*pair, others) for one, pair in cases)

    @classmethod
    def wrong_chains(cls, source: DType) -> list[str]:
        """Return what is wrong in the chains of casts from a type that the engine takes; what it declines is not."""
        chains = list_cast_chains(source)
        whole = infer_shapes(function_of_chains(source, chains))
        declined = {node.name.partition(":")[0] for node in whole.nodes if cls.made().why_not(node, whole) is not None}
        taken = [chain for chain in chains if chain.name not in declined]
        found = cls._chains_computed(source, taken)
        expected = cls._chains_computed(source, taken, cls.reference)
        flushing = cls.made().implementation.flushes_denormals
        comparisons = (compare_chain(chain, found[chain], expected[chain], flushing) for chain in found)
        return [comparison.message for comparison in comparisons if not comparison]

    @classmethod
    def _chains_computed(cls, source: DType, chains: Sequence[CastChain], engine: str = "") -> dict[CastChain, Any]:
        """Return what comes of the chains in one Function, or of each by itself where that is refused, or refuses its inputs."""
        function = function_of_chains(source, chains)
        inputs = inputs_of_chains(source)
        compiler = registry.create(engine) if engine else cls.made()
        try:
            with np.errstate(all="ignore"):
                results = run_alone(compiler, function, [inputs[value.name].copy() for value in function.inputs])
        except (CompileRefused, RunFailed):
            alone = [cls._chains_computed(source, [chain], engine) for chain in chains] if len(chains) > 1 else []
            return {chain: result for one in alone for chain, result in one.items()}
        return dict(zip(chains, results, strict=True))

    def same(self, results: Sequence[Any], function: Function, seed: int, what: str) -> None:
        """Fail, saying what was done, unless the results are the reference engine's."""
        found = self.agrees(results, function, seed)
        assert found, f"{what}: {found.message}\n{function}"

    def check(self, found: Comparison, one: CorpusEntry) -> None:
        """Fail unless the corpus entry came out right, or wrong as `gaps` says."""
        gap = next((gap for gap in self.gaps if gap.covers(one.name)), None)
        if gap is None:
            assert found, f"{one.name} ({one.why}): {found.message}"
        else:
            assert not found, f"the gap {gap} is closed: delete the entry"


def _results_of(engine: GraphCompiler, one: SpecialValueCase | Spiked) -> list[Any]:
    """Return the outputs of all calls, one call after the other."""
    executable = compile_alone(engine, one.function, one.calls[0])
    try:
        return [np.array(result) for call in one.calls for result in executable.run([array.copy() for array in call])]
    finally:
        executable.close()


def run_outputs(results: Any, function: Function) -> list[Any]:
    """Return a module's results as a list: a single output comes bare."""
    return [results] if len(function.outputs) == 1 else list(results)


def alone_or_skip(engine: GraphCompiler, function: Function, inputs: Sequence[Any]) -> list[Any]:
    """Run it on the engine alone; an example that the engine declines counts for nothing."""
    try:
        return note_case(f"run {describe(function)}", run_alone)(engine, function, inputs)
    except CompileRefused:
        assume(False)
        raise


def compile_or_skip(engine: GraphCompiler, function: Function, inputs: Sequence[Any]) -> Executable:
    """Compile it for the engine alone; an example that the engine declines counts for nothing."""
    try:
        return compile_alone(engine, function, inputs)
    except CompileRefused:
        assume(False)
        raise
