"""The update of parameters by their gradients, as part of a step or as a Function of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from xrt.builder.builder import Builder
from xrt.builder.record_op import emit
from xrt.errors import ModelError
from xrt.graph import DType, Function, TensorType, declare_states
from xrt.passes import infer_shapes
from xrt.training.accumulation import StateRecorder, accumulate
from xrt.training.optimizers import SGD, Optimizer, StepContext

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

__all__ = ["RATE", "STEP", "record_update", "update"]

RATE, STEP = "learning_rate", "optimizer.step"
"""Names of the inputs that an update adds: the learning rate, and the state that counts updates."""


def update(
    parameters: Mapping[str, TensorType], *, optimizer: Optimizer | None = None, clip_norm: float | None = None
) -> Function:
    """Return the update of parameters by gradients from elsewhere, such as a mean over several machines: a Function with state.

    The inputs are ``<name>_gradient`` for each parameter, and ``learning_rate``; state is as in `step`. It has no other outputs.
    The default optimizer is `SGD`. Raises ModelError without parameters of floating point.
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
    """Record the next values of the parameters, in the order of their gradients, and of what the optimizer remembers."""
    rate, before = builder.input(RATE, TensorType(DType.FLOAT32, ())), builder.input(STEP, TensorType(DType.INT64, ()))
    recorder = StateRecorder(builder)
    if accumulation_steps > 1:
        gradients = accumulate(recorder, parameters, gradients, accumulation_steps)
    if clip_norm is not None:
        gradients = _clip(gradients, clip_norm)
    at = StepContext(rate, before + 1)
    recorder.add(STEP, before, at.count)
    slots = optimizer.list_slots()
    moments = {name: {slot: builder.input(f"{name}.{slot}", x.type) for slot in slots} for name, x in parameters.items()}
    for name, value in gradients.items():
        with builder.scope(f"{name}/update"):
            following, changed = optimizer.update(at, parameters[name], value, moments[name])
        recorder.add(name, parameters[name], following)
        for slot, held in moments[name].items():
            recorder.add(f"{name}.{slot}", held, changed[slot])
    return recorder


def _clip(gradients: Mapping[str, Tensor], limit: float) -> dict[str, Tensor]:
    """Return the gradients scaled so that their common norm is at most the limit; Pascanu et al., arXiv:1211.5063."""
    squares = [emit("ReduceSumSquare", g, keepdims=0) for g in gradients.values()]
    norm = emit("Sqrt", emit("Sum", *squares))
    scale = emit("Min", limit / (norm + 1e-6), np.asarray(1, norm.dtype.numpy))
    return {name: g * scale for name, g in gradients.items()}
