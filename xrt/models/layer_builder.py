"""Builds networks layer by layer, with random weights from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, TypeAlias, cast

import numpy as np

from xrt.builder import Builder, Tensor
from xrt.builder.record_op import apply, emit
from xrt.errors import ModelError
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import DType, Function, TensorType

Array: TypeAlias = np.ndarray[Any, Any]
OPSET = 20
"""LayerNormalization needs 17; all engines support 20."""

RELU_GAIN = math.sqrt(2)
"""The gain of a layer before a ReLU, which removes half of the variance (He et al. 2015)."""


def get_value_shape(x: Tensor) -> tuple[int, ...]:
    """Get the shape of a tensor; raises ModelError if a dimension is dynamic."""
    if not isinstance(x.type, TensorType) or not x.type.is_static:
        raise ModelError(f"the shape of {x.value} is not static; a layer needs it to draw its weights")
    return tuple(int(dim) for dim in x.type.shape or ())  # type: ignore[arg-type]  # static: all are integers


def _make_pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


class LayerBuilder:
    """Records layers into a Function. Within its ``with`` block, operators on its tensors are recorded, too.

    Weights have a standard deviation of gain / sqrt(fan-in), so that activations keep their scale from layer to layer. The same
    seed and calls give the same bytes.
    """

    def __init__(self, name: str, seed: int, opset: int = OPSET) -> None:
        self.builder = Builder(name, opsets=opset, inference=infer_node_types)
        self.random = np.random.default_rng(seed)

    def __enter__(self) -> Self:
        self.builder.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.builder.__exit__(*exception)

    def input(self, name: str, *shape: int, dtype: DType = DType.FLOAT32) -> Tensor:
        return self.builder.input(name, TensorType(dtype, shape))

    def finish(self, **outputs: Tensor) -> Function:
        """Build the Function; the keywords name its outputs."""
        for name, tensor in outputs.items():
            self.builder.output(tensor, name)
        return self.builder.function()

    def normal(self, *shape: int, deviation: float = 1.0) -> Tensor:
        """Make a float32 constant of normally distributed numbers with mean 0."""
        # In place, because some weights have hundreds of megabytes.
        values = self.random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(deviation)
        return self.constant(values)

    def constant(self, array: Any) -> Tensor:
        """Make a constant without copying the array, which becomes read-only."""
        values = np.asarray(array)
        values.flags.writeable = False
        return self.builder.constant(values)

    def linear(self, x: Tensor, columns: int, gain: float = 1.0) -> Tensor:
        """Add a fully connected layer with bias; ``columns`` is the size of the result's last axis."""
        in_features = get_value_shape(x)[-1]
        weight = self.normal(in_features, columns, deviation=gain / math.sqrt(in_features))
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
        """Add a 2-D convolution with bias; the default padding keeps height and width at stride 1."""
        kernel_shape = _make_pair(kernel)
        group_channels = get_value_shape(x)[1] // group
        fan_in = group_channels * math.prod(kernel_shape)
        weight = self.normal(channels, group_channels, *kernel_shape, deviation=gain / math.sqrt(fan_in))
        # ONNX lists the padding at the start of both axes, then the padding at their ends.
        pads = [size // 2 if padding is None else padding for size in kernel_shape] * 2
        bias = self.normal(channels, deviation=0.1)
        strides = _make_pair(stride)
        return emit("Conv", x, weight, bias, kernel_shape=kernel_shape, strides=strides, pads=pads, group=group)

    def upsample(self, x: Tensor, channels: int) -> Tensor:
        """Double the height and width with a transposed convolution without overlap."""
        in_channels = get_value_shape(x)[1]
        # Stride and kernel are equal: each output pixel has one input pixel, whose channels are the fan-in.
        weight = self.normal(in_channels, channels, 2, 2, deviation=1 / math.sqrt(in_channels))
        bias = self.normal(channels, deviation=0.1)
        return emit("ConvTranspose", x, weight, bias, kernel_shape=[2, 2], strides=[2, 2])

    def add_recurrent(self, x: Tensor, hidden: int) -> Tensor:
        """Add a bidirectional GRU from (time, batch, features) to (time, batch, hidden): the sum of both directions."""
        # The weights of the input, then those of the hidden state.
        weights = (self.normal(2, 3 * hidden, n, deviation=1 / math.sqrt(n)) for n in (get_value_shape(x)[-1], hidden))
        bias = self.normal(2, 6 * hidden, deviation=0.1)
        # linear_before_reset as in PyTorch and cuDNN.
        attributes = {"hidden_size": hidden, "direction": "bidirectional", "linear_before_reset": 1}
        directions, _last = cast("tuple[Tensor, ...]", apply("GRU", (x, *weights, bias), attributes, outputs=2))
        return emit("ReduceSum", directions, self.constant(np.array([1])), keepdims=0)

    def normalize(self, x: Tensor) -> Tensor:
        """Add a layer normalization over the last axis, with scales near one."""
        width = get_value_shape(x)[-1]
        scale = self.constant(self.random.random(width, dtype=np.float32) * np.float32(0.4) + np.float32(0.8))
        return emit("LayerNormalization", x, scale, self.normal(width, deviation=0.1), axis=-1, epsilon=1e-5)

    def gelu(self, x: Tensor) -> Tensor:
        """Add a GELU as Erf, Mul and Add, as exporters write it: engines fuse this pattern."""
        return x * 0.5 * (emit("Erf", x * math.sqrt(0.5)) + 1.0)

    def embed(self, ids: Tensor, entries: int, width: int, deviation: float = 1.0) -> Tensor:
        """Look up ``ids`` in a random table of shape (entries, width)."""
        return emit("Gather", self.normal(entries, width, deviation=deviation), ids, axis=0)

    def take_token(self, x: Tensor, index: int) -> Tensor:
        """Take the features of one token: (batch, tokens, features) to (batch, features)."""
        return emit("Gather", x, self.constant(np.array(index)), axis=1)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Reshape as in ONNX: a dimension 0 is copied from the input, and -1 is inferred."""
        return emit("Reshape", x, self.constant(np.array(shape, np.int64)))
