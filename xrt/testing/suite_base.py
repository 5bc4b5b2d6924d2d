"""What the tests of an engine's suite share: what an author declares, and the words in which the tests are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, assume, settings

from xrt.comparison import Comparison, Tolerance, compare_all, tolerance_for
from xrt.engines.contract import registry
from xrt.engines.contract.deviations import name_likely_cause
from xrt.errors import CompileRefused
from xrt.module.options import REFERENCE
from xrt.testing.crash_notes import describe, note_case
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.strategies import Form, make_random_inputs
from xrt.testing.supported import SupportFilter
from xrt.verify.discontinuities import find_ambiguity
from xrt.verify.execution import compile_alone, run_alone

if TYPE_CHECKING:
    from xrt.engines import CompileContext, Executable, GraphCompiler
    from xrt.graph import Function
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

    def same(self, results: Sequence[Any], function: Function, seed: int, what: str) -> None:
        """Fail, saying what was done, unless the results are the reference engine's."""
        found = self.agrees(results, function, seed)
        assert found, f"{what}: {found.message}\n{function}"

    @classmethod
    def deviates(cls, one: CorpusEntry) -> bool:
        """Whether the entry holds special values on which the engine declares to differ."""
        constants = [constant.array for constant in one.function.constants.values()]
        return bool(name_likely_cause(cls.made().implementation, one.function, [*one.inputs, *one.expected, *constants]))

    def check(self, found: Comparison, one: CorpusEntry) -> None:
        """Fail unless the corpus entry came out right, differs as the engine's `deviations` say, or fails as `gaps` says."""
        gap = next((gap for gap in self.gaps if gap.covers(one.name)), None)
        if gap is not None:
            assert not found, f"the gap {gap} is closed: delete the entry"
        elif not self.deviates(one):
            assert found, f"{one.name} ({one.why}): {found.message}"


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
