"""XRTModule as its user meets it: models of every kind, keywords, signatures, outputs and errors."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import xrt
from tests.exact_errors import raises_exactly
from tests.module.small_models import ENGINES, Affine, X, chain, relu
from xrt import XRTModule, errors
from xrt.cache import CompileCache
from xrt.comparison import compare, tolerance_for
from xrt.engines import RunOptions
from xrt.engines.contract.spec import list_options
from xrt.formats import onnx, text
from xrt.formats.onnx import load
from xrt.graph import Function
from xrt.models import light_models, load_light, sample_inputs
from xrt.module.options import OWNERS
from xrt.partition import Plan, partition
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import RecordingEngine


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_graph_written_in_python_runs_on_every_engine(engine: Any) -> None:
    m = xrt.XRTModule(Affine(), engine=engine, strict=True)
    total, product = m(X, y=2 * X)
    np.testing.assert_array_equal(total, np.maximum(3 * X, 0))
    np.testing.assert_array_equal(product, 2 * X * X)
    assert [v.name for v in m.outputs] == ["sum", "product"]


def test_onnx_comes_as_path_bytes_and_message(tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    onnx.save(relu(), path)
    for model in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), onnx.to_model(relu())):
        np.testing.assert_array_equal(xrt.XRTModule(model, engine="toy")(X), np.maximum(X, 0))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (3, "a model is an xrt.Graph, a Function, a torch.nn.Module, or ONNX as a path, bytes or ModelProto; got: int"),
        (Affine, "Affine is a class; pass an instance: XRTModule(Affine(...))"),
    ],
)
def test_what_is_no_model_is_named(model: Any, text: str) -> None:
    with raises_exactly(errors.ModelError, text):
        xrt.XRTModule(model, engine="toy")


def test_a_graph_is_traced_once_per_signature() -> None:
    traced = []

    class Counting(xrt.Graph):
        def build(self, x):
            traced.append(x.shape)
            return xrt.ops.Relu(x)

    m = xrt.XRTModule(Counting(), engine="toy")
    for shape in [(2, 3), (4,), (2, 3), (4,)]:
        m(np.zeros(shape, "float32"))
    assert traced == [(2, 3), (4,)]


def test_inner_values_are_fetched_by_name() -> None:
    m = xrt.XRTModule(chain("Neg", "Relu"), engine="toy")
    result = m(X, fetch=["v1", "y", "x"])
    assert list(result) == ["v1", "y", "x"] == list(m(X, fetch=np.array(["v1", "y", "x"])))
    np.testing.assert_array_equal(result["v1"], -X)
    assert not np.shares_memory(result["x"], X)
    assert [v.name for v in m.outputs] == ["y"]
    with pytest.raises(errors.InputError, match=r"^fetch has 'v7', and the model has no value with this name\.$"):
        m(X, fetch=["v7"])
    with pytest.raises(
        errors.InputError, match=r"^fetch must be a list of value names; got the string 'v1'; pass fetch=\['v1'\]$"
    ):
        m(X, fetch="v1")


BATCHES = "function main(x: float32[n,3]) -> (y: float32[n,3]) {\n opset ai.onnx 18\n y = Relu(x)\n}"


SIGNATURE = inspect.signature(xrt.XRTModule).parameters
KEYWORDS = [one for one in SIGNATURE.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]


def test_there_are_few_keywords_and_the_signature_shows_each() -> None:
    assert list(SIGNATURE)[:4] == ["model", "engine", "device", "cache"]
    assert not any(item.kind is inspect.Parameter.VAR_KEYWORD for item in SIGNATURE.values())
    assert len(KEYWORDS) <= 20


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.__name__)
def test_each_option_says_what_it_means(owner: type) -> None:
    lost = [entry.name for entry in list_options(owner) if not entry.meaning]
    assert set(lost) <= {"clustering", "execution"}


def test_a_pin_by_a_misspelt_operator_names_the_nearest() -> None:
    m = xrt.XRTModule(relu(), engine=["ort", "toy"], pins=["Relu2d=ort"])
    with raises_exactly(errors.PlanError, f"pin 'Relu2d=ort' matches no node of function {relu().name!r}. Did you mean 'Relu'?"):
        m(X)


def test_engines_in_one_text_have_to_be_a_list() -> None:
    text = "'ort,tvm{opt_level=2}' names 2 engines, and one is expected; pass a list: ['ort', 'tvm{opt_level=2}']"
    with raises_exactly(errors.OptionError, text):
        xrt.XRTModule(relu(), "ort,tvm{opt_level=2}")


def test_the_spec_that_an_error_recommends_is_a_spec() -> None:
    with pytest.raises(errors.OptionError) as caught:
        xrt.XRTModule(relu(), "tvm{opt_level=2")
    recommended = str(caught.value).rpartition(" reads like ")[2].strip("'")
    assert xrt.XRTModule(relu(), recommended).engines[0] == recommended


def test_one_dict_of_inputs_by_name_is_taken_as_keywords() -> None:
    m = xrt.XRTModule(relu(), engine="toy")
    (name,) = (value.name for value in m.inputs)
    np.testing.assert_array_equal(m({name: X}), np.maximum(X, 0))
    with raises_exactly(errors.InputError, f"the model has no input 'image'. The model takes 1 input ({name})"):
        m({"image": X})


def test_an_array_of_objects_is_called_one() -> None:
    m = xrt.XRTModule(text.parse(BATCHES), engine="toy")
    said = "input 'x' must be float32; got dtype object, whose first element is int; convert it with .astype('float32')"
    with raises_exactly(errors.InputError, said):
        m(np.array([[1, 2, 3]], dtype=object))


def test_the_module_prints_its_inputs_and_engines() -> None:
    assert repr(xrt.XRTModule(relu(), engine="toy", strict=True)) == "<XRTModule(x) on toy>"


MIXED = "s = ReduceSum(k)  e = Exp(x)  "
TOLD = "needs inputs 'A' and 'B' of the same type; 'e' is tensor(float) and 's' is tensor(int64)"
BRANCHES = "<then_branch = t () => (float[3] a) { a = Div(e, s) }, else_branch = f () => (float[3] b) { b = Exp(x) }>"


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize(
    ("last", "node"),
    [("y = Div(e, s)", "node 'y' (Div)"), (f"y = If(p) {BRANCHES}", "in body 't' of node 'y': node 'a' (Div)")],
    ids=["the graph", "a branch that reads from outside"],
)
def test_a_model_of_inconsistent_types_is_refused(last: str, node: str, fold: bool) -> None:
    head = '<ir_version: 8, opset_import: ["": 13]> g (float[3] x, int64[3] k, bool p) => (float[3] y)'
    model = parser.parse_model(f"{head} {{ {MIXED}{last} }}")
    with raises_exactly(errors.ModelError, f"function 'g' is not valid: {node}: {TOLD}"):
        XRTModule(load(model), engine="toy", fold_constants=fold)


PACKAGE = str(Path(xrt.__file__).parent)
MISTAKES: dict[str, Callable[[], object]] = {
    "call": lambda: xrt.XRTModule(relu(), engine="toy")(X.astype("float64")),
    "call again": lambda: [m := xrt.XRTModule(relu(), engine="toy"), m(X), m(np.ones(3, "float32"))],
    "call by name": lambda: xrt.XRTModule(relu(), engine="toy")(nothing=X),
    "constructor": lambda: xrt.XRTModule(relu(), engine="nothing"),
    "option": lambda: xrt.XRTModule(relu(), engine="toy", thread=1),  # type: ignore[call-arg]  # the mistake under test
    "plan": lambda: xrt.XRTModule(relu(), engine="toy", pins=["Softmax=toy"]).plan,
    "compile": lambda: xrt.XRTModule(relu(), engine="toy").compile(X, X),
    "bind": lambda: xrt.XRTModule(relu(), engine="toy").bind(X, X),
    "verify": lambda: xrt.XRTModule(relu(), engine="toy").verify(X, X),
}


def frames_of_xrt(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]


@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_shows_at_most_two_frames_of_xrt(name: str) -> None:
    with pytest.raises(errors.XRTError) as caught:
        MISTAKES[name]()
    assert 1 <= len(frames_of_xrt(caught.value)) <= 2


def test_all_frames_are_shown_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XRT_TRACEBACK", "full")
    with pytest.raises(errors.XRTError) as caught:
        MISTAKES["call"]()
    assert len(frames_of_xrt(caught.value)) > 2


MIXTURE = {"engine": ["tvm", "ort"], "pins": ["Conv|Gemm|MatMul=ort"]}


@pytest.mark.slow
@pytest.mark.sample(9)
@pytest.mark.parametrize("name", light_models())
def test_engines_and_the_mixture_agree(name: str) -> None:
    model = load_light(name)
    inputs = sample_inputs(model, seed=0)
    expected = xrt.XRTModule(model, engine="toy{native=off}", strict=True)(**inputs)
    assert expected.std() > 1e-4, "an output without variation agrees with anything"
    for options in ({"engine": "ort"}, MIXTURE):
        with xrt.XRTModule(model, strict=True, **options) as m:
            difference = compare(m(**inputs), expected, tolerance_for("float32", "network"))
            assert difference, f"{name} on {options['engine']}: {difference.message}"
            assert {*m.plan.used_engines} == {*m.engines}


def test_what_nobody_named_takes_goes_to_the_reference_with_one_warning() -> None:
    m = xrt.XRTModule(chain("Relu", "Neg"), engine=RecordingEngine(takes="Relu"))
    with pytest.warns(errors.FallbackWarning) as caught:
        m(X)
        m(X, fetch=["v1"])
    assert [Path(w.filename).name for w in caught] == ["test_module.py"], "a warning points at the caller's line"
    (message,) = [str(w.message) for w in caught]
    assert message == (
        "1 node runs on the reference engine 'toy', as no engine of the list supports it: 'n1': "
        "it is set to take Relu, and Neg is none of these. m.explain() lists it; name 'toy' "
        "in the list to accept it, or pass strict=True to refuse it"
    )
    assert "n1" in str(m.explain())
    assert "it is set to take Relu, and Neg is none of these" in str(m.explain())


def test_the_warning_counts_what_was_refused_too() -> None:
    m = xrt.XRTModule(chain("Relu", "Neg", "Exp"), engine=RecordingEngine(takes="Relu|Exp", refuses="Exp"))
    with pytest.warns(errors.FallbackWarning) as caught:
        m(X)
    refused, counted = (str(warning.message) for warning in caught)
    assert refused == "the recording engine is set to refuse Exp; node 'n2' placed on another engine"
    assert counted == (
        "2 nodes run on the reference engine 'toy', as no engine of the list supports them, such as "
        "'n1': it is set to take Relu|Exp, and Neg is none of these. m.explain() lists them; "
        "name 'toy' in the list to accept it, or pass strict=True to refuse it"
    )


def test_a_refusal_that_nobody_can_take_over_is_the_cause_of_the_error() -> None:
    with pytest.raises(errors.PlanError) as caught:
        xrt.XRTModule(chain("Relu"), engine=RecordingEngine(refuses="Relu"), strict=True)(X)
    assert isinstance(caught.value.__cause__, errors.CompileRefused)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"engine": "ort2"}, errors.UnknownEngine, "Did you mean 'ort'?"),
        ({"engine": []}, errors.OptionError, "the list of engines is empty; name at least one, such as engine='toy'"),
        ({"engine": ["toy", "toy"]}, errors.OptionError, "engine 'toy' is twice in the list ['toy', 'toy']; list each once"),
        ({"engine": 5}, errors.OptionError, "an engine is a name, a spec or a GraphCompiler instance; got int 5"),
        ({"minimum_node": 2}, errors.OptionError, "XRTModule has no option 'minimum_node'. Did you mean 'minimum_nodes'?"),
        ({"engin": "ort"}, errors.OptionError, "XRTModule has no option 'engin'. Did you mean 'engine'?"),
        ({"device": "gpu"}, errors.DeviceError, "unknown device 'gpu'; a device is 'cpu', 'cuda' or 'cuda:N'."),
        ({"precision": "fp16", "engine": "toy"}, errors.OptionError, "engine 'toy' does not support precision='fp16'"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        xrt.XRTModule(relu(), **{"engine": "toy", **options})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"options": {"profile": True}},
            errors.OptionError,
            "options= takes RunOptions, such as xrt.RunOptions(profile=True); got: dict",
        ),
        ({"options": RunOptions(out=[X]), "out": X}, errors.InputError, "out= is passed twice, as an argument and in options;"),
    ],
)
def test_options_of_a_call_that_cannot_be_are_named(options: Any, error: type[Exception], text: str) -> None:
    with xrt.XRTModule(relu(), engine="toy") as m, pytest.raises(error, match=f"^{re.escape(text)}"):
        m(X, **options)


def test_a_path_has_no_gradient() -> None:
    with raises_exactly(errors.ModelError, "xrt.gradient takes a Function, such as xrt.formats.onnx.load(PATH); got a str"):
        xrt.gradient("model.onnx")  # type: ignore[arg-type]  # the mistake


def test_a_device_that_no_listed_engine_runs_on_is_refused() -> None:
    with pytest.raises(errors.DeviceError, match=r"^no engine of the list runs on device 'cuda': openvino runs on cpu$"):
        xrt.XRTModule(relu(), engine="openvino", device="cuda")


def test_a_closed_module_says_so_and_leaves_others_alone() -> None:
    cache = CompileCache(capacity=1)
    with xrt.XRTModule(relu(), engine="toy", cache=cache) as m:
        m(X)
    other = xrt.XRTModule(relu(), engine="toy", cache=cache)
    np.testing.assert_array_equal(other(X), np.maximum(X, 0))
    for use in (lambda: m(X), m.compile, lambda: m.save("closed.xrt")):
        with pytest.raises(errors.InputError, match=r"^the module is closed; make a new XRTModule$"):
            use()


def test_a_module_that_is_closed_while_it_plans_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    m = xrt.XRTModule(relu(), engine="toy")

    def close_and_plan(*args: Any, **options: Any) -> Plan:
        m.close()
        return partition(*args, **options)

    monkeypatch.setattr("xrt.partition.partition", close_and_plan)
    with pytest.raises(errors.InputError, match=r"^the module is closed; make a new XRTModule$"):
        m(X)
    assert list(m.dispatcher) == []


def test_compile_without_examples_needs_types_that_tell_enough() -> None:
    assert len(xrt.XRTModule(relu(), engine="toy").compile().launches) == 1
    with pytest.raises(errors.InputError, match="the graph is traced for its inputs"):
        xrt.XRTModule(Affine(), engine="toy").compile()
    with pytest.raises(errors.InputError, match="engine 'recording' needs every extent fixed"):
        xrt.XRTModule(relu(("N", 3)), engine=[RecordingEngine(), "toy"]).compile()


def test_plans_are_had_without_compiling() -> None:
    cache = CompileCache()
    m = xrt.XRTModule(chain("Relu", "Neg"), engine=[RecordingEngine(takes="Relu"), "toy"], cache=cache)
    assert len(m.plan.launches) == len(m.plan_for(X).launches) == 2
    assert cache.statistics.misses == 0


def test_stages_are_dumped_as_text_onnx_and_dot(tmp_path: Path) -> None:
    xrt.XRTModule(chain("Relu", "Neg"), engine=[RecordingEngine(takes="Relu"), "toy"], dump_subgraph_dir=tmp_path)(X)
    stems = {p.stem for p in tmp_path.iterdir()}
    assert {"1-model", "2-simplified", "3-plan", "xrt_recording_0", "xrt_toy_1"} <= stems
    for stem in ("1-model", "xrt_toy_1"):
        assert {p.suffix for p in tmp_path.glob(f"{stem}.*")} == {".txt", ".onnx", ".dot"}
    np.testing.assert_array_equal(xrt.XRTModule(tmp_path / "xrt_toy_1.onnx", engine="toy")(X), -X)


FOLDED = graph(
    {"x": "float32[2,3]"},
    {"y": "float32[2,3]"},
    node("Neg", "w", "v", name="minus"),
    node("Add", "x v", "y", name="plus"),
    constants={"w": X},
)


def test_constants_are_folded_unless_asked_not_to() -> None:
    folded, saved = (xrt.XRTModule(FOLDED, engine="toy", fold_constants=fold) for fold in (True, False))
    np.testing.assert_array_equal(folded(X), saved(X))
    assert [len(m.plan.launches[0].nodes) for m in (folded, saved)] == [1, 2]


def test_a_pin_on_a_node_that_was_folded_is_no_mistake() -> None:
    pinned = xrt.XRTModule(FOLDED, engine="toy", pins=["name:minus=toy"])
    np.testing.assert_array_equal(pinned(X), np.zeros((2, 3)))
    output = "pin name:minus=toy has no effect: its nodes were computed ahead of time, or no output needs them"
    assert str(pinned.explain()).splitlines()[-1] == output
    assert pinned.explain().to_dict()["idle_pins"] == ("name:minus=toy",)
    with pytest.raises(errors.PlanError, match="pin 'name:minos=toy' matches no node"):
        xrt.XRTModule(FOLDED, engine="toy", pins=["name:minos=toy"])(X)


CHOSEN = "is the default: the first installed of ort, openvino, torch, xla, toy that supports the whole model"


def atan() -> Function:
    """ONNX Runtime and OpenVINO support it in float32 alone."""
    return graph({"x": "float64[2,3]"}, {"y": "float64[2,3]"}, node("Atan", "x", "y"))


class Atan(xrt.Graph):
    def build(self, x):
        return xrt.ops.Atan(x)


def test_the_first_engine_that_supports_the_model_runs_it():
    with xrt.XRTModule(relu()) as m:
        np.testing.assert_array_equal(m(X), np.maximum(X, 0))
        assert m.engines == ("ort", "toy")
        assert f"engine 'ort' {CHOSEN}" in str(m.explain())


def test_an_engine_that_declines_a_node_leaves_the_whole_model_to_the_next():
    with xrt.XRTModule(atan()) as m:
        np.testing.assert_allclose(m(X.astype("float64")), np.arctan(X.astype("float64")))
        assert m.engines == ("torch", "toy") and m.plan.used_engines == ("torch",)
        text = str(m.explain())
        assert "engine 'ort' does not support the whole model: 'y' (Atan): ONNX Runtime" in text
        assert "engine 'openvino' does not support the whole model: 'y' (Atan)" in text
        assert f"engine 'torch' {CHOSEN}" in text


def test_a_graph_is_decided_by_the_types_of_its_first_call():
    for dtype, engine in (("float32", "ort"), ("float64", "torch")):
        with xrt.XRTModule(Atan()) as m:
            np.testing.assert_allclose(m(X.astype(dtype)), np.arctan(X.astype(dtype)), rtol=1e-6)
            assert m.plan.used_engines == (engine,)


def test_options_that_need_a_named_engine_say_so():
    with pytest.raises(errors.OptionError, match="pass engine='auto'"):
        xrt.XRTModule(relu(), max_error=0.01)


def test_plans_in_the_cache_decide_without_the_model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(atan(), path)
    for _ in range(2):
        with xrt.XRTModule(path, cache=tmp_path / "cache") as m:
            np.testing.assert_allclose(m(X.astype("float64")), np.arctan(X.astype("float64")))
            assert m.engines == ("torch", "toy")


def test_libraries_of_engines_behind_the_chosen_one_are_not_imported():
    code = (
        "import sys, numpy, xrt\n"
        "from tests.module.small_models import relu, X\n"
        "xrt.XRTModule(relu())(X)\n"
        "print([name for name in ('onnxruntime', 'openvino', 'torch', 'jax') if name in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "['onnxruntime']\n", run.stderr
