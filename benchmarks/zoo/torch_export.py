"""Export of a PyTorch module by either of PyTorch's exporters, with what the module itself computes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.zoo.model import CreatedModel


class Positional(torch.nn.Module):
    """A module called by position, which returns a flat tuple of tensors."""

    def __init__(self, inner: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.inner, self.names = inner, tuple(names)

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.inner(**dict(zip(self.names, args, strict=True)))
        return tuple(flatten(result))


def flatten(value: Any) -> list[torch.Tensor]:
    """List the tensors of a nested value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in flatten(item)]
    return []


def export_module(
    module: torch.nn.Module,
    calls: Sequence[Mapping[str, torch.Tensor]],
    *,
    dynamo: bool,
    opset: int,
    axes: Mapping[str, Sequence[int]] | None = None,
) -> CreatedModel:
    """Return the module exported with the first call's inputs.

    ``axes`` has the open axes of each input; an axis number is open under the name ``d<number>`` in every input that has it.
    """
    module = Positional(module.eval(), list(calls[0]))
    arguments = [tuple(call.values()) for call in calls]
    with torch.no_grad():
        expected = [[tensor.numpy().copy() for tensor in module(*args)] for args in arguments]
    names = list(calls[0])

    def write(path: Path) -> None:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            if dynamo:
                shapes = tuple(dict.fromkeys((axes or {}).get(name, ()), torch.export.Dim.DYNAMIC) or None for name in names)
                program = torch.onnx.export(
                    module,
                    arguments[0],
                    dynamo=True,
                    opset_version=opset,
                    input_names=names,
                    dynamic_shapes={"args": shapes} if axes else None,
                    verbose=False,
                )
                program.save(str(path))
            else:
                opened = {name: {axis: f"d{axis}" for axis in found} for name, found in (axes or {}).items()}
                torch.onnx.export(
                    module, arguments[0], str(path), dynamo=False, opset_version=opset, input_names=names, dynamic_axes=opened
                )

    arrays = [{name: np.ascontiguousarray(value.numpy()) for name, value in call.items()} for call in calls]
    return CreatedModel(write, arrays, expected)
