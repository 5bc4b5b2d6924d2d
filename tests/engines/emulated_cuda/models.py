"""Models of the tests of tvm on CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np

import xrt
from tests.devices.models import Net, numbers

__all__ = ["MODELS"]

ops = xrt.ops


class Chain(xrt.Graph):
    def build(self, x: Any) -> Any:
        return ops.Mul(ops.Sigmoid(ops.Sub(ops.Exp(ops.Tanh(x)), x)), ops.Sqrt(ops.Abs(x)))


class Product(xrt.Graph):
    def build(self, x: Any, w: Any) -> Any:
        return ops.Relu(ops.MatMul(x, w))


class Rows(xrt.Graph):
    def build(self, x: Any) -> Any:
        return ops.Softmax(ops.Log(ops.Abs(x)), axis=-1)


class Convolution(xrt.Graph):
    def build(self, x: Any, w: Any) -> Any:
        y = ops.Conv(x, w, pads=[1, 1, 1, 1], strides=[2, 2])
        return ops.MaxPool(ops.Relu(y), kernel_shape=[2, 2])


class Sums(xrt.Graph):
    def build(self, x: Any) -> Any:
        return ops.ReduceSum(ops.Mul(x, x), np.array([0], "int64"), keepdims=0), ops.ReduceMean(x)


class Normalised(xrt.Graph):
    def build(self, x: Any) -> Any:
        scale = numbers(x.shape[-1], seed=5)
        return ops.LayerNormalization(x, scale, axis=-1)


class Moved(xrt.Graph):
    def build(self, x: Any) -> Any:
        rows = ops.Gather(ops.Transpose(x, perm=[1, 0]), np.array([2, -1, 0], "int64"), axis=0)
        return ops.Concat(rows, rows, axis=1)


class Integers(xrt.Graph):
    def build(self, x: Any) -> Any:
        whole = ops.Cast(ops.Mul(x, np.array(10, "float32")), to=7)
        return ops.Greater(whole, np.array(0, "int64")), ops.Add(whole, whole)


class Odd(xrt.Graph):
    """Results that are an input, one value twice, and a constant."""

    def build(self, x: Any) -> Any:
        y = ops.Neg(x)
        return {"y": y, "x": x, "again": y, "c": ops.Constant(value_floats=[1.0, 2.0])}


MODELS: dict[str, tuple[xrt.Graph, tuple[Any, ...]]] = {
    "chain": (Chain(), (numbers(5, 7),)),
    "product": (Product(), (numbers(33, 20), numbers(20, 17, seed=1))),
    "rows": (Rows(), (numbers(6, 70),)),
    "convolution": (Convolution(), (numbers(2, 3, 9, 9), numbers(4, 3, 3, 3, seed=1))),
    "sums": (Sums(), (numbers(40, 6),)),
    "normalised": (Normalised(), (numbers(4, 50),)),
    "moved": (Moved(), (numbers(3, 4),)),
    "integers": (Integers(), (numbers(4, 3),)),
    "odd": (Odd(), (numbers(2, 3),)),
    "net": (Net(), (numbers(3, 4), numbers(4, 5, seed=1))),
}
