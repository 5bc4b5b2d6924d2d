"""Models of the tests of devices."""

from __future__ import annotations

from typing import Any

import numpy as np

import xrt


class Net(xrt.Graph):
    """A product, a chain of elementwise operators, a softmax and a reduction."""

    def build(self, x: Any, w: Any) -> Any:
        h = xrt.ops.Relu(xrt.ops.MatMul(x, w))
        h = xrt.ops.Tanh(xrt.ops.Add(h, h))
        return {"p": xrt.ops.Softmax(h, axis=-1), "m": xrt.ops.ReduceMax(h)}


class Sums(xrt.Graph):
    """`Net` with its product as a sum, which CuPy can record: it calls cuBLAS in no capture."""

    def build(self, x: Any, w: Any) -> Any:
        h = xrt.ops.Relu(xrt.ops.ReduceSum(xrt.ops.Mul(xrt.ops.Unsqueeze(x, [2]), w), [1], keepdims=0))
        h = xrt.ops.Tanh(xrt.ops.Add(h, h))
        return {"p": xrt.ops.Softmax(h, axis=-1), "m": xrt.ops.ReduceMax(h)}


class Forked(xrt.Graph):
    """``a`` is made once, and read by Exp, Sqrt and Neg; ``Exp`` and ``Sqrt`` are pinned elsewhere by most tests."""

    def build(self, x: Any) -> Any:
        a = xrt.ops.Mul(xrt.ops.Abs(x), x)
        remaining, right = xrt.ops.Exp(a), xrt.ops.Sqrt(xrt.ops.Abs(a))
        return xrt.ops.Add(xrt.ops.Add(remaining, right), xrt.ops.Neg(a))


class Counter(xrt.Graph):
    """An input that the model updates."""

    def build(self, state: Any, x: Any) -> Any:
        after = xrt.ops.Add(state, x)
        self.update(state, after)
        return xrt.ops.Mul(after, after)


class Two(xrt.Graph):
    """Two halves, each on a device of its own."""

    def build(self, x: Any) -> Any:
        with xrt.builder.device("cuda:0"):
            a = xrt.ops.Add(xrt.ops.Relu(x), x)
        with xrt.builder.device("cuda:1"):
            return xrt.ops.Mul(xrt.ops.Tanh(a), a)


def odd(x: Any) -> Any:
    """Results that are an input, one value twice, and a constant."""
    y = xrt.ops.Neg(x)
    return {"y": y, "x": x, "again": y, "c": xrt.ops.Constant(value_floats=[1.0, 2.0])}


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")
