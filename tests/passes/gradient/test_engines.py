"""Gradients on other engines than the reference, and on two of them in turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xrt
from tests.passes.gradient.checking import Array, make_function, run
from xrt import ops
from xrt.graph import Function

DRAW = np.random.default_rng(4)


def f(*shape: int) -> Array:
    return DRAW.standard_normal(shape).astype("float32")


def convolutional(x: Any, w: Any, scale: Any, shift: Any, v: Any, head: Any) -> Any:
    h = ops.Conv(x, w, strides=[2, 2], pads=[1, 1, 1, 1])
    mean, variance = np.zeros(4, "float32"), np.ones(4, "float32")
    h = ops.Relu(ops.BatchNormalization(h, scale, shift, mean, variance, training_mode=1, outputs=3)[0])
    h = ops.MaxPool(ops.Conv(h, v, group=2, pads=[1, 1, 1, 1]), kernel_shape=[2, 2], outputs=1)[0]
    scores = ops.Flatten(ops.GlobalAveragePool(h)) @ head
    return {"loss": ops.SoftmaxCrossEntropyLoss(scores, np.asarray([0, 2]), outputs=1)[0]}


def attention(x: Any, table: Any, qkv: Any, scale: Any, out: Any) -> Any:
    h = ops.Gather(table, x)
    q, k, v = ops.Split(ops.LayerNormalization(h, scale, outputs=1)[0] @ qkv, axis=-1, num_outputs=3)
    weights = ops.Softmax(q @ ops.Transpose(k, perm=[0, 2, 1]) * 0.35, axis=-1)
    h = h + ops.Gelu((weights @ v) @ out)
    return {"loss": ops.ReduceMean(h * h, keepdims=0)}


NETWORKS: dict[str, tuple[Any, tuple[Array, ...]]] = {
    "convolutional": (convolutional, (f(2, 3, 8, 8), f(4, 3, 3, 3), f(4), f(4), f(4, 2, 3, 3), f(4, 3))),
    "attention": (attention, (np.asarray([[1, 3, 3], [0, 2, 1]]), f(5, 8), f(8, 24), f(8), f(8, 8))),
}


def alternate(function: Function, engines: tuple[str, str]) -> list[str]:
    """Return pins that put neighboring nodes on the engines in turns."""
    return [f"name:{node.name}={engines[place % 2]}" for place, node in enumerate(function.nodes)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "torch", "openvino", "ort and toy in turns"])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_other_engines_give_the_gradients_of_the_reference(name: str, engine: str) -> None:
    build, arrays = NETWORKS[name]
    function = xrt.gradient(make_function(build, arrays), of="loss")
    expected = run(function, arrays)
    in_turns = engine.endswith("turns")
    engines = ["ort", "toy"] if in_turns else [engine, "toy"]
    pins = alternate(function, ("ort", "toy")) if in_turns else []
    with xrt.XRTModule(function, engines, pins=pins) as m:
        results = m(*arrays)
        used = {launch.engine for launch in m.plan.launches}
    assert engines[0] in {str(one).split("{")[0] for one in used}
    for found, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))
