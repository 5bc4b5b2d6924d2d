"""The test suite for an engine: subclass it in a test file, set the engine, and pytest checks the contract and the laws.

    from xrt.testing.suite import EngineSuite

    class TestMine(EngineSuite):
        engine = "mine"

Tests call the engine directly, or in a module with a list of engines. An engine may decline anything. If it accepts a Function
and computes it wrongly, the test fails, unless `gaps` lists the failure. This module needs pytest and hypothesis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings, strategies as st

from xrt.cache import make_signature
from xrt.comparison import Comparison, Tolerance, compare_all, tolerance_for
from xrt.engines import CompileContext, GraphCompiler, MemoryUse, RunOptions
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import CompileRefused, PlanError
from xrt.formats import onnx
from xrt.formats.text import parse, to_text
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.partition import Pin, Plan, partition
from xrt.passes import infer_shapes
from xrt.testing.cases import are_inputs_unchanged
from xrt.testing.conformance import ResultWord, conform, run_at_sizes
from xrt.testing.corpus import CORPUS, find_entry
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.generate import rename_values
from xrt.testing.open_dims import OPENINGS, Opening
from xrt.testing.running import as_planned, make_module, overlook_deviations, pin_nodes, run_outputs
from xrt.testing.strategies import EVERYTHING, Form, functions, labels, make_random_inputs
from xrt.verify.comparison import find_ambiguities
from xrt.verify.execution import compile_alone, fit_inputs, run_alone, run_regions
from xrt.worker.isolated_engine import why_not_isolated

if TYPE_CHECKING:
    from xrt.engines import Executable
    from xrt.testing.conformance import KnownFailure
    from xrt.testing.corpus import CorpusEntry

__all__ = ["EngineSuite", "SupportFilter", "bounded", "run_outputs"]


@dataclass(frozen=True, slots=True)
class SupportFilter:
    """A function for `Form.accepts`: whether the engine supports every node of a Function, without those in bodies."""

    engine: GraphCompiler

    def __call__(self, function: Function) -> bool:
        typed = infer_shapes(function) if any(node.bodies for node in function.nodes) else function
        return all(self.engine.why_not(node, typed) is None for node in typed.nodes)


bounded = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
        HealthCheck.differing_executors,  # suites inherit the tests; no example database is used
    ],
)
"""Hypothesis settings: few examples, the same in every run, and no time limit, since compiling can be slow."""


def _call_or_skip(call: Callable[..., Any], *args: Any) -> Any:
    """Call ``call(*args)``; skip the hypothesis example if the engine declines."""
    try:
        return call(*args)
    except CompileRefused:
        assume(False)
        raise


def _make_every_origin(size: int) -> Function:
    """Make a Function of ``x`` whose outputs are an input, a constant, and computed, copied, reshaped and repeated values."""
    vector, matrix = (TensorType(DType.FLOAT32, shape) for shape in ((size,), (2, size // 2)))
    types = dict.fromkeys(("x", "x_copy", "y", "y_copy", "c", "c_copy"), vector) | {"x_matrix": matrix, "y_matrix": matrix}
    nodes = [Node("Neg", ("x",), ("y",))]
    nodes += [Node("Identity", (name,), (f"{name}_copy",)) for name in ("x", "y", "c")]
    nodes += [Node("Reshape", (name, "shape"), (f"{name}_matrix",)) for name in ("x", "y")]
    constants = {"c": Constant(np.arange(size, dtype=np.float32)), "shape": Constant(np.array([2, size // 2]))}
    outputs = tuple(Value(name, types[name]) for name in (*types, "y"))
    return Function((Value("x", vector),), outputs, tuple(nodes), constants, {"": 18})


def _save_and_run(engine: GraphCompiler, executable: Any, function: Function, context: CompileContext) -> list[Any] | None:
    """Save, load and run the executable, and close it; None if the engine does not support saving."""
    inputs = make_random_inputs(function, 1)
    try:
        saved = bytes(engine.save(executable, context))
    except CompileRefused:
        return None
    executable.close()
    # A cache may load an executable for a Function with other names and another order of constants.
    fit = fit_inputs(function, inputs, engine)
    reordered = fit.replace(constants=dict(reversed(list(fit.constants.items()))))
    loaded = engine.load(memoryview(saved), rename_values(reordered, {}), context)
    loaded.prepare()
    results = list(loaded.run(inputs))
    loaded.close()
    return results


def _shares_memory(value: Any, other: Any) -> bool:
    return isinstance(value, np.ndarray) and isinstance(other, np.ndarray) and np.shares_memory(value, other)


def _make_strided(value: Any) -> Any:
    """Copy an array to a read-only, non-contiguous array. Return strings and other values as they are."""
    if not isinstance(value, np.ndarray) or value.dtype == DType.STRING.numpy:
        return value
    # Every other element of a larger array, so that no axis is contiguous.
    strided = np.empty((*value.shape, 2), value.dtype)[..., 0]
    strided[...] = value
    strided.flags.writeable = False
    return strided


def _alternate_pins(function: Function, engines: list[GraphCompiler], start: int) -> tuple[Pin, ...]:
    """Pin every second supported node, from index ``start``, to engine 0, and others to engine 1; empty if engine 0 gets none."""
    supported = [node.name for node in function.nodes if engines[0].why_not(node, function) is None][start::2]
    engine_indices = {node.name: 0 if node.name in supported else 1 for node in function.nodes}
    return pin_nodes(engines, engine_indices) if supported else ()


def _flip_options(engine: GraphCompiler) -> list[GraphCompiler]:
    """Make variants of the engine, each with one boolean option inverted."""
    flags = [f.name for f in fields(engine) if isinstance(getattr(engine, f.name), bool)]  # type: ignore[arg-type]  # engines are dataclasses
    return [replace(engine, **{name: not getattr(engine, name)}) for name in flags]  # type: ignore[type-var]


@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")  # refusing at compile is allowed, see test_fallback_law
class EngineSuite:
    """Tests of the contract, the laws, symbolic dims and the conformance cases for one engine."""

    engine: ClassVar[str | GraphCompiler]
    """The engine under test, as a name, spec or instance. Required."""
    gaps: ClassVar[tuple[KnownFailure, ...]] = ()
    """Known failures in the corpus. If a listed entry passes, the test fails."""
    conformance_gaps: ClassVar[tuple[KnownFailure, ...]] = ()
    """Known failures among the conformance cases. If a listed case passes, the test fails."""
    form: ClassVar[Form] = EVERYTHING
    """The generated Functions. Narrow it to avoid known defects of the engine's library."""
    tolerance: ClassVar[Tolerance] = tolerance_for("float32", "network")
    """Tolerance for float results of a whole generated Function, compared with the reference engine."""
    reference: ClassVar[str] = REFERENCE
    """The engine that computes the expected results."""
    passes_at_least: ClassVar[int] = 0
    """Minimum number of conformance cases that must pass."""

    @classmethod
    def create(cls) -> GraphCompiler:
        return registry.create(cls.engine)

    @classmethod
    def supported_form(cls, **narrower: Any) -> Form:
        """Restrict `form` to graphs of which the engine supports every node.

        Skips the test if the engine supports no recipe. Then only the corpus and the conformance cases test the engine.
        """
        # The filter applies while a graph grows, because hypothesis would give up if most complete graphs were rejected.
        form = replace(cls.form, accepts=SupportFilter(cls.create()), **narrower)
        if not form.recipes:
            pytest.skip(f"engine {cls.create().name!r} supports no operator of the generated graphs")
        return form

    @classmethod
    def draw_executable(cls, data: st.DataObject, **narrower: Any) -> tuple[Function, list[Any], Executable]:
        """Draw a supported Function without aliases; return the Function, inputs from seed 1, and its executable."""
        function = data.draw(functions(cls.supported_form(aliases=False, **narrower)))
        inputs = make_random_inputs(function, 1)
        return function, inputs, _call_or_skip(compile_alone, cls.create(), function, inputs)

    @classmethod
    def run_reference(cls, function: Function, inputs: Sequence[Any]) -> list[Any]:
        return run_alone(registry.create(cls.reference), function, inputs)

    @classmethod
    def compare_with_reference(cls, results: Sequence[Any], function: Function, seed: int) -> Comparison:
        """Compare results for random inputs from ``seed`` with those of the reference engine, accepting either side of a tie."""
        # The inputs are made again, in case the run wrote to them.
        inputs = make_random_inputs(function, seed)
        expected = cls.run_reference(function, make_random_inputs(function, seed))
        ties = find_ambiguities(function, inputs, cls.run_reference)
        names = [value.name for value in function.outputs]
        return compare_all(list(results), expected, cls.tolerance, ties=ties, names=names)

    @classmethod
    def list_engines(cls) -> list[GraphCompiler]:
        """List the engine under test, then the reference engine, so that every node is supported.

        If the reference engine is under test, the second engine is a `RecordingEngine` that delegates to it.
        """
        engine, reference = cls.create(), registry.create(cls.reference)
        return [engine, RecordingEngine(inner=reference.spec) if engine.name == reference.name else reference]

    def assert_agrees(self, results: Sequence[Any], function: Function, seed: int, description: str) -> None:
        """Fail unless the results agree with the reference engine; ``description`` names the run in the message."""
        comparison = self.compare_with_reference(results, function, seed)
        assert comparison, f"{description}: {comparison.message}\n{function}"

    @classmethod
    def judge(cls, results: Sequence[Any], entry: CorpusEntry) -> Comparison:
        """Compare results of a corpus entry with the expected outputs, except elements that declared deviations explain."""
        if comparison := entry.judge(results):
            return comparison
        return entry.judge(overlook_deviations(results, entry.function, entry.inputs, entry.expected, [cls.create()]))

    def assert_passed_or_gap(self, comparison: Comparison, entry: CorpusEntry) -> None:
        """Fail unless the corpus entry passed, or failed and is listed in `gaps`."""
        gap = next((gap for gap in self.gaps if gap.covers(entry.name)), None)
        if gap is not None:
            assert not comparison, f"the known failure {gap} passes; delete it from `gaps`"
        else:
            assert comparison, f"{entry.name} ({entry.why}): {comparison.message}"

    def test_its_spec_recreates_it(self) -> None:
        engine = self.create()
        if not isinstance(self.engine, GraphCompiler):
            assert registry.create(engine.spec) == engine, f"{engine.spec} makes {registry.create(engine.spec)!r}, not {engine!r}"
        assert engine.spec.partition("{")[0] == engine.name

    def test_its_version_is_text_that_stays(self) -> None:
        version = self.create().version()
        is_text = isinstance(version, str) and version.strip()
        assert is_text, f"version() returned {version!r}; it must be a string with everything that may change a result"
        assert self.create().version() == version, "version() changes from call to call, but it is part of the key of caches"

    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_the_reason_is_text_and_stays(self, name: str) -> None:
        engine, function = self.create(), find_entry(name).function
        for holder, node in function.walk():
            reason = engine.why_not(node, holder)
            is_answer = reason is None or (isinstance(reason, str) and reason.strip())
            assert is_answer, f"why_not returned {reason!r} for {node.op}; it must be None, or the reason as a sentence"
            assert engine.why_not(node, holder) == reason, f"why_not returned another reason in a second call for {node.op}"

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
    def test_unknown_operators_are_declined_without_an_exception(self, node: Node) -> None:
        function = Function((), (), (node,), opsets={"": 18, "no.such.domain": 1})
        reason = self.create().why_not(function.nodes[0], function)
        unknown = node.domain or node.op_type == "NoSuchOperator"
        assert reason or not unknown, f"why_not supports {node.op}, which is not defined in any specification"

    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_corpus_alone(self, name: str) -> None:
        entry = find_entry(name)
        inputs = entry.make_inputs()
        try:
            results = run_alone(self.create(), entry.function, inputs)
        except CompileRefused:
            return
        except Exception as error:  # noqa: BLE001  # any exception is reported with the entry's `why`
            self.assert_passed_or_gap(Comparison(f"{type(error).__name__}: {error}"), entry)
            return
        self.assert_passed_or_gap(self.judge(results, entry), entry)
        assert are_inputs_unchanged(entry.function, entry.inputs, inputs), "the engine wrote to an input"

    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_corpus_with_the_reference_behind(self, name: str) -> None:
        entry = find_entry(name)
        inputs = entry.make_inputs()
        try:
            with make_module(entry.function, self.list_engines()) as module:
                results = run_outputs(module(*inputs), entry.function)
        except Exception as error:  # noqa: BLE001  # any exception is reported with the entry's `why`
            self.assert_passed_or_gap(Comparison(f"{type(error).__name__}: {error}"), entry)
            return
        self.assert_passed_or_gap(self.judge(results, entry), entry)
        for before, after in entry.function.aliases:
            input_index = [v.name for v in entry.function.inputs].index(before)
            result = entry.expected[[v.name for v in entry.function.outputs].index(after)]
            assert compare_all([inputs[input_index]], [result]), f"input {before!r} does not hold {after!r} after the call"

    @bounded
    @given(data=st.data())
    def test_read_only_and_strided_inputs_are_accepted(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.supported_form(aliases=False)))
        inputs = [_make_strided(value) for value in make_random_inputs(function, 1)]
        self.assert_agrees(
            _call_or_skip(run_alone, self.create(), function, inputs), function, 1, "on read-only views with strides"
        )

    @bounded
    @given(data=st.data())
    def test_a_second_run_leaves_the_first_results_alone(self, data: st.DataObject) -> None:
        function, inputs, executable = self.draw_executable(data)
        first = list(executable.run(inputs))
        second = list(executable.run(make_random_inputs(function, 2)))
        executable.close()
        self.assert_agrees(second, function, 2, "results of the second run")
        self.assert_agrees(first, function, 1, "results of the first run, compared after the second run")

    @bounded
    @given(data=st.data())
    def test_fresh_outputs_share_no_memory(self, data: st.DataObject) -> None:
        function, inputs, executable = self.draw_executable(data)
        if not executable.outputs_are_fresh:
            return
        results = list(executable.run(inputs))
        executable.close()
        arrays = [*inputs, *(constant.array for constant in function.constants.values())]
        for index, result in enumerate(results):
            sharing = any(_shares_memory(result, other) for other in [*results[:index], *arrays])
            assert not sharing, f"outputs_are_fresh is True, and output {index} shares memory\n{function}"

    @pytest.mark.parametrize("size", [100, 100_000], ids=["small", "large"])
    def test_results_of_every_origin_are_right_and_independent(self, size: int) -> None:
        """Check outputs that are an input, a constant, or computed, copied, reshaped or repeated values, in two runs."""
        function, engine = _make_every_origin(size), self.create()
        inputs = make_random_inputs(function, 1)
        try:
            executable = compile_alone(engine, function, inputs) if SupportFilter(engine)(function) else None
        except CompileRefused:
            executable = None
        if executable is None:
            return
        runs = [list(executable.run(inputs)) for _ in range(2)]
        for results in runs:
            self.assert_agrees(results, function, 1, "outputs of every origin")
        arrays = [*inputs, *(constant.array for constant in function.constants.values()), *runs[0], *runs[1]]
        is_fresh = not any(_shares_memory(array, other) for index, array in enumerate(arrays) for other in arrays[:index])
        assert is_fresh or not executable.outputs_are_fresh, "outputs_are_fresh is True, and two results share memory"
        # Overwriting a fresh result must change neither a constant nor a later result.
        if executable.outputs_are_fresh:
            for result in runs[1]:
                if result.flags.writeable:
                    result[...] = 7
        self.assert_agrees(executable.run(inputs), function, 1, "outputs of every origin, after earlier ones were written to")
        executable.close()
        self.assert_agrees(runs[0], function, 1, "results after close()")

    @bounded
    @given(data=st.data())
    def test_memory_uses_have_a_name_and_a_reason(self, data: st.DataObject) -> None:
        _, _, executable = self.draw_executable(data)
        uses = executable.memory()
        executable.close()
        for use in uses or ():
            is_described = isinstance(use, MemoryUse) and use.name.strip() and use.why.strip()
            assert is_described, f"memory() returned {use!r}; it must be a MemoryUse with a name and a reason"
            assert use.nbytes is None or use.nbytes >= 0, f"memory() returned {use!r}; nbytes must be None or 0 or more"

    @bounded
    @given(data=st.data())
    def test_caller_buffers_hold_the_results(self, data: st.DataObject) -> None:
        function, inputs, executable = self.draw_executable(data, passthrough=False)
        buffers = [np.empty_like(result, order="C") for result in executable.run(inputs)]
        subset = [np.empty_like(buffer) if data.draw(st.booleans()) else None for buffer in buffers]  # None: a new array
        results = [list(executable.run(inputs, RunOptions(out=out))) for out in (buffers, subset)]
        executable.close()
        for returned, out in zip(results, (buffers, subset), strict=True):
            are_buffers = all(buffer is None or result is buffer for result, buffer in zip(returned, out, strict=True))
            assert are_buffers, "run() with options.out must return the caller's buffers themselves; it returned other arrays"
            self.assert_agrees(returned, function, 1, "the results in the buffers of options.out")

    @bounded
    @given(data=st.data())
    def test_a_bound_call_follows_its_inputs_and_fills_its_buffers(self, data: st.DataObject) -> None:
        function, inputs, executable = self.draw_executable(data, passthrough=False, symbolic=False)
        inputs = [np.array(value, order="C") for value in inputs]
        results = list(executable.fast_call()(*inputs))
        self.assert_agrees(results, function, 1, "what fast_call() returned")
        buffers = [np.empty_like(result, order="C") for result in results]
        call = executable.bind(inputs, buffers)
        for seed in (2, 3):
            for target, value in zip(inputs, make_random_inputs(function, seed), strict=True):
                target[...] = value
            call()
            self.assert_agrees(buffers, function, seed, "a bound call after its inputs were overwritten")
        executable.bind_outputs(buffers)(*[_make_strided(value) for value in make_random_inputs(function, 4)])
        self.assert_agrees(buffers, function, 4, "a call into fixed buffers")
        executable.close()

    @bounded
    @given(data=st.data())
    def test_outputs_may_share_memory_with_inputs_as_proposed(self, data: st.DataObject) -> None:
        function, inputs, executable = self.draw_executable(data, passthrough=False)
        inputs = [np.array(value, order="C") for value in inputs]
        buffers = [np.empty_like(result, order="C") for result in executable.run(inputs)]
        input_types, buffer_types = ([(array.dtype, array.shape) for array in arrays] for arrays in (inputs, buffers))
        pairs = {source: target for source, target in executable.inplace_pairs() if input_types[source] == buffer_types[target]}
        sources = {target: source for source, target in pairs.items()}  # one pair for each input and each output
        for target, source in sources.items():
            buffers[target] = inputs[source].view()
        executable.run(inputs, RunOptions(out=buffers))
        executable.close()
        self.assert_agrees(buffers, function, 1, f"run with output: input in the same memory, by inplace_pairs(): {sources}")

    @settings(bounded, max_examples=5)
    @given(data=st.data())
    def test_several_threads_may_run_at_once(self, data: st.DataObject) -> None:
        function, _, executable = self.draw_executable(data)
        barrier = threading.Barrier(8)

        def run(seed: int) -> list[list[Any]]:
            barrier.wait()
            return [list(executable.run(make_random_inputs(function, seed))) for _ in range(5)]

        with ThreadPoolExecutor(8) as pool:
            runs = list(pool.map(run, range(8)))
        executable.close()
        for seed, results in enumerate(runs):
            for returned in results:
                self.assert_agrees(returned, function, seed, "run by several threads at once")

    @settings(bounded, max_examples=10)
    @given(data=st.data())
    def test_a_saved_executable_runs_the_same(self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
        function, _, executable = self.draw_executable(data)
        context = CompileContext(workdir=tmp_path_factory.mktemp("saved"), is_shared=True)
        results = _save_and_run(self.create(), executable, function, context)
        executable.close()
        if results is not None:
            self.assert_agrees(results, function, 1, "saved, loaded for the Function with other names, and run")

    @bounded
    @given(data=st.data(), seed=st.integers(0, 99))
    def test_it_agrees_with_the_reference(self, data: st.DataObject, seed: int) -> None:
        function = data.draw(functions(self.supported_form()))
        results = _call_or_skip(run_alone, self.create(), function.replace(aliases=()), make_random_inputs(function, seed))
        self.assert_agrees(results, function, seed, "on the engine alone")

    @bounded
    @given(data=st.data())
    def test_cut_law(self, data: st.DataObject) -> None:
        """Law 1: any partition, run region by region, gives the same results."""
        function = data.draw(functions(self.supported_form(aliases=False)))
        region_labels = data.draw(labels(function))
        run = partial(_call_or_skip, run_alone, self.create())
        results = run_regions(function, region_labels, make_random_inputs(function, 3), run)
        self.assert_agrees(results, function, 3, f"in regions labelled {region_labels}")

    @bounded
    @given(data=st.data())
    def test_order_law(self, data: st.DataObject) -> None:
        """Law 3: the order of nodes and the names of values affect neither the partition nor the signature."""
        function = as_planned(data.draw(functions(self.form)))
        reordered = function.replace(nodes=tuple(data.draw(st.permutations(function.nodes))))
        renamed = rename_values(function, {"v1": "zz", "v3": "a"})
        engine, context = self.create(), CompileContext()
        for other, change in ((reordered, "the order of the nodes"), (renamed, "the names of values")):
            assert self._list_regions(other) == self._list_regions(function), f"{change} changes the regions\n{function}"
            same = make_signature(other, engine, context).key == make_signature(function, engine, context).key
            assert same, f"{change} changes the signature\n{function}"

    def _list_regions(self, function: Function) -> list[tuple[str, str]]:
        plan: Plan = partition(function, self.list_engines(), strict=True)
        return [(launch.engine, launch.function.fingerprint) for launch in plan.launches]

    @bounded
    @given(data=st.data())
    def test_fallback_law(self, data: st.DataObject) -> None:
        """Law 4: with the reference engine as fallback, every Function runs and gives the right results."""
        function = data.draw(functions(self.form))
        with make_module(function, self.list_engines()) as module:
            results = run_outputs(module(*make_random_inputs(function, 4)), function)
        self.assert_agrees(results, function, 4, "with the reference engine behind it")

    @bounded
    @given(data=st.data(), alternate=st.integers(0, 1), all_supported=st.booleans())
    def test_mixture_law(self, data: st.DataObject, alternate: int, all_supported: bool) -> None:
        """Law 5: a Function whose nodes alternate between two engines gives the same results as on one engine."""
        form = self.supported_form() if all_supported else self.form
        function = as_planned(data.draw(functions(form)))  # pins must name nodes that exist after optimization
        engines = self.list_engines()
        pins = _alternate_pins(function, engines, alternate)
        assume(pins)
        try:
            with make_module(function, engines, pins=pins) as module:
                results = run_outputs(module(*make_random_inputs(function, 5)), function)
        except PlanError as error:
            if "failed to compile" in str(error):
                raise
            reject()  # a pinned region has no fallback if the engine refuses it
        self.assert_agrees(results, function, 5, f"with {', '.join(map(str, pins))}")

    @bounded
    @given(data=st.data())
    def test_round_trip_law(self, data: st.DataObject) -> None:
        """Law 6: `why_not` returns the same reasons after a round trip through ONNX or text."""
        function = infer_shapes(data.draw(functions(self.form)))
        engine = self.create()
        reasons = [engine.why_not(node, function) for node in function.nodes]
        for again in (onnx.load(onnx.to_model(function).SerializeToString()), parse(to_text(function))):
            assert [engine.why_not(node, again) for node in again.nodes] == reasons, (
                f"why_not depends on something that files do not store\n{function}"
            )

    @bounded
    @given(data=st.data())
    def test_signature_law(self, data: st.DataObject) -> None:
        """Law 7: equal engines have equal signatures. Another thread count or option value changes the signature."""
        function = data.draw(functions(self.form))
        engine, context = self.create(), CompileContext()
        expected = make_signature(function, engine, context)
        assert make_signature(function, self.create(), context).key == expected.key, "an equal engine has another signature"
        others = [(engine, replace(context, threads=context.threads + 1)), *((other, context) for other in _flip_options(engine))]
        for other, new_context in others:
            assert make_signature(function, other, new_context).key != expected.key, f"{other!r} has the signature of {engine!r}"

    @pytest.mark.parametrize("opening", OPENINGS)
    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_corpus_with_symbolic_dims(self, name: str, opening: Opening) -> None:
        entry = find_entry(name)
        if any(gap.covers(name) for gap in self.gaps):
            return  # a known failure, at any size

        make = run_at_sizes(self.create(), opening, fold=False)
        try:
            with np.errstate(all="ignore"):
                comparison = self.judge(make(entry.function, entry.inputs).run(entry.make_inputs()), entry)
        except CompileRefused:
            return
        except Exception as error:  # noqa: BLE001  # any exception is reported with the entry's `why`
            comparison = Comparison(f"{type(error).__name__}: {error}")
        assert comparison, f"{name} with opening={opening!r} ({entry.why}): {comparison.message}"

    @pytest.mark.slow
    @pytest.mark.parametrize("opening", OPENINGS[:1])  # for the others: `xrt conformance --opening`
    def test_node_tests_with_symbolic_dims(self, opening: Opening) -> None:
        engine = self.create()
        if not engine.supports_dynamic_shapes:
            return
        # Some cases fail only with static sizes, so a known failure may pass here.
        gaps = [replace(gap, everywhere=False) for gap in self.conformance_gaps]
        report = conform(engine, groups=["node"], opening=opening, isolate=why_not_isolated(engine) is None, gaps=gaps)
        assert report.ok, str(report)

    @pytest.mark.slow
    def test_conformance(self) -> None:
        engine = self.create()
        report = conform(engine, isolate=why_not_isolated(engine) is None, gaps=self.conformance_gaps)
        assert report.ok, str(report)
        passed = report.counts[ResultWord.PASSED]
        assert passed >= self.passes_at_least, f"{passed} conformance cases passed; at least {self.passes_at_least} must pass"
