"""`torch.export` of a module, with the dataclasses among its outputs made known to PyTorch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["export", "register_dataclasses"]


def export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    """Return the exported program; raises what PyTorch raises."""
    try:
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        if "which is not a known type" not in str(error):
            raise
    hook = module.register_forward_hook(_see_output)
    try:
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    finally:
        hook.remove()


def _see_output(_: torch.nn.Module, given: Any, output: Any) -> None:
    register_dataclasses(output)  # what a hook returns would replace the output


def register_dataclasses(values: Any) -> bool:
    """Make the dataclasses in a nest of values known to PyTorch; return whether there were any."""
    found = [leaf for leaf in pytree.tree_leaves(values) if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)]
    for kind in {type(leaf) for leaf in found}:
        torch.export.register_dataclass(kind)
    for leaf in found:
        register_dataclasses([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
    return bool(found)
