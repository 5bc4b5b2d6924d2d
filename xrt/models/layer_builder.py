"""A network while it is written: layers that draw their weights from a seed and record themselves in a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np

from xrt.builder import Builder, Tensor
from xrt.builder.record_op import apply, emit
from xrt.errors import ModelError
from xrt.formats.onnx.inference import node_types
from xrt.graph import DType, Function, TensorType

__all__ = ["HE", "LayerBuilder", "get_value_shape"]

OPSET = 20
"""LayerNormalization came with 17; every engine here has kernels for 20."""

HE = math.sqrt(2)
"""The gain that makes up for what a rectifier cuts off (He et al. 2015)."""


def get_value_shape(x: Tensor) -> tuple[int, ...]:
    """Return the extents of a tensor, all of which must be known."""
    if not isinstance(x.type, TensorType) or not x.type.is_static:
        raise ModelError(f"the extents of {x.value} are not all known; a layer needs them to draw its weights")
    return tuple(int(dim) for dim in x.type.shape or ())  # type: ignore[arg-type]  # static: no names among them


def _pair(extent: int | tuple[int, int]) -> tuple[int, int]:
    """Return the extents along both axes of an image, of which one number says the same."""
    return (extent, extent) if isinstance(extent, int) else extent


class LayerBuilder:
    """Records layers; used as a context, so that operators on its tensors find the graph.

    A weight's deviation is the inverse square root of the number of terms that one output sums, so that activations keep
    their size; the same seed and calls give the same bytes.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._builder = Builder(name, opsets=OPSET, inference=node_types)
        self._random = np.random.default_rng(seed)

    def __enter__(self) -> Self:
        self._builder.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._builder.__exit__(*exception)

    # ------------------------------------------------------------------ ends

    def input(self, name: str, *shape: int, dtype: DType = DType.FLOAT32) -> Tensor:
        """Add an input of that shape."""
        return self._builder.input(name, TensorType(dtype, shape))

    def finish(self, **outputs: Tensor) -> Function:
        """Return the Function with those outputs."""
        for name, tensor in outputs.items():
            self._builder.output(tensor, name)
        return self._builder.function()

    # ------------------------------------------------------------------ weights

    def normal(self, *shape: int, deviation: float = 1.0) -> Tensor:
        """Return a constant of normally distributed numbers."""
        drawn = self._random.standard_normal(shape, dtype=np.float32)
        drawn *= np.float32(deviation)
        return self.constant(drawn)

    def constant(self, array: Any) -> Tensor:
        """Return a constant that takes the array over, which is frozen."""
        taken = np.asarray(array)
        taken.flags.writeable = False
        return self._builder.constant(taken)

    # ------------------------------------------------------------------ layers

    def linear(self, x: Tensor, columns: int, gain: float = 1.0) -> Tensor:
        """Multiply the last axis by a matrix and add a bias."""
        rows = get_value_shape(x)[-1]
        weight = self.normal(rows, columns, deviation=gain / math.sqrt(rows))
        return emit("Add", emit("MatMul", x, weight), self.normal(columns, deviation=0.1))

    def convolution(
        self,
        x: Tensor,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        group: int = 1,
        padding: int | None = None,
        gain: float = 1.0,
    ) -> Tensor:
        """Convolve an image; without `padding` its edge is padded so that stride 1 keeps its size."""
        window, strides, depth = _pair(kernel), _pair(stride), get_value_shape(x)[1] // group
        weight = self.normal(channels, depth, *window, deviation=gain / math.sqrt(depth * math.prod(window)))
        pads = [length // 2 if padding is None else padding for length in window] * 2
        bias = self.normal(channels, deviation=0.1)
        return emit("Conv", x, weight, bias, kernel_shape=window, strides=strides, pads=pads, group=group)

    def upsample(self, x: Tensor, channels: int) -> Tensor:
        """Make an image twice as high and wide by a transposed convolution, each of whose elements is read once."""
        given = get_value_shape(x)[1]
        weight = self.normal(given, channels, 2, 2, deviation=1 / math.sqrt(given))
        bias = self.normal(channels, deviation=0.1)
        return emit("ConvTranspose", x, weight, bias, kernel_shape=[2, 2], strides=[2, 2])

    def add_recurrent(self, x: Tensor, hidden: int) -> Tensor:
        """Read a sequence (time, batch, features) forwards and backwards by gated units, and add up both readings."""
        inner, outer = 1 / math.sqrt(hidden), 1 / math.sqrt(get_value_shape(x)[-1])
        weights = (self.normal(2, 3 * hidden, n, deviation=d) for n, d in ((get_value_shape(x)[-1], outer), (hidden, inner)))
        bias = self.normal(2, 6 * hidden, deviation=0.1)
        how = {"hidden_size": hidden, "direction": "bidirectional", "linear_before_reset": 1}
        both, _last = cast("tuple[Tensor, ...]", apply("GRU", (x, *weights, bias), how, outputs=2))
        return emit("ReduceSum", both, self.constant(np.array([1])), keepdims=0)

    def normalize(self, x: Tensor) -> Tensor:
        """Normalise over the last axis, with a scale near one."""
        width = get_value_shape(x)[-1]
        scale = self.constant(self._random.random(width, dtype=np.float32) * np.float32(0.4) + np.float32(0.8))
        return emit("LayerNormalization", x, scale, self.normal(width, deviation=0.1), axis=-1, epsilon=1e-5)

    def gelu(self, x: Tensor) -> Tensor:
        """Apply the exact Gaussian error unit, in the operators that exporters write it in."""
        return x * 0.5 * (emit("Erf", x * math.sqrt(0.5)) + 1.0)

    def embed(self, ids: Tensor, entries: int, width: int, deviation: float = 1.0) -> Tensor:
        """Look rows up in a table."""
        return emit("Gather", self.normal(entries, width, deviation=deviation), ids, axis=0)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Give a tensor another shape; 0 keeps an extent, -1 takes the rest."""
        return emit("Reshape", x, self.constant(np.array(shape, np.int64)))
