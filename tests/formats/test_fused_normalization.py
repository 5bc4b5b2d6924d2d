"""Models that ONNX Runtime's optimizer wrote: normalizations in the default domain at opsets without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import xrt
from xrt.errors import ModelError
from xrt.formats.onnx import load

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
SCALE, BIAS = np.float32([1, 2, 3, 4]), np.float32([0.1, 0.2, 0.3, 0.4])


def normalize(x: Any, op: str, dtype: Any) -> Any:
    wide = x.astype(np.float64)
    if op == "LayerNormalization":
        wide = wide - wide.mean(-1, keepdims=True)
    result = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * SCALE
    return (result + BIAS if op == "LayerNormalization" else result).astype(dtype)


def make(op: str, opset: int, dtype: Any = np.float32, *, axis: int = -1, known: bool = True) -> onnx.ModelProto:
    names = ["x", "s", "b"] if op == "LayerNormalization" else ["x", "s"]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info("x", kind, [2, 3, 4])]
    held = [numpy_helper.from_array(array.astype(dtype), name) for name, array in (("s", SCALE), ("b", BIAS)) if name in names]
    if not known:
        inputs.append(helper.make_tensor_value_info("s", kind, [4]))
        held = held[1:]
    nodes = [helper.make_node(op, names, ["y"], axis=axis, epsilon=1e-5, **({"stash_type": 1} if opset >= 17 else {}))]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", kind, [2, 3, 4])], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


FORMS = [("LayerNormalization", 11), ("LayerNormalization", 16)]
FORMS += [("SimplifiedLayerNormalization", opset) for opset in (11, 17, 18, 23)]


@pytest.mark.parametrize("engine", ["toy", "ort", "openvino"])
@pytest.mark.parametrize(("op", "opset"), FORMS)
def test_they_run_on_every_engine(op: str, opset: int, engine: str) -> None:
    with xrt.XRTModule(make(op, opset), engine=engine, strict=True) as module:
        np.testing.assert_allclose(module(X), normalize(X, op, np.float32), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_halves_are_normalized_in_float32(op: str) -> None:
    x = (300 * X).astype(np.float16)  # whose squares float16 does not hold
    with xrt.XRTModule(make(op, 13, np.float16), engine="ort") as module:
        np.testing.assert_allclose(module(x), normalize(x, op, np.float16), rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_the_scale_may_be_an_input_of_any_float_type(op: str, dtype: Any) -> None:
    with xrt.XRTModule(make(op, 13, dtype, known=False), engine="toy") as module:
        found = module(X.astype(dtype), SCALE.astype(dtype))
    np.testing.assert_allclose(found, normalize(X.astype(dtype), op, dtype), rtol=3e-3, atol=3e-3)


def test_axes_are_those_of_the_scale() -> None:
    with xrt.XRTModule(make("LayerNormalization", 13, axis=2), engine="toy") as module:
        np.testing.assert_allclose(module(X), normalize(X, "LayerNormalization", np.float32), rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ModelError, match="the axes of SimplifiedLayerNormalization 'y' are not known: its scale is no initialiser"
    ):
        load(make("SimplifiedLayerNormalization", 13, axis=2, known=False))


def test_a_session_writes_a_file_that_is_read(tmp_path: Any) -> None:
    import onnxruntime

    text = """<ir_version: 8, opset_import: ["": 13]> g (float[2,3,4] x) => (float[2,3,4] y)
    <float[4] s = {1,2,3,4}, float[4] b = {0.1,0.2,0.3,0.4}, float two = {2}, float e = {0.00001}> {
        m = ReduceMean <axes=[-1]> (x)  d = Sub(x, m)  q = Pow(d, two)  v = ReduceMean <axes=[-1]> (q)  w = Add(v, e)
        r = Sqrt(w)  n = Div(d, r)  k = Mul(n, s)  y = Add(k, b)
    }"""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), options)
    assert "LayerNormalization" in {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    with xrt.XRTModule(tmp_path / "optimized.onnx", engine="openvino") as module:
        np.testing.assert_allclose(module(X), normalize(X, "LayerNormalization", np.float32), rtol=1e-4, atol=1e-5)
