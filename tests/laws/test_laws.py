"""Laws of every module: order, reasons, round trips, fallback, mixtures, buckets, state and signatures."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from tests.passes.test_padding import run_padded
from xrt.cache import CompileCache, make_signature
from xrt.comparison import BIT_EQUAL, Comparison, Tolerance, compare_all, tolerance_for
from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import XRTError
from xrt.formats import onnx
from xrt.formats.text import parse, to_text
from xrt.graph import DType, Function, State, TensorType, Value, declare_states
from xrt.module.state import StatefulFunction
from xrt.partition import Pin, partition
from xrt.passes import infer_shapes
from xrt.passes.padding import PaddedFunction, pad_dims
from xrt.testing.corpus import CORPUS, find_entry
from xrt.testing.corpus.entry import f32, graph, node
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine
from xrt.testing.generate import make_seeded_function
from xrt.testing.running import as_planned, make_module, pin_nodes, run_outputs
from xrt.testing.strategies import EVERYTHING, Form, functions, make_random_inputs
from xrt.verify.comparison import find_ambiguities
from xrt.verify.execution import run_alone

bounded = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def doubles(count: int = 3) -> list[GraphCompiler]:
    """Return engines that all compute as toy does, and that a plan cannot take for one another."""
    return [RecordingEngine(mark=f"double{number}") for number in range(count)]


@st.composite
def living(draw: st.DrawFn, form: Form = EVERYTHING) -> Function:
    """Return a strategy for Functions without dead nodes: a pin that names one would be a mistake, and is refused."""
    return as_planned(draw(functions(form)))


@st.composite
def pins(draw: st.DrawFn, function: Function, engines: Sequence[GraphCompiler]) -> tuple[Pin, ...]:
    """Return a strategy for pins that put every node on some engine of the list."""
    return pin_nodes(engines, {node.name: draw(st.integers(0, len(engines) - 1)) for node in function.nodes})


def on_toy(function: Function, inputs: Sequence[Any]) -> list[Any]:
    """Run the whole function on toy."""
    return run_alone(registry.create(REFERENCE), function, inputs)


def same_bits(results: Sequence[Any], function: Function, seed: int) -> Comparison:
    """Compare results with toy's own for the same inputs, to the last bit."""
    return compare_all(list(results), on_toy(function, make_random_inputs(function, seed)), BIT_EQUAL)


def takers() -> list[GraphCompiler]:
    """Return two engines that take different operators, and one that takes all."""
    return [RecordingEngine(takes="A*|S*|C*|I*|Re*"), RecordingEngine(takes="T*|M*|Add|L*"), *doubles(1)]


SCRIPT = """
from tests.laws.test_laws import takers
from tests.partition.test_planner import by_hash, run_search
from xrt.cache import make_signature
from xrt.engines import CompileContext
from xrt.partition import partition
from xrt.passes import infer_shapes
from xrt.placement import predict_cost
from xrt.testing.generate import make_seeded_function
for seed in range(40):
    function = infer_shapes(make_seeded_function(seed))
    plan = partition(function, takers(), strict=True)
    print(plan)
    print([launch.function.fingerprint for launch in plan.launches])
    print(make_signature(function, takers()[0], CompileContext()))
for seed in range(6):
    function = infer_shapes(make_seeded_function(seed))
    search = run_search(function, takers(), by_hash, rounds=2)
    print(search.table.to_document(), *search.plans)
    print(*(f"{plan.function} {predict_cost(function, plan, search.table)}" for plan in search.plans))
"""


@pytest.mark.slow
def test_the_hash_seed_and_the_process_change_nothing():
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    ]
    assert "xrt_recording_0" in printed[0]
    assert printed[0] == printed[1] == printed[2]


@pytest.mark.slow
@bounded
@given(function=functions())
def test_a_declined_node_carries_what_the_engine_said(function):
    function = infer_shapes(function)
    first = RecordingEngine(takes="Relu|Add")
    plan = partition(function, [first, RecordingEngine(mark="last")], strict=True)
    results = {node.name: first.why_not(node, function) for node in function.nodes}
    for reason in plan.reasons:
        if results[reason.node] is not None:
            assert results[reason.node] in reason.text


@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")
def test_a_refusal_at_compile_becomes_the_reason():
    function = next(f for f in map(make_seeded_function, range(50)) if len(f.nodes) > 2)
    faulty = FaultyEngine(where="compile", how="refuse")
    with make_module(function, [faulty, "toy"]) as module:
        module(*make_random_inputs(function, 0))
        reasons = {r.node: r.text for r in module.plan.reasons if r.engine == faulty.spec}
    assert set(reasons) == {node.name for node in function.nodes}
    assert all("set to refuse" in text for text in reasons.values())


