"""Build a training step as one Function with inputs and targets, the loss as output, and the parameters as state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from xrt.builder.record_op import apply, emit
from xrt.errors import ModelError, OptionError, did_you_mean
from xrt.graph import Constant, DType, Function, State, TensorType, Value, declare_states, list_states
from xrt.module.model_source import make_source
from xrt.module.module import find_front_end
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.passes.gradient import gradient
from xrt.passes.gradient.preparation import continue_function
from xrt.training.dropout import write_dropout
from xrt.training.optimizers import SGD, Optimizer, record_update

if TYPE_CHECKING:
    import numpy as np

    from xrt.builder.tensor import Tensor


@dataclass(frozen=True)
class Loss:
    """A scalar loss of a model's output and a target. Derive from it for a custom loss."""

    def target_type(self, output: TensorType) -> TensorType:
        """Compute the type of the target from the type of the model's output."""
        raise NotImplementedError(f"{type(self).__name__} has no target_type()")

    def apply(self, output: Tensor, target: Tensor) -> Tensor:
        """Compute the loss with `xrt.ops` and Python operators."""
        raise NotImplementedError(f"{type(self).__name__} has no apply()")


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """Mean squared error; the target has the type of the output."""

    def target_type(self, output: TensorType) -> TensorType:
        return output

    def apply(self, output: Tensor, target: Tensor) -> Tensor:
        difference = output - target
        return emit("ReduceMean", difference * difference, keepdims=0)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Mean of -log softmax at the target class, for scores (N, classes, ...) and int64 classes (N, ...)."""

    ignore_index: int | None = None

    def target_type(self, output: TensorType) -> TensorType:
        if output.shape is None or len(output.shape) < 2:
            raise ModelError(f"the cross entropy needs scores of shape (N, classes, ...); the output is {output}")
        return TensorType(DType.INT64, (output.shape[0], *output.shape[2:]))

    def apply(self, output: Tensor, target: Tensor) -> Tensor:
        options = {} if self.ignore_index is None else {"ignore_index": self.ignore_index}
        losses: tuple[Tensor, ...] = apply("SoftmaxCrossEntropyLoss", (output, target), options, outputs=1)  # type: ignore[assignment]  # a tuple, because outputs is given
        return losses[0]


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A Function to train, and the names or patterns of its parameters."""

    function: Function
    parameters: str | Sequence[str]
    buffers: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    """Copies of the buffers that a PyTorch module updates, which become states."""


def read_model(model: Any, args: tuple[Any, ...] | None, parameters: str | Sequence[str]) -> TrainedModel:
    """Read a model for training; a PyTorch module is captured with ``args`` in its current mode.

    Raises OptionError if ``args`` is missing for a PyTorch module, or passed with another model. Raises ModelError if the model
    cannot be read, or no parameter that requires a gradient matches.
    """
    if find_front_end(model) is None:
        if args is not None:
            raise OptionError("args= is for a torch.nn.Module, which is captured with example inputs; leave it out")
        return TrainedModel(make_source(model).get_declared_function(), parameters)
    if args is None:
        raise OptionError("a module of PyTorch is captured with example inputs: pass args=(x, ...)")
    from xrt.frontends.torch import from_torch

    function = from_torch(model, args)
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad and name in function.constants]
    patterns = (parameters,) if isinstance(parameters, str) else tuple(parameters)
    names = [name for name in trainable if any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)]
    if not names:
        raise ModelError(f"no parameter of {type(model).__name__} that requires a gradient matches {parameters!r}")
    inputs = {value.name for value in function.inputs}
    # Only buffers that the module updates became inputs.
    buffers = {name: buffer.detach().cpu().numpy().copy() for name, buffer in model.named_buffers() if name in inputs}
    return TrainedModel(function, names, buffers)


def capture_for_inference(module: Any, args: tuple[Any, ...]) -> Function:
    """Capture a PyTorch module in eval mode, then restore the modes of its submodules."""
    from xrt.frontends.torch import from_torch

    # `train()` would not restore submodules of different modes.
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        return from_torch(module, args)
    finally:
        for submodule, mode in modes:
            submodule.training = mode


TARGET = "target"
"""Input that a `Loss` adds, unless the name is in use."""


def list_parameters(model: Any, patterns: str | Sequence[str] = "*") -> dict[str, Constant]:
    """List the parameters of a model: floating-point constants with at least one axis whose names match a pattern.

    A name without wildcards selects a constant of any rank. Raises ModelError if there is no such constant.
    """
    function = make_source(model).get_declared_function()
    globs = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    parameters = {name: constant for name, constant in function.constants.items() if constant.dtype.is_float}
    for pattern in globs:
        if not any(sign in pattern for sign in "*?[") and pattern not in parameters:
            raise ModelError(f"the model has no parameter {pattern!r}.{did_you_mean(pattern, parameters)}")
    return {
        name: constant
        for name, constant in parameters.items()
        if name in globs or (constant.shape and any(fnmatchcase(name, pattern) for pattern in globs))
    }


