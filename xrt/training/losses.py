"""Losses that a training step appends to a model: each takes the model's output and an input for the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.builder.record_op import apply, emit
from xrt.errors import ModelError
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

__all__ = ["CrossEntropy", "Loss", "MeanSquaredError"]


@dataclass(frozen=True)
class Loss:
    """A scalar made of a model's output and a target. Derive from it for one of your own."""

    def target_type(self, output: TensorType) -> TensorType:
        """Return the type of the target for an output of that type."""
        raise NotImplementedError(f"{type(self).__name__} has no target_type()")

    def apply(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss, recorded by the operators of `xrt.ops` and Python's."""
        raise NotImplementedError(f"{type(self).__name__} has no apply()")


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """The mean of the squared differences; the target has the type of the output."""

    def target_type(self, output: TensorType) -> TensorType:
        return output

    def apply(self, output: Tensor, target: Tensor) -> Tensor:
        difference = output - target
        return emit("ReduceMean", difference * difference, keepdims=0)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The mean of -log softmax at the target's class: scores (N, classes, ...), and classes in int64 (N, ...)."""

    ignore_index: int | None = None
    """A class that does not count."""

    def target_type(self, output: TensorType) -> TensorType:
        if output.shape is None or len(output.shape) < 2:
            raise ModelError(f"the cross entropy needs scores of shape (N, classes, ...); the output is {output}")
        return TensorType(DType.INT64, (output.shape[0], *output.shape[2:]))

    def apply(self, output: Tensor, target: Tensor) -> Tensor:
        options = {} if self.ignore_index is None else {"ignore_index": self.ignore_index}
        found: tuple[Tensor, ...] = apply("SoftmaxCrossEntropyLoss", (output, target), options, outputs=1)  # type: ignore[assignment]  # a tuple where outputs is given
        return found[0]
