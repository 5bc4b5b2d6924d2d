"""A training step as one Function: inputs and targets in, loss out, parameters and moments as state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.errors import ModelError, did_you_mean
from xrt.graph import Constant, DType, Function, State, TensorType, Value, declare_states, list_states
from xrt.module.model_source import make_source
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.passes.gradient import gradient
from xrt.passes.gradient.recording import continue_function
from xrt.training.losses import Loss
from xrt.training.optimizers import SGD, Optimizer, StepContext

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor

__all__ = ["RATE", "STEP", "TARGET", "list_parameters", "step"]

RATE, TARGET, STEP = "learning_rate", "target", "optimizer.step"
"""Names of the inputs that a step adds: the learning rate, the target of a loss, and the state that counts steps."""


def list_parameters(model: Any, patterns: str | Sequence[str] = "*") -> dict[str, Constant]:
    """Return the parameters of a model by name: constants of floating point with at least one axis, whose names match a pattern.

    A name that is given without wildcards must be there, whatever its axes; ModelError says so where it is not.
    """
    function = make_source(model).get_declared_function()
    chosen = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    known = {name: constant for name, constant in function.constants.items() if constant.dtype.is_float}
    for pattern in chosen:
        if not any(sign in pattern for sign in "*?[") and pattern not in known:
            raise ModelError(f"the model has no parameter {pattern!r}.{did_you_mean(pattern, known)}")
    return {
        name: constant
        for name, constant in known.items()
        if name in chosen or (constant.shape and any(fnmatchcase(name, pattern) for pattern in chosen))
    }


def step(
    model: Any,
    *,
    loss: str | Loss | None = None,
    optimizer: Optimizer | None = None,
    parameters: str | Sequence[str] = "*",
    clip_norm: float | None = None,
) -> Function:
    """Return one step of training as a Function with state, for ``XRTModule(...).new_session()``.

    ``loss`` names an output of one element, or is a `Loss` of the first output, whose target becomes the input ``target``.
    Without it the model must have one output, state excepted. The parameters that match the patterns become inputs that are
    state, and so do ``<name>.<slot>`` for what the optimizer remembers and ``optimizer.step``. The learning rate is the input
    ``learning_rate``.

    The outputs are those of the model, after the loss where a `Loss` makes it. A state is zeros at first: set the parameters, as
    `TrainModule` does. What is state of the model stays state. ``clip_norm`` scales the gradients so that their common norm is at
    most that.

    The default optimizer is `SGD`. Raises ModelError as `xrt.gradient` and `list_parameters` do.
    """
    optimizer = optimizer or SGD()
    chosen = list_parameters(model, parameters)
    if not chosen:
        raise ModelError(f"no parameter of the model matches {parameters!r}; xrt.training.list_parameters(model) has all")
    promoted = _promote(_with_loss(make_source(model).get_declared_function(), loss), chosen)
    found = gradient(promoted, of=_find_loss(promoted, loss), with_respect_to=tuple(chosen))
    builder, tensors = continue_function(found)
    outputs, gradients = found.outputs[: -len(chosen)], found.outputs[-len(chosen) :]
    with builder:
        rate, before = builder.input(RATE, TensorType(DType.FLOAT32, ())), builder.input(STEP, TensorType(DType.INT64, ()))
        at = StepContext(rate, before + 1)
        values = [tensors[value.name] for value in gradients]
        if clip_norm is not None:
            values = _clip(values, clip_norm)
        for value in outputs:
            builder.output(tensors[value.name])
        builder.output(at.count, f"{STEP}_next")
        pairs = dict(zip(chosen, values, strict=True))
        states = [State(STEP, f"{STEP}_next"), *_update_all(builder, tensors, at, pairs, optimizer)]
    built = builder.function().replace(aliases=found.aliases, doc=found.doc, metadata=found.metadata)
    return declare_states(infer_shapes(drop_dead_nodes(built)), [*list_states(found), *states])


def _find_loss(function: Function, loss: str | Loss | None) -> str | None:
    """Return the name of the loss; None where several outputs may be it."""
    if isinstance(loss, str):
        return loss
    kept = {state.output for state in list_states(function)}
    names = [value.name for value in function.outputs if value.name not in kept]
    return names[0] if isinstance(loss, Loss) or len(names) == 1 else None


def _with_loss(function: Function, loss: str | Loss | None) -> Function:
    """Return the Function with the loss as its first output, where one is to be made."""
    if not isinstance(loss, Loss):
        return function
    output = function.outputs[0]
    if not isinstance(output.type, TensorType):
        raise ModelError(f"output {output.name!r} is {output.type or 'of unknown type'}, and a loss needs a tensor")
    builder, tensors = continue_function(function)
    with builder:
        target = builder.input(TARGET, loss.target_type(output.type))
        builder.output(loss.apply(tensors[output.name], target), "loss")
        for value in function.outputs:
            builder.output(tensors[value.name])
    return builder.function().replace(aliases=function.aliases, doc=function.doc, metadata=function.metadata)


def _promote(function: Function, chosen: Mapping[str, Constant]) -> Function:
    """Return the Function with those constants as inputs."""
    inputs = (*function.inputs, *(Value(name, constant.type) for name, constant in chosen.items()))
    return function.replace(inputs=inputs, constants={n: c for n, c in function.constants.items() if n not in chosen})


def _clip(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Return the gradients scaled so that their common norm is at most the limit; Pascanu et al., arXiv:1211.5063."""
    squares = [emit("ReduceSumSquare", g, keepdims=0) for g in gradients]
    norm = emit("Sqrt", emit("Sum", *squares))
    scale = emit("Min", limit / (norm + 1e-6), np.asarray(1, norm.dtype.numpy))
    return [g * scale for g in gradients]


def _update_all(
    builder: Builder, tensors: Mapping[str, Tensor], at: StepContext, gradients: Mapping[str, Tensor], optimizer: Optimizer
) -> list[State]:
    """Record the update of every parameter; return the states that it makes."""
    states = []
    for name, value in gradients.items():
        parameter = tensors[name]
        slots = {slot: builder.input(f"{name}.{slot}", parameter.type) for slot in optimizer.list_slots()}
        with builder.scope(f"{name}/update"):
            following, changed = optimizer.update(at, parameter, value, slots)
        for key, new in {name: following, **{f"{name}.{slot}": changed[slot] for slot in slots}}.items():
            builder.output(new, f"{key}_next")
            states.append(State(key, f"{key}_next"))
    return states
