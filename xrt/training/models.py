"""What is trained: a Function, or a module of PyTorch captured in its training form, with its parameters and its buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from xrt.errors import ModelError, OptionError
from xrt.graph import Function
from xrt.module.model_source import find_front_end, make_source

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TrainedModel", "capture_for_inference", "read_model"]


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A Function with what says which of its constants are trained."""

    function: Function
    parameters: str | Sequence[str]
    """Names of constants, or patterns."""
    buffers: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    """The first values of states that a module of PyTorch has as buffers: copies."""


def read_model(model: Any, args: tuple[Any, ...] | None, parameters: str | Sequence[str]) -> TrainedModel:
    """Return a model as it is trained; a module of PyTorch is captured with ``args``, in the mode in which it is.

    Raises OptionError where ``args`` is missing for such a module or given for another model, ModelError where the model cannot
    be read, and where no parameter of the module that requires a gradient matches.
    """
    if find_front_end(model) is None:
        if args is not None:
            raise OptionError("args= is for a torch.nn.Module, which is captured with example inputs; leave it out")
        return TrainedModel(make_source(model).get_declared_function(), parameters)
    if args is None:
        raise OptionError("a module of PyTorch is captured with example inputs: pass args=(x, ...)")
    from xrt.frontends.torch import from_torch

    function = from_torch(model, args)
    known = [name for name, parameter in model.named_parameters() if parameter.requires_grad and name in function.constants]
    patterns = (parameters,) if isinstance(parameters, str) else tuple(parameters)
    names = [name for name in known if any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)]
    if not names:
        raise ModelError(f"no parameter of {type(model).__name__} that requires a gradient matches {parameters!r}")
    inputs = {value.name for value in function.inputs}
    buffers = {name: buffer.detach().cpu().numpy().copy() for name, buffer in model.named_buffers() if name in inputs}
    return TrainedModel(function, names, buffers)


def capture_for_inference(module: Any, args: tuple[Any, ...]) -> Function:
    """Return a module of PyTorch in its inference form; the mode of each of its modules is as before then."""
    from xrt.frontends.torch import from_torch

    modes = [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        return from_torch(module, args)
    finally:
        for one, mode in modes:
            one.training = mode
