"""Models with open sizes for `benchmarks.sizes`: an encoder, BERT-base's, one of speech and one of detection, random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

__all__ = ["MODELS", "Network", "OpenModel", "convolve", "encode"]


@dataclass
class Network:
    """Nodes and weights so far."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one result, and return the name of that."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, (name,), read_attributes(attributes), name=name))
        return name

    def constant(self, array: Any) -> str:
        """Add a constant, and return its name."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = Constant(np.asarray(array))
        return name

    def weight(self, *shape: int, terms: int) -> str:
        """Add normally distributed numbers, of which one result sums ``terms``."""
        return self.constant((self.rng.standard_normal(shape) / np.sqrt(terms)).astype("float32"))

    def finish(self, name: str, given: TensorType, output: str, rank: int) -> Function:
        """Return the Function from ``x`` to a value of that rank."""
        result = TensorType(DType.FLOAT32, (None,) * rank)
        return Function((Value("x", given),), (Value(output, result),), tuple(self.nodes), self.constants, {"": 17}, name=name)


def encode(net: Network, x: str, layers: int, width: int, heads: int) -> str:
    """Add layers of an encoder over (1, positions, width)."""
    split, join = net.constant(np.array([0, 0, heads, width // heads])), net.constant(np.array([0, 0, width]))
    scale = net.constant(np.float32((width // heads) ** -0.5))

    def norm(x: str) -> str:
        one, zero = net.constant(np.ones(width, "float32")), net.constant(np.zeros(width, "float32"))
        return net.emit("LayerNormalization", x, one, zero, axis=-1)

    def linear(x: str, rows: int, columns: int) -> str:
        return net.emit("MatMul", x, net.weight(rows, columns, terms=rows))

    def read(x: str, perm: tuple[int, ...]) -> str:
        return net.emit("Transpose", net.emit("Reshape", linear(x, width, width), split), perm=perm)

    for _ in range(layers):
        h = norm(x)
        scores = net.emit("Mul", net.emit("MatMul", read(h, (0, 2, 1, 3)), read(h, (0, 2, 3, 1))), scale)
        mixed = net.emit("MatMul", net.emit("Softmax", scores, axis=-1), read(h, (0, 2, 1, 3)))
        joined = net.emit("Reshape", net.emit("Transpose", mixed, perm=(0, 2, 1, 3)), join)
        x = net.emit("Add", x, linear(joined, width, width))
        x = net.emit("Add", x, linear(_gelu(net, linear(norm(x), width, 4 * width)), 4 * width, width))
    return x


def _gelu(net: Network, x: str) -> str:
    error = net.emit("Erf", net.emit("Mul", x, net.constant(np.float32(0.5**0.5))))
    return net.emit("Mul", net.emit("Mul", x, net.constant(np.float32(0.5))), net.emit("Add", error, net.constant(np.float32(1))))


def _encoder(name: str, layers: int, width: int, heads: int) -> Function:
    net = Network()
    return net.finish(name, TensorType(DType.FLOAT32, (1, "s", width)), encode(net, "x", layers, width, heads), 3)


def convolve(net: Network, x: str, given: int, channels: int, axes: int, stride: int) -> str:
    weight = net.weight(channels, given, *[3] * axes, terms=given * 3**axes)
    return net.emit("Conv", x, weight, kernel_shape=[3] * axes, strides=[stride] * axes, pads=[1] * 2 * axes)


def _speech(layers: int, width: int, bands: int = 80, longest: int = 1500) -> Function:
    """Return an encoder of Whisper's form (Radford et al. 2022): two convolutions over time, positions from a table."""
    net = Network()
    x = _gelu(net, convolve(net, "x", bands, width, 1, 1))
    x = net.emit("Transpose", _gelu(net, convolve(net, x, width, width, 1, 2)), perm=(0, 2, 1))
    length = net.emit("Slice", net.emit("Shape", x), net.constant(np.array([1])), net.constant(np.array([2])))
    table = net.weight(longest, width, terms=1)
    x = net.emit("Add", x, net.emit("Slice", table, net.constant(np.array([0])), length, net.constant(np.array([0]))))
    return net.finish("speech", TensorType(DType.FLOAT32, (1, bands, "s")), encode(net, x, layers, width, width // 64), 3)


def _detection(classes: int = 20) -> Function:
    """Return scores and offsets of each cell of three maps (Liu et al. 2016) of an image whose height and width are open."""
    net, x, channels, found = Network(), "x", 3, []
    shape = net.constant(np.array([1, -1, classes + 4]))
    for level, wider in enumerate((32, 64, 128, 256, 256)):
        x = net.emit("Relu", convolve(net, x, channels, wider, 2, 2))
        x = net.emit("Relu", convolve(net, x, wider, wider, 2, 1))
        channels = wider
        if level >= 2:
            head = convolve(net, x, channels, classes + 4, 2, 1)
            found.append(net.emit("Reshape", net.emit("Transpose", head, perm=(0, 2, 3, 1)), shape))
    return net.finish("detection", TensorType(DType.FLOAT32, (1, 3, "h", "w")), net.emit("Concat", *found, axis=1), 3)


@dataclass(frozen=True)
class OpenModel:
    """A model and which sizes its calls have."""

    make: Callable[[], Function]
    step: int
    """Sizes are multiples of this."""
    longest: int


MODELS = {
    "encoder": OpenModel(lambda: _encoder("encoder", 12, 128, 4), 1, 256),
    "bert-base": OpenModel(lambda: _encoder("bert", 12, 768, 12), 1, 128),
    "speech": OpenModel(lambda: _speech(4, 384), 2, 600),
    "detection": OpenModel(_detection, 32, 320),
}
"""By name: the encoder has 12 layers of 128 columns."""
