"""Models whose first extent counts requests, for `benchmarks.throughput`, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.sizes_models import Network, encode
from xrt.graph import DType, Function, TensorType, Value

__all__ = ["MODELS", "ServedModel"]

BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repeats and first stride of each group of blocks (Sandler et al. 2018, table 2)."""


def _finish(net: Network, name: str, *shape: int, last: str, rank: int) -> Function:
    made = net.finish(name, TensorType(DType.FLOAT32, ("N", *shape)), last, rank)
    result = TensorType(DType.FLOAT32, ("N", *[None] * (rank - 1)))
    return made.replace(outputs=(Value(last, result),))


def _perceptron(width: int = 1024, layers: int = 3) -> Function:
    net, x = Network(), "x"
    for _ in range(layers):
        x = net.emit("Relu", net.emit("MatMul", x, net.weight(width, width, terms=width)))
    return _finish(net, "perceptron", width, last=x, rank=2)


def _mobilenet(size: int = 96) -> Function:
    net, channels = Network(), 32

    def convolve(x: str, given: int, wanted: int, kernel: int = 1, stride: int = 1, group: int = 1) -> str:
        weight = net.weight(wanted, given // group, kernel, kernel, terms=given // group * kernel**2 // 2 or 1)
        pads = [kernel // 2] * 4
        return net.emit("Conv", x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group)

    def rectify(x: str) -> str:
        return net.emit("Clip", x, net.constant(np.float32(0)), net.constant(np.float32(6)))

    x = rectify(convolve("x", 3, channels, 3, 2))
    for expansion, wanted, repeats, first in BLOCKS:
        for stride in (first, *[1] * (repeats - 1)):
            wide = channels * expansion
            inner = x if expansion == 1 else rectify(convolve(x, channels, wide))
            inner = convolve(rectify(convolve(inner, wide, wide, 3, stride, wide)), wide, wanted)
            x = net.emit("Add", x, inner) if stride == 1 and channels == wanted else inner
            channels = wanted
    x = net.emit("Flatten", net.emit("GlobalAveragePool", rectify(convolve(x, channels, 1280))), axis=1)
    return _finish(net, "mobilenet", 3, size, size, last=net.emit("MatMul", x, net.weight(1280, 1000, terms=1280)), rank=2)


def _bert(layers: int = 4, width: int = 256, positions: int = 32) -> Function:
    net = Network()
    return _finish(net, "bert", positions, width, last=encode(net, "x", layers, width, 4), rank=3)


@dataclass(frozen=True)
class ServedModel:
    """A model, and the seconds within which 99 of 100 requests are to be served."""

    make: Callable[[], Function]
    bound: float


MODELS = {
    "perceptron": ServedModel(_perceptron, 0.010),
    "mobilenet": ServedModel(_mobilenet, 0.050),
    "bert": ServedModel(_bert, 0.050),
}
