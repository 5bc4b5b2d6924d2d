"""What of a module of PyTorch a capture depends on, compared on each call: its modules, parameters, buffers and modes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from xrt.errors import ModelError

__all__ = ["ModuleState"]


@dataclass(frozen=True, slots=True)
class ModuleState:
    """The modules in order, the training flag of each, and the tensors by name with what changes where they are written to."""

    modules: tuple[torch.nn.Module, ...]
    training: tuple[bool, ...]
    tensors: dict[str, torch.Tensor]
    marks: dict[str, tuple[object, ...]]
    """Of each tensor its memory, version, element type and shape."""

    @classmethod
    def of(cls, model: torch.nn.Module) -> ModuleState:
        """Return the state now; raises ModelError for tensors that PyTorch keeps no version of."""
        modules = _list_modules("", model)
        tensors = _get_tensors(modules)
        marks = {name: _mark(name, tensor) for name, tensor in tensors.items()}
        return cls(tuple(one for _, one in modules), tuple(one.training for _, one in modules), tensors, marks)

    def is_like(self, other: ModuleState, updated: tuple[str, ...]) -> bool:
        """Whether a capture of this state holds in the other one; of the buffers that it updates only type and shape count."""
        if len(self.modules) != len(other.modules) or self.tensors.keys() != other.tensors.keys():
            return False
        if any(one is not two for one, two in zip(self.modules, other.modules, strict=True)):
            return False
        for name, tensor in self.tensors.items():
            have, want = other.marks[name], self.marks[name]
            if have[2:] != want[2:] or (name not in updated and (tensor is not other.tensors[name] or have != want)):
                return False
        return True


def _get_tensors(modules: list[tuple[str, torch.nn.Module]]) -> dict[str, torch.Tensor]:
    return {
        prefix + name: tensor
        for prefix, module in modules
        for kind in (module._parameters, module._buffers)
        for name, tensor in kind.items()
        if tensor is not None
    }


def _list_modules(prefix: str, module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    found = [(prefix, module)]
    for name, child in module._modules.items():
        if child is not None:
            found += _list_modules(f"{prefix}{name}.", child)
    return found


def _mark(name: str, tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.is_inference():
        raise ModelError(
            f"{name} was made under torch.inference_mode, and PyTorch neither exports such a tensor nor counts writes to it; "
            f"make or load the module outside, or under torch.no_grad"
        )
    memory = tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)
    return memory, tensor._version, tensor.dtype, tensor.shape
