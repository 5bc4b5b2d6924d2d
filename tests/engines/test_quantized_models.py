"""Quantized models: weights reach a library quantized where it computes with them so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import xrt
from xrt.engines.contract import registry
from xrt.graph import Value
from xrt.precision.byte_sums import sums_bytes_exactly
from xrt.testing.corpus.entry import graph, node

if TYPE_CHECKING:
    from xrt.graph import Function

RNG = np.random.default_rng(0)


SHAPES = {
    "Add": ("float32[3,4]", (4,), "float32[3,4]"),
    "Conv": ("float32[1,4,2,2]", (8, 4, 1, 1), "float32[1,8,2,2]"),
    "MatMul": ("float32[3,4]", (4, 8), "float32[3,8]"),
    "Mul": ("float32[3,4]", (), "float32[3,4]"),
}


def quantized_model(
    *,
    last: str = "QuantizeLinear",
    zero: bool = True,
    op: str = "MatMul",
    move: bool = False,
    turn: bool = False,
    scales: int = 0,
    most: int = 127,
) -> Function:
    """Return an operator on dequantized operands, which may be moved and turned; what is last reads its result."""
    x, shape, y = SHAPES[op]
    to_bytes = [node("QuantizeLinear", "r sy zx", "qy"), node("DequantizeLinear", "qy sy zx", "y")]
    return graph(
        {"x": x},
        {"y": y},
        node("QuantizeLinear", "x sx zx", "qx"),
        node("DequantizeLinear", "qx sx zx", "dx"),
        node("DequantizeLinear", "w sw zw" if zero else "w sw", "dw", **({"axis": 0} if scales else {})),
        *([node("Transpose", "dx", "tx", perm=[1, 0]), node("Reshape", "tx shape", "mx")] if move else []),
        *([node("Transpose", "dw", "tw", perm=[1, 0])] if turn else []),
        node(op, f"{'mx' if move else 'dx'} {'tw' if turn else 'dw'}", "p"),
        node("Relu", "p", "r"),
        *(to_bytes if last == "QuantizeLinear" else [node(last, "r", "y")]),
        constants={
            "w": RNG.integers(-most, most + 1, shape[::-1] if turn else shape).astype(np.int8),
            "sx": np.float32(1 / 8),
            "sw": np.full((scales,) if scales else (), 1 / 64, np.float32),
            "sy": np.float32(2),
            "zx": np.uint8(128),
            "zw": np.zeros((scales,) if scales else (), np.int8),
            **({"shape": np.asarray([3, 4])} if move else {}),
        },
        opset=21,
    )


def list_dequantized_weights(module: xrt.XRTModule, x: Any) -> list[str]:
    plan = module.plan_for(x)
    return [node.name for launch in plan.launches for node in launch.function.nodes if node.outputs[0] == "dw"]


def x_of(function: Function) -> Any:
    return RNG.standard_normal(function.inputs[0].type.shape).astype(np.float32) * 8  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terms", "engine", "are_kept"),
    [
        ({}, "ort", True),
        ({}, "toy", False),
        ({}, "ort{optimization=none}", False),
        ({"op": "Conv"}, "ort", True),
        ({"op": "Conv", "last": "Sigmoid"}, "ort", False),
        ({"last": "Sigmoid"}, "ort", True),
        ({"op": "Add"}, "ort", True),
        ({"op": "Mul"}, "ort", True),
        ({"op": "Add", "last": "Sigmoid"}, "ort", False),
        ({"op": "Add", "scales": 4}, "ort", False),
        ({"op": "Add"}, "openvino", False),
        ({"op": "Conv", "last": "Sigmoid"}, "openvino", True),
        ({"move": True}, "ort", True),
        ({"move": True}, "openvino", True),
        ({"turn": True}, "ort", True),
        ({"turn": True}, "openvino", True),
        ({"zero": False}, "ort", False),
        ({}, "openvino", True),
    ],
    ids=str,
)
def test_weights_are_kept_quantized_where_the_library_fuses_them(terms: dict[str, Any], engine: str, are_kept: bool) -> None:
    function = quantized_model(**terms)
    x = x_of(function)
    with xrt.XRTModule(function, engine=engine) as m:
        assert bool(list_dequantized_weights(m, x)) is are_kept


@pytest.mark.filterwarnings("ignore::xrt.errors.PlacementWarning")  # a search of 1 s may measure nothing on a busy machine
def test_auto_passes_weights_as_its_engine_alone_does() -> None:
    """Which engine is fastest depends on the processor."""
    function = quantized_model()
    x = x_of(function)
    with xrt.XRTModule(function, engine="auto", budget=1.0) as m:
        weights = list_dequantized_weights(m, x)
        with xrt.XRTModule(function, engine=[launch.engine for launch in m.plan_for(x).launches]) as alone:
            assert weights == list_dequantized_weights(alone, x)


def test_weights_of_8_bits_do_not_saturate_on_ort() -> None:
    assert sums_bytes_exactly(registry.create("ort"))


def test_nodes_may_share_weights_and_zero_points() -> None:
    function = quantized_model()
    more = node("DequantizeLinear", "v sw zw", "dv"), node("MatMul", "dx dw", "y2"), node("MatMul", "dx dv", "y3")
    twice = function.replace(
        nodes=(*function.nodes, *more),
        constants={**function.constants, "v": function.constants["w"]},
        outputs=(*function.outputs, Value("y2"), Value("y3")),
    )
    x = x_of(function)
    with xrt.XRTModule(twice, engine="ort", strict=True) as m, xrt.XRTModule(twice, engine="toy{native=off}") as reference:
        for mine, theirs in zip(m(x), reference(x), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2)


@pytest.mark.parametrize("terms", [{"op": "MatMul"}, {"op": "Conv"}, {"turn": True}], ids=str)
@pytest.mark.parametrize("engine", ["ort", "openvino"])
def test_a_quantized_model_is_a_step_off_the_reference_at_most(terms: dict[str, Any], engine: str) -> None:
    # A library that adds products of bytes in 16 bits on this processor is right with weights of 7 bits.
    function = quantized_model(**terms, most=127 if sums_bytes_exactly(registry.create(engine)) else 64)
    x = x_of(function)
    with xrt.XRTModule(function, engine=engine, strict=True) as m, xrt.XRTModule(function, engine="toy{native=off}") as reference:
        steps = (np.asarray(m(x)) - np.asarray(reference(x))) / 2
    assert np.array_equal(steps, np.round(steps))
    assert np.abs(steps).max() <= 1
    assert np.count_nonzero(steps) <= steps.size // 8  # only where a quotient is as near to both


def test_weights_of_4_bits_stay_so_and_their_products_are_of_floats() -> None:
    weights = RNG.integers(-8, 8, (64, 16)).astype(ml_dtypes.int4)
    scale = RNG.uniform(0.1, 1, (4, 16)).astype(np.float32)
    function = graph(
        {"x": "float32[2,64]"},
        {"y": "float32[2,16]"},
        node("DequantizeLinear", "w scale", "dw", axis=0, block_size=16),
        node("MatMul", "x dw", "y"),
        constants={"w": weights, "scale": scale},
        opset=21,
    )
    x = RNG.standard_normal((2, 64)).astype(np.float32)
    x[:, 0] = 1000  # what rounding the row to bytes would measure by
    with xrt.XRTModule(function, engine="ort", strict=True) as m:
        assert list_dequantized_weights(m, x) != []
        due = x.astype(np.float64) @ (weights.astype(np.float64) * np.repeat(scale, 16, 0))
        np.testing.assert_allclose(m(x), due, rtol=1e-5, atol=1e-3)
