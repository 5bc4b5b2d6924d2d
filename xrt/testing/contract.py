"""The contract, as tests: what every engine promises by deriving from `GraphCompiler` and `Executable`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrt.comparison import Comparison, compare_all
from xrt.engines import CompileContext, GraphCompiler, MemoryUse, RunOptions
from xrt.engines.contract import registry
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.testing.corpus import CORPUS, find_entry
from xrt.testing.renaming import rename_values
from xrt.testing.running import make_module
from xrt.testing.strategies import functions, make_random_inputs
from xrt.testing.suite_base import SuiteBase, alone_or_skip, bounded, compile_or_skip, run_outputs
from xrt.testing.supported import SupportFilter
from xrt.verify.execution import compile_alone, fit_inputs, run_alone

__all__ = ["Contract"]


class Contract(SuiteBase):
    """What is asked of the engine by its contract: on the corpus, and on generated Functions of which it takes every node."""

    # ------------------------------------------------------------------ the engine

    def test_its_spec_makes_it_again(self) -> None:
        engine = self.made()
        if not isinstance(self.engine, GraphCompiler):
            assert registry.create(engine.spec) == engine, f"{engine.spec} makes {registry.create(engine.spec)!r}, not {engine!r}"
        assert engine.spec.partition("{")[0] == engine.name

    def test_its_version_is_text_that_stays(self) -> None:
        version = self.made().version()
        is_text = isinstance(version, str) and version.strip()
        assert is_text, f"version() gives {version!r}; it must be text that names what may change a result"
        assert self.made().version() == version, "version() changes from call to call; it is a part of what a cache looks up"

    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_the_reason_is_text_and_stays(self, name: str) -> None:
        engine, function = self.made(), find_entry(name).function
        for holder, node in function.walk():
            reason = engine.why_not(node, holder)
            is_answer = reason is None or (isinstance(reason, str) and reason.strip())
            assert is_answer, f"why_not gives {reason!r} for {node.op}; it must be None, or the reason as a sentence"
            assert engine.why_not(node, holder) == reason, f"why_not changes its mind about {node.op}"

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
        unknown = node.domain or node.op_type == "NoSuchOperator"
        assert reason or not unknown, f"why_not takes {node.op}, an operator that nobody knows"

    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_corpus_alone(self, name: str) -> None:
        one = find_entry(name)
        given = one.make_inputs()
        try:
            results = run_alone(self.made(), one.function, given)
        except CompileRefused:
            return
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is reported with the entry's story
            self.check(Comparison(f"{type(error).__name__}: {error}"), one)
            return
        self.check(one.judge(results), one)
        aliased = {before for before, _ in one.function.aliases}
        kept = [i for i, value in enumerate(one.function.inputs) if value.name not in aliased]
        assert compare_all([given[i] for i in kept], [one.inputs[i] for i in kept]), "the engine wrote to an input"

    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_corpus_with_the_reference_behind(self, name: str) -> None:
        one = find_entry(name)
        given = one.make_inputs()
        try:
            with make_module(one.function, self.list_engines()) as module:
                results = run_outputs(module(*given), one.function)
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is reported with the entry's story
            self.check(Comparison(f"{type(error).__name__}: {error}"), one)
            return
        self.check(one.judge(results), one)
        for before, after in one.function.aliases:
            place = [v.name for v in one.function.inputs].index(before)
            result = one.expected[[v.name for v in one.function.outputs].index(after)]
            assert compare_all([given[place]], [result]), f"input {before!r} does not hold {after!r} after the call"

    # ------------------------------------------------------------------ its executables

    @bounded
    @given(data=st.data())
    def test_read_only_and_strided_inputs_are_taken(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.supported_form(aliases=False)))
        inputs = [_awkward(value) for value in make_random_inputs(function, 1)]
        self.same(alone_or_skip(self.made(), function, inputs), function, 1, "on read-only views with strides")

    @bounded
    @given(data=st.data())
    def test_a_second_run_leaves_the_first_results_alone(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.supported_form(aliases=False)))
        executable = compile_or_skip(self.made(), function, make_random_inputs(function, 1))
        first = list(executable.run(make_random_inputs(function, 1)))
        second = list(executable.run(make_random_inputs(function, 2)))
        executable.close()
        self.same(second, function, 2, "results of the second run")
        self.same(first, function, 1, "results of the first run, looked at after the second")

    @bounded
    @given(data=st.data())
    def test_results_that_are_said_to_be_fresh_are(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.supported_form(aliases=False)))
        inputs = make_random_inputs(function, 1)
        executable = compile_or_skip(self.made(), function, inputs)
        if not executable.outputs_are_fresh:
            return
        results = list(executable.run(inputs))
        executable.close()
        held = [*inputs, *(constant.array for constant in function.constants.values())]
        for index, result in enumerate(results):
            sharing = any(_share(result, other) for other in [*results[:index], *held])
            assert not sharing, f"outputs_are_fresh is True, and output {index} shares memory\n{function}"

    @pytest.mark.parametrize("size", [100, 100_000], ids=["small", "large"])
    def test_results_of_every_origin_are_right_and_of_their_own(self, size: int) -> None:
        """Outputs that are an input, a constant, computed, passed on, and the same twice, in two runs."""
        function, engine = _of_every_origin(size), self.made()
        inputs = make_random_inputs(function, 1)
        try:
            executable = compile_alone(engine, function, inputs) if SupportFilter(engine)(function) else None
        except CompileRefused:
            executable = None
        if executable is None:
            return
        runs = [list(executable.run(inputs)) for _ in range(2)]
        for results in runs:
            self.same(results, function, 1, "outputs of every origin")
        held = [*inputs, *(constant.array for constant in function.constants.values()), *runs[0], *runs[1]]
        is_fresh = not any(_share(one, other) for place, one in enumerate(held) for other in held[:place])
        assert is_fresh or not executable.outputs_are_fresh, "outputs_are_fresh is True, and two results share memory"
        for result in (result for result in runs[1] if executable.outputs_are_fresh and result.flags.writeable):
            result[...] = 7
        self.same(executable.run(inputs), function, 1, "outputs of every origin, after earlier ones were written to")
        executable.close()
        self.same(runs[0], function, 1, "results after close()")

    @bounded
    @given(data=st.data())
    def test_what_it_tells_of_its_memory_is_sound(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.supported_form(aliases=False)))
        executable = compile_or_skip(self.made(), function, make_random_inputs(function, 1))
        uses = executable.memory()
        executable.close()
        for use in uses or ():
            said = isinstance(use, MemoryUse) and use.name.strip() and use.why.strip()
            assert said, f"memory() tells {use!r}; it must be a MemoryUse with a name and the reason as a sentence"
            assert use.nbytes is None or use.nbytes >= 0, f"memory() tells {use!r}; bytes are None, where unknown, or a number"

    @bounded
    @given(data=st.data())
    def test_given_buffers_hold_the_results(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.supported_form(aliases=False, passthrough=False)))
        inputs = make_random_inputs(function, 1)
        executable = compile_or_skip(self.made(), function, inputs)
        buffers = [np.empty_like(result, order="C") for result in executable.run(inputs)]
        some = [np.empty_like(buffer) if data.draw(st.booleans()) else None for buffer in buffers]
        results = [list(executable.run(inputs, RunOptions(out=out))) for out in (buffers, some)]
        executable.close()
        for found, out in zip(results, (buffers, some), strict=True):
            returned = all(buffer is None or result is buffer for result, buffer in zip(found, out, strict=True))
            assert returned, "run() with options.out must return the given buffers themselves; it returned other arrays"
            self.same(found, function, 1, "the results where buffers are given as options.out")

    @bounded
    @given(data=st.data())
    def test_a_bound_call_follows_its_inputs_and_fills_its_buffers(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.supported_form(aliases=False, passthrough=False, symbolic=False)))
        inputs = [np.array(value, order="C") for value in make_random_inputs(function, 1)]
        executable = compile_or_skip(self.made(), function, inputs)
        results = list(executable.fast_call()(*inputs))
        self.same(results, function, 1, "what direct() returned")
        buffers = [np.empty_like(result, order="C") for result in results]
        call = executable.bind(inputs, buffers)
        for seed in (2, 3):
            for held, value in zip(inputs, make_random_inputs(function, seed), strict=True):
                held[...] = value
            call()
            self.same(buffers, function, seed, "a bound call, on what its inputs held then")
        executable.bind_outputs(buffers)(*[_awkward(value) for value in make_random_inputs(function, 4)])
        self.same(buffers, function, 4, "a call into fixed buffers")
        executable.close()

    @bounded
    @given(data=st.data())
    def test_what_is_proposed_in_place_may_lie_there(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.supported_form(aliases=False, passthrough=False)))
        inputs = [np.array(value, order="C") for value in make_random_inputs(function, 1)]
        executable = compile_or_skip(self.made(), function, inputs)
        buffers = [np.empty_like(result, order="C") for result in executable.run(inputs)]
        over = {source: target for source, target in executable.inplace_pairs() if _alike(inputs[source], buffers[target])}
        for target, source in {target: source for source, target in over.items()}.items():
            buffers[target] = inputs[source].view()
        executable.run(inputs, RunOptions(out=buffers))
        executable.close()
        self.same(buffers, function, 1, f"run with outputs over inputs as in_place() proposes, {over}")

    @settings(bounded, max_examples=5)
    @given(data=st.data())
    def test_several_threads_may_run_at_once(self, data: st.DataObject) -> None:
        function = data.draw(functions(self.supported_form(aliases=False)))
        executable = compile_or_skip(self.made(), function, make_random_inputs(function, 0))
        barrier = threading.Barrier(8)

        def run(seed: int) -> list[list[Any]]:
            barrier.wait()
            return [list(executable.run(make_random_inputs(function, seed))) for _ in range(5)]

        with ThreadPoolExecutor(8) as pool:
            runs = list(pool.map(run, range(8)))
        executable.close()
        for seed, results in enumerate(runs):
            for found in results:
                self.same(found, function, seed, "run by several threads at once")

    @settings(bounded, max_examples=10)
    @given(data=st.data())
    def test_a_saved_executable_runs_the_same(self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
        function = data.draw(functions(self.supported_form(aliases=False)))
        engine, inputs = self.made(), make_random_inputs(function, 1)
        executable = compile_or_skip(engine, function, inputs)
        context = CompileContext(workdir=tmp_path_factory.mktemp("saved"), is_shared=True)
        results = _saved_and_run(engine, executable, function, context)
        executable.close()
        if results is not None:
            self.same(results, function, 1, "saved, loaded for the same Function under other names, and run")


def _of_every_origin(size: int) -> Function:
    flat, folded = (TensorType(DType.FLOAT32, shape) for shape in ((size,), (2, size // 2)))
    types = dict.fromkeys(("x", "passed", "y", "again", "c", "held"), flat) | {"bent": folded, "turned": folded}
    nodes = [Node("Neg", ("x",), ("y",))]
    nodes += [Node("Identity", (source,), (name,)) for source, name in (("x", "passed"), ("y", "again"), ("c", "held"))]
    nodes += [Node("Reshape", (source, "shape"), (name,)) for source, name in (("x", "bent"), ("y", "turned"))]
    constants = {"c": Constant(np.arange(size, dtype=np.float32)), "shape": Constant(np.array([2, size // 2]))}
    outputs = tuple(Value(name, types[name]) for name in (*types, "y"))
    return Function((Value("x", flat),), outputs, tuple(nodes), constants, {"": 18})


def _saved_and_run(engine: GraphCompiler, executable: Any, function: Function, context: CompileContext) -> list[Any] | None:
    """Return what the loaded executable makes of the inputs; None for an engine that does not save."""
    inputs = make_random_inputs(function, 1)
    try:
        saved = bytes(engine.save(executable, context))
    except CompileRefused:
        return None
    executable.close()
    fit = fit_inputs(function, inputs, engine)
    loaded = engine.load(memoryview(saved), rename_values(_reversed(fit), {}), context)
    loaded.prepare()
    results = list(loaded.run(inputs))
    loaded.close()
    return results


def _reversed(function: Function) -> Function:
    return function.replace(constants=dict(reversed(list(function.constants.items()))))


def _alike(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape)


def _share(one: Any, other: Any) -> bool:
    both = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return both and np.shares_memory(one, other)


def _awkward(value: Any) -> Any:
    """Return the same array as a read-only view with strides of its own."""
    if not isinstance(value, np.ndarray) or value.dtype == DType.STRING.numpy:
        return value
    wide = np.empty((*value.shape, 2), value.dtype)
    wide[..., 0] = value
    view = wide[..., 0]
    view.flags.writeable = False
    return view
