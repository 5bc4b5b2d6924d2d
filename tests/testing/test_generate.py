"""Generated Functions and entries of the corpus are valid, and engines that misbehave do so as they are told."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from xrt.engines.contract import registry
from xrt.engines.contract.spec import build, parse_spec
from xrt.errors import CompileRefused, InputError, OptionError
from xrt.formats import onnx as formats
from xrt.graph import Function, SequenceType, TensorType, Value
from xrt.graph.types import DType
from xrt.graph.verify import verify
from xrt.passes import infer_shapes
from xrt.testing.corpus import CORPUS, find_entry
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine
from xrt.testing.generate import Form, make_random_inputs, make_seeded_function
from xrt.testing.generators.draft import MAX_MAGNITUDE, SeededChooser
from xrt.testing.strategies import functions, labels
from xrt.testing.suite import bounded
from xrt.verify.execution import compile_alone, run_alone

many = settings(bounded, max_examples=150)


@pytest.mark.slow
@many
@given(function=functions())
def test_onnx_accepts_them(function):
    verify(function)
    onnx.checker.check_model(formats.to_model(function), full_check=True)


@pytest.mark.slow
@many
@given(function=functions())
def test_they_give_what_they_claim(function):
    results = run_alone(registry.create("toy"), function, make_random_inputs(function, 1))
    for value, result in zip(function.outputs, results, strict=True):
        assert DType.from_array(result) is value.type.dtype
        assert len(result.shape) == len(value.type.shape)
        assert all(claimed in (None, size) for claimed, size in zip(value.type.shape, result.shape, strict=True))
        assert not result.size or np.abs(result.astype(np.float64)).max() <= MAX_MAGNITUDE * 1.01


def forms_of(function: Function) -> set[str]:
    """Name the odd forms that a Function has."""
    names = [v.name for v in function.outputs]
    results = {v.name for v in function.inputs}
    values = {
        "input is output": bool(results & set(names)),
        "constant is output": bool(set(function.constants) & set(names)),
        "output twice": len(set(names)) < len(names),
        "alias": bool(function.aliases),
        "control edge": any(node.control for node in function.nodes),
        "same value twice": any(len(set(node.inputs)) < len(node.inputs) for node in function.nodes),
        "left-out input": any("" in node.inputs for node in function.nodes),
        "two outputs": any(len(node.outputs) > 1 for node in function.nodes),
        "captures": any(node.captures for node in function.nodes),
        "body in a body": any(inner.bodies for node in function.nodes for b in node.bodies for inner in b.nodes),
        "named extent": any(isinstance(d, str) for v in function.inputs for d in v.type.shape),
        "empty": any(0 in v.type.shape for v in function.inputs),
        "no axes": any(v.type.shape == () for v in function.inputs),
        "rank four": any(len(v.type.shape) == 4 for v in function.inputs),
        "value read by many": any(len(function.users(name)) > 2 for name in function.value_names()),
    }
    return {name for name, present in values.items() if present}


@pytest.mark.slow
def test_every_odd_form_comes_up():
    seen = set().union(*(forms_of(make_seeded_function(seed)) for seed in range(400)))
    assert len(seen) == 15, seen


@pytest.mark.parametrize(
    ("form", "absent"),
    [
        (Form(control=False), "captures"),
        (Form(passthrough=False), "output twice"),
        (Form(passthrough=False), "input is output"),
        (Form(symbolic=False), "named extent"),
        (Form(aliases=False), "alias"),
        (Form(control_edges=False), "control edge"),
        (Form(empty=False), "empty"),
    ],
)
def test_a_form_keeps_out_what_it_says(form, absent):
    assert not any(absent in forms_of(make_seeded_function(seed, form)) for seed in range(150))


def test_a_family_alone():
    operators = {node.op for seed in range(60) for node in make_seeded_function(seed, Form(("product",), control=False)).nodes}
    assert operators == {"MatMul", "Gemm"}
    with pytest.raises(InputError, match=r"^there is no family of recipes 'convolution'; there are elementwise, reduction, "):
        Form(("convolution",))


def test_equal_seeds_give_equal_functions_and_inputs():
    first, same = make_seeded_function(5), make_seeded_function(5)
    assert first == same
    assert first != make_seeded_function(6)
    for mine, theirs in zip(make_random_inputs(first, 3), make_random_inputs(same, 3), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
def test_what_steps_is_computed_with_no_further():
    for seed in range(200):
        function = make_seeded_function(seed)
        for node in function.nodes:
            if node.op_type in ("Round", "Floor", "Ceil", "ArgMax", "ArgMin"):
                assert not function.users(node.outputs[0]), "an engine may step elsewhere"


def test_inputs_of_lists_and_of_unknown_rank():
    tensor = TensorType(DType.FLOAT32, (2,))
    [array] = make_random_inputs(Function((Value("s", SequenceType(tensor)),), ()), 0)
    assert [item.shape for item in array] == [(2,), (2,)]
    with pytest.raises(InputError, match=r"^no random value can be made for the type float32\[\.\.\.\]; "):
        make_random_inputs(Function((Value("x", TensorType(DType.FLOAT32)),), ()), 0)


@bounded
@given(function=functions().flatmap(lambda f: labels(f).map(lambda cut: (f, cut))))
def test_labels_never_fall_along_an_edge(function):
    graph, cut = function
    of = dict(zip([n.name for n in graph.nodes], cut, strict=True))
    for node in graph.nodes:
        before = [graph.producer(name) for name in node.uses]
        assert all(of[b.name] <= of[node.name] for b in before if b is not None)
        assert all(of[name] <= of[node.name] for name in node.control)


@pytest.mark.slow
def test_seeded_choices_need_no_hypothesis():
    assert {SeededChooser(seed).pick("ab") for seed in range(20)} == {"a", "b"}
    code = "import sys; from xrt.testing import corpus, fault_injection, generate; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'xrt.testing.generate'" in loaded
    assert "'hypothesis'" not in loaded
    assert "'pytest'" not in loaded


def test_it_misbehaves_at_the_nth_call_alone():
    one = find_entry("two_branches_and_a_join")
    executable = compile_alone(FaultyEngine(how="value", nth=2), one.function, one.inputs)
    assert [bool(one.judge(executable.run(one.make_inputs()))) for _ in range(3)] == [True, False, True]
    with pytest.raises(RuntimeError, match="in version"):
        FaultyEngine(where="version").version()
    assert FaultyEngine().version().startswith("faulty of ")


def test_what_cannot_misbehave_so_is_refused():
    with pytest.raises(OptionError, match=r"^'close' cannot misbehave by 'nan', only 'run' can$"):
        FaultyEngine(where="close", how="nan")


def test_the_recording_engine_counts_and_takes_what_it_is_set_to_take():
    engine, one = RecordingEngine(), find_entry("two_branches_and_a_join")
    executable = compile_alone(engine, one.function, one.inputs)
    for _ in range(3):
        assert one.judge(executable.run(one.make_inputs()))
    executable.close()
    counted = [engine.journal.count(word) for word in ("why_not", "compile", "prepare", "run", "close")]
    assert counted == [len(one.function.nodes), 1, 1, 3, 1]
    assert [f.fingerprint for f in engine.journal.compiled] == [infer_shapes(one.function).fingerprint]
    engine.journal.clear()
    assert engine.journal.count("run") == 0
    with pytest.raises(CompileRefused, match=r"^Neg: it is set to take Relu\|T\*, and Neg is none of these$"):
        run_alone(RecordingEngine(takes="Relu|T*"), one.function, one.make_inputs())


def test_their_options_make_their_spec():
    engine = FaultyEngine(inner="ort", where="compile", how="refuse", nth=3)
    assert engine.spec == "faulty{how=refuse, inner=ort, nth=3, where=compile}"
    assert build(FaultyEngine, parse_spec(engine.spec)[1]) == engine
    assert RecordingEngine(mark="a") != RecordingEngine(mark="b")
    assert registry.create(engine) is engine


@pytest.mark.parametrize("name", [e.name for e in CORPUS])
def test_an_entry_is_accepted_by_onnx_and_judges_its_own_expectation_right(name):
    entry = find_entry(name)
    verify(entry.function)
    infers = name != "pools_without_a_window_in_the_padding"  # there the shapes that onnx infers are wrong
    onnx.checker.check_model(formats.to_model(entry.function), full_check=infers)
    assert entry.judge([np.array(e) if isinstance(e, np.ndarray) else e for e in entry.expected])


def test_inputs_are_handed_out_as_copies():
    entry = find_entry("update_in_place")
    with pytest.raises(ValueError, match="read-only"):
        entry.inputs[0][:] = 0
    entry.make_inputs()[0][:] = 0
    assert entry.inputs[0].tolist() == [1, 1, 1]
