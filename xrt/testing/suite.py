"""The suite that proves an engine: subclass it in a test file, name the engine, and pytest runs the contract and the laws.

    from xrt.testing.suite import EngineSuite

    class TestMine(EngineSuite):
        engine = "mine"

Every test asks the engine by its contract, or through a module that has it in its list. What the engine declines is no
failure; what it accepts and gets wrong is, unless `gaps` knows it. This module needs pytest and hypothesis.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from xrt.compare import Comparison, Tolerance, compare_all, tolerance_for
from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions, registry
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node
from xrt.partition import Pin
from xrt.passes import drop_dead_nodes
from xrt.testing.conformance import conform
from xrt.testing.corpus import CORPUS, Entry, entry
from xrt.testing.faulty import Recording
from xrt.testing.ledgers import Gap
from xrt.testing.report import Word
from xrt.testing.running import compiled, module_of, run_alone, run_in_pieces
from xrt.testing.strategies import Form, functions, inputs_of, labels
from xrt.testing.ties import ties_of

__all__ = ["FORM", "EngineSuite"]

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


class EngineSuite:
    """The contract and the laws for one engine; see the module's text."""

    engine: ClassVar[str | GraphCompiler]
    """Mandatory: a name, a spec or an instance."""
    gaps: ClassVar[tuple[Gap, ...]] = ()
    """Entries of the corpus that the engine gets wrong, and why. One that it gets right again is a failure."""
    form: ClassVar[Form] = FORM
    """What generated Functions may look like: narrow it where the engine's library is known to go wrong."""
    tolerance: ClassVar[Tolerance] = tolerance_for("float32", "network")
    """How far the engine's floats may be from the reference engine's over a whole generated Function."""
    passes_at_least: ClassVar[int] = 0
    """How many of the node tests must pass."""
    conformance_gaps: ClassVar[tuple[Gap, ...] | None] = None
    """Node tests that the engine fails, and why; None takes the ledger that XRT ships for the engine."""
    reference: ClassVar[str] = "toy"
    """The engine whose results count as right."""

    # ------------------------------------------------------------------ words of the tests

    @classmethod
    def made(cls) -> GraphCompiler:
        """Return the engine."""
        return registry.create(cls.engine)

    @classmethod
    def truth(cls, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Return what the reference engine makes of it."""
        return run_alone(registry.create(cls.reference), function, inputs)

    @classmethod
    def agrees(cls, results: Sequence[Any], function: Function, seed: int) -> Comparison:
        """Compare results with the reference engine's for the same seed, ties admitted."""
        inputs = inputs_of(function, seed)
        expected = cls.truth(function, inputs_of(function, seed))
        ties = ties_of(function, inputs, cls.truth)
        names = [value.name for value in function.outputs]
        return compare_all(list(results), expected, cls.tolerance, ties=ties, names=names)

    @classmethod
    def mixed(cls) -> list[GraphCompiler]:
        """Return the list of engines that always has an answer: the engine, and the reference engine behind it.

        Behind the reference engine itself stands its double under another name.
        """
        engine, reference = cls.made(), registry.create(cls.reference)
        return [engine, Recording(inner=reference.spec) if engine.name == reference.name else reference]

    def check(self, found: Comparison, one: Entry) -> None:
        """Fail unless the corpus entry came out right, or wrong as `gaps` says."""
        gap = next((gap for gap in self.gaps if gap.covers(one.name)), None)
        if gap is None:
            assert found, f"{one.name} ({one.why}): {found.message}"
        else:
            assert not found, f"the gap {gap} is closed: delete the entry"

    # ------------------------------------------------------------------ the contract

    def test_its_spec_makes_it_again(self) -> None:
        engine = self.made()
        if not isinstance(self.engine, GraphCompiler):
            assert registry.create(engine.spec) == engine
        assert engine.spec.partition("{")[0] == engine.name

    def test_its_version_is_text_that_stays(self) -> None:
        assert self.made().version()
        assert self.made().version() == self.made().version()

    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_the_reason_is_text_and_stays(self, name: str) -> None:
        engine, function = self.made(), entry(name).function
        for holder, node in function.walk():
            reason = engine.why_not(node, holder)
            assert reason is None or (isinstance(reason, str) and reason.strip())
            assert engine.why_not(node, holder) == reason

    @pytest.mark.parametrize(
        "node",
        [
            Node("NoSuchOperator", ("x",), ("y",)),
            Node("Relu", ("x",), ("y",), domain="no.such.domain"),
            Node("Conv", (), ("y",)),
            Node("Relu", ("nowhere",), ("y",)),
        ],
        ids=["operator", "domain", "arity", "value"],
    )
    def test_what_it_cannot_know_is_declined_and_raises_nothing(self, node: Node) -> None:
        function = Function((), (), (node,), opsets={"": 18, "no.such.domain": 1})
        reason = self.made().why_not(function.nodes[0], function)
        assert reason is None or reason.strip()
        if node.domain or node.op_type == "NoSuchOperator":
            assert reason

    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_corpus_alone(self, name: str) -> None:
        one = entry(name)
        given = one.given()
        try:
            results = run_alone(self.made(), one.function, given)
        except CompileRefused:
            return
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is to be told with the entry's story
            self.check(Comparison(f"{type(error).__name__}: {error}"), one)
            return
        self.check(one.judge(results), one)
        aliased = {before for before, _ in one.function.aliases}
        kept = [i for i, value in enumerate(one.function.inputs) if value.name not in aliased]
        assert compare_all([given[i] for i in kept], [one.inputs[i] for i in kept]), "the engine wrote to an input"

    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_corpus_with_the_reference_behind(self, name: str) -> None:
        one = entry(name)
        given = one.given()
        try:
            with module_of(one.function, self.mixed()) as module:
                results = _outputs(module(*given), one.function)
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is to be told with the entry's story
            self.check(Comparison(f"{type(error).__name__}: {error}"), one)
            return
        self.check(one.judge(results), one)
        for before, after in one.function.aliases:
            place = [v.name for v in one.function.inputs].index(before)
            assert compare_all([given[place]], [one.expected[[v.name for v in one.function.outputs].index(after)]])

    @bounded
    @given(data=st.data())
    def test_read_only_and_strided_inputs_are_taken(self, data: st.DataObject) -> None:
        function = data.draw(functions(replace(self.form, aliases=False)))
        inputs = [_awkward(value) for value in inputs_of(function, 1)]
        assert self.agrees(_alone_or_skip(self.made(), function, inputs), function, 1)

    @bounded
    @given(data=st.data())
    def test_a_second_run_leaves_the_first_results_alone(self, data: st.DataObject) -> None:
        function = data.draw(functions(replace(self.form, aliases=False)))
        executable = _compiled_or_skip(self.made(), function, inputs_of(function, 1))
        first = list(executable.run(inputs_of(function, 1)))
        second = list(executable.run(inputs_of(function, 2)))
        executable.close()
        assert self.agrees(second, function, 2)
        assert self.agrees(first, function, 1)

    @bounded
    @given(data=st.data())
    def test_results_that_are_said_to_be_fresh_are(self, data: st.DataObject) -> None:
        function = data.draw(functions(replace(self.form, aliases=False)))
        inputs = inputs_of(function, 1)
        executable = _compiled_or_skip(self.made(), function, inputs)
        if not executable.outputs_are_fresh:
            return
        results = [r for r in executable.run(inputs) if isinstance(r, np.ndarray) and r.size]
        constants = [constant.array for constant in function.constants.values()]
        executable.close()
        for index, result in enumerate(results):
            others = [*results[:index], *inputs, *constants]
            assert not any(np.shares_memory(result, other) for other in others if isinstance(other, np.ndarray))

    @bounded
    @given(data=st.data())
    def test_given_buffers_hold_the_results(self, data: st.DataObject) -> None:
        function = data.draw(functions(replace(self.form, aliases=False, passthrough=False)))
        inputs = inputs_of(function, 1)
        executable = _compiled_or_skip(self.made(), function, inputs)
        buffers = [np.empty_like(result, order="C") for result in executable.run(inputs)]
        results = executable.run(inputs, RunOptions(out=buffers))
        executable.close()
        assert all(result is buffer for result, buffer in zip(results, buffers, strict=True))
        assert self.agrees(buffers, function, 1)

    @settings(bounded, max_examples=5)
    @given(data=st.data())
    def test_several_threads_may_run_at_once(self, data: st.DataObject) -> None:
        function = data.draw(functions(replace(self.form, aliases=False)))
        executable = _compiled_or_skip(self.made(), function, inputs_of(function, 0))
        barrier = threading.Barrier(8)

        def run(seed: int) -> list[list[Any]]:
            barrier.wait()
            return [list(executable.run(inputs_of(function, seed))) for _ in range(5)]

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(run, range(8)))
        executable.close()
        for seed, runs in enumerate(results):
            assert all(self.agrees(found, function, seed) for found in runs)

    @settings(bounded, max_examples=10, suppress_health_check=list(HealthCheck))
    @given(function=functions())
    def test_a_saved_executable_runs_the_same(self, function: Function, tmp_path: Path) -> None:
        """It may be loaded for a Function that calls its inner values and nodes otherwise, and lists its constants otherwise."""
        engine, context, inputs = self.made(), CompileContext(workdir=tmp_path), inputs_of(function, 0)
        executable = _compiled_or_skip(engine, function, inputs)
        expected = list(executable.run(inputs))
        try:
            data = bytes(engine.save(executable, context))
        except CompileRefused:
            return
        finally:
            executable.close()
        loaded = engine.load(memoryview(data), renamed(function), context)
        loaded.prepare()
        found = compare_all(list(loaded.run(inputs)), expected, self.tolerance)
        loaded.close()
        assert found, found.message

    # ------------------------------------------------------------------ the laws

    @bounded
    @given(data=st.data(), seed=st.integers(0, 99))
    def test_it_agrees_with_the_reference(self, data: st.DataObject, seed: int) -> None:
        function = data.draw(functions(self.form))
        results = _alone_or_skip(self.made(), function.replace(aliases=()), inputs_of(function, seed))
        found = self.agrees(results, function, seed)
        assert found, found.message

    @bounded
    @given(data=st.data())
    def test_cut_law(self, data: st.DataObject) -> None:
        function = data.draw(functions(replace(self.form, aliases=False)))
        cut = data.draw(labels(function))
        engine = self.made()
        results = run_in_pieces(function, cut, inputs_of(function, 3), lambda f, i: _alone_or_skip(engine, f, i))
        found = self.agrees(results, function, 3)
        assert found, found.message

    @bounded
    @given(data=st.data())
    def test_fallback_law(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.form))
        with module_of(function, self.mixed()) as module:
            results = _outputs(module(*inputs_of(function, 4)), function)
        found = self.agrees(results, function, 4)
        assert found, found.message

    @bounded
    @given(data=st.data(), alternate=st.integers(0, 1))
    def test_mixture_law(self, data: st.DataObject, alternate: int) -> None:
        function = drop_dead_nodes(data.draw(functions(self.form)))  # a pin on a node that is dropped would be an error
        engines = self.mixed()
        engine = engines[0]
        taken = [n.name for n in function.nodes if engine.why_not(n, function) is None][alternate::2]
        others = [n.name for n in function.nodes if n.name not in taken]
        assume(taken)
        pins = [Pin(tuple(names), e.spec, "name") for names, e in ((taken, engine), (others, engines[1])) if names]
        with module_of(function, engines, pins=pins) as module:
            results = _outputs(module(*inputs_of(function, 5)), function)
        found = self.agrees(results, function, 5)
        assert found, found.message

    @bounded
    @given(data=st.data())
    def test_reason_law(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.form))
        engines = self.mixed()
        with module_of(function, engines) as module:
            module(*inputs_of(function, 0))
            elsewhere = {n for launch in module.plan.launches if launch.engine != engines[0].spec for n in launch.nodes}
            reasons = {reason.node: reason.text for reason in module.plan.reasons if reason.engine == engines[0].spec}
        assert elsewhere == set(reasons)
        assert all(text.strip() for text in reasons.values())

    @settings(bounded, max_examples=5)
    @given(data=st.data(), runs=st.integers(1, 4))
    def test_once_law(self, data: st.DataObject, runs: int) -> None:
        function = data.draw(functions(replace(self.form, symbolic=False)))
        recording = Recording(inner=self.made().spec)
        with module_of(function, [recording, self.reference]) as module:
            for seed in range(runs):
                module(*inputs_of(function, seed))
            regions = [launch for launch in module.plan.launches if launch.engine == recording.spec]
            distinct = len({launch.function.fingerprint for launch in regions})
        assert recording.journal.count("prepare") == distinct
        assert recording.journal.count("run") == runs * len(regions)

    # ------------------------------------------------------------------ conformance

    def test_conformance(self) -> None:
        report = conform(self.made(), gaps=self.conformance_gaps)
        assert report.ok, str(report)
        passed = report.counts[Word.PASSED]
        assert passed >= self.passes_at_least, f"{passed} node tests passed; at least {self.passes_at_least} must"


def _outputs(results: Any, function: Function) -> list[Any]:
    """Return a module's results as a list: a single output comes bare."""
    return [results] if len(function.outputs) == 1 else list(results)


def _awkward(value: Any) -> Any:
    """Return the same array as a read-only view with strides of its own."""
    if not isinstance(value, np.ndarray) or value.dtype == DType.STRING.numpy:
        return value
    wide = np.empty((*value.shape, 2), value.dtype)
    wide[..., 0] = value
    view = wide[..., 0]
    view.flags.writeable = False
    return view


def _alone_or_skip(engine: GraphCompiler, function: Function, inputs: Sequence[Any]) -> list[Any]:
    """Run it on the engine alone; an example that the engine declines counts for nothing."""
    try:
        return run_alone(engine, function, inputs)
    except CompileRefused:
        assume(False)
        raise


def _compiled_or_skip(engine: GraphCompiler, function: Function, inputs: Sequence[Any]) -> Executable:
    try:
        return compiled(engine, function, inputs)
    except CompileRefused:
        assume(False)
        raise
