"""XRTModule as its user meets it: models of every kind, keywords, signatures, outputs and errors."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from onnx import parser

import xrt
from tests.module.small_models import ENGINES, Affine, X, chain, relu
from xrt import XRTModule
from xrt.cache import CompileCache
from xrt.comparison import compare, tolerance_for
from xrt.engines.contract.spec import list_options
from xrt.errors import InputError, ModelError, OptionError, PlanError, UnknownEngine, XRTError
from xrt.formats import onnx, text
from xrt.formats.onnx import load
from xrt.models import light_models, load_light, sample_inputs
from xrt.module.keywords import ModuleKeywords
from xrt.module.options import OWNERS

# ---------------------------------------------------------------------- kinds of models


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
        (3, "a model is an xrt.Graph, a Function, a torch.nn.Module, or ONNX as a path, bytes or ModelProto; got a builtins.int"),
        (Affine, "Affine is a class; pass an instance: XRTModule(Affine(...))"),
    ],
)
def test_what_is_no_model_is_named(model: Any, text: str) -> None:
    with pytest.raises(ModelError) as caught:
        xrt.XRTModule(model, engine="toy")
    assert str(caught.value) == text


# ---------------------------------------------------------------------- signatures


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


def test_two_modules_of_one_model_share_the_compile() -> None:
    cache = CompileCache()
    for _ in range(2):
        xrt.XRTModule(relu(), engine="toy", cache=cache)(X)
    assert (cache.statistics.hits, cache.statistics.misses) == (1, 1)


# ---------------------------------------------------------------------- outputs


def test_inner_values_are_fetched_by_name() -> None:
    m = xrt.XRTModule(chain("Neg", "Relu"), engine="toy")
    result = m(X, fetch=["h0", "y", "x"])
    assert list(result) == ["h0", "y", "x"] == list(m(X, fetch=np.array(["h0", "y", "x"])))
    np.testing.assert_array_equal(result["h0"], -X)
    assert not np.shares_memory(result["x"], X)
    assert [v.name for v in m.outputs] == ["y"]
    with pytest.raises(InputError, match=r"^fetch asks for 'h7', which is no value of the model\.$"):
        m(X, fetch=["h7"])
    with pytest.raises(InputError, match=r"^fetch must be a list of value names; got the string 'h0'; pass fetch=\['h0'\]$"):
        m(X, fetch="h0")


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_an_alias_updates_the_input(engine: Any) -> None:
    m = xrt.XRTModule(chain("Neg", aliases=(("x", "y"),)), engine=engine)
    for _ in range(2):
        x = X.copy()
        assert m(x) is x
        np.testing.assert_array_equal(x, -X)


BATCHES = "function main(x: float32[n,3]) -> (y: float32[n,3]) {\n opset ai.onnx 18\n y = Relu(x)\n}"


def message(kind: type[XRTError], do: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        do()
    return str(caught.value)


SIGNATURE = inspect.signature(xrt.XRTModule).parameters
KEYWORDS = [one for one in SIGNATURE.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]


def test_type_checkers_see_the_keywords_of_the_signature() -> None:
    assert {"cache", *get_type_hints(ModuleKeywords)} == {item.name for item in KEYWORDS}


def test_there_are_few_keywords_and_the_signature_shows_each() -> None:
    assert list(SIGNATURE)[:4] == ["model", "engine", "device", "cache"]
    assert not any(item.kind is inspect.Parameter.VAR_KEYWORD for item in SIGNATURE.values())
    assert len(KEYWORDS) <= 20


def test_each_keyword_is_accepted_with_its_default() -> None:
    results: dict[str, Any] = {item.name: item.default for item in KEYWORDS}
    np.testing.assert_array_equal(xrt.XRTModule(relu(), **results)(X), np.maximum(X, 0))


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.__name__)
def test_each_option_says_what_it_means(owner: type) -> None:
    lost = [entry.name for entry in list_options(owner) if not entry.meaning]
    assert set(lost) <= {"clustering", "execution"}


def test_the_options_of_an_engine_come_with_type_default_and_meaning() -> None:
    entry = list_options(type(xrt.engines.contract.registry.create("tvm")))[0]
    assert (entry.name, entry.type, entry.default) == ("opt_level", "int", "3")
    assert entry.meaning.startswith("0 to 3: how much TVM fuses")


def test_a_pin_by_a_misspelt_operator_names_the_nearest() -> None:
    m = xrt.XRTModule(relu(), engine=["ort", "toy"], pins=["Relu2d=ort"])
    text = message(PlanError, lambda: m(X))
    assert text == f"pin 'Relu2d=ort' matches no node of function {relu().name!r}. Did you mean 'Relu'?"


@pytest.mark.parametrize(
    ("word", "engine"), [("onnxruntime", "ort"), ("OpenVINO", "openvino"), ("jax", "xla"), ("apache_tvm", "tvm"), ("ORT", "ort")]
)
def test_the_name_of_a_library_suggests_its_engine(word: str, engine: str) -> None:
    assert f"no engine is named {word!r}. Did you mean {engine!r}?" in message(UnknownEngine, lambda: xrt.XRTModule(relu(), word))


def test_engines_in_one_text_have_to_be_a_list() -> None:
    text = message(OptionError, lambda: xrt.XRTModule(relu(), "ort,tvm{opt_level=2}"))
    assert text == "'ort,tvm{opt_level=2}' names 2 engines, and one is due; pass a list: ['ort', 'tvm{opt_level=2}']"


def test_the_spec_that_an_error_recommends_is_a_spec() -> None:
    text = message(OptionError, lambda: xrt.XRTModule(relu(), "tvm{opt_level=2"))
    recommended = text.rpartition(" reads like ")[2].strip("'")
    assert xrt.XRTModule(relu(), recommended).engines[0] == recommended


def test_one_dict_of_inputs_by_name_is_taken_as_keywords() -> None:
    m = xrt.XRTModule(relu(), engine="toy")
    (name,) = (value.name for value in m.inputs)
    np.testing.assert_array_equal(m({name: X}), np.maximum(X, 0))
    text = message(InputError, lambda: m({"image": X}))
    assert text == f"the model has no input 'image'. The model takes 1 input ({name})"


def test_an_array_of_objects_is_called_one() -> None:
    m = xrt.XRTModule(text.parse(BATCHES), engine="toy")
    said = message(InputError, lambda: m(np.array([[1, 2, 3]], dtype=object)))
    assert said == "input 'x' must be float32; got dtype object, whose first element is int; convert it with .astype('float32')"


def test_the_module_prints_its_inputs_and_engines() -> None:
    assert repr(xrt.XRTModule(relu(), engine="toy", strict=True)) == "<XRTModule(x) on toy>"


MIXED = "s = ReduceSum(k)  {result} = Div(e, s)"
TOLD = "node {result!r} (Div): needs inputs 'A' and 'B' of the same type; 'e' is tensor(float) and 's' is tensor(int64)"
OTHER = "else_branch = f () => (float[3] b) { b = Exp(x) }>"
MODELS = {
    "the graph": ("e = Exp(x)  " + MIXED.format(result="y"), TOLD.format(result="y")),
    "a branch": (
        "y = If(p) <then_branch = t () => (float[3] a) { e = Exp(x)  " + MIXED.format(result="a") + " }, " + OTHER,
        "in body 't' of node 'y': " + TOLD.format(result="a"),
    ),
    "a branch that reads from outside": (
        "e = Exp(x)  s = ReduceSum(k)  y = If(p) <then_branch = t () => (float[3] a) { a = Div(e, s) }, " + OTHER,
        "in body 't' of node 'y': " + TOLD.format(result="a"),
    ),
    "branches of two types": (
        "y = If(p) <then_branch = t () => (a) { a = Exp(x) }, else_branch = f () => (b) { b = Shape(x) }>",
        "node 'y' (If): the branches must give one type as output 1; 'a' is float32[3] and 'b' is int64[1]",
    ),
}


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize(("text", "message"), MODELS.values(), ids=MODELS)
def test_a_model_of_inconsistent_types_is_refused(text: str, message: str, fold: bool) -> None:
    head = '<ir_version: 8, opset_import: ["": 13]> g (float[3] x, int64[3] k, bool p) => (float[3] y)'
    model = parser.parse_model(f"{head} {{ {text} }}")
    with pytest.raises(ModelError) as caught:
        XRTModule(load(model), engine="toy", fold_constants=fold)
    assert str(caught.value) == f"function 'g' is not valid: {message}"


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
    with pytest.raises(XRTError) as caught:
        MISTAKES[name]()
    assert 1 <= len(frames_of_xrt(caught.value)) <= 2


def test_all_frames_are_shown_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XRT_TRACEBACK", "full")
    with pytest.raises(XRTError) as caught:
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
            assert {launch.engine for launch in m.plan.launches} == {*m.engines}