def step(
    model: Any,
    *,
    loss: str | Loss | None = None,
    optimizer: Optimizer | None = None,
    parameters: str | Sequence[str] = "*",
    clip_norm: float | None = None,
    accumulation_steps: int = 1,
    seed: int = 0,
    args: tuple[Any, ...] | None = None,
) -> Function:
    """Build one training step as a Function with state, for ``XRTModule(...).new_session()``.

    ``loss`` names an output of one element, or is a `Loss` of the first output. By default the model's only output is the loss. A
    `Loss` adds the input ``target`` (``loss_target`` if the name is in use), and its value as the first output. ``parameters``
    are patterns of the constants to train. The default optimizer is `SGD`. ``clip_norm`` limits the global norm of the gradients.

    The parameters become states, as do ``<name>.<slot>`` of the optimizer and ``optimizer.step``, the number of updates. States
    of the model remain states. New states are initially zero: set the parameters, as `TrainModule` does. The learning rate is the
    input ``learning_rate``.

    With ``accumulation_steps=N`` the parameters change in every N-th call, by the mean of N gradients. The sums are states
    ``<name>.gradient``. Dropout in training mode drops the same elements on all engines, by ``seed``, with the states
    ``dropout.seed`` and ``dropout.calls``. In the body of a loop or branch it is an error.

    A `torch.nn.Module` is captured with example inputs ``args`` in its current mode: call ``train()`` first. Its matching
    parameters that require a gradient are trained. Buffers that it updates become states.

    Raises ModelError like `xrt.gradient` and `list_parameters`, OptionError for an invalid ``accumulation_steps`` or ``seed``.
    """
    if type(accumulation_steps) is not int or accumulation_steps < 1:
        raise OptionError(f"accumulation_steps must be a positive integer; got {accumulation_steps!r}")
    optimizer = optimizer or SGD()
    trained = read_model(model, args, parameters)
    trainable = list_parameters(trained.function, trained.parameters)
    if not trainable:
        raise ModelError(f"no parameter of the model matches {parameters!r}; xrt.training.list_parameters(model) has all")
    seeded, dropout_states = write_dropout(trained.function, seed)
    promoted = promote(_prepend_loss(seeded, loss), trainable)
    name = _find_loss(promoted, loss, dropout_states)
    # The gradients of the last layers are computed first. Updates in this order free their memory early.
    order = sorted(trainable, key=lambda parameter: _find_first_use(promoted, parameter), reverse=True)
    differentiated = gradient(promoted, of=name, with_respect_to=order)
    builder, tensors = continue_function(differentiated)
    # `gradient` appends its outputs in the requested order.
    outputs = differentiated.outputs[: -len(trainable)]
    gradients = differentiated.outputs[-len(trainable) :]
    with builder:
        for value in outputs:
            builder.output(tensors[value.name])
        parameter_gradients = {name: tensors[value.name] for name, value in zip(order, gradients, strict=True)}
        parameter_tensors = {name: tensors[name] for name in trainable}
        recorder = record_update(builder, parameter_tensors, parameter_gradients, optimizer, clip_norm, accumulation_steps)
    # The builder only records nodes. The model's states are in its aliases and metadata.
    built = builder.function().replace(aliases=differentiated.aliases, doc=differentiated.doc, metadata=differentiated.metadata)
    return declare_states(infer_shapes(drop_dead_nodes(built)), [*list_states(differentiated), *dropout_states, *recorder.states])


def _find_loss(function: Function, loss: str | Loss | None, dropout_states: Sequence[State]) -> str | None:
    """Find the output that is the loss; None if ``loss`` is None and the model has several outputs."""
    if isinstance(loss, str):
        return loss
    # Next values of states are outputs too, but not the loss.
    next_states = {state.output for state in (*list_states(function), *dropout_states)}
    names = [value.name for value in function.outputs if value.name not in next_states]
    return names[0] if isinstance(loss, Loss) or len(names) == 1 else None


def _prepend_loss(function: Function, loss: str | Loss | None) -> Function:
    """Compute a `Loss` of output 0 and an added target input, and make it the first output."""
    if not isinstance(loss, Loss):
        return function
    output = function.outputs[0]
    if not isinstance(output.type, TensorType):
        raise ModelError(f"output {output.name!r} is {output.type or 'of unknown type'}, and a loss needs a tensor")
    builder, tensors = continue_function(function)
    with builder:
        target_name = f"loss_{TARGET}" if TARGET in builder.names else TARGET
        target = builder.input(target_name, loss.target_type(output.type))
        loss_value = loss.apply(tensors[output.name], target)
        builder.output(loss_value, "training_loss" if "loss" in builder.names else "loss")
        for value in function.outputs:
            builder.output(tensors[value.name])
    return builder.function().replace(aliases=function.aliases, doc=function.doc, metadata=function.metadata)


def promote(function: Function, parameters: Mapping[str, Constant]) -> Function:
    """Convert constants to inputs, which are appended to the existing inputs."""
    inputs = (*function.inputs, *(Value(name, constant.type) for name, constant in parameters.items()))
    return function.replace(inputs=inputs, constants={n: c for n, c in function.constants.items() if n not in parameters})


def _find_first_use(function: Function, name: str) -> int:
    """Find the index of the first node that reads a value; the number of nodes if no node reads it."""
    users = function.users(name)
    first_output = next(iter(users[0].node.defined_names), None) if users else None
    position = None if first_output is None else function.producer_index(first_output)
    return len(function.nodes) if position is None else position