def check_round_trips(function: Function) -> None:
    assert parse(to_text(function)) == function
    again = onnx.load(onnx.to_model(function).SerializeToString())
    assert again == function
    assert again.fingerprint == function.fingerprint
    assert pickle.loads(pickle.dumps(function)) == function


@pytest.mark.slow
@bounded
@given(function=functions(), inferred=st.booleans())
def test_a_function_comes_back_equal_from_text_onnx_and_pickle(function, inferred):
    check_round_trips(infer_shapes(function) if inferred else function)


@pytest.mark.parametrize("name", [e.name for e in CORPUS])
def test_an_entry_of_the_corpus_comes_back_equal(name):
    check_round_trips(find_entry(name).function)


BEFORE_THE_RUN = [("why_not", "refuse"), ("compile", "refuse"), ("compile", "raise"), ("prepare", "raise")]
ANYWHERE = [*BEFORE_THE_RUN, ("run", "raise"), ("run", "missing")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")
@pytest.mark.parametrize(("where", "how"), ANYWHERE)
@settings(bounded, max_examples=25)
@given(data=st.data(), nth=st.integers(0, 2))
def test_what_fails_goes_to_toy(where, how, data, nth):
    function = data.draw(functions()).replace(aliases=())  # a call that updates in place is not repeated
    with make_module(function, [FaultyEngine(where=where, how=how, nth=nth), REFERENCE], strict=False) as module:
        result = same_bits(run_outputs(module(*make_random_inputs(function, 1)), function), function, 1)
    assert result, result.message


@pytest.mark.parametrize("name", [e.name for e in CORPUS])
@pytest.mark.parametrize("parity", [0, 1])
def test_corpus_alternates_between_doubles(name, parity):
    entry = find_entry(name)
    engines = [RecordingEngine(mark="even"), RecordingEngine(mark="odd")]
    nodes = as_planned(entry.function).nodes
    pins = pin_nodes(engines, {node.name: (place + parity) % 2 for place, node in enumerate(nodes)})
    with make_module(entry.function, engines, pins=pins) as module:
        result = entry.judge(run_outputs(module(*entry.make_inputs()), entry.function))
        if len(nodes) > 1:
            assert len(module.plan.launches) > 1, "a mixture counts only if it is one"
    assert result, result.message


@pytest.mark.parametrize(
    "engines", [["toy"], ["ort"], [RecordingEngine(takes="Add"), "toy"], [RecordingEngine(takes="Neg"), "toy"]], ids=str
)
def test_an_update_in_place_reaches_the_input_after_everyone_has_read_the_old_value(engines):
    """A region on an engine without in-place kernels did not write back, or a later region read what had been overwritten."""
    function = graph(
        {"state": "float32[3]"},
        {"new": "float32[3]", "old": "float32[3]", "state": "float32[3]"},
        node("Add", "state one", "new"),
        node("Tanh", "new", "later"),
        node("Neg", "state", "negative"),
        node("Add", "negative later", "old"),
        constants={"one": f32(1, 1, 1)},
        aliases=(("state", "new"),),
    )
    start = f32(1, 2, 3)
    with make_module(function, engines) as module:
        state = start.copy()
        new, old, before = module(state)
    np.testing.assert_array_equal(new, start + 1)
    np.testing.assert_allclose(old, np.tanh(start + 1) - start, rtol=1e-6)
    np.testing.assert_array_equal(before, start)
    np.testing.assert_array_equal(state, start + 1)


OPEN = Form(aliases=False, symbolic=False, empty=False)
DIM_NAMES = {3: "N", 2: "M"}


@st.composite
def opened(draw: st.DrawFn, form: Form = OPEN) -> Function:
    """Return a strategy for Functions with named extents of inputs."""
    function = draw(living(form))
    inputs = []
    for value in function.inputs:
        shape = tuple(DIM_NAMES[d] if d in DIM_NAMES and draw(st.integers(0, 2)) else d for d in value.type.shape)
        inputs.append(Value(value.name, TensorType(value.type.dtype, shape)))
    outputs = tuple(Value(value.name) for value in function.outputs)
    return infer_shapes(function.replace(inputs=tuple(inputs), outputs=outputs, types={}))


def quarters(function: Function, seed: int, sizes: dict[str, int]) -> list[Any]:
    """Return inputs whose sums and products are exact."""
    values = make_random_inputs(function, seed, sizes)
    return [np.rint(value * 4) / value.dtype.type(4) if value.dtype.kind == "f" else value for value in values]


def close_for(function: Function, padded: PaddedFunction) -> Tolerance:
    """Return how close results must be: to the last bit, where padding changes the order of no sum.

    A mask adds zeros to a sum, and NumPy's library for products adds up in another order for another number of rows.
    """
    adds_otherwise = padded.fed or any(node.op_type in ("Conv", "Gemm", "MatMul") for node in function.nodes)
    return Tolerance(rtol=1e-5, atol=1e-6, peak=1e-6) if adds_otherwise else BIT_EQUAL


@pytest.mark.slow
@bounded
@given(function=opened(), n=st.integers(1, 6), m=st.integers(1, 6), more=st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_padded_begins_with_exact(function, n, m, more):
    padded = pad_dims(function)
    assume(padded.dims)
    for sizes in ({"N": 3, "M": 2}, {"N": n, "M": m}):
        larger = {name: size + extra for (name, size), extra in zip(sizes.items(), more, strict=True)}
        values = quarters(function, 11, sizes)
        try:
            expected = on_toy(function, values)
        except XRTError:
            continue  # a size that the model cannot have
        if padded.allows(sizes, sizes) and padded.allows(sizes, larger):
            difference = compare_all(run_padded(padded, values, sizes, larger), expected, close_for(function, padded))
            assert difference, difference.message


RECURRENT = Form(aliases=False, symbolic=False)
PLAIN = Form(dtypes=Form().dtypes[:3], aliases=False, symbolic=False)
STEPS = 3


@st.composite
def recurrent(draw: st.DrawFn, form: Form = RECURRENT) -> Function:
    """Return a strategy for Functions some of whose outputs are the next values of inputs."""
    function = draw(living(form))
    results = [value for at, value in enumerate(function.outputs) if value not in function.outputs[:at]]
    states = []
    for value in function.inputs:
        alike = [output for output in results if output.type is not None and output.type == value.type]
        if alike and draw(st.integers(0, 3)):
            states.append(State(value.name, alike[draw(st.integers(0, len(alike) - 1))].name))
            results = [output for output in results if output.name != states[-1].output]
    assume(states)
    return declare_states(function, states)


def run_both(module: Any, function: Function, seed: int, compare: Any) -> None:
    """Make steps of a session, each compared with the functional form of what the state was before it."""
    session, of = module.new_session(), StatefulFunction(module, function)
    plain = function.replace(aliases=())
    values = dict(zip((v.name for v in function.inputs), make_random_inputs(function, seed), strict=True))
    for name in of.states:
        session.state[name] = values[name]
    for step in range(STEPS):
        fresh = dict(zip((v.name for v in function.inputs), make_random_inputs(function, seed + step), strict=True))
        before = session.state
        results = [before[v.name] if v.name in of.states else fresh[v.name] for v in function.inputs]
        expected = on_toy(plain, [np.copy(x) for x in results])
        result = session(*[fresh[v.name] for v in of.other_inputs])
        output = () if not of.returned else (result,) if len(of.returned) == 1 else result
        items = [*output, *(session.state[name] for name in of.states)]
        wanted = [*(expected[place] for place in of.returned), *(expected[place] for place in of.next_values.values())]
        compare(items, wanted, plain, results)


def to_the_bit(actual: Any, wanted: Any, *_: Any) -> None:
    same = compare_all(actual, wanted, BIT_EQUAL)
    assert same, same.message


def closely(function: Function) -> Any:
    """Return a comparison for what several kernels compute."""

    def compare(actual: Any, wanted: Any, plain: Function, inputs: Any) -> None:
        of, ties = StatefulFunction(None, function), find_ambiguities(plain, inputs, on_toy)
        in_order = [ties[place] for place in (*of.returned, *of.next_values.values())]
        same = compare_all(actual, wanted, tolerance_for("float32", "network"), ties=in_order)
        assert same, same.message

    return compare


@pytest.mark.slow
@settings(bounded)
@given(function=recurrent(), seed=st.integers(0, 3))
def test_a_session_on_toy_equals_the_functional_form(function, seed):
    with make_module(function, [REFERENCE]) as module:
        run_both(module, function, seed, to_the_bit)


@pytest.mark.slow
@settings(bounded)
@given(data=st.data(), function=recurrent())
def test_a_session_over_any_mixture_equals_the_functional_form(data, function):
    engines = doubles()
    with make_module(function, engines, pins=data.draw(pins(function, engines)), fold_constants=False) as module:
        run_both(module, function, 1, to_the_bit)


@pytest.mark.slow
@settings(bounded, max_examples=40)
@given(data=st.data(), function=recurrent())
def test_a_session_over_regions_that_write_in_place_equals_the_functional_form(data, function):
    engines = [registry.create("toy{native=off}"), registry.create("toy")]
    with make_module(function, engines, pins=data.draw(pins(function, engines))) as module:
        run_both(module, function, 2, closely(function))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")  # iree's compiler refuses some regions
@pytest.mark.parametrize("engine", ["ort", "openvino", "xla", "torch", "tvm", "iree"])
@settings(bounded, max_examples=4)
@given(function=recurrent(PLAIN))
def test_a_session_on_an_engine_and_toy_equals_the_functional_form(engine, function):
    assume(any(registry.create(engine).why_not(node, function) is None for node in function.nodes))

    with make_module(function, [engine, "toy"]) as module:
        run_both(module, function, 1, closely(function))


def leaky(shape="2,3", dtype="float32", alpha=0.1, opset=18, added=1.0, op="LeakyRelu", second: Any = None) -> Function:
    type_ = f"{dtype}[{shape}]"
    nodes = node(op, "x", "h", name="first", alpha=alpha), node("Add", "h c", "y", name="second")
    nodes = nodes if second is None else (nodes[0], replace(nodes[1], **second))
    return graph({"x": type_}, {"y": type_}, *nodes, constants={"c": np.array([added], dtype)}, opset=opset)


CHANGES = {
    "operator": leaky(op="Elu"),
    "attribute": leaky(alpha=0.2),
    "shape": leaky(shape="3,2"),
    "rank": leaky(shape="2,3,1"),
    "element type": leaky(dtype="float64"),
    "opset": leaky(opset=19),
    "bytes of a constant": leaky(added=2.0),
    "sign of a zero": leaky(added=-0.0),
    "symbolic extent": leaky(shape="N,3"),
    "alias": leaky().replace(aliases=(("x", "y"),)),
    "output more": leaky().replace(outputs=(*leaky().outputs, Value("h", TensorType(DType.FLOAT32, (2, 3))))),
    "control edge": leaky(second={"control": ("first",)}),
    "device of a node": leaky(second={"device": "cuda:1"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_function_is_another_signature(change):
    base = leaky(added=0.0) if change == "sign of a zero" else leaky()
    mine, other = (make_signature(f, RecordingEngine(), CompileContext()) for f in (base, CHANGES[change]))
    assert mine.key != other.key


@pytest.mark.parametrize(
    ("ingredient", "engine", "context"),
    [
        ("engine", RecordingEngine(takes="Add"), CompileContext()),
        ("version", RecordingEngine(), CompileContext()),
        ("threads", RecordingEngine(), CompileContext(threads=2)),
        ("device", RecordingEngine(), CompileContext(device="cuda:0")),
        ("options", RecordingEngine(), CompileContext(ExecutionOptions(precision="fp16"))),
    ],
)
def test_another_engine_or_context_is_another_signature(ingredient, engine, context, monkeypatch):
    mine = make_signature(leaky(), RecordingEngine(), CompileContext())
    if ingredient == "version":
        monkeypatch.setattr(RecordingEngine, "version", lambda engine: "newer")
    theirs = make_signature(leaky(), engine, context)
    assert mine.key != theirs.key
    assert mine.list_differences(theirs) == (ingredient,)


@pytest.mark.slow
@bounded
@given(function=functions(), seed=st.integers(0, 9))
def test_an_equal_function_is_the_same_signature(function, seed):
    again = function.replace(name="another", doc=f"{seed}", metadata={"who": "knows"})
    mine, other = (make_signature(f, RecordingEngine(), CompileContext()) for f in (function, again))
    assert mine.key == other.key


@pytest.mark.slow
@bounded
@given(function=functions(Form(symbolic=False)))
def test_a_second_module_hits(function):
    cache, engine = CompileCache(), RecordingEngine()
    for _ in range(2):
        with make_module(function, [engine], cache=cache) as module:
            module(*make_random_inputs(function, 0))
    launches = 1 if function.nodes else 0
    assert engine.journal.count("compile") == launches
    assert cache.statistics.hits == launches


@pytest.mark.slow
def test_one_compile_however_many_threads_ask():
    cache, engine = CompileCache(), RecordingEngine()
    barrier = threading.Barrier(16)

    def call(number: int) -> None:
        barrier.wait()
        with make_module(leaky(added=float(number % 3)), [engine], cache=cache) as module:
            for _ in range(3):
                module(np.ones((2, 3), np.float32))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(16)))
    assert [engine.journal.count(word) for word in ("compile", "prepare", "run")] == [3, 3, 48]
