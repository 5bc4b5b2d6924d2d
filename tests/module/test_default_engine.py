"""The engine of a module that names none: the first installed one that supports the whole model."""

import subprocess
import sys

import numpy as np
import pytest

import xrt
from xrt.engines import names
from xrt.errors import OptionError
from xrt.formats import onnx
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.module.programs import DEFAULT_ENGINES

X = np.linspace(-2, 2, 6, dtype="float32").reshape(2, 3)
CHOSEN = "is the default: the first installed of ort, openvino, torch, xla, toy that supports the whole model"


def atan(dtype=DType.FLOAT64):
    """ONNX Runtime and OpenVINO support it in float32 alone."""
    x, y = (Value(name, TensorType(dtype, (2, 3))) for name in "xy")
    return Function((x,), (y,), (Node("Atan", ("x",), ("y",)),), opsets={"": 14})


def relu():
    x, y = (Value(name, TensorType(DType.FLOAT32, (2, 3))) for name in "xy")
    return Function((x,), (y,), (Node("Relu", ("x",), ("y",)),), opsets={"": 14})


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
        assert m.engines == ("torch", "toy") and {launch.engine for launch in m.plan.launches} == {"torch"}
        said = str(m.explain())
        assert "engine 'ort' does not support the whole model: 'y' (Atan): ONNX Runtime" in said
        assert "engine 'openvino' does not support the whole model: 'y' (Atan)" in said
        assert f"engine 'torch' {CHOSEN}" in said


def test_a_graph_is_decided_by_the_types_of_its_first_call():
    for dtype, engine in (("float32", "ort"), ("float64", "torch")):
        with xrt.XRTModule(Atan()) as m:
            np.testing.assert_allclose(m(X.astype(dtype)), np.arctan(X.astype(dtype)), rtol=1e-6)
            assert {launch.engine for launch in m.plan.launches} == {engine}


def test_a_named_engine_stays_what_it_is():
    with xrt.XRTModule(relu(), engine="toy") as m:
        m(X)
        assert m.engines == ("toy",) and CHOSEN not in str(m.explain())


def test_options_that_need_a_named_engine_say_so():
    with pytest.raises(OptionError, match="pass engine='auto'"):
        xrt.XRTModule(relu(), max_error=0.01)
    with pytest.raises(OptionError, match="a constraint on precision is for an engine that computes in it"):
        xrt.XRTModule(relu(), precision=["bf16", "Softmax=fp32"])


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
        "from tests.module.test_default_engine import relu, X\n"
        "xrt.XRTModule(relu())(X)\n"
        "print([name for name in ('onnxruntime', 'openvino', 'torch', 'jax') if name in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "['onnxruntime']\n", run.stderr


def test_every_default_engine_is_registered():
    assert set(DEFAULT_ENGINES) <= set(names())
