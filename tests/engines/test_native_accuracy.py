"""How exact the native transcendental functions of float32 are, in units in the last place, over their whole range.

The table is the specification: a function that gets worse fails, and the documentation quotes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.engines.native_running import Array, on_native, one_node, ulps
from xrt.graph import Node

TABLE: dict[str, tuple[float, float, float, Callable[[float], float]]] = {
    "Exp": (-104.0, 89.0, 1.1, lambda x: math.exp(x)),
    "Log": (0.0, 3.4e38, 1.5, lambda x: math.log(x)),
    "Tanh": (-20.0, 20.0, 2.0, math.tanh),
    "Sigmoid": (-87.0, 100.0, 2.5, lambda x: 1 / (1 + math.exp(-x))),
    "Erf": (-6.0, 6.0, 2.5, math.erf),
    "Softplus": (-100.0, 100.0, 2.5, lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x)))),
    "Elu": (-100.0, 100.0, 2.0, lambda x: math.expm1(x) if x < 0 else x),
    "Mish": (-80.0, 100.0, 5.0, lambda x: x * math.tanh(max(x, 0.0) + math.log1p(math.exp(-abs(x))))),
}
"""Function, range, the units in the last place that it may be off, and the same in double precision."""


def samples(low: float, high: float, count: int = 60_000) -> Array:
    """Return float32 numbers spread over a range evenly, and over its magnitudes evenly; denormals among them."""
    rng = np.random.default_rng(0)
    even = rng.uniform(low, high, count)
    small = np.exp2(rng.uniform(-149, math.log2(max(abs(low), high)), count)) * rng.choice([-1, 1], count)
    both = np.concatenate([even, small[(small >= low) & (small <= high)]]).astype(np.float32)
    return both[both > 0] if low == 0 else both


@pytest.mark.parametrize("op", sorted(TABLE))
def test_accuracy(op: str) -> None:
    low, high, most, exact = TABLE[op]
    x = samples(low, high)
    (actual,) = on_native(one_node(op, [x]), [x])
    expected = np.vectorize(exact, otypes=[np.float64])(x.astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = expected.astype(np.float32)
        apart = np.where(actual == rounded, 0.0, np.abs(actual - expected) / np.spacing(np.abs(rounded)))
    worst = int(np.argmax(apart))
    assert apart[worst] <= most, f"{op}({x[worst]!r}) is {apart[worst]:.2f} units off: {actual[worst]!r}, not {expected[worst]!r}"


def test_powers_are_nearly_correctly_rounded() -> None:
    rng = np.random.default_rng(0)
    x, y = np.exp2(rng.uniform(-20, 20, 50_000)).astype(np.float32), rng.uniform(-6, 6, 50_000).astype(np.float32)
    (actual,) = on_native(one_node("Pow", [x, y]), [x, y])
    expected = x.astype(np.float64) ** y.astype(np.float64)
    assert (np.abs(actual - expected) / np.spacing(np.abs(expected).astype(np.float32))).max() <= 0.51


LEAST = float(np.float32(1e-45))
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("Exp", [1, 1, np.inf, 0, np.nan, 1, 1, np.inf, 0]),
        ("Log", [-np.inf, -np.inf, np.inf, np.nan, np.nan, math.log(LEAST), np.nan, math.log(3.4e38), np.nan]),
        ("Tanh", [0.0, -0.0, 1, -1, np.nan, 1e-45, -1e-45, 1, -1]),
        ("Erf", [0.0, -0.0, 1, -1, np.nan, 1e-45, -1e-45, 1, -1]),
        ("Sigmoid", [0.5, 0.5, 1, 0, np.nan, 0.5, 0.5, 1, 0]),
        ("Softplus", [math.log(2), math.log(2), np.inf, 0, np.nan, math.log(2), math.log(2), 3.4e38, 0]),
        ("Elu", [0.0, -0.0, np.inf, -1, np.nan, 1e-45, -1e-45, 3.4e38, -1]),
        ("Sqrt", [0.0, -0.0, np.inf, np.nan, np.nan, 3.743392e-23, np.nan, 1.8439089e19, np.nan]),
        ("Floor", [0.0, -0.0, np.inf, -np.inf, np.nan, 0.0, -1, 3.4e38, -3.4e38]),
        ("Ceil", [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -0.0, 3.4e38, -3.4e38]),
        ("Round", [0.0, -0.0, np.inf, -np.inf, np.nan, 0.0, -0.0, 3.4e38, -3.4e38]),
    ],
)
def test_special_values(op: str, expected: list[float]) -> None:
    wanted = np.array(expected, np.float32)
    (actual,) = on_native(one_node(op, [SPECIAL]), [SPECIAL])
    with np.errstate(all="ignore"):
        assert (ulps(actual, wanted) <= 1).all(), actual
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(actual)[numbers], np.signbit(wanted)[numbers])


def test_node_names_are_kept_for_a_person() -> None:
    """A chain of one keeps its node's name, so that errors and profiles name what the model's owner knows."""
    from xrt.engines.native.fusion import fuse_elementwise

    (node,) = fuse_elementwise(one_node("Exp", [SPECIAL])).nodes
    assert isinstance(node, Node)
    assert (node.name, node.attr("nodes")) == ("y0", ("y0",))
