"""Builds networks layer by layer, with random weights from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np

from xrt.builder import Builder, Tensor
from xrt.builder.record_op import apply, emit
from xrt.errors import ModelError
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import DType, Function, TensorType

OPSET = 20
"""LayerNormalization needs 17; all engines support 20."""

HE = math.sqrt(2)
"""The gain of a layer before a ReLU, which removes half of the variance (He et al. 2015)."""


def get_value_shape(x: Tensor) -> tuple[int, ...]:
    """The static shape of a tensor; raises ModelError if an extent is unknown."""
    if not isinstance(x.type, TensorType) or not x.type.is_static:
        raise ModelError(f"the extents of {x.value} are not all known; a layer needs them to draw its weights")
    return tuple(int(dim) for dim in x.type.shape or ())  # type: ignore[arg-type]  # static: all are integers


def _pair(extent: int | tuple[int, int]) -> tuple[int, int]:
    """Expand one number to the equal extents of both axes of an image; return a pair as it is."""
    return (extent, extent) if isinstance(extent, int) else extent


class LayerBuilder:
    """Records layers into a Function; use it as a context manager, in which operators on its tensors are recorded, too.

    Weights have a standard deviation of gain / sqrt(fan-in), so that activations keep their scale from layer to layer. The same
    seed and calls give the same bytes.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._builder = Builder(name, opsets=OPSET, inference=infer_node_types)
        self._random = np.random.default_rng(seed)

    def __enter__(self) -> Self:
        self._builder.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._builder.__exit__(*exception)

    # ------------------------------------------------------------------ ends

    def input(self, name: str, *shape: int, dtype: DType = DType.FLOAT32) -> Tensor:
        """Add an input."""
        return self._builder.input(name, TensorType(dtype, shape))

    def finish(self, **outputs: Tensor) -> Function:
        """Build the Function with these outputs."""
        for name, tensor in outputs.items():
            self._builder.output(tensor, name)
        return self._builder.function()

    # ------------------------------------------------------------------ weights

    def normal(self, *shape: int, deviation: float = 1.0) -> Tensor:
        """A float32 constant of normally distributed numbers with mean 0."""
        # In place: weights have up to hundreds of megabytes.
        values = self._random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(deviation)
        return self.constant(values)

    def constant(self, array: Any) -> Tensor:
        """A constant that takes ownership of the array, which becomes read-only."""
        values = np.asarray(array)
        values.flags.writeable = False
        return self._builder.constant(values)

    # ------------------------------------------------------------------ layers

    def linear(self, x: Tensor, columns: int, gain: float = 1.0) -> Tensor:
        """A fully connected layer with bias along the last axis; ``columns`` is the extent of that axis in the result."""
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
        """A 2-D convolution with bias; the default padding keeps the size at stride 1."""
        # Each group reads its share of the input channels.
        window, strides, depth = _pair(kernel), _pair(stride), get_value_shape(x)[1] // group
        weight = self.normal(channels, depth, *window, deviation=gain / math.sqrt(depth * math.prod(window)))
        # ONNX lists the padding before both axes, then the padding after them.
        pads = [length // 2 if padding is None else padding for length in window] * 2
        bias = self.normal(channels, deviation=0.1)
        return emit("Conv", x, weight, bias, kernel_shape=window, strides=strides, pads=pads, group=group)

    def upsample(self, x: Tensor, channels: int) -> Tensor:
        """Double the height and width with a transposed convolution without overlap."""
        in_channels = get_value_shape(x)[1]
        # Stride and kernel are equal: each output pixel has one input pixel, whose channels are the fan-in.
        weight = self.normal(in_channels, channels, 2, 2, deviation=1 / math.sqrt(in_channels))
        bias = self.normal(channels, deviation=0.1)
        return emit("ConvTranspose", x, weight, bias, kernel_shape=[2, 2], strides=[2, 2])

    def add_recurrent(self, x: Tensor, hidden: int) -> Tensor:
        """A bidirectional GRU on (time, batch, features), to (time, batch, hidden): the directions are added."""
        inner, outer = 1 / math.sqrt(hidden), 1 / math.sqrt(get_value_shape(x)[-1])
        weights = (self.normal(2, 3 * hidden, n, deviation=d) for n, d in ((get_value_shape(x)[-1], outer), (hidden, inner)))
        bias = self.normal(2, 6 * hidden, deviation=0.1)
        # linear_before_reset as in PyTorch and cuDNN.
        attributes = {"hidden_size": hidden, "direction": "bidirectional", "linear_before_reset": 1}
        directions, _last = cast("tuple[Tensor, ...]", apply("GRU", (x, *weights, bias), attributes, outputs=2))
        return emit("ReduceSum", directions, self.constant(np.array([1])), keepdims=0)

    def normalize(self, x: Tensor) -> Tensor:
        """Layer normalization over the last axis, with scales near one."""
        width = get_value_shape(x)[-1]
        scale = self.constant(self._random.random(width, dtype=np.float32) * np.float32(0.4) + np.float32(0.8))
        return emit("LayerNormalization", x, scale, self.normal(width, deviation=0.1), axis=-1, epsilon=1e-5)

    def gelu(self, x: Tensor) -> Tensor:
        """GELU by the error function, in the operators that exporters emit, so that engines find their pattern."""
        return x * 0.5 * (emit("Erf", x * math.sqrt(0.5)) + 1.0)

    def embed(self, ids: Tensor, entries: int, width: int, deviation: float = 1.0) -> Tensor:
        """Look up ``ids`` in a random table of ``entries`` vectors of ``width`` numbers."""
        return emit("Gather", self.normal(entries, width, deviation=deviation), ids, axis=0)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Reshape as ONNX does: an extent of 0 is copied from the input, one of -1 is inferred."""
        return emit("Reshape", x, self.constant(np.array(shape, np.int64)))
