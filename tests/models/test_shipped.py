"""The shipped models and those of the onnx package: inputs, weights, state, and what they compute."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import xrt
from tests.exact_errors import raises_exactly
from xrt.comparison import compare_all, tolerance_for
from xrt.engines import CompileContext, create
from xrt.errors import InputError, ModelError, OptionError
from xrt.graph import Function, MapType, OptionalType, SequenceType, TensorType, Type, Value
from xrt.graph.state import Capacity, declare_capacity, find_capacity
from xrt.graph.types import DType
from xrt.graph.verify import verify
from xrt.models import fill_random_weights, light_models, list_model_sizes, load, load_light, names, sample_inputs
from xrt.models.transformers import DecoderSizes, gpt_decoder, llama_decoder
from xrt.testing.corpus.entry import graph, node

TINY: dict[str, dict[str, int]] = {
    "bert": {"layers": 2, "hidden": 16, "heads": 2, "tokens": 6, "vocabulary": 11, "batch": 2},
    "chain": {"length": 7, "batch": 3, "columns": 5},
    "conv_chain": {"length": 5, "channels": 4, "image": 6, "batch": 2},
    "conv_tail": {"length": 5, "channels": 4, "image": 6, "batch": 2},
    "detector": {"height": 40, "breadth": 50, "image": 32, "width": 25, "classes": 7, "detections": 9},
    "dlrm": {"tables": 3, "entries": 11, "width": 4, "lookups": 2, "dense": 5, "bottom": 16, "top": 12, "batch": 6},
    "gather_softmax": {"length": 6, "entries": 9, "width": 8, "columns": 4, "batch": 3},
    "gpt": {"layers": 2, "hidden": 16, "heads": 4, "tokens": 5, "vocabulary": 11, "batch": 2},
    "mlp": {"layers": 3, "features": 8, "hidden": 12, "classes": 5, "batch": 2},
    "mobilenet": {"image": 32, "width": 25, "classes": 7, "batch": 2},
    "reductions": {"batch": 3, "rows": 4, "columns": 5},
    "softmax_chain": {"length": 6, "batch": 3, "columns": 8},
    "speech": {"samples": 640, "window": 32, "hop": 16, "mels": 8, "channels": 4, "layers": 2, "hidden": 6}
    | {"letters": 5, "batch": 2},
    "unet": {"image": 16, "channels": 4, "depth": 2, "classes": 3, "batch": 2},
    "vit": {"layers": 2, "hidden": 16, "heads": 2, "image": 16, "patch": 8, "classes": 5, "batch": 2},
}


def run(engine: str, function: Function, document: dict[str, Any]) -> list[Any]:
    executable = create(engine).compile(function, CompileContext())
    executable.prepare()
    try:
        return list(executable.run([document[value.name] for value in function.inputs]))
    finally:
        executable.close()


def test_every_model_by_code_is_tried() -> None:
    assert set(names()) == {*TINY, *light_models()}


@pytest.mark.parametrize("name", TINY)
def test_two_engines_agree_and_the_outputs_depend_on_the_inputs_and_have_their_declared_shapes(name: str) -> None:
    function = load(name, **TINY[name])
    verify(function)
    first, other = (sample_inputs(function, seed) for seed in (1, 2))
    expected = run("toy", function, first)
    assert compare_all(run("ort", function, first), expected, tolerance_for("float32", "network")).message == ""
    assert all(0.01 < float(np.sqrt(np.mean(np.square(y)))) < 10 for y in expected)
    assert all(np.abs(a - b).max() > 1e-7 for a, b in zip(expected, run("toy", function, other), strict=True))
    assert [v.type.shape for v in function.outputs if isinstance(v.type, TensorType)] == [y.shape for y in expected]


@pytest.mark.parametrize("name", [*TINY, pytest.param("squeezenet", marks=pytest.mark.slow)])
def test_the_seed_decides_the_weights(name: str) -> None:
    first, again, other = (load(name, seed, **TINY.get(name, {})).fingerprint for seed in (3, 3, 4))
    assert first == again
    assert (first == other) == (name in WITHOUT_WEIGHTS)


WITHOUT_WEIGHTS = ("chain", "softmax_chain", "reductions")


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_size_counts(name: str) -> None:
    whole = load(name, **TINY[name]).fingerprint
    for size, value in TINY[name].items():
        assert load(name, **{**TINY[name], size: value * 2}).fingerprint != whole, size
    assert set(TINY[name]) == set(list_model_sizes(name))


def test_the_decoder_does_not_look_ahead() -> None:
    function = load("gpt", **TINY["gpt"])
    ids = np.zeros((2, 5), np.int64)
    changed = ids.copy()
    changed[:, 3] = 1
    (first,), (other,) = (run("toy", function, {"ids": item}) for item in (ids, changed))
    assert np.array_equal(first[:, :3], other[:, :3])
    assert np.abs(first[:, 3:] - other[:, 3:]).max() > 1e-3


def test_the_encoder_does_not_see_what_is_masked() -> None:
    function = load("bert", **TINY["bert"])
    ids, mask = np.zeros((2, 6), np.int64), np.ones((2, 6), np.int64)
    mask[:, 4] = 0
    changed = ids.copy()
    changed[:, 4] = 5
    first, other = (run("toy", function, {"ids": item, "mask": mask})[0] for item in (ids, changed))
    seen = [0, 1, 2, 3, 5]
    assert np.allclose(first[:, seen], other[:, seen], atol=1e-6)
    assert np.abs(first[:, 4] - other[:, 4]).max() > 1e-3


def test_every_band_of_pitch_hears_some_frequency() -> None:
    """One that does not is constant, and normalised to the rounding errors of its mean."""
    sizes = list_model_sizes("speech")
    shape = (sizes["window"] // 2 + 1, sizes["mels"])
    (filters,) = (c.array for c in load("speech", layers=1, hidden=1).constants.values() if c.shape == shape)
    assert filters.sum(axis=0).min() > 0.1


@pytest.mark.slow
def test_boxes_of_one_class_hardly_overlap_and_the_best_come_first() -> None:
    function = load("detector", **TINY["detector"])
    boxes, scores, labels = run("toy", function, sample_inputs(function))
    assert (np.diff(scores) <= 0).all() and set(labels) <= set(range(1, 7))
    for label in set(labels):
        these = boxes[labels == label]
        for a, b in itertools.combinations(these, 2):
            shared = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
            assert shared <= 0.451 * (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared)


@pytest.mark.parametrize(
    ("name", "sizes", "error", "text"),
    [
        ("brt", {}, ModelError, "there is no model 'brt'. Did you mean 'bert'? There are: bert, bvlc_alexnet, chain"),
        (
            "mlp",
            {"layer": 2},
            OptionError,
            "model 'mlp' has no size 'layer'; its sizes are layers, features, hidden, classes, batch.",
        ),
        ("squeezenet", {"batch": 2}, OptionError, "model 'squeezenet' has no size 'batch'; it comes in one size."),
        ("mlp", {"layers": 0}, OptionError, "layers of model 'mlp' must be a positive integer; got 0"),
        ("bert", {"hidden": 10, "heads": 4}, OptionError, "hidden=10 must be a multiple of heads=4"),
        ("unet", {"image": 20, "depth": 3}, OptionError, "image=20 cannot be halved depth=3 times; choose a multiple of 8"),
        ("vit", {"image": 30}, OptionError, "image=30 must be a multiple of patch=16"),
    ],
)
def test_a_wrong_name_or_size_is_reported(name: str, sizes: dict[str, int], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        load(name, **sizes)
    assert str(caught.value).startswith(text)


NINE = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)


def test_there_are_nine_and_another_name_gets_the_nearest() -> None:
    assert light_models() == NINE
    with raises_exactly(ModelError, f"there is no light model 'resnet5'. Did you mean 'resnet50'? There are: {', '.join(NINE)}"):
        load_light("resnet5")


def layers(function: Function) -> Function:
    """Return the Function with every inner value an output."""
    return function.replace(outputs=tuple(Value(node.outputs[0]) for node in function.nodes))


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NINE)
def test_every_layer_stays_near_unit_size_and_the_output_says_something(name: str) -> None:
    function = load_light(name)
    assert not [node.op for node in function.nodes if node.op_type == "ConstantOfShape"]
    executable = create("ort").compile(layers(function), CompileContext())
    executable.prepare()
    inputs = [list(sample_inputs(function, seed).values()) for seed in (0, 1)]
    values, others = ([np.asarray(v) for v in executable.run(value)] for value in inputs)
    executable.close()
    sizes = [float(np.sqrt(np.mean(v**2))) for v, node in zip(values, function.nodes, strict=True) if node.op_type in WEIGHTED]
    assert 0.1 < min(sizes) <= max(sizes) < 10
    assert values[-1].max() < 10
    assert np.ptp(values[-1]) > 1e-3
    assert np.abs(values[-1] - others[-1]).max() > 1e-5  # the output depends on the input


WEIGHTED = ("Conv", "Gemm", "BatchNormalization", "Relu", "Sum")


def test_scalars_and_what_no_weighted_operator_reads_stay() -> None:
    nodes = node("Gemm", "x w b", "y"), node("Mul", "y scale", "z"), node("Concat", "z rest", "out", axis=0)
    shapes = {"w": (3, 4), "b": (4,), "scale": (), "rest": (2, 4)}
    constants = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    array = fill_random_weights(graph({"x": "float32[2,3]"}, {"out": "float32[4,4]"}, *nodes, constants=constants)).constants
    assert array["w"].array.any()
    assert array["b"].array.any()
    assert not array["scale"].array.any()
    assert not array["rest"].array.any()


def asking(*types: Type | None) -> Function:
    return Function(tuple(Value(f"x{index}", type_) for index, type_ in enumerate(types)), ())


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_a_tensor_has_its_declared_type_and_shape(dtype: DType, shape: tuple[int, ...]) -> None:
    array = sample_inputs(asking(TensorType(dtype, shape)))["x0"]
    assert isinstance(array, np.ndarray)
    assert (array.dtype, array.shape) == (dtype.numpy, shape)
    assert dtype is not DType.STRING or all(isinstance(text, str) for text in array.flat)


def test_the_seed_decides_the_values() -> None:
    function = asking(TensorType(DType.FLOAT32, (4,)))
    first, again, other = (sample_inputs(function, seed)["x0"] for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_symbolic_extents_get_the_size_that_is_given_and_one_otherwise() -> None:
    array = sample_inputs(asking(TensorType(DType.INT64, ("n", None, "m", 2))), sizes={"n": 5})["x0"]
    assert array.shape == (5, 1, 1, 2)
    assert set(array.flat) <= {0, 1}


def test_a_sequence_is_a_list_and_an_optional_is_there() -> None:
    array = sample_inputs(asking(OptionalType(SequenceType(TensorType(DType.BOOL, (1,))))))["x0"]
    assert [item.dtype for item in array] == [np.dtype(bool)] * 2


@pytest.mark.parametrize(
    ("type_", "what"),
    [
        (None, "x0: ? is of unknown type"),
        (TensorType(DType.FLOAT32), "x0: float32[...] is of unknown rank"),
        (MapType(DType.INT64, TensorType(DType.FLOAT32, ())), "x0: map(int64,float32[]) is a map"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(type_: Type | None, what: str) -> None:
    with raises_exactly(InputError, f"input {what}, so no random value can be made for it; give one"):
        sample_inputs(asking(type_))


def test_bytes_are_any_and_indices_are_any_row_of_the_table_that_they_read() -> None:
    nodes = (
        node("Gather", "ids second", "part"),
        node("Reshape", "part flat", "some"),
        node("Gather", "table some", "rows", axis=-1),
        node("Gather", "wide ids", "more"),
    )
    constants = {"table": np.zeros((2, 30), np.float32), "wide": np.zeros((40, 2), np.float32)}
    constants |= {"second": np.array(1), "flat": np.array([-1])}
    inputs = {"ids": "int64[2,500]", "picture": "uint8[2,500]", "mask": "int64[2,500]"}
    outputs = {"rows": "float32[2,500]", "more": "float32[2,500,2]", "picture": inputs["picture"], "mask": inputs["mask"]}
    array = sample_inputs(graph(inputs, outputs, *nodes, constants=constants))
    assert {name: (int(x.min()), int(x.max())) for name, x in array.items()} == {
        "ids": (0, 29),
        "picture": (0, 255),
        "mask": (0, 1),
    }


def test_texts_are_categories_of_the_encoder_that_reads_their_column() -> None:
    """A pipeline of scikit-learn raises an error for a text that is no category."""
    nodes = (
        node("ArrayFeatureExtractor", "x second", "column", domain=ML),
        node("OneHotEncoder", "column", "a", cats_strings=["Bern", "Chur"], domain=ML),
        node("Identity", "y", "same"),
        node("LabelEncoder", "same", "b", keys_strings=["red"], domain=ML),
    )
    ends = {"x": "string[20,2]", "y": "string[20,1]"}, {"a": "float32[20,1,2]", "b": "string[20,1]"}
    function = graph(*ends, *nodes, constants={"second": np.array([1])}, ml=3)
    values = sample_inputs(function)
    assert {*values["x"][:, 1]} == {"Bern", "Chur"} and {*values["y"].flat} == {"red"}
    assert all(text.startswith("text ") for text in values["x"][:, 0])


ML = "ai.onnx.ml"
SIZES: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "inner": 96, "vocabulary": 50}
IDS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
MAKERS = {"gpt": (gpt_decoder, 4), "llama": (llama_decoder, 2)}


def make(kind: str, capacity: int = 128, batch: int = 2) -> Function:
    maker, few = MAKERS[kind]
    return maker(DecoderSizes(key_heads=few, capacity=capacity, batch=batch, **SIZES))


@pytest.fixture(scope="module", params=MAKERS)
def decoder(request: pytest.FixtureRequest) -> tuple[Function, list[Any]]:
    """Return a decoder, and what the reference engine gives for each prefix."""
    function = make(request.param)
    m = xrt.XRTModule(function, engine="toy")
    return function, [m.new_session()(IDS[:, : end + 1]) for end in range(IDS.shape[1])]


MIXTURES = ["toy", "ort", "openvino", ["ort", "toy"], ["toy", "ort"], ["openvino", "ort"]]
PINS = {"['ort', 'toy']": ["TensorScatter=toy"], "['toy', 'ort']": ["MatMul=ort"], "['openvino', 'ort']": ["TensorScatter=ort"]}


@pytest.mark.slow
@pytest.mark.parametrize("engine", MIXTURES, ids=str)
def test_steps_equal_one_call_and_copy_no_cache(engine: Any, decoder: Any) -> None:
    function, expected = decoder
    m = xrt.XRTModule(function, engine=engine, pins=PINS.get(str(engine), []))
    session = m.new_session()
    results = [session(IDS[:, :3]), *(session(IDS[:, at : at + 1]) for at in range(3, IDS.shape[1]))]
    for result, wanted in zip(results, expected[2:], strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-4)
    assert [copy.input for copy in m.profile().copies] == ([] if engine == "toy" else ["length"])
    assert sorted(m.plan.used_engines) == sorted({*([engine] if isinstance(engine, str) else engine)})


def test_weights_are_taken_by_name() -> None:
    sizes = DecoderSizes(key_heads=4, **SIZES)
    with raises_exactly(OptionError, "weight 'transformer.wte.weight' is missing; it must be float32[50, 64]"):
        gpt_decoder(sizes, {})
    with raises_exactly(OptionError, "weight 'transformer.wte.weight' is of shape [3, 4]; it must be float32[50, 64]"):
        gpt_decoder(sizes, {"transformer.wte.weight": np.zeros((3, 4), "float32")})
    with raises_exactly(OptionError, "hidden=768 must be a multiple of heads=7, and heads of key_heads=12"):
        DecoderSizes(heads=7)


def test_the_capacity_is_metadata_that_is_checked() -> None:
    function = make("gpt")
    assert find_capacity(function) == Capacity("length", "ids", 1, 128)
    assert find_capacity(function.replace(metadata={})) is None
    for broken in (Capacity("lengths", "ids", 1, 128), Capacity("length", "ids", -1, 128)):
        with pytest.raises(ModelError) as caught:
            find_capacity(declare_capacity(function, broken))
        assert str(caught.value).endswith("it must name a state (length), an input, its axis and a size")
