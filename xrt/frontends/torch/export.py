"""`torch.export` of a module, with the dataclasses among its outputs made known to PyTorch, and without its messages."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.export import _trace
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["drop_warnings", "export", "register_dataclasses"]


def export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    """Return the exported program; raises what PyTorch raises."""
    try:
        return _export(module, args, kwargs, dynamic_shapes)
    except Exception as error:
        if "which is not a known type" not in str(error):
            raise
    hook = module.register_forward_hook(_see_output)
    try:
        return _export(module, args, kwargs, dynamic_shapes)
    finally:
        hook.remove()


def _export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    """Export without PyTorch's dump of a graph that fails: the module may be captured in another way, and the error says why."""
    scope = vars(_trace)
    scope["print"] = lambda *_, **__: None  # prints nothing else than that graph
    try:
        with drop_warnings("torch.fx.experimental.symbolic_shapes", "torch.export._trace"):
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    finally:
        scope.pop("print", None)


@contextmanager
def drop_warnings(*loggers: str) -> Iterator[None]:
    """Drop the warnings and errors of PyTorch's loggers meanwhile; records of lower levels, which a user has asked for, stay."""
    named = [logging.getLogger(name) for name in loggers]
    for logger in named:
        logger.addFilter(_is_asked_for)
    try:
        yield
    finally:
        for logger in named:
            logger.removeFilter(_is_asked_for)


def _is_asked_for(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


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
