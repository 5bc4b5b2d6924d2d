"""Maps: dictionaries into and out of a module, on every way that a value takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import xrt
from xrt.errors import InputError
from xrt.formats import text
from xrt.formats.onnx import save_case
from xrt.graph import DType, Function, MapType, SequenceType, TensorType
from xrt.testing.corpus import find_entry
from xrt.testing.corpus.entry import f32, graph, node
from xrt.verify import Verdict

OF_TEXTS = MapType(DType.STRING, TensorType(DType.FLOAT32, ()))
ML = "ai.onnx.ml"


def classifier() -> Function:
    """A linear classifier with probabilities in maps, as skl2onnx writes it."""
    fields = {"coefficients": [0.5, -1.0, 0.25, 2.0], "intercepts": [0.0, 0.5], "classlabels_strings": ["no", "yes"]}
    return graph(
        {"x": "float32[N,2]"},
        {"label": "string[N]", "z": SequenceType(OF_TEXTS)},
        node("LinearClassifier", "x", "label p", domain=ML, post_transform="SOFTMAX", **fields),
        node("ZipMap", "p", "z", domain=ML, classlabels_strings=["no", "yes"]),
        ml=1,
    )


X = f32([[1, 2], [-1, 0.5]])


@pytest.mark.parametrize("engine", ["toy", "ort", "openvino"])
def test_a_classifier_gives_maps_and_is_verified(engine: str) -> None:
    with xrt.XRTModule(classifier(), engine=list(dict.fromkeys([engine, "toy"]))) as module:
        labels, maps = module(X)
        report = module.verify(X)
    assert labels.tolist() == ["yes", "yes"]
    assert [sorted(row) for row in maps] == [["no", "yes"]] * 2
    assert all(isinstance(value, float) for row in maps for value in row.values())
    assert report and report.whole.verdict is Verdict.AGREES


@pytest.mark.slow
def test_auto_measures_a_model_with_maps() -> None:
    with xrt.XRTModule(classifier(), engine=["ort", "toy", "auto"], budget=30.0) as module:
        module(X)
        module(X)
        assert module.tuned is not None
        assert "ended early" not in str(module.tuned)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zip_map_of_texts", "map_to_row", "map_to_values"])
def test_maps_cross_to_a_process_of_their_own(name: str) -> None:
    entry = find_entry(name)
    with xrt.XRTModule(entry.function, engine="toy", isolate=xrt.Isolation("toy", run=True), fold_constants=False) as module:
        results = module(*entry.make_inputs())
    assert entry.judge(results if isinstance(results, tuple) else (results,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "input 'x' is map(string,float32[]); pass a dict, not a int"),
        ([{"a": 1.0}], "input 'x' is map(string,float32[]); pass a dict, not a list"),
        ({"a": "b"}, "input 'x' is map(string,float32[]); it holds 'b', which is not of type float32"),
        ({1: 2.0}, "input 'x' is map(string,float32[]); it holds 1, which is not of type string"),
        ({"a": True}, "input 'x' is map(string,float32[]); it holds True, which is not of type float32"),
    ],
)
def test_a_map_of_another_type_is_an_error(given: Any, said: str) -> None:
    module = xrt.XRTModule(find_entry("map_to_row").function, engine="toy")
    with pytest.raises(InputError) as caught:
        module(given)
    assert str(caught.value) == said


def test_numbers_of_numpy_are_numbers_of_a_map() -> None:
    module = xrt.XRTModule(find_entry("map_to_row").function, engine="ort")
    assert module({"c": np.float32(2.5), "a": np.array(1)}).tolist() == [[2, 0, 5]]


def test_a_case_with_maps_is_written_as_onnx_writes_maps(tmp_path: Path) -> None:
    entry = find_entry("zip_map_of_integers")
    save_case(entry.function, entry.inputs, entry.expected, tmp_path)
    data = (tmp_path / "test_data_set_0" / "output_0.pb").read_bytes()
    maps = onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    assert [{int(k): float(v) for k, v in entry.items()} for entry in maps] == [{7: 0.25, -1: 0.75}, {7: 1.0, -1: 0.0}]
    entry = find_entry("map_to_row")
    save_case(entry.function, entry.inputs, entry.expected, tmp_path)
    values = onnx.numpy_helper.to_dict(onnx.MapProto.FromString((tmp_path / "test_data_set_0" / "input_0.pb").read_bytes()))
    assert {(k.decode() if isinstance(k, bytes) else k): float(v) for k, v in values.items()} == {"c": 2.5, "a": 1.0}


def test_a_case_holds_lists_of_any_tensors(tmp_path: Path) -> None:
    texts, numbers = np.array(["\udcff"], object), np.array([1, 2], ">i4")
    f = text.parse("function f(a: seq(string[1]), b: seq(int32[2])) -> (a: seq(string[1])) {\n  opset ai.onnx 17\n}")
    save_case(f, [[texts], [numbers]], [[texts]], tmp_path)
    written = [(tmp_path / "test_data_set_0" / f"input_{index}.pb").read_bytes() for index in (0, 1)]
    strings, integers = (onnx.SequenceProto.FromString(data).tensor_values[0] for data in written)
    assert list(strings.string_data) == [b"\xff"]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(integers), [1, 2])


def test_a_map_that_onnxruntime_cannot_be_given_is_declined() -> None:
    of_integers = MapType(DType.STRING, TensorType(DType.INT64, ()))
    f = graph(
        {"x": of_integers}, {"y": "int64[1,2]"}, node("DictVectorizer", "x", "y", domain=ML, string_vocabulary=["a", "b"]), ml=1
    )
    with xrt.XRTModule(f, engine=["ort", "toy"]) as module:
        assert module({"b": 3}).tolist() == [[0, 3]]
        (reason,) = module.plan.reasons
    assert "its Python interface has no values of type map(string,int64[])" in reason.text
