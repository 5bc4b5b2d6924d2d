"""What of a module of PyTorch a capture depends on, compared on each call: its modules, parameters, buffers and modes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch

from xrt.errors import InputError, ModelError

__all__ = ["ModuleState", "check_keywords", "check_module", "list_tensor_names"]


@dataclass(frozen=True, slots=True)
class ModuleState:
    """The modules in order, the training flag of each, and the tensors with what changes where they are written to.

    It is made in each call: lists, which are compared without code of Python for each module.
    """

    layout: list[Any]
    """Each module, then the names of its sub-modules, parameters and buffers."""
    training: tuple[bool, ...]
    tensors: list[torch.Tensor | None]
    marks: list[tuple[object, ...]]
    """Of each tensor its memory, version, element type and shape."""

    @classmethod
    def of(cls, model: torch.nn.Module) -> ModuleState:
        """Return the state now; raises ModelError for tensors that PyTorch keeps no version of."""
        layout: list[Any] = []
        flags: list[bool] = []
        tensors: list[Any] = []
        stack = [model]
        while stack:
            module = stack.pop()
            layout.append(module)
            flags.append(module.training)
            children, parameters, buffers = module._modules, module._parameters, module._buffers
            if children:
                layout += children
                stack += [child for child in reversed(children.values()) if child is not None]
            if parameters:
                layout += parameters
                tensors += parameters.values()
            if buffers:
                layout += buffers
                tensors += buffers.values()
        marks: list[tuple[object, ...]]
        try:
            marks = [() if one is None else (one.data_ptr(), one._version, one.dtype, one.shape) for one in tensors]
        except RuntimeError:  # a tensor without memory of its own, or without a version
            check_module(model)
            marks = [() if one is None else _mark(one) for one in tensors]
        return cls(layout, tuple(flags), tensors, marks)

    def is_like(self, other: ModuleState, updated: Sequence[int]) -> bool:
        """Whether a capture of this state holds in the other one; of the tensors that it updates only type and shape count."""
        if self.layout != other.layout:
            return False
        if self.marks == other.marks and all(map(is_, self.tensors, other.tensors)):
            return True
        pairs = enumerate(zip(self.tensors, other.tensors, self.marks, other.marks, strict=True))
        return all(
            (one is two and mine == theirs) or (index in updated and mine[2:] == theirs[2:])
            for index, (one, two, mine, theirs) in pairs
        )


def list_tensor_names(model: torch.nn.Module) -> list[str]:
    """Return the names of parameters and buffers, in the order of a state's tensors."""
    names = []
    stack = [("", model)]
    while stack:
        prefix, module = stack.pop()
        children = [(f"{prefix}{name}.", child) for name, child in module._modules.items() if child is not None]
        stack += reversed(children)
        names += [prefix + name for name in (*module._parameters, *module._buffers)]
    return names


def check_module(model: torch.nn.Module) -> None:
    """Raise ModelError for a module of torch.jit, and for tensors that PyTorch keeps no version of."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a module of torch.jit cannot be captured; pass the module that it was scripted or traced from")
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        if tensor.is_inference():
            raise ModelError(
                f"{name} was made under torch.inference_mode, and PyTorch neither exports such a tensor nor counts writes to it; "
                f"make or load the module outside, or under torch.no_grad"
            )


_OF_XRT = {"fetch", "out", "options"}
"""What a call of another XRTModule takes."""


def check_keywords(model: torch.nn.Module, given: Mapping[str, Any]) -> None:
    """Raise InputError for a named input that a call of another XRTModule takes, and the module does not."""
    for name in _OF_XRT & given.keys():
        parameters = inspect.signature(model.forward).parameters
        if name not in parameters and all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            raise InputError(
                f"a module of PyTorch is called without {name}=; it is of xrt.XRTModule(xrt.from_torch(module, args))"
            )


def _mark(tensor: torch.Tensor) -> tuple[object, ...]:
    memory = tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)
    return memory, tensor._version, tensor.dtype, tensor.shape
