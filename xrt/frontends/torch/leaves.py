"""The leaves of what a module of PyTorch takes and returns: arrays and tensors, what a capture depends on, sizes that vary."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree

from xrt.errors import InputError
from xrt.frontends.torch.dtypes import share_array, share_tensor
from xrt.frontends.torch.export import register_dataclasses

if TYPE_CHECKING:
    from xrt.frontends.torch.capture import Capture

__all__ = [
    "collect_arrays",
    "describe",
    "find_shared_memory",
    "find_varying_axes",
    "flatten",
    "gives_arrays",
    "list_shapes",
    "list_written_tensors",
    "make_dynamic_shapes",
    "make_output",
    "unflatten",
]


def flatten(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any, list[Any]]:
    """Return the leaves of the inputs, arrays as tensors, their structure, and the leaves as they were given.

    The structure of tensors and arrays that are in no nest is their number by position, then the names of the others.
    """
    given = [*args, *kwargs.values()]
    kinds = set(map(type, given))
    structure: Any = (len(args), *kwargs)
    if not kinds <= _FLAT:
        given, structure = pytree.tree_flatten((args, dict(kwargs)))
        if register_dataclasses(given):
            return flatten(args, kwargs)
    if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in given if isinstance(leaf, torch.Tensor)):
        raise InputError("an input requires a gradient, and only the forward pass is computed; pass x.detach()")
    if kinds == {torch.Tensor}:
        return given, structure, given
    return [share_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in given], structure, given


_FLAT = {torch.Tensor, np.ndarray}


def unflatten(leaves: Sequence[Any], structure: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return leaves as positional and named inputs."""
    if not isinstance(structure, tuple):
        return pytree.tree_unflatten(leaves, structure)  # type: ignore[no-any-return]  # untyped there
    count, *names = structure
    return tuple(leaves[:count]), dict(zip(names, leaves[count:], strict=True))


def gives_arrays(given: list[Any]) -> bool:
    """Whether arrays alone were given, so that arrays are returned."""
    return any(isinstance(leaf, np.ndarray) for leaf in given) and not any(isinstance(leaf, torch.Tensor) for leaf in given)


def list_shapes(leaves: Sequence[Any]) -> tuple[tuple[int, ...] | None, ...]:
    """Return the shape of each leaf, None where it is no tensor."""
    return tuple([leaf.shape if isinstance(leaf, torch.Tensor) else None for leaf in leaves])


def list_written_tensors(found: Capture, buffers: list[torch.Tensor], leaves: list[Any]) -> list[torch.Tensor]:
    """Return the tensors that a call has written to, which PyTorch has not seen."""
    return [*buffers, *(leaves[index] for index in found.updated)]


def describe(leaf: Any) -> object:
    """Return what of a leaf a capture depends on, sizes left out."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.ndim
    if isinstance(leaf, float | complex):
        number = complex(leaf)
        return type(leaf), struct.pack("dd", number.real, number.imag)  # by their bits: NaN, and the sign of a zero
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), _Same(leaf)
    return type(leaf), leaf


@dataclass(frozen=True)
class _Same:
    """An input without a hash, equal to itself alone."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


def collect_arrays(found: Capture, leaves: list[Any], buffers: list[torch.Tensor]) -> list[Any]:
    """Return the arrays that a capture runs on."""
    given = [leaves[index] for index in found.inputs]
    arrays = [share_array(one) if isinstance(one, torch.Tensor) else np.asarray(one) for one in given]
    return arrays + [share_array(buffer) for buffer in buffers]


def find_shared_memory(tensors: Sequence[torch.Tensor | None], written: Collection[int]) -> tuple[int, int] | None:
    """Return two tensors, by position, that have an element in common, where one of the two is among those written to."""
    spans = sorted(
        (start := one.data_ptr(), start + _find_extent(one), index)
        for index, one in enumerate(tensors)
        if one is not None and one.numel() and one.layout is torch.strided
    )
    before: list[tuple[int, int, int]] = []
    for start, end, index in spans:
        before = [span for span in before if span[1] > start]
        for _, _, other in before:
            if (index in written or other in written) and _have_common_element(tensors[index], tensors[other]):
                return min(index, other), max(index, other)
        before.append((start, end, index))
    return None


def _find_extent(tensor: torch.Tensor) -> int:
    """Return the bytes from the first to behind the last element."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int((reach + 1) * tensor.itemsize)


def _have_common_element(one: Any, other: Any) -> bool:
    try:
        return np.shares_memory(share_array(one), share_array(other), max_work=100_000)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        return True


def make_output(leaf: Any, results: Sequence[Any], leaves: list[Any]) -> Any:
    """Return one leaf of what the module returns."""
    if leaf.kind == "input":
        return leaves[leaf.index]
    if leaf.kind == "value":
        return leaf.value
    array = results[leaf.index]
    return array.item() if leaf.is_number else share_tensor(array)


# ---------------------------------------------------------------------- sizes that vary


def find_varying_axes(known: Capture, shapes: Sequence[tuple[int, ...] | None]) -> dict[int, set[int]] | None:
    """Return the axes, by the leaf, that differ from the capture's or are symbolic there; None where one has a size under 2."""
    varying: dict[int, set[int]] = {}
    for index, value in zip(known.inputs, known.function.inputs, strict=False):
        declared, shape = cast("Any", value.type).shape, shapes[index] or ()
        axes = {axis for axis, (a, b) in enumerate(zip(declared, shape, strict=True)) if a != b}
        if any(shape[axis] < 2 for axis in axes):
            return None
        varying[index] = axes
    return varying


def make_dynamic_shapes(model: torch.nn.Module, leaves: list[Any], structure: Any, varying: Mapping[int, set[int]]) -> Any:
    """Return dynamic shapes in the structure of the inputs, as ``torch.export.export`` takes them: by the names of forward."""
    auto = torch.export.Dim.AUTO
    marks = [dict.fromkeys(varying.get(index, ()), auto) or None for index in range(len(leaves))]
    parts = unflatten([_Mark(mark) for mark in marks], structure)
    args, kwargs = pytree.tree_map_only(_Mark, lambda mark: mark.axes, parts)
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    parameters = inspect.signature(model.forward).parameters
    shapes: dict[str, Any] = {}
    for name, value in bound.items():
        if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            shapes.update(value)
        else:
            shapes[name] = value
    return shapes


@dataclass(frozen=True)
class _Mark:
    """The axes of one tensor that are symbolic: a leaf, whatever is in it."""

    axes: dict[int, Any] | None
