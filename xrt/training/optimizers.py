"""Optimizers: how a parameter and what is remembered of it change by a gradient.

Each is a frozen value whose formula is that of PyTorch's optimizer of the same name, so that a training run can be compared step
by step. The formulas are recorded as arithmetic, which every engine supports; ONNX's preview operators add epsilon elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from xrt.builder.record_op import emit
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

__all__ = ["LAMB", "SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "StepContext"]


@dataclass(frozen=True, eq=False)
class StepContext:
    """What the update of every parameter reads."""

    rate: Tensor
    """The learning rate: a scalar of float32."""
    count: Tensor
    """The number of this step, from 1 on: a scalar of int64."""
    _scalars: dict[tuple[object, ...], Tensor] = field(default_factory=dict, repr=False)
    """What was computed for one parameter and serves all."""

    def rate_for(self, parameter: Tensor) -> Tensor:
        """Return the learning rate in the parameter's element type."""
        return self._once(("rate", parameter.dtype), lambda: self.rate.astype(parameter.dtype))

    def correct_bias(self, base: float, like: Tensor, *, rooted: bool = False) -> Tensor:
        """Return 1 / (1 - base^count), or its square root: a scalar of float64 until it is known, since float32 loses digits."""

        def compute() -> Tensor:
            count = self._once(("count",), lambda: self.count.astype(DType.FLOAT64))
            found = 1 / (1 - emit("Pow", np.asarray(base, np.float64), count))
            return (emit("Sqrt", found) if rooted else found).astype(like.dtype)

        return self._once((base, like.dtype, rooted), compute)

    def _once(self, key: tuple[object, ...], compute: Callable[[], Tensor]) -> Tensor:
        if key not in self._scalars:
            self._scalars[key] = compute()
        return self._scalars[key]


@dataclass(frozen=True)
class Optimizer:
    """How parameters change. Derive from it for one of your own."""

    weight_decay: float = 0.0
    """Adds this multiple of the parameter to its gradient, unless the optimizer says otherwise."""
    slots: ClassVar[tuple[str, ...]] = ()
    """What is remembered of each parameter, in its type and shape, zeros at first."""

    def list_slots(self) -> tuple[str, ...]:
        """Return the slots that these options need."""
        return self.slots

    def update(
        self, at: StepContext, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next value of the parameter and of each slot."""
        raise NotImplementedError(f"{type(self).__name__} has no update()")

    def decay(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient with the weight decay."""
        return gradient + parameter * self.weight_decay if self.weight_decay else gradient


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, with momentum; Sutskever et al. (2013) for Nesterov's."""

    momentum: float = 0.0
    nesterov: bool = False
    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    def list_slots(self) -> tuple[str, ...]:
        return self.slots if self.momentum else ()

    def update(
        self, at: StepContext, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        gradient = self.decay(parameter, gradient)
        if not self.momentum:
            return parameter - at.rate_for(parameter) * gradient, {}
        velocity = slots["momentum"] * self.momentum + gradient
        direction = gradient + velocity * self.momentum if self.nesterov else velocity
        return parameter - at.rate_for(parameter) * direction, {"momentum": velocity}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba, arXiv:1412.6980."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")

    def update(
        self, at: StepContext, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio, factor, moments = self.find_ratio(at, self.decay(parameter, gradient), slots)
        return parameter - at.rate_for(parameter) * factor * ratio, moments

    def find_ratio(
        self, at: StepContext, gradient: Tensor, slots: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the first moment by the root of the second, the scalar that takes the first one's bias away, and both moments.

        Bias is a factor, and one division is made per element: divisions and roots take most of the time of an update.
        """
        first = slots["first_moment"] * self.beta_1 + gradient * (1 - self.beta_1)
        second = slots["second_moment"] * self.beta_2 + gradient * gradient * (1 - self.beta_2)
        root = emit("Sqrt", second) * at.correct_bias(self.beta_2, gradient, rooted=True)
        moments = {"first_moment": first, "second_moment": second}
        return first / (root + self.epsilon), at.correct_bias(self.beta_1, gradient), moments


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself; Loshchilov and Hutter, arXiv:1711.05101."""

    weight_decay: float = 0.01

    def update(
        self, at: StepContext, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio, factor, moments = self.find_ratio(at, gradient, slots)
        rate = at.rate_for(parameter)
        return parameter * (1 - rate * self.weight_decay) - rate * factor * ratio, moments


@dataclass(frozen=True)
class LAMB(Adam):
    """Adam with the step of each parameter in proportion to its norm; You et al., arXiv:1904.00962."""

    epsilon: float = 1e-6

    def update(
        self, at: StepContext, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio, factor, moments = self.find_ratio(at, gradient, slots)
        direction = self.decay(parameter, factor * ratio)
        norms = [emit("Sqrt", emit("ReduceSumSquare", x, keepdims=0)) for x in (parameter, direction)]
        zero, one = (np.asarray(value, parameter.dtype.numpy) for value in (0, 1))
        known = emit("And", emit("Greater", norms[0], zero), emit("Greater", norms[1], zero))
        trust = emit("Where", known, norms[0] / emit("Where", known, norms[1], one), one)
        return parameter - at.rate_for(parameter) * trust * direction, moments


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Duchi et al. (2011)."""

    rate_decay: float = 0.0
    epsilon: float = 1e-10
    slots: ClassVar[tuple[str, ...]] = ("sum_of_squares",)

    def update(
        self, at: StepContext, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        gradient = self.decay(parameter, gradient)
        total = slots["sum_of_squares"] + gradient * gradient
        rate = at.rate_for(parameter)
        if self.rate_decay:
            rate = rate / ((at.count - 1).astype(parameter.dtype) * self.rate_decay + 1)
        return parameter - rate * (gradient / (emit("Sqrt", total) + self.epsilon)), {"sum_of_squares": total}
