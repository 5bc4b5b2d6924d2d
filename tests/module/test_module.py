"""XRTModule as its user meets it: models of every kind, signatures and outputs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.small_models import ENGINES, Affine, Picky, X, chain, relu
from xrt.cache import CompileCache
from xrt.errors import (
    InputError,
    ModelError,
)
from xrt.formats import onnx
from xrt.graph import Constant, DType, Function, Node, TensorType, Value

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


def test_symbolic_extents_stay_symbolic_where_every_engine_keeps_them() -> None:
    cache = CompileCache()
    m = xrt.XRTModule(relu(("N", 3)), engine="toy", cache=cache)
    for rows in range(1, 5):
        assert m(np.ones((rows, 3), "float32")).shape == (rows, 3)
    assert cache.statistics.misses == 1


@pytest.mark.slow
def test_symbolic_extents_are_fixed_for_an_engine_that_needs_it() -> None:
    cache = CompileCache()
    m = xrt.XRTModule(relu(("N", 3)), engine=[Picky(), "toy"], cache=cache)
    for rows in (1, 2, 1):
        assert m(np.ones((rows, 3), "float32")).shape == (rows, 3)
    assert cache.statistics.misses == 2
    assert m.plan.launches[0].function.inputs[0].type == TensorType(DType.FLOAT32, (1, 3))


def test_two_modules_of_one_model_share_the_compile() -> None:
    cache = CompileCache()
    for _ in range(2):
        xrt.XRTModule(relu(), engine="toy", cache=cache)(X)
    assert (cache.statistics.hits, cache.statistics.misses) == (1, 1)


def test_many_threads_call_at_once() -> None:
    cache = CompileCache()
    m = xrt.XRTModule(chain("Relu", "Neg", "Abs"), engine=[Picky(), "toy"], cache=cache)
    inputs = [np.full((2, 3), i, "float32") for i in range(16)]
    results: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: [m(inputs[i]) for _ in range(20)]})) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(y, inputs[i]) for i, found in results.items() for y in found)
    assert len(results) == 16
    assert cache.statistics.misses == 2


# ---------------------------------------------------------------------- outputs


def test_inner_values_are_fetched_by_name() -> None:
    m = xrt.XRTModule(chain("Neg", "Relu"), engine="toy")
    found = m(X, fetch=["h0", "y", "x"])
    assert list(found) == ["h0", "y", "x"]
    np.testing.assert_array_equal(found["h0"], -X)
    assert not np.shares_memory(found["x"], X)
    assert [v.name for v in m.outputs] == ["y"]
    with pytest.raises(InputError, match=r"^fetch asks for 'h7', which is no value of the model\.$"):
        m(X, fetch=["h7"])
    with pytest.raises(InputError, match=r"^fetch must be a list of value names; got the string 'h0'; pass fetch=\['h0'\]$"):
        m(X, fetch="h0")


@pytest.mark.parametrize("engine", ["toy", "ort", "tvm"])
def test_a_callers_buffer_is_filled(engine: str) -> None:
    m = xrt.XRTModule(relu(), engine=engine, strict=True)
    out = np.full((2, 3), 7, "float32")
    assert m(X, out=out) is out
    np.testing.assert_array_equal(out, np.maximum(X, 0))


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.empty((3, 2), "float32"), "out[0] for output 'y' must be float32[2,3]; got float32[3, 2]"),
        (np.empty((2, 3), "float64"), "out[0] for output 'y' must be float32[2,3]; got float64[2, 3]"),
        (
            np.empty((3, 2), "float32").T,
            "out[0] for output 'y' is not C-contiguous; a buffer must be a writeable, C-contiguous array",
        ),
        ([np.empty((2, 3), "float32")] * 2, "out has 2 buffers; the model has 1 output (y): give one, or None, for each"),
        (X, "out[0] for output 'y' overlaps input 'x'; give a buffer of its own"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(out: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        xrt.XRTModule(relu(), engine="toy")(X, out=out)
    assert str(caught.value) == text


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_no_output_shares_memory_with_anything(engine: Any) -> None:
    """Inputs, constants and repeated values that are outputs are copies."""
    type_ = TensorType(DType.FLOAT32, (2, 3))
    function = Function(
        (Value("x", type_),),
        tuple(Value(n, type_) for n in ("x", "y", "y", "w", "z")),
        (Node("Relu", ("x",), ("y",)), Node("Reshape", ("y", "shape"), ("z",))),
        {"w": Constant(X), "shape": Constant(np.array([2, 3]))},
        {"": 14},
    )
    m, x = xrt.XRTModule(function, engine=engine), X.copy()
    results = [*m(x), *m(x)]
    for i, a in enumerate(results):
        assert not np.shares_memory(a, x) and not np.shares_memory(a, function.constants["w"].array)
        assert not any(np.shares_memory(a, b) for b in results[:i])


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_an_alias_updates_the_input(engine: Any) -> None:
    m = xrt.XRTModule(chain("Neg", aliases=(("x", "y"),)), engine=engine)
    for _ in range(2):
        x = X.copy()
        assert m(x) is x
        np.testing.assert_array_equal(x, -X)
