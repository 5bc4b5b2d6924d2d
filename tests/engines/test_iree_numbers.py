"""The iree engine's numbers where IREE by itself is unsafe, or wrong at the edges."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from tests.engines.iree_running import compiled, function, why
from tests.engines.written import tensor
from xrt.engines.iree.support import why_not
from xrt.graph import DType, Function, Node, read_attributes

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
INT64 = DType.INT64


def run(f: Function, *inputs: Array) -> list[Array]:
    assert [why_not(node, f) for node in f.nodes] == [None] * len(f.nodes)
    return list(compiled(f).run(inputs))


def f32(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def test_indices_stay_inside() -> None:
    """Outside of their axis they are an error in ONNX; here they are the nearest inside."""
    f = function(
        Node("Gather", ("x", "i"), ("a",)),
        Node("GatherElements", ("x", "i"), ("b",)),
        Node("GatherND", ("m", "t"), ("c",)),
        Node("ScatterElements", ("x", "i", "u"), ("d",)),
        Node("ScatterND", ("m", "t", "v"), ("e",)),
        inputs={
            "x": tensor(4),
            "i": tensor(3, dtype=INT64),
            "u": tensor(3),
            "m": tensor(2, 3),
            "t": tensor(1, 2, dtype=INT64),
            "v": tensor(1),
        },
        outputs=("a", "b", "c", "d", "e"),
    )
    x, m = np.arange(4, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    executable = compiled(f)
    for far in (10, 10**6, 10**12):
        inputs = [x, np.array([far, -far, -1]), f32(7, 8, 9), m, np.array([[1, far]]), f32(9)]
        a, b, c, d, e = executable.run(inputs)
        assert a.tolist() == b.tolist() == [3, 0, 3] and c.tolist() == [5]
        assert d[0] == 8 and d[3] in (7, 9) and d[1:3].tolist() == [1, 2]
        assert e.tolist() == [[0, 1, 2], [3, 4, 9]]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, 4.0])
def test_powers_are_products(exponent: float) -> None:
    power = Node("Pow", ("x", "e"), ("y",))
    f = function(power, inputs={"x": tensor(3)}, constants={"e": np.array(exponent, np.float32)})
    x = f32(-2, 3, 0.5) if exponent >= 1 else f32(4, 9, 0.25)
    assert np.allclose(run(f, x)[0], x**exponent, rtol=1e-6)


@pytest.mark.parametrize("exponent", [None, -1.5, 100.0])
def test_other_powers_are_declined(exponent: float | None) -> None:
    inputs = {"x": tensor(3)} | ({"e": tensor(3)} if exponent is None else {})
    constants = {} if exponent is None else {"e": np.array(exponent, np.float32)}
    f = function(Node("Pow", ("x", "e"), ("y",)), inputs=inputs, constants=constants)
    assert why(f) == "IREE's powers are exponentials of logarithms: NaN for negative numbers"


@pytest.mark.parametrize(
    ("node", "inputs", "constants", "reason"),
    [
        (
            Node("Slice", ("x", "s", "e", "a", "t"), ("y",)),
            {"x": tensor(4)},
            {"s": np.array([3]), "e": np.array([0]), "a": np.array([0]), "t": np.array([-1])},
            "IREE's Slice takes a step back for none",
        ),
        (
            Node("Pad", ("x", "p"), ("y",)),
            {"x": tensor(4)},
            {"p": np.array([-1, 0])},
            "IREE's Pad takes a negative pad for an extent",
        ),
        (
            Node("Div", ("x", "x"), ("y",)),
            {"x": tensor(4, dtype=DType.UINT8)},
            {},
            "IREE takes large unsigned numbers for negative ones here",
        ),
        (
            Node("AveragePool", ("x",), ("y",), read_attributes({"kernel_shape": [2, 2], "dilations": [2, 2]})),
            {"x": tensor(1, 1, 6, 6)},
            {},
            "IREE does not divide the sums of a dilated AveragePool",
        ),
    ],
    ids=lambda value: value.op_type if isinstance(value, Node) else "",
)
def test_what_it_gets_wrong_is_declined(node: Node, inputs: Any, constants: Any, reason: str) -> None:
    assert why(function(node, inputs=inputs, constants=constants, opset=19)) == reason


def test_a_node_that_waits_for_one_that_is_spelled_otherwise() -> None:
    first = Node("Max", ("x", "x"), ("m",), name="first")
    second = Node("Neg", ("x",), ("n",), name="second", control=("first",))
    f = function(first, second, inputs={"x": tensor(2)}, outputs=("m", "n"))
    assert [result.tolist() for result in run(f, f32(1, -2))] == [[1, -2], [-1, 2]]


@pytest.mark.parametrize("mode", ["reflect", "wrap"])
def test_an_edge_is_mirrored_or_repeated_along_chosen_axes(mode: Literal["reflect", "wrap"]) -> None:
    pad = Node("Pad", ("x", "pads", "", "axes"), ("y",), read_attributes({"mode": mode}))
    constants = {"pads": np.array([16, 1, 0, 2]), "axes": np.array([-1, 0])}
    x = np.arange(80, dtype=np.float32).reshape(4, 20)
    f = function(pad, inputs={"x": tensor(4, 20)}, constants=constants, opset=19)
    assert np.array_equal(run(f, x)[0], np.pad(x, ((1, 2), (16, 0)), mode))


@pytest.mark.parametrize(("pads", "size"), [((1, 1, 1, 1), 2), ((1, 1, 1, 1), 3), ((0, 0, 0, 0), 5), ((0, 2, 0, 0), 3)])
def test_a_window_that_fits_once_does_not_read_what_is_behind_it(pads: tuple[int, ...], size: int) -> None:
    conv = Node("Conv", ("x", "w"), ("y",), read_attributes({"strides": (3, 3), "pads": pads}))
    f = function(conv, inputs={"x": tensor(1, 1, size, size)}, constants={"w": np.ones((1, 1, 3, 3), np.float32)})
    x = np.arange(1, size * size + 1, dtype=np.float32).reshape(1, 1, size, size)
    seen = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))[..., :3, :3]
    assert run(f, x)[0].tolist() == [[[[seen.sum()]]]]
