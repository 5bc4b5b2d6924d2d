"""Models of the tests of tvm on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.devices.models import Net, numbers, odd
from xrt import ops
from xrt.builder.tracing import trace
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import Function
from xrt.passes import infer_shapes

__all__ = ["MODELS"]


def integers(x: Any) -> Any:
    whole = ops.Cast(x * 10, to="int64")
    return ops.Greater(whole, 0), whole + whole


def moved(x: Any) -> Any:
    rows = ops.Gather(ops.Transpose(x, perm=[1, 0]), [2, -1, 0], axis=0)
    return ops.Concat(rows, rows, axis=1)


def convolution(x: Any, w: Any) -> Any:
    return ops.MaxPool(ops.Relu(ops.Conv(x, w, pads=[1, 1, 1, 1], strides=[2, 2])), kernel_shape=[2, 2])


BUILDS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "chain": (lambda x: ops.Sigmoid(ops.Exp(ops.Tanh(x)) - x) * ops.Sqrt(ops.Abs(x)), (numbers(5, 7),)),
    "product": (lambda x, w: ops.Relu(ops.MatMul(x, w)), (numbers(33, 20), numbers(20, 17, seed=1))),
    "rows": (lambda x: ops.Softmax(ops.Log(ops.Abs(x)), axis=-1), (numbers(6, 70),)),
    "convolution": (convolution, (numbers(2, 3, 9, 9), numbers(4, 3, 3, 3, seed=1))),
    "sums": (lambda x: (ops.ReduceSum(x * x, [0], keepdims=0), ops.ReduceMean(x)), (numbers(40, 6),)),
    "normalised": (lambda x: ops.LayerNormalization(x, numbers(50, seed=5), axis=-1), (numbers(4, 50),)),
    "moved": (moved, (numbers(3, 4),)),
    "integers": (integers, (numbers(4, 3),)),
    "odd": (odd, (numbers(2, 3),)),
    "net": (Net().build, (numbers(3, 4), numbers(4, 5, seed=1))),
}
MODELS: dict[str, tuple[Function, tuple[Any, ...]]] = {
    name: (infer_shapes(trace(build, *inputs, name=name, inference=infer_node_types)), inputs)
    for name, (build, inputs) in BUILDS.items()
}
