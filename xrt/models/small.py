"""An image classifier for small machines, a plain stack of layers, and graphs of a few operators that show one thing each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xrt.builder.record_op import emit
from xrt.graph import DType, Function
from xrt.models.layer_builder import HE, LayerBuilder
from xrt.models.mobile import mobile_features

if TYPE_CHECKING:
    from xrt.builder import Tensor

__all__ = ["chain", "conv_chain", "conv_tail", "gather_softmax", "mlp", "mobilenet", "reductions", "softmax_chain"]


def mobilenet(seed: int = 0, *, image: int = 224, width: int = 100, classes: int = 1000, batch: int = 1) -> Function:
    """Return a network with the shape of MobileNet v2: depthwise convolutions between narrow ends; `width` is in per cent."""
    with LayerBuilder("mobilenet", seed) as net:
        _, x = mobile_features(net, net.input("image", batch, 3, image, image), width)
        flat = emit("Flatten", emit("GlobalAveragePool", x))
        return net.finish(logits=net.linear(flat, classes))


def mlp(
    seed: int = 0, *, layers: int = 4, features: int = 1024, hidden: int = 4096, classes: int = 1000, batch: int = 1
) -> Function:
    """Return a stack of products with rectifiers between them."""
    with LayerBuilder("mlp", seed) as net:
        x = net.input("x", batch, features)
        for _ in range(layers - 1):
            x = emit("Relu", net.linear(x, hidden, gain=HE))
        return net.finish(logits=net.linear(x, classes))


# ---------------------------------------------------------------------- a few operators


def chain(seed: int = 0, *, length: int = 50, batch: int = 1024, columns: int = 1024) -> Function:
    """Return cheap elementwise operators in a row: who fuses them reads memory once."""
    with LayerBuilder("chain", seed) as net:
        return net.finish(y=_elementwise(net.input("x", batch, columns), length))


def softmax_chain(seed: int = 0, *, length: int = 50, batch: int = 4096, columns: int = 1024) -> Function:
    """Return elementwise operators between two softmaxes: what one engine does best between what another does best."""
    with LayerBuilder("softmax_chain", seed) as net:
        x = emit("Softmax", net.input("x", batch, columns), axis=-1)
        return net.finish(y=emit("Softmax", _elementwise(x, length), axis=-1))


def conv_tail(seed: int = 0, *, length: int = 10, channels: int = 64, image: int = 112, batch: int = 1) -> Function:
    """Return a convolution with elementwise operators behind it: a cut between them costs a fusion."""
    with LayerBuilder("conv_tail", seed) as net:
        x = net.convolution(net.input("x", batch, channels, image, image), channels, 3)
        return net.finish(y=_elementwise(x, length))


def conv_chain(seed: int = 0, *, length: int = 50, channels: int = 64, image: int = 112, batch: int = 1) -> Function:
    """Return elementwise operators between two convolutions."""
    with LayerBuilder("conv_chain", seed) as net:
        x = net.convolution(net.input("x", batch, channels, image, image), channels, 3)
        return net.finish(y=net.convolution(_elementwise(x, length), channels, 3))


def gather_softmax(
    seed: int = 0, *, length: int = 30, entries: int = 8192, width: int = 1024, columns: int = 256, batch: int = 2048
) -> Function:
    """Return rows looked up in a table, elementwise operators on them, a softmax and a product."""
    with LayerBuilder("gather_softmax", seed) as net:
        rows = net.embed(net.input("ids", batch, dtype=DType.INT64), entries, width)
        shares = emit("Softmax", _elementwise(rows, length), axis=-1)
        return net.finish(y=emit("MatMul", shares, net.normal(width, columns)))


def reductions(seed: int = 0, *, batch: int = 64, rows: int = 256, columns: int = 256) -> Function:
    """Return sums, means, maxima and norms of one tensor over its last, its middle and its first axis."""
    with LayerBuilder("reductions", seed) as net:
        x = net.input("x", batch, rows, columns)
        kinds = (("ReduceMean", -1), ("ReduceMax", 1), ("ReduceSum", 1), ("ReduceL2", -1), ("ReduceMin", 0))
        found = {
            f"{kind.removeprefix('Reduce').lower()}_{axis % 3}": emit(kind, x, net.constant(np.array([axis])), keepdims=0)
            for kind, axis in kinds
        }
        return net.finish(**found)


def _elementwise(x: Tensor, length: int) -> Tensor:
    """Record that many operators of one or two cycles each, none of which makes its neighbour superfluous."""
    steps = (
        lambda y, n: y * (0.9 + 0.001 * n),
        lambda y, n: y + 0.01 * (n + 1),
        lambda y, n: emit("Abs", y),
        lambda y, n: y - 0.3,
        lambda y, n: emit("Max", y, -0.5),
    )
    for index in range(length):
        x = steps[index % len(steps)](x, index)
    return x
