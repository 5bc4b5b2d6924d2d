"""Optimizers, gradient clipping and gradient accumulation, recorded with the builder.

The formulas are those of PyTorch's optimizers of the same names, so that training runs can be compared step by step. ONNX's
preview operators are not used, because they add epsilon at another place in the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from xrt.builder.builder import Builder
from xrt.builder.record_op import emit
from xrt.errors import ModelError
from xrt.graph import DType, Function, State, TensorType, declare_states
from xrt.passes import infer_shapes

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Tensors: TypeAlias = "Mapping[str, Tensor]"
Update: TypeAlias = "tuple[Tensor, Tensors]"
"""The next value of a parameter, and the next value of each slot by name."""


@dataclass(frozen=True, eq=False)
class StepContext:
    """The learning rate and the step count of one update. Scalars computed from them are shared by all parameters."""

    rate: Tensor
    count: Tensor
    """Number of this step, starting at 1: int64 scalar."""
    _scalars: dict[tuple[object, ...], Tensor] = field(default_factory=dict, repr=False)

    def get_rate(self, parameter: Tensor) -> Tensor:
        return self._emit_once(("rate", parameter.dtype), lambda: self.rate.astype(parameter.dtype))

    def make_bias_correction(self, base: float, like: Tensor, *, root: bool = False) -> Tensor:
        """Emit 1 / (1 - base^count), or with ``root`` its square root, in the type of ``like``."""

        def compute() -> Tensor:
            # In float64, because 1 - base^count loses digits in the first steps.
            count = self._emit_once(("count",), lambda: self.count.astype(DType.FLOAT64))
            correction = 1 / (1 - emit("Pow", np.asarray(base, np.float64), count))
            scale = emit("Sqrt", correction) if root else correction
            return scale.astype(like.dtype)

        return self._emit_once((base, like.dtype, root), compute)

    def _emit_once(self, key: tuple[object, ...], compute: Callable[[], Tensor]) -> Tensor:
        if key not in self._scalars:
            self._scalars[key] = compute()
        return self._scalars[key]


@dataclass(frozen=True)
class Optimizer:
    """Base class of optimizers. Derive from it for a custom one."""

    weight_decay: float = 0.0
    """Adds this multiple of the parameter to its gradient, unless the optimizer documents otherwise."""
    slots: ClassVar[tuple[str, ...]] = ()
    """Names of the states per parameter, such as moments; each has the parameter's type and shape, and starts at zero."""

    def list_slots(self) -> tuple[str, ...]:
        return self.slots

    def update(self, step: StepContext, parameter: Tensor, gradient: Tensor, slots: Tensors) -> Update:
        """Compute the next value of the parameter and of each slot."""
        raise NotImplementedError(f"{type(self).__name__} has no update()")

    def decay(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        return gradient + parameter * self.weight_decay if self.weight_decay else gradient


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, optionally with momentum or Nesterov momentum (Sutskever et al. 2013)."""

    momentum: float = 0.0
    nesterov: bool = False
    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    def list_slots(self) -> tuple[str, ...]:
        return self.slots if self.momentum else ()

    def update(self, step: StepContext, parameter: Tensor, gradient: Tensor, slots: Tensors) -> Update:
        gradient = self.decay(parameter, gradient)
        # Plain SGD needs no state.
        if not self.momentum:
            return parameter - step.get_rate(parameter) * gradient, {}
        # PyTorch does not scale the gradient by 1 - momentum.
        velocity = slots["momentum"] * self.momentum + gradient
        direction = gradient + velocity * self.momentum if self.nesterov else velocity
        return parameter - step.get_rate(parameter) * direction, {"momentum": velocity}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; Kingma and Ba, arXiv:1412.6980."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")

    def update(self, step: StepContext, parameter: Tensor, gradient: Tensor, slots: Tensors) -> Update:
        ratio, correction, moments = self.emit_ratio(step, self.decay(parameter, gradient), slots)
        return parameter - step.get_rate(parameter) * correction * ratio, moments

    def emit_ratio(self, step: StepContext, gradient: Tensor, slots: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """Emit the first moment divided by the root of the second, the bias correction of the first, and the new moments.

        The parameter decreases by rate * correction * ratio. The bias correction is a separate scalar, so that each element
        needs only one division and one root, which dominate the time of an update.
        """
        first = slots["first_moment"] * self.beta_1 + gradient * (1 - self.beta_1)
        second = slots["second_moment"] * self.beta_2 + gradient * gradient * (1 - self.beta_2)
        root = emit("Sqrt", second) * step.make_bias_correction(self.beta_2, gradient, root=True)
        moments = {"first_moment": first, "second_moment": second}
        return first / (root + self.epsilon), step.make_bias_correction(self.beta_1, gradient), moments


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay; Loshchilov and Hutter, arXiv:1711.05101."""

    weight_decay: float = 0.01

    def update(self, step: StepContext, parameter: Tensor, gradient: Tensor, slots: Tensors) -> Update:
        ratio, correction, moments = self.emit_ratio(step, gradient, slots)
        rate = step.get_rate(parameter)
        # The decay is not part of the gradient, so the moments do not scale it.
        return parameter * (1 - rate * self.weight_decay) - rate * correction * ratio, moments


@dataclass(frozen=True)
class LAMB(Adam):
    """Adam with layer-wise steps proportional to the parameter's norm; You et al., arXiv:1904.00962."""

    epsilon: float = 1e-6

    def update(self, step: StepContext, parameter: Tensor, gradient: Tensor, slots: Tensors) -> Update:
        ratio, correction, moments = self.emit_ratio(step, gradient, slots)
        direction = self.decay(parameter, correction * ratio)
        parameter_norm = emit("Sqrt", emit("ReduceSumSquare", parameter, keepdims=0))
        direction_norm = emit("Sqrt", emit("ReduceSumSquare", direction, keepdims=0))
        zero, one = (np.asarray(value, parameter.dtype.numpy) for value in (0, 1))
        # If a norm is zero, the trust ratio is 1.
        is_nonzero = emit("And", emit("Greater", parameter_norm, zero), emit("Greater", direction_norm, zero))
        trust_ratio = emit("Where", is_nonzero, parameter_norm / emit("Where", is_nonzero, direction_norm, one), one)
        return parameter - step.get_rate(parameter) * trust_ratio * direction, moments


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad; Duchi et al. (2011)."""

    rate_decay: float = 0.0
    epsilon: float = 1e-10
    slots: ClassVar[tuple[str, ...]] = ("sum_of_squares",)

    def update(self, step: StepContext, parameter: Tensor, gradient: Tensor, slots: Tensors) -> Update:
        gradient = self.decay(parameter, gradient)
        total = slots["sum_of_squares"] + gradient * gradient
        rate = step.get_rate(parameter)
        if self.rate_decay:
            # PyTorch counts the steps of the decay from 0.
            rate = rate / ((step.count - 1).astype(parameter.dtype) * self.rate_decay + 1)
        return parameter - rate * (gradient / (emit("Sqrt", total) + self.epsilon)), {"sum_of_squares": total}


CALLS = "optimizer.calls"
"""State that counts the calls since the last parameter update."""


@dataclass(eq=False)
class StateRecorder:
    """Records the next values of states as outputs of the builder."""

    builder: Builder
    changes: Tensor | None = None
    """Bool scalar that tells whether states change in this call; None if they always change."""
    states: list[State] = field(default_factory=list)

    def add(self, name: str, before: Tensor, after: Tensor) -> None:
        """Record the next value of a state: ``after``, or ``before`` if `changes` is false."""
        # Not arithmetic, in which a NaN of the value that is not selected would remain.
        next_value = after if self.changes is None else emit("Where", self.changes, after, before)
        self.builder.output(next_value, f"{name}_next")
        self.states.append(State(name, f"{name}_next"))


def accumulate(
    recorder: StateRecorder, tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor], count: int
) -> dict[str, Tensor]:
    """Accumulate gradients over ``count`` calls; return their means. States added later change only in every such call."""
    builder = recorder.builder
    calls = builder.input(CALLS, TensorType(DType.INT64, ()))
    # Counted in the graph, not in Python, so that one program serves all calls.
    is_last = emit("Equal", calls + 1, np.array(count))
    recorder.add(CALLS, calls, emit("Where", is_last, np.array(0), calls + 1))
    means = {}
    for name, gradient in gradients.items():
        accumulated = builder.input(f"{name}.gradient", tensors[name].type)
        with builder.scope(f"{name}/accumulation"):
            total = accumulated + gradient
            means[name] = total / count
            recorder.add(f"{name}.gradient", accumulated, emit("Where", is_last, np.array(0, total.dtype.numpy), total))
    recorder.changes = is_last
    return means


RATE, STEP = "learning_rate", "optimizer.step"
"""Names of the inputs that an update adds: the learning rate, and the state that counts updates."""


def update(
    parameters: Mapping[str, TensorType], *, optimizer: Optimizer | None = None, clip_norm: float | None = None
) -> Function:
    """Make a Function that updates parameters from gradients that the caller passes, such as means over several machines.

    The inputs are ``<name>_gradient`` of each parameter and ``learning_rate``. Parameters and optimizer state are states, as in
    `step`. The default optimizer is `SGD`. Raises ModelError unless there are parameters, all of floating point.
    """
    builder = Builder("update")
    with builder:
        gradients = {name: builder.input(f"{name}_gradient", type_) for name, type_ in parameters.items()}
        values = {name: builder.input(name, type_) for name, type_ in parameters.items()}
        if not values or not all(value.dtype.is_float for value in values.values()):
            raise ModelError("an update needs parameters of floating point: give their names and types")
        recorder = record_update(builder, values, gradients, optimizer or SGD(), clip_norm)
    return declare_states(infer_shapes(builder.function()), recorder.states)


def record_update(
    builder: Builder,
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    optimizer: Optimizer,
    clip_norm: float | None = None,
    accumulation_steps: int = 1,
) -> StateRecorder:
    """Record the next values of the parameters and the optimizer state, in the order of ``gradients``."""
    rate = builder.input(RATE, TensorType(DType.FLOAT32, ()))
    steps = builder.input(STEP, TensorType(DType.INT64, ()))
    recorder = StateRecorder(builder)
    if accumulation_steps > 1:
        gradients = accumulate(recorder, parameters, gradients, accumulation_steps)
    if clip_norm is not None:
        gradients = _clip(gradients, clip_norm)
    step = StepContext(rate, steps + 1)
    recorder.add(STEP, steps, step.count)
    slots: dict[str, dict[str, Tensor]] = {}
    for name, parameter in parameters.items():
        slots[name] = {slot: builder.input(f"{name}.{slot}", parameter.type) for slot in optimizer.list_slots()}
    for name, gradient in gradients.items():
        with builder.scope(f"{name}/update"):
            next_value, next_slots = optimizer.update(step, parameters[name], gradient, slots[name])
        recorder.add(name, parameters[name], next_value)
        for slot, value in slots[name].items():
            recorder.add(f"{name}.{slot}", value, next_slots[slot])
    return recorder


def _clip(gradients: Mapping[str, Tensor], limit: float) -> dict[str, Tensor]:
    """Scale the gradients to a global norm of at most `limit`; Pascanu et al., arXiv:1211.5063."""
    squares = [emit("ReduceSumSquare", g, keepdims=0) for g in gradients.values()]
    norm = emit("Sqrt", emit("Sum", *squares))
    # The same epsilon as torch.nn.utils.clip_grad_norm_.
    scale = emit("Min", limit / (norm + 1e-6), np.asarray(1, norm.dtype.numpy))
    return {name: g * scale for name, g in gradients.items()}
